"""Conditioning: on nothing, without noise, and as a look ahead."""

import numpy as np
import pytest
import torch
from botorch.models import ModelListGP
from botorch.sampling import IIDNormalSampler, ListSampler
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.utils.warnings import NumericalWarning

from botorch_bkb.models import SingleTaskDTCGP
from tests.helpers import gram_matrix
from tests.reference import dtc_posterior


NOISE = 0.05


def make_data(n=30):
    stream = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=stream, dtype=torch.double)
    noise = 0.1 * torch.randn(n, 1, generator=stream, dtype=torch.double)
    X_test = torch.rand(8, 2, generator=stream, dtype=torch.double)
    return X, torch.sin(6 * X.sum(dim=-1, keepdim=True)) + noise, X_test


def rbf():
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    return kernel


def make_model(X, Y, **options):
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-9)).double()
    likelihood.noise = NOISE
    return SingleTaskDTCGP(
        X,
        Y,
        likelihood=likelihood,
        covar_module=rbf(),
        mean_module=ZeroMean(),
        outcome_transform=None,
        **options,
    )


# BoTorch's `fantasize` warns of its own shapes where there are no points.
NON_STRICT = "ignore:Non-strict enforcement of botorch tensor conventions"


@pytest.mark.filterwarnings(NON_STRICT)
@pytest.mark.parametrize("train_yvar", [False, True])
@pytest.mark.parametrize("num_inducing", [10, None])
def test_conditioning_on_no_points_changes_nothing(num_inducing, train_yvar):
    X, Y, X_test = make_data()
    S = X[:num_inducing] if num_inducing else None
    Yvar = torch.full_like(Y, NOISE) if train_yvar else None
    model = SingleTaskDTCGP(X, Y, Yvar, inducing_points=S)
    before = model.posterior(X_test)
    nothing = torch.empty(0, 1).double()
    noise = {"noise": nothing} if train_yvar else {}
    conditioned = model.condition_on_observations(X[:0], nothing, **noise)
    torch.testing.assert_close(conditioned.posterior(X_test).mean, before.mean)
    sampler = IIDNormalSampler(torch.Size([3]), seed=0)
    fantasies = model.fantasize(X[:0].expand(5, 0, 2), sampler)
    after = fantasies.posterior(X_test)
    assert after.mean.shape == (3, 5, 8, 1)
    torch.testing.assert_close(after.mean, before.mean.expand(3, 5, 8, 1))
    torch.testing.assert_close(after.variance, before.variance.expand(3, 5, 8, 1))


@pytest.mark.filterwarnings(NON_STRICT)
def test_decoupled_fantasies_leave_outputs_out():
    X, Y, X_test = make_data()
    models = [SingleTaskDTCGP(X, Y, inducing_points=X[:9]), SingleTaskDTCGP(X, -Y)]
    pair = ModelListGP(*models)
    samplers = [IIDNormalSampler(torch.Size([4]), seed=seed) for seed in (0, 1)]
    mask = torch.tensor([[False, True], [False, True]])
    fantasies = pair.fantasize(X_test[:2], ListSampler(*samplers), evaluation_mask=mask)
    before, after = pair.posterior(X_test), fantasies.posterior(X_test)
    torch.testing.assert_close(
        after.variance[..., 0], before.variance[..., 0].expand(4, 8)
    )
    assert (after.variance[..., :2, 1] < 0.9 * before.variance[..., :2, 1]).all()


@pytest.mark.parametrize("num_inducing", [10, None])
def test_conditioning_without_noise_rounds_it_up(num_inducing):
    X, Y, X_test = make_data()
    X_new = X_test[:4]
    Y_new = torch.sin(6 * X_new.sum(dim=-1, keepdim=True))
    S = X[:num_inducing] if num_inducing else None
    model = make_model(X, Y, inducing_points=S)
    for _ in range(3):  # the same rows again and again
        with pytest.warns(NumericalWarning, match="Rounding small noise"):
            model = model.condition_on_observations(
                X_new, Y_new, noise=torch.zeros_like(Y_new)
            )
    kernel, everything = rbf(), torch.cat([X, X_new])
    S = everything if S is None else torch.cat([S, X_new])
    # To GPyTorch's `min_fixed_noise`.
    W = np.concatenate([np.full(30, 1 / NOISE), np.full(4, 3 / 1e-6)])
    mean, covariance = dtc_posterior(
        gram_matrix(kernel, S, S),
        gram_matrix(kernel, S, everything),
        gram_matrix(kernel, S, X_test),
        gram_matrix(kernel, X_test, X_test),
        W,
        torch.cat([Y, Y_new]).squeeze(-1).numpy(),
    )
    with torch.no_grad():
        posterior = model.posterior(X_test)
    np.testing.assert_allclose(posterior.mean.squeeze(-1), mean, atol=1e-6)
    np.testing.assert_allclose(
        posterior.variance.squeeze(-1), np.diag(covariance), atol=1e-6
    )


def present_posterior(X, Y, S, X_all):
    """The DTC posterior of data without repeats, by NumPy."""
    kernel = rbf()
    return dtc_posterior(
        gram_matrix(kernel, S, S),
        gram_matrix(kernel, S, X),
        gram_matrix(kernel, S, X_all),
        gram_matrix(kernel, X_all, X_all),
        np.full(len(X), 1 / NOISE),
        Y.squeeze(-1).numpy(),
    )


def test_fantasies_condition_the_present_posterior_by_bayes_rule():
    X, Y, X_test = make_data()
    model = make_model(X, Y, inducing_points=X[:10])
    X_new = torch.tensor([[0.1, 0.9], [0.95, 0.2]]).double()
    sampler = IIDNormalSampler(torch.Size([16]), seed=0)
    with torch.no_grad():
        fantasies = model.fantasize(X_new, sampler)
        posterior = fantasies.posterior(X_test)
    mean, covariance = present_posterior(X, Y, X[:10], torch.cat([X_test, X_new]))
    outcomes = fantasies.train_targets[:, -2:].numpy()
    gain = np.linalg.solve(covariance[8:, 8:] + NOISE * np.eye(2), covariance[8:, :8])
    expected = mean[:8] + (outcomes - mean[8:]) @ gain
    np.testing.assert_allclose(posterior.mean.squeeze(-1), expected, atol=1e-8)
    variance = np.diag(covariance)[:8] - (covariance[8:, :8] * gain).sum(0)
    np.testing.assert_allclose(
        posterior.variance.squeeze(-1), np.tile(variance, (16, 1)), atol=1e-8
    )


def averaged_mean(model, x, X_test, **options):
    """The mean to be, averaged over two outcomes around the mean that is."""
    mean = model.posterior(x).mean
    means = [
        model.condition_on_observations(x, mean + step, **options).posterior(X_test)
        for step in (-0.7, 0.7)
    ]
    return (means[0].mean + means[1].mean) / 2


def test_the_mean_to_be_averages_to_the_mean_that_is():
    X, Y, X_test = make_data()
    model = make_model(X, Y, inducing_points=X[:10])
    now = model.posterior(X_test).mean
    gaps = {}
    for reproject in (False, True):
        found = [
            averaged_mean(model, x.unsqueeze(0), X_test, reproject=reproject)
            for x in X_test
        ]
        gaps[reproject] = max((mean - now).abs().max().item() for mean in found)
    assert gaps[False] < 1e-10
    assert gaps[True] > 0.05  # old data speak through the new inducing point
    # Step after step, as in multi-step lookahead.
    model.posterior(X_test)
    for x in X_test[:3]:
        now = model.posterior(X_test).mean
        again = averaged_mean(model, x.unsqueeze(0), X_test, reproject=False)
        torch.testing.assert_close(again, now)
        model = model.condition_on_observations(
            x.unsqueeze(0), torch.ones(1, 1).double(), reproject=False
        )
    # Exact models have no choice.
    exact = make_model(X, Y)
    one, two = (
        exact.condition_on_observations(X_test[:1], Y[:1], reproject=reproject)
        for reproject in (False, True)
    )
    assert torch.equal(one.posterior(X_test).mean, two.posterior(X_test).mean)


def test_old_data_speak_through_all_points_after_fantasies_through_which_they_did_not():
    X, Y, X_test = make_data()
    model = make_model(X, Y, inducing_points=X[:10])
    sampler = IIDNormalSampler(torch.Size([4]), seed=0)
    fantasies = model.fantasize(X_test[:2], sampler)
    fantasies = fantasies.fantasize(X_test[2:3], IIDNormalSampler(torch.Size([1])))
    outcomes = fantasies.train_targets[0, :, -3:].unsqueeze(-1).detach()  # 4 x 3 x 1
    new_X, new_Y = X_test[3:5], Y[:2] + 0.3
    found = fantasies.condition_on_observations(
        new_X.expand(1, 4, 2, -1), new_Y.expand(1, 4, 2, 1)
    ).posterior(X_test)
    every_X, S = torch.cat([X, X_test[:5]]), torch.cat([X[:10], X_test[:5]])
    for fantasy in range(4):
        mean, covariance = dtc_posterior(
            gram_matrix(rbf(), S, S),
            gram_matrix(rbf(), S, every_X),
            gram_matrix(rbf(), S, X_test),
            gram_matrix(rbf(), X_test, X_test),
            np.full(len(every_X), 1 / NOISE),
            torch.cat([Y, outcomes[fantasy], new_Y]).squeeze(-1).numpy(),
        )
        got_mean = found.mean[0, fantasy].squeeze(-1).detach().numpy()
        got_variance = found.variance[0, fantasy].squeeze(-1).detach().numpy()
        np.testing.assert_allclose(got_mean, mean, atol=1e-7)
        np.testing.assert_allclose(got_variance, np.diag(covariance), atol=1e-7)


@pytest.mark.parametrize("leading", [(4, 1), (1, 3)])
def test_a_batch_of_fantasies_takes_points_of_smaller_batches(leading):
    X, Y, X_test = make_data()
    model = make_model(X, Y, inducing_points=X[:10])
    sampler = IIDNormalSampler(torch.Size([4]), seed=0)
    fantasies = model.fantasize(X_test[:6].view(3, 2, -1), sampler)  # 4 x 3 models
    full_X = X_test[6:8].expand(4, 3, 2, -1)
    full_Y = Y[:2].expand(4, 3, 2, 1)
    expected = fantasies.condition_on_observations(full_X, full_Y)
    new_X = X_test[6:8].expand(*leading, 2, -1)
    found = fantasies.condition_on_observations(new_X, full_Y)
    for part in ("mean", "variance"):
        got = getattr(found.posterior(X_test), part)
        torch.testing.assert_close(got, getattr(expected.posterior(X_test), part))
