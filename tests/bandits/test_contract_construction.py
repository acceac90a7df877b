"""The ask/tell contract: what makes a bandit, and kernels that are none."""

import math
from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import Kernel

from botorch_bkb import BBKB, GPBandit, GPUCB, TVGPUCB
from botorch_bkb.optim import FixedSize
from tests.bandits import (
    ALL_BANDITS,
    assert_same,
    identity_bandit,
    LEARNING_BANDITS,
    make_bandit,
    PAPERS_BANDITS,
    play,
    random_arms,
    rbf,
    true_rewards,
)
from tests.bandits.contract import each


# Construction -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("noise_variance", 0.0, InputDataError, "`noise_variance`.*positive.*got 0.0"),
        ("noise_variance", math.nan, InputDataError, "`noise_variance`.*got nan"),
        ("max_repeats", 1.5, InputDataError, "`max_repeats`.*integer.*got 1.5"),
        ("confidence", -1.0, InputDataError, "`num_deviations`.*got -1.0"),
        ("confidence", "wide", UnsupportedError, "`confidence`.*got str"),
        ("batch_rule", 96, InputDataError, "`batch_rule`.*FixedSize.*got 96"),
        ("covar_module", "rbf", InputDataError, "`covar_module`.*got 'rbf'"),
        ("oversampling", 0.0, InputDataError, "`oversampling`.*got 0.0"),
        ("resampling", "often", InputDataError, "`resampling`.*got 'often'"),
        ("max_inducing", 0, InputDataError, "`max_inducing`.*at least 1"),
        ("inclusion", "unmerged", InputDataError, "`inclusion`.*got 'unmerged'"),
    ],
)
def test_options_out_of_range_are_refused(option, value, error, message):
    with pytest.raises(error, match=message):
        make_bandit(BBKB, **{option: value})


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
        ([[0.0], [1.0]], InputDataError, "dense tensor.*got list"),
    ],
)
def test_arms_that_are_no_table_of_numbers_are_refused(arms, error, message):
    with pytest.raises(error, match=f"`arms`.*{message}"):
        make_bandit(BBKB, arms=arms)


@each([one for one in PAPERS_BANDITS if one not in LEARNING_BANDITS])
@pytest.mark.parametrize("missing", ["covar_module", "noise_variance"])
def test_the_algorithm_of_a_paper_that_misses_something_names_gpbandit(
    bandit_class, missing
):
    message = rf"`{missing}`.*{bandit_class.__name__} is the algorithm .*`GPBandit"
    with pytest.raises(InputDataError, match=message):
        make_bandit(bandit_class, **{missing: None})
    if bandit_class is TVGPUCB:
        with pytest.raises(InputDataError, match=r"`forgetting_rate`.*`GPBandit"):
            make_bandit(TVGPUCB, forgetting_rate=None)


@each(ALL_BANDITS)
def test_one_arm_is_enough(bandit_class):
    bandit = identity_bandit(bandit_class, num_arms=1)
    assert play(bandit, 3, lambda indices: torch.ones(len(indices)))
    assert bandit.best_arm() == 0


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
        runs.append(play(bandit, 15, lambda i: rewards[i], 1))
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
    batches = play(bandit, 3, size=1, available=available)
    picks = [arm for batch in batches for arm in batch]
    assert sorted(picks) == [3, 4, 5]
    assert picks.index(3) < picks.index(5)
    rule = {} if bandit_class is GPBandit else {"batch_rule": FixedSize(6)}
    bandit = make_bandit(bandit_class, arms, max_repeats=1, **rule)
    assert sorted(bandit.ask(6).tolist()) == list(range(6))


@each([BBKB, GPUCB, TVGPUCB])
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
    "negative": lambda x1, x2: -torch.exp(-distance(x1, x2)),
    "zero": lambda x1, x2: 0 * distance(x1, x2),
    "not a number": lambda x1, x2: distance(x1, x2) / 0 * 0,
    "not a number off the diagonal": lambda x1, x2: torch.where(
        distance(x1, x2) > 0, torch.nan, 1.0
    ).to(x1),
    "far arms only": lambda x1, x2: (
        3 * (distance(x1, x2) > 0.7).to(x1) + (distance(x1, x2) == 0)
    ),
}


@each([BBKB, GPUCB, TVGPUCB])
@pytest.mark.parametrize("function", NO_KERNELS.values(), ids=NO_KERNELS)
def test_a_kernel_that_is_not_psd_is_an_error_that_changes_nothing(
    bandit_class, function
):
    """At construction, if it shows there, or else when its arms have been pulled."""
    arms = random_arms(30)
    with pytest.raises(InputDataError, match="`covar_module`"):  # noqa: PT012
        bandit = make_bandit(bandit_class, arms, covar_module=Function(function))
        bandit.add_observations(torch.arange(30), true_rewards(arms))
        before = deepcopy(bandit.state_dict())
        try:
            bandit.ask()
        finally:
            assert_same(bandit.state_dict(), before)


def test_a_policy_is_an_object():
    with pytest.raises(InputDataError, match=r"`policy` to be a Policy, .*'thompson'"):
        GPBandit(random_arms(5), policy="thompson")
