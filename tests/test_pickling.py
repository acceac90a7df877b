"""Whatever a user can build is pickled, copied and saved, and answers as before."""

import io
import math
import pickle
from copy import deepcopy

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, UniformPrior
from torch import Tensor

from botorch_bkb import acquisition, models, optim, posteriors
from botorch_bkb.acquisition import (
    PracticalBBKBWidth,
)
from botorch_bkb.acquisition.deviations import RandomDeviationWidth
from botorch_bkb.models import kernels
from botorch_bkb.models.kernels import TemporalDecayKernel
from botorch_bkb.optim import SumRule


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


def arm_posterior():
    posterior = optim.ArmPosterior(ARMS, rbf(), 0.1)
    arms = torch.tensor([0, 3])
    posterior.update(arms, arms, torch.ones(2), torch.ones(2).double())
    return posterior


# Classes with state, with priors where they take some, and one that is plain data.
MAKERS = {
    "SingleTaskDTCGP": lambda: dtc_model(X[:4]),
    "SparseArmKalmanFilter": sparse_arm_filter,
    "TimeVaryingGP": time_varying_model,
    "PrecomputedKernel": lambda: kernels.PrecomputedKernel(torch.eye(10).double()),
    "TemporalDecayKernel": lambda: TemporalDecayKernel(
        forgetting_rate_prior=UniformPrior(0.0, 1.0)
    ),
    "TanimotoKernel": kernels.TanimotoKernel,
    "ScheduledUpperConfidenceBound": lambda: acquisition.ScheduledUpperConfidenceBound(
        dtc_model(X[:4]), acquisition.PracticalBKBWidth()
    ),
    "BatchUpperConfidenceBound": lambda: acquisition.BatchUpperConfidenceBound(
        dtc_model(X[:4]), acquisition.PracticalBBKBWidth(), X_pending=X[5:7]
    ),
    "TimeVaryingUpperConfidenceBound": (
        lambda: acquisition.TimeVaryingUpperConfidenceBound(
            time_varying_model(), acquisition.LogWidth(0.8, 4.0), 3.0
        )
    ),
    "RandomDeviationWidth": lambda: RandomDeviationWidth(0.5, seed=3),
    "NormDoubling": lambda: acquisition.NormDoubling(PracticalBBKBWidth()),
    "ArmPosterior": arm_posterior,
    "Capped": lambda: optim.Capped(SumRule(), 96),
}


def by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def by_torch(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def answers(thing):
    """Return what an object says, as numbers to compare."""
    if isinstance(thing, posteriors.SparseArmKalmanFilter):
        return thing.predict(2.0)
    if isinstance(thing, optim.ArmPosterior):
        return thing.mean, thing.variance
    if isinstance(thing, kernels.PrecomputedKernel):
        return (thing(torch.arange(10.0).unsqueeze(-1)).to_dense(),)
    if isinstance(thing, kernels.TanimotoKernel):
        return (thing(torch.eye(3).double()).to_dense(),)
    if isinstance(thing, TemporalDecayKernel):
        (prior,) = thing.named_priors()
        return (prior[3](prior[1]), *thing.parameters())
    if isinstance(thing, models.SingleTaskDTCGP | models.TimeVaryingGP):
        return thing.posterior(X).mean, thing.posterior(X).variance
    if isinstance(thing, acquisition.TimeVaryingUpperConfidenceBound):
        return (thing(X[:, None, :1]),)
    if isinstance(thing, acquisition.ScheduledUpperConfidenceBound):
        return (thing(X.unsqueeze(-2)),)
    return tuple(
        value if isinstance(value, Tensor) else torch.tensor(float(value))
        for value in vars(thing).values()
        if isinstance(value, Tensor | int | float)
    )


@pytest.mark.parametrize("copied", [by_pickle, deepcopy])
@pytest.mark.parametrize("name", MAKERS)
def test_copies_answer_as_the_original(name, copied):
    original = MAKERS[name]()
    found = copied(original)
    assert type(found) is type(original)
    before, after = answers(original), answers(found)
    assert len(before) == len(after)
    for left, right in zip(before, after, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [by_pickle, deepcopy, by_torch])
def test_copies_of_priors_belong_to_the_copy(copied):
    kernel = TemporalDecayKernel(forgetting_rate_prior=UniformPrior(0.0, 0.5))
    found = copied(kernel)
    found.sample_from_prior("forgetting_rate_prior")
    assert kernel.forgetting_rate.item() == 0.5
    assert 0 < found.forgetting_rate.item() < 0.5


@pytest.mark.parametrize("copied", [by_pickle, by_torch])
def test_models_that_were_fitted_are_saved_with_their_priors(copied):
    model = models.TimeVaryingGP(X, Y, covar_module=MaternKernel(nu=2.5))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll)
    found = copied(model)
    likelihoods = []
    for one in (model, found):
        mll = ExactMarginalLogLikelihood(one.likelihood, one).train()
        likelihoods.append(mll(one(*one.train_inputs), one.train_targets).item())
    assert likelihoods[0] == likelihoods[1]
    assert math.isfinite(likelihoods[0])
