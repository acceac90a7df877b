"""Arms whose pulls fail: bandits that learn remember them."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning

from botorch_bkb import BBKB, GPBandit
from tests.bandits import make_bandit, noisy_rewards, random_arms, unchanged


def started(num_arms=12):
    """Return a bandit that was told three rewards."""
    bandit = GPBandit(random_arms(num_arms), generator=torch.Generator().manual_seed(0))
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


def test_failures_are_saved_and_published_algorithms_have_no_memory_of_them():
    bandit, other = started(), started()
    bandit.fail(bandit.ask())
    other.load_state_dict(bandit.state_dict())
    assert torch.equal(other.ask(3), bandit.ask(3))
    published = make_bandit(BBKB, max_repeats=None)
    measure = noisy_rewards(published.arms)
    picks = published.ask()
    published.tell(picks, measure(picks))
    picks = published.ask(1)
    published.fail(picks)
    assert torch.equal(published.ask(1), picks)


def test_a_table_of_numbers_is_arms():
    arms = random_arms(12)
    table = pd.DataFrame(arms.numpy(), index=np.arange(12) + 100, columns=["a", "b"])
    for rows in (table, arms.numpy()):
        assert torch.equal(GPBandit(rows).arms, arms)
    assert (
        GPBandit(pd.DataFrame({"t": [20, 40], "u": [1, 2]})).arms.dtype == torch.double
    )
    with pytest.raises(InputDataError, match=r"to hold numbers, .*A1.*get_dummies"):
        GPBandit(table.assign(well="A1"))
    with pytest.raises(
        InputDataError, match="`add_arms\\(rows\\)` returns those of rows"
    ):
        started().predict(arms)
