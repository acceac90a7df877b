"""Goals, and batches of a size that was asked for."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb import (
    BBKB,
    BKB,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    ConstantWidth,
    PracticalBBKBWidth,
)
from botorch_bkb.acquisition.deviations import DeviationWidth
from botorch_bkb.arms import Capacity, PullCounts
from botorch_bkb.bandits import (
    composite_to_learn,
    FiniteArmBandit,
    matern_to_learn,
    rbf_to_learn,
    SparseLearner,
)
from botorch_bkb.optim import FixedSize, ProductRule, SumRule
from botorch_bkb.posteriors.knowledge_gain import (
    best_arm_capacity,
    split_gain,
)
from tests.bandits import (
    ALL_BANDITS,
    DRIFTING_BANDITS,
    make_bandit,
    noisy_rewards,
    random_arms,
    STILL_BANDITS,
    true_rewards,
    unchanged,
)
from tests.bandits.contract import each


def dense_capacities(capacity, used, gain, size):
    """Return capacities of a batch, by lists of all arms."""
    allowed, is_new = capacity > 0, (capacity > 0) & (used == 0)
    most = gain[is_new].max() if is_new.any() else -np.inf
    is_open = is_new | (allowed & (gain > most))
    rest = [arm for arm in np.argsort(-gain, kind="stable") if not is_open[arm]]
    missing = max(min(size, allowed.sum()) - is_open.sum(), 0)
    is_open[[arm for arm in rest if allowed[arm]][:missing]] = True
    return np.where(is_open, np.minimum(capacity, 1), 0)


class Gains:
    """A posterior of which only the gains are known."""

    def __init__(self, gain):
        self.gain = gain

    def knowledge_gains(self, competes, listed):
        return split_gain(self.gain, competes, listed)


def capacities_for_best_arm(capacity, used, gain, size):
    """Return the capacities of a batch, as numbers of all arms."""
    arms = used.nonzero().squeeze(-1)
    none = torch.empty(0, dtype=torch.long)
    used = PullCounts(arms, used[arms])
    found = best_arm_capacity(Gains(gain), capacity, used, none, size)
    return found.of_arms(torch.arange(len(gain)))


# What a pull tells of the best arm ----------------------------------------------------


@given(seed=st.integers(0, 2**31), num_arms=st.integers(1, 12), size=st.integers(1, 20))
@settings(max_examples=100)
def test_a_batch_is_of_distinct_arms_that_tell_most(seed, num_arms, size):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda high: torch.randint(high, (num_arms,), generator=generator)  # noqa: E731
    capacity, used, gain = draw(3), draw(3), draw(5).double()
    closed = draw(2).bool()
    offered = None if closed.all() else ~closed
    arms = capacity.nonzero().squeeze(-1)
    listed = PullCounts(arms, capacity[arms])
    sparse = Capacity(num_arms, 0, offered, listed)
    if offered is not None:
        capacity = capacity * offered
    found = capacities_for_best_arm(sparse, used, gain, size)
    expected = dense_capacities(capacity.numpy(), used.numpy(), gain.numpy(), size)
    assert found.tolist() == expected.tolist()
    if offered is None:
        same = Capacity.of_pulls(capacity)  # other numbers are listed
        again = capacities_for_best_arm(same, used, gain, size)
        assert again.tolist() == expected.tolist()


# Defaults in two regimes --------------------------------------------------------------


@each([BBKB, GPUCB, GPThompsonSampling, TVGPUCB])
@pytest.mark.parametrize("given_too", ["covar_module", "noise_variance", None])
def test_the_goal_is_the_best_arm_where_anything_is_learned(bandit_class, given_too):
    """Of an objective that drifts the best arm changes: reward is collected."""
    learned = {"covar_module": None, "noise_variance": None}
    learned.pop(given_too, None)
    expected = "regret" if bandit_class in DRIFTING_BANDITS else "best_arm"
    assert make_bandit(bandit_class, **learned).goal == expected
    assert make_bandit(bandit_class).goal == "regret"
    for goal in ("regret", "best_arm") if expected == "best_arm" else ("regret",):
        assert make_bandit(bandit_class, goal=goal, **learned).goal == goal
        assert make_bandit(bandit_class, goal=goal).goal == goal


@each(DRIFTING_BANDITS)
def test_a_best_arm_that_changes_is_no_goal(bandit_class):
    with pytest.raises(UnsupportedError, match=r"`goal` to be 'regret'.*Leave out"):
        make_bandit(bandit_class, goal="best_arm")


@each([BBKB, GPUCB])
def test_the_width_is_a_number_of_deviations_where_anything_is_learned(bandit_class):
    for learned, width in ({"covar_module": None}, 1.25), ({"noise_variance": None}, 1):
        bandit = make_bandit(bandit_class, **learned)
        assert bandit.confidence == DeviationWidth(width, noise_deviations=1.0)
        indices = torch.arange(12)
        bandit.tell(indices, true_rewards(bandit.arms)[indices], external=True)
        bandit.ask()
        mean, variance = bandit.predict()
        fitted = bandit._belief.hyperparameters
        prior = fitted.covar_module(fitted.features, diag=True).max().item()
        noise = fitted.noise_variance
        share = math.sqrt(noise / (prior + noise))
        assert 0.01 < share < 1
        bound = mean + (width + share) * variance.sqrt()
        torch.testing.assert_close(bandit.confidence_bound(), bound)
    assert make_bandit(GPUCB).confidence == ChowdhuryGopalanWidth()
    assert make_bandit(BBKB).confidence == PracticalBBKBWidth()
    learned = make_bandit(bandit_class, covar_module=None, confidence=2.0)
    assert learned.confidence == ConstantWidth(2.0)


@pytest.mark.parametrize(
    ("new_kernel", "width"),
    [
        (None, 1.25),
        (composite_to_learn, 1.25),
        (matern_to_learn, 1.0),
        (rbf_to_learn, 1.0),
        ("bits", 1.0),
    ],
)
def test_the_width_is_larger_beside_rough_detail(new_kernel, width):
    arms, learner = torch.rand(9, 3), SparseLearner(new_kernel=new_kernel)
    if new_kernel == "bits":
        arms, learner = torch.ones(9, 64, dtype=torch.uint8), SparseLearner()
    bandit = FiniteArmBandit(arms, learner=learner)
    assert bandit.confidence == DeviationWidth(width, noise_deviations=1.0)


@pytest.mark.parametrize("bad", ["best", 1, True, ""])
def test_a_goal_that_does_not_exist_is_refused(bad):
    with pytest.raises(InputDataError, match=r"`goal` to be 'regret' .*'best_arm'"):
        make_bandit(BBKB, goal=bad)


# Finding the best arm -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("bandit_class", "learned"),
    [
        *((bandit_class, False) for bandit_class in STILL_BANDITS),
        (BBKB, True),
    ],
)
def test_batches_that_look_for_the_best_arm_are_distinct(bandit_class, learned):
    options = {"covar_module": None, "noise_variance": None} if learned else {}
    bandit = make_bandit(bandit_class, goal="best_arm", **options)
    measure = noisy_rewards(bandit.arms, noise_std=0.05)
    for _ in range(4):
        indices = bandit.ask(size=6)
        assert len(set(indices.tolist())) == 6
        bandit.tell(indices, measure(indices))


@each(STILL_BANDITS)
def test_an_arm_in_flight_is_not_asked_for_again(bandit_class):
    bandit = make_bandit(bandit_class, goal="best_arm")
    asked = [bandit.ask(size=5) for _ in range(6)]
    assert torch.cat(asked).sort().values.tolist() == list(range(30))
    again = bandit.ask(size=7)  # all are out: those that tell most repeat
    assert len(set(again.tolist())) == 7


def with_two_far_above(bandit_class, noise_variance, unit=1.0):
    """Return a bandit of 20 arms that tell nothing of each other, 18 of them pulled."""
    options = {"lengthscale": 1e-3, "noise_variance": noise_variance}
    bandit = make_bandit(bandit_class, random_arms(20), goal="best_arm", **options)
    rewards = torch.full((18,), -1.0)
    rewards[[3, 7]] = torch.tensor([8.0, 8.1])
    bandit.tell(torch.arange(18), unit * rewards, external=True)
    return bandit


@each([BBKB, GPUCB])
def test_asks_with_nothing_told_between_go_on_to_other_arms(bandit_class):
    """What a pending pull will leave to learn of its arm is less than it was."""
    bandit = with_two_far_above(bandit_class, noise_variance=1.0)
    asked = [bandit.ask(size=1).item() for _ in range(40)]
    assert asked[0] in (3, 7)
    assert {3, 7, 18, 19} <= set(asked)
    assert max(asked.count(arm) for arm in asked) <= 25


@each(STILL_BANDITS)
def test_every_arm_comes_once_before_any_comes_twice(bandit_class):
    bandit = make_bandit(bandit_class, goal="best_arm")
    told = torch.arange(12)
    bandit.tell(told, true_rewards(bandit.arms)[told], external=True)
    indices = bandit.ask(size=75)
    assert len(indices) == 75
    for start in range(0, 75, 30):
        some = indices[start : start + 30].tolist()
        assert len(set(some)) == len(some)


def test_an_arm_is_measured_again_where_that_tells_more():
    """Two arms far above the rest, all but equal, under much noise."""
    bandit = with_two_far_above(GPUCB, noise_variance=1.0)
    assert bandit.ask(size=1).item() in (3, 7)
    # Where a measurement is precise, the arms that are new are all there is to learn.
    bandit = with_two_far_above(GPUCB, noise_variance=1e-4, unit=1 / 8)
    assert sorted(bandit.ask(size=2).tolist()) == [18, 19]


# Collecting reward with a learned model -----------------------------------------------


def settled(bandit_class, num_repeats=20, **options):
    """Return a bandit that knows an arm far above all that the others may have.

    Arms tell nothing of each other, and the noise is learned if none is given.
    """
    options = {"noise_variance": None, "lengthscale": 1e-3, "goal": "regret", **options}
    if bandit_class is not UniformRandom:
        options["confidence"] = DeviationWidth(0.1)
    bandit = make_bandit(bandit_class, **options)
    known = torch.arange(6)
    rewards = true_rewards(bandit.arms)[known]
    rewards[3] = 20.0
    bandit.tell(known, rewards, external=True)
    bandit.tell([3] * num_repeats, [20.0] * num_repeats, external=True)
    return bandit


@each([BBKB, GPUCB])
def test_a_bandit_that_has_settled_opens_the_batch_with_a_new_arm(bandit_class):
    """The one of the largest bound among those that were never pulled."""
    bandit = settled(bandit_class)
    indices = bandit.ask(size=5)
    bounds = bandit.confidence_bound()
    bounds[:6] = -torch.inf
    assert indices[0] == bounds.argmax()
    assert len(indices) == 5
    assert (indices[1:] == 3).all()
    # It is pending, so the next ask has a new arm behind it.
    assert (bandit.ask(size=2) == 3).all()


@each([BBKB, GPBUCB])
@pytest.mark.parametrize("rule", [SumRule, ProductRule])
def test_the_rule_says_how_many_follow_a_new_arm(bandit_class, rule):
    """Fifty where any growth of the variances is allowed; one where there is much."""
    bandit = settled(bandit_class, batch_rule=rule(1e12))
    # No arm tells of another: of those that are new it is the lowest.
    assert deepcopy(bandit).ask(max_size=50).tolist() == [6] + 49 * [3]
    bandit.batch_rule = rule(1.5)
    assert bandit.ask().tolist() == [6]


def test_pulls_that_bring_nothing_are_tries():
    """One that stays out keeps no other from its turn, and none fails for ever."""
    for settle in ("keep", "fail"):
        bandit = settled(BKB, num_repeats=0)
        new = []
        while len(new) < 4:
            arm = bandit.ask(size=1).item()
            pull_id = list(bandit.pending)[-1]
            if arm == 3:
                bandit.tell([3], [20.0], pull_ids=[pull_id])
            else:
                new.append(arm)
                if settle == "fail":
                    bandit.fail([arm])
        assert new == [6, 7, 8, 9]
        assert bandit.counts[3] == 1 + 4 * 5


def test_what_was_tried_outlives_the_bandit():
    bandit = settled(BKB, num_repeats=0)
    for _ in range(9):
        arm = bandit.ask(size=1)
        bandit.tell(arm, [20.0]) if arm == 3 else bandit.fail(arm)
    loaded = settled(BKB)
    loaded.load_state_dict(bandit.state_dict())
    after = [bandit.ask(size=1).item() for _ in range(12)]
    assert [loaded.ask(size=1).item() for _ in range(12)] == after


@pytest.mark.parametrize(("bandit_class", "size"), [(BBKB, 1), (GPUCB, 4)])
def test_an_eighth_of_all_pulls_is_the_longest_without_a_new_arm(bandit_class, size):
    bandit = settled(bandit_class, num_repeats=0)
    pulled = list(range(6))
    while len(pulled) < 70:
        indices = bandit.ask(size=size)
        bandit.tell(indices, [20.0 if arm == 3 else 0.0 for arm in indices])
        pulled += indices.tolist()
        longest = max(5, len(pulled) // 8) + size
        assert set(pulled) > set(pulled[:-longest])
    assert pulled.count(3) > 40
    assert len(set(pulled)) > 12


def test_only_arms_that_may_be_pulled_are_new():
    bandit = settled(BBKB)
    available = torch.zeros(30, dtype=torch.bool)
    available[[3, 17, 20]] = True
    bandit.retire_arms([17])
    assert bandit.ask(available=available, size=1).item() == 20
    available[20] = False
    bandit = settled(BBKB)
    bandit.retire_arms([17])
    assert bandit.ask(available=available, size=2).tolist() == [3, 3]


@each([BBKB, GPUCB])
def test_with_kernel_and_noise_given_nothing_new_is_due(bandit_class):
    bandit = settled(bandit_class, num_repeats=60, noise_variance=0.1)
    assert (bandit.ask(size=8) == 3).all()
    assert (settled(bandit_class, num_repeats=60).ask(size=8) == 3).sum() == 7


# Batches of a size --------------------------------------------------------------------

RULES = [SumRule(), ProductRule(), FixedSize(3)]


@each(ALL_BANDITS)
@pytest.mark.parametrize(("goal", "size"), [("regret", 17), ("best_arm", 5)])
def test_a_batch_has_the_size_that_was_asked_for(bandit_class, goal, size):
    if bandit_class in DRIFTING_BANDITS:
        goal = "regret"
    bandit = make_bandit(bandit_class, goal=goal)
    measure = noisy_rewards(bandit.arms)
    for _ in range(3):
        indices = bandit.ask(size=size)
        assert len(indices) == size
        assert len(bandit.pending) == size
        bandit.tell(indices, measure(indices))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@each([BBKB, GPBUCB])
def test_the_batch_begins_as_the_rule_would_have_it(bandit_class, rule):
    # The practical width of BBKB depends on the rule.
    bandit = make_bandit(bandit_class, batch_rule=rule, confidence=1.5)
    told = torch.arange(9)
    bandit.tell(told, noisy_rewards(bandit.arms)(told), external=True)
    other = deepcopy(bandit)
    short, whole = other.ask(), bandit.ask(size=40)
    assert len(short) < 40
    assert whole[: len(short)].tolist() == short.tolist()
    # What follows is chosen with the first part pending.
    rest = other.batch_rule
    other.batch_rule = FixedSize(40 - len(short))
    assert other.ask().tolist() == whole[len(short) :].tolist()
    other.batch_rule = rest


@each(ALL_BANDITS)
def test_fewer_come_only_where_fewer_are_left(bandit_class):
    bandit = make_bandit(bandit_class, max_repeats=1)
    available = torch.zeros(30, dtype=torch.bool)
    available[[3, 8, 20]] = True
    assert sorted(bandit.ask(size=5, available=available).tolist()) == [3, 8, 20]
    assert sorted(bandit.ask(size=99).tolist()) == sorted(set(range(30)) - {3, 8, 20})
    with unchanged(bandit), pytest.raises(InputDataError, match="0 are left"):
        bandit.ask(size=1)


def test_a_size_and_a_cap_exclude_each_other():
    bandit = make_bandit(BBKB)
    with unchanged(bandit), pytest.raises(InputDataError, match="`size` or `max_size`"):
        bandit.ask(size=3, max_size=3)
    for bad in (0, -1, 2.5, True, "3"):
        for name in ("size", "max_size"):
            with unchanged(bandit), pytest.raises(InputDataError, match=f"`{name}`"):
                bandit.ask(**{name: bad})
