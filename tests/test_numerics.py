"""How far rounding goes, against the equations in 60 digits; see docs/numerics.rst."""

import warnings

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import NumericsWarning
from gpytorch.kernels import LinearKernel, RBFKernel

from botorch_bkb import BBKB, GPBandit, GPUCB, TVGPUCB
from botorch_bkb.models.utils.nystrom import RoundingReport
from botorch_bkb.posteriors import arm_posterior, ArmPosterior, SparseArmKalmanFilter
from tests.bandits import make_bandit
from tests.precise_reference import dtc_moments


RNG = np.random.default_rng(0)
SPREAD = RNG.random((30, 2))
TWINS = np.concatenate([SPREAD, SPREAD[:6] + np.array([1e-9, 0.0])])
MANY = list(range(12))
PAIRS = [*range(6), *range(30, 36)]
# Name: arms, inducing arms, pulled arms, pulls, the size of rewards, lengthscale.
CASES = {
    "spread": (SPREAD, MANY, MANY, [3] * 12, 1.0, 0.4),
    "a million pulls of one": (SPREAD, MANY[:4], MANY[:4], [10**6, 1, 1, 5], 1.0, 0.4),
    "1e5 pulls": (SPREAD, MANY, MANY, [8333] * 12, 1.0, 0.4),
    "crowded": (SPREAD, list(range(25)), list(range(25)), [1] * 25, 1.0, 0.4),
    "near-duplicates": (TWINS, PAIRS, PAIRS, [2] * 12, 1.0, 0.4),
    "rewards of 1e12": (SPREAD, MANY, MANY, [3] * 12, 1e12, 0.4),
    "sparse": (SPREAD, [0, 3, 5, 7, 9], MANY, [3] * 12, 1.0, 0.4),
    "smooth": (SPREAD, MANY, MANY, [3] * 12, 1.0, 20.0),
    "rough": (SPREAD, MANY, MANY, [3] * 12, 1.0, 1e-3),
}
NOISES = [1e-8, 1e-4, 1.0, 1e4]
# Of the largest reward, and of the prior variance.
TOLERANCES = {torch.float64: (1e-5, 1e-8), torch.float32: (1e-3, 5e-4)}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def kernel_of(lengthscale, dtype):
    kernel = RBFKernel().to(dtype).requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=dtype)
    return kernel


class Case:
    """A problem in numbers of one dtype, and its answer."""

    def __init__(self, name, dtype, noise):
        arms, self.inducing, self.pulled, self.counts, size, lengthscale = CASES[name]
        self.arms = torch.tensor(arms).to(dtype)
        self.kernel = kernel_of(lengthscale, dtype)
        self.noise = noise
        rng = np.random.default_rng(1)
        # Rewards that the noise can explain: twins do not differ by more than it does.
        values = np.sin(4 * arms[self.pulled].sum(axis=1))
        values += (noise / np.array(self.counts)) ** 0.5 * rng.standard_normal(
            len(values)
        )
        self.means = size * values
        self.sums = (self.means * np.array(self.counts)).tolist()
        self.scale = np.abs(self.means).max()
        data = self.inducing, self.pulled, self.counts, self.sums
        scale = self.kernel.lengthscale.item()
        self.expected = dtc_moments(self.arms.double().tolist(), scale, noise, *data)

    def posterior(self):
        posterior = ArmPosterior(self.arms, self.kernel, self.noise)
        posterior.update(
            torch.tensor(self.inducing),
            torch.tensor(self.pulled),
            torch.tensor(self.counts).double(),
            torch.tensor(self.sums).double(),
        )
        return posterior

    def errors(self, mean, variance):
        """Return errors of means, of variances, and of pulled arms' variances."""
        assert mean.isfinite().all()
        assert (variance >= 0).all()
        mean, variance = mean.double().numpy(), variance.double().numpy()
        error = np.abs(variance - self.expected[1])
        return (
            np.abs(mean - self.expected[0]).max() / self.scale,
            error.max(),
            (error / self.expected[1])[self.pulled].max(),
        )


def reported(messages):
    """Return the largest share that warnings speak of."""
    shares = [0.0]
    for message in messages:
        assert message.category is NumericsWarning
        words = str(message.message).split("by about ")[1].split()
        shares.append(
            float(words[0][:-1]) / 100 if words[0].endswith("%") else float(words[0])
        )
    return max(shares)


@each_dtype
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", CASES)
def test_posteriors_are_right_or_say_how_wrong_they_are(name, noise, dtype):
    case = Case(name, dtype, noise)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        posterior = case.posterior()
    mean, variance, relative = case.errors(posterior.mean, posterior.variance)
    share = reported(messages)
    if share == 0:
        assert mean <= TOLERANCES[dtype][0]
        assert variance <= TOLERANCES[dtype][1]
        assert relative <= 0.02
    else:
        # Of the right size, up to a factor of five.
        assert dtype == torch.float32
        assert relative / 5 <= share <= 5 * relative


def test_a_warning_says_how_much_once_and_again_when_it_is_ten_times_that():
    report = RoundingReport(torch.float32)
    report.note(0.005, 1)
    with pytest.warns(NumericsWarning, match=r"float32 .* arm 7 by about 2.0% of itse"):
        report.note(0.02, 7)
    report.note(0.19, 7)
    with pytest.warns(NumericsWarning, match=r"arm 8 by about 3 times of itself"):
        report.note(3.0, 8)


@pytest.mark.parametrize("noise", NOISES)
def test_increments_do_not_lose_what_a_rebuild_would_keep(noise):
    """Of the arms that are known best; one update starts afresh where they would."""
    case = Case("spread", torch.float64, noise)
    posterior = ArmPosterior(case.arms, case.kernel, noise)
    counts, sums = torch.zeros(12).double(), torch.zeros(12).double()
    total, means = torch.tensor(case.counts).double(), torch.tensor(case.means)
    for _ in range(3):
        for arm in range(12):
            counts[arm] += 1
            sums[arm] = counts[arm] * means[arm]
            seen = counts.nonzero().squeeze(-1)
            posterior.update(seen, seen, counts[seen], sums[seen])
    assert torch.equal(counts, total)
    mean, variance, relative = case.errors(posterior.mean, posterior.variance)
    assert mean <= 1e-9
    assert variance <= 1e-12
    assert relative <= 1e-5


def test_an_increment_that_would_lose_digits_is_a_rebuild(monkeypatch):
    """An arm falls from its prior variance to 1e-16 of it in one update."""
    monkeypatch.setattr(arm_posterior, "REBUILD_COST", 1e9)
    arms, kernel = torch.tensor(SPREAD[:5]), kernel_of(0.4, torch.float64)
    posterior = ArmPosterior(arms, kernel, 1e-8)
    seen, counts = torch.arange(4), torch.tensor([3.0, 3.0, 3.0, 1e8]).double()
    posterior.update(seen[:3], seen[:3], counts[:3], torch.zeros(3).double())
    posterior.update(seen, seen, counts, torch.zeros(4).double())
    expected = dtc_moments(
        arms.tolist(),
        kernel.lengthscale.item(),
        1e-8,
        *([0, 1, 2, 3], [0, 1, 2, 3], [3, 3, 3, 10**8], [0.0] * 4),
    )[1]
    np.testing.assert_allclose(posterior.variance.numpy()[:4], expected[:4], rtol=1e-6)


@each_dtype
@pytest.mark.parametrize("noise", [1e-4, 1.0])
@pytest.mark.parametrize("name", ["spread", "rewards of 1e12", "rough"])
def test_filters_are_right(name, noise, dtype):
    case = Case(name, dtype, noise)
    moving = SparseArmKalmanFilter(case.arms, case.kernel, noise, 0.0)
    observe_all(case, moving)
    mean, variance, relative = case.errors(moving.mean, moving.variance)
    assert mean <= TOLERANCES[dtype][0]
    assert variance <= TOLERANCES[dtype][1]
    # In float32 the last bits of every step add up.
    assert relative <= (0.02 if dtype == torch.float64 else 0.05)


def observe_all(case, moving):
    for arm, count, value in zip(case.pulled, case.counts, case.means, strict=True):
        for _ in range(count):
            reward = torch.tensor([value]).to(case.arms)
            moving.observe(torch.tensor([arm]), reward, 1.0)


def test_filters_say_when_float32_is_too_little():
    case = Case("spread", torch.float32, 1e-8)
    moving = SparseArmKalmanFilter(case.arms, case.kernel, 1e-8, 0.0)
    with pytest.warns(NumericsWarning, match="float32 changes the variance of arm"):
        observe_all(case, moving)
    assert (moving.variance >= 0).all()
    assert moving.mean.isfinite().all()


@pytest.mark.parametrize(
    ("num_pulled", "noise", "num_pulls"), [(1, 0.01, 3000), (30, 1e-4, 500)]
)
def test_exact_filters_over_arms_of_float32_lose_nothing_in_a_long_run(
    num_pulled, noise, num_pulls
):
    """They compute in double, where single precision loses all digits."""
    rng = np.random.default_rng(0)
    arms = torch.as_tensor(rng.uniform(size=(30, 2)), dtype=torch.float32)
    kernel = kernel_of(0.3, torch.float32)
    bandit = TVGPUCB(arms, kernel, noise, forgetting_rate=0.0)
    pulled = torch.as_tensor(rng.integers(num_pulled, size=num_pulls))
    bandit.add_observations(pulled, torch.full((num_pulls,), 0.5))
    _, posterior = bandit._present()
    gaps = (arms.double().unsqueeze(1) - arms.double()).square().sum(dim=-1).numpy()
    K = np.exp(-gaps / (2 * kernel.lengthscale.item() ** 2))[:num_pulled, :num_pulled]
    W = np.bincount(pulled, minlength=num_pulled) / noise
    right = np.linalg.inv(np.linalg.inv(K) + np.diag(W)).diagonal()
    np.testing.assert_allclose(posterior.variance[:num_pulled], right, rtol=1e-4)


# Bandits ------------------------------------------------------------------------------


def test_a_million_results_of_one_arm_add_up():
    """One by one in float32 they would stop adding at 2^24 of them."""
    arms, kernel = torch.tensor(SPREAD[:5]).float(), kernel_of(0.4, torch.float32)
    bandit = BBKB(arms, kernel, 1.0, seed=0)
    rewards = 1e3 + np.random.default_rng(0).standard_normal(10**6)
    bandit.add_observations(torch.full((10**6,), 2), rewards)
    bandit.ask()
    mean, variance = bandit.predict([2])
    assert bandit.num_pulls == bandit.counts[2] == 10**6
    expected = rewards.sum() / (10**6 + 1)
    assert mean.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert variance.item() == pytest.approx(1 / (10**6 + 1), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Rounding in torch.float32")
@each_dtype
@pytest.mark.parametrize("noise", [1e-8, 1e4])
@pytest.mark.parametrize("bandit_class", [BBKB, GPUCB, TVGPUCB])
def test_whole_runs_stay_finite(bandit_class, noise, dtype):
    """With twins, kernels of full and of low rank, and rewards of 1 and of 1e12."""
    arms = torch.tensor(TWINS)
    for kernel in (RBFKernel(), LinearKernel()):
        for size in (1.0, 1e12):
            options = {"covar_module": kernel.to(dtype), "noise_variance": noise}
            bandit = make_bandit(bandit_class, arms.to(dtype), **options)
            rng = np.random.default_rng(0)
            for _ in range(4):
                indices = bandit.ask(5)
                rewards = np.sin(4 * TWINS[indices.numpy()].sum(axis=1))
                rewards += min(noise, 1.0) ** 0.5 * rng.standard_normal(len(indices))
                bandit.tell(indices, size * rewards)
            mean, variance = bandit.predict()
            assert mean.isfinite().all()
            assert variance.isfinite().all()
            assert (variance >= 0).all()


# The noise that is learned from rewards without noise is too little for float32.
@pytest.mark.filterwarnings("ignore:Rounding in torch.float32")
@pytest.mark.parametrize("value", [0.0, -1e12])
def test_constant_rewards_are_learned(value):
    arms = torch.tensor(SPREAD).float()
    bandit = GPBandit(arms, seed=0)
    for _ in range(5):
        indices = bandit.ask(4)
        bandit.tell(indices, torch.full((len(indices),), value).double())
    mean, variance = bandit.predict()
    assert (variance >= 0).all()
    close = torch.full_like(mean, value)
    torch.testing.assert_close(mean, close, rtol=1e-6, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Rounding in torch.float32")
@pytest.mark.parametrize("forgetting_rate", [0.0, "learn"])
def test_an_offset_of_the_rewards_is_not_rounded_away(forgetting_rate):
    """In float32 numbers around 1e7 are 1 apart: units are taken out in double."""
    arms = torch.tensor(SPREAD)
    values = torch.sin(4 * arms.sum(dim=-1))
    means = []
    for dtype, offset in ((torch.float64, 0.0), (torch.float32, 1e7)):
        bandit = GPBandit(arms.to(dtype), forgetting_rate=forgetting_rate, seed=0)
        bandit.add_observations(range(30), offset + values)
        surrogate, posterior = bandit._present()
        units = surrogate.fit.units
        means.append(posterior.mean.double() * units.std + units.mean - offset)
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0.02)


@pytest.mark.parametrize("lengthscale", [1e-12, 1e-3, 1e3, 1e12])
def test_lengthscales_at_their_bounds(lengthscale):
    """Arms that say nothing of each other, and arms that are all the same."""
    arms = torch.tensor(SPREAD)
    bandit = BBKB(arms, kernel_of(lengthscale, torch.float64), 0.1, seed=0)
    for _ in range(6):
        indices = bandit.ask(5)
        bandit.tell(indices, indices.double())
    mean, variance = bandit.predict()
    n, s = bandit.counts.double(), bandit.counts * torch.arange(30).double()
    if lengthscale > 1:
        n, s = n.sum(), s.sum()
    same = lengthscale == 1e3  # up to 1e-6 of the prior
    torch.testing.assert_close(
        mean, (s / (n + 0.1)).expand(30), rtol=1e-3 if same else 1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        variance, (0.1 / (n + 0.1)).expand(30), rtol=0, atol=1e-5 if same else 1e-9
    )
