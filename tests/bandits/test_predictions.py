"""`GPBandit.predictions` and `predict(rows=...)`, against dense NumPy."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from scipy.stats import multivariate_normal, norm

from botorch_bkb import AtLeast, GPBandit, Maximize, OutcomesBandit
from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.bandits import matern_to_learn
from tests.bandits import random_arms
from tests.helpers import gram_matrix, seeded
from tests.reference import dtc_posterior, log_warp


pytestmark = pytest.mark.usefixtures("short_fits")
NUM_ARMS, NUM_ROWS = 60, 7
COLUMNS = ["arm", "mean", "std", "low", "high", "probability_best"]


def rewards_of(rows):
    return 5 + 3 * torch.cos(4 * rows[:, 0]) - (rows[:, 1] - 20) ** 2 / 50


def tables(seed=0):
    """Arms, and candidates that are not among them, some outside their range."""
    width = torch.tensor([1.0, 40.0], dtype=torch.double)
    rows = torch.rand(NUM_ARMS + NUM_ROWS, 2, generator=seeded(seed)).double() * width
    arms, others = rows.split([NUM_ARMS, NUM_ROWS])
    others[0] = width * 1.2
    return arms, others


def campaign(arms, num_rounds=4, noise_std=0.3, **options):
    """A bandit after some rounds, whose posterior was updated step by step."""
    bandit = GPBandit(arms, seed=1, **options)
    sign = 1 if bandit.maximize else -1
    for number in range(num_rounds):
        picks = bandit.ask(6)
        noise = torch.randn(6, generator=seeded(number)).double()
        bandit.tell(picks, sign * (rewards_of(arms[picks]) + noise_std * noise))
    return bandit


def dense_posterior(bandit, rows):
    """Mean and covariance at any rows, from the kernel and the observations alone.

    If rewards are warped, these are of warped rewards.
    """
    x = bandit.arms
    low, width = x.amin(dim=0), x.amax(dim=0) - x.amin(dim=0)
    told = bandit._observations.told
    arms, y, known = told.indices, told.rewards.numpy(), told.noise.numpy()
    sign = 1 if bandit.maximize else -1
    warp = (lambda x: x) if bandit.warp is None else log_warp(y, bandit.maximize)[0]
    targets, step = warp(sign * y), 1e-6 * np.abs(y)
    slope = (warp(sign * y + step) - warp(sign * y - step)) / (2 * step)
    noise = np.where(known > 0, known * slope**2, bandit.noise_variance)
    offset, scale = targets.mean(), targets.std()
    if known.any():
        units = bandit._surrogate.fit.units
        offset, scale = units.mean, units.std
    S, P = (x[bandit.inducing_indices] - low) / width, (x[arms] - low) / width
    X = (rows - low) / width
    grams = (S, S), (S, P), (S, X), (X, X)
    mean, covariance = dtc_posterior(
        *(gram_matrix(bandit.covar_module, *pair) for pair in grams),
        scale**2 / noise,
        (targets - offset) / scale,
    )
    return sign * (mean * scale + offset), covariance * scale**2


@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
@pytest.mark.parametrize(
    "options",
    [{"max_inducing": 9}, {"maximize": False, "covar_module": matern_to_learn}],
)
def test_predictions_are_those_of_the_dense_posterior(options):
    arms, others = tables()
    bandit = campaign(arms, **options)
    bandit.ask(1)  # learns from the last round; its pending pull does not count
    if "max_inducing" in options:
        assert len(bandit.inducing_indices) < len(bandit.observed_arms)
    mean, covariance = dense_posterior(bandit, others)
    found = bandit.predict(rows=others)
    np.testing.assert_allclose(found[0], mean, rtol=1e-7)
    np.testing.assert_allclose(found[1], np.diag(covariance), rtol=1e-6)
    # The same as columns, for arms.
    mean, covariance = dense_posterior(bandit, arms)
    std = np.sqrt(np.diag(covariance))
    threshold = float(np.median(mean))
    table = pd.DataFrame(bandit.predictions(threshold=threshold))
    sign = 1 if bandit.maximize else -1
    name = "probability_above" if bandit.maximize else "probability_below"
    assert list(table.columns) == [*COLUMNS, name]
    np.testing.assert_array_equal(table["arm"], range(NUM_ARMS))
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-7)
    np.testing.assert_allclose(table["std"], std, rtol=1e-6)
    ends = np.stack([mean - 2.78 * std, mean + 2.78 * std], axis=-1)
    is_new = np.ones(NUM_ARMS, dtype="bool")
    is_new[bandit.observed_arms] = False
    np.testing.assert_allclose(table[["low", "high"]][is_new], ends[is_new], rtol=1e-6)
    z = sign * (mean - threshold) / std
    above = [(1 + math.erf(each / math.sqrt(2))) / 2 for each in z]
    np.testing.assert_allclose(table[name][is_new], np.array(above)[is_new], atol=1e-6)
    some = pd.DataFrame(bandit.predictions([5, 3, 5]))
    pd.testing.assert_frame_equal(
        some[COLUMNS[:-1]], table[COLUMNS[:-1]].iloc[[5, 3, 5]].reset_index(drop=True)
    )


@pytest.mark.parametrize("num_repeats", [1, 12])
@pytest.mark.parametrize("noise_variance", [None, 0.09])
def test_intervals_of_measured_arms_have_the_median_of_the_noise(
    num_repeats, noise_variance
):
    """Repeats tell the noise, without them its median is larger than its mode."""
    arms, _ = tables()
    bandit = GPBandit(arms, None, noise_variance, seed=1)
    picks = torch.arange(20).repeat(num_repeats)
    noise = torch.randn(len(picks), generator=seeded(5)).double()
    bandit.add_observations(picks, rewards_of(arms[picks]) + 0.3 * noise)
    bandit.ask(1)  # learns
    assert bandit.warp is None
    table = pd.DataFrame(bandit.predictions(threshold=6.0))
    mean, covariance = dense_posterior(bandit, arms)
    variance, noise = np.diag(covariance).copy(), bandit.noise_variance
    rewards = bandit._observations.told.rewards.numpy()
    scale, x = rewards.std(), (arms - arms.amin(dim=0)) / (arms.amax(0) - arms.amin(0))
    gram = gram_matrix(bandit.covar_module, x[picks], x[picks])

    def log_density(log_ratio):
        """Of the logarithm of the noise, without what is linear in it."""
        own = noise / scale**2 * np.exp(log_ratio)
        marginal = multivariate_normal(cov=gram + own * np.eye(len(picks)))
        log_likelihood = marginal.logpdf((rewards - rewards.mean()) / scale)
        return log_likelihood - (np.log(own) + 4) ** 2 / 2

    ratio = 1.0
    if noise_variance is None:
        curvature = 2 * log_density(0) - log_density(0.1) - log_density(-0.1)
        ratio = np.exp(1 / max(1, curvature / 0.1**2))
        assert (ratio < 1.1) == (num_repeats > 1)
    own = slice(20)
    weight = np.minimum(1, variance[own] * num_repeats / noise)
    variance[own] += (ratio - 1) * weight**2 * noise / num_repeats
    std = np.sqrt(variance)
    np.testing.assert_allclose(table["low"], mean - 2.78 * std, rtol=1e-4)
    np.testing.assert_allclose(table["high"], mean + 2.78 * std, rtol=1e-4)
    above = norm.sf(6.0, mean, std)
    np.testing.assert_allclose(table["probability_above"], above, atol=1e-4)


def test_a_copy_of_a_measured_arm_has_its_interval_and_lone_controls_change_none():
    arms = tables()[0][:20]
    bandit = GPBandit(torch.cat([arms, arms]), seed=0)
    measured = torch.arange(20, 30)
    bandit.add_observations(measured, rewards_of(arms[:10]))
    table = bandit.predictions([*range(10), *measured])
    half = (table["high"] - table["low"]) / 2
    torch.testing.assert_close(half[:10], half[10:])
    assert (half > 3 * table["std"]).all()
    bandit.add_observations(None, [50.0], control="DMSO")  # without groups
    again = bandit.predictions(measured)
    torch.testing.assert_close(again["high"], table["high"][10:])


@pytest.mark.parametrize("maximize", [True, False])
def test_answers_stay_within_bounds(maximize):
    """As without bounds, cut off; the bounds change no pick."""
    arms, _ = tables()
    ends = (4.0, 7.0) if maximize else (-7.0, -4.0)
    free = campaign(arms, 2, maximize=maximize)
    bandit = campaign(arms, 2, maximize=maximize, bounds=ends)
    assert bandit.observed_arms.tolist() == free.observed_arms.tolist()
    signed = [free.predictions(), bandit.predictions()]
    for name in ("mean", "low", "high"):
        expected, found = (columns[name] for columns in signed)
        assert not torch.equal(expected, found)
        torch.testing.assert_close(expected.clamp(*ends), found)
    torch.testing.assert_close(*(columns["std"] for columns in signed))
    assert bandit.progress(4).expected_rise == 0  # the best mean is at the bound


@pytest.mark.parametrize(
    "bounds", [(1.0, 0.0), (0.0, math.nan), ("0", 1.0), 5.0, (0.0, 1.0, 2.0)]
)
def test_bounds_are_two_numbers(bounds):
    with pytest.raises(InputDataError, match="two numbers, the smaller one first"):
        GPBandit(tables()[0], bounds=bounds)


def test_the_top_has_the_best_means_and_no_retired_or_equal_arm():
    arms, _ = tables()
    bandit = campaign(torch.cat([arms, arms[:20]]), maximize=False)
    retired = bandit.best_arm(among_pulled=False)
    bandit.retire_arms([retired])
    table = pd.DataFrame(bandit.predictions(generator=seeded()))
    assert 0.5 < table["probability_best"].sum() < 1 + 1e-9  # at most the draws
    table = table[table["arm"] < NUM_ARMS].drop(index=retired).sort_values("mean")
    top = pd.DataFrame(bandit.predictions(top=5, generator=seeded()))
    pd.testing.assert_frame_equal(top, table[:5].reset_index(drop=True))
    among = [*range(0, NUM_ARMS, 2)]
    top = pd.DataFrame(bandit.predictions(among, top=10**6, generator=seeded()))
    expected = table[table["arm"].isin(among)].reset_index(drop=True)
    pd.testing.assert_frame_equal(top, expected)
    assert not len(bandit.predictions([retired], top=1)["arm"])


def test_of_equal_arms_the_measured_one_is_named():
    arms, _ = tables()
    bandit = GPBandit(torch.cat([arms, arms]), seed=0)
    measured = torch.arange(0, NUM_ARMS, 5) + NUM_ARMS  # the first ones are not
    bandit.add_observations(measured, bandit.arms[measured].sum(dim=-1).sin())
    best = bandit.best_arm()
    top = pd.DataFrame(bandit.predictions(top=2 * NUM_ARMS)).set_index("arm")
    assert len(top) == NUM_ARMS
    assert {*measured.tolist()} <= {*top.index}
    assert not {*(measured - NUM_ARMS).tolist()} & {*top.index}
    said = bandit.progress(1)
    assert not {*(measured - NUM_ARMS).tolist()} & {*said.best_arms.tolist()}
    bandit.retire_arms([best])
    assert best - NUM_ARMS in bandit.predictions(top=2 * NUM_ARMS)["arm"]


def test_products_have_a_top_and_no_other_rows():
    lists = {"heat": torch.linspace(0, 1, 9).unsqueeze(-1).double(), "base": ["a", "b"]}
    arms = ProductArms(lists, forbidden=[{"heat": 8}])
    bandit = GPBandit(arms, seed=0)
    picks = bandit.ask(8)
    bandit.tell(picks, arms.components(picks)[:, 0].double())
    everything = pd.DataFrame(bandit.predictions(generator=seeded()))
    table = everything[everything["arm"] < 16]
    top = pd.DataFrame(bandit.predictions(top=4, generator=seeded()))
    expected = table.nlargest(4, "mean").reset_index(drop=True)
    pd.testing.assert_frame_equal(top, expected)
    with pytest.raises(UnsupportedError, match="product of a space is an arm"):
        bandit.predict(rows=torch.zeros(1, 2).double())


def test_rows_of_the_table_are_its_arms():
    """Of packed bits beside numbers, in single precision; before any result as well."""
    bits = torch.rand(NUM_ARMS, 24, generator=seeded()) < 0.4
    packed = torch.from_numpy(np.packbits(bits.numpy(), axis=-1))
    arms = BitArms(packed, True, torch.rand(NUM_ARMS, 1, generator=seeded(2)))
    bandit = GPBandit(arms, seed=0)
    for _ in range(2):
        rows = arms[torch.tensor([4, 9, 4])]
        for given in (rows, rows.dense()):
            for one, other in zip(
                bandit.predict(rows=given), bandit.predict([4, 9, 4]), strict=True
            ):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        picks = bandit.ask(8)
        bandit.tell(picks, bits[picks].float().sum(dim=-1))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda b: b.predict([1], rows=b.arms[:1]), InputDataError, "got both"),
        (lambda b: b.predict(rows=b.arms[:1, :1]), BotorchTensorDimensionError, "of 2"),
        (lambda b: b.predict(rows=b.arms[:1] * math.nan), InputDataError, "finite"),
        (lambda b: b.predictions([NUM_ARMS]), InputDataError, str(NUM_ARMS)),
        (lambda b: b.predictions(top=0), InputDataError, "`top`"),
        (lambda b: b.predictions(threshold="1"), InputDataError, "`threshold`"),
    ],
)
def test_junk_is_refused(call, error, match):
    bandit = campaign(tables()[0], 1)
    with pytest.raises(error, match=match):
        call(bandit)


def test_filters_know_the_arms_of_the_table_alone():
    arms, others = tables()
    bandit = GPBandit(arms, forgetting_rate=0.1, seed=0)
    picks = bandit.ask(4)
    bandit.tell(picks, rewards_of(arms[picks]))
    assert len(bandit.predictions(top=3)["mean"]) == 3
    with pytest.raises(UnsupportedError, match="drifting objective"):
        bandit.predict(rows=others)


def test_no_mean_is_beyond_a_bound():
    bandit = GPBandit(random_arms(30), bounds=(0.0, 1.0), seed=0)
    bandit.add_observations(range(10), torch.linspace(0, 1, 10))
    for threshold, expected in ((-1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (7.0, 0.0)):
        above = bandit.predictions(threshold=threshold)["probability_above"]
        assert above.eq(expected).all()
    limited = OutcomesBandit(
        random_arms(30),
        {"a": Maximize(), "b": AtLeast(0.0)},
        bounds={"b": (0.0, 1.0)},
        seed=0,
    )
    limited.add_observations(range(10), dict.fromkeys("ab", torch.linspace(0, 1, 10)))
    assert limited.predictions()["probability_feasible"].eq(1).all()
    assert len(limited.ask(3)) == 3
