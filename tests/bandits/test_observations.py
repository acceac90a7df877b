"""The pulls: who was asked, what came back, what is still out."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_bkb import GPBandit, GPUCB, TVGPUCB
from tests.bandits import identity_bandit, NOISE, play, unchanged


def test_results_settle_the_oldest_pull_of_their_arm_or_the_one_named():
    bandit = identity_bandit(GPUCB)
    bandit.add_pending([3, 1, 3, 3, 0])
    bandit.tell([3, 1], [1.0, 2.0])
    assert bandit.pending == {2: 3, 3: 3, 4: 0}
    bandit.tell([3], [3.0], pull_ids=[3])
    bandit.fail([3])
    assert bandit.pending == {4: 0}
    # Results that were never asked for settle no pending pull.
    bandit.add_observations([0, 0, 2], [4.0, 5.0, 6.0])
    assert bandit.pending == {4: 0}
    assert bandit.counts.tolist() == [2, 1, 1, 2, 0, 0, 0, 0]
    bandit.ask()
    means = [4.5, 2.0, 6.0, 2.0]
    numbers = [2, 1, 1, 2]
    expected = [m / (1 + NOISE / n) for m, n in zip(means, numbers, strict=True)]
    assert bandit.predict(range(4))[0].tolist() == pytest.approx(expected)


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
