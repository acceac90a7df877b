"""Settings in the outputs of `suggest`, and files of options."""

from pathlib import Path

import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from botorch_bkb.cli.arguments import with_files
from botorch_bkb.cli.tables import quoted


CANDIDATES = pd.DataFrame(
    {
        "id": [f"SZ-{n}" for n in range(12)],
        "ligand": ["XPhos", "SPhos"] * 6,
        "heat": [20, 40, 60] * 4,
    }
)
SETTINGS = ["ligand", "heat"]
OWN = ["repeats", "mean", "std", "low", "high", "why"]


def suggest(*words):
    return main(["suggest", *words, "--reward", "yield in %"])


@pytest.fixture(autouse=True)
def _candidates():
    CANDIDATES.to_csv("c.csv", index=False)


def fill(name, first, results):
    """Write results of some candidates, with their settings."""
    rows = CANDIDATES[first : first + len(results)]
    rows.assign(**{"yield in %": results}).to_csv(name, index=False)


@pytest.mark.parametrize(("words", "settings"), [([], SETTINGS), (["--ids-only"], [])])
def test_next_has_settings_predictions_reason_and_an_empty_result(words, settings):
    fill("r.csv", 0, [3.0, 5.0, 4.0, 9.0, 7.0])
    files = ["--predictions=p.csv", "--report=r.html", "--batch-size=4"]
    assert suggest("c.csv", "--observations=r.csv", *files, *words) == 0
    batch = pd.read_csv("next.csv")
    assert list(batch) == ["id", *settings, *OWN, "yield in %"]
    assert batch["yield in %"].isna().all()
    assert batch[OWN].notna().all(axis=None)
    found = pd.read_csv("p.csv")
    assert list(found)[: 1 + len(settings)] == ["id", *settings]
    for table in (batch, found):
        known = CANDIDATES.set_index("id").loc[table["id"], settings]
        pd.testing.assert_frame_equal(table[settings], known.reset_index(drop=True))
    assert ('<td class="short">XPhos</td>' in Path("r.html").read_text()) == bool(
        settings
    )


@pytest.mark.parametrize(("num_columns", "is_shown"), [(20, True), (21, False)])
def test_many_columns_are_not_written(num_columns, is_shown):
    own = {f"x{n}": [n * m % 7 for m in range(12)] for n in range(1, num_columns + 1)}
    CANDIDATES[["id"]].assign(**own).to_csv("c.csv", index=False)
    assert suggest("c.csv", "--batch-size=2") == 0
    assert ({*own} <= {*pd.read_csv("next.csv")}) == is_shown
    assert suggest("c.csv", "--batch-size=2", "--with-columns") == 0
    assert {*own} <= {*pd.read_csv("next.csv")}


def test_a_dropped_column_with_the_name_of_a_prediction_is_left_out():
    CANDIDATES.assign(mean=range(12)).to_csv("c.csv", index=False)
    assert suggest("c.csv", "--batch-size=2", "--drop=mean") == 0
    assert list(pd.read_csv("next.csv")) == ["id", *SETTINGS, *OWN, "yield in %"]


def test_each_run_writes_the_options_that_repeat_it(capsys):
    fill("r 1.csv", 0, [3.0, 5.0, 4.0, 9.0])
    fill("r 2.csv", 4, [3.0, 5.0])
    assert suggest("c.csv", "--observations", "r *.csv", "--batch-size=3") == 0
    said = capsys.readouterr().out
    command = 'python -m botorch_bkb suggest "@next.options.txt"'
    assert said.splitlines()[-1] == f"To repeat this: {command}"
    first = Path("next.csv").read_text(), Path("next.options.txt").read_text()
    assert main(["suggest", "@next.options.txt"]) == 0
    assert capsys.readouterr().out == said
    again = Path("next.csv").read_text(), Path("next.options.txt").read_text()
    assert again == first
    # Options beside the file count, and further tables of results are added.
    fill("s.csv", 6, [8.0])
    words = ["@next.options.txt", "--output", "b.csv", "--batch-size=2"]
    assert main(["suggest", *words, "--observations=s.csv"]) == 0
    assert "7 measurements in all" in capsys.readouterr().out
    assert len(pd.read_csv("b.csv")) == 2


def test_words_of_a_file_of_options():
    """It may have comments, marks of Windows, and an option in several words."""
    text = """\ufeff# campaign
c.csv
  --limit 'impurity <= 2'
--reward=x --seed 1  # it's x
--drop "C# # \"
--smiles C#N C:\\data
"""
    Path("o.txt").write_text(text, encoding="utf-8")
    assert with_files(["suggest", "@o.txt", "--seed=3", "--drop", "b"]) == [
        *["suggest", "c.csv", "--limit", "impurity <= 2", "--reward=x"],
        *["--drop", "C# # ", "--smiles", "C#N", "C:\\data"],
        *["--seed=3", "--drop", "b"],
    ]


@pytest.mark.parametrize("text", [None, b"--drop 'a", b"\xff"])
def test_a_file_of_options_that_cannot_be_read_is_an_error(text, capsys):
    if text:
        Path("o.txt").write_bytes(text)
    assert main(["suggest", "@o.txt"]) == 2
    assert "error: the file of options cannot be read: " in capsys.readouterr().err


def test_a_table_of_ones_own_is_not_replaced_by_a_batch(capsys):
    notes = "id,comment,repeats,mean\nC1,keep,2,7\n"
    Path("next.csv").write_text(notes)
    assert suggest("c.csv", "--batch-size=2") == 2
    error = capsys.readouterr().err
    assert "--output next.csv exists, and is not a batch of suggest: it lacks" in error
    assert Path("next.csv").read_text() == notes


def test_another_file_is_not_replaced_by_options(capsys):
    Path("next.options.txt").write_text("my notes")
    assert suggest("c.csv", "--batch-size=2") == 2
    assert "which no earlier run wrote" in capsys.readouterr().err
    assert Path("next.options.txt").read_text() == "my notes"


def test_names_of_several_results_and_candidates(capsys):
    """A shell that expands the pattern gives several words."""
    fill("r1.csv", 0, [3.0, 5.0])
    fill("r2.csv", 2, [4.0])
    Path("~$r2.csv").write_bytes(b"lock")
    for words in (
        ["c.csv", "--observations", "r1.csv", "r2.csv"],
        ["--observations", "r1.csv", "r2.csv", "c.csv"],
        ["c.csv", "--observations", "*r[12].csv"],
    ):
        assert suggest(*words, "--batch-size=2") == 0
        assert "3 measurements in all" in capsys.readouterr().out
    assert suggest("c.csv", "--observations", "q*.csv") == 2
    assert "There is no table at q*.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("a-b.csv", "a-b.csv"),
        ("yield in %", '"yield in %"'),
        ("price $", "'price $'"),
        ('5" tube', "'5\" tube'"),
        ("@a", '"@a"'),
    ],
)
def test_names_in_messages_can_be_pasted(name, word):
    assert quoted(name) == word


def test_failed_in_six_languages(capsys):
    failed = ["failed", "Fehlgeschlagen", "échoué", "fallido", "失敗", "失败"]
    fill("r.csv", 0, ["1.5", *failed])
    assert suggest("c.csv", "--observations=r.csv", "--batch-size=2") == 0
    said = capsys.readouterr().out
    assert "last measurement failed: 6 (SZ-1, SZ-2, SZ-3 and 3 more)" in said


def test_yes_and_no_in_six_languages(capsys):
    stock = ["yes", "Ja", "oui", "Sí", "はい", "是"]
    stock += ["no", "Nein", "non", "no", "いいえ", "否"]
    CANDIDATES.assign(stock=stock).to_csv("c.csv", index=False)
    words = ["--available=stock", "--drop=stock", "--max-repeats=1"]
    assert suggest("c.csv", *words, "--batch-size=6") == 0
    assert "6 of them not available" in capsys.readouterr().out
    assert set(pd.read_csv("next.csv")["id"]) == {f"SZ-{n}" for n in range(6)}


@pytest.mark.parametrize("words", [["--quiet", "c.csv"], ["--observations", "c.csv"]])
def test_candidates_after_the_options_stay_in_the_file_of_options(words, capsys):
    fill("r.csv", 0, [3.0, 5.0, 4.0, 9.0])
    files = ["--batch-size=3", "--output", "b.csv", "--observations", "r.csv"]
    # An option that takes several words takes the candidates for one of them.
    words = words[1:] if words[0] == "--observations" else words
    assert suggest(*files, *words) == 0
    fill("s.csv", 6, [8.0, 7.0])
    words = ["@b.options.txt", "--observations", "s.csv", "--output=d.csv"]
    assert main(["suggest", *words]) == 0
    said = capsys.readouterr().out
    assert "12 candidates, 6 of them measured" in said
