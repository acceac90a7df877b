"""Tables as labs have them: each is read right and said so, or refused with a remedy.

What is read right gives, to the last digit, the batch of the tidy table.
"""

import datetime
import gzip
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from tests.cli.tables import (
    ARMS,
    cell,
    csv,
    excel,
    NUM_ARMS,
    parquet,
    RESULTS,
    suggest,
)


START = datetime.date(2026, 1, 1)
DAYS = [0, *np.random.default_rng(0).integers(1, 300, NUM_ARMS - 1).tolist()]


# How tables are written ---------------------------------------------------------------


def german(table):
    return csv(table, sep=";", decimal=",")


def text(**columns):
    """Return the candidates with other texts in some columns."""
    return ARMS.astype("object").assign(**columns)


def with_days(form):
    return ARMS.assign(heat=[form(START + datetime.timedelta(day)) for day in DAYS])


def solvents(word, rows):
    words = ARMS["solvent"].copy()
    words.iloc[np.flatnonzero(words == "EtOH")[rows]] = word
    return ARMS.assign(solvent=words)


@pytest.fixture(scope="module")
def tidy(tmp_path_factory):
    """Return the batches of tidy tables."""
    forms = {
        "plain": ARMS,
        "days": ARMS.assign(heat=DAYS),
        "hours": ARMS.assign(heat=[day + 0.5 * (day > 0) for day in DAYS]),
        "acid": ARMS.replace({"solvent": {"EtOH": "säure"}}),
        "ripe": ARMS.assign(ripe=ARMS["load"] > 15),
    }
    batches = {}
    for name, table in forms.items():
        folder = tmp_path_factory.mktemp(name)
        code, said, batches[name] = suggest(folder, csv(table), csv(RESULTS))
        assert code == 0, said
    return batches


# Read right, and said so --------------------------------------------------------------

PLAIN, SOME = csv(ARMS), csv(RESULTS)
RIPE = csv(ARMS.assign(ripe=ARMS["load"] > 15))
DECIMAL_COMMAS = "arms.csv: is read with ';' between fields, ',' before decimals, utf-8"
PERCENT = [f"{value:g}%" for value in ARMS["load"]]

TEXT, LONGER = PLAIN.decode(), PLAIN.replace(b"\n", b",\n")
TABS = csv(ARMS, sep="\t", decimal=",")
HEAT = ARMS["heat"].map(str)
FIRST = HEAT[0]
NUMBERS = "of text is read as numbers, such as"
AS_DAYS = "column 'heat' holds dates, which became days since 2026-01-01"


# By what is said and the tidy table: the candidates' file, perhaps the measurements',
# perhaps options.
READ = {
    (DECIMAL_COMMAS, "plain"): {
        "the separator in the first line": b"sep=;\r\n" + german(ARMS),
        "a byte order mark": b"\xef\xbb\xbf" + german(ARMS),
        "blank rows between": german(ARMS).replace(b"\n", b"\n;;;\n"),
    },
    ("between fields, ',' before decimals", "plain"): {
        "tabs and decimal commas": (".txt", TABS),
        "compressed": (".csv.gz", gzip.compress(german(ARMS))),
    },
    ("between fields, '.' before decimals", "plain"): {
        "semicolons and decimal points": csv(ARMS, sep=";"),
        "tabs": (".tsv", csv(ARMS, sep="\t")),
        "utf-16": TEXT.encode("utf-16"),
    },
    ("'.' before decimals, cp1252", "acid"): {
        "latin-1": TEXT.replace("EtOH", "säure").encode("latin-1"),
    },
    ("24 candidates", "plain"): {
        "old line ends": PLAIN.replace(b"\n", b"\r"),
        "a workbook with a blank row and column": excel(ARMS, startrow=1, startcol=1),
        "blank rows at the top": b"\n,,,\n" + PLAIN,
        "blank columns at the end": PLAIN.replace(b"\n", b",,\n"),
        "commas at the end of rows": LONGER.replace(b",\n", b"\n", 1),
        "windows": csv(ARMS, lineterminator="\r\n"),
        "quotes": csv(ARMS, quoting=1),
        "no last newline": (PLAIN[:-1], SOME[:-1]),
        "an index": parquet(ARMS.set_index(ARMS.index + 7)),
        "categories": parquet(ARMS.astype({"id": "category", "solvent": "category"})),
        "single precision": parquet(ARMS.astype({"load": "float32"})),
        "nullable": (parquet(ARMS.convert_dtypes()), parquet(RESULTS.convert_dtypes())),
        "decimals": parquet(ARMS.assign(heat=ARMS["heat"].map(str).map(Decimal))),
        "numbers as text": (PLAIN, parquet(RESULTS.map(str, "ignore"))),
        "the names of another order": csv(ARMS[ARMS.columns[::-1]]),
        "spaces before quotes": PLAIN.replace(b",EtOH", b', "EtOH"'),
        "spaces around fields": PLAIN.replace(b",", b" , ").replace(b"\n", b" \n"),
        "a separator that is named": (csv(ARMS, sep="~"), SOME, ["--separator", "~"]),
    },
    ("24 candidates", "ripe"): {
        "a blank row at the end of truth values": RIPE + b",,,,\n",
    },
    ("2 of them measured, 3 measurements in all, 1 in flight", "plain"): {
        "an empty sheet": (excel(pd.DataFrame(), ARMS), excel(RESULTS, pd.DataFrame())),
    },
    (f"column 'heat' {NUMBERS} '{FIRST.replace('.', ',')}' as {FIRST}", "plain"): {
        "a workbook with decimal commas as text": excel(
            text(heat=HEAT.str.replace(".", ","))
        ),
    },
    (f"column 'load' {NUMBERS}", "plain"): {
        "percent signs": csv(text(load=PERCENT)),
    },
    (f"column 'reward' {NUMBERS} '41.25%' as 41.25", "plain"): {
        "rewards with percent signs": (
            PLAIN,
            csv(RESULTS.assign(reward=["41.25%", "12.5%", "13.75%", ""])),
        ),
    },
    (AS_DAYS, "days"): {
        "a workbook with dates": excel(with_days(lambda day: day)),
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
}


def files_of(content):
    """Return candidates, measurements and options."""
    is_one_file = isinstance(content, bytes) or isinstance(content[0], str)
    given = [content] if is_one_file else list(content)
    return [*given, *[SOME, []][len(given) - 1 :]]


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in READ for name in READ[case]]
)
def test_what_is_clear_is_read_right_and_said(case, name, tidy, tmp_path):
    part, form = case
    arms, results, words = files_of(READ[case][name])
    code, said, batch = suggest(tmp_path, arms, results, *words)
    assert code == 0, said
    assert part in said
    # The kernel's scale is fitted per column later.
    columns = ["id", "repeats"]
    columns += [] if "names" in name else ["mean", "std", "low", "high", "why"]
    expected = tidy[form]
    pd.testing.assert_frame_equal(batch[columns], expected[columns], rtol=1e-9)


# Refused, with what to do -------------------------------------------------------------

THOUSANDS = [f"1,{100 + 30 * number}" for number in range(NUM_ARMS)]
POINTS = [x.replace(",", ".") for x in THOUSANDS]
IDS, SOME_ROWS = ARMS["id"], RESULTS.to_numpy()


def rewards(*values):
    return PLAIN, csv(RESULTS.assign(reward=values))


def ids(change):
    return csv(RESULTS.assign(id=change(RESULTS["id"])))


def id_of(table, text):
    return csv(cell("id", text, 2, table))


# By what to do: the files and options as above; what is wrong.
REFUSED = {
    "Write bare numbers": {
        "thousands among decimal points": (
            csv(text(load=THOUSANDS)),
            "'load' has '1,100' in row 2 ",
        ),
        "decimal commas far down": (
            csv(ARMS[["id"]].assign(load=range(1, 1 + NUM_ARMS)))
            + b"\n".join(b"%06d,950" % n for n in range(9000))
            + b'\nx,"1,2"\n',
            "'load' has '1,2' in row 9026 ",
        ),
        "a decimal mark that is not the file's": (
            (german(ARMS), SOME, ["--decimal", "."]),
            f"'heat' has '{ARMS['heat'][0]}' in row 2 ".replace(".", ","),
        ),
        "thousands by points among decimal commas": (
            german(ARMS.assign(load=["950,5", "20,5", *POINTS[2:]])),
            "'load' has '950,5' in row 2 ",
        ),
        "% of some": (csv(cell("load", "10%")), "'load' has '10%' in row 7 "),
        "rewards with points between thousands": (
            (PLAIN, b"id;reward;volume\n00390;950;0,5\n00398;1.200;1,5\n"),
            "'reward' has '1.200' in row 3 of results.csv",
        ),
        "a huge reward": (
            rewards("41.25", "1e150", "13.75", "2"),
            "'reward' has '1e+150' in row 3 of results.csv (the header counts, as in a "
            "spreadsheet), which is beyond 1e+100.",
        ),
    },
    "Pass --decimal , or --decimal .": {
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
    "--category solvent if its values are names": {
        "spaces inside words": (
            csv(solvents("Et\u00a0OH", [1, 2, 3])),
            "'solvent' has 'Et\\xa0OH' in row ",
        ),
        "a word that occurs once": (
            csv(solvents("ethanol", [4])),
            "occurs once where others occur 8 times. Correct it if it is a slip. Pass",
        ),
    },
    "Write ids alike in both tables": {
        "ids in another case": (
            (csv(ARMS.assign(id="a" + IDS)), ids(lambda column: "A" + column)),
            "measures id 'A00390' in row 2 of results.csv (the header counts, as in "
            "a spreadsheet), the first of 4 such rows, which is not in the table of",
        ),
    },
    "Correct it": {
        "a day that there is not": (
            csv(cell("heat", "2026-02-30", table=with_days(str))),
            "the date '2026-02-30' in row 7 ",
        ),
        "a row whose only cell is an id that is taken for an empty one": (
            PLAIN + b"None,,,\n",
            "has no id in row 26 ",
        ),
        "an id that is taken for a gap": (csv(cell("id", "NA")), "has no id in row 7 "),
        **{
            f"a setting of {number}": (
                csv(cell("heat", number)),
                f"'heat' has the number {number}, beyond 1e+100, in row 7 of arms.csv",
            )
            for number in ("inf", "1e+150")
        },
        "a setting below blank lines": (
            csv(cell("heat", "inf")).replace(b"\n", b"\n\n"),
            "beyond 1e+100, in row 13 of arms.csv",
        ),
    },
    "The suffix of the name must be that of its kind": {
        "a Parquet file by another name": (b"PAR1" + PLAIN, "or a Parquet file"),
    },
    "Every row of a CSV file begins a line": {
        "a batch that was appended to a line without an end": (
            (PLAIN, SOME[:-1] + b"00402,\n"),
            "Expected 2 fields in line 5, saw 3",
        ),
    },
    "Otherwise name the column, or remove it; fields with the separator": {
        "decimal commas between commas": (
            (PLAIN, b"id,reward\n00390,1,5\n"),
            "first in row 2 ",
        ),
        "row numbers without a name": (ARMS.to_csv().encode(), "first in row 2 "),
    },
    "If the first row looks like a title, remove what is above the header": {
        "a title above semicolons": (b"Plate 7\n" + german(ARMS), "first in row 2 "),
        "a title in a workbook": (
            (PLAIN, excel(pd.DataFrame([[*RESULTS], *SOME_ROWS], columns=["7", ""]))),
            "results.xlsx has values in a column without a name, first in row 2 ",
        ),
    },
    "pass --encoding cp1252 if they are right, else gbk, big5, shift_jis, cp1251": {
        "bytes of no encoding": (
            PLAIN + b"99999,30.5,4,s\x81ure\n",
            "arms.csv is not UTF-8. As cp1252 it has the letters ",
        ),
    },
    "Save ": {
        "an open document": ((".ods", excel(ARMS)[1]), "but got"),
        "letters that the results' encoding lacks": (
            (
                csv(ARMS.replace({"solvent": {"EtOH": "\u03a9m"}})),
                "id,reward,solvent\n00390,1.5,s\u00e4ure\n".encode("latin-1"),
                ["--per-measurement"],
            ),
            "next.csv cannot hold '\u03a9'",
        ),
    },
    "at least one candidate": {
        "an empty workbook": (excel(pd.DataFrame()), "arms.xlsx"),
        "an empty file": (b"", "arms.csv"),
        "a header only": (PLAIN[: PLAIN.index(b"\n") + 1], "arms.csv"),
    },
    "at least one column that can be a feature": {
        "no feature": (csv(ARMS[["id"]]), "there is none among ['id']"),
        "a constant": (csv(ARMS[["id"]].assign(heat=1)), "'heat' is constant"),
    },
    "Could not read": {
        "an open quote": (PLAIN.replace(b"00395", b'"00395', 1), "arms.csv"),
        "no gzip file": ((".csv.gz", PLAIN), "arms.csv.gz"),
    },
    "Write 45, or failed for": {
        f"{cell} among decimal commas": (
            (german(ARMS), f"id;reward\n00390;3,4\n00391;5\n00392;{cell}\n".encode()),
            f"'reward' has {cell!r} in row 4 of results.csv",
        )
        for cell in ("ca. 45", "45 %", ">45", "\u226545", "45+")
    },
    "Of a reading beyond a limit, write the limit. Write bare numbers": {
        "a saturated well": (
            (PLAIN, b"id,reward\n00390,3.4\n00391,OVER\n"),
            "'reward' has 'OVER' in row 3 of results.csv",
        ),
    },
    "decimals as in the rest of the file": {
        "a setting among decimal commas": (
            german(cell("heat", "ca. 40")),
            "'heat' has 'ca. 40' in row 7 of arms.csv (the header counts, as in a "
            "spreadsheet), which stands among numbers",
        ),
    },
    "neither a number nor text": {
        f"a cell of {type(value).__name__}": (
            parquet(ARMS.assign(heat=pd.Series([value] * NUM_ARMS))),
            "'heat' has the value",
        )
        for value in (datetime.time(12, 30), [1.0, 2.0], b"\xff")
    },
    "id": {
        "an id of a result that is missing": ((PLAIN, id_of(RESULTS, "")), "row 4 "),
        "an id of two lines": (id_of(ARMS, 'm\n"04'), "several lines in row 4 "),
    },
    "": {
        "a column twice": (
            csv(pd.concat([ARMS, ARMS[["heat"]]], axis=1)),
            "'heat' more than once",
        ),
        "a field more in one row": (PLAIN.replace(b"\n00394", b"\n00394,x"), "line 6"),
        "a comma less": (PLAIN.replace(b",water", b"", 1), "an empty cell in row 3 "),
    },
    "fill it (NA, None and the like count as empty). If the setting does not": {
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


@pytest.mark.parametrize("form", [csv, excel])
def test_a_measured_candidate_out_of_a_workbook_with_dates_informs(form, tmp_path):
    """Its dates are those that --with-columns has written, as text or as cells."""
    arms = with_days(lambda day: day)
    gone = arms["id"].isin(RESULTS["id"].head(1))
    results = RESULTS.merge(arms)
    batches = []
    for content in (excel(arms[~gone]), csv(arms[~gone])):
        code, said, batch = suggest(tmp_path, content, form(results))
        assert code == 0, said
        assert AS_DAYS in said
        batches.append(batch)
    pd.testing.assert_frame_equal(*batches, rtol=1e-9)
