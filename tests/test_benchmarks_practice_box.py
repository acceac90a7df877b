import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import practice_box
from benchmarks.practice_box import as_function, FUNCTIONS, Run, write_page
from benchmarks.practice_rows import RowFile
from tests.test_benchmarks import options
from tests.test_figures_page import is_a_rounding, numbers_of


CHECKPOINTS = (5, 6)
# BoTorch has none of five dimensions.
MICHALEWICZ_5 = (2.202906, 1.570796, 1.284992, 1.923058, 1.720470)
DOCS = Path(__file__).parent.parent / "docs"


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
    optimizers = problem._optimizers or [MICHALEWICZ_5]
    best = torch.tensor(optimizers, dtype=torch.double)
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


# --- its table in the docs


def test_the_table_has_medians_at_the_end_and_ratios_to_the_peers(tmp_path):
    rows = [
        (noise, method, seed, evaluations, regret * evaluations)
        for noise in (0.0, 0.05)
        for method, regret in (("LogEI", 1e-5), ("BoxBKB", 2e-5), ("Thompson", 0.1))
        for seed in (0, 1, 2)
        for evaluations in (30, 60)
    ]
    columns = ["noise", "method", "seed", "evaluations", "simple_regret"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.assign(function="Branin", border=0.5, seconds=1.0)
    is_late = (table["method"] == "BoxBKB") & (table["seed"] == 2)
    is_left_out = is_late & (table["noise"] == 0.05)
    write_page(table[~is_left_out].sample(frac=1, random_state=0), tmp_path)
    assert (tmp_path / "practice_box.csv").read_text().splitlines() == [
        "function,noise,LogEI,Thompson,BoxBKB,seeds",
        "Branin,0 %,0.0006,6,0.0012 (2.00),3",
        "Branin,5 %,0.0006,6,0.0012 (2.00),2 to 3",
    ]


def test_without_rows_the_table_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(practice_box, "ROWS", tmp_path / "rows.csv.gz")
    monkeypatch.setattr(practice_box, "PAGE", tmp_path)
    with pytest.raises(SystemExit, match=r"but \S+rows.csv.gz has none"):
        practice_box.run(options(practice_box, "--page"))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The table, made anew from the rows in the repository."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(practice_box, "PAGE", folder)
        args = options(practice_box, "--page")
        args.output = None  # nothing but the page is written
        practice_box.run(args)
    return (folder / "practice_box.csv").read_text()


def test_the_table_is_made_of_the_rows(page):
    assert (DOCS / "practice_box.csv").read_text() == page
    table = RowFile(practice_box.ROWS, Run._fields).table()
    assert not table["commit"].str.contains("dirty|unknown").any()
    assert set(table["function"]) == set(FUNCTIONS)


def test_what_is_said_beside_the_table_are_its_numbers(page):
    cells = [cell for row in csv.reader(page.splitlines()) for cell in row]
    numbers = {float(x) for cell in cells for x in numbers_of(cell)}
    text = (DOCS / "performance.rst").read_text()
    paragraph = r":file: practice_box.csv.+?\*\*Ours\.\*\*(.+?)\n\n"
    (said,) = re.findall(paragraph, text, re.DOTALL)
    said = said.replace("a factor of 1.25", "the factor of the bar")
    for number in numbers_of(said):
        assert is_a_rounding(number, numbers), number
