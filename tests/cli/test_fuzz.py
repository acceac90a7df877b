"""Tables as people send them: the right batch, or one line that says what is wrong."""

import contextlib
import datetime
import decimal
import io
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from botorch_bkb.__main__ import main
from botorch_bkb.cli.features import feature_table
from botorch_bkb.cli.tables import read_table


RNG = np.random.default_rng(0)
NUM_ARMS = 14
ARMS = pd.DataFrame(
    {
        "id": [f"m{number:02d}" for number in range(NUM_ARMS)],
        "heat": np.round(RNG.uniform(20, 90, NUM_ARMS), 2),
        "acid": RNG.integers(1, 9, NUM_ARMS),
        "solvent": RNG.choice(["water", "ethanol"], NUM_ARMS),
    }
)
RESULTS = pd.DataFrame(
    {"id": ["m03", "m05", "m05", "m09"], "reward": [1.25, -0.5, 0.75, np.nan]}
)
numbers = st.integers(0, 10**6)


def run(*words):
    """Run a command; return its exit code and what it said on standard error."""
    error = io.StringIO()
    with (
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # here they are no errors, but of a fit
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # of argparse
            code = stop.code
    said = error.getvalue()
    assert "Traceback" not in said
    return code, said


@contextlib.contextmanager
def in_folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def suggest(folder, arms, results, *words):
    """Write two tables, bytes or frames, and return code, error and the batch."""
    names = []
    for name, content in (("arms", arms), ("results", results)):
        suffix, data = content if isinstance(content, tuple) else (".csv", content)
        path = folder / f"{name}{suffix}"
        if isinstance(data, bytes):
            path.write_bytes(data)
        elif suffix == ".parquet":
            data.to_parquet(path)
        else:
            data.to_csv(path, index=False)
        names.append(path)
    output = folder / "next.csv"
    code, error = run(
        *("suggest", names[0], "--observations", names[1], "--output", output),
        *("--batch-size", 5, *words),
    )
    assert code in (0, 2)
    assert (code == 0) == output.is_file()
    if code == 2:
        assert error.count("\n") == 1
        return code, error, None
    return code, error, pd.read_csv(output, dtype={"id": "str"})


def expected_batch():
    with in_folder() as folder:
        return suggest(folder, ARMS, RESULTS)[2]


EXPECTED = expected_batch()


def csv(table, **options):
    return table.to_csv(index=False, **options).encode()


def parquet(table):
    return (".parquet", table)


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
        table.assign(acid=table["acid"].astype("int8")) if "acid" in table else table
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


@pytest.mark.parametrize("arms", HARMLESS)
def test_what_is_no_damage_changes_nothing(arms, tmp_path):
    """Also the order of columns: the kernel's scale is fitted per column later."""
    form = HARMLESS[arms]
    code, error, batch = suggest(tmp_path, form(ARMS), form(RESULTS))
    assert code == 0, error
    columns = ["id", "repeats"] if arms == "other order" else list(EXPECTED)
    pd.testing.assert_frame_equal(batch[columns], EXPECTED[columns])


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


def damaged(table, row, column, text):
    table = table.astype("object")
    table.loc[row, column] = text
    return csv(table)


@given(
    row=st.integers(0, NUM_ARMS - 1),
    column=st.sampled_from(["heat", "acid"]),
    text=st.sampled_from(sorted(BAD_FEATURES)),
    blanks=st.booleans(),
)
@settings(max_examples=40)
def test_a_bad_feature_is_named_by_row_and_column(row, column, text, blanks):
    content, counted = damaged(ARMS, row, column, text), row + 1
    if blanks:
        content, counted = content.replace(b"\n", b"\n\n"), 2 * row + 2
    with in_folder() as folder:
        code, error, _ = suggest(folder, content, RESULTS)
    assert code == 2
    assert f"row {counted} " in error
    assert f"'{column}'" in error
    assert BAD_FEATURES[text] in error


@given(row=st.integers(0, 3), text=st.sampled_from(sorted(BAD_REWARDS)))
@settings(max_examples=20)
def test_a_bad_reward_is_named_by_row_and_column(row, text):
    with in_folder() as folder:
        code, error, _ = suggest(folder, ARMS, damaged(RESULTS, row, "reward", text))
    assert code == 2
    for part in (f"row {row + 1} ", "'reward'", BAD_REWARDS[text], "results.csv"):
        assert part in error


@pytest.mark.parametrize(
    ("table", "text", "part"),
    [
        (RESULTS, "", "no id in row 3 "),
        (RESULTS, "m01,m02", "id 'm01,m02' in row 3 "),
        (ARMS, "", "no id in row 3 "),
        (ARMS, "m03", "more than once, again in row 4 "),
        (ARMS, 'm\n"04', "several lines in row 3 "),
    ],
)
def test_a_bad_id_is_named(table, text, part, tmp_path):
    content = damaged(table, 2, "id", text)
    tables = (content, RESULTS) if table is ARMS else (ARMS, content)
    code, error, _ = suggest(tmp_path, *tables)
    assert code == 2
    assert part in error


OTHER_CELLS = {
    "times of day": datetime.time(12, 30),
    "lists": [1.0, 2.0],
    "dictionaries": {"a": 1},
    "bytes": b"\xff",
}


@pytest.mark.parametrize("kind", OTHER_CELLS)
def test_cells_that_only_parquet_holds_are_refused(kind, tmp_path):
    arms = ARMS.assign(heat=[OTHER_CELLS[kind]] * NUM_ARMS)
    code, error, _ = suggest(tmp_path, parquet(arms), RESULTS)
    assert code == 2
    assert "row 1 " in error
    assert "'heat'" in error
    assert "neither a number nor text" in error


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
        "Expected 4 fields in line 2, saw 5",
    ),
    "a field more in one row": (csv(ARMS).replace(b"\nm04", b"\nm04,x"), "line 6"),
    "a comma less": (csv(ARMS).replace(b",water", b"", 1), "missing"),
    "an open quote": (csv(ARMS).replace(b"m05", b'"m05', 1), "Could not read"),
    "no gzip file": ((".csv.gz", csv(ARMS)), "Could not read"),
    "no feature": (csv(ARMS[["id"]]), "at least one column that can be a feature"),
    "constant": (csv(ARMS[["id"]].assign(heat=1)), "at least one column"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_none_is_refused(name, tmp_path):
    content, part = TABLES[name]
    code, error, _ = suggest(tmp_path, content, RESULTS)
    assert code == 2
    assert part in error


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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("which", ["arms", "results"])
@given(changes=damages)
@example(changes=[(32, "flip", 128)])  # a text that is none, in the results
@settings(max_examples=40)
def test_any_bytes_give_a_batch_of_the_candidates_or_one_line(which, suffix, changes):
    tables = {"arms": ARMS, "results": RESULTS[:2]}
    whole = io.BytesIO()
    if suffix == ".csv":
        whole.write(csv(tables[which]))
    else:
        tables[which].to_parquet(whole)
    content = whole.getvalue()
    for change in changes:
        content = broken(content, *change)
    tables[which] = (suffix, content)
    with in_folder() as folder:
        code, _, batch = suggest(folder, tables["arms"], tables["results"])
        if code == 2:
            return
        assert batch["repeats"].sum() == 5
        arms_name = f"arms{suffix if which == 'arms' else '.csv'}"
        arms = read_table(folder / arms_name, ["id"]).frame
        assert set(batch["id"]) <= set(arms["id"])
        arms = arms.drop(columns=["id", "reward"], errors="ignore")
        features, _ = feature_table(arms)
        assert np.isfinite(features.to_numpy()).all()
