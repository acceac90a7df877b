import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.warnings import BotorchWarning

from botorch_bkb.__main__ import main
from tests.cli.tables import next_batch


NUM_ARMS = 40
RNG = np.random.default_rng(0)
ARMS = pd.DataFrame(
    {
        "id": [f"{number:03d}" for number in range(NUM_ARMS)],
        "temperature": RNG.uniform(20, 90, size=NUM_ARMS),
        "solvent": RNG.choice(["water", "ethanol"], size=NUM_ARMS),
    }
)


def yields(arms):
    """Mean yields in percent, best at 60 degrees in water."""
    temperature = arms["temperature"]
    return 80 - 0.05 * (temperature - 60) ** 2 - 10 * (arms["solvent"] == "ethanol")


def measure(rows):
    noise = np.random.default_rng(0).normal(scale=0.5, size=len(rows))
    table = ARMS.iloc[rows]
    return pd.DataFrame({"id": table["id"], "reward": yields(table) + noise})


def suggest(results=None, *words, arms=ARMS, size=6):
    return next_batch(arms, results, *words, size=size)


@pytest.fixture
def failed(capsys):
    """Return a function that runs a command that is refused, and returns why."""

    def run(*words, arms=ARMS, given=("arms.csv",)):
        arms.to_csv("arms.csv", index=False)
        assert main(["suggest", *given, *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return run


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (["--id", "mean"], "--id names the column 'mean', which the batch has of its"),
        (["--reward", "id"], ", as --id does. Rename it"),
        (["--reward", "yield", "--noise-std", "yield"], ", as --reward, --maximize or"),
        (["--noise-std", "g", "--group", "g"], ", as --noise-std does."),
    ],
)
def test_two_options_do_not_name_one_column(words, owner, failed):
    assert owner in failed(*words)


def test_candidates_are_not_guessed_from_the_last_results(failed):
    said = failed("--observations", "a.csv", "--observations", "b.csv", given=())
    assert "The name of the table stands best right after suggest" in said


@pytest.mark.parametrize(
    ("kind", "has_left"), [("csv", True), ("parquet", False), ("xlsx", True)]
)
def test_columns_of_candidates_are_as_in_their_table(kind, has_left):
    """Whole numbers stay whole, of whatever size, where others have no such column."""
    lots = [9007199254740993 + 2 * row if kind != "xlsx" else row for row in range(40)]
    table = ARMS.assign(lot=lots, stock=[1 + row % 3 for row in range(NUM_ARMS)])
    results = measure([0, 7, 20, 33]).merge(ARMS, on="id")
    if has_left:
        table = table[table["id"] != "007"]
    path = f"table.{kind}"
    write = {"csv": table.to_csv, "xlsx": table.to_excel, "parquet": table.to_parquet}
    write[kind](path, index=False)
    results.to_csv("results.csv", index=False)
    words = ["--observations", "results.csv", "--with-columns"]
    words += ["--drop", "lot", "--available", "stock", "--batch-size", "6"]
    assert main(["suggest", path, *words]) == 0
    found = pd.read_csv("next.csv", dtype=str)
    expected = table.astype(str).set_index("id").loc[found["id"]]
    for name in ("lot", "stock", "solvent"):
        assert found[name].tolist() == expected[name].tolist()


def test_the_first_batch_is_spread_out(capsys):
    batch = suggest()
    predicted = ["repeats", "mean", "std", "low", "high", "why"]
    assert list(batch) == [*ARMS, *predicted, "reward"]
    assert batch["repeats"].sum() == 6
    assert len(batch) == 6
    assert set(batch["id"]) <= set(ARMS["id"])
    assert batch[["mean", "std", "low", "high"]].isna().all(axis=None)
    assert (batch["why"] == "spread out: no model yet").all()
    picked = ARMS.set_index("id").loc[batch["id"]]
    assert set(picked["solvent"]) == {"water", "ethanol"}
    assert np.ptp(picked["temperature"]) > 0.6 * np.ptp(ARMS["temperature"])
    assert "0 measurements in all, 0 in flight" in capsys.readouterr().out


def test_a_table_without_a_result_is_a_start():
    results = pd.DataFrame({"id": ["000", "001"], "reward": None})
    assert suggest(results)["repeats"].sum() == 6


def test_candidates_of_a_batch_are_distinct_unless_reward_is_collected():
    results = measure(list(range(0, NUM_ARMS, 2)))
    assert (suggest(results, size=12)["repeats"] == 1).all()
    collected = suggest(results, "--goal", "regret", size=12)
    assert collected["repeats"].max() > 1
    limited = suggest(results, "--goal", "regret", "--max-repeats", "2", size=12)
    measured = results["id"].value_counts().reindex(limited["id"], fill_value=0)
    assert (limited["repeats"].to_numpy() + measured.to_numpy()).max() == 2


def test_candidates_measured_or_in_flight_are_not_repeated(capsys):
    results = measure(list(range(20)))
    results.loc[results.index[10:], "reward"] = np.nan
    batch = suggest(results, "--max-repeats", "1", size=20)
    assert sorted(batch["id"]) == sorted(ARMS["id"][20:])
    assert (batch["repeats"] == 1).all()
    said = "10 of them measured, 10 measurements in all, 10 in flight"
    assert said in capsys.readouterr().out


def test_candidates_are_in_a_table(failed):
    error = failed(given=["armz.csv"])
    assert "There is no table at armz.csv. Correct the name." in error
    assert not Path("next.csv").exists()


def test_files_of_the_wrong_kind_are_refused_before_the_work(failed):
    assert "*.parquet" in failed("--output", "next.ods")
    assert "There is no table at ." in failed("--observations", ".")


def test_a_ceiling_of_inducing_candidates():
    results = measure(range(30))
    plain = suggest(results)
    with pytest.warns(BotorchWarning, match="took effect: fewer"):
        capped = suggest(results, "--max-inducing", "3")
    assert len(capped) == 6
    assert not capped.equals(plain)


def test_candidates_of_the_same_features_are_named(capsys):
    arms = pd.concat([ARMS, ARMS.iloc[[7]].assign(id="copy")])
    batch = suggest(arms=arms, size=NUM_ARMS)
    assert "copy" not in set(batch["id"])
    said = "features of an earlier one: 1, such as copy with those of 007. The earliest"
    assert said in capsys.readouterr().out
    everything = measure(range(NUM_ARMS))
    batch = suggest(everything, "--max-repeats", "1", arms=arms, size=1)
    assert batch["id"].tolist() == ["copy"]


# What is out of stock, and what goes back into the table ------------------------------


@pytest.mark.parametrize(("yes", "no"), [(" Y", "False"), (2.5, 0)])
def test_what_is_not_available_informs_and_is_not_chosen(capsys, yes, no):
    there = np.arange(NUM_ARMS) % 3 == 0
    table = ARMS.assign(stock=np.where(there, yes, no))
    results = measure(list(range(NUM_ARMS)))
    batch = suggest(results, "--available", "stock", arms=table, size=8)
    assert set(batch["id"]) <= set(ARMS["id"][there])
    truth = yields(ARMS)[batch["id"].astype(int)].to_numpy()
    np.testing.assert_allclose(batch["mean"], truth, atol=1.5)
    said = capsys.readouterr().out
    assert "40 candidates, 26 of them not available, 40 of them measured" in said
    assert "stock" not in said  # it is no feature


def test_what_is_available_has_to_be_clear(failed):
    for text, part in (("maybe", "'maybe'"), ("", "'nan'"), ("-1", "'-1'")):
        stock = ["yes"] * 6 + [text] + ["no"] * (NUM_ARMS - 7)
        error = failed("--available", "stock", arms=ARMS.assign(stock=stock))
        assert f"column 'stock' of --available, but got {part} in row 8 " in error
    assert "Name it by --available" in failed("--available", "shelf")


def test_a_candidate_that_left_the_table_informs_by_the_features_in_the_results(
    capsys,
):
    rows = list(range(0, NUM_ARMS, 2)) * 2
    results = measure(rows).merge(ARMS, on="id")
    gone = ARMS["id"].isin(["004", "010", "038"])
    # Last in the table, as those that left are after the candidates.
    whole = pd.concat([ARMS[~gone], ARMS[gone]]).assign(here=1)
    whole.loc[whole["id"].isin(ARMS["id"][gone]), "here"] = 0
    expected = suggest(results, "--available", "here", arms=whole, size=12)
    capsys.readouterr()
    batch = suggest(results, arms=ARMS[~gone], size=12)
    pd.testing.assert_frame_equal(batch, expected.drop(columns="here"))
    said = capsys.readouterr().out
    assert "candidates that are no longer in arms.csv: 3 (004, 010, 038)" in said
    assert "37 candidates, 17 of them measured, 40 measurements in all" in said


def test_values_beside_the_results_that_are_not_the_candidates_are_named(capsys):
    results = measure([1, 2, 3, 4]).merge(ARMS, on="id")
    expected = suggest(results)
    assert "other values" not in capsys.readouterr().out
    results.loc[2, "temperature"] += 1
    results.loc[[0, 1], "solvent"] = "brine"
    results.loc[3, "temperature"] = np.nan
    results["temperature"] *= 1 + 1e-9
    pd.testing.assert_frame_equal(suggest(results), expected)
    said = " ".join(capsys.readouterr().out.split())
    assert "other values than arms.csv in columns 'temperature' (rows: 1), 's" in said
    assert "'solvent' (rows: 2), first in row 2 of results.csv" in said
    assert "the model uses arms.csv" in said


def test_results_beside_the_candidates_are_not_read_without_observations(capsys):
    suggest(arms=ARMS.assign(reward=1.0))
    said = capsys.readouterr().out
    assert "the column 'reward' of the candidates is ignored. To use its" in said


def test_a_candidate_that_left_without_its_features_is_refused(failed):
    def refused(results):
        results.to_csv("results.csv", index=False)
        return failed("--observations=results.csv", arms=ARMS[1:])

    error = refused(measure([1, 0, 2]))
    assert "results.csv measures id '000' in row 3 " in error
    assert "put it back (--available keeps it from being chosen)" in error
    results = measure([1, 0, 0]).merge(ARMS, on="id")
    results.loc[2, "temperature"] += 1
    assert "measures id '000' with other settings in row 4 " in refused(results)
    results.loc[2, "temperature"] = np.nan
    assert "row 4 " in refused(results)
    gap = refused(results[:2].assign(solvent=["water", None]))
    assert "'solvent' has an empty cell in row 3 of results.csv" in gap


def test_workbooks_need_openpyxl(failed, monkeypatch):
    monkeypatch.setattr("botorch_bkb.tables.files.find_spec", lambda name: None)
    error = failed("--output", "next.xlsx")
    assert 'openpyxl, which is not installed. Install it with pip install "bo' in error


# What the fit found -------------------------------------------------------------------


@pytest.mark.usefixtures("full_fits")
def test_a_fit_that_tells_candidates_apart_ranks_no_columns(capsys):
    suggest(measure(list(range(NUM_ARMS)) * 2))
    said = capsys.readouterr().out
    fit = next(line for line in said.splitlines() if line.startswith("Fit: "))
    assert float(re.search(r"measured results: (\S+)\.$", fit)[1]) > 0.9
    assert float(re.search(r"noise is (\d+)% of", fit)[1]) < 10
    assert "Warning" not in said
    # A short lengthscale does not say that the result depends on the column most.
    assert "temperature" not in fit


@pytest.mark.parametrize("num_results", [1, 40])
def test_rewards_that_do_not_differ_give_no_deviation(capsys, num_results):
    results = pd.DataFrame({"id": ARMS["id"][:num_results], "reward": 7.25})
    batch = suggest(results)
    said = capsys.readouterr().out
    assert batch[["mean", "std", "low", "high"]].isna().all(axis=None)
    assert "Best measured" not in said
    assert "low to high" not in said
    assert "Fit:" not in said
    warned = f"Warning: all {num_results} results are 7.25: there is no difference"
    assert (warned in said) == (num_results > 1)


def test_log_reward_is_as_if_the_table_had_logarithms(capsys):
    results = measure(list(range(30)))
    spread = results["reward"] - results["reward"].mean()
    powers = results.assign(reward=10 ** (spread / spread.std()))
    batch = suggest(powers, "--log-reward", "--minimize", "--bounds=0.001:1000")
    said = "".join(capsys.readouterr())
    assert "the model is fitted to log10(reward)" in said
    assert "mean log10(reward) " in said
    assert "decades" not in said
    results["reward"] = np.log10(powers["reward"])
    expected = suggest(results, "--minimize", "--bounds=-3:3")
    pd.testing.assert_frame_equal(batch, expected)
    # Percentages over decades are right as they are.
    results["reward"] = np.linspace(0.5, 95, 30)
    suggest(results)
    assert "decades" not in capsys.readouterr().out
