"""Tables as people send them: the right batch, or one line that says what is wrong."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from botorch_bkb.cli.features import feature_table
from botorch_bkb.tables.columns import read_table
from tests.cli.tables import ARMS, csv, parquet, RESULTS, suggest


# Those of a fit to damaged tables; elsewhere warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore")
numbers = st.integers(0, 10**6)


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
@settings(max_examples=20)
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
    features = feature_table(arms.drop(columns=["id", "reward"], errors="ignore"))
    assert np.isfinite(features.select_dtypes("number").to_numpy()).all()
    assert features.notna().all(axis=None)
