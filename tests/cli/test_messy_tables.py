"""Tables as labs have them: each is read right and said so, or refused with a remedy.

What is read right gives, to the last digit, the batch of the tidy table.
"""

import contextlib
import datetime
import gzip
import io
import re

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


RNG = np.random.default_rng(0)
NUM_ARMS = 24
START = datetime.date(2026, 1, 1)
DAYS = [0, *RNG.integers(1, 300, NUM_ARMS - 1).tolist()]
ARMS = pd.DataFrame(
    {
        "id": [f"{number:05d}" for number in range(390, 390 + NUM_ARMS)],
        "heat": np.round(RNG.uniform(20, 90, NUM_ARMS), 2),
        "load": RNG.integers(1, 60, NUM_ARMS) / 2,
        "solvent": RNG.permutation(["water", "EtOH", "MeCN"] * 8),
    }
)
RESULTS = pd.DataFrame(
    {"id": ["00390", "00398", "00398", "00401"], "reward": [41.25, 12.5, 13.75, np.nan]}
)


# How tables are written ---------------------------------------------------------------


def csv(table, **options):
    return table.to_csv(index=False, **options).encode()


def excel(*tables, header=True, **options):
    book = io.BytesIO()
    with pd.ExcelWriter(book) as writer:
        for number, table in enumerate(tables):
            table.to_excel(
                writer, sheet_name=f"S{number}", index=False, header=header, **options
            )
    return book.getvalue()


def german(table):
    return csv(table, sep=";", decimal=",")


def text(**columns):
    """Return the candidates with other texts in some columns."""
    return ARMS.astype("object").assign(**columns)


def cell(column, value, row=5, table=ARMS):
    table = table.astype("object")
    table.loc[row, column] = value
    return table


def with_days(form):
    return ARMS.assign(heat=[form(START + datetime.timedelta(day)) for day in DAYS])


def solvents(word, rows):
    words = ARMS["solvent"].copy()
    words.iloc[np.flatnonzero(words == "EtOH")[rows]] = word
    return ARMS.assign(solvent=words)


def suggest(folder, arms, results, *words):
    """Return the exit code, what was said, and the batch."""
    paths = []
    for name, content in (("arms", arms), ("results", results)):
        suffix, data = content if isinstance(content, tuple) else (".csv", content)
        paths.append(folder / f"{name}{suffix}")
        paths[-1].write_bytes(data)
    output = folder / "next.csv"
    options = [
        "--observations",
        paths[1],
        "--output",
        output,
        "--batch-size",
        5,
        *words,
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([str(word) for word in ("suggest", paths[0], *options)])
    assert output.is_file() == (code == 0)
    if code == 2:
        return code, said.getvalue(), None
    separator = output.read_text("utf-8-sig")[len("id")]  # as of the candidates
    decimal = (
        ","
        if re.search(r"arms\.\S+: is read with .*',' before decimals", said.getvalue())
        else "."
    )
    batch = pd.read_csv(output, dtype={"id": "str"}, sep=separator, decimal=decimal)
    return code, said.getvalue(), batch


@pytest.fixture(scope="module")
def tidy(tmp_path_factory):
    """Return the batches of tidy tables."""
    forms = {
        "plain": ARMS,
        "days": ARMS.assign(heat=DAYS),
        "hours": ARMS.assign(heat=[day + 0.5 * (day > 0) for day in DAYS]),
        "acid": ARMS.replace({"solvent": {"EtOH": "säure"}}),
        "ripe": ARMS.assign(ripe=ARMS["load"] > 15),
        "whole": ARMS.assign(load=range(1200, 1200 + 50 * NUM_ARMS, 50)),
    }
    batches = {}
    for name, table in forms.items():
        folder = tmp_path_factory.mktemp(name)
        code, said, batches[name] = suggest(folder, csv(table), csv(RESULTS))
        assert code == 0, said
    return batches


# Read right, and said so --------------------------------------------------------------

PLAIN = csv(ARMS)
DECIMAL_COMMAS = "arms.csv: is read with ';' between fields, ',' before decimals, utf-8"
PERCENT = [f"{value:g}%" for value in ARMS["load"]]

TEXT = PLAIN.decode()
TABS = csv(ARMS, sep="\t", decimal=",")
HEAT = ARMS["heat"].map(str)
NUMBERS = "of text is read as numbers, such as"
AS_DAYS = "column 'heat' holds dates, which became days since 2026-01-01"
MARKED = [f"{x / 1000:.3f}" for x in range(1200, 2400, 50)]
CODES = ARMS["solvent"].map({"water": 1, "EtOH": 2, "MeCN": 3})


def book(*tables, **options):
    return ".xlsx", excel(*tables, **options)


# By what is said and the tidy table: the candidates' file, perhaps the measurements',
# perhaps options.
READ = {
    (DECIMAL_COMMAS, "plain"): {
        "semicolons and decimal commas": german(ARMS),
        "the separator in the first line": b"sep=;\r\n" + german(ARMS),
        "a byte order mark": b"\xef\xbb\xbf" + german(ARMS),
        "blank rows between": german(ARMS).replace(b"\n", b"\n;;;\n"),
    },
    ("between fields, ',' before decimals", "plain"): {
        "tabs and decimal commas": (".txt", TABS),
        "quoted decimal commas": csv(ARMS, decimal=","),
        "compressed": (".csv.gz", gzip.compress(german(ARMS))),
        "utf-16 as Excel's Unicode text": (".txt", TABS.decode().encode("utf-16")),
    },
    ("between fields, '.' before decimals", "plain"): {
        "semicolons and decimal points": csv(ARMS, sep=";"),
        "tabs": (".tsv", csv(ARMS, sep="\t")),
        "bars": csv(ARMS, sep="|"),
        "utf-16": TEXT.encode("utf-16"),
        "utf-16 without its mark": TEXT.encode("utf-16-le"),
        "latin-1 in the header": TEXT.replace("heat", "heat °C").encode("cp1252"),
    },
    ("'.' before decimals, cp1252", "acid"): {
        "latin-1": TEXT.replace("EtOH", "säure").encode("latin-1"),
    },
    ("24 candidates", "plain"): {
        "old line ends": PLAIN.replace(b"\n", b"\r"),
        "a workbook": book(ARMS),
        "a workbook with a blank row and column": book(ARMS, startrow=1, startcol=1),
        "blank rows at the top": b"\n,,,\n" + PLAIN,
        "blank columns at the end": PLAIN.replace(b"\n", b",,\n"),
        "spaces before quotes": PLAIN.replace(b",EtOH", b', "EtOH"'),
        "spaces around fields": PLAIN.replace(b",", b" , ").replace(b"\n", b" \n"),
        "spaces after words": csv(solvents("EtOH ", [2, 3])),
        "a separator that is named": (
            csv(ARMS, sep="~"),
            csv(RESULTS),
            ["--separator", "~"],
        ),
    },
    ("24 candidates", "ripe"): {
        "a blank row at the end of truth values": csv(
            ARMS.assign(ripe=ARMS["load"] > 15)
        )
        + b",,,,\n",
    },
    ("24 candidates", "whole"): {
        "whole numbers whose mark is named": (
            csv(ARMS.assign(load=MARKED)),
            csv(RESULTS),
            ["--decimal", "."],
        ),
    },
    ("2 of them measured, 3 measurements in all, 1 in flight", "plain"): {
        "a workbook of results": (PLAIN, book(RESULTS)),
    },
    ("arms.xlsx: 'S0', the first of 2 sheets, is read", "plain"): {
        "a workbook of two sheets": book(ARMS, RESULTS),
    },
    (f"column 'heat' {NUMBERS} '80.02' as 80.02", "plain"): {
        "a workbook with numbers as text": book(text(heat=HEAT)),
    },
    (f"column 'heat' {NUMBERS} '80,02' as 80.02", "plain"): {
        "a workbook with decimal commas as text": book(
            text(heat=HEAT.str.replace(".", ","))
        ),
    },
    (f"column 'load' {NUMBERS}", "plain"): {
        "percent signs": csv(text(load=PERCENT)),
        "percent signs and decimal commas": german(
            ARMS.assign(load=[value.replace(".", ",") for value in PERCENT])
        ),
    },
    (f"column 'reward' {NUMBERS} '41.25%' as 41.25", "plain"): {
        "rewards with percent signs": (
            PLAIN,
            csv(RESULTS.assign(reward=["41.25%", "12.5%", "13.75%", ""])),
        ),
    },
    (AS_DAYS, "days"): {
        "a workbook with dates": book(with_days(lambda day: day)),
        "iso dates": csv(with_days(str)),
    },
    (AS_DAYS, "hours"): {
        "iso dates and times": csv(
            with_days(lambda day: f"{day}T{'12' if day > START else '00'}:00")
        ),
    },
    ("results.csv: is read with ';' between fields, ',' before", "plain"): {
        "decimal commas of results only": (PLAIN, german(RESULTS)),
    },
    ("Note: column 'solvent' became 3 columns of 0 and 1: ", "plain"): {
        "numbers that are names": (
            csv(text(solvent=CODES)),
            csv(RESULTS),
            ["--category", "solvent"],
        ),
    },
}


def files_of(content):
    """Return candidates, measurements and options."""
    is_one_file = isinstance(content, bytes) or isinstance(content[0], str)
    given = [content] if is_one_file else list(content)
    return [*given, *[csv(RESULTS), []][len(given) - 1 :]]


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in READ for name in READ[case]]
)
def test_what_is_clear_is_read_right_and_said(case, name, tidy, tmp_path):
    part, form = case
    arms, results, words = files_of(READ[case][name])
    code, said, batch = suggest(tmp_path, arms, results, *words)
    assert code == 0, said
    assert part in said
    columns = ["id", "repeats"] if "names" in name else list(batch)
    expected = tidy[form]
    pd.testing.assert_frame_equal(batch[columns], expected[columns], rtol=1e-9)


# Refused, with what to do -------------------------------------------------------------

THOUSANDS = [f"1,{100 + 30 * number}" for number in range(NUM_ARMS)]
POINTS = [x.replace(",", ".") for x in THOUSANDS]
LOAD, IDS = ARMS["load"], ARMS["id"]


def rewards(*values):
    return PLAIN, csv(RESULTS.assign(reward=values))


def ids(change):
    return csv(RESULTS.assign(id=change(RESULTS["id"])))


# By what to do: the files and options as above; what is wrong.
REFUSED = {
    "Write bare numbers": {
        "units": (
            csv(text(heat=[f"{value} C" for value in ARMS["heat"]])),
            f"'heat' has '{ARMS['heat'][0]} C' in row 1 ",
        ),
        "units without a space": (
            csv(text(load=[f"{value}mg/mL" for value in LOAD])),
            "'load' has '0.5mg/mL' in row 1 ",
        ),
        "units of some": (csv(cell("heat", "30 C")), "'heat' has '30 C' in row 6 "),
        "thousands among decimal points": (
            csv(text(load=THOUSANDS)),
            "'load' has '1,100' in row 1 ",
        ),
        "decimal commas far down": (
            csv(ARMS[["id"]].assign(load=range(1, 1 + NUM_ARMS)))
            + b"\n".join(b"%06d,950" % n for n in range(9000))
            + b'\nx,"1,2"\n',
            "'load' has '1,2' in row 9025 ",
        ),
        "a decimal mark that is not the file's": (
            (german(ARMS), csv(RESULTS), ["--decimal", "."]),
            f"'heat' has '{ARMS['heat'][0]}' in row 1 ".replace(".", ","),
        ),
        "thousands and decimal commas": (
            german(ARMS.assign(load=[f"{x},5" for x in POINTS])),
            "'load' has '1.100,5' in row 1 ",
        ),
        "thousands by points beside decimal commas": (
            german(ARMS.assign(load=["950", *POINTS[1:]])),
            f"'load' has '{POINTS[1]}' in row 2 ",
        ),
        "thousands by points among decimal commas": (
            german(ARMS.assign(load=["950,5", "20,5", *POINTS[2:]])),
            "'load' has '950,5' in row 1 ",
        ),
        "thousands by spaces": (
            csv(text(load=[x.replace(",", " ") for x in THOUSANDS])),
            "'load' has '1 100' in row 1 ",
        ),
        "two decimal marks": (csv(cell("heat", "30,5")), "'heat' has '30,5' in row 6 "),
        "ranges": (
            csv(text(load=[f"{value:g}-{value + 5:g}" for value in LOAD])),
            "'load' has '0.5-5.5' in row 1 ",
        ),
        "bounds": (csv(cell("load", "<0.1")), "'load' has '<0.1' in row 6 "),
        "percent signs of some": (
            csv(cell("load", "10%")),
            "'load' has '10%' in row 6 ",
        ),
        "an error of a spreadsheet": (
            csv(cell("load", "#DIV/0!")),
            "'load' has '#DIV/0!' in row 6 ",
        ),
        "rewards with points between thousands": (
            (PLAIN, b"id;reward;volume\n00390;950;0,5\n00398;1.200;1,5\n"),
            "'reward' has '1.200' in row 2 of results.csv",
        ),
        "rewards with units": (
            rewards("41 %ee", "12 %ee", "13 %ee", ""),
            "'reward' has '41 %ee' in row 1 of results.csv",
        ),
        "rewards with a mark between thousands": (
            rewards("41.25", "1,200", "13.75", ""),
            "has '1,200' in row 2 ",
        ),
        "rewards by bounds": (
            rewards("41.25", ">10000", "13.75", "inf"),
            "has '>10000' in row 2 of results.csv (the first under the "
            "header is row 1) (more such rows: 1), which is not a finite number up to",
        ),
    },
    "Pass --decimal , or --decimal .": {
        "thousands or decimals": (
            csv(ARMS[["id", "solvent"]].assign(load=THOUSANDS)),
            "has numbers such as 1,100 in column 'load', row 1 ",
        ),
        "thousands or decimals, by points": (
            csv(ARMS[["id", "solvent"]].assign(load=POINTS), sep=";"),
            "has numbers such as 1.100",
        ),
        "thousands or decimals far down": (
            b"id;load\n"
            + b"\n".join(b"%06d;950" % n for n in range(9000))
            + b"\nx;1.200\n",
            "has numbers such as 1.200",
        ),
        "thousands by points beside both decimal marks": (
            german(ARMS.assign(load=POINTS, version="1.5")),
            "has numbers such as 1.100",
        ),
    },
    "Write dates as 2026-01-31": {
        "german dates": (
            csv(with_days(lambda day: f"{day:%d.%m.%Y}")),
            "'heat' has '01.01.2026' in row 1 ",
        ),
        "american dates": (
            csv(with_days(lambda day: f"{day:%m/%d/%Y}")),
            "'heat' has '01/01/2026' in row 1 ",
        ),
        "dates with names of months": (
            csv(with_days(lambda day: f"{day:%d-%b-%y}")),
            "'heat' has '01-Jan-26' in row 1 ",
        ),
    },
    "--category solvent if its values are names": {
        "upper and lower case": (
            csv(solvents("ETOH", [2, 5])),
            "which differs from 'EtOH' in case or spaces only",
        ),
        "spaces inside words": (
            csv(solvents("Et\u00a0OH", [1, 2, 3])),
            "'solvent' has 'Et\\xa0OH' in row ",
        ),
        "a word that occurs once": (
            csv(solvents("ethanol", [4])),
            "which occurs once where others occur 8 times. Correct it if it is a slip",
        ),
    },
    "Write ids alike in both tables": {
        "zeros lost in the results": (
            (PLAIN, ids(lambda column: column.str.lstrip("0"))),
            "results.csv measures id '390' in row 1 of results.csv",
        ),
        "zeros lost in one result": (
            (PLAIN, csv(cell("id", "398", row=2, table=RESULTS))),
            "measures id '398' in row 3 of results.csv",
        ),
        "zeros lost among the candidates": (
            csv(ARMS.assign(id=IDS.str.lstrip("0"))),
            "which is not in the table of candidates; it has ids such as '390'",
        ),
        "zeros lost in a workbook": (
            (PLAIN, (".xlsx", excel(RESULTS.assign(id=RESULTS["id"].astype(int))))),
            "results.xlsx measures id '390' in row 1 ",
        ),
        "ids in another case": (
            (csv(ARMS.assign(id="a" + IDS)), ids(lambda column: "A" + column)),
            "measures id 'A00390' in row 1 of results.csv (the first under the header "
            "is row 1) and 3 more rows, which is not in the table of candidates",
        ),
        "another dash": (
            (csv(ARMS.assign(id="a-" + IDS)), ids(lambda column: "a\u2013" + column)),
            "measures id 'a\u201300390' in row 1 ",
        ),
        "ids that became dates": (
            (PLAIN, csv(cell("id", "4-Mar", row=2, table=RESULTS))),
            "measures id '4-Mar' in row 3 ",
        ),
    },
    "Correct it": {
        "a day that there is not": (
            csv(cell("heat", "2026-02-30", table=with_days(str))),
            "the date '2026-02-30' in row 6 ",
        ),
        "an id that is taken for an empty cell": (
            csv(cell("id", "NA")),
            "has no id in row 6 ",
        ),
        "units below the header": (
            PLAIN.replace(b"\n", b"\n-,C,g,-\n", 1),
            "has no id in row 1 ",
        ),
        "shortened ids": (
            csv(ARMS.assign(id=["4.00E+15", "4.00E+15", *IDS[2:]])),
            "has the id '4.00E+15' more than once, again in row 2 ",
        ),
    },
    "The first line of a CSV file must be the header": {
        "a batch that was appended to a line without an end": (
            (PLAIN, csv(RESULTS)[:-1] + b"00402,\n"),
            "Could not read the table",
        ),
        "decimal commas between commas": (
            (PLAIN, b"id,reward\n00390,1,5\n"),
            "Expected 2 fields in line 2, saw 3",
        ),
        "a title above the header": (
            b"Plate 7, exported by the reader\n\n" + PLAIN,
            "Could not read the table",
        ),
        "a title above semicolons": (
            b"Plate 7\n" + german(ARMS),
            "Could not read the table",
        ),
        "a workbook by another name": (excel(ARMS), "it is a workbook"),
        "a Parquet file by another name": (b"PAR1" + PLAIN, "or a Parquet file"),
        "an old workbook": (b"\xd0\xcf\x11\xe0\xa1\xb1" + bytes(100), "a workbook"),
        "bytes of no encoding": (
            PLAIN + b"99999,30.5,4,s\x81ure\n",
            "Could not read the table",
        ),
    },
    "Save ": {
        "an open document": ((".ods", excel(ARMS)), "but got"),
        "letters that the results' encoding lacks": (
            (
                csv(ARMS.replace({"solvent": {"EtOH": "\u03a9m"}})),
                "id,reward,solvent\n00390,1.5,s\u00e4ure\n".encode("latin-1"),
                ["--per-measurement"],
            ),
            "next.csv cannot hold '\u03a9'",
        ),
    },
    "Add or restock candidates": {
        "nothing in stock": (
            (csv(ARMS.assign(stock=0)), csv(RESULTS), ["--available", "stock"]),
            "24 are not available",
        )
    },
    "at least one candidate": {
        "an empty workbook": ((".xlsx", excel(pd.DataFrame())), "arms.xlsx")
    },
    "Name it": {
        "row numbers without a name": (
            ARMS.to_csv().encode(),
            "has values in a column without a name, first in row 1 ",
        ),
    },
    "Fill it (NA, None and the like count as empty), remove the row": {
        "a total below": (
            PLAIN + b"Total,1220.5,,\n",
            "missing, infinite or huge value in row 25 ",
        ),
        "a word that is taken for an empty cell": (
            csv(solvents("None", [1, 3])),
            "'solvent' has a missing, infinite or huge value in row ",
        ),
        "a cell of a space": (csv(cell("heat", " ")), "huge value in row 6 "),
        "no number by a word": (
            csv(cell("heat", "n.d.")),
            "arms.csv: these cells count as empty: 'n.d.'.",
        ),
    },
}


@pytest.mark.parametrize(
    ("remedy", "name"),
    [(remedy, name) for remedy in REFUSED for name in REFUSED[remedy]],
)
def test_what_is_not_clear_is_refused_with_what_to_do(remedy, name, tmp_path):
    content, wrong = REFUSED[remedy][name]
    arms, results, words = files_of(content)
    code, said, _ = suggest(tmp_path, arms, results, *words)
    assert code == 2, said
    assert wrong in said
    assert remedy in said


# Ids, and candidates that are gone ----------------------------------------------------


def test_an_accent_apart_from_its_letter_is_the_same_id(tmp_path):
    """As macOS writes it; with features beside, it was a candidate out of the table."""
    columns = ["heat", "load", "solvent"]
    arms = ARMS.assign(id="\u00e4" + ARMS["id"])
    results = RESULTS.merge(ARMS[["id", *columns]]).assign(
        id=lambda table: "a\u0308" + table["id"]
    )
    code, said, _ = suggest(tmp_path, csv(arms), csv(results))
    assert code == 0, said
    assert "2 of them measured, 3 measurements in all, 1 in flight" in said


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_measured_candidate_out_of_a_workbook_with_dates_informs(suffix, tmp_path):
    """Its dates are those that --with-columns has written, as text or as cells."""
    arms = with_days(lambda day: day)
    gone = arms["id"].isin(RESULTS["id"].head(1))
    results = RESULTS.merge(arms)
    content = csv(results) if suffix == ".csv" else excel(results)
    batches = []
    for arms_content in (excel(arms[~gone]), csv(arms[~gone])):
        code, said, batch = suggest(
            tmp_path,
            (".xlsx" if arms_content.startswith(b"PK") else ".csv", arms_content),
            (suffix, content),
        )
        assert code == 0, said
        assert "column 'heat' holds dates, which became days since 2026-01-01" in said
        batches.append(batch)
    pd.testing.assert_frame_equal(*batches, rtol=1e-9)
