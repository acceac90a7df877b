"""The dense reference against identities that do not pass through it."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.reference import (
    Arms,
    bbkb_width,
    bkb_width,
    chowdhury_gopalan_width,
    dtc_log_marginal_likelihood,
    dtc_posterior,
    exact_posterior,
    greedy_batch,
    inclusion_probability,
    nystrom_gram,
    practical_bbkb_width,
    practical_bkb_width,
    resample,
    simulate,
)


SEEDS = range(6)


class Problem:
    """Random arms, pulls and inducing points; every third one has near-duplicates."""

    def __init__(self, seed, num_arms=25):
        numbers = self.numbers = np.random.default_rng(seed)
        X = numbers.random((num_arms, 2))
        if seed % 3 == 0:
            X[:-1:4] = X[1::4] + 1e-7 * X[:-1:4]
        squares = ((X[:, None] - X) ** 2).sum(axis=-1)
        self.gram = np.exp(-0.5 * squares / numbers.uniform(0.2, 1.0) ** 2)
        self.noise = float(numbers.choice([0.05, 0.3, 2.0]))
        self.p = np.sort(numbers.choice(num_arms, size=10, replace=False))
        self.counts = np.zeros(num_arms)
        self.counts[self.p] = numbers.integers(1, 5, size=10)
        self.pulls = np.repeat(np.arange(num_arms), self.counts.astype(int))
        self.y = numbers.normal(size=len(self.pulls))
        self.sums = np.bincount(self.pulls, self.y, minlength=num_arms)
        self.S = self.p[: numbers.integers(3, 10)]
        self.arms = Arms(self.gram, self.noise)

    def blocks(self, S: Any) -> tuple[Any, Any, Any, Any]:
        gram = self.gram
        return gram[np.ix_(S, S)], gram[np.ix_(S, self.p)], gram[S], gram

    def dtc(self, S):
        n = self.counts[self.p]
        weights, targets = n / self.noise, self.sums[self.p] / n
        return dtc_posterior(*self.blocks(S), weights, targets)

    def nystrom_gram(self):
        K_ss, _, K_sx, _ = self.blocks(self.S)
        return nystrom_gram(K_ss, K_sx)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_pulled_arms_inducing_is_the_exact_gp_on_single_pulls(seed):
    problem = Problem(seed)
    rows = problem.gram[problem.pulls]
    expected = exact_posterior(
        rows[:, problem.pulls],
        rows,
        problem.gram,
        np.full(len(problem.pulls), problem.noise),
        problem.y,
    )
    for ours, theirs in zip(problem.dtc(problem.p), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_posterior_is_subset_of_regressors_plus_the_nystrom_residual(seed):
    """Which is the exact GP of the kernel Q, and k - Q added; one row per pull."""
    problem = Problem(seed)
    Q = problem.nystrom_gram()
    pulls = problem.pulls
    noise = np.full(len(pulls), problem.noise)
    regressors = exact_posterior(Q[np.ix_(pulls, pulls)], Q[pulls], Q, noise, problem.y)
    mean, covariance = problem.dtc(problem.S)
    np.testing.assert_allclose(mean, regressors[0], atol=1e-6)
    np.testing.assert_allclose(covariance, regressors[1] + problem.gram - Q, atol=1e-6)
    assert np.linalg.eigvalsh(problem.gram - Q).min() > -1e-8


def test_merged_likelihood_and_scatter_equal_the_likelihood_of_single_pulls():
    """The identity of DESIGN 3."""
    problem = Problem(4)
    pulls, noise = problem.pulls, problem.noise
    Q = problem.nystrom_gram()
    single = dtc_log_marginal_likelihood(Q[np.ix_(pulls, pulls)], noise, problem.y)
    n = problem.counts[problem.p]
    means = problem.sums / np.maximum(problem.counts, 1)
    merged = dtc_log_marginal_likelihood(
        Q[np.ix_(problem.p, problem.p)], noise / n, means[problem.p]
    )
    scatter = -0.5 * ((problem.y - means[pulls]) ** 2).sum() / noise
    scatter -= 0.5 * (len(pulls) - len(n)) * math.log(2 * math.pi * noise)
    scatter -= 0.5 * np.log(n).sum()
    assert single == pytest.approx(merged + scatter, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_log_det_is_the_sum_of_the_information_of_single_pulls(seed):
    """Proof of [BBKB] proposition 11: log det = sum_s log(1 + var_{s-1}(x_s)/lambda).

    With the variance of the kernel Q, which has no residual.
    """
    problem = Problem(seed)
    Q = problem.nystrom_gram()
    total = 0.0
    for s, arm in enumerate(problem.pulls):
        past = problem.pulls[:s]
        noise = np.full(s, problem.noise)
        Q_past = Q[np.ix_(past, past)], Q[np.ix_(past, [arm])], Q[[arm]][:, [arm]]
        variance = exact_posterior(*Q_past, noise, np.zeros(s))[1].item()
        total += math.log1p(variance / problem.noise)
    ours = problem.arms.log_det(problem.S, problem.counts)
    assert ours == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_bound_the_ratio_of_variances(seed):
    """[BBKB] Lemma 8 (squared) and its projected form, every arm."""
    problem = Problem(seed)
    _, covariance, projected = problem.arms.parts(
        problem.S, problem.counts, problem.sums
    )
    start, noise = np.diag(covariance), problem.noise
    batch = problem.numbers.integers(0, len(start), size=12)
    now = problem.counts.copy()
    for s, arm in enumerate(batch, start=1):
        now[arm] += 1
        variance = problem.arms.posterior(problem.S, now, problem.sums)[1]
        ratio = (start / variance)[variance > 1e-6]
        projected_sum = 1 + np.diag(projected)[batch[:s]].sum() / noise
        full_sum = 1 + start[batch[:s]].sum() / noise
        assert (ratio >= 1 - 1e-8).all()
        assert (ratio <= projected_sum * (1 + 1e-8)).all()
        assert projected_sum <= full_sum * (1 + 1e-8)


def test_inclusion_probability_is_that_of_any_of_n_draws():
    tau, counts = np.array([0.1, 0.3, 0.7]), np.array([3, 2, 5])
    expected = []
    for score, n in zip(tau, counts, strict=True):
        p = min(1.0, 2 * score)
        draws = itertools.product([True, False], repeat=int(n))
        expected.append(
            sum(math.prod(p if kept else 1 - p for kept in d) for d in draws if any(d))
        )
    ours = inclusion_probability(tau, counts, 2.0)
    np.testing.assert_allclose(ours, expected)
    merged = inclusion_probability(tau, counts, 2.0, merged=True)
    np.testing.assert_allclose(merged, [0.6, 1.0, 1.0])
    assert (merged >= ours).all()


@pytest.mark.parametrize("merged", [False, True])
def test_resampling_has_its_marginals(merged):
    numbers = np.random.default_rng(0)
    tau, counts = np.array([0.02, 0.1, 0.4, 0.6]), np.array([4, 3, 1, 1])
    kept = np.zeros(4)
    num_draws = 20_000
    for uniforms in numbers.random((num_draws, 4)):
        kept[resample(tau, counts, 2.0, uniforms, merged)] += 1
    expected = inclusion_probability(tau, counts, 2.0, merged)
    # Arm 3 is always kept, so no draw is empty and nothing else is added.
    np.testing.assert_allclose(kept / num_draws, expected, atol=4 * 0.5 / 20_000**0.5)
    assert kept[3] == num_draws


def test_widths_by_hand():
    """lambda = 4, xi = 3, F = 5, delta = exp(-2), so log(1 / delta) = 2."""
    common = {"noise": 4.0, "F": 5.0, "delta": math.exp(-2)}
    frozen = [1.0, 5.0]
    practical = practical_bbkb_width(frozen, 2.0, xi=3.0, **common)
    assert practical == pytest.approx(10 + 3 * math.sqrt(2 * math.log(12) + 2))
    inner = 6 * math.sqrt(math.log(64) + 2) + 10 * (1 + math.sqrt(2))
    assert bbkb_width(frozen, 2.0, xi=3.0, **common) == pytest.approx(2 * inner)
    width = practical_bkb_width(7, 1.5, xi=3.0, **common)
    assert width == pytest.approx(10 + 3 * math.sqrt(1.5 * math.log(7) + 2))
    bias = 10 * (1 + math.sqrt(2))  # eps = 1/2, alpha = 3
    printed = bkb_width(7, 1.5, 2.0, xi=3.0, printed=True, **common)
    expected = 6 * math.sqrt(3 * math.log(14) * 1.5 + 2) + bias
    assert printed == pytest.approx(expected)
    default = bkb_width(7, 1.5, 2.0, xi=3.0, **common)
    expected = 6 * math.sqrt(3 * (1 + math.log(4.5)) * 1.5 + 2) + bias
    assert default == pytest.approx(expected)
    width = chowdhury_gopalan_width(3.0, xi=3.0, **common)
    assert width == pytest.approx(10 + 3 * math.sqrt(10))
    # xi is sqrt(lambda) unless given.
    assert chowdhury_gopalan_width(3.0, **common) == pytest.approx(
        10 + 2 * math.sqrt(10)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_close_at_the_pull_that_crosses(seed):
    """By sums written out here; each rule's batch begins as the next one's does."""
    problem = Problem(seed)
    state = problem.gram, problem.noise, problem.S, problem.counts, problem.sums
    variance = problem.arms.posterior(*state[2:])[1]
    scores = variance / problem.noise

    def total(batch):
        return 1.3 + sum(scores[arm] for arm in batch)

    values = {
        "product": lambda batch: 1.3 * math.prod(1 + scores[arm] for arm in batch),
        "sum": total,
    }
    batches = []
    for rule, value in values.items():
        batch = greedy_batch(*state, 2.0, rule, threshold=4.0, pending_scores=[0.3])
        assert value(batch) > 4.0
        assert value(batch[:-1]) <= 4.0  # all are monotone
        batches.append(batch)
    for shorter, longer in itertools.pairwise(batches):
        assert shorter == longer[: len(shorter)]


@pytest.mark.parametrize("seed", SEEDS)
def test_picks_are_those_of_the_exact_gp_when_all_arms_join(seed):
    """The greedy loop of GP-BUCB, written with one row per pull."""
    problem = Problem(seed)
    state = problem.gram, problem.noise, problem.p, problem.counts, problem.sums
    batch = greedy_batch(*state, 2.0, "fixed", size=6, projected=False, pending=[3])
    pulls, gram = [*problem.pulls, 3], problem.gram
    told = list(problem.pulls)
    noise = np.full(len(told) + 7, problem.noise)

    def posterior(rows, y):
        blocks = gram[np.ix_(rows, rows)], gram[rows], gram
        return exact_posterior(*blocks, noise[: len(rows)], y)

    mean = posterior(told, problem.y)[0]
    for arm in batch:
        variance = np.diag(posterior(pulls, np.zeros(len(pulls)))[1])
        bounds = mean + 2.0 * np.sqrt(np.maximum(variance, 0) / problem.noise)
        assert bounds[arm] >= bounds.max() - 1e-6
        pulls.append(arm)


class Draws:
    """Scripted randomness; records how many numbers were asked for."""

    def __init__(self, first, uniforms):
        self.first, self.uniforms, self.asked = first, list(uniforms), []

    def draw_first(self):
        return self.first

    def draw_uniforms(self, n):
        self.asked.append(n)
        return np.array([self.uniforms.pop(0) for _ in range(n)])


REWARDS = [0.8, 0.2, 0.0]


def run_three_unrelated_arms(draws, num_pulls, **options):
    """K = I, lambda = 1: n pulls of an arm in S give s / (n + 1) and 1 / (n + 1)."""
    problem = np.eye(3), 1.0, REWARDS.__getitem__
    return simulate(
        *problem, draws.draw_first, draws.draw_uniforms, num_pulls, **options
    )


def test_a_tiny_bbkb_run_by_hand():
    """Width 1, C = 2, q = 1; bounds of arms 0, 1, 2 before each pull."""
    draws = Draws(0, [0.5, 0.8, 0.1, 0.9, 0.6])
    run = run_three_unrelated_arms(draws, 6, oversampling=1.0)
    assert run.batches == [
        [0],  # drawn
        # p = 1: S = {0}. 0.4 + 0.707, 1, 1: sum 1.5. 0.4 + 0.577, 1, 1: sum 2.5.
        [0, 1],
        # Arm 0: 1 - (1 - 0.5)^2 = 0.75 < 0.8, dropped; arm 1: p = 1. S = {1}.
        # 1, 0.1 + 0.707, 1: sum 2, not yet crossed; arm 0 is not in S: 1 again, sum 3.
        [0, 0],
        # Arm 0: p = 1; arm 1: p = 0.5 < 0.6, dropped. S = {0}: mean 3.2 / 5.
        # 0.64 + 0.447, + 0.408, + 0.378: sum 1.6; + 0.354 < 1: arm 1, sum 2.6.
        [0, 0, 0, 1],
    ]
    assert run.inducing_sets == [[], [0], [1], [0]]
    assert run.widths == [1.0] * 4
    assert run.arms == [0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert run.batch_sizes == [1, 2, 2, 4]
    assert draws.asked == [1, 2, 2]


def test_coupled_numbers_are_drawn_once_for_all_arms():
    draws = Draws(0, [0.6, 0.1, 0.5])
    run = run_three_unrelated_arms(draws, 6, oversampling=1.0, coupled=True)
    assert draws.asked == [3]
    # Arm 0: p = 1, then 0.75 > 0.6 with two pulls at 0.5.
    assert run.inducing_sets[:3] == [[], [0], [0, 1]]


def test_a_tiny_gp_ucb_run_by_hand():
    """F = 0, delta = 1/e: width sqrt(2 (log det + 1)), log det = sum log(n + 1)."""
    draws = Draws(2, [])
    run = run_three_unrelated_arms(
        draws,
        4,
        rule="fixed",
        width="chowdhury_gopalan",
        exact=True,
        F=0.0,
        delta=math.exp(-1),
    )
    assert run.batches == [[2], [0], [1], [0]]
    assert run.inducing_sets == [[], [2], [0, 2], [0, 1, 2]]
    expected = [math.sqrt(2 * (k * math.log(2) + 1)) for k in range(4)]
    np.testing.assert_allclose(run.widths, expected)
    assert draws.asked == []
