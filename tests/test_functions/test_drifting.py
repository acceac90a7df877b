"""Problems that move: the paper's model, and tables of time by arm."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from botorch_bkb.test_functions import (
    load_intel_temperature,
    load_traffic_speed,
    MarkovGPProblem,
    TimeSeriesProblem,
)


def markov_problem(rate=0.1, seed=0, dtype=torch.double, num_arms=12):
    arms = torch.linspace(0, 1, num_arms, dtype=dtype).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    stream = torch.Generator().manual_seed(seed)
    return MarkovGPProblem(arms, kernel.to(dtype), rate, 0.5, stream), kernel


def test_the_model_has_the_covariances_of_equations_3_and_4():
    """400 runs of 6 steps: covariances within space and over time."""
    values = []
    for seed in range(400):
        problem, kernel = markov_problem(rate=0.3, seed=seed, num_arms=5)
        steps = [problem.mean_rewards]
        for _ in range(5):
            problem.advance()
            steps.append(problem.mean_rewards)
        values.append(torch.stack(steps).numpy())
    values = np.array(values)  # runs x steps x arms
    K = kernel(problem.arms).to_dense().detach().numpy()
    for gap in (0, 1, 5):
        found = np.einsum("ra,rb->ab", values[:, 0], values[:, gap]) / 400
        expected = 0.7 ** (gap / 2) * K
        assert np.abs(found - expected).max() < 4.5 * math.sqrt(2 / 400)


def test_regret_is_against_the_moving_maximum():
    problem, _ = markov_problem(rate=0.5)
    everything, best = torch.arange(12), set()
    for step in range(1, 30):
        assert problem.time == step
        regret = problem.regret(everything)
        assert regret.min() == 0 == regret[problem.best_arm]
        torch.testing.assert_close(
            regret, problem.mean_rewards.max() - problem.mean_rewards
        )
        best.add(problem.best_arm)
        problem.advance()
    assert len(best) > 2


def test_the_function_does_not_depend_on_the_noise_or_the_pulls():
    first, second = markov_problem()[0], markov_problem()[0]
    stream = torch.Generator().manual_seed(1)
    for _ in range(4):
        first.sample(torch.tensor([1, 1, 2]), stream)
        first.advance()
        second.advance()
    assert torch.equal(first.mean_rewards, second.mean_rewards)
    draws = first.sample(torch.zeros(4000, dtype=torch.long), stream)
    assert (draws.mean() - first.mean_rewards[0]).abs() < 4.5 * 0.5 / math.sqrt(4000)
    assert draws.std().item() == pytest.approx(0.5, rel=0.06)


def test_a_table_is_read_row_by_row():
    problem = TimeSeriesProblem(torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]]))
    assert problem.horizon == 2
    assert problem.arms.flatten().tolist() == [0, 1, 2]
    assert problem.regret(torch.tensor([0, 1])).tolist() == [2, 0]
    assert problem.sample(torch.tensor([2]), torch.Generator()).item() == 2
    problem.advance()
    assert problem.best_arm == 2
    with pytest.raises(InputDataError, match="step after 2, but the table ends"):
        problem.advance()
    assert problem.time == 2


def test_what_does_not_fit_is_refused():
    values = torch.ones(3, 2).double()
    with pytest.raises(BotorchTensorDimensionError, match="`values` of shape T x A"):
        TimeSeriesProblem(values[0])
    values[1, 0] = math.nan
    with pytest.raises(InputDataError, match="row 1, column 0"):
        TimeSeriesProblem(values)


def test_temperatures_are_read_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "intel_temperature.csv.gz"
    pd.DataFrame(
        {"day": [1, 1], "hour": [0.5, 1.0], "3": [20.1, 20.2], "7": [19.0, 18.0]}
    ).to_csv(path, index=False)
    monkeypatch.setenv("BOTORCH_BKB_DATA", str(tmp_path))
    for table in (load_intel_temperature(), load_intel_temperature(path)):
        assert table.columns.tolist() == ["3", "7"]
        assert table.loc[(1, 1.0), "7"] == 18.0
        assert table.index.names == ["day", "hour"]


def test_speeds_are_those_of_stations_that_report(tmp_path):
    speeds, stations = tmp_path / "speeds.csv", tmp_path / "stations.csv"
    times = ["2024-01-01T06:00", "2024-01-01T06:05", "2024-01-02T06:00"]
    pd.DataFrame(
        {"timestamp": times, "11": [60.0, 61.0, 62.0], "12": [50.0, 51.0, 52.0]}
    ).to_csv(speeds, index=False)
    pd.DataFrame({"station": [11, 12], "pct_observed": [74.9, 75.0]}).to_csv(
        stations, index=False
    )
    table = load_traffic_speed(speeds, stations)
    assert table.columns.tolist() == ["12"]
    assert table.index.get_level_values("slot").tolist() == [0, 1, 0]
    assert len(table.groupby(level="day")) == 2
    everyone = load_traffic_speed(speeds, stations, min_observed=0.0)
    assert everyone.columns.tolist() == ["11", "12"]
