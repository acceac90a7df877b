"""GPBandit: goals, the default width, and batches of the size that was asked for."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_bkb import GPBandit
from botorch_bkb.acquisition.schedules import DeviationWidth
from botorch_bkb.bandits import (
    composite_to_learn,
    EpsilonGreedyPolicy,
    gp_bandit,
    matern_to_learn,
    rbf_to_learn,
    ThompsonPolicy,
    UCBPolicy,
    UniformPolicy,
)
from botorch_bkb.posteriors.upper_bounds import UpperBounds
from tests.bandits import (
    LEARNED,
    make_bandit,
    noisy_rewards,
    random_arms,
    rbf,
    true_rewards,
)
from tests.reference import exact_posterior


def test_the_first_batch_of_many_candidates_is_spread_by_one_pool(monkeypatch):
    """Its picks are nearer to every candidate than those of a random batch."""
    monkeypatch.setattr(gp_bandit, "MOST_COMPARED", 1000)
    pools, new_pool = [], UpperBounds._new_pool

    def counted(self):
        pools.append(self.size)
        return new_pool(self)

    monkeypatch.setattr(UpperBounds, "_new_pool", counted)
    arms = random_arms(4000)
    bandit = make_bandit(GPBandit, arms, **LEARNED)
    available = arms[:, 0] > 0.2
    batch = bandit.ask(64, available=available)
    assert len(batch.unique()) == 64
    assert available[batch].all()
    assert len(pools) == 1
    open_arms = arms[available]
    drawn = open_arms[torch.randperm(len(open_arms))[:64]]
    reach = torch.cdist(open_arms, arms[batch]).amin(dim=-1).amax()
    assert reach < torch.cdist(open_arms, drawn).amin(dim=-1).amax()


def test_a_first_plate_has_all_candidates_of_its_setting(monkeypatch):
    """Of 1,500 settings with two candidates each, a sample of candidates has few."""
    monkeypatch.setattr(gp_bandit, "MOST_COMPARED", 1000)
    setting = torch.arange(3000).double() // 2
    arms = torch.stack([random_arms(3000)[:, 0], setting], dim=-1)
    bandit = make_bandit(GPBandit, arms, **LEARNED)
    batch = bandit.ask(2, same=[1])
    assert len(batch.unique()) == 2
    assert setting[batch].unique().numel() == 1


# Defaults -----------------------------------------------------------------------------


def test_the_goal_is_the_best_arm_unless_the_objective_drifts():
    for options in ({}, {"covar_module": None}, {"noise_variance": None}, LEARNED):
        assert make_bandit(GPBandit, **options).goal == "best_arm"
        assert make_bandit(GPBandit, goal="regret", **options).goal == "regret"
        assert make_bandit(GPBandit, forgetting_rate=0.1, **options).goal == "regret"
    with pytest.raises(UnsupportedError, match=r"`goal` to be 'regret'.*Leave out"):
        make_bandit(GPBandit, forgetting_rate="learn", goal="best_arm")


@pytest.mark.parametrize("bad", ["best", 1, True, ""])
def test_a_goal_that_does_not_exist_is_refused(bad):
    with pytest.raises(InputDataError, match=r"`goal` to be 'regret' .*'best_arm'"):
        make_bandit(GPBandit, goal=bad)


@pytest.mark.parametrize("missing", ["covar_module", "noise_variance", "neither"])
def test_the_width_is_a_number_of_deviations_that_grows_with_the_noise(missing):
    bandit = make_bandit(GPBandit, **{missing: None} if missing != "neither" else {})
    width = 1.25 if missing == "covar_module" else 1
    assert bandit.confidence == DeviationWidth(width, noise_deviations=1.0)
    indices = torch.arange(12)
    bandit.add_observations(indices, true_rewards(bandit.arms)[indices])
    bandit.ask()
    mean, variance = bandit.predict()
    kernel = bandit.covar_module
    prior = kernel(bandit.arms, diag=True).max().item()
    noise = bandit.noise_variance
    if missing == "covar_module":
        noise /= true_rewards(bandit.arms)[:12].var(correction=0).item()
    share = math.sqrt(noise / (prior + noise))
    assert 0.01 < share < 1
    bound = mean + (width + share) * variance.sqrt()
    torch.testing.assert_close(bandit.confidence_bound(), bound)


@pytest.mark.parametrize(
    ("covar_module", "width"),
    [
        (None, 1.25),
        (composite_to_learn, 1.25),
        (matern_to_learn, 1.0),
        (rbf_to_learn, 1.0),
        ("bits", 1.0),
    ],
)
def test_the_width_is_larger_beside_rough_detail(covar_module, width):
    arms = torch.rand(9, 3)
    if covar_module == "bits":
        arms, covar_module = torch.ones(9, 64, dtype=torch.uint8), None
    bandit = GPBandit(arms, covar_module)
    assert bandit.confidence == DeviationWidth(width, noise_deviations=1.0)


# Finding the best arm -----------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"confidence": 1.0}, {"goal": "regret"}],
    ids=["default", "given", "regret"],
)
def test_a_hopeless_arm_gives_way_to_the_likeliest_one(options):
    """The dense posterior of a peak whose good arms are measured, and of the rest."""
    numbers, num_likeliest, noise = np.random.default_rng(0), 0, 1e-6
    for _ in range(40):
        arms = numbers.random((50, 2))
        gaps = ((arms[:, None] - arms) ** 2).sum(axis=-1)
        K, order = np.exp(-gaps / (2 * 0.2**2)), gaps[0].argsort()
        new = np.sort(order[numbers.choice(50, size=numbers.integers(5, 25))])
        measured = np.setdiff1d(order, new)
        y = 3 * np.exp(-gaps[0, measured] / 0.1) - 1
        bandit = GPBandit(torch.tensor(arms), rbf(0.2), noise, **options)
        bandit.add_observations(measured, torch.tensor(y))
        noises = np.full(len(y), noise)
        columns = K[measured]
        mean, covariance = exact_posterior(
            columns[:, measured], columns, K, noises, y - y.mean()
        )
        std, width = np.sqrt(covariance.diagonal()), 1.0
        if options != {"confidence": 1.0}:
            width += math.sqrt(noise / (1 + noise))
        allowed = np.arange(50) if options == {"goal": "regret"} else new
        chosen = allowed[(mean + width * std)[allowed].argmax()]
        target = np.sort(mean[measured])[-max(1, len(measured) // 10)]
        if options == {} and mean[chosen] + 2 * std[chosen] < target:
            likeliest = new[((mean - target) / std)[new].argmax()]
            num_likeliest += int(likeliest != chosen)
            chosen = likeliest
        assert bandit.ask() == chosen
    assert num_likeliest > 4 or options


POLICIES = {
    "ucb": UCBPolicy(),
    "thompson": ThompsonPolicy(),
    "greedy": EpsilonGreedyPolicy(),
    "uniform": UniformPolicy(),
}
each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def with_two_far_above(noise_variance, unit=1.0, **options):
    """Return a bandit of 20 arms that tell nothing of each other, 18 of them pulled."""
    options |= {"lengthscale": 1e-3, "noise_variance": noise_variance}
    bandit = make_bandit(GPBandit, random_arms(20), **options)
    rewards = torch.full((18,), -1.0)
    rewards[[3, 7]] = torch.tensor([8.0, 8.1])
    bandit.add_observations(torch.arange(18), unit * rewards)
    return bandit


def test_asks_with_nothing_told_between_go_on_to_other_arms():
    """What a pending pull will leave to learn of its arm is less than it was."""
    bandit = with_two_far_above(noise_variance=1.0, confidence=10.0)
    asked = [bandit.ask().item() for _ in range(40)]
    assert asked[0] in (3, 7)
    assert {3, 7, 18, 19} <= set(asked)
    assert max(asked.count(arm) for arm in asked) <= 25


@each_policy
@pytest.mark.parametrize("left", [1, 5, 30])
def test_a_batch_has_no_arm_twice_and_fewer_arms_only_if_fewer_are_left(policy, left):
    """Copies of arms, and pending ones, come only where no others are left."""
    arms = random_arms(30)
    bandit = make_bandit(GPBandit, torch.cat([arms, arms[:9]]), policy=policy)
    told = torch.arange(12)
    bandit.add_observations(told, true_rewards(bandit.arms)[told])
    available = (torch.arange(39) >= 30 - left) & (torch.arange(39) < 30)
    for _ in range(2):  # every arm of them may come again in the next batch
        indices = bandit.ask(75, available=available)
        assert indices.sort().values.tolist() == list(range(30 - left, 30))
    assert bandit.ask(30).sort().values.tolist() == list(range(30))
    assert bandit.ask(99).sort().values.tolist() == list(range(39))


@pytest.mark.parametrize("copies", [[3], [20], [3, 3, 7], [0, 5, 9, 17]])
@pytest.mark.parametrize("observed", ["first", "last", "both"])
def test_a_candidate_that_is_there_twice_is_one_candidate(copies, observed):
    """Whichever of equal rows were measured, picks are those without the copies."""
    arms = random_arms(21)
    told = torch.tensor([3, 7, 0, 5, 12])
    rewards = torch.tensor([2.0, 1.9, 0.1, -0.4, 0.2])
    single = make_bandit(GPBandit, arms, lengthscale=0.15)
    twice = make_bandit(GPBandit, torch.cat([arms, arms[copies]]), lengthscale=0.15)
    last = [21 + copies.index(arm) if arm in copies else arm for arm in told.tolist()]
    single.add_observations(told, rewards)
    twice.add_observations(told if observed == "first" else last, rewards)
    if observed == "both":
        for bandit, arm in ((single, 3), (twice, last[0])):
            bandit.add_observations([3, arm], [2.1, 1.8])
            bandit.add_pending([arm])
    for size in (3, 3, 1, 6):
        assert twice.ask(size).tolist() == single.ask(size).tolist()


def test_an_arm_is_measured_again_where_that_tells_more():
    """Two arms far above the rest, all but equal, under much noise."""
    bandit = with_two_far_above(noise_variance=1.0)
    assert bandit.ask().item() in (3, 7)
    # Where a measurement is precise, the arms that are new are all there is to learn.
    bandit = with_two_far_above(noise_variance=1e-4, unit=1 / 8)
    assert sorted(bandit.ask(2).tolist()) == [18, 19]


# Collecting reward --------------------------------------------------------------------


def settled(num_repeats=20, **options):
    """Return a bandit that knows an arm far above all that the others may have.

    Arms are uncorrelated.
    """
    options = {"noise_variance": 0.1, "lengthscale": 1e-3, "goal": "regret", **options}
    bandit = make_bandit(GPBandit, confidence=0.1, **options)
    known = torch.arange(6)
    rewards = true_rewards(bandit.arms)[known]
    rewards[3] = 20.0
    bandit.add_observations(known, rewards)
    bandit.add_observations([3] * num_repeats, [20.0] * num_repeats)
    return bandit


def test_a_bandit_that_has_settled_opens_the_batch_with_a_new_arm():
    """The one of the largest bound among those that were never pulled."""
    bandit = settled()
    indices = bandit.ask(5)
    bounds = bandit.confidence_bound()
    bounds[:6] = -torch.inf
    assert indices[0] == bounds.argmax()
    assert len(indices) == 5
    assert (indices[1:] == 3).all()
    # It is pending, so the next ask has a new arm behind it.
    assert (bandit.ask(2) == 3).all()


def test_pulls_that_bring_nothing_are_tries():
    """One that stays out keeps no other from its turn, and none fails for ever."""
    for settle in ("keep", "fail"):
        bandit = settled(num_repeats=0)
        new = []
        while len(new) < 4:
            arm = bandit.ask().item()
            pull_id = list(bandit.pending)[-1]
            if arm == 3:
                bandit.tell([3], [20.0], pull_ids=[pull_id])
            else:
                new.append(arm)
                if settle == "fail":
                    bandit.fail([arm])
        assert new == [6, 7, 8, 9]
        assert bandit.counts[3] == 1 + 4 * 5


@pytest.mark.parametrize("size", [1, 4])
def test_an_eighth_of_all_pulls_is_the_longest_without_a_new_arm(size):
    bandit = settled(num_repeats=0)
    pulled = list(range(6))
    while len(pulled) < 70:
        indices = bandit.ask(size)
        bandit.tell(indices, [20.0 if arm == 3 else 0.0 for arm in indices])
        pulled += indices.tolist()
        longest = max(5, len(pulled) // 8) + size
        assert set(pulled) > set(pulled[:-longest])
    assert pulled.count(3) > 40
    assert len(set(pulled)) > 12


def test_only_arms_that_may_be_pulled_are_new():
    bandit = settled()
    available = torch.zeros(30, dtype=torch.bool)
    available[[3, 17, 20]] = True
    bandit.retire_arms([17])
    assert bandit.ask(available=available).item() == 20
    available[20] = False
    bandit = settled()
    bandit.retire_arms([17])
    assert bandit.ask(2, available=available).tolist() == [3, 3]


# Batches of a size --------------------------------------------------------------------


@each_policy
@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"goal": "regret"}, 17),
        ({"goal": "best_arm"}, 30),
        ({"forgetting_rate": 0.05}, 17),
    ],
    ids=["regret", "best arm", "drift"],
)
def test_a_batch_has_the_size_that_was_asked_for(options, size, policy):
    bandit = make_bandit(GPBandit, policy=policy, **options)
    measure = noisy_rewards(bandit.arms)
    for _ in range(3):
        indices = bandit.ask(size)
        assert len(indices) == size
        assert len(bandit.pending) == size
        bandit.tell(indices, measure(indices))
    assert len(bandit.ask()) == 1
