"""Whatever a user can build is pickled, copied and saved, and answers as before."""

import math
import pickle
from copy import deepcopy

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, UniformPrior

from botorch_bkb import acquisition, models, posteriors
from botorch_bkb.acquisition import PracticalBBKBWidth
from botorch_bkb.models.kernels import TemporalDecayKernel


X = torch.rand(10, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
Y = torch.sin(4 * X.sum(dim=-1, keepdim=True))
ARMS = X[:6]


def rbf():
    return RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)).double()


def dtc_model(inducing_points=None):
    model = models.SingleTaskDTCGP(X, Y, inducing_points=inducing_points)
    model.posterior(X)  # with factors
    return model


def time_varying_model():
    model = models.TimeVaryingGP(X, Y)
    model.posterior(X)
    return model


def sparse_arm_filter():
    posterior = posteriors.SparseArmKalmanFilter(ARMS, rbf(), 0.1, 0.2)
    posterior.observe(torch.tensor([0, 3]), torch.ones(2).double(), 1.0)
    return posterior


def decay_kernel():
    return TemporalDecayKernel(forgetting_rate_prior=UniformPrior(0.0, 1.0))


def prior_and_parameters(kernel):
    (prior,) = kernel.named_priors()
    return (prior[3](prior[1]), *kernel.parameters())


# Classes with state, with priors where they take some, and what each says. Those of
# SingleTaskDTCGP are in tests/models/test_botorch_uses.py, and those of bandits in
# tests/bandits/test_threads.py.
MAKERS = {
    "SparseArmKalmanFilter": (sparse_arm_filter, lambda thing: thing.predict(2.0)),
    "TemporalDecayKernel": (decay_kernel, prior_and_parameters),
    "BatchUpperConfidenceBound": (
        lambda: acquisition.BatchUpperConfidenceBound(
            dtc_model(X[:4]), PracticalBBKBWidth(), X_pending=X[5:7]
        ),
        lambda thing: thing(X.unsqueeze(-2)),
    ),
    "TimeVaryingUpperConfidenceBound": (
        lambda: acquisition.TimeVaryingUpperConfidenceBound(
            time_varying_model(), acquisition.LogWidth(0.8, 4.0), 3.0
        ),
        lambda thing: thing(X[:, None, :1]),
    ),
}


def by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("copied", [by_pickle, deepcopy])
@pytest.mark.parametrize("name", MAKERS)
def test_copies_answer_as_the_original(name, copied):
    make, answer = MAKERS[name]
    original = make()
    found = copied(original)
    assert type(found) is type(original)
    expected = answer(original)
    torch.testing.assert_close(answer(found), expected, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [by_pickle, deepcopy])
def test_copies_of_priors_belong_to_the_copy(copied):
    kernel = TemporalDecayKernel(forgetting_rate_prior=UniformPrior(0.0, 0.5))
    found = copied(kernel)
    found.sample_from_prior("forgetting_rate_prior")
    assert kernel.forgetting_rate.item() == 0.5
    assert 0 < found.forgetting_rate.item() < 0.5


def test_models_that_were_fitted_are_saved_with_their_priors():
    model = models.TimeVaryingGP(X, Y, covar_module=MaternKernel(nu=2.5))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll)
    found = by_pickle(model)
    likelihoods = []
    for one in (model, found):
        mll = ExactMarginalLogLikelihood(one.likelihood, one).train()
        likelihoods.append(mll(one(*one.train_inputs), one.train_targets).item())
    assert likelihoods[0] == likelihoods[1]
    assert math.isfinite(likelihoods[0])
