"""Tables of results with too much in them, or too little."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from tests.cli.tables import next_batch


RNG = np.random.default_rng(6)
ARMS = pd.DataFrame(
    {
        "id": [f"L-{n:02d}" for n in range(24)],
        "acid": RNG.uniform(1, 9, 24).round(2),
        "ligand": RNG.permutation(["A", "B", "C"] * 8),
    }
)
RESULTS = pd.DataFrame(
    {"id": ARMS["id"][:14:2], "reward": RNG.normal(40, 5, 7).round(2)}
).reset_index(drop=True)


def suggest(results, *words, arms=ARMS, code=0):
    """Run the command; return its batch, or None if it is refused."""
    return next_batch(arms, results, *words, size=3, code=code)


def test_columns_that_are_not_used_are_named(capsys):
    expected = suggest(RESULTS.merge(ARMS))
    assert "not used" not in capsys.readouterr().out
    results = RESULTS.assign(SEM=2.0, operator="JK")
    batch = suggest(results, "--quiet")
    said = " ".join(capsys.readouterr().out.split())
    assert "columns of the results that are not used: SEM, operator." in said
    assert "Standard deviations of results need --noise-std" in said
    pd.testing.assert_frame_equal(batch, expected)
    suggest(results, "--noise-std", "SEM")
    assert "that are not used: operator." in capsys.readouterr().out


def told(bandits, name):
    """Return the results, or their noise, of the last bandit."""
    return bandits[-1].state_dict()["observations"][f"told_{name}"]


def test_standard_deviations_of_results_are_known_noise(bandits):
    stds = [0.5, 3, None, 0.25, 1, 2, 1]
    cells = [*RESULTS["reward"][:5], None, "failed"]
    results = RESULTS.assign(reward=cells, sd=stds)
    suggest(results, "--noise-std", "sd", "--report=r.html")
    assert told(bandits, "noise") == [0.25, 9.0, 0.0, 0.0625, 1.0]
    assert "the same for all without one in column sd" in Path("r.html").read_text()
    suggest(results, "--noise-std", "sd", "--log-reward")
    # Of log10(y + e) for a small error e, by a difference.
    steps = np.log10(np.array(cells[:5], dtype=float) + 1e-6) - told(bandits, "rewards")
    expected = (1e6 * steps * np.array([0.5, 3, 0, 0.25, 1])) ** 2
    np.testing.assert_allclose(told(bandits, "noise"), expected, 1e-4)
    # A table of candidates with their results: the column is not a feature.
    results = results.dropna(subset="reward")  # which is in flight
    batch = suggest(results, "--noise-std", "sd", "--with-columns")
    ARMS.merge(results, how="left").to_csv("both.csv", index=False)
    words = ["--observations=both.csv", "--noise-std=sd", "--with-columns"]
    words += ["--batch-size=3", "--output=n.csv"]
    assert main(["suggest", "both.csv", *words]) == 0
    pd.testing.assert_frame_equal(pd.read_csv("n.csv"), batch)


TWICE = pd.concat([RESULTS, RESULTS])


@pytest.mark.parametrize(
    ("twice", "number"),
    [
        (pd.concat([RESULTS, RESULTS[:4]]), 8),
        (TWICE.assign(remark=["a", "NA", *["b"] * 5] * 2), 14),
    ],
    ids=["partly", "with NA"],
)
def test_results_that_were_pasted_twice_are_refused(twice, number, capsys):
    suggest(twice, code=2)
    said = f"{number} of {len(twice)} measurements are equal to another row"
    assert said in capsys.readouterr().err


def test_replicates_are_no_copies(capsys):
    again = RESULTS.assign(reward=RESULTS["reward"] + RNG.normal(0, 1, 7).round(2))
    suggest(pd.concat([RESULTS, again]))
    assert "equal to" not in capsys.readouterr().out
    suggest(TWICE.assign(well=range(14)))
    assert "equal to" not in capsys.readouterr().out
    one = pd.DataFrame({"id": ["L-00"] * 6 + ["L-01"], "reward": [0.0] * 6 + [1.0]})
    suggest(one)
    said = "6 of 7 measurements are equal to another row in every column, such as row 3"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("form", [{}, {"sep": ";", "decimal": ","}], ids=["US", "DE"])
def test_a_batch_that_was_filled_in_is_kept(form, capsys):
    """It is replaced once its rows are among the results."""
    ARMS.to_csv("arms.csv", index=False, **form)
    RESULTS.assign(plate=1.5).to_csv("results.csv", index=False, **form)
    command = ["suggest", "arms.csv", "--observations=results.csv", "--batch-size=3"]
    command += ["--per-measurement"]
    assert main(command) == 0
    assert main(command) == 0  # nothing was filled in
    path, separator = Path("next.csv"), form.get("sep", ",")
    batch = pd.read_csv(path, dtype=str, sep=separator)
    filled = batch.assign(reward=["41,5" if form else "41.5", None, "failed"])
    filled.to_csv(path, index=False, sep=separator)
    before = path.read_text()
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "2 of its rows have entries that the results lack, first in row 2 " in error
    assert path.read_text() == before
    with Path("results.csv").open("a") as file:
        file.writelines(before.splitlines(keepends=True)[1:])
    assert main(command) == 0
    assert path.read_text() != before


def test_rewards_in_a_column_of_their_own_are_kept(capsys):
    batch = suggest(RESULTS)
    batch.assign(remark=None).to_csv("next.csv", index=False)
    assert suggest(RESULTS).equals(batch)
    # Nor is a setting an entry that the candidates no longer have.
    suggest(RESULTS, arms=ARMS.assign(lot=range(24)))
    assert suggest(RESULTS).equals(batch)
    for entry in ({"reward": [None, 44, None]}, {"remark": [None, "dark", None]}):
        batch.assign(**entry).to_csv("next.csv", index=False)
        suggest(RESULTS, code=2)
        assert "1 of its rows have entries" in capsys.readouterr().err


def test_rewards_with_the_name_of_a_prediction_are_kept(capsys):
    results = RESULTS.rename(columns={"reward": "yield_mean"})
    batch = suggest(results, "--reward=yield_mean")
    batch.assign(yield_mean=[None, 44, None]).to_csv("next.csv", index=False)
    suggest(results, "--reward=yield_mean", code=2)
    # Nor are they predictions of a batch for several outcomes.
    batch.assign(purity_mean=[None, 44, None]).to_csv("next.csv", index=False)
    suggest(results, "--reward=yield_mean", code=2)
    assert capsys.readouterr().err.count("1 of its rows have entries") == 2


def test_words_for_missing_values_are_in_flight_and_named(capsys):
    words = ["NULL", "n.d.", "-", "Pending", "", "IN PROGRESS"]
    rewards = [*words, *(f"{41.25 + number}" for number in range(6))]
    german = pd.DataFrame({"id": ARMS["id"][:12], "reward": rewards})
    batch = suggest(german)
    said = capsys.readouterr().out
    assert "6 of them measured, 6 measurements in all, 6 in flight" in said
    words = "'NULL', 'n.d.', '-', 'Pending', 'IN PROGRESS'."
    assert f"results.csv: these cells count as empty: {words}" in said
    german["reward"] = [word.replace(".", ",") for word in rewards]
    german = german.replace({"reward": {"n,d,": "n.d."}})
    pd.testing.assert_frame_equal(suggest(german), batch)


def test_candidates_whose_last_measurement_failed_are_not_chosen(capsys):
    first = suggest(RESULTS)["id"].tolist()
    failed = pd.DataFrame({"id": first, "reward": ["failed", "Failed ", "FAILED"]})
    table = pd.concat([RESULTS.astype(object), failed])
    assert set(suggest(table, "--output=n.csv")["id"]) == set(first)  # of before
    assert set(pd.read_csv("n.csv")["id"]).isdisjoint(first)
    said = capsys.readouterr().out
    assert f"measurement failed: 3 ({', '.join(first)}). They are not" in said
    assert said.count("7 measurements in all, 0 in flight") == 2
    # A later result, and one of a candidate that is unknown.
    later = pd.concat([table, pd.DataFrame({"id": first[:1], "reward": [41.0]})])
    suggest(later, "--goal", "regret")
    assert f"failed: 2 ({', '.join(first[1:])})" in capsys.readouterr().out
    unknown = pd.DataFrame({"id": ["L-99"], "reward": ["failed"]})
    suggest(pd.concat([table, unknown]), code=2)
    assert "measures id 'L-99' in row 12" in capsys.readouterr().err


def test_a_molecule_that_failed_is_not_chosen_from_another_row(capsys):
    pytest.importorskip("rdkit")
    smiles = ["CCO", "OCC", "CCN", "CCC", "CCCl", "CCBr"]
    arms = pd.DataFrame({"id": [f"M{n}" for n in range(6)], "smiles": smiles})
    results = arms[["id"]][1:5].assign(reward=["failed", "2", "3", "5"])
    words = "--smiles", "smiles", "--max-repeats", "1"
    batch = suggest(results, *words, arms=arms)
    assert batch["id"].tolist() == ["M5"]


@pytest.mark.parametrize("columns", [["id", "ligand"], ["acid", "ligand"]])
def test_a_table_without_a_header_is_refused(columns, capsys):
    ARMS[columns].to_csv("arms.csv", index=False, header=False)
    assert main(["suggest", "arms.csv"]) == 2
    assert "Write a header above the rows if there is none" in capsys.readouterr().err
    lines = Path("arms.csv").read_text()
    Path("arms.csv").write_text(f"{','.join(columns)}\n{lines}")
    assert main(["suggest", "arms.csv"]) == 0


def test_results_without_a_header_or_with_two_are_refused(capsys):
    path = Path("told.csv")
    ARMS.to_csv("arms.csv", index=False)
    command = ["suggest", "arms.csv", "--observations=told.csv"]
    RESULTS.to_csv(path, index=False, header=False)
    assert main(command) == 2
    assert "The first line has to be the header" in capsys.readouterr().err
    path.write_text(f"id,reward\n{path.read_text()}id,reward\nL-01,3.5\n")
    assert main(command) == 2
    assert "has 'reward' in row 9 of told.csv" in capsys.readouterr().err


def test_all_incomplete_columns_are_named_and_can_be_left_out(capsys):
    expected = suggest(RESULTS)
    gaps = ARMS.assign(**{f"g{n}": [1.0, None, *range(22)] for n in range(30)})
    gaps["word"] = ["x", *["n.d."] * 23]
    suggest(RESULTS, arms=gaps, code=2)
    assert "with such cells: g0, g1, " in (error := capsys.readouterr().err)
    assert "g19 and 11 more" in error
    batch = suggest(RESULTS, "--drop-incomplete", arms=gaps)
    # With more than 20 columns only ids are shown.
    settings = list(ARMS)[1:]
    pd.testing.assert_frame_equal(batch, expected.drop(columns=settings))
    said = capsys.readouterr().out
    assert "--drop-incomplete: 31 columns with missing values are left out: g0" in said


def test_faults_of_several_columns_are_said_at_once(capsys):
    arms = ARMS.assign(heat="20 C", name=ARMS["id"], plate=["1", "x"] * 12)
    suggest(RESULTS, arms=arms, code=2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in ("'heat' has '20 C'", "one of 24 different", "'plate' has 'x'"):
        assert part in error


def test_when_no_candidate_is_left_it_is_said_why(capsys):
    results = pd.concat([RESULTS, RESULTS.assign(reward=1.0)]).astype(object)
    results.loc[results["id"] == "L-02", "reward"] = ["3", "failed"]
    stock = ARMS.assign(stock=ARMS["id"].isin(RESULTS["id"]))
    words = "--max-repeats", "2", "--available", "stock"
    suggest(results, *words, arms=stock, code=2)
    error = capsys.readouterr().err
    assert "Expected candidates to be left for 3 measurements, but of 24 cand" in error
    assert "6 have had their repeats (--max-repeats, those in flight incl" in error
    assert "1 failed, and 17 are not available. Add or restock candidates" in error


# Several tables -----------------------------------------------------------------------


def write(table, name, **options):
    Path(name).parent.mkdir(exist_ok=True)
    table.to_csv(name, index=False, **options)
    return "--observations", name


def test_the_rows_of_all_tables_of_results_count(capsys):
    expected = suggest(None, *write(RESULTS, "all.csv"))
    said = capsys.readouterr().out
    more = write(RESULTS[4:].assign(reader="B"), "b/x.csv", sep=";", decimal=",")
    found = suggest(None, *write(RESULTS[:4], "a/x.csv"), *more)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    assert "7 of them measured, 7 measurements in all" in said
    assert "7 of them measured, 7 measurements in all" in capsys.readouterr().out


@pytest.mark.parametrize("order", [1, -1])
def test_one_table_may_have_no_ids(order, capsys):
    expected = suggest(None, *write(RESULTS, "all.csv"))
    by_settings = RESULTS[4:].merge(ARMS, on="id").drop(columns="id")
    tables = write(RESULTS[:4], "a.csv"), write(by_settings, "b.csv")
    found = suggest(None, *sum(tables[::order], ()))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3)
    assert "such as row 2 of b.csv those of L-08" in capsys.readouterr().out


def test_results_that_another_file_has_too_are_copies(capsys):
    more = RESULTS.merge(ARMS, on="id").assign(remark="as before")
    tables = write(RESULTS, "a.csv") + write(more, "b.csv")
    suggest(None, *tables, code=2)
    assert "14 of 14 measurements are equal to another row" in capsys.readouterr().err


def test_files_of_a_pattern_are_in_the_order_of_their_numbers(capsys):
    told = {1: RESULTS, 2: RESULTS[:1].assign(reward="failed"), 10: RESULTS[:1]}
    for number, table in told.items():
        write(table, f"round_{number}.csv")
    # A shell lists them as sorted() does.
    for names in (["round_*.csv"], sorted(f"round_{number}.csv" for number in told)):
        suggest(None, "--observations", *names, "--replicates-are-real")
        assert "last measurement failed" not in capsys.readouterr().out


def test_a_fault_names_its_row_and_its_file(capsys):
    wrong = RESULTS[4:].assign(reward=["1", "2", "high"])
    words = *write(RESULTS[:4], "a.csv"), *write(wrong, "b.csv")
    suggest(None, *words, code=2)
    assert "'high' in row 4 of b.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "There is no table at b.csv. Corr"), (b"", "b.csv is empty. Restore its")],
)
def test_a_table_of_results_that_is_missing_or_empty_is_an_error(content, said, capsys):
    """Also beside others. One with a header only has no results yet."""
    told = write(RESULTS, "a.csv")
    expected = suggest(None, *told)
    if content is not None:
        Path("b.csv").write_bytes(content)
    Path("next.csv").unlink()
    for words in (), told:
        suggest(None, *words, "--observations", "b.csv", code=2)
        error = capsys.readouterr().err
        assert said in error
        assert "In the first round, without results, leave out --observations." in error
    assert not Path("next.csv").exists()
    write(RESULTS[:0], "b.csv")
    found = suggest(None, *told, "--observations", "b.csv")
    pd.testing.assert_frame_equal(found, expected)
    first = suggest(None)
    pd.testing.assert_frame_equal(suggest(None, "--observations", "b.csv"), first)


def test_a_batch_to_append_has_the_form_of_the_last_table():
    first = write(RESULTS[:4].assign(reader="B"), "a.csv")
    last = write(RESULTS[4:].assign(plate=1), "b.csv", sep=";")
    suggest(None, *first, *last, "--per-measurement")
    text = Path("next.csv").read_text()
    assert text.splitlines()[0] == "id;reward;plate"
