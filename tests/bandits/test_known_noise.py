"""Results of known noise weigh by precision; the others have the learned noise."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.utils.gpytorch_modules import (
    get_gaussian_likelihood_with_lognormal_prior,
)
from gpytorch.kernels import ProductKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_bkb import BBKB, GPBandit
from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits import ThompsonPolicy, UCBPolicy
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.prediction import PartlyKnownNoise
from tests.bandits import (
    identity_bandit,
    make_bandit,
    noisy_rewards,
    random_arms,
    rbf,
    true_rewards,
    unchanged,
)
from tests.helpers import gram_matrix, seeded
from tests.reference import dtc_posterior, exact_posterior, noise_log_likelihood


ARMS = random_arms(30)
TOLD = torch.arange(12)
# Of 12 results, four are of unknown noise.
NOISE = torch.tensor([0.01, 0.3, math.nan] * 4).double()


class ZeroMean(UCBPolicy):
    """Upper confidence bounds with a prior mean of zero."""

    prior_mean = "zero"


def close(left, right, tolerance=1e-10):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize(
    ("kernel", "policy"),
    [(rbf(), None), (None, ThompsonPolicy())],
    ids=["ucb", "draws"],
)
def test_the_same_known_variance_is_a_given_noise_variance(kernel, policy):
    options = {"covar_module": kernel, "policy": policy}
    known = make_bandit(GPBandit, noise_variance=None, **options)
    expected = make_bandit(GPBandit, noise_variance=0.1, **options)
    for bandit, noise in ((known, 0.1), (expected, None)):
        measure = noisy_rewards(ARMS)
        bandit.add_observations(TOLD, measure(TOLD), noise_variance=noise)
        for _ in range(3):
            batch = bandit.ask(2)
            bandit.tell(batch, measure(batch), noise_variance=noise)
        bandit.ask(3)
    assert known.pending == expected.pending
    assert known.noise_variance == pytest.approx(0.1, rel=1e-10)
    close(known.predict(), expected.predict())
    assert known.confidence_width == pytest.approx(expected.confidence_width)


@pytest.mark.parametrize("most", [None, 5], ids=["exact", "sparse"])
def test_known_and_unknown_noise_against_a_dense_posterior(most):
    bandit = make_bandit(GPBandit, ARMS, policy=ZeroMean(), max_inducing=most)
    arms = torch.cat([TOLD, TOLD[:5]])
    noise = torch.cat([NOISE, NOISE[1:6]])
    rewards = noisy_rewards(ARMS)(arms)
    if most is not None:
        bandit.add_observations(arms, rewards, noise_variance=noise)
        with pytest.warns(match="max_inducing"):
            bandit.ask()
    else:
        bandit.ask(3)
        bandit.add_observations(arms[3:], rewards[3:], noise_variance=noise[3:])
        bandit.add_observations(arms[:3], rewards[:3], noise_variance=noise[:3])
    full = noise.nan_to_num(0.1).numpy()
    gram = gram_matrix(rbf(), ARMS)
    expected = exact_posterior(
        gram[np.ix_(arms, arms)], gram[arms], gram, full, rewards.numpy()
    )
    if most is not None:
        S, p = bandit.inducing_indices, TOLD
        weights = np.bincount(arms, 1 / full)
        targets = np.bincount(arms, rewards.numpy() / full) / weights
        blocks = gram[np.ix_(S, S)], gram[np.ix_(S, p)], gram[S], gram
        expected = dtc_posterior(*blocks, weights, targets)
        assert len(S) == most
    close(bandit.predict(), (expected[0], expected[1].diagonal()), 1e-8)
    assert bandit.counts.sum() == len(arms)
    assert not bandit.counts.is_floating_point()


@pytest.mark.parametrize("num_inducing", [12, 4], ids=["exact", "sparse"])
def test_the_likelihood_of_known_and_unknown_noise(num_inducing):
    rewards, X = true_rewards(ARMS)[TOLD], ARMS[TOLD]
    learned = get_gaussian_likelihood_with_lognormal_prior().double()
    learned.noise = 0.2
    is_known = ~NOISE.isnan()
    model = SingleTaskDTCGP(
        X,
        rewards.unsqueeze(-1),
        likelihood=PartlyKnownNoise(learned, is_known, NOISE.nan_to_num(0.0)),
        inducing_points=X[:num_inducing],
        covar_module=rbf(),
        outcome_transform=None,
    ).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    value = mll(model(X), model.train_targets)
    value.backward()
    K = gram_matrix(rbf(), X)
    cross = K[:num_inducing]
    gram = cross.T @ np.linalg.solve(cross[:, :num_inducing], cross)

    def expected(noise):
        at = torch.tensor(noise, dtype=torch.double)
        prior = learned.noise_covar.noise_prior.log_prob(at).item()
        variances = NOISE.nan_to_num(noise).numpy()
        return noise_log_likelihood(gram, variances, rewards.numpy()) + prior

    assert 12 * value.item() == pytest.approx(expected(learned.noise.item()), rel=1e-8)
    slope = (expected(0.2 + 1e-5) - expected(0.2 - 1e-5)) / 2e-5
    raw = learned.noise_covar.raw_noise
    by_noise = torch.autograd.grad(learned.noise.sum(), raw)[0]
    assert 12 * (raw.grad / by_noise).item() == pytest.approx(slope, rel=1e-4)


def test_the_noise_of_results_without_one_is_learned():
    arms = torch.arange(30).repeat(8)
    bandit = make_bandit(GPBandit, covar_module=None, noise_variance=None)
    known = torch.arange(len(arms)) % 60 < 30
    std = torch.where(known, 1.0, 0.1).double()
    noise = torch.where(known, 1.0, math.nan).double()
    generator = seeded(3)
    errors = std * torch.randn(len(arms), generator=generator).double()
    bandit.add_observations(
        arms, true_rewards(ARMS)[arms] + errors, noise_variance=noise
    )
    bandit.ask()
    assert bandit.noise_variance == pytest.approx(0.01, rel=0.3)
    # The variance of a mean of four such results.
    assert bandit.predict()[1].max() < 0.01 / 4


@pytest.mark.parametrize("kernel", [rbf(), None], ids=["given", "learned"])
def test_a_result_of_huge_noise_counts_for_nothing(kernel):
    options = {"covar_module": kernel, "noise_variance": None}
    without = make_bandit(GPBandit, **options)
    bandit = make_bandit(GPBandit, **options)
    for each in (without, bandit):
        each.add_observations(TOLD, noisy_rewards(ARMS)(TOLD), noise_variance=0.1)
    bandit.add_observations([20], [1e6], noise_variance=1e12)
    close(bandit.predict(), without.predict(), 1e-4)
    # A pull to come has the median of all known variances.
    bandit.ask()
    assert bandit.noise_variance == pytest.approx(0.1)


def test_a_result_without_noise_leaves_the_others_their_digits():
    """As the standard deviation of three equal replicates, which is rounding."""
    exact, tiny = (make_bandit(GPBandit) for _ in range(2))
    for bandit, least in ((exact, 1e-6), (tiny, 5e-29)):
        noise = torch.full((12,), 0.1)
        noise[::2] = least
        rewards = noisy_rewards(ARMS)(TOLD)
        bandit.add_observations(TOLD, rewards, noise_variance=noise)
    close(tiny.predict(), exact.predict(), 1e-3)


def test_the_noisier_of_two_equal_results_is_measured_again():
    for noise, chosen in (([0.05, 1e-4, 0.05], 0), ([1e-4, 0.05, 0.05], 1)):
        bandit = identity_bandit(GPBandit, 3)
        bandit.add_observations([0, 1, 2], [0.5, 0.5, -1.0], noise_variance=noise)
        assert bandit.ask().tolist() == [chosen]


def test_a_product_space_takes_known_noise():
    lists = {"x": torch.arange(3.0).double().unsqueeze(-1), "y": [1.0, 2.0, 4.0, 5.0]}
    products = ProductArms(lists)
    points = torch.cartesian_prod(lists["x"][:, 0], torch.tensor(lists["y"]).double())
    noise, told = [0.01, 0.5, math.nan, 2.0], [0, 3, 5, 10]
    parts = (RBFKernel(active_dims=(0,)), RBFKernel(active_dims=(1,)))
    answers = []
    for arms in (products, points):
        kernel = ProductKernel(*parts).double()
        bandit = make_bandit(GPBandit, arms, covar_module=kernel)
        bandit.add_observations(told, [1.0, -1.0, 2.0, 0.5], noise_variance=noise)
        answers.append((bandit.ask(3).tolist(), bandit.predict()))
    assert answers[0][0] == answers[1][0]
    close(answers[0][1], answers[1][1])


@pytest.mark.parametrize(
    ("noise", "error", "match"),
    [
        (-1.0, InputDataError, "positive and finite.*got -1.0 at position 0"),
        ([0.1, 0.0], InputDataError, "got 0.0 at position 1. Pass NaN if"),
        ([0.1, math.inf], InputDataError, "got inf at position 1"),
        ("loud", InputDataError, "`noise_variance` to be real numbers"),
        ([0.1] * 3, BotorchTensorDimensionError, r"one per result, i.e. shape \(2,\)"),
    ],
)
def test_bad_noise_changes_nothing(noise, error, match):
    bandit = make_bandit(GPBandit)
    batch = bandit.ask(2)
    for tell in (bandit.tell, bandit.add_observations):
        with unchanged(bandit), pytest.raises(error, match=match):
            tell(batch, [1.0, 2.0], noise_variance=noise)


def test_only_a_gp_bandit_that_does_not_drift_takes_noise():
    bandit = make_bandit(GPBandit, forgetting_rate=0.1)
    batch = bandit.ask()
    for tell in (bandit.tell, bandit.add_observations):
        with unchanged(bandit), pytest.raises(UnsupportedError, match="does not drift"):
            tell(batch, [1.0], noise_variance=0.1)
    with pytest.raises(UnsupportedError, match="use a GPBandit"):
        make_bandit(BBKB).add_observations([1], [1.0], noise_variance=0.1)
