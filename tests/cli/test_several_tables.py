"""Results in several files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.tables import next_batch


RNG = np.random.default_rng(4)
ARMS = pd.DataFrame(
    {"id": [f"R{n:02d}" for n in range(30)], "heat": RNG.uniform(20, 90, 30).round(2)}
)
RESULTS = pd.DataFrame(
    {"id": ARMS["id"][::3], "reward": RNG.normal(40, 5, 10).round(2), "plate": 1}
)


def suggest(*words, arms=ARMS, code=0):
    return next_batch(arms, None, *words, size=4, code=code)


def write(table, name, **options):
    Path(name).parent.mkdir(exist_ok=True)
    table.to_csv(name, index=False, **options)
    return "--observations", name


def test_the_rows_of_all_tables_of_results_count(capsys):
    expected = suggest(*write(RESULTS, "all.csv"))
    said = capsys.readouterr().out
    more = write(RESULTS[4:].assign(reader="B"), "b/x.csv", sep=";", decimal=",")
    found = suggest(*write(RESULTS[:4], "a/x.csv"), *more)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    assert "10 of them measured, 10 measurements in all" in said
    assert "10 of them measured, 10 measurements in all" in capsys.readouterr().out


@pytest.mark.parametrize("is_last", [False, True])
def test_one_table_may_have_no_ids(is_last, capsys):
    expected = suggest(*write(RESULTS, "all.csv"))
    by_settings = RESULTS[4:].merge(ARMS, on="id").drop(columns="id")
    tables = [write(RESULTS[:4], "a.csv"), write(by_settings, "b.csv")]
    found = suggest(*(tables[0] + tables[1] if is_last else tables[1] + tables[0]))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3)
    assert "such as row 2 of b.csv those of R12" in capsys.readouterr().out


def test_results_that_another_file_has_too_are_copies(capsys):
    more = RESULTS.merge(ARMS, on="id").assign(remark="as before")
    tables = write(RESULTS, "a.csv") + write(more, "b.csv")
    suggest(*tables, code=2)
    assert "20 of 20 measurements are equal to another row" in capsys.readouterr().err


def test_files_of_a_pattern_are_in_the_order_of_their_numbers(capsys):
    told = {1: RESULTS, 2: RESULTS[:1].assign(reward="failed"), 10: RESULTS[:1]}
    for number, table in told.items():
        write(table, f"round_{number}.csv")
    # A shell lists them as sorted() does.
    for names in (["round_*.csv"], sorted(f"round_{number}.csv" for number in told)):
        suggest("--observations", *names, "--replicates-are-real")
        assert "last measurement failed" not in capsys.readouterr().out


def test_a_fault_names_its_row_and_its_file(capsys):
    wrong = RESULTS[4:].assign(reward=["1", "2", "3", "high", "5", "6"])
    words = *write(RESULTS[:4], "a.csv"), *write(wrong, "b.csv")
    suggest(*words, code=2)
    assert "'high' in row 5 of b.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "There is no table at b.csv. Corr"), (b"", "b.csv is empty. Restore its")],
)
def test_a_table_of_results_that_is_missing_or_empty_is_an_error(content, said, capsys):
    """Also beside others. One with a header only has no results yet."""
    told = write(RESULTS, "a.csv")
    expected = suggest(*told)
    if content is not None:
        Path("b.csv").write_bytes(content)
    Path("next.csv").unlink()
    for words in (), told:
        suggest(*words, "--observations", "b.csv", code=2)
        error = capsys.readouterr().err
        assert said in error
        assert "In the first round, without results, leave out --observations." in error
    assert not Path("next.csv").exists()
    write(RESULTS[:0], "b.csv")
    found = suggest(*told, "--observations", "b.csv")
    pd.testing.assert_frame_equal(found, expected)
    first = suggest()
    pd.testing.assert_frame_equal(suggest("--observations", "b.csv"), first)


def test_a_batch_to_append_has_the_form_of_the_last_table():
    first = write(RESULTS[:4].assign(reader="B"), "a.csv")
    suggest(*first, *write(RESULTS[4:], "b.csv", sep=";"), "--per-measurement")
    text = Path("next.csv").read_text()
    assert text.splitlines()[0] == "id;reward;plate"
