"""The ask/tell contract, sentence by sentence, for every bandit."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import Kernel, LinearKernel
from typing_extensions import override

from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPBUCB, GPUCB, TVGPUCB, UniformRandom
from botorch_bkb.acquisition.confidence import ConfidenceSchedule, PracticalBKBWidth
from botorch_bkb.acquisition.norm_doubling import NormDoubling
from botorch_bkb.bandits import inducing
from botorch_bkb.optim import FixedSize, LocalRule, ProductRule, SumRule
from tests.bandits import (
    ALL_BANDITS,
    assert_same,
    DRIFTING_BANDITS,
    EXACT_BANDITS,
    grid_arms,
    identity_bandit,
    make_bandit,
    NOISE,
    noisy_rewards,
    play,
    random_arms,
    rbf,
    SPARSE_BANDITS,
    STILL_BANDITS,
    true_rewards,
    UCB_BANDITS,
    unchanged,
)
from tests.reference import dtc_posterior, exact_posterior


def each(classes):
    return pytest.mark.parametrize(
        "bandit_class", classes, ids=lambda item: item.__name__
    )


both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
both_signs = pytest.mark.parametrize("maximize", [True, False], ids=["max", "min"])
RULES = {
    "fixed": FixedSize(3),
    "sum": SumRule(),
    "projected": SumRule(projected=True),
    "product": ProductRule(),
    "local": LocalRule(),
}
# Rules that need covariances do not serve TVGPUCB, see test_drifting.py.
BANDITS_AND_RULES = [
    (bandit_class, name)
    for bandit_class in ALL_BANDITS
    for name in RULES
    if bandit_class is not TVGPUCB or name not in ("projected", "local")
]
each_bandit_and_rule = pytest.mark.parametrize(
    ("bandit_class", "rule"),
    [(bandit_class, RULES[name]) for bandit_class, name in BANDITS_AND_RULES],
    ids=[f"{bandit_class.__name__}-{name}" for bandit_class, name in BANDITS_AND_RULES],
)
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


class Recorder(ConfidenceSchedule):
    """A constant width that keeps what it is shown."""

    def __init__(self):
        self.states = []

    @override
    def __call__(self, state):
        self.states.append(state)
        return 1.0


def answers(bandit):
    return (
        *bandit.predict(),
        bandit.confidence_bound(),
        bandit.best_arm(),
        bandit.best_arm(among_pulled=False),
    )


def leverage_at_ask(bandit, indices):
    """Return the scores at the start of the batch that was just asked."""
    return (bandit.predict()[1] / bandit.noise_variance)[indices].tolist()


# The first arm, and ties --------------------------------------------------------------


@each(ALL_BANDITS)
@both_dtypes
def test_same_seed_same_arms(bandit_class, dtype):
    arms = random_arms(30, dtype)
    first, second = (play(make_bandit(bandit_class, arms, seed=7), 8) for _ in range(2))
    assert first == second


@each(ALL_BANDITS)
def test_the_first_arm_is_uniform(bandit_class):
    """Chi-square with 3 degrees of freedom: 21.1 has probability 1e-4."""
    arms, counts = grid_arms(4), torch.zeros(4)
    for seed in range(120):
        indices = make_bandit(bandit_class, arms, seed=seed).ask()
        counts[indices[0]] += 1
    assert (counts - 30).square().sum() / 30 < 21.1


@each(ALL_BANDITS)
def test_the_first_arm_is_uniform_among_available_arms(bandit_class):
    arms, counts = grid_arms(6), torch.zeros(6)
    available = torch.tensor([False, True, False, True, True, False])
    for seed in range(60):
        indices = make_bandit(bandit_class, arms, seed=seed).ask(available=available)
        counts[indices[0]] += 1
    assert counts[~available].sum() == 0
    assert (counts[available] - 20).square().sum() / 20 < 18.5


@each(ALL_BANDITS)
def test_no_arm_but_the_first_is_drawn_from_the_global_generator(bandit_class):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    play(make_bandit(bandit_class), 4)
    play(make_bandit(bandit_class, generator=None), 4)
    assert torch.equal(torch.get_rng_state(), before)


@each(ALL_BANDITS)
def test_without_a_generator_every_bandit_has_a_seed_of_its_own(bandit_class):
    arms = random_arms(100)
    firsts = {
        int(make_bandit(bandit_class, arms, generator=None).ask()[0]) for _ in range(10)
    }
    assert len(firsts) > 1


@pytest.mark.exact_bits  # scores of independent arms are the same numbers
@each(UCB_BANDITS)
@both_dtypes
def test_ties_go_to_the_lowest_index(bandit_class, dtype):
    """Independent arms of one prior; every pending pull drops its arm's bound."""
    bandit = make_bandit(bandit_class, grid_arms(6, dtype), lengthscale=1e-3)
    first = int(bandit.ask()[0])
    rest = [arm for arm in range(6) if arm != first]
    asked = [bandit.ask(max_size=1).item() for _ in range(11)]
    assert asked[:5] == rest
    assert asked[5:] == list(range(6))


@pytest.mark.exact_bits  # scores of independent arms are the same numbers
def test_greedy_ties_go_to_the_lowest_index():
    bandit = identity_bandit(EpsilonGreedy, uniform_probability=0.0, confidence=1.0)
    first = bandit.ask()
    bandit.tell(first, [-1.0])
    assert bandit.ask().tolist() == [1 if first == 0 else 0]
    bandit = identity_bandit(EpsilonGreedy, uniform_probability=0.0)
    bandit.tell([2, 5], [1.0, 1.0], external=True)
    assert bandit.ask().tolist() == [2]


@pytest.mark.exact_bits  # scores of independent arms are the same numbers
@each(ALL_BANDITS)
def test_best_arm_ties_go_to_the_lowest_index(bandit_class):
    bandit = identity_bandit(bandit_class)
    assert bandit.best_arm() == 0
    bandit.tell([5, 3], [1.0, 1.0], external=True)
    assert bandit.best_arm() == 3
    bandit.tell([5, 3], [-9.0, -9.0], external=True)
    assert bandit.best_arm() == 3
    assert bandit.best_arm(among_pulled=False) == 0


# Batches ------------------------------------------------------------------------------


@each(ALL_BANDITS)
@both_dtypes
def test_ask_returns_long_indices_of_arms(bandit_class, dtype):
    bandit = make_bandit(bandit_class, random_arms(12, dtype))
    for number in range(5):
        indices = bandit.ask()
        assert indices.dtype == torch.long
        assert indices.dim() == 1
        assert len(indices) >= 1
        assert ((indices >= 0) & (indices < 12)).all()
        assert bandit.num_batches == number + 1
        bandit.tell(indices, true_rewards(bandit.arms)[indices])


@pytest.mark.parametrize("bandit_class", [BKB, GPUCB, EpsilonGreedy, UniformRandom])
def test_by_default_one_arm_at_a_time(bandit_class):
    assert {len(batch) for batch in play(make_bandit(bandit_class), 8)} == {1}


@each(ALL_BANDITS)
def test_a_fixed_size_is_the_size_of_every_batch(bandit_class):
    bandit = make_bandit(bandit_class, batch_rule=FixedSize(5))
    assert [len(batch) for batch in play(bandit, 5)] == [5] * 5


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
        assert bandit.ask(max_size=max_size).tolist() == whole[:max_size]


@each(ALL_BANDITS)
@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_a_bad_max_size_is_an_error_that_changes_nothing(bandit_class, bad):
    bandit = make_bandit(bandit_class)
    for _ in range(2):
        with unchanged(bandit), pytest.raises(InputDataError, match="`max_size`"):
            bandit.ask(max_size=bad)
        play(bandit, 1)
        bandit.tell([3], [1.0], external=True)


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


@each((BBKB, GPBUCB))
def test_the_product_rule_starts_from_pending_pulls(bandit_class):
    bandit = make_bandit(bandit_class, batch_rule=ProductRule(), noise_variance=2.0)
    play(bandit, 6)
    bandit.ask(max_size=2)
    pending = leverage_at_ask(bandit, list(bandit.pending.values()))
    scores = leverage_at_ask(bandit, bandit.ask())
    products = np.prod(1 + np.array(pending)) * np.cumprod(1 + np.array(scores))
    assert (products[:-1] <= 2).all()
    assert products[-1] > 2


@each_bandit_and_rule
def test_with_much_pending_an_ask_still_returns_an_arm(bandit_class, rule):
    bandit = make_bandit(bandit_class, batch_rule=rule)
    play(bandit, 2)
    bandit.add_pending([0, 1, 2, 3, 4] * 4)
    expected = rule.size if isinstance(rule, FixedSize) else 1
    assert len(bandit.ask()) == expected


@each(ALL_BANDITS)
def test_an_ask_with_nothing_told_but_pending(bandit_class):
    bandit = make_bandit(bandit_class)
    asked = [bandit.ask() for _ in range(6)]
    assert list(bandit.pending.values()) == torch.cat(asked).tolist()
    assert bandit.num_pulls == 0
    assert bandit.inducing_indices.numel() == 0


# Pending pulls ------------------------------------------------------------------------


@each(UCB_BANDITS)
def test_pending_pulls_shrink_the_variance_of_later_asks(bandit_class):
    """What is in flight is not asked again while other arms are as good."""
    bandit = make_bandit(bandit_class, random_arms(40), confidence=50.0)
    play(bandit, 5)
    asked = [bandit.ask(max_size=1).item() for _ in range(10)]
    assert len(set(asked)) == 10


@each(UCB_BANDITS)
def test_asks_without_rewards_are_one_greedy_batch(bandit_class):
    """Ten asks of one arm pick as one ask of ten does."""
    bandit = make_bandit(bandit_class, batch_rule=FixedSize(10))
    play(bandit, 3)
    state = bandit.state_dict()
    batch = bandit.ask().tolist()
    bandit.load_state_dict(state)
    assert [bandit.ask(max_size=1).item() for _ in range(10)] == batch


@each(UCB_BANDITS)
@pytest.mark.parametrize(("num_pending", "expected"), [(0, 0), (1, 0), (2, 1)])
def test_pending_pulls_count_with_their_multiplicity(
    bandit_class, num_pending, expected
):
    """Bounds by hand: with n pulls, told and pending, mean + 1 / sqrt(n + lambda).

    Means 0.3 and 0; for n = 1, 2, 3 the bonus is 0.95, 0.69, 0.57.
    """
    bandit = identity_bandit(bandit_class, num_arms=2, confidence=1.0)
    bandit.tell([0, 1], [0.3 * (1 + NOISE), 0.0], external=True)
    bandit.add_pending([0] * num_pending)
    assert bandit.ask(max_size=1).item() == expected


@each(ALL_BANDITS)
def test_failing_undoes_asking(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 5)
    state = bandit.state_dict()
    expected = bandit.ask()
    bandit.load_state_dict(state)
    bandit.add_pending([3, 3, 9])
    bandit.fail([3, 9, 3])
    assert torch.equal(bandit.ask(), expected)


@each(ALL_BANDITS)
@pytest.mark.parametrize("processed", [False, True])
def test_a_result_that_is_withdrawn_was_never_told(bandit_class, processed):
    bandit, other = (make_bandit(bandit_class, max_repeats=9) for _ in range(2))
    for one in (bandit, other):
        play(one, 4)
        one.ask(max_size=1)
    (key,) = bandit.pending
    arm = bandit.pending[key]
    time = {"time": 4.5} if bandit_class in DRIFTING_BANDITS else {}
    bandit.tell([arm], [9.0], **time)
    bandit.tell([3, 3], [7.0, 8.0], external=True)
    if processed:
        bandit.fail(bandit.ask())
    else:
        bandit.predict()
    bandit.withdraw([3, 3])
    bandit.withdraw([arm], pull_ids=[key])
    assert bandit.pending == other.pending
    assert torch.equal(bandit.counts, other.counts)
    mine, theirs = bandit.state_dict(), other.state_dict()
    for name in ("told_indices", "told_rewards", "told_ids", "pending"):
        assert mine["ledger"][name] == theirs["ledger"][name]
    restored = make_bandit(bandit_class, max_repeats=9, seed=7)
    restored.load_state_dict(mine)
    for one in (bandit, restored, other):
        one.tell([arm], [0.5], pull_ids=[key])
    exact = bandit_class in (*EXACT_BANDITS, *DRIFTING_BANDITS)
    for one in (restored, other) if exact else (restored,):
        for got, expected in zip(one.predict(), bandit.predict(), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)
    assert torch.equal(bandit.ask(), restored.ask())


@each(ALL_BANDITS)
def test_states_that_know_no_pulls_of_results_are_fine(bandit_class):
    """Those of versions before there was anything to withdraw."""
    bandit, other = make_bandit(bandit_class), make_bandit(bandit_class, seed=5)
    play(bandit, 3)
    state = deepcopy(bandit.state_dict())
    del state["ledger"]["told_ids"], state["ledger"]["told_asked"]
    other.load_state_dict(state)
    arm = state["ledger"]["told_indices"][-1]
    other.withdraw([arm])
    assert other.pending == {}
    assert other.num_pulls == bandit.num_pulls - 1
    state["ledger"]["told_ids"] = [7] * bandit.num_pulls
    with unchanged(other), pytest.raises(InputDataError, match="told_ids"):
        other.load_state_dict(state)


@each(ALL_BANDITS)
def test_what_was_not_told_cannot_be_withdrawn(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 3)
    bandit.tell([2], [1.0], external=True)
    bandit.ask()
    told = bandit.state_dict()["ledger"]["told_ids"]
    (waiting, arm), *_ = bandit.pending.items()
    assert told == [0, 1, 2, -1]
    for indices, ids, match in (
        ([arm], [waiting], f"pull {waiting} to be one of arm {arm} whose result was"),
        ([2], [-1], "pull -1 to be one of arm 2"),
        ([2, 2, 2, 2, 2], None, "5 told results of arm 2 to withdraw"),
        ([30], None, "between 0 and 29"),
    ):
        with unchanged(bandit), pytest.raises(InputDataError, match=match):
            bandit.withdraw(indices, pull_ids=ids)


@each(ALL_BANDITS)
def test_failed_pulls_teach_nothing(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 3)
    counts = bandit.counts
    indices = bandit.ask()
    before = answers(bandit)
    bandit.fail(indices)
    assert bandit.pending == {}
    assert torch.equal(bandit.counts, counts)
    for value, expected in zip(answers(bandit), before, strict=True):
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected))


@each(ALL_BANDITS)
def test_pulls_that_somebody_else_started_are_pending(bandit_class):
    bandit = make_bandit(bandit_class, max_repeats=2)
    bandit.add_pending([4, 4, 7])
    assert list(bandit.pending.values()) == [4, 4, 7]
    bandit.tell([4], [1.0])
    available = torch.zeros(30, dtype=torch.bool)
    available[[4, 7]] = True
    assert bandit.ask(max_size=1, available=available).tolist() == [7]


# What may be pulled -------------------------------------------------------------------


@each_bandit_and_rule
def test_only_available_arms_are_asked(bandit_class, rule):
    bandit = make_bandit(bandit_class, batch_rule=rule, noise_variance=1.0)
    stream = torch.Generator().manual_seed(0)
    for _ in range(8):
        available = torch.rand(30, generator=stream) < 0.3
        indices = bandit.ask(available=available)
        assert available[indices].all()
        bandit.tell(indices, true_rewards(bandit.arms)[indices])


@each(ALL_BANDITS)
def test_all_arms_available_is_no_restriction(bandit_class):
    everything = torch.ones(30, dtype=torch.bool)
    free = play(make_bandit(bandit_class), 8)
    assert play(make_bandit(bandit_class), 8, available=everything) == free


@each(ALL_BANDITS)
@pytest.mark.parametrize(
    "available",
    [torch.ones(29, dtype=torch.bool), torch.ones(30), torch.ones(30, 1).bool()],
    ids=["short", "float", "column"],
)
def test_an_availability_that_does_not_fit_changes_nothing(bandit_class, available):
    bandit = make_bandit(bandit_class)
    play(bandit, 1)
    with unchanged(bandit), pytest.raises(InputDataError, match="`available`"):
        bandit.ask(available=available)


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
        if left < rule.min_size:
            break
        bandit.ask(max_size=4)
        for key, arm in list(bandit.pending.items()):
            if rng.random() < 0.4:
                bandit.tell([arm], [rng.normal()], pull_ids=[key])
            elif rng.random() < 0.1:
                bandit.fail([arm], pull_ids=[key])
                failed += 1
    assert failed > 0
    assert left < rule.min_size
    with unchanged(bandit), pytest.raises(InputDataError, match="more pulls to be all"):
        bandit.ask()


@each(ALL_BANDITS)
def test_outside_data_count_as_repeats(bandit_class):
    bandit = identity_bandit(bandit_class, num_arms=3, max_repeats=1)
    bandit.tell([0, 0, 2], [5.0, 5.0, 1.0], external=True)
    assert bandit.ask().tolist() == [1]


@each(ALL_BANDITS)
def test_an_arm_that_failed_may_be_asked_again(bandit_class):
    bandit = identity_bandit(bandit_class, num_arms=1, max_repeats=1)
    bandit.fail(bandit.ask())
    assert bandit.ask().tolist() == [0]


@each(ALL_BANDITS)
def test_an_ask_with_nothing_left_changes_nothing(bandit_class):
    bandit = make_bandit(bandit_class, max_repeats=1)
    nothing = torch.zeros(30, dtype=torch.bool)
    message = "at least 1 more pulls.*0 are left"
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask(available=nothing)
    play(bandit, 4)
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask(available=bandit.counts > 0)
    bandit.tell([0], [1.0], external=True)
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask(available=nothing)


@each(ALL_BANDITS)
def test_a_fixed_size_larger_than_what_is_left_changes_nothing(bandit_class):
    bandit = identity_bandit(bandit_class, batch_rule=FixedSize(6), max_repeats=1)
    play(bandit, 1)
    message = "at least 6 more pulls.*2 are left.*smaller batch"
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.ask()
    assert len(bandit.ask(max_size=2)) == 2


@each(ALL_BANDITS)
def test_rules_without_a_size_take_what_is_left(bandit_class):
    bandit = identity_bandit(
        bandit_class, batch_rule=SumRule(), max_repeats=1, noise_variance=1000.0
    )
    play(bandit, 1)
    assert sorted(bandit.ask().tolist() + bandit.counts.nonzero().tolist()[0]) == list(
        range(8)
    )


# Predictions --------------------------------------------------------------------------


@each(ALL_BANDITS)
@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
def test_predictions_draw_nothing_and_change_no_later_ask(bandit_class, learned):
    unknown = {"covar_module": None, "noise_variance": None} if learned else {}
    quiet = make_bandit(bandit_class, confidence=None, **unknown)
    asking = make_bandit(bandit_class, confidence=None, **unknown)
    measure = noisy_rewards(quiet.arms)
    for _ in range(6 if learned else 12):
        with unchanged(asking):
            answers(asking)
        expected, indices = quiet.ask(), asking.ask()
        assert torch.equal(indices, expected)
        with unchanged(asking):
            answers(asking)
        rewards = measure(indices)
        quiet.tell(indices, rewards)
        asking.tell(indices, rewards)


@each(STILL_BANDITS)
def test_predictions_ignore_pending_pulls(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 4)
    bandit.ask()
    before = answers(bandit)
    bandit.add_pending([0, 0, 5, 11])
    bandit.ask()
    for value, expected in zip(answers(bandit), before, strict=True):
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected))


def told(bandit):
    """Return the arms and rewards of all told pulls, from the state."""
    ledger = bandit.state_dict()["ledger"]
    return np.array(ledger["told_indices"]), np.array(ledger["told_rewards"])


@each(EXACT_BANDITS)
@both_signs
def test_exact_bandits_predict_by_the_exact_gp_at_any_time(bandit_class, maximize):
    """Also before the next ask, and with outside data before the first one."""
    bandit = make_bandit(bandit_class, maximize=maximize)
    bandit.tell([3, 9, 3], [0.2, -0.7, 0.4], external=True)
    gram = bandit.covar_module(bandit.arms).to_dense().detach().numpy()
    measure = noisy_rewards(bandit.arms)
    for _ in range(6):
        i, y = told(bandit)
        mean, covariance = exact_posterior(
            gram[np.ix_(i, i)], gram[i], gram, np.full(len(i), NOISE), y
        )
        for _ in range(2):
            got_mean, got_variance = bandit.predict()
            assert np.allclose(got_mean, mean, atol=1e-9)
            assert np.allclose(got_variance, np.diag(covariance), atol=1e-9)
            indices = bandit.ask()
        bandit.tell(indices, measure(indices))


@each(SPARSE_BANDITS)
@both_signs
def test_sparse_bandits_predict_with_the_inducing_arms_of_the_last_ask(
    bandit_class, maximize
):
    bandit = make_bandit(bandit_class, maximize=maximize, oversampling=0.3)
    gram = bandit.covar_module(bandit.arms).to_dense().detach().numpy()
    measure, num_sparse = noisy_rewards(bandit.arms), 0
    play(bandit, 12, measure)
    for _ in range(6):
        indices = bandit.ask()
        num_sparse += bandit.inducing_indices.numel() < (bandit.counts > 0).sum()
        for _ in range(2):
            i, y = told(bandit)
            S, p = bandit.inducing_indices.numpy(), np.unique(i)
            counts = np.bincount(i, minlength=30)[p]
            means = np.bincount(i, y, minlength=30)[p] / counts
            mean, covariance = dtc_posterior(
                gram[np.ix_(S, S)],
                gram[np.ix_(S, p)],
                gram[S],
                gram,
                counts / NOISE,
                means,
            )
            got_mean, got_variance = bandit.predict()
            assert np.allclose(got_mean, mean, atol=1e-7)
            assert np.allclose(got_variance, np.diag(covariance), atol=1e-7)
            if len(bandit.pending):
                bandit.tell(indices, measure(indices))
    assert num_sparse > 0


@each(ALL_BANDITS)
def test_before_any_reward_predictions_are_the_prior(bandit_class):
    mean, variance = make_bandit(bandit_class).predict()
    assert torch.equal(mean, torch.zeros(30, dtype=torch.double))
    assert torch.allclose(variance, torch.ones(30, dtype=torch.double))


@each(STILL_BANDITS)
def test_all_rewards_count_before_the_next_ask(bandit_class):
    bandit = identity_bandit(bandit_class)
    bandit.tell([3], [5.5], external=True)
    bandit.tell([3, 4], [5.5, 1.1], external=True)
    mean, variance = bandit.predict([3, 4, 5])
    assert torch.allclose(mean, torch.tensor([11 / 2.1, 1.0, 0.0]).double())
    expected = torch.tensor([NOISE / 2.1, NOISE / 1.1, 1.0]).double()
    assert torch.allclose(variance, expected)
    assert bandit.best_arm() == 3
    bandit.tell([4] * 9, [9.0] * 9, external=True)
    assert bandit.best_arm() == 4


@each(ALL_BANDITS)
@both_dtypes
def test_answers_have_the_dtype_of_the_arms(bandit_class, dtype):
    bandit = make_bandit(bandit_class, random_arms(30, dtype))
    play(bandit, 4)
    for values in (*bandit.predict(), bandit.confidence_bound()):
        assert values.dtype == dtype
        assert values.shape == (30,)
        assert values.isfinite().all()
    assert isinstance(bandit.best_arm(), int)


@each(ALL_BANDITS)
def test_float32_agrees_with_float64(bandit_class):
    single, double = (
        make_bandit(bandit_class, random_arms(30, dtype))
        for dtype in (torch.float32, torch.float64)
    )
    indices = torch.arange(0, 30, 3)
    for bandit in (single, double):
        bandit.tell(indices, true_rewards(double.arms)[indices], external=True)
    for got, expected in zip(single.predict(), double.predict(), strict=True):
        assert torch.allclose(got.double(), expected, atol=1e-4)


@each(ALL_BANDITS)
def test_some_arms_are_predicted_in_the_order_given(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 4)
    for rows in ([5, 2, 2], torch.tensor([29, 0]), torch.tensor([], dtype=torch.long)):
        index = torch.as_tensor(rows)
        for got, whole in zip(bandit.predict(rows), bandit.predict(), strict=True):
            assert torch.equal(got, whole[index])
        assert torch.equal(
            bandit.confidence_bound(rows), bandit.confidence_bound()[index]
        )


@each(ALL_BANDITS)
@both_signs
@both_dtypes
def test_the_confidence_bound_is_optimistic(bandit_class, maximize, dtype):
    bandit = make_bandit(
        bandit_class, random_arms(30, dtype), maximize=maximize, confidence=1.5
    )
    play(bandit, 4)
    mean, variance = bandit.predict()
    bonus = 1.5 * (variance / NOISE).sqrt()
    expected = mean + bonus if maximize else mean - bonus
    assert torch.allclose(bandit.confidence_bound(), expected)


@pytest.mark.parametrize("bandit_class", [GPUCB, BKB])
def test_the_next_arm_has_the_most_optimistic_bound(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 4)
    for _ in range(4):
        indices = bandit.ask()
        assert indices.item() == bandit.confidence_bound().argmax()
        bandit.tell(indices, true_rewards(bandit.arms)[indices])


@each(ALL_BANDITS)
def test_a_bound_does_not_advance_a_schedule_that_remembers(bandit_class):
    schedule = NormDoubling(PracticalBKBWidth(norm_bound=1e-3, noise_std=1e-3))
    bandit = make_bandit(bandit_class, confidence=schedule)
    bandit.tell([0, 1, 2], [5.0, -5.0, 9.0], external=True)
    first = bandit.confidence_bound()
    assert schedule.num_doublings == 0
    assert torch.equal(bandit.confidence_bound(), first)


@each(ALL_BANDITS)
def test_minimizing_mirrors_maximizing_the_negated_rewards(bandit_class):
    up = make_bandit(bandit_class)
    down = make_bandit(bandit_class, maximize=False)
    measure = noisy_rewards(up.arms)
    for _ in range(10):
        indices = up.ask()
        assert torch.equal(down.ask(), indices)
        rewards = measure(indices)
        up.tell(indices, rewards)
        down.tell(indices, -rewards)
        assert torch.equal(down.predict()[0], -up.predict()[0])
        assert torch.equal(down.predict()[1], up.predict()[1])
        assert torch.equal(down.confidence_bound(), -up.confidence_bound())
        assert down.best_arm() == up.best_arm()
        assert down.best_arm(among_pulled=False) == up.best_arm(among_pulled=False)
    assert torch.equal(down.inducing_indices, up.inducing_indices)


# Inducing arms ------------------------------------------------------------------------


@each(ALL_BANDITS)
def test_resampling_happens_once_in_the_first_ask_after_rewards(bandit_class):
    options = {"uniform_probability": 0.0} if bandit_class is EpsilonGreedy else {}
    bandit = make_bandit(bandit_class, **options)
    play(bandit, 6)
    before = bandit.inducing_indices.clone()
    generator = bandit.generator.get_state()
    bandit.tell([0, 1], [3.0, 1.0], external=True)
    assert torch.equal(bandit.inducing_indices, before)
    assert torch.equal(bandit.generator.get_state(), generator)
    bandit.ask(max_size=1)
    after = bandit.inducing_indices.clone()
    generator = bandit.generator.get_state()
    for _ in range(4):
        bandit.ask(max_size=1)
        assert torch.equal(bandit.inducing_indices, after)
        if bandit_class in UCB_BANDITS:
            assert torch.equal(bandit.generator.get_state(), generator)
    assert not torch.equal(after, before)


@each(ALL_BANDITS)
def test_failures_are_no_reason_to_resample(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 6)
    bandit.ask()
    before = bandit.inducing_indices.clone()
    bandit.fail(list(bandit.pending.values()))
    bandit.ask()
    assert torch.equal(bandit.inducing_indices, before)


@each(SPARSE_BANDITS)
@pytest.mark.parametrize("resampling", ["independent", "coupled"])
@pytest.mark.parametrize("inclusion", ["merged", "per_pull"])
def test_inducing_arms_have_been_pulled(bandit_class, resampling, inclusion):
    bandit = make_bandit(
        bandit_class, resampling=resampling, inclusion=inclusion, oversampling=0.5
    )
    sizes = []
    for _ in range(15):
        bandit.ask(max_size=2)
        bandit.ask(max_size=1)
        inducing_indices = bandit.inducing_indices
        assert (bandit.counts[inducing_indices] > 0).all()
        assert len(inducing_indices.unique()) == len(inducing_indices)
        arms = torch.tensor(list(bandit.pending.values())[:-1])
        bandit.tell(arms, true_rewards(bandit.arms)[arms])
        sizes.append(len(inducing_indices))
    assert 0 < sizes[-1] < (bandit.counts > 0).sum()


@each(EXACT_BANDITS)
def test_all_pulled_arms_are_inducing_in_exact_bandits(bandit_class):
    bandit = make_bandit(bandit_class)
    measure = noisy_rewards(bandit.arms)
    for _ in range(8):
        pulled = bandit.counts.nonzero().squeeze(-1)
        indices = bandit.ask()
        assert torch.equal(bandit.inducing_indices.sort().values, pulled)
        bandit.tell(indices, measure(indices))


@each(STILL_BANDITS)
def test_inducing_arms_that_stay_keep_their_place(bandit_class):
    bandit = make_bandit(bandit_class)
    before = bandit.inducing_indices
    for _ in range(10):
        play(bandit, 1)
        bandit.ask()
        after = bandit.inducing_indices
        staying = before[torch.isin(before, after)]
        assert torch.equal(after[: len(staying)], staying)
        before = after


@each(SPARSE_BANDITS)
def test_coupled_inducing_arms_only_change_with_the_scores(bandit_class):
    """With no more than a repeat of a well-known arm, few numbers cross."""
    bandit = make_bandit(bandit_class, random_arms(60), resampling="coupled")
    indices = torch.arange(60).repeat(4)
    bandit.tell(indices, true_rewards(bandit.arms)[indices], external=True)
    bandit.ask()
    bandit.tell([0], [0.0], external=True)
    bandit.ask()
    before = set(bandit.inducing_indices.tolist())
    bandit.tell([0], [0.0], external=True)
    bandit.ask()
    assert len(before ^ set(bandit.inducing_indices.tolist())) <= 3


@each(SPARSE_BANDITS)
@pytest.mark.parametrize("resampling", ["independent", "coupled"])
def test_much_outside_data_does_not_make_every_arm_inducing(
    bandit_class, resampling, monkeypatch
):
    monkeypatch.setattr(inducing, "BULK_SIZE", 8)
    bandit = make_bandit(
        bandit_class, random_arms(100), lengthscale=1.0, resampling=resampling
    )
    indices = torch.arange(100)
    bandit.tell(indices, true_rewards(bandit.arms)[indices], external=True)
    bandit.ask()
    assert len(bandit.inducing_indices) < 60
    exact = make_bandit(GPUCB, random_arms(100), lengthscale=1.0)
    exact.tell(indices, true_rewards(bandit.arms)[indices], external=True)
    for got, expected in zip(bandit.predict(), exact.predict(), strict=True):
        assert torch.allclose(got, expected, atol=0.01)


# What schedules are shown -------------------------------------------------------------


@each(UCB_BANDITS)
def test_schedules_are_shown_told_pulls_only(bandit_class):
    recorder = Recorder()
    bandit = make_bandit(bandit_class, confidence=recorder, batch_rule=SumRule(1.5))
    frozen: dict[int, float] = {}
    scores_told: list[float] = []
    measure = noisy_rewards(bandit.arms)
    for _ in range(10):
        known = set(bandit.pending)
        bandit.ask(max_size=3)
        new = [key for key in bandit.pending if key not in known]
        arms = [bandit.pending[key] for key in new]
        frozen.update(zip(new, leverage_at_ask(bandit, arms), strict=True))
        state = recorder.states[-1]
        assert state.num_pulls == bandit.num_pulls == len(scores_told)
        assert state.decision_number == len(scores_told) + len(known) + 1
        assert state.num_arms == 30
        assert state.noise_variance == NOISE
        assert state.max_prior_variance == pytest.approx(1.0)
        assert state.ratio_threshold == 1.5
        assert state.log_det_start == 0.0
        assert np.allclose(state.frozen_leverage_scores, scores_told)
        variance = bandit.predict()[1]
        dimension = (bandit.counts * variance / NOISE).sum().item()
        assert state.effective_dimension == pytest.approx(dimension)
        pulled = bandit.counts > 0
        assert torch.equal(state.observations.counts.long(), bandit.counts[pulled])
        assert torch.allclose(
            state.observations.posterior_means, bandit.predict()[0][pulled]
        )
        assert torch.allclose(
            state.observations.leverage_scores, variance[pulled] / NOISE
        )
        back = list(bandit.pending)[:-1]
        arms = torch.tensor([bandit.pending[key] for key in back]).long()
        bandit.tell(arms, measure(arms), pull_ids=back)
        scores_told += [frozen[key] for key in back]
    assert state.num_pulls > 5


@each(EXACT_BANDITS)
@both_signs
def test_schedules_are_shown_the_log_determinant_and_sample_means(
    bandit_class, maximize
):
    recorder = Recorder()
    bandit = make_bandit(bandit_class, confidence=recorder, maximize=maximize)
    play(bandit, 6)
    bandit.ask()
    i, y = told(bandit)
    gram = bandit.covar_module(bandit.arms[i]).to_dense().detach().numpy()
    expected = np.linalg.slogdet(np.eye(len(i)) + gram / NOISE)[1]
    assert recorder.states[-1].log_det == pytest.approx(expected)
    sign = 1 if maximize else -1
    means = [sign * y[i == arm].mean() for arm in np.unique(i)]
    assert np.allclose(recorder.states[-1].observations.sample_means, means)


@each(UCB_BANDITS)
def test_the_uniform_opening_draw_is_told_apart(bandit_class):
    recorder = Recorder()
    bandit = make_bandit(bandit_class, confidence=recorder)
    indices = bandit.ask()
    assert recorder.states[-1].opening_score == 0.0
    bandit.ask(max_size=1)
    assert recorder.states[-1].opening_score == 0.0
    bandit.tell(indices, [1.0])
    bandit.ask(max_size=1)
    assert recorder.states[-1].opening_score == pytest.approx(1 / NOISE)


@each(UCB_BANDITS)
def test_an_opening_draw_that_failed_is_not_taken_out_of_the_sum(bandit_class):
    """The score that schedules take out of the sum is one that is in it."""
    recorder = Recorder()
    bandit = make_bandit(bandit_class, confidence=recorder)
    bandit.fail(bandit.ask())
    bandit.tell([4], [0.0], external=True)
    bandit.ask()
    assert recorder.states[-1].opening_score == 0.0


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
    bandit.tell([13], [5.0], external=True)
    share = (bandit.ask() == 13).double().mean().item()
    expected = 1 - uniform_probability * 19 / 20
    assert share == pytest.approx(expected, abs=0.1)


@both_signs
def test_greedy_takes_the_best_posterior_mean(maximize):
    bandit = make_bandit(EpsilonGreedy, uniform_probability=0.0, maximize=maximize)
    play(bandit, 5)
    for _ in range(3):
        indices = bandit.ask()
        assert indices.item() == bandit.best_arm(among_pulled=False)
        bandit.tell(indices, true_rewards(bandit.arms)[indices])


# Construction -------------------------------------------------------------------------


@each(ALL_BANDITS)
@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("noise_variance", 0.0, InputDataError, "`noise_variance`.*positive.*got 0.0"),
        ("noise_variance", -1.0, InputDataError, "`noise_variance`.*got -1.0"),
        ("noise_variance", math.nan, InputDataError, "`noise_variance`.*got nan"),
        ("noise_variance", math.inf, InputDataError, "`noise_variance`.*got inf"),
        ("max_repeats", 0, InputDataError, "`max_repeats`.*at least 1.*got 0"),
        ("max_repeats", 1.5, InputDataError, "`max_repeats`.*integer.*got 1.5"),
        ("confidence", -1.0, InputDataError, "`width`.*got -1.0"),
        ("confidence", math.nan, InputDataError, "`width`.*got nan"),
        ("confidence", "wide", UnsupportedError, "`confidence`.*got str"),
        ("batch_rule", 96, InputDataError, "`batch_rule`.*FixedSize.*got 96"),
        ("covar_module", "rbf", InputDataError, "`covar_module`.*got 'rbf'"),
    ],
)
def test_options_out_of_range_are_refused(bandit_class, option, value, error, message):
    with pytest.raises(error, match=message):
        make_bandit(bandit_class, **{option: value})


@each(SPARSE_BANDITS)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("oversampling", 0.0),
        ("oversampling", -2.0),
        ("oversampling", math.nan),
        ("resampling", "sometimes"),
        ("inclusion", "unmerged"),
    ],
)
def test_resampling_options_out_of_range_are_refused(bandit_class, option, value):
    with pytest.raises(InputDataError, match=f"`{option}`.*{value}"):
        make_bandit(bandit_class, **{option: value})


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_a_uniform_probability_out_of_range_is_refused(bad):
    with pytest.raises(InputDataError, match=f"`uniform_probability`.*got {bad}"):
        make_bandit(EpsilonGreedy, uniform_probability=bad)


@each(ALL_BANDITS)
@pytest.mark.parametrize(
    ("arms", "error", "message"),
    [
        (torch.empty(0, 2), BotorchTensorDimensionError, r"got \(0, 2\)"),
        (torch.empty(3, 0), BotorchTensorDimensionError, r"got \(3, 0\)"),
        (torch.rand(3), BotorchTensorDimensionError, r"got \(3,\)"),
        (torch.rand(2, 3, 1), BotorchTensorDimensionError, r"got \(2, 3, 1\)"),
        (torch.ones(3, 2).long(), InputDataError, "torch.int64.*double"),
        (torch.ones(3, 2).bool(), InputDataError, "torch.bool"),
        (torch.tensor([[0.0], [1], [math.nan]]), InputDataError, "1 rows.*row 2"),
        (torch.tensor([[0.0], [math.inf], [0]]), InputDataError, "1 rows.*row 1"),
        ([[0.0], [1.0]], InputDataError, "tensor, but got list"),
    ],
)
def test_arms_that_are_no_table_of_numbers_are_refused(
    bandit_class, arms, error, message
):
    with pytest.raises(error, match=f"`arms`.*{message}"):
        make_bandit(bandit_class, arms=arms)


@each(ALL_BANDITS)
def test_one_arm_is_enough(bandit_class):
    bandit = identity_bandit(bandit_class, num_arms=1)
    assert play(bandit, 3, lambda indices: torch.ones(len(indices)))
    assert bandit.best_arm() == 0


@each(ALL_BANDITS)
def test_identical_arms_are_no_trouble(bandit_class):
    """A singular Gram matrix; what one arm says, its twin says too."""
    arms = random_arms(10).repeat(2, 1)
    bandit = make_bandit(bandit_class, arms)
    play(bandit, 12)
    mean, variance = bandit.predict()
    assert torch.allclose(mean[:10], mean[10:], atol=1e-6)
    assert torch.allclose(variance[:10], variance[10:], atol=1e-6)


@each(ALL_BANDITS)
def test_identical_arms_are_one_arm(bandit_class):
    """The same picks as without the copies; of several the lowest index."""
    arms = random_arms(20)
    rewards = true_rewards(arms)
    shuffled = torch.cat([arms, arms[torch.arange(20) % 7], arms[3:4]])
    runs = []
    for table in (arms, shuffled):
        # Some widths are bounds for all arms, and grow with their number.
        bandit = make_bandit(bandit_class, table, confidence=2.0)
        runs.append(play(bandit, 15, lambda i: rewards[i], max_size=1))
        assert bandit.best_arm() < 20
        assert bandit.best_arm(among_pulled=False) < 20
        draws = bandit.maximizer_distribution(50, torch.Generator().manual_seed(0))
        assert draws.indices.max() < 20
    assert runs[0] == runs[1]


@each(ALL_BANDITS)
def test_a_copy_serves_where_the_first_one_cannot(bandit_class):
    arms = random_arms(3)[[0, 1, 2, 1, 0, 1]]
    bandit = make_bandit(bandit_class, arms, max_repeats=1)
    available = torch.tensor([False, False, False, True, True, True])
    batches = play(bandit, 3, max_size=1, available=available)
    picks = [arm for batch in batches for arm in batch]
    assert sorted(picks) == [3, 4, 5]
    assert picks.index(3) < picks.index(5)
    bandit = make_bandit(bandit_class, arms, max_repeats=1, batch_rule=FixedSize(6))
    assert sorted(bandit.ask().tolist()) == list(range(6))


@each(ALL_BANDITS)
def test_an_arm_of_no_variance_does_not_stop_the_run(bandit_class):
    """A linear kernel knows the origin: nothing to learn there, maybe the best arm."""
    arms = torch.cat([torch.zeros(1, 2).double(), random_arms(9)])
    bandit = make_bandit(
        bandit_class,
        arms,
        covar_module=LinearKernel().double(),
        batch_rule=SumRule(),
        noise_variance=1.0,
    )
    indices = torch.arange(10)
    bandit.tell(indices, -10 * arms.sum(dim=-1), external=True)
    assert 1 <= len(bandit.ask(max_size=20)) <= 20
    assert bandit.predict([0])[1].item() == 0.0


@each(ALL_BANDITS)
def test_the_arguments_are_not_changed(bandit_class):
    arms, kernel = random_arms(12), rbf()
    arms_before, kernel_before = arms.clone(), deepcopy(kernel.state_dict())
    bandit = make_bandit(bandit_class, arms, covar_module=kernel)
    play(bandit, 4)
    assert torch.equal(arms, arms_before)
    assert all(parameter.requires_grad for parameter in kernel.parameters())
    for name, value in kernel.state_dict().items():
        assert torch.equal(value, kernel_before[name])


# A kernel that is none ----------------------------------------------------------------


class Function(Kernel):
    """Any function of two points, positive semi-definite or not."""

    is_stationary = False

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x1, x2, diag=False, **params):
        gram = self.function(x1.unsqueeze(-2), x2.unsqueeze(-3))
        return gram.diagonal(dim1=-1, dim2=-2) if diag else gram


def distance(x1, x2):
    return (x1 - x2).norm(dim=-1)


NO_KERNELS = {
    "one minus distance": lambda x1, x2: 1 - 4 * distance(x1, x2),
    "minus distance": lambda x1, x2: -distance(x1, x2),
    "sine": lambda x1, x2: 1 + torch.sin(9 * distance(x1, x2)),
    "negative": lambda x1, x2: -torch.exp(-distance(x1, x2)),
    "not a number": lambda x1, x2: distance(x1, x2) / 0 * 0,
    "far arms only": lambda x1, x2: (
        3 * (distance(x1, x2) > 0.7).to(x1) + (distance(x1, x2) == 0)
    ),
}


@each(ALL_BANDITS)
@pytest.mark.parametrize("function", NO_KERNELS.values(), ids=NO_KERNELS)
def test_a_kernel_that_is_not_psd_is_an_error_that_changes_nothing(
    bandit_class, function
):
    """At construction, if it shows there, or else when its arms have been pulled."""
    arms = random_arms(30)
    with pytest.raises(InputDataError, match="`covar_module`"):  # noqa: PT012
        bandit = make_bandit(bandit_class, arms, covar_module=Function(function))
        bandit.tell(torch.arange(30), true_rewards(arms), external=True)
        before = deepcopy(bandit.state_dict())
        try:
            bandit.ask()
        finally:
            assert_same(bandit.state_dict(), before)


@each(SPARSE_BANDITS)
def test_a_failed_resampling_draws_no_coupled_numbers(bandit_class):
    function = NO_KERNELS["one minus distance"]
    bandit = make_bandit(
        bandit_class, covar_module=Function(function), resampling="coupled"
    )
    bandit.tell(torch.arange(30), true_rewards(bandit.arms), external=True)
    with unchanged(bandit), pytest.raises(InputDataError, match="`covar_module`"):
        bandit.ask()


@each_bandit_and_rule
@pytest.mark.parametrize("function", NO_KERNELS.values(), ids=NO_KERNELS)
def test_a_kernel_that_is_not_psd_never_brings_another_error(
    bandit_class, rule, function
):
    """Arm by arm; as long as no pulled arms show it, nothing is wrong."""
    try:
        bandit = make_bandit(
            bandit_class, covar_module=Function(function), batch_rule=rule
        )
    except InputDataError:
        return
    for _ in range(12):
        before = deepcopy(bandit.state_dict())
        try:
            indices = bandit.ask(max_size=6)
        except InputDataError:
            assert_same(bandit.state_dict(), before)
            return
        bandit.tell(indices, true_rewards(bandit.arms)[indices])
        before = deepcopy(bandit.state_dict())
        try:
            bandit.predict()
        except InputDataError:
            assert_same(bandit.state_dict(), before)
