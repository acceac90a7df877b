"""Excel files: cells that show something else than they hold, formulas, sheets."""

import datetime
import re
import zipfile
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from botorch_bkb.tables.columns import read_table
from tests.cli.tables import next_batch


REWARDS = [93.5, 85.25, 41.0, 12.5, 70.0]
ARMS = pd.DataFrame({"id": list("abcdefgh"), "heat": np.arange(8.0) ** 2})


def book(path, *sheets, **formats):
    """Write sheets of rows; the formats are those of cells of the first one."""
    made = openpyxl.Workbook()
    made.remove(made.active)
    for number, rows in enumerate(sheets):
        sheet = made.create_sheet(f"S{number}")
        for row in rows:
            sheet.append(row)
    for cell, form in formats.items():
        made.worksheets[0][cell].number_format = form
    made.save(path)


def results(*rewards):
    return [("id", "reward"), *zip("abcdefgh", rewards, strict=False)]


CANDIDATES = [tuple(ARMS), *ARMS.itertuples(index=False, name=None)]


@pytest.mark.parametrize(
    ("held", "form"),
    [
        ([0.935, 0.8525, 0.41, 0.125, 0.7], "0.0%"),
        ([0.935, 0.8525, 0.41, 0.125, 0.7], "[Red]0.00\\ %;-0%"),
        (REWARDS, '0.0"%"'),
        (REWARDS, '_-* #,##0.00 "€"_-'),
        (REWARDS, "# ?/?"),
        (REWARDS, '#,##0.0" mM"'),
        ([f"{reward:.2f}".replace(".", ",") for reward in REWARDS], "@"),
    ],
)
def test_a_column_in_one_format_is_what_it_shows(held, form):
    """A column in the format percent agrees with the CSV file that Excel saves."""
    forms = {f"B{row}": form for row in range(2, 7)}
    book("t.xlsx", results(*held, "failed", "n.d."), **forms)
    table = read_table(Path("t.xlsx"), ["id"], outcomes=["reward"])
    found = table.frame["reward"]
    assert found[:5].tolist() == pytest.approx(REWARDS, rel=1e-14)
    assert found[5:].isna().all()
    assert table.failed.tolist() == [6]
    if form == "0.0%":
        cells = [*(f"{x}%" for x in REWARDS), "failed", "n.d."]
        pd.DataFrame({"id": [*"abcdefg"], "reward": cells}).to_csv("t.csv", index=False)
        same = read_table(Path("t.csv"), ["id"], outcomes=["reward"]).frame
        pd.testing.assert_frame_equal(same, table.frame)


# By what a cell shows: what it holds, and its format.
CELLS = {
    "93.5%": (0.935, "0.0%"),
    "93500 shown scaled": (93500, "#,##0,"),
    "9350000 shown scaled": (9.35e6, '0.0,,"M"'),
    "2026-05-01 00:00:00": (datetime.date(2026, 5, 1), "dd.mm.yyyy"),
    "12:30:00": (datetime.time(12, 30), "hh:mm:ss"),
    "1 day, 1:30:00": (datetime.timedelta(hours=25.5), "[h]:mm:ss"),
    "True": (True, "General"),
    "93,5": ("93,5", "@"),
    "formula =B2*2": ("=B2*2", "0.0"),
}
ERRORS = ["#DIV/0!", "#N/A", "#NV", "####", "Err:502"]
CELLS |= {text: (text, "General") for text in ERRORS}


@pytest.mark.parametrize("shown", CELLS)
def test_a_cell_that_is_not_a_number_is_named(shown, capsys):
    """In a result and in a setting, it is neither another number nor in flight."""
    value, form = CELLS[shown]
    book("r.xlsx", results(*REWARDS[:4], value), B6=form)
    next_batch(ARMS, None, "--observations=r.xlsx", code=2)
    error = capsys.readouterr().err
    assert f"Column 'reward' has {shown!r} in row 6 of r.xlsx (the header co" in error
    assert f"Write {'93.5' if shown == '93.5%' else 'a number'}, or failed for" in error
    assert "Write bare numbers: " in error
    assert "(Excel: first choose the format General), and formulas with a val" in error
    book("a.xlsx", [*CANDIDATES[:5], ("e", value), *CANDIDATES[6:]], B6=form)
    assert main(["suggest", "a.xlsx"]) == 2
    said = capsys.readouterr()
    assert re.search("'heat' has .* in row 6 of a.xlsx ", said.err)
    assert shown in said.out + said.err


def test_the_error_of_a_lookup_is_refused_in_csv_too(capsys):
    told = pd.DataFrame({"id": list("abc"), "reward": ["5", "#N/A", "7"]})
    next_batch(ARMS, told, code=2)
    assert "'reward' has '#N/A' in row 3 of results.csv" in capsys.readouterr().err
    next_batch(ARMS.replace({"id": {"c": "#REF!"}}), None, code=2)
    assert "arms.csv has no id in row 4 " in capsys.readouterr().err


def test_columns_of_durations_are_refused(capsys):
    hours = [datetime.timedelta(hours=n) for n in (1, 30, 60)]
    book("a.xlsx", [("id", "time"), *zip("abc", hours, strict=True)])
    assert main(["suggest", "a.xlsx"]) == 2
    assert "'time' has the value 0 days 01:00:00 in row 2 " in capsys.readouterr().err


def test_merged_cells_are_refused(capsys):
    """All but the first are empty, and a result would count as in flight."""
    book("r.xlsx", results(*REWARDS))
    made = openpyxl.load_workbook("r.xlsx")
    made["S0"].merge_cells("B3:B4")
    made.save("r.xlsx")
    next_batch(ARMS, None, "--observations=r.xlsx", code=2)
    said = "r.xlsx has merged cells, first B3:B4. Unmerge them, and fill in all rows."
    assert said in capsys.readouterr().err
    made["S0"].unmerge_cells("B3:B4")
    made["S0"]["B4"] = REWARDS[1]
    made.save("r.xlsx")
    next_batch(ARMS, None, "--observations=r.xlsx")
    assert "5 measurements in all, 0 in flight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "kind"), [("=A0", "csv"), (2**53 + 1, "parquet"), (35, "parquet")]
)
def test_ids_are_what_excel_shows(first, kind):
    """Text after an equal sign is no formula, and no digit of a number is lost."""
    ids = [f"=A{n}" for n in range(8)] if kind == "csv" else [*range(first, first + 8)]
    write = pd.DataFrame.to_csv if kind == "csv" else pd.DataFrame.to_parquet
    write(ARMS.assign(id=ids), f"a.{kind}", index=False)
    words = [f"a.{kind}", "--batch-size=8", "--max-repeats=1", "--output=n.xlsx"]
    assert main(["suggest", *words]) == 0
    cells = [row[0] for row in openpyxl.load_workbook("n.xlsx").active][1:]
    right = ids if first == 35 else list(map(str, ids))
    assert sorted(cell.value for cell in cells) == right
    assert {cell.data_type for cell in cells} == {"n" if first == 35 else "s"}


def test_formulas_have_the_values_that_were_saved():
    """An empty text is an empty cell. ``openpyxl`` cannot write them."""
    book("r.xlsx", results("=5*A9", '=IF(A9="","",1)', "=1+1"))
    with zipfile.ZipFile("r.xlsx") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile("r.xlsx", "w") as archive:
        for name, data in parts.items():
            text = data.replace(b"5*A9</f><v />", b"5*A9</f><v>41.5</v>")
            text = text.replace(b'<c r="B3"', b'<c r="B3" t="str"')
            archive.writestr(name, text)
    found = read_table(Path("r.xlsx"), ["id"], outcomes=["reward"]).frame["reward"]
    assert found.fillna("").tolist() == ["41.5", "", "formula =1+1"]


def test_several_sheets_that_could_be_meant_are_named(capsys):
    """Each table from such a file takes one --sheet; the message says so."""
    book("r.xlsx", results(None, None), results(*REWARDS))
    book("all.xlsx", CANDIDATES, [("id", "reward"), ("a", None)], results(*REWARDS))
    ARMS.to_csv("arms.csv", index=False)
    one = ["suggest", "arms.csv", "--observations=r.xlsx", "--batch-size=3"]
    both = ["suggest", "all.xlsx", "--observations=all.xlsx", "--batch-size=3"]
    for words, names, given, right in [
        (one, ["S0", "S1"], [], ["S1"]),
        (one, ["S0", "S1"], ["Results"], ["S1"]),
        (both, ["S0", "S1", "S2"], ["S0"], ["S0", "S2"]),
    ]:
        assert main([*words, *(f"--sheet={name}" for name in given)]) == 2
        error = capsys.readouterr().err
        assert f".xlsx has the sheets {names}, but --sheet names " in error
        assert "Pass it once for each table from a file with several" in error
        assert main([*words, *(f"--sheet={name}" for name in right)]) == 0
        assert "5 of them measured, 5 measurements in all" in capsys.readouterr().out
        assert main([*words, *(f"--sheet={name}" for name in [*right, "S0"])]) == 2
        error = capsys.readouterr().err
        assert "No table needs --sheet 'S0'. Leave it out, or name its table" in error


def test_two_sheets_of_one_file_are_two_tables(capsys):
    """An empty result is in flight, and a row is not that of a candidate."""
    settings = [("heat",), *zip(ARMS["heat"], strict=True)]
    told = [("heat", "reward"), (49.0, 5.5), (36.0, 4.5), (25.0, None)]
    words = ["suggest", "all.xlsx", "--observations=all.xlsx", "--sheet=S0"]
    words += ["--sheet=S1", "--batch-size=9", "--max-repeats=1"]
    books = [CANDIDATES, results(7, None, 5)], [settings, told]
    for number, sheets in enumerate(books):
        book("all.xlsx", *sheets)
        assert main([*words, f"--output={number}.csv"]) == 0
        said = "8 candidates, 2 of them measured, 2 measurements in all, 1 in flight."
        assert said in capsys.readouterr().out
    assert set(pd.read_csv("0.csv")["id"]) == set("defgh")
    assert set(pd.read_csv("1.csv")["heat"]) == {0.0, 1.0, 4.0, 9.0, 16.0}


def test_earlier_results_in_another_sheet_belong_to_equal_settings(capsys):
    rows = [(n * n, n % 3) for n in range(9)]
    old = [("x", "y", "reward"), *((*row, sum(row)) for row in rows[:4:-1])]
    book("all.xlsx", [("x", "y"), *rows], old)
    words = ["--earlier=all.xlsx", "--sheet=S0", "--sheet=S1", "--batch-size=2"]
    assert main(["suggest", "all.xlsx", *words]) == 0
    assert "such as row 2 of all.xlsx those of row 10," in capsys.readouterr().out


def test_every_component_has_a_sheet(capsys):
    acids = [("id", "pka"), ("x", 4.2), ("y", 3.1), ("z", 1.0)]
    heats = [("id", "kelvin"), ("20", 20), ("60", 60)]
    book("lists.xlsx", acids, heats)
    words = ["--component=acid=lists.xlsx", "--component=heat=lists.xlsx"]
    words += ["--sheet=S0", "--sheet=S1", "--batch-size=2"]
    assert main(["suggest", *words]) == 0
    assert list(pd.read_csv("next.csv"))[:2] == ["acid", "heat"]
    assert "6 combinations" in capsys.readouterr().out


def test_hidden_sheets_are_not_meant():
    book("r.xlsx", [("of a list", "x")], results(*REWARDS))
    made = openpyxl.load_workbook("r.xlsx")
    made["S0"].sheet_state = "hidden"
    made.save("r.xlsx")
    assert len(read_table(Path("r.xlsx")).frame) == 5


@pytest.mark.parametrize("num_blank", [0, 2])
def test_a_row_has_the_number_that_a_spreadsheet_shows(num_blank, capsys):
    """Blank rows count, and Excel's line ``sep=;`` does not."""
    blank = [(None,)] * num_blank
    book("r.xlsx", [*blank, *results(1, 2), (None,), *results("x")[1:]])
    lines = ["sep=;", *[";"] * num_blank, "id;reward", "a;1", "b;2", ";", "a;x"]
    Path("r.csv").write_text("\n".join(lines))
    for name in "r.xlsx", "r.csv":
        next_batch(ARMS, None, f"--observations={name}", code=2)
        said = f"'reward' has 'x' in row {5 + num_blank} of {name} (the header counts"
        assert said in capsys.readouterr().err
