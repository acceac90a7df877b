"""The pulls: who was asked, what came back, what is still out."""

import math
import sys
import warnings
from copy import deepcopy
from functools import partial

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.exceptions.warnings import InputDataWarning

from botorch_bkb import BoxBandit, GPBandit, TVGPUCB
from tests.bandits import (
    assert_same,
    identity_bandit,
    make_bandit,
    NOISE,
    play,
    random_arms,
    rbf,
    unchanged,
)


REFUSED = (BotorchTensorDimensionError, InputDataError, UnsupportedError)


@pytest.fixture(params=[TVGPUCB, GPBandit], ids=lambda item: item.__name__)
def bandit(request):
    """A bandit that has told, failed and pending pulls; the last are 2, 3 and 4."""
    bandit = identity_bandit(request.param)
    play(bandit, 1)
    bandit.add_pending([1])
    bandit.fail([1])
    bandit.add_pending([2, 4, 2])
    assert bandit.pending == {2: 2, 3: 4, 4: 2}  # ids and arms
    return bandit


def test_telling_or_failing_nothing_is_fine(bandit):
    with unchanged(bandit):
        bandit.tell([], [])
        bandit.tell(torch.tensor([], dtype=torch.long), torch.tensor([]))
        bandit.add_observations([], [])
        bandit.fail([])


def test_a_wrong_pull_id_is_an_error_that_changes_nothing(bandit):
    cases = {
        "pull 3 to be a pending pull of arm 2, but it is one of arm 4": [3],
        "pull 0 to be a pending pull of arm 2, but it is settled": [0],
        "pull 999 .* or was never asked for": [999],
        "hold 1 different ids": [2, 4],
    }
    for message, pull_ids in cases.items():
        with unchanged(bandit), pytest.raises(InputDataError, match=message):
            bandit.tell([2], [1.0], pull_ids=pull_ids)
        with unchanged(bandit), pytest.raises(InputDataError, match=message):
            bandit.fail([2], pull_ids=pull_ids)
    with unchanged(bandit), pytest.raises(InputDataError, match="2 different ids"):
        bandit.tell([2, 2], [1.0, 1.0], pull_ids=[2, 2])


def test_more_rewards_than_pending_pulls_are_an_error_that_changes_nothing(bandit):
    message = "pending pull of arm 2.*`add_observations`"
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.tell([4, 2, 2, 2], [1.0] * 4)
    with (
        unchanged(bandit),
        pytest.raises(InputDataError, match="pending pull of arm 7"),
    ):
        bandit.fail([4, 7])


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([8], "between 0 and 7, but got 8"),
        ([-1], "between 0 and 7, but got -1"),
        ([2.0], "integers, .*but got torch.float64"),
    ],
)
def test_unknown_arms_are_an_error_that_changes_nothing(bandit, indices, message):
    for call in (
        lambda: bandit.tell(indices, [1.0]),
        lambda: bandit.add_observations(indices, [1.0]),
        lambda: bandit.fail(indices),
        lambda: bandit.add_pending(indices),
        lambda: bandit.predict(indices),
        lambda: bandit.confidence_bound(indices),
    ):
        with unchanged(bandit), pytest.raises(InputDataError, match=message):
            call()


@pytest.mark.parametrize(
    ("rewards", "error", "message"),
    [
        ([1.0, math.nan], InputDataError, r"finite `rewards`.*position 1\. Use `fail`"),
        ([1.0], BotorchTensorDimensionError, r"\(2,\) or \(2, 1\).*One output only"),
        (torch.ones(1, 2), BotorchTensorDimensionError, "One output only"),
    ],
)
def test_rewards_that_are_none_change_nothing(bandit, rewards, error, message):
    for call in (bandit.tell, bandit.add_observations):
        with unchanged(bandit), pytest.raises(error, match=message):
            call([2, 4], rewards)


def test_any_form_of_rewards_and_ids_is_taken(bandit):
    """A column, a gradient, whole numbers, single numbers, and ids in a tensor."""
    before = bandit.num_pulls
    bandit.tell([2], torch.ones(1, 1, requires_grad=True))
    bandit.tell(torch.tensor([4]), torch.tensor([3]), pull_ids=torch.tensor([3]))
    bandit.tell(2, 1.0)
    assert bandit.num_pulls == before + 3
    assert bandit.predict()[0].requires_grad is False


# Errors and interrupts leave everything as it was, or as it is to be ------------------


def box_bandit():
    generator = torch.Generator().manual_seed(0)
    bandit = BoxBandit(torch.tensor([[0.0], [1.0]]), rbf(), NOISE, generator=generator)
    bandit.add_observations([[0.2], [0.4]], [1.0, 2.0])
    bandit._observations.ask_points(torch.tensor([[0.6], [0.8]]).double())
    return bandit


def arm_bandit(bandit_class):
    bandit = make_bandit(bandit_class)
    bandit.add_observations([0, 1, 1], [0.3, 0.5, 0.4])
    bandit.ask()
    bandit.tell([bandit.pending[0]], [0.2])
    bandit.add_pending([3, 4, 4])
    bandit.retire_arms([7])
    return bandit


CHANGES = {
    "tell": lambda bandit: bandit.tell([4, 3], [0.7, 0.8]),
    "add": lambda bandit: bandit.add_observations([9, 1], [0.7, 0.8]),
    "fail": lambda bandit: bandit.fail([4]),
    "pending": lambda bandit: bandit.add_pending([6, 6]),
    "withdraw": lambda bandit: bandit.withdraw([1]),
    "counts": lambda bandit: bandit.counts,
    "retire": lambda bandit: bandit.retire_arms([4]),
    "add arms": lambda bandit: bandit.add_arms(
        torch.cat([bandit.arms[7:8], torch.full((1, 2), 0.5).double()])
    ),
}
BOX_CHANGES = {
    "tell": lambda bandit: bandit.tell([[0.8], [0.6]], [0.7, 0.8]),
    "add": lambda bandit: bandit.add_observations([[0.1], [0.2]], [0.7, 0.8]),
    "fail": lambda bandit: bandit.fail([[0.6]]),
}
RECORDED = {
    **{f"BoxBandit, {name}": (box_bandit, BOX_CHANGES[name]) for name in BOX_CHANGES},
    **{
        f"{each.__name__}, {name}": (partial(arm_bandit, each), CHANGES[name])
        for each in (TVGPUCB, GPBandit)
        for name in CHANGES
    },
}


class Interrupts:
    """Raises at one of the lines of the package that records results."""

    def __init__(self, line):
        self.left = line

    def __call__(self, frame, event, arg):
        if "botorch_bkb/bandits/" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        self.left -= event == "line"
        if self.left == 0:
            raise KeyboardInterrupt
        return self


def answers_of(bandit):
    at = torch.tensor([[0.3], [0.7]]) if isinstance(bandit, BoxBandit) else [1, 9]
    totals = [column.tolist() for column in bandit._observations.totals()]
    return bandit.state_dict(), totals, bandit.predict(at)[0].tolist()


@pytest.mark.parametrize(("make", "change"), RECORDED.values(), ids=RECORDED)
def test_an_interrupt_at_any_line_changes_all_or_nothing(make, change):
    start, done = make(), make()
    change(done)
    before, after = (answers_of(bandit) for bandit in (start, done))
    line, is_interrupted, num_before = 0, True, 0
    while is_interrupted:
        line, bandit = line + 1, deepcopy(start)
        earlier, interrupts = sys.gettrace(), Interrupts(line)
        sys.settrace(interrupts)
        try:
            change(bandit)
        except KeyboardInterrupt:
            sys.settrace(earlier)
        else:
            is_interrupted = False
        finally:
            sys.settrace(earlier)
        found = answers_of(bandit)
        is_before = answers_match(found, before)
        assert is_before or answers_match(found, after)
        num_before += is_before
    assert answers_match(found, after)
    assert num_before > 3


def answers_match(left, right):
    try:
        assert_same(left, right)
    except AssertionError:
        return False
    return True


def test_a_refused_result_of_a_box_leaves_no_point():
    bandit = box_bandit()
    for call, match in (
        (lambda: bandit.tell([[0.3]], [1.0]), r"pending pull of \[0.3"),
        (lambda: bandit.tell([[0.6]], [math.nan]), "finite `rewards`"),
        (lambda: bandit.add_observations([[0.3]], [math.nan]), "finite `rewards`"),
        (lambda: bandit.add_observations([[0.3]], [1.0, 2.0]), "one number per index"),
        (lambda: bandit.fail([[0.3]]), r"pending pull of \[0.3"),
        (lambda: bandit.tell([[0.3]], [1.0], pull_ids=[0]), "but it is one of"),
        (lambda: bandit.tell([[0.3]], [1.0], noise_variance=1.0), "same noise"),
    ):
        with unchanged(bandit), pytest.raises(REFUSED, match=match):
            call()
    assert bandit.state_dict()["observations"]["points"].flatten().tolist() == (
        pytest.approx([0.2, 0.4, 0.6, 0.8])
    )


# Failures -----------------------------------------------------------------------------


def started(num_arms=12):
    """Return a bandit that was told three rewards."""
    bandit = GPBandit(random_arms(num_arms), seed=0)
    bandit.add_observations([0, 1, 2], [0.1, 0.3, 0.2])
    return bandit


def test_a_failed_arm_is_left_out_once_and_retired_after_the_second_failure():
    bandit = started()
    first = bandit.ask()
    bandit.fail(first)
    second = bandit.ask()
    assert second != first
    bandit.fail(second)
    assert not bandit.is_retired.any()
    again = bandit.ask(available=torch.arange(12) == first)
    assert again == first  # it was left out once, and no longer
    with pytest.warns(InputDataWarning, match="have failed twice"):
        bandit.fail(again)
    assert bandit.is_retired.nonzero().item() == first
    bandit.add_arms(bandit.arms[first])
    assert not bandit.is_retired.any()


def test_a_failure_that_is_interrupted_changes_nothing():
    bandit = started()
    bandit.add_pending([3, 3])
    bandit.fail([3])
    with unchanged(bandit), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputDataWarning, match="failed twice"):
            bandit.fail([3])
    with pytest.warns(InputDataWarning, match="failed twice"):
        bandit.fail([3])
    assert bandit.is_retired[3]
    assert not bandit.pending


def test_the_only_arm_left_is_asked_for_again_and_a_reward_clears_its_failures():
    bandit = started()
    only = torch.arange(12) == 7
    for _ in range(3):
        bandit.fail(bandit.ask(available=only))
        picks = bandit.ask(available=only)
        assert picks == 7
        bandit.tell(picks, [0.0])
    assert not bandit.is_retired.any()


def test_failures_are_saved():
    bandit, other = started(), started()
    bandit.fail(bandit.ask())
    other.load_state_dict(bandit.state_dict())
    assert torch.equal(other.ask(3), bandit.ask(3))
