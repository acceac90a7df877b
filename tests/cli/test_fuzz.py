"""Tables as people send them: the right batch, or one line that says what is wrong."""

import datetime
import decimal
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from botorch_bkb.cli.features import feature_table
from botorch_bkb.cli.tables import read_table
from tests.cli.tables import ARMS, cell, csv, NUM_ARMS, parquet, RESULTS, suggest


# Those of a fit to damaged tables; elsewhere warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore")
numbers = st.integers(0, 10**6)


def read(arms, results):
    """Return code, what was said and the batch; in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        return suggest(Path(name), arms, results)


@pytest.fixture(scope="module")
def expected():
    return read(csv(ARMS), csv(RESULTS))[2]


# What is no damage --------------------------------------------------------------------

HARMLESS = {
    "windows": lambda table: csv(table, lineterminator="\r\n"),
    "quotes": lambda table: csv(table, quoting=1),
    "padded names": lambda table: csv(table.rename(columns=lambda name: f" {name}  ")),
    "commas at the end of rows": lambda table: (
        csv(table).replace(b"\n", b",\n").replace(b",\n", b"\n", 1)
    ),
    "no last newline": lambda table: csv(table).rstrip(b"\n"),
    "other order": lambda table: csv(table[table.columns[::-1]]),
    "parquet with index": lambda table: parquet(table.set_index(table.index + 7)),
    "categories": lambda table: parquet(
        table.astype({name: "category" for name in table if table[name].dtype == "str"})
    ),
    "single precision": lambda table: parquet(
        table.astype({"load": "float32"}) if "load" in table else table
    ),
    "nullable": lambda table: parquet(table.convert_dtypes()),
    "decimals": lambda table: parquet(
        table.assign(heat=[decimal.Decimal(str(value)) for value in table["heat"]])
        if "heat" in table
        else table
    ),
    "numbers as text": lambda table: parquet(
        table.assign(reward=table["reward"].astype("object").map(str, "ignore"))
        if "reward" in table
        else table
    ),
}


@pytest.mark.parametrize("form", HARMLESS.values(), ids=HARMLESS)
def test_what_is_no_damage_changes_nothing(form, expected):
    """Also the order of columns: the kernel's scale is fitted per column later."""
    code, said, batch = read(form(ARMS), form(RESULTS))
    assert code == 0, said
    is_sorted = form is not HARMLESS["other order"]
    columns = list(expected) if is_sorted else ["id", "repeats"]
    pd.testing.assert_frame_equal(batch[columns], expected[columns])


# Damage in a known place --------------------------------------------------------------

# What is written into a cell, and what the line must say besides row and column.
BAD_FEATURES = {
    "": "missing",
    "NaN": "missing",
    "inf": "infinite",
    "-1e400": "infinite",
    "1e150": "huge",
    "12o": "'12o'",
    "1,5": "'1,5'",
    "#REF!": "'#REF!'",
}
BAD_REWARDS = {
    "inf": "inf",
    "-1e400": "not a finite number",
    "1e150": "1e+150",
    "ok": "'ok'",
    "1,5": "'1,5'",
}


@given(
    row=st.integers(0, NUM_ARMS - 1),
    column=st.sampled_from(["heat", "load"]),
    text=st.sampled_from(sorted(BAD_FEATURES)),
    blanks=st.booleans(),
)
@settings(max_examples=40)
def test_a_bad_feature_is_named_by_row_and_column(row, column, text, blanks):
    content, counted = csv(cell(column, text, row)), row + 2
    if blanks:
        content, counted = content.replace(b"\n", b"\n\n"), 2 * row + 3
    code, said, _ = read(content, csv(RESULTS))
    assert code == 2
    for part in (f"row {counted} ", f"'{column}'", BAD_FEATURES[text]):
        assert part in said


@given(row=st.integers(0, 3), text=st.sampled_from(sorted(BAD_REWARDS)))
@settings(max_examples=20)
def test_a_bad_reward_is_named_by_row_and_column(row, text):
    code, said, _ = read(csv(ARMS), csv(cell("reward", text, row, RESULTS)))
    assert code == 2
    for part in (f"row {row + 2} ", "'reward'", BAD_REWARDS[text], "results.csv"):
        assert part in said


@pytest.mark.parametrize(
    ("table", "text", "part"),
    [
        (RESULTS, "", "no id in row 4 "),
        (RESULTS, "m01,m02", "id 'm01,m02' in row 4 "),
        (ARMS, "00393", "more than once, again in row 5 "),
        (ARMS, 'm\n"04', "several lines in row 4 "),
    ],
)
def test_a_bad_id_is_named(table, text, part):
    content = csv(cell("id", text, 2, table))
    tables = (content, csv(RESULTS)) if table is ARMS else (csv(ARMS), content)
    code, said, _ = read(*tables)
    assert code == 2
    assert part in said


@pytest.mark.parametrize(
    "value", [datetime.time(12, 30), [1.0, 2.0], {"a": 1}, b"\xff"], ids=str
)
def test_cells_that_only_parquet_holds_are_refused(value):
    arms = parquet(ARMS.assign(heat=[value] * NUM_ARMS))
    code, said, _ = read(arms, csv(RESULTS))
    assert code == 2
    for part in ("row 2 ", "'heat'", "neither a number nor text"):
        assert part in said


# Damage of the whole table ------------------------------------------------------------

TABLES = {
    "empty": (b"", "at least one candidate"),
    "header only": (csv(ARMS[:0]), "at least one"),
    "no header": (csv(ARMS, header=False), "no column 'id'"),
    "a column twice": (
        csv(pd.concat([ARMS, ARMS[["heat"]]], axis=1)),
        "'heat' more than once",
    ),
    "a field more in every row": (
        csv(ARMS).replace(b"\n", b",x\n").replace(b"solvent,x", b"solvent", 1),
        "column without a name, first in row 2 ",
    ),
    "a field more in one row": (
        csv(ARMS).replace(b"\n00394", b"\n00394,x"),
        "line 6",
    ),
    "a comma less": (csv(ARMS).replace(b",water", b"", 1), "missing"),
    "an open quote": (csv(ARMS).replace(b"00395", b'"00395', 1), "Could not read"),
    "no gzip file": ((".csv.gz", csv(ARMS)), "Could not read"),
    "no feature": (csv(ARMS[["id"]]), "at least one column that can be a feature"),
    "constant": (csv(ARMS[["id"]].assign(heat=1)), "at least one column"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_none_is_refused(name):
    content, part = TABLES[name]
    code, said, _ = read(content, csv(RESULTS))
    assert code == 2
    assert part in said


def broken(content, place, kind, byte):
    """Damage bytes somewhere."""
    if not content:
        return bytes([byte])
    place %= len(content)
    if kind == "cut":
        return content[:place]
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ byte]) + content[place + 1 :]
    if kind == "insert":
        return content[:place] + bytes([byte]) + content[place:]
    return content[:place] + content[place : place + byte] * 2 + content[place + byte :]


damages = st.lists(
    st.tuples(
        numbers,
        st.sampled_from(["cut", "flip", "insert", "repeat"]),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("form", [lambda table: (".csv", csv(table)), parquet])
@pytest.mark.parametrize("which", ["arms", "results"])
@given(changes=damages)
@example(changes=[(32, "flip", 128)])  # a text that is none, in the results
@settings(max_examples=40)
def test_any_bytes_give_a_batch_of_the_candidates_or_one_line(which, form, changes):
    tables = {"arms": csv(ARMS), "results": csv(RESULTS[:2])}
    suffix, content = form({"arms": ARMS, "results": RESULTS[:2]}[which])
    for change in changes:
        content = broken(content, *change)
    tables[which] = (suffix, content)
    with tempfile.TemporaryDirectory() as name:
        code, _, batch = suggest(Path(name), tables["arms"], tables["results"])
        if code == 2:
            return
        arms_name = f"arms{suffix if which == 'arms' else '.csv'}"
        arms = read_table(Path(name) / arms_name, ["id"]).frame
    assert batch["repeats"].sum() == 5
    assert set(batch["id"]) <= set(arms["id"])
    features, _ = feature_table(arms.drop(columns=["id", "reward"], errors="ignore"))
    assert np.isfinite(features.to_numpy()).all()
