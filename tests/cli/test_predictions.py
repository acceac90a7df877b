"""`suggest --predictions`: a table of predictions, and the report's best candidates."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb.__main__ import main
from botorch_bkb.cli.results import told_table
from botorch_bkb.cli.suggest import suggestion_bandit


NUM_ARMS = 50
HEAT = np.random.default_rng(0).uniform(20, 90, NUM_ARMS)
ARMS = pd.DataFrame({"id": [f"{n:03d}" for n in range(NUM_ARMS)], "heat": HEAT})
RESULTS = pd.DataFrame(
    {
        "id": ARMS["id"][::4],
        "reward": 70 - (HEAT[::4] - 60) ** 2 / 40 + np.tile([0, 3.0], 7)[:13],
    }
)
FILES = {"arms.csv": ARMS, "results.csv": RESULTS}


@pytest.fixture
def folder(tmp_path):
    for name, table in FILES.items():
        table.to_csv(name, index=False)
    return tmp_path


def suggest(*words, arms="arms.csv", code=0):
    options = ["--observations=results.csv", "--batch-size=4", *map(str, words)]
    assert main(["suggest", arms, *options]) == code


def read(path="p.csv"):
    return pd.read_csv(path, dtype={"id": str})


def expected(maximize=True, rewards=RESULTS["reward"], **options):
    """The settings, and predictions of the command's bandit, before it asks."""
    arms = torch.from_numpy(HEAT).unsqueeze(-1)
    told = told_table(np.arange(0, NUM_ARMS, 4), rewards)
    bandit = suggestion_bandit(arms, told, seed=0, maximize=maximize)
    generator = torch.Generator().manual_seed(0)
    columns = bandit.predictions(num_draws=4096, generator=generator, **options)
    table = pd.DataFrame(columns).drop(columns="arm")
    table.insert(0, "heat", HEAT)
    return table


def test_all_candidates_are_predicted_in_their_order(folder):
    suggest("--predictions=p.csv", "--threshold=60")
    table = read()
    pd.testing.assert_frame_equal(table[["id"]], ARMS[["id"]], check_dtype=False)
    predicted = table.drop(columns="id")
    pd.testing.assert_frame_equal(predicted, expected(threshold=60.0), rtol=1e-9)
    assert 0.5 < table["probability_best"].sum() < 1 + 1e-9  # at most the draws
    batch = read("next.csv").merge(table, on="id", suffixes=("", "_"))
    for name in ("mean", "std", "low", "high"):
        np.testing.assert_allclose(batch[name], batch[f"{name}_"], rtol=1e-9)


def test_the_top_and_the_direction(folder):
    suggest("--predictions=p.csv", "--top=7", "--minimize", "--threshold=40")
    table = expected(maximize=False, threshold=40.0).assign(id=ARMS["id"])
    best = table.nsmallest(7, "mean").reset_index(drop=True)
    pd.testing.assert_frame_equal(read(), best[read().columns], rtol=1e-9)
    assert "probability_below" in best


def test_a_threshold_of_logarithms_is_one_of_results(folder):
    suggest("--predictions=p.csv", "--log-reward", "--threshold=50")
    table = expected(rewards=np.log10(RESULTS["reward"]), threshold=math.log10(50))
    pd.testing.assert_frame_equal(read().drop(columns="id"), table, rtol=1e-9)
    suggest("--report=r.html", "--log-reward", "--threshold=50")
    assert "|probability reward above 50.0|" in hits(folder)[0]
    page = " ".join((folder / "r.html").read_text().split())
    assert "mean log10(reward) is above the logarithm of this threshold" in page


def test_results_in_the_report_have_the_digits_of_their_means(folder):
    large = RESULTS.assign(reward=12_000 + RESULTS["reward"] / 100)
    large.to_csv("results.csv", index=False)
    suggest("--report=r.html")
    rows = [row for row in hits(folder)[1:] if "|1|" in row]
    shown = [float(row.split("|")[-3]) for row in rows]
    names = [row.split("|")[1] for row in rows]
    told = large.set_index("id")["reward"][names]
    assert len(told)
    np.testing.assert_allclose(shown, told, atol=0.01, rtol=0)


def test_removed_and_numbered_candidates(folder):
    """Those that only results have train the model, and are not in the table."""
    results = RESULTS.merge(ARMS, on="id")
    results.to_csv("results.csv", index=False)
    ARMS[ARMS["id"] != "004"].to_csv("fewer.csv", index=False)
    suggest("--predictions=p.csv", arms="fewer.csv")
    table = expected().assign(id=ARMS["id"]).drop(index=4)
    assert list(read()["id"]) == list(table["id"])
    np.testing.assert_allclose(read()["mean"], table["mean"], rtol=1e-6)
    # Without ids, the settings are there, in the format of the table.
    for name in ("arms.csv", "results.csv"):
        table = pd.read_csv(name).drop(columns="id").assign(lot=1)
        table.to_csv(name, index=False, sep=";", decimal=",")
    suggest("--predictions=p.csv", "--output=n.csv")
    table = pd.read_csv("p.csv", sep=";", decimal=",")
    assert list(table.columns[:3]) == ["candidate", "heat", "lot"]
    np.testing.assert_allclose(table["heat"], HEAT)
    np.testing.assert_allclose(table["mean"], expected()["mean"], rtol=1e-6)


def test_what_failed_or_is_not_available_is_not_the_best(folder, capsys):
    suggest("--predictions=p.csv", "--top=9")
    best = [each for each in read()["id"] if each not in set(RESULTS["id"])][:2]
    left = ARMS[~ARMS["id"].isin(best)]
    left.to_csv("left.csv", index=False)
    suggest("--predictions=p.csv", "--top=3", "--output=left_next.csv", arms="left.csv")
    expected = read().drop(columns="probability_best")
    capsys.readouterr()
    failed = pd.DataFrame({"id": best[:1], "reward": ["failed"]})
    pd.concat([RESULTS, failed]).to_csv("results.csv", index=False)
    ARMS.assign(stock=ARMS["id"] != best[1]).to_csv("arms.csv", index=False)
    words = ["--available=stock", "--output=other.csv"]
    suggest("--predictions=p.csv", "--top=3", *words)
    assert read()["stock"].all()
    found = read().drop(columns=["probability_best", "stock"])
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3)
    assert not re.search(f"one of .*({best[0]}|{best[1]})", capsys.readouterr().out)


def test_predictions_are_empty_without_a_model(folder):
    RESULTS[:3].to_csv("results.csv", index=False)
    suggest("--predictions=p.csv")
    table = read().set_index("id")
    np.testing.assert_allclose(table.pop("heat"), HEAT)
    assert table.shape == (NUM_ARMS, 5)
    assert table.isna().all(axis=None)


def test_combinations_have_a_top(folder):
    heats, bases = [*range(20, 100)], [*"abcdefghijklmnopqrst"]
    grid = pd.MultiIndex.from_product([heats, bases], names=["heat", "base"])
    grid = grid.to_frame(index=False)
    told = grid.iloc[:: len(grid) // 6]
    told = told.assign(reward=told["heat"] / 10 - (told["base"] == "a"))
    told.to_csv("results.csv", index=False)
    lists = [f"--component=heat={','.join(map(str, heats))}"]
    lists += [f"--component=base={','.join(bases)}", "--forbid=heat=99"]
    words = "--observations=results.csv", "--predictions=p.csv", "--report=r.html"
    assert main(["suggest", *lists, *words]) == 0
    table = read()
    assert len(table) == 1000
    assert table["mean"].is_monotonic_decreasing
    assert not table[["heat", "base"]].duplicated().any()
    assert table["heat"].max() == 98
    assert main(["suggest", *lists, *words, "--top=3"]) == 0
    pd.testing.assert_frame_equal(read(), table[:3])
    best = f"{table['heat'][0]} + {table['base'][0]}"
    assert best in hits(folder)[1]


def hits(folder):
    """The cells of the report's best predictions, row by row."""
    page = (folder / "r.html").read_text().partition("The best predictions")[2]
    rows = page.partition("</table>")[0].split("<tr>")[1:]
    return [re.sub(r"<[^>]*>", "|", row) for row in rows]


def test_the_report_has_the_best_candidates(folder):
    suggest("--report=r.html", "--threshold=60")
    table = expected(threshold=60.0).assign(id=ARMS["id"])
    best = table.nlargest(10, "mean").reset_index(drop=True)
    header, *rows = hits(folder)
    for title in ("heat", "probability best", "probability above 60.0", "reward"):
        assert f"|{title}|" in header
    assert len(rows) == 10
    for row, hit in zip(rows, best.to_dict("records"), strict=True):
        cells = [cell.strip() for cell in row.split("|") if cell.strip()]
        assert cells.pop(0) == hit["id"]
        assert float(cells.pop(0)) == pytest.approx(hit["heat"])
        assert float(cells[0]) == pytest.approx(hit["mean"], abs=0.5)
        low, high = map(float, cells[1].split(" to "))
        assert low == pytest.approx(hit["low"], abs=0.5)
        assert high == pytest.approx(hit["high"], abs=0.5)
        assert cells[2] == f"{100 * hit['probability_best']:.0f} %"
        assert cells[3] == f"{100 * hit['probability_above']:.0f} %"
        told = RESULTS["reward"][RESULTS["id"] == hit["id"]]
        assert cells[4] == str(len(told))
        assert [float(c) for c in cells[5:]] == pytest.approx([*told], rel=1e-3)


def test_the_report_has_every_outcome(folder):
    results = RESULTS.rename(columns={"reward": "yield"}).assign(cost=7.25)
    results.to_csv("results.csv", index=False)
    words = "--objective=yield:max:0:100", "--objective=cost:min:0:40"
    suggest(*words, "--report=r.html")
    header, *rows = hits(folder)
    for title in ("score", "yield", "cost"):
        assert f"|{title}|" in header
    measured = [row for row in rows if "|7.250|" in row]
    assert 0 < len(measured) < 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--report=results.csv"], "is one of the tables"),
        (["--predictions=sub.csv"], "--predictions sub.csv is a folder"),
        (["--predictions=p.txt.gzz"], r"a table named \*.csv.*p.txt.gzz"),
        (["--predictions=next.csv"], "is one of the tables"),
        (["--threshold=3"], "need --predictions FILE"),
        (
            ["--predictions=p.csv", "--log-reward", "--threshold=0"],
            "above 0 with --log-reward",
        ),
    ],
)
def test_what_cannot_be_written_is_said_first(words, message, folder, capsys):
    (folder / "sub.csv").mkdir()
    suggest(*words, code=2)
    assert re.search(message, capsys.readouterr().err)
    assert not (folder / "next.csv").exists()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_only_files_of_earlier_runs_are_replaced(kind, folder, capsys, bandits):
    files = {
        "--report": folder / "r.html",
        "--predictions": folder / f"p.{kind}",
        "--output": folder / f"n.{kind}",
    }
    words = [f"{option}={path}" for option, path in files.items()]
    suggest(*words)
    suggest(*words, "--threshold=50")  # by the outputs of the run before
    own = {option: path.read_bytes() for option, path in files.items()}
    read, write = {
        "csv": (pd.read_csv, pd.DataFrame.to_csv),
        "parquet": (pd.read_parquet, pd.DataFrame.to_parquet),
    }[kind]
    others = [("--report", b"<html><title>Mine</title>")]
    others += [("--report", own["--output"]), ("--predictions", own["--output"])]
    others += [("--output", own["--predictions"])]
    for option in ("--predictions", "--output"):
        table = read(files[option])
        for other in (ARMS, table.assign(remark="mine"), table[["id"]]):
            write(other, f"other.{kind}", index=False)
            others.append((option, Path(f"other.{kind}").read_bytes()))
    for option, data in others:
        path = files[option]
        path.write_bytes(data)
        capsys.readouterr()
        suggest(*words, code=2)
        error = capsys.readouterr().err
        assert path.name in error
        assert f"Move that file away, or name another {option}." in error
        assert path.read_bytes() == data
        path.write_bytes(own[option])
    assert len(bandits) == 2  # nothing was computed
    path.write_bytes(others[-1][1])
    path.rename("moved")  # the remedy
    suggest(*words)


def test_a_workbook_with_more_sheets_is_kept(folder, capsys):
    words = ["--predictions=p.xlsx", "--output=n.xlsx"]
    suggest(*words)
    for name in ("p.xlsx", "n.xlsx"):
        with pd.ExcelWriter(name, mode="a") as book:
            RESULTS.to_excel(book, sheet_name="mine", index=False)
        suggest(*words, code=2)
        assert name in capsys.readouterr().err
        assert list(pd.read_excel(name, sheet_name=None)) == ["Sheet1", "mine"]
        (folder / name).unlink()
    suggest(*words)
