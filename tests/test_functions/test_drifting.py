"""Problems that move: the paper's model, and tables of time by arm."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_bkb.test_functions import MarkovGPProblem, TimeSeriesProblem
from tests.bandits import rbf


def markov_problem(rate=0.1, seed=0, num_arms=12):
    arms = torch.linspace(0, 1, num_arms, dtype=torch.double).unsqueeze(-1)
    kernel = rbf(0.3)
    stream = torch.Generator().manual_seed(seed)
    return MarkovGPProblem(arms, kernel, rate, 0.5, stream), kernel


def test_the_model_has_the_covariances_of_equations_3_and_4():
    """200 runs of 6 steps: covariances within space and over time."""
    values = []
    for seed in range(200):
        problem, kernel = markov_problem(rate=0.3, seed=seed, num_arms=5)
        steps = [problem.mean_rewards]
        for _ in range(5):
            problem.advance()
            steps.append(problem.mean_rewards)
        values.append(torch.stack(steps).numpy())
    values = np.array(values)  # runs x steps x arms
    K = kernel(problem.arms).to_dense().detach().numpy()
    for gap in (0, 1, 5):
        found = np.einsum("ra,rb->ab", values[:, 0], values[:, gap]) / 200
        expected = 0.7 ** (gap / 2) * K
        assert np.abs(found - expected).max() < 4.5 * math.sqrt(2 / 200)


def test_the_function_does_not_depend_on_the_noise_or_the_pulls():
    first, second = markov_problem()[0], markov_problem()[0]
    stream = torch.Generator().manual_seed(1)
    for _ in range(4):
        first.sample(torch.tensor([1, 1, 2]), stream)
        first.advance()
        second.advance()
    assert torch.equal(first.mean_rewards, second.mean_rewards)


def test_a_table_is_read_row_by_row():
    problem = TimeSeriesProblem(torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]]))
    assert problem.horizon == 2
    assert problem.arms.flatten().tolist() == [0, 1, 2]
    everything = torch.arange(3)
    assert problem.regret(everything).tolist() == [2, 0, 1]
    assert problem.sample(everything, torch.Generator()).tolist() == [1, 3, 2]
    problem.advance()
    assert (problem.time, problem.best_arm) == (2, 2)
    assert problem.regret(everything).tolist() == [1, 2, 0]
    with pytest.raises(InputDataError, match="step after 2, but the table ends"):
        problem.advance()
    assert problem.time == 2


def test_what_does_not_fit_is_refused():
    values = torch.ones(3, 2).double()
    with pytest.raises(BotorchTensorDimensionError, match="`values` of shape T x A"):
        TimeSeriesProblem(values[0])
    with pytest.raises(BotorchTensorDimensionError, match="shape `A x d`"):
        MarkovGPProblem(values[0], rbf(0.3), 0.1, 0.1, torch.Generator())
    values[1, 0] = math.nan
    with pytest.raises(InputDataError, match="row 1, column 0"):
        TimeSeriesProblem(values)
