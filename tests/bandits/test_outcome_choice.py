"""Choices and answers of `OutcomesBandit`, against dense NumPy."""

import itertools

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.objective import compute_smoothed_feasibility_indicator
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.stats import norm

from botorch_bkb import (
    AtLeast,
    AtMost,
    Maximize,
    Minimize,
    OutcomesBandit,
    Target,
)
from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits import outcome_choice
from tests.bandits import random_arms
from tests.helpers import gram_matrix
from tests.reference import exact_posterior


pytestmark = pytest.mark.usefixtures("short_fits")
NOISE, NUM_SAMPLES = 0.04, 16
ROLES = {
    "fronts": {"a": Maximize(), "b": Minimize()},
    "three": {"a": Maximize(), "b": Minimize(), "c": Target(0.3, 0.1)},
    "limited": {"a": Maximize(), "b": AtMost(0.7), "c": AtLeast(-0.9)},
    "front within limits": {"a": [Maximize(), AtLeast(0.0)], "b": Minimize()},
    "target": {"b": Target(0.9, 0.01), "c": AtMost(0.8)},
}


def kernel(scale=1.0, lengthscale=0.3):
    found = ScaleKernel(RBFKernel()).double().requires_grad_(False)
    found.outputscale, found.base_kernel.lengthscale = scale, lengthscale
    return found


def outcomes_of(arms):
    x, y = arms[:, 0].numpy(), arms[:, 1].numpy()
    return {
        "a": np.sin(5 * x) + y,
        "b": np.cos(4 * y) + x * y,
        "c": np.sin(3 * x + 4 * y),
    }


def bandit_of(arms, roles, **options):
    """A bandit of given kernels, so that nothing is fitted."""
    kernels = {name: kernel(0.5 + n / 2) for n, name in enumerate(roles)}
    noises = dict.fromkeys(roles, NOISE)
    return OutcomesBandit(
        arms, roles, covar_module=kernels, noise_variance=noises, seed=0, **options
    )


def measured(bandit, number=12, seed=1):
    """Results of some arms, told, by outcome."""
    rng = np.random.default_rng(seed)
    arms = rng.choice(len(bandit.arms), number, replace=False)
    true = outcomes_of(bandit.arms[arms].double())
    results = {
        name: true[name] + 0.2 * rng.standard_normal(number) for name in bandit.roles
    }
    bandit.add_observations(arms, results)
    return arms, results


def dense(bandit, name, arms, results, rows):
    """Mean and covariance of rows, from the kernel and the results alone."""
    covar, x = bandit.outcomes[name].covar_module, bandit.arms
    mean = results[name].mean()
    found, covariance = exact_posterior(
        gram_matrix(covar, x[arms]),
        gram_matrix(covar, x[arms], x[rows]),
        gram_matrix(covar, x[rows]),
        np.full(len(arms), NOISE),
        results[name] - mean,
    )
    return found + mean, covariance


def utility(role, y):
    if isinstance(role, Target):
        return -np.maximum(np.abs(y - role.value) - role.tolerance, 0)
    return y if isinstance(role, Maximize) else -y


def hypervolume(points, reference):
    """By inclusion and exclusion over all boxes' cells: a grid of all coordinates."""
    points = np.maximum(points, reference)
    axes = [
        np.unique(np.append(points[:, k], reference[k])) for k in range(points.shape[1])
    ]
    total = 0.0
    for cell in itertools.product(*(range(1, len(axis)) for axis in axes)):
        upper = np.array([axis[k] for axis, k in zip(axes, cell, strict=True)])
        lower = np.array([axis[k - 1] for axis, k in zip(axes, cell, strict=True)])
        if (points >= upper - 1e-15).all(axis=1).any():
            total += np.prod(upper - lower)
    return total


def flat(roles):
    for name, own in roles.items():
        for role in own if isinstance(own, list) else [own]:
            yield name, role


def promising(bandit, roles, arms, results, rows):
    """Violation, and improvement by optimistic outcomes, of each row."""
    moments = {name: dense(bandit, name, arms, results, rows) for name in roles}
    means = {name: dense(bandit, name, arms, results, arms)[0] for name in roles}
    stds = {name: np.sqrt(np.diag(c)) for name, (_, c) in moments.items()}
    violation, optimistic, measured_front = np.zeros(len(rows)), [], []
    feasible = np.ones(len(arms))
    for name, role in flat(roles):
        mean, std = moments[name][0], stds[name]
        own = np.sqrt(np.diag(dense(bandit, name, arms, results, arms)[1]))
        if isinstance(role, AtMost | AtLeast):
            side = -1 if isinstance(role, AtMost) else 1
            room = side * (mean - role.limit) / std
            violation += np.maximum(-2 - room, 0)
            feasible *= norm.cdf(side * (means[name] - role.limit) / own)
            continue
        low, high = mean - 2 * std, mean + 2 * std
        best = {Maximize: high, Minimize: low}.get(type(role))
        if best is None:
            best = np.clip(role.value, low, high)
        optimistic.append(utility(role, best))
        steps = [0.0]
        if isinstance(role, Target):
            steps = norm.ppf((np.arange(9) + 0.5) / 9)
        measured_front.append(
            np.mean([utility(role, means[name] + k * own) for k in steps], axis=0)
        )
    front = np.stack(measured_front, axis=1)
    reference = front.min(axis=0)
    front = front[feasible >= min(0.5, feasible.max())]
    optimistic = np.stack(optimistic, axis=1)
    if optimistic.shape[1] == 1:
        return violation, optimistic[:, 0]
    before = hypervolume(front, reference)
    value = [hypervolume(np.vstack([front, v]), reference) - before for v in optimistic]
    return violation, np.array(value)


@pytest.mark.parametrize("name", ROLES)
def test_promising_candidates_are_those_of_dense_numpy(name):
    roles, size = ROLES[name], 60 if name == "three" else 300
    bandit = bandit_of(random_arms(size), roles)
    arms, results = measured(bandit, 6 if name == "three" else 12)
    rows = np.setdiff1d(np.arange(size), arms)[::3]
    violation, value = promising(bandit, roles, arms, results, rows)
    scores = bandit._choice().scores(torch.from_numpy(rows))
    np.testing.assert_allclose(scores.violation.numpy(), violation, atol=1e-9)
    np.testing.assert_allclose(scores.value.numpy(), value, atol=1e-9)


@pytest.mark.parametrize("name", ["limited", "front within limits", "target"])
def test_batches_are_those_of_brute_force(name, monkeypatch):
    """Bounds, limits, hypervolume, a batch of 8 and pending results in NumPy."""
    roles, size, pool_size = ROLES[name], 2_000, 24
    monkeypatch.setattr(outcome_choice, "POOL_SIZE", pool_size)
    monkeypatch.setattr(outcome_choice, "NUM_SAMPLES", NUM_SAMPLES)
    bandit = bandit_of(random_arms(size), roles)
    arms, results = measured(bandit, 8, seed=3)  # no pick without an improvement
    bandit.add_pending([3, 5])
    used = np.union1d(arms, [3, 5])
    rows = np.setdiff1d(np.arange(size), used)
    choice = bandit._choice()
    limits = bandit._pull_limits(None, 8)
    found = choice.promising(limits).where  # held to NumPy by another test
    scores = found(torch.isin(torch.arange(size), torch.from_numpy(rows)))
    keys = [-scores.spread, -scores.more, -scores.value, scores.violation]
    pool = rows[np.lexsort(keys)[:pool_size]]
    expected = greedy(bandit, roles, arms, results, used, pool, choice)
    assert bandit.ask(8).tolist() == expected


def test_candidates_that_surely_violate_a_limit_come_last():
    roles = {"a": Maximize(), "b": AtMost(-0.9)}
    bandit = bandit_of(random_arms(300), roles)
    arms, _ = measured(bandit, 40)
    scores = bandit._choice().scores(torch.arange(300))
    new = scores.where(~torch.isin(scores.candidates, torch.from_numpy(arms)))
    allowed = new.candidates[new.violation == 0].tolist()
    batch = bandit.ask(len(allowed) + 2).tolist()
    assert 2 <= len(allowed) <= 40
    assert {*allowed} <= {*batch}
    assert {*batch} == {*new.first(len(batch)).tolist()}


def greedy(bandit, roles, arms, results, used, pool, choice):
    """The batch of the largest mean improvement over samples, one by one."""
    acquisition = choice.acquisition(torch.from_numpy(used))
    baseline = acquisition.X_baseline
    x = bandit.arms.double()
    known = [int((x == row).all(dim=-1).nonzero()[0]) for row in baseline]
    model = acquisition.model
    drawn = acquisition.base_sampler(model.posterior(baseline)).numpy()
    names = [*roles]
    shape = len(known) + 8, len(names)
    size = shape[0] * shape[1]
    unit = GPyTorchPosterior(
        MultivariateNormal(torch.zeros(size).double(), torch.eye(size).double())
    )
    sampler = SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=choice.seed % 2**31)
    normals = sampler(unit).squeeze(-1).unflatten(-1, shape).numpy()
    normals = normals[:, len(known) :]  # the first ones are those of the baseline
    moments, firsts = {}, {}
    for n, name in enumerate(names):
        units, sign = choice.models[n].units, choice.models[n].sign
        points = np.concatenate([known, pool])
        mean, covariance = dense(bandit, name, arms, results, points)
        moments[name] = mean, covariance
        k = len(known)
        root = np.linalg.cholesky(covariance[:k, :k])
        own = drawn[..., n] * units.std + sign * units.mean
        firsts[name] = np.linalg.solve(root, (own - mean[:k]).T).T
    chosen = [*range(len(known))]
    picks = []
    for step in range(8):
        best = -np.inf, -1
        left = [p for p in range(len(pool)) if pool[p] not in picks]
        for p in left:
            at = [*chosen, len(known) + p]
            samples = {}
            for n, name in enumerate(names):
                mean, covariance = moments[name]
                root = np.linalg.cholesky(
                    covariance[np.ix_(at, at)] + 1e-12 * np.eye(len(at))
                )
                z = np.concatenate([firsts[name], normals[:, : step + 1, n]], axis=1)
                samples[name] = mean[at] + z @ root.T
            gain = improvement(roles, samples, choice)
            best = max(best, (gain, -p))
        p = -best[1]
        picks.append(int(pool[p]))
        chosen.append(len(known) + p)
    return picks


def improvement(roles, samples, choice):
    """Mean improvement of the last point over the others."""
    goals = [
        utility(role, samples[name])
        for name, role in flat(roles)
        if not isinstance(role, AtMost | AtLeast)
    ]
    margins = []
    for name, role in flat(roles):
        if isinstance(role, AtMost | AtLeast):
            side = -1 if isinstance(role, AtMost) else 1
            margins.append(side * (samples[name] - role.limit))
    holds = np.all([m >= 0 for m in [*margins, np.ones_like(goals[0])]], axis=0)
    # BoTorch's constraints are smooth.
    weights = torch.ones(len(holds))
    if margins:
        weights = compute_smoothed_feasibility_indicator(
            [lambda Y, n=n: -Y[..., n] for n in range(len(margins))],
            torch.tensor(np.stack([margin[:, -1] for margin in margins], axis=1)),
            eta=1e-3,
            fat=True,
        )
    gains = []
    for s in range(len(goals[0])):
        points = np.stack([goal[s] for goal in goals], axis=1)
        others, weight = points[:-1][holds[s, :-1]], weights[s].item()
        if points.shape[1] == 1:
            gains.append(weight * max(points[-1, 0] - others[:, 0].max(), 0))
        else:
            reference = choice.reference.numpy()
            before = hypervolume(others, reference) if len(others) else 0.0
            after = hypervolume(np.vstack([others, points[-1:]]), reference)
            gains.append(weight * (after - before))
    return np.mean(gains)


@pytest.mark.parametrize("among_pulled", [True, False])
def test_the_best_arm_holds_its_limits_or_is_the_most_probable(among_pulled):
    arms = random_arms(200)
    for limit, expected in ((1.0, True), (-1.5, False)):
        roles = {"a": Maximize(), "b": AtMost(limit)}
        bandit = bandit_of(arms, roles)
        told, results = measured(bandit, 15)
        rows = np.unique(told) if among_pulled else np.arange(200)
        mean, _ = dense(bandit, "a", told, results, rows)
        other, covariance = dense(bandit, "b", told, results, rows)
        feasible = norm.cdf((limit - other) / np.sqrt(np.diag(covariance)))
        found = bandit.best_arm(among_pulled)
        assert found.is_feasible is expected
        kept = feasible >= min(0.95, feasible.max())
        place = np.flatnonzero(kept)[mean[kept].argmax()]
        assert found.arm == rows[place]
        assert found.probability_feasible == pytest.approx(feasible[place], abs=1e-9)
        columns = bandit.predictions(rows)
        np.testing.assert_allclose(columns["a_mean"].numpy(), mean, atol=1e-9)
        np.testing.assert_allclose(
            columns["probability_feasible"].numpy(), feasible, atol=1e-9
        )
        half = 2.78 * np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(columns["b_high"].numpy() - other, half, rtol=1e-3)


@pytest.mark.parametrize("name", ["fronts", "three", "front within limits"])
@pytest.mark.parametrize("among_pulled", [True, False])
def test_the_front_is_that_of_the_means(name, among_pulled):
    roles = ROLES[name]
    bandit = bandit_of(random_arms(150), roles)
    told, results = measured(bandit, 20)
    bandit.retire_arms(told[:3])
    rows = np.unique(told) if among_pulled else np.arange(150)
    rows = np.setdiff1d(rows, told[:3])
    goals, stds, feasible = [], [], np.ones(len(rows))
    for key, role in flat(roles):
        mean, covariance = dense(bandit, key, told, results, rows)
        std = np.sqrt(np.diag(covariance))
        if isinstance(role, AtLeast):
            feasible *= norm.cdf((mean - role.limit) / std)
            continue
        stds.append(std)
        steps = norm.ppf((np.arange(9) + 0.5) / 9) if isinstance(role, Target) else [0]
        goals.append(np.mean([utility(role, mean + k * std) for k in steps], axis=0))
    goals = np.stack(goals, axis=1)
    kept = feasible >= min(0.95, feasible.max())
    order = np.argsort(-goals[:, 0])
    rows, goals = rows[order][kept[order]], goals[order][kept[order]]
    # Differences of less than a tenth of a deviation are none.
    steps = 0.1 * np.sort(np.stack(stds, axis=1)[kept], axis=0)[(kept.sum() - 1) // 2]
    rounded = np.round(goals / steps)
    is_front = [
        not ((rounded >= own).all(axis=1) & (rounded > own).any(axis=1)).any()
        and not (rounded[:place] == own).all(axis=1).any()
        for place, own in enumerate(rounded)
    ]
    expected = rows[is_front]
    assert bandit.pareto_front(among_pulled).tolist() == expected.tolist()


@pytest.mark.parametrize("most", [0, 10_000])
def test_product_spaces_are_searched_for_all_outcomes(most, monkeypatch):
    """A local search finds the best of 8,000 products that all scores have."""
    sizes = {"MOST_PRODUCTS": most, "POOL_SIZE": 64, "PLATE_POOL_SIZE": 16}
    for name, value in {**sizes, "NUM_SAMPLES": NUM_SAMPLES}.items():
        monkeypatch.setattr(outcome_choice, name, value)
    axis = torch.linspace(0, 1, 20, dtype=torch.double)
    lists = {name: axis.unsqueeze(-1) for name in "xyz"}
    space = ProductArms(lists, forbidden=lambda positions: positions[:, 0] == 19)
    bandit = OutcomesBandit(space, {"a": Maximize(), "b": [Minimize(), AtMost(1.0)]})
    rng = np.random.default_rng(0)
    told = torch.from_numpy(rng.choice(19 * 400, 25, replace=False))
    x, y, z = (axis[p] for p in space.components(told).unbind(-1))
    bandit.add_observations(told, {"a": x + y * z, "b": (x - y).abs() + z / 2})
    choice, limits = bandit._choice(), bandit._pull_limits(None, 4)
    every = choice.scores(torch.arange(19 * 400))
    assert choice.promising(limits).first(20).tolist() == every.first(20).tolist()
    batch = bandit.ask(4)
    assert len(batch.unique()) == 4
    assert not space.components(batch)[:, 0].eq(19).any()
    same = bandit.ask(3, same=["y"])
    assert len(space.components(same)[:, 1].unique()) == 1
    big = ProductArms({name: axis.repeat(10).unsqueeze(-1) for name in "xyz"})
    big = OutcomesBandit(big, {"a": Maximize()}, seed=0)
    big.add_observations(range(5), {"a": axis[:5]})
    with pytest.raises(UnsupportedError, match="Leave out `among_pulled=False`"):
        big.pareto_front(among_pulled=False)
    assert len(big.pareto_front()) == 1


def test_a_limit_counts_beyond_what_was_seen_where_poor_outcomes_are_warped():
    torch.manual_seed(0)
    arms = torch.rand(400, 2, dtype=torch.double)
    impurity = 0.1 * (4 * arms[:, 0]).exp()
    start = (impurity < 1.9).nonzero().squeeze(-1)[:24]
    bandit = OutcomesBandit(arms, {"yield": Maximize(), "b": AtMost(2.0)}, seed=0)
    told = {"yield": arms[start].sum(dim=-1), "b": impurity[start]}
    bandit.add_observations(start, told)
    bandit.ask(4)
    assert bandit.outcomes["b"].warp is not None
    table = bandit.predictions()
    assert table["b_high"].max() > 2
    choice = bandit._checked_choice()
    violation = choice.acquisition(start)._constraints[0]
    model = choice.models[1]
    outcomes = torch.linspace(0.1, 5.0, 50, dtype=torch.double)
    warped = model.units.warp.inverse(model.sign * outcomes)
    samples = model.sign * model.units.standardized(warped)
    both = torch.stack([0 * samples, samples], dim=-1)
    assert (violation(both) <= 0).equal(outcomes <= 2)


def test_of_arms_that_come_again_equal_ones_have_the_same_count():
    arms = torch.tensor([[0.0, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.double)
    bandit = bandit_of(arms, {"a": Maximize()})
    pulled = [0, 0, 0, 0, 1, 1, 2]
    bandit.add_observations(pulled, {"a": torch.linspace(0, 1, 7)})
    assert bandit.ask(2).tolist() == [2, 1]


@pytest.mark.parametrize("kind", ["numbers", "bits", "molecules"])
def test_a_limit_that_no_measured_arm_meets(kind):
    """BoTorch then draws points around the arms, which fingerprints do not have."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(2, (40, 64), generator=generator, dtype=torch.uint8)
    arms = {
        "numbers": random_arms(40),
        "bits": bits,
        "molecules": ProductArms({"m": bits, "t": torch.arange(3.0).view(3, 1)}),
    }[kind]
    roles = {"a": Maximize(), "b": AtMost(-1.0)}
    results = {name: torch.rand(8, generator=generator) for name in roles}
    before, batches = torch.get_rng_state(), []
    for seed in (1, 2):
        bandit = OutcomesBandit(arms, roles, seed=0)
        bandit.add_observations([*range(4), *range(36, 40)], results)
        state = torch.manual_seed(seed).get_state()
        batches.append(bandit.ask(3).tolist())
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)
    assert batches[0] == batches[1]
    assert len({*batches[0]}) == 3


@pytest.mark.parametrize("limit", [AtMost(0.0), AtLeast(2.0)])
def test_a_limit_at_a_bound_is_met_by_means_at_the_bound(limit):
    roles, bounds = {"a": Maximize(), "b": limit}, {"b": (0.0, 2.0)}
    bandit = bandit_of(random_arms(40), roles, bounds=bounds)
    told = {"a": torch.arange(10.0), "b": torch.full((10,), limit.limit)}
    bandit.add_observations(range(10), told)
    columns = bandit.predictions(range(10))
    free = bandit_of(random_arms(40), roles)
    free.add_observations(range(10), told)
    expected = free.predictions(range(10))["probability_feasible"]
    torch.testing.assert_close(columns["probability_feasible"], expected)
    assert (expected > 0.1).all()


@pytest.mark.parametrize("limit", [AtMost(-1.0), AtLeast(3.0)])
def test_a_limit_beyond_a_bound_is_never_met(limit):
    roles, bounds = {"a": Maximize(), "b": limit}, {"b": (0.0, 2.0)}
    bandit = bandit_of(random_arms(40), roles, bounds=bounds)
    measured(bandit, 6)
    assert (bandit.predictions()["probability_feasible"] == 0).all()
    assert len({*bandit.ask(4).tolist()}) == 4
