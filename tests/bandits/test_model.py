"""`bandit.model()` against the bandit's own predictions, and in BoTorch's hands."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_bkb import BKB, GPBandit, GPUCB, RGPUCB, TVGPUCB
from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.bandits import matern_to_learn
from botorch_bkb.optim import optimize_acqf_finite
from tests.bandits import make_bandit, noisy_rewards, play, random_arms, unchanged


pytestmark = pytest.mark.usefixtures("short_fits")
GENERATOR = torch.Generator().manual_seed(0)
WIDTHS = torch.tensor([1.0, 1e3, 5e-3], dtype=torch.double)
ARMS = torch.rand(80, 3, generator=GENERATOR, dtype=torch.double) * WIDTHS - 7
VALUES = torch.sin(4 * (ARMS / WIDTHS).sum(dim=-1)) * 30 - 7
SKEWED = -torch.exp(-VALUES / 8)  # whose poor rewards are warped
NOISES = torch.where(torch.arange(80) % 3 == 0, 1e-4, math.nan)
NOISES[1::3] = 4.0


def campaign(arms=ARMS, values=VALUES, noises=None, **options):
    options = {"covar_module": matern_to_learn, "seed": 0, **options}
    bandit = GPBandit(arms, **options)
    for _ in range(3):
        picks = bandit.ask(10)
        noise = None if noises is None else noises[picks]
        bandit.tell(picks, values[picks], noise_variance=noise)
    bandit.ask(2)  # pending pulls do not count
    return bandit


def assert_predicts(model, bandit, rows):
    """Point by point and jointly, also where there is no arm."""
    mean, variance = bandit.predict()
    scale = mean.std()
    for X in (rows.unsqueeze(-2), rows):
        posterior = model.posterior(X)
        np.testing.assert_allclose(
            posterior.mean.flatten(), mean, rtol=1e-6, atol=1e-6 * scale
        )
        np.testing.assert_allclose(posterior.variance.flatten(), variance, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
@pytest.mark.parametrize(
    ("values", "options", "is_warped"),
    [
        (VALUES, {"covar_module": None}, False),
        (-VALUES, {"maximize": False, "noise_variance": 0.01}, True),
        (VALUES, {"max_inducing": 9}, True),
        (SKEWED, {}, True),
        (-SKEWED, {"maximize": False, "noises": NOISES}, True),
        (VALUES, {"noises": NOISES.nan_to_num(1e-3)}, True),
    ],
)
def test_a_learned_model_predicts_what_the_bandit_predicts(values, options, is_warped):
    bandit = campaign(values=values, **options)
    assert (bandit.warp is not None) == is_warped
    with unchanged(bandit):
        model = bandit.model()
    assert_predicts(model, bandit, ARMS)
    elsewhere = ARMS[:5] + 0.3 * WIDTHS
    posterior, (mean, variance) = (
        model.posterior(elsewhere),
        bandit.predict(rows=elsewhere),
    )
    np.testing.assert_allclose(posterior.mean.flatten(), mean, rtol=1e-6)
    np.testing.assert_allclose(posterior.variance.flatten(), variance, rtol=1e-6)
    kind = TransformedPosterior if is_warped else GPyTorchPosterior
    assert isinstance(posterior, kind)
    assert isinstance(model.input_transform, Normalize)
    assert isinstance(model.outcome_transform, Standardize) != is_warped
    sampler = SobolQMCNormalSampler(torch.Size([2048]), seed=0)
    draws = sampler(model.posterior(ARMS[:9].unsqueeze(-2))).flatten(1)
    median = draws.median(dim=0).values  # the mean, or the median if warped
    error = (median - bandit.predict(range(9))[0]).abs() / draws.std(dim=0)
    assert error.max() < 0.1


@pytest.mark.parametrize(
    ("bandit_class", "options"),
    [(BKB, {"oversampling": 0.1}), (GPUCB, {"maximize": False}), (GPBandit, {})],
)
def test_a_given_kernel_stays_in_its_units(bandit_class, options):
    bandit = make_bandit(bandit_class, random_arms(60), **options)
    play(bandit, 30)
    bandit.ask(1)
    model = bandit.model()
    assert_predicts(model, bandit, bandit.arms)
    is_sparse = len(bandit.inducing_indices) < len(bandit.observed_arms)
    assert (model.sparse_inducing_inputs() is not None) == is_sparse
    assert is_sparse == (bandit_class is BKB)
    assert not hasattr(model, "input_transform")


def test_products_are_positions_and_fingerprints_dense():
    bits = torch.rand(80, 24, generator=GENERATOR) < 0.4
    codes = torch.from_numpy(np.packbits(bits.numpy(), axis=-1))
    packed = BitArms(codes, True, ARMS[:, 1:2])
    parts = {"heat": ARMS[:5, 1:2], "base": ["a", "b", "c"], "acid": bits[:6].byte()}
    products = ProductArms(parts)
    positions = products.components(range(len(products))).double()
    for arms, rows in ((packed, packed.dense()), (products, positions)):
        bandit = campaign(arms, rows[:, -3:].sum(dim=-1), covar_module=None)
        assert_predicts(bandit.model(), bandit, rows)


@pytest.mark.filterwarnings("ignore:A not p.d.")  # a candidate may be pending
def test_it_is_a_model_of_botorch_that_shares_nothing_with_the_bandit():
    bandit = campaign()
    model, before = bandit.model(), deepcopy(bandit.predict())
    pending = ARMS[[*bandit.pending.values()]]
    best_f = VALUES[bandit.observed_arms].max()
    acqf = LogExpectedImprovement(model, best_f)
    values = acqf(ARMS.unsqueeze(-2)).exp()
    mean, std = before[0], before[1].sqrt()
    z, normal = (mean - best_f) / std, torch.distributions.Normal(0.0, 1.0)
    improvement = std * (z * normal.cdf(z) + normal.log_prob(z).exp())
    torch.testing.assert_close(values, improvement, rtol=1e-4, atol=1e-9)
    (index,), _ = optimize_acqf_finite(acqf, ARMS)
    assert index == improvement.argmax()
    noisy = qLogNoisyExpectedImprovement(model, ARMS[:9], X_pending=pending)
    picks, _ = optimize_acqf_finite(noisy, ARMS, q=2)
    assert not set(picks.tolist()) & {*bandit.pending.values()}
    # Neither changes the other.
    X = model.train_inputs[0].clone()
    model.requires_grad_(True)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert not torch.equal(bandit.predict()[0], model.posterior(ARMS).mean[:, 0])
    for one, other in zip(bandit.predict(), before, strict=True):
        assert torch.equal(one, other)
    model = bandit.model()
    settled = [*bandit.pending.values()]
    bandit.tell(settled, VALUES[settled])
    bandit.ask(1)
    torch.testing.assert_close(model.posterior(ARMS).mean[:, 0], before[0])
    assert torch.equal(model.train_inputs[0], X)


def test_new_observations_are_transformed_as_the_others():
    """Conditioned on a result, it is the model of a bandit with the same units."""
    bandit = campaign(values=SKEWED)
    model = bandit.model()
    assert bandit.warp is not None
    new = model.condition_on_observations(ARMS[:1], SKEWED[:1, None])
    target = (bandit.warp(SKEWED[:1]) - bandit._surrogate.fit.units.mean) / (
        bandit._surrogate.fit.units.std
    )
    torch.testing.assert_close(new.train_targets[-1:], target)
    y, noise = model.outcome_transform(SKEWED[:, None], torch.ones(80, 1).double())
    step = 1e-6
    slope = model.outcome_transform(SKEWED[:, None] + step)[0] - y
    torch.testing.assert_close(noise, (slope / step).square(), rtol=1e-4, atol=0.0)
    told = bandit.observed_arms  # the least reward bounds what is undone
    again, ones = model.outcome_transform.untransform(y[told], noise[told])
    torch.testing.assert_close(again, SKEWED[told, None])
    torch.testing.assert_close(ones, torch.ones_like(again))
    assert model.loo_posterior().mean.shape == (bandit.num_pulls, 1, 1)


def test_without_results_or_with_drift_there_is_none():
    with pytest.raises(InputDataError, match=r"none yet\. Call `tell` first"):
        GPBandit(ARMS).model()
    for bandit_class in (TVGPUCB, RGPUCB):
        bandit = make_bandit(bandit_class)
        play(bandit, 2, noisy_rewards(bandit.arms))
        with pytest.raises(UnsupportedError, match="Use `predict`, or fit a TimeVary"):
            bandit.model()


def test_a_control_of_known_noise_is_no_row_of_the_model():
    bandit = GPBandit(random_arms(20), seed=0)
    bandit.add_observations(range(8), torch.rand(8), noise_variance=0.01)
    before = bandit.model().train_inputs[0]
    bandit.add_observations(None, [1.0], control="std")
    model = bandit.model()
    assert torch.equal(model.train_inputs[0], before)
    mean = model.posterior(bandit.arms).mean.squeeze(-1)
    torch.testing.assert_close(mean, bandit.predict()[0], rtol=1e-5, atol=1e-6)
