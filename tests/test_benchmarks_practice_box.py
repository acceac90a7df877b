import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import practice_box
from benchmarks.practice_box import as_function, FUNCTIONS, Run
from tests.test_benchmarks import options


pytestmark = pytest.mark.once


CHECKPOINTS = (5, 6)


class Walker:
    """Asks for points on a line, and recommends the first."""

    def __init__(self, bounds, generator):
        self.bounds, self.told = bounds, []

    def ask(self, size):
        share = len(self.told) / CHECKPOINTS[-1]
        return torch.lerp(*self.bounds, share).unsqueeze(0)

    def tell(self, points, rewards):
        self.told.append((points, rewards))

    def best_point(self):
        return self.told[0][0].squeeze(0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_optimum_is_the_largest_value(name):
    problem = FUNCTIONS[name]()
    function = as_function(problem)
    best = torch.tensor(problem._optimizers, dtype=torch.double)
    values = function.values(best)
    np.testing.assert_allclose(values, function.optimum, atol=1e-4)
    low, high = function.bounds
    draws = low + (high - low) * torch.rand(2000, len(low), dtype=torch.double)
    values = function.values(draws)
    assert values.max() < function.optimum
    assert values.std().item() == pytest.approx(function.deviation, rel=0.15)


def test_a_run_is_scored_without_noise_and_told_with_it(monkeypatch):
    players = []
    monkeypatch.setitem(
        practice_box.METHODS,
        "walker",
        lambda *args: players.append(Walker(*args)) or players[-1],
    )
    function = as_function(FUNCTIONS["Branin"]())
    told = []
    for noise in (0.0, 0.5, 0.5):
        table = practice_box.play(
            Run("Branin", noise, "walker", 3), function, CHECKPOINTS
        )
        corner = function.values(function.bounds[:1]).item()
        assert table["evaluations"].tolist() == list(CHECKPOINTS)
        np.testing.assert_allclose(table["simple_regret"], function.optimum - corner)
        # Only the walk's first point lies on the border.
        np.testing.assert_allclose(table["border"], [1 / 5, 1 / 6])
        assert (table["rows"] == 2).all()
        told.append(torch.cat([rewards for _, rewards in players[-1].told]))
    assert torch.equal(told[1], told[2])
    noises = (told[1] - told[0]) / (0.5 * function.deviation)
    assert 0.3 < noises.std() < 2


def test_ratios_are_of_medians_over_the_seeds_of_both():
    rows = [
        ("LogEI", 0, 1.0),
        ("LogEI", 1, 2.0),
        ("LogEI", 2, 3.0),
        ("LogEI", 3, 99.0),
        ("BoxBKB", 0, 9.0),
        ("BoxBKB", 1, 0.0),
        ("BoxBKB", 2, 4.0),
        ("BoxThompsonSampling", 0, 1.0),
    ]
    table = pd.DataFrame(rows, columns=["method", "seed", "simple_regret"])
    table = table.assign(
        function="f", noise=0.0, evaluations=60, border=0.5, seconds=1.0
    )
    summary = practice_box.summarize(table).set_index("method")
    assert summary.loc["BoxBKB", "ratio"] == 2
    assert summary.loc["BoxBKB", "seeds"] == 3
    assert summary.loc["LogEI", "simple_regret"] == 2.5
    assert np.isnan(summary.loc[["LogEI", "BoxThompsonSampling"], "ratio"]).all()


def test_a_run_that_is_there_is_not_run_again(tmp_path, capsys):
    args = options(practice_box, "--smoke", "--methods", "LogEI", "BoxThompsonSampling")
    args.output = tmp_path
    practice_box.run(args)
    assert "2 of 2 runs are left" in capsys.readouterr().out
    before = (tmp_path / "rows.csv").read_text()
    practice_box.run(args)
    assert "0 of 2 runs are left" in capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text() == before
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 4
