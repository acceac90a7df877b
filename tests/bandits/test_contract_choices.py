"""The ask/tell contract: first arm, batches, pending pulls, what may be pulled."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb import (
    BBKB,
    EpsilonGreedy,
    GPBandit,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.optim import FixedSize, SumRule
from tests.bandits import (
    ALL_BANDITS,
    DRIFTING_BANDITS,
    EXACT_BANDITS,
    grid_arms,
    identity_bandit,
    LEARNED,
    make_bandit,
    noisy_rewards,
    play,
    random_arms,
    STILL_BANDITS,
    true_rewards,
    UCB_BANDITS,
    unchanged,
)
from tests.bandits.contract import each, each_bandit_and_rule, leverage_at_ask


# The first arm, and ties --------------------------------------------------------------


def test_without_a_generator_every_bandit_has_a_seed_of_its_own():
    arms = random_arms(100)
    firsts = {int(make_bandit(BBKB, arms, generator=None).ask()[0]) for _ in range(10)}
    assert len(firsts) > 1


@each(UCB_BANDITS)
def test_ties_go_to_the_lowest_index(bandit_class):
    """Independent arms of one prior; every pending pull drops its arm's bound."""
    bandit = make_bandit(bandit_class, grid_arms(6), lengthscale=1e-3)
    first = int(bandit.ask()[0])
    rest = [arm for arm in range(6) if arm != first]
    asked = [bandit.ask(1).item() for _ in range(11)]
    assert asked[:5] == rest
    assert asked[5:] == list(range(6))


@each(ALL_BANDITS)
def test_best_arm_ties_go_to_the_lowest_index(bandit_class):
    bandit = identity_bandit(bandit_class)
    assert bandit.best_arm() == 0
    bandit.add_observations([5, 3], [1.0, 1.0])
    assert bandit.best_arm() == 3
    bandit.add_observations([5, 3], [-9.0, -9.0])
    assert bandit.best_arm() == 3
    assert bandit.best_arm(among_pulled=False) == 0


# Batches ------------------------------------------------------------------------------


@each_bandit_and_rule
def test_rules_that_wait_for_rewards_open_with_one_pull(bandit_class, rule):
    bandit = make_bandit(bandit_class, batch_rule=rule, noise_variance=50.0)
    assert len(bandit.ask()) == (1 if rule.opens_with_one_pull else 3)


@each_bandit_and_rule
def test_max_size_caps_a_batch_and_changes_nothing_else(bandit_class, rule):
    """A capped batch is the start of the batch."""
    bandit = make_bandit(bandit_class, batch_rule=rule, noise_variance=3.0)
    play(bandit, 4)
    state = bandit.state_dict()
    whole = bandit.ask().tolist()
    for max_size in (1, 3, 1000):
        bandit.load_state_dict(deepcopy(state))
        assert bandit.ask(max_size).tolist() == whole[:max_size]


@each(STILL_BANDITS)
def test_the_sum_rule_starts_from_pending_pulls_and_the_crossing_one_is_last(
    bandit_class,
):
    bandit = make_bandit(bandit_class, batch_rule=SumRule(), noise_variance=2.0)
    measure, frozen, rng = noisy_rewards(bandit.arms), {}, np.random.default_rng(0)
    sizes = []
    for number in range(25):
        pending = sum(frozen[key] for key in bandit.pending)
        known = set(bandit.pending)
        indices = bandit.ask()
        scores = leverage_at_ask(bandit, indices)
        sums = 1 + pending + np.cumsum(scores)
        if number > 0:
            assert (sums[:-1] <= 2).all()
            assert sums[-1] > 2
        new = [key for key in bandit.pending if key not in known]
        frozen.update(zip(new, scores, strict=True))
        sizes.append(len(indices))
        back = [key for key in bandit.pending if rng.random() < 0.8]
        arms = torch.tensor([bandit.pending[key] for key in back])
        if back:
            bandit.tell(arms, measure(arms), pull_ids=back)
    assert max(sizes) > 3


@each_bandit_and_rule
def test_with_much_pending_an_ask_still_returns_an_arm(bandit_class, rule):
    bandit = make_bandit(bandit_class, batch_rule=rule)
    play(bandit, 2)
    bandit.add_pending([0, 1, 2, 3, 4] * 4)
    expected = rule.size if isinstance(rule, FixedSize) else 1
    assert len(bandit.ask()) == expected


# Pending pulls ------------------------------------------------------------------------


@each(UCB_BANDITS)
def test_asks_without_rewards_are_one_greedy_batch(bandit_class):
    """Ten asks of one arm pick as one ask of ten does."""
    bandit = make_bandit(bandit_class, batch_rule=FixedSize(10))
    play(bandit, 3)
    state = bandit.state_dict()
    batch = bandit.ask().tolist()
    bandit.load_state_dict(state)
    assert [bandit.ask(1).item() for _ in range(10)] == batch


@each([kind for kind in ALL_BANDITS if kind is not GPBandit])
def test_failing_undoes_asking(bandit_class):
    """GPBandit remembers failures, ``tests/bandits/test_observations.py``."""
    bandit = make_bandit(bandit_class)
    play(bandit, 5)
    state = bandit.state_dict()
    expected = bandit.ask()
    bandit.load_state_dict(state)
    chosen = int(expected[0])
    bandit.add_pending([3, 3, chosen])
    bandit.fail([3, chosen, 3])
    assert torch.equal(bandit.ask(), expected)


@each(ALL_BANDITS)
@pytest.mark.parametrize("processed", [False, True])
def test_a_result_that_is_withdrawn_was_never_told(bandit_class, processed):
    bandit, other = (make_bandit(bandit_class, max_repeats=9) for _ in range(2))
    for one in (bandit, other):
        play(one, 4)
        one.ask(1)
    (key,) = bandit.pending
    arm = bandit.pending[key]
    time = {"time": 4.5} if bandit_class in DRIFTING_BANDITS else {}
    bandit.tell([arm], [9.0], **time)
    bandit.add_observations([3, 3], [7.0, 8.0])
    if processed:
        for one in (bandit, other):  # time goes on
            asked = one.ask()
            one.fail(asked, [*one.pending][-len(asked) :])
    else:
        bandit.predict()
    bandit.withdraw([3, 3])
    bandit.withdraw([arm], pull_ids=[key])
    assert bandit.pending == other.pending
    assert torch.equal(bandit.counts, other.counts)
    mine, theirs = bandit.state_dict(), other.state_dict()
    for name in ("told_indices", "told_rewards", "told_ids", "pending"):
        assert mine["observations"][name] == theirs["observations"][name]
    restored = make_bandit(bandit_class, max_repeats=9, seed=7)
    restored.load_state_dict(mine)
    for one in (bandit, restored, other):
        one.tell([arm], [0.5], pull_ids=[key])
    exact = bandit_class in (*EXACT_BANDITS, *DRIFTING_BANDITS)
    for one in (restored, other) if exact else (restored,):
        torch.testing.assert_close(one.predict(), bandit.predict(), rtol=0, atol=1e-8)
    assert torch.equal(bandit.ask(), restored.ask())


@pytest.mark.parametrize("options", [{}, {"forgetting_rate": "learn"}], ids=len)
@pytest.mark.parametrize("num_left", [0, 2])
def test_what_was_learned_of_results_that_are_withdrawn_is_forgotten(options, num_left):
    """Also where too few are left for a fit that would replace the last one."""
    options = {**LEARNED, **options}
    bandit = make_bandit(GPBandit, **options)
    indices = bandit.ask(6)
    bandit.tell(indices, 1e3 + 50 * true_rewards(bandit.arms)[indices])
    bandit.fail(bandit.ask(1))
    bandit.withdraw(indices)
    bandit.fail(indices)
    fresh = make_bandit(GPBandit, **options)
    for one in (bandit, fresh) if num_left else ():
        one.add_observations([3, 9], [0.1, 0.3])
    mine, theirs = bandit.predict(), fresh.predict()
    assert bandit.noise_variance == fresh.noise_variance
    if not bandit.drifts or not num_left:
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8)


@pytest.mark.parametrize("num_told", [2, 5, 12])
def test_results_are_withdrawn_one_by_one_as_together(num_told):
    """Later ones, which the surrogate does not know any more, need a fit as well."""
    together, single = (make_bandit(GPBandit, **LEARNED) for _ in range(2))
    for bandit in (together, single):
        bandit.add_observations(range(num_told), true_rewards(bandit.arms)[:num_told])
        bandit.add_observations([num_told - 1, 20], [80.0, 90.0])
        bandit.fail(bandit.ask(1))
    together.withdraw([0, num_told - 1, 20])
    for arm in (0, num_told - 1, 20):
        single.withdraw([arm])
    for bandit in (together, single):
        assert (bandit.predict()[0] < 10).all()
    torch.testing.assert_close(single.predict(), together.predict(), rtol=0, atol=1e-8)


def test_a_fit_to_a_wrong_result_is_searched_anew():
    """The next search would be due with a quarter more results only."""
    arms = torch.rand(40, 6, generator=torch.Generator().manual_seed(0)).double()
    rewards = (5 * arms).sin().sum(dim=-1)
    wrong = rewards.clone()
    wrong[-1] = -500.0
    corrected, fresh = (make_bandit(GPBandit, arms, **LEARNED) for _ in range(2))
    corrected.add_observations(range(40), wrong)
    corrected.ask(1)
    corrected.withdraw([39])
    corrected.add_observations([39], rewards[39:])
    fresh.add_observations(range(40), rewards)
    for bandit in (corrected, fresh):
        bandit.ask(1)
    torch.testing.assert_close(
        corrected.predict()[0], fresh.predict()[0], rtol=1e-3, atol=1e-3
    )


def test_what_was_not_told_cannot_be_withdrawn():
    bandit = make_bandit(BBKB)
    play(bandit, 3)
    bandit.add_observations([2], [1.0])
    bandit.ask()
    told = bandit.state_dict()["observations"]["told_ids"]
    (waiting, arm), *_ = bandit.pending.items()
    assert told == [0, 1, 2, -1]
    for indices, ids, match in (
        ([arm], [waiting], f"pull {waiting} to be one of arm {arm} whose result was"),
        ([2], [-1], "pull -1 to be one of arm 2"),
        ([2, 2, 2, 2, 2], None, "another told result of arm 2"),
        ([30], None, "between 0 and 29"),
    ):
        with unchanged(bandit), pytest.raises(InputDataError, match=match):
            bandit.withdraw(indices, pull_ids=ids)


# What may be pulled -------------------------------------------------------------------


@each_bandit_and_rule
def test_no_arm_is_asked_more_than_max_repeats_times(bandit_class, rule):
    """Until all is spent, with rewards that come late, fail, or never come."""
    bandit = identity_bandit(
        bandit_class, batch_rule=rule, max_repeats=3, noise_variance=1.0
    )
    rng, failed = np.random.default_rng(0), 0
    for _ in range(100):
        used = bandit.counts + torch.bincount(
            torch.tensor(list(bandit.pending.values()), dtype=torch.long),
            minlength=8,
        )
        assert (used <= 3).all()
        left = 24 - int(used.sum())
        if left == 0:
            break
        bandit.ask(4)
        for key, arm in list(bandit.pending.items()):
            if rng.random() < 0.4:
                bandit.tell([arm], [rng.normal()], pull_ids=[key])
            elif rng.random() < 0.1:
                bandit.fail([arm], pull_ids=[key])
                failed += 1
    assert failed > 0
    assert left == 0
    with unchanged(bandit), pytest.raises(InputDataError, match="an available arm"):
        bandit.ask()


@each([BBKB, TVGPUCB])
def test_an_ask_with_nothing_left_changes_nothing(bandit_class):
    bandit = make_bandit(bandit_class, max_repeats=1)
    nothing = torch.zeros(30, dtype=torch.bool)
    message = "an available arm, but all are unavailable"
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask(available=nothing)
    play(bandit, 4)
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask(available=bandit.counts > 0)
    bandit.retire_arms(range(30))
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask()
    assert 0 <= bandit.best_arm() < 30


# Baselines ----------------------------------------------------------------------------


def test_uniform_random_is_uniform_throughout():
    """Chi-square with 7 degrees of freedom: 29.9 has probability 1e-4."""
    bandit = identity_bandit(UniformRandom, batch_rule=FixedSize(50))
    indices = torch.cat([bandit.ask() for _ in range(8)])
    counts = torch.bincount(indices, minlength=8)
    assert (counts - 50).square().sum() / 50 < 29.9


@pytest.mark.parametrize("uniform_probability", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_uniform_draws(uniform_probability):
    bandit = identity_bandit(
        EpsilonGreedy,
        num_arms=20,
        uniform_probability=uniform_probability,
        batch_rule=FixedSize(400),
    )
    bandit.add_observations([13], [5.0])
    share = (bandit.ask() == 13).double().mean().item()
    expected = 1 - uniform_probability * 19 / 20
    assert share == pytest.approx(expected, abs=0.1)
