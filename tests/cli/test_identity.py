"""Which candidate a result belongs to: the one with its id, or with its settings."""

import itertools
import re
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from tests.cli.tables import next_batch


GRID = pd.DataFrame(
    itertools.product([40.0, 55.5, 71.0], [1 / 3, 2 / 3, 1.0], ["THF", "DMF"]),
    columns=["heat", "ratio", "solvent"],
)
ARMS = GRID.assign(id=[f"K-{number}" for number in range(len(GRID))])
# A yield of 90 % at one of 18 settings; ten are measured.
MEASURED = [0, 2, 3, 5, 7, 8, 11, 13, 14, 17]
HISTORY = GRID.iloc[MEASURED].assign(
    reward=[12.0, 31, 8, 44, 25, 90, 61, 39, 70, 55], id=[f"old {n}" for n in range(10)]
)


@pytest.fixture
def suggest(capsys):
    """Return a function that returns a batch and what was said."""

    def run(arms, results, *words, code=0):
        capsys.readouterr()
        batch = next_batch(arms, results, *words, size=4, code=code)
        return batch, "".join(capsys.readouterr())

    return run


def test_results_under_other_ids_are_of_the_candidates_with_their_settings(suggest):
    batch, said = suggest(ARMS, HISTORY, "--max-repeats", 1)
    assert not {*batch["id"]} & {f"K-{place}" for place in MEASURED}
    assert "10 of 10 results without a known id have the settings" in said
    assert "such as old 0 those of K-0" in said
    # To the last digit what is chosen of the same results under the candidates' ids.
    own = HISTORY.assign(id=[f"K-{place}" for place in MEASURED])
    same, _ = suggest(ARMS, own, "--max-repeats", 1)
    pd.testing.assert_frame_equal(batch, same)


def test_settings_match_as_programs_round_them(suggest):
    results = HISTORY.assign(ratio=HISTORY["ratio"].round(5))
    results["heat"] += 1e-12
    _, said = suggest(ARMS, results)
    assert "18 candidates, 10 of them measured, 10 measurements in all" in said
    assert "numbers may differ by 0.01 %" in said


def test_dates_are_the_same_setting_however_they_are_written(suggest):
    arms = ARMS.assign(start=[f"2026-01-{n:02d} 08:00" for n in range(1, 19)])
    results = HISTORY.assign(start=[f"2026-01-{n + 1:02d}T08:00:00" for n in MEASURED])
    batch, said = suggest(arms, results, "--max-repeats", 1)
    assert not {*batch["id"]} & {f"K-{place}" for place in MEASURED}
    assert "10 of 10 results without a known id have the settings" in said


def test_a_near_miss_informs_by_its_own_settings(suggest):
    results = HISTORY.replace({"heat": {55.5: 55.0}}).head(5)
    _, said = suggest(ARMS, results)
    assert "4 of 5 results without a known id" in said
    assert "candidates that are no longer in arms.csv: 1 (old 4)" in said


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_table_without_ids_is_numbered_and_its_batch_has_the_settings(
    suggest, is_filled
):
    results = HISTORY.drop(columns="id") if is_filled else None
    batch, said = suggest(GRID, results, "--max-repeats", 1)
    assert next(iter(batch)) == "candidate"
    places = batch["candidate"].str.removeprefix("row ").astype(int) - 2
    settings = GRID.iloc[places].reset_index(drop=True)
    pd.testing.assert_frame_equal(batch[list(GRID)], settings)
    if is_filled:
        assert "10 of 10 results without a known id have the settings of" in said
        assert not {*places} & {*MEASURED}
    # And the batch, filled in, is a table of results.
    filled = pd.concat([results, batch.assign(reward=range(4))])
    again, said = suggest(GRID, filled, "--max-repeats", 1)
    assert f"{10 * is_filled + 4} of them measured" in said
    assert not {*again["candidate"]} & {*batch["candidate"]}


def test_rows_to_fill_in_of_a_table_without_ids(suggest):
    results = HISTORY.drop(columns="id")
    batch, _ = suggest(GRID, results, "--per-measurement")
    assert list(batch) == list(results)
    assert batch["reward"].isna().all()
    _, said = suggest(GRID, pd.concat([results, batch]))
    assert "10 measurements in all, 4 in flight" in said


def test_a_column_that_is_likely_one_of_ids_is_no_setting(suggest):
    table = GRID.copy()
    table.insert(0, "entry", range(7, 25))
    _, said = suggest(table, None, code=2)
    assert "names or counts the candidates, pass --id entry or --drop" in said


def test_results_that_lack_a_setting_are_refused(suggest):
    results = HISTORY.drop(columns=["id", "ratio"])
    _, said = suggest(GRID, results, code=2)
    assert "lacks the columns ['ratio']" in said
    suggest(GRID, results, "--drop", "ratio")
    results = HISTORY.drop(columns="id")
    results.iloc[1, : len(GRID.columns)] = None
    _, said = suggest(GRID, results, code=2)
    assert "row 3 of results.csv" in said
    assert "has no id, and lacks settings. Fill in one" in said


def test_candidates_that_were_numbered_anew_are_noticed(suggest):
    """Most results of a file have the settings of other candidates."""
    moved = ARMS.sort_values(["heat", "ratio"], ascending=False)
    moved = moved.assign(id=ARMS["id"].array)
    results = HISTORY.assign(id=[f"K-{place}" for place in MEASURED])
    _, said = suggest(moved, results, code=2)
    assert re.search(
        ": row 2 .* has the id of K-0 and the settings of K-1\\d. Corr", said
    )
    suggest(moved, results.drop(columns="id"))


def test_a_setting_that_is_no_number_differs_too(suggest):
    results = HISTORY.assign(id=[f"K-{place}" for place in MEASURED])
    heat = results["heat"].astype("object")
    heat.iloc[:3] = "120 C", 999, None
    _, said = suggest(ARMS, results.assign(heat=heat))
    note = "other values than arms.csv in columns 'heat' (rows: 2), first in row 2"
    assert note in said


@pytest.mark.parametrize(
    ("of_arms", "of_results", "words"),
    [
        ("id", "ID", []),
        ("Compound", "compound", ["--id", "compound"]),
        ("name", "Sample no.", ["--id", "name", "--results-id", "Sample no."]),
    ],
)
def test_the_tables_may_name_their_ids_differently(suggest, of_arms, of_results, words):
    arms = ARMS.assign(id=[f"{n:03d}" for n in range(18)])
    results = pd.DataFrame({"id": ["004", "011"], "reward": np.arange(2.0)})
    tables = [arms.rename(columns={"id": of_arms})]
    tables += [results.rename(columns={"id": of_results})]
    batch, said = suggest(*tables, *words)
    assert "2 of them measured" in said
    assert next(iter(batch)) == of_arms
    batch, _ = suggest(*tables, *words, "--per-measurement")
    assert list(batch) == [of_results, "reward"]


def test_several_tables_of_results_name_their_ids_and_settings(suggest):
    first = HISTORY.head(4).drop(columns="id")
    first["reward"] += 0.5
    first.to_csv("first.csv", index=False)
    more = ["--observations", "first.csv", "--max-repeats", 1]
    _, said = suggest(GRID, HISTORY.drop(columns="id"), *more)
    assert "18 candidates, 10 of them measured, 14 measurements in all" in said
    pd.DataFrame({"Id": ["K-1"], "reward": [3.0]}).to_csv("first.csv", index=False)
    Path("next.csv").unlink()
    results = pd.DataFrame({"ID": ["K-2"], "reward": [5.0]})
    batch, said = suggest(ARMS, results, *more, "--per-measurement")
    assert "18 candidates, 2 of them measured, 2 measurements in all" in said
    assert list(batch) == ["Id", "reward"]


DAYS = [datetime(2026, 3, day + 1) for day in range(18)]
OBJECTS = {"id": object}
MIXED = [35, "007", 36.5, "A7", "38", datetime(2026, 3, 1), *range(100, 112)]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (range(35, 53), "parquet"),
        ([str(n) for n in range(18)], "parquet"),
        (DAYS, "parquet"),
        (MIXED, "xlsx"),
    ],
)
def test_ids_keep_their_type_in_every_output(ids, kind):
    """A look-up by them finds the candidate; and the batch, filled in, is read."""
    table = GRID.assign(id=pd.Series(list(ids)), plate=[1, 2, 3] * 6)
    write, read = pd.DataFrame.to_parquet, pd.read_parquet
    if kind == "xlsx":
        write, read = pd.DataFrame.to_excel, partial(pd.read_excel, dtype=OBJECTS)
    write(table, f"arms.{kind}", index=False)
    words = [f"arms.{kind}", "--drop=plate", "--batch-size=18", "--max-repeats=1"]
    for more in (["--with-columns"], ["--per-measurement"]):
        path = f"n{len(more[0])}.{kind}"
        files = [f"--output={path}", f"--predictions=p.{kind}"]
        assert main(["suggest", *words, *more, *files]) == 0
        batch = read(path)
        own = [*map(repr, read(f"arms.{kind}")["id"])]
        assert sorted(map(repr, batch["id"])) == sorted(own)
        assert [*map(repr, read(f"p.{kind}")["id"])] == own
        if "plate" in batch:
            pairs = batch.astype({"id": str}).merge(table.astype({"id": str}), on="id")
            assert (pairs["plate_x"] == pairs["plate_y"]).all()
    # In CSV files too, which have no types.
    assert main(["suggest", *words[:2], "--batch-size=9", "--output=n.csv"]) == 0
    told = pd.read_csv("n.csv", dtype=str)[["id"]].assign(reward=range(9))
    told.to_csv("r.csv", index=False)
    words += ["--observations=r.csv", f"--output=rest.{kind}"]
    assert main(["suggest", *words]) == 0
    assert len(read(f"rest.{kind}")) == 9


@pytest.mark.parametrize(
    ("ids", "cells"),
    [
        ([str(n) for n in range(35, 53)], [*range(35, 53)]),
        ([f"{n:03d}" for n in range(18)], [f"{n:03d}" for n in range(18)]),
        (["A7", "1.0", *map(str, range(16))], ["A7", "1.0", *map(str, range(16))]),
        ([str(10**17 + n) for n in range(18)], [str(10**17 + n) for n in range(18)]),
    ],
)
def test_ids_of_a_csv_file_are_numbers_if_programs_read_them_so(ids, cells, suggest):
    suggest(GRID.assign(id=ids), None, "--predictions", "p.xlsx")
    assert list(pd.read_excel("p.xlsx", dtype={"id": object})["id"]) == cells
    suggest(GRID.assign(id=ids), None, "--predictions", "p.csv")
    assert list(pd.read_csv("p.csv", dtype=str)["id"]) == ids


def test_ids_with_decimals_have_a_point_beside_decimal_commas():
    ARMS.assign(id=np.arange(18) + 0.5).to_parquet("arms.parquet", index=False)
    told = pd.DataFrame({"id": ["0.5", "1.5"], "reward": [1.5, 2.5]})
    told.to_csv("r.csv", index=False, sep=";", decimal=",")
    words = ["arms.parquet", "--observations=r.csv", "--batch-size=16"]
    assert main(["suggest", *words, "--per-measurement", "--max-repeats=1"]) == 0
    batch = pd.read_csv("next.csv", sep=";", dtype=str)
    assert set(batch["id"]) == {f"{n + 0.5}" for n in range(2, 18)}


def test_only_whole_numbers_lose_their_decimals(suggest):
    arms = ARMS.assign(id=["v1", "v2", "7", *(f"K{n}" for n in range(15))])
    told = pd.DataFrame({"id": ["7.0", "v2"], "reward": [1.0, 2.0]})
    _, said = suggest(arms, told)
    assert "2 of them measured" in said
    _, said = suggest(arms, told.replace("v2", "v2.0"), code=2)
    assert "measures id 'v2.0' in row 3" in said
