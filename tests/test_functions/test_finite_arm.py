import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.test_functions.synthetic import Branin, Hartmann
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.test_functions import FiniteArmProblem
from tests.helpers import seeded


def make_problem(mean_rewards, noise_std=0.0, maximize=True):
    rewards = torch.tensor(mean_rewards, dtype=torch.float64)
    arms = torch.arange(len(rewards), dtype=torch.float64).unsqueeze(-1)
    return FiniteArmProblem(arms, rewards, noise_std, maximize)


@pytest.mark.parametrize(
    ("maximize", "best_arm", "best_value", "regret"),
    [(True, 1, 5.0, [6.0, 0.0, 0.0, 2.0]), (False, 0, -1.0, [0.0, 6.0, 6.0, 4.0])],
)
def test_regret_is_the_distance_from_the_best_arm(
    maximize, best_arm, best_value, regret
):
    problem = make_problem([-1.0, 5.0, 5.0, 3.0], maximize=maximize)
    assert problem.num_arms == 4
    assert problem.best_arm == best_arm
    assert problem.best_value == best_value
    assert problem.regret(torch.arange(4)).tolist() == regret
    assert problem.regret(torch.tensor([[3, 0]])).tolist() == [[regret[3], regret[0]]]


def test_rewards_have_the_stated_mean_and_noise():
    problem = make_problem([2.0, -3.0], noise_std=0.5)
    indices = torch.tensor([0, 1]).repeat(20_000)
    rewards = problem.sample(indices, seeded()).view(-1, 2)
    assert rewards.mean(dim=0).tolist() == pytest.approx([2.0, -3.0], abs=0.02)
    assert rewards.std(dim=0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)


@settings(max_examples=30)
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_uniform_regrets_are_averages_over_all_sequences(rewards, num_pulls, maximize):
    problem = make_problem([float(r) for r in rewards], maximize=maximize)
    best = max(rewards) if maximize else min(rewards)
    regrets = [abs(best - r) for r in rewards]
    sequences = list(itertools.product(regrets, repeat=num_pulls))
    simple = np.mean([min(sequence) for sequence in sequences])
    cumulative = np.mean([sum(sequence) for sequence in sequences])
    assert problem.uniform_simple_regret(num_pulls) == pytest.approx(simple)
    assert problem.uniform_cumulative_regret(num_pulls) == pytest.approx(cumulative)


@pytest.mark.parametrize(
    ("function", "sign"), [(Branin(noise_std=10.0), -1), (Hartmann(negate=True), 1)]
)
def test_arms_of_a_test_function_fill_the_unit_cube_whatever_its_bounds(function, sign):
    """A function that BoTorch minimizes is negated."""
    problem = FiniteArmProblem.from_test_function(
        function, 256, noise_std=0.0, generator=seeded()
    )
    assert problem.arms.min() >= 0
    assert problem.arms.max() <= 1
    assert problem.arms.mean(dim=0).tolist() == pytest.approx(
        [0.5] * function.dim, abs=0.01
    )
    lower, upper = function.bounds
    values = function(lower + (upper - lower) * problem.arms, noise=False)
    assert torch.allclose(problem.mean_rewards, sign * values)


def test_a_table_gives_standardized_features_and_its_own_rewards():
    table = pd.DataFrame({"a": [1, 2, 3], "gain": [10.0, 30.0, 20.0], "b": [5, 5, 8]})
    problem = FiniteArmProblem.from_table(table, "gain", noise_std=0.1)
    expected = np.array([[-1.5, -0.5], [0.0, -0.5], [1.5, 1.0]]) * np.sqrt([2 / 3, 2])
    np.testing.assert_allclose(problem.arms.numpy(), expected)
    assert problem.mean_rewards.tolist() == [10.0, 30.0, 20.0]
    assert problem.best_arm == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1, 2]}, "one of the columns"),
        ({"gain": [1, 2]}, "2 rows and 0 features"),
        ({"a": [], "gain": []}, "got 0 rows"),
        ({"a": ["x", "y"], "gain": [1, 2]}, "'a' to be numeric"),
        ({"a": [1.0, None], "gain": [1, 2]}, "'a' to be finite"),
        ({"a": [0.1] * 3, "gain": [1, 2, 3]}, "'a' to vary"),
        ({"a": [1, 2], "gain": ["x", "y"]}, "'gain' to be numeric"),
    ],
)
def test_a_bad_table_is_refused(table, message):
    with pytest.raises(InputDataError, match=message):
        FiniteArmProblem.from_table(pd.DataFrame(table), "gain", noise_std=0.1)


def test_bad_values_are_refused():
    with pytest.raises(InputDataError, match="at least one arm"):
        FiniteArmProblem(torch.zeros(0, 2), torch.zeros(0), 0.1)
    with pytest.raises(InputDataError, match="finite"):
        make_problem([0.0, float("nan")])
    with pytest.raises(InputDataError, match=r"`noise_std`.*-1"):
        make_problem([0.0], noise_std=-1.0)
