"""Kernel and noise, given or learned, and answers in the user's units."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from gpytorch.kernels import ScaleKernel

from botorch_bkb import GPBandit
from botorch_bkb.arms import BitArms
from botorch_bkb.bandits import composite_to_learn, fitting, ThompsonPolicy
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.bandits.observations import Results
from botorch_bkb.models.kernels import AnovaKernel, learned, TanimotoKernel
from tests.bandits import (
    assert_same,
    LEARNED,
    make_bandit,
    noisy_rewards,
    play,
    random_arms,
    rbf,
    true_rewards,
)
from tests.bandits.contract import Recorder
from tests.helpers import gram_matrix, random_points, seeded
from tests.reference import composite_covariance


MODELS = {
    "ucb": {},
    "thompson": {"policy": ThompsonPolicy()},
    "drift": {"forgetting_rate": "learn"},
}
each_model = pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)


def bits(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same_bits(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


# The schedule of fits -----------------------------------------------------------------


def fit_times(bandit, num_rounds, size):
    """Tell ``size`` outside rewards at a time; return the pulls at each refit."""
    times = []
    for number in range(num_rounds):
        before = bandit.state_dict()["prior"]["next_fit"]
        indices = (torch.arange(size) + number * size) % len(bandit.arms)
        bandit.add_observations(indices, true_rewards(bandit.arms)[indices])
        bandit.ask(1)
        if bandit.state_dict()["prior"]["next_fit"] != before:
            times.append(bandit.num_pulls)
    return times


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [1, 2, 3, 4, 5, 6]), (60, [60, 120, 180, 300])],
)
def test_fits_come_at_every_ask_and_then_at_doubling_numbers_of_pulls(
    size, expected, monkeypatch
):
    """After 128 pulls at the first ask with 256, 512, ... told pulls, or more."""
    monkeypatch.setattr(learned, "fit_gpytorch_mll", lambda mll: mll)
    bandit = make_bandit(GPBandit, **LEARNED)
    assert fit_times(bandit, 6, size) == expected


def test_a_fit_that_explains_nothing_says_so_once():
    arms = random_arms(30)
    noise = torch.randn(60, generator=seeded()).double()
    fitter = Fitter(arms, None, None)
    # The prior of the noise is in favour of little: many repeats overrule it.
    indices, zeros, none = torch.arange(60) % 4, [torch.zeros(60)] * 5, torch.tensor(-1)
    results = Results(indices, noise, *zeros, labels=none.expand(60, 3))
    with pytest.warns(BotorchWarning, match="no better than noise alone"):
        fit = fitter.fit(fitter.start, results)
    fitter.fit(fit, results)


def test_units_come_first_and_hyper_parameters_from_four_pulls_on():
    bandit = make_bandit(GPBandit, **LEARNED)
    before = bits(bandit.covar_module)
    noises = []
    for number in range(4):
        bandit.add_observations([number], [[3.0, 5.0, 4.0, 4.5][number]])
        bandit.ask()
        noises.append(bandit.noise_variance)
        assert same_bits(before, bits(bandit.covar_module)) == (number < 3)
    # The mean reward is the prior mean; the noise scales with the spread of rewards.
    assert noises[1] == pytest.approx(noises[0])  # the standard deviation of 3 and 5
    assert noises[2] == pytest.approx(noises[1] * np.var([3.0, 5.0, 4.0]))


def test_one_fit_an_ask_and_none_by_asking_twice(monkeypatch):
    fits = []

    def counting(mll, **options):
        fits.append(mll)
        return mll

    monkeypatch.setattr(learned, "fit_gpytorch_mll", counting)
    bandit = make_bandit(GPBandit, **LEARNED)
    indices = torch.arange(10)
    bandit.add_observations(indices, true_rewards(bandit.arms)[indices])
    bandit.ask()
    bandit.ask()
    assert len(fits) == 3  # to rewards as they are, warped, and of another kernel
    bandit.add_observations([0], [0.0])
    bandit.ask()
    assert len(fits) == 5  # kernels are compared again after a quarter more


# What is given stays ------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("given_kernel", [True, False])
def test_what_is_given_stays_while_the_rest_is_learned(options, given_kernel):
    kernel = rbf(0.5)
    bandit = make_bandit(
        GPBandit,
        covar_module=kernel if given_kernel else None,
        noise_variance=None if given_kernel else 0.25,
        **options,
    )
    before, noise = bits(bandit.covar_module), bandit.noise_variance
    indices = torch.arange(30)
    bandit.add_observations(indices, noisy_rewards(bandit.arms)(indices))
    bandit.ask()
    assert same_bits(before, bits(bandit.covar_module)) == given_kernel
    assert (bandit.noise_variance != pytest.approx(noise, rel=1e-12)) == given_kernel
    assert kernel.raw_lengthscale.requires_grad
    assert kernel.raw_lengthscale.grad is None


# Units --------------------------------------------------------------------------------


@each_model
@pytest.mark.usefixtures("short_fits")
def test_answers_do_not_depend_on_the_units_of_rewards_and_features(options):
    arms, shift, factor = random_arms(30), -70.0, 300.0
    units = torch.tensor([1e4, -1e-3], dtype=torch.double)
    plain, changed = (
        make_bandit(GPBandit, table, **LEARNED, **options)
        for table in (arms, arms * units + 5)
    )
    start = torch.tensor([3, 17, 8, 25])
    measure = noisy_rewards(arms)
    rewards = measure(start)
    plain.add_observations(start, rewards)
    changed.add_observations(start, shift + factor * rewards)
    for _ in range(3):
        indices = plain.ask()
        assert torch.equal(changed.ask(), indices)
        mean, variance = plain.predict()
        got_mean, got_variance = changed.predict()
        assert torch.allclose((got_mean - shift) / factor, mean, atol=1e-3)
        assert torch.allclose(got_variance / factor**2, variance, atol=1e-3)
        bound = (changed.confidence_bound() - shift) / factor
        assert torch.allclose(bound, plain.confidence_bound(), atol=1e-2)
        noise = changed.noise_variance / factor**2
        assert noise == pytest.approx(plain.noise_variance, rel=1e-2)
        assert changed.best_arm() == plain.best_arm()
        rewards = measure(indices)
        plain.tell(indices, rewards)
        changed.tell(indices, shift + factor * rewards)


def scaled(kernel, outputscale):
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = outputscale
    return kernel


def test_far_from_everything_measured_a_gp_bandit_predicts_the_mean_reward():
    arms = torch.cat([torch.linspace(0, 1, 9), torch.tensor([1000.0])]).double()
    for noise_variance in (None, 0.1):
        bandit = GPBandit(arms.unsqueeze(-1), scaled(rbf(1e-2), 7.0), noise_variance)
        bandit.add_observations([0, 1, 2, 3], [10.0, 12.0, 14.0, 16.0])
        bandit.ask()
        mean, variance = bandit.predict([9])
        assert mean.item() == pytest.approx(13.0)
        assert variance.item() == pytest.approx(7.0)  # that of the kernel


@each_model
def test_what_is_learned_where_no_kernel_is_given(options):
    arms = random_arms(20)
    kernel = GPBandit(arms, **options).covar_module
    assert_same(kernel.state_dict(), composite_to_learn(arms).to(arms).state_dict())
    bits = torch.ones(20, 64, dtype=torch.uint8)
    kernel = GPBandit(bits, **options).covar_module
    assert isinstance(kernel.base_kernel, TanimotoKernel)


@pytest.mark.parametrize("is_product", [False, True])
def test_numbers_beside_fingerprints_add_or_multiply_as_the_rewards_do(is_product):
    """A sign that half of the fingerprints turn around, or a level that they add."""
    codes = torch.zeros(60, 8, dtype=torch.uint8)
    codes[:30, :4], codes[30:, 4:] = 1, 1
    numbers = random_arms(60)[:, :1]
    sign = torch.where(torch.arange(60) < 30, 1.0, -1.0).double()
    wave = (6 * numbers[:, 0]).sin()
    bandit = GPBandit(BitArms(codes, is_packed=False, numbers=numbers), seed=0)
    rewards = sign * wave if is_product else sign + wave
    rewards += 0.1 * torch.randn(60, generator=seeded(), dtype=torch.double)
    bandit.add_observations(torch.arange(60), rewards)
    bandit.ask(1)
    assert isinstance(bandit.covar_module, ScaleKernel) == is_product


def test_thompson_sampling_fits_a_prior_mean():
    """Of a plain of zeros that was measured mostly where it has a hump."""
    plain = torch.cartesian_prod(*[torch.linspace(0, 1, 4).double()] * 2)
    stream = seeded()
    steps = 0.1 * torch.randn(40, 2, generator=stream, dtype=torch.double)
    arms = torch.cat([plain, plain[5] + steps])
    rewards = (-(arms - plain[5]).square().sum(dim=-1) / 0.08).exp()
    bandit = make_bandit(GPBandit, arms, policy=ThompsonPolicy(), **LEARNED)
    bandit.add_observations(torch.arange(len(arms)), rewards)
    bandit.ask(1)
    fitted, features = bandit._surrogate.fit, bandit._surrogate.fitter.features
    assert rewards.mean() > 0.5
    assert fitted.units.mean < 0.3
    # Generalized least squares gives the optimum of the likelihood in it, at the fitted
    # kernel and noise.
    K = gram_matrix(fitted.covar_module, features)
    K += fitted.noise_variance * np.eye(len(K))
    weights = np.linalg.solve(K, np.ones(len(K)))
    expected = weights @ rewards.numpy() / weights.sum()
    assert abs(fitted.units.mean - expected) < 1e-2 * rewards.std().item()


# The fit itself -----------------------------------------------------------------------


@pytest.mark.parametrize("noise_std", [0.2, 1.0])
def test_the_learned_noise_is_close_to_the_truth(noise_std):
    bandit = make_bandit(GPBandit, random_arms(40), **LEARNED)
    indices = torch.arange(40).repeat(5)
    measure = noisy_rewards(bandit.arms, noise_std=noise_std)
    bandit.add_observations(indices, measure(indices))
    bandit.ask()
    assert bandit.noise_variance == pytest.approx(noise_std**2, rel=0.3)
    error = bandit.predict()[0] - true_rewards(bandit.arms)
    assert error.abs().max() < 1.5 * noise_std


def test_many_pulled_arms_are_fitted_on_a_part_of_them(monkeypatch):
    monkeypatch.setattr(fitting, "MAX_FIT_ARMS", 12)
    bandit = make_bandit(GPBandit, random_arms(60), **LEARNED)
    indices = torch.arange(60).repeat(3)
    measure = noisy_rewards(bandit.arms, noise_std=0.3)
    bandit.add_observations(indices, measure(indices))
    assert bandit.best_arm() in true_rewards(bandit.arms).topk(5).indices.tolist()


@each_model
@pytest.mark.usefixtures("short_fits")
def test_a_single_arm_or_constant_features_are_no_trouble(options):
    bandit = make_bandit(GPBandit, **LEARNED, **options)
    bandit.add_observations([4] * 6, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    bandit.ask()
    assert bandit.predict([4])[0].item() == pytest.approx(2.0, abs=0.3)
    for arms in (torch.ones(1, 1).double(), torch.ones(5, 2).double()):
        bandit = make_bandit(GPBandit, arms, **LEARNED, **options)
        play(bandit, 5, lambda indices: torch.arange(len(indices)).double())
        assert bandit.predict()[0].isfinite().all()


def test_a_fit_that_fails_keeps_the_hyper_parameters_with_a_warning(monkeypatch):
    def fail(mll, **options):
        with torch.no_grad():
            for parameter in mll.parameters():
                parameter.fill_(float("nan"))
        raise ModelFittingError("No luck.")

    monkeypatch.setattr(learned, "fit_gpytorch_mll", fail)
    bandit = make_bandit(GPBandit, **LEARNED)
    kernel = bits(bandit.covar_module)
    indices = torch.arange(10)
    bandit.add_observations(indices, true_rewards(bandit.arms)[indices])
    with pytest.warns(BotorchWarning, match="10 pulls failed; the previous.*No luck"):
        bandit.ask()
    assert same_bits(kernel, bits(bandit.covar_module))
    assert bandit.predict()[0].isfinite().all()


# Frozen sums --------------------------------------------------------------------------


def test_frozen_sums_restart_after_a_refit(monkeypatch):
    """With fits at doubling numbers of pulls from the first one on."""
    monkeypatch.setattr(fitting.Fitter, "always_until", 0)
    recorder = Recorder()
    bandit = make_bandit(GPBandit, confidence=recorder, **LEARNED)
    restarts = {}
    for _ in range(10):
        indices = bandit.ask()
        state = recorder.states[-1]
        pulls = state.num_pulls
        if pulls in (1, 2, 4, 8):
            restarts[pulls] = state.log_det
            assert len(state.frozen_leverage_scores) == 0
        last = max(restarts, default=0)
        assert len(state.frozen_leverage_scores) == pulls - last
        assert state.log_det_start == restarts.get(last, 0.0)
        assert state.opening_score == 0.0
        bandit.tell(indices, noisy_rewards(bandit.arms, seed=pulls)(indices))
    assert list(restarts) == [1, 2, 4, 8]


# Kernels to learn ---------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_it_is_the_sum_of_two_matern_kernels(dimension, dtype):
    x = random_points(9, dimension, seed=dimension, dtype=dtype)
    kernel = composite_to_learn(x).to(x).requires_grad_(False)
    trend = kernel.kernels[0].base_kernel
    trend.lengthscale = torch.linspace(0.5, 2.0, dimension).to(x)

    points = x.double().numpy()
    parts = [(np.linspace(0.5, 2.0, dimension), 0.7), (0.1 * math.sqrt(dimension), 0.2)]
    expected = composite_covariance(points, points, parts)
    tolerance = 1e-10 if dtype == torch.double else 1e-5
    np.testing.assert_allclose(kernel(x).to_dense().numpy(), expected, atol=tolerance)


def test_a_bandit_learns_both_parts():
    stream = seeded(1)
    arms = torch.rand(60, 3, generator=stream)
    rewards = arms.sum(dim=-1) + 0.3 * torch.sin(40 * arms[:, 0])
    bandit = GPBandit(arms, generator=stream)
    start = composite_to_learn(arms).state_dict()
    bandit.add_observations(torch.arange(20), rewards[:20])
    bandit.ask(5)
    fitted = bandit.covar_module.state_dict()
    moved = [name for name in start if not start[name].to(arms).equal(fitted[name])]
    assert {name.split(".")[1] for name in moved} == {"0", "1"}


def told(function, num_features=4, num_told=60, **options):
    """A bandit that was told values of a function at random arms."""
    stream = seeded()
    arms = torch.rand(90, num_features, generator=stream, dtype=torch.double)
    bandit = GPBandit(arms, generator=stream, **options)
    bandit.add_observations(range(num_told), function(arms)[:num_told])
    return bandit


def waves(arms):
    """A sum of functions of one feature each."""
    return torch.sin(9 * arms).sum(dim=-1)


@pytest.fixture(scope="module")
def of_waves():
    """A bandit that has learned a sum of functions."""
    bandit = told(waves)
    bandit.ask(1)
    return bandit


def is_anova(bandit):
    return isinstance(bandit.covar_module.kernels[0].base_kernel, AnovaKernel)


def test_the_likelihood_decides_between_kernels(of_waves):
    assert is_anova(of_waves)
    mean, _ = of_waves.predict(range(60, 90))
    assert torch.corrcoef(torch.stack([mean, waves(of_waves.arms)[60:]]))[0, 1] > 0.95
    # All features together.
    bandit = told(lambda arms: torch.sin(4 * arms.sum(dim=-1)))
    bandit.ask(1)
    assert not is_anova(bandit)


@pytest.mark.parametrize(
    ("options", "num_features"),
    [
        ({"covar_module": composite_to_learn}, 4),
        ({"forgetting_rate": "learn"}, 4),
        ({}, 1),
        ({}, 65),
    ],
    ids=["chosen", "drift", "one feature", "many features"],
)
def test_where_nothing_is_to_decide(options, num_features):
    bandit = told(waves, num_features, num_told=12, **options)
    bandit.ask(1)
    assert not is_anova(bandit)


@pytest.mark.usefixtures("short_fits")
def test_a_loaded_bandit_has_the_kernel_that_was_chosen(of_waves, tmp_path):
    bandit = deepcopy(of_waves)
    bandit.save(tmp_path / "state")
    other = GPBandit(bandit.arms)
    other.load(tmp_path / "state")
    assert is_anova(other)
    assert torch.equal(bandit.predict()[0], other.predict()[0])
    for one in (bandit, other):
        one.add_observations(range(60, 90), waves(bandit.arms)[60:])
    assert torch.equal(bandit.ask(3), other.ask(3))
    bandit.withdraw(range(90))
    bandit.ask(1)
    assert not is_anova(bandit)  # as before any observation
