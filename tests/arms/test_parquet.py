"""Arms in Parquet files: order, reading by row groups, and what is refused."""

import os
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb import GPBandit
from botorch_bkb.arms import parquet, ParquetArms, ShardDataError
from tests.arms.test_stored import write_parquet
from tests.helpers import spy


@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 50),
    st.sampled_from(["float32", "float64", "uint8", "int32", "float16"]),
    st.booleans(),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.data(),
)
@settings(max_examples=30)
def test_any_rows_are_those_of_the_table(
    num_rows, num_columns, num_files, size, dtype, is_list, cache, kept, data
):
    num_files = min(num_files, num_rows)
    table = np.arange(num_rows * num_columns).reshape(num_rows, -1).astype(dtype)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(parquet, "CACHE_BYTES", cache)
        patch.setattr(parquet, "KEPT_BYTES", kept)
        patch.setattr(parquet, "FAR_APART", 1)
        path = Path(folder)
        write_parquet(
            table, path, is_list=is_list, row_group_size=size, num_files=num_files
        )
        columns = "x" if is_list else [f"x{n}" for n in range(num_columns)]
        arms = ParquetArms(path / "*.parquet", columns, ids="name")
        dense = torch.from_numpy(table.astype("float64")).to(arms.dtype)
        for _ in range(4):
            rows = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=9))
            assert torch.equal(arms[torch.tensor(rows, dtype=torch.long)], dense[rows])
            assert arms.ids(rows) == [f"m{row}" for row in rows]
            start = data.draw(st.integers(0, num_rows))
            stop = data.draw(st.integers(start, num_rows))
            # Of all rows a view is taken, which is read in blocks.
            assert torch.equal(arms[start:stop] + 0, dense[start:stop])


@pytest.fixture
def folder(tmp_path):
    """Three files of three row groups, with a column of text and ids."""
    table = np.random.default_rng(0).random((90, 2))
    write_parquet(table, tmp_path, is_list=False, row_group_size=10)
    return tmp_path


COLUMNS = ["x0", "x1"]


def rewrite(path, change, **options):
    """Change a file's table."""
    table = change(pq.read_table(path))
    pq.write_table(table, path, row_group_size=10, **options)


def with_column(name, values):
    """Return a change of a column."""

    def change(table):
        place = table.schema.get_field_index(name)
        return table.set_column(place, name, values(table.column(name)))

    return change


def test_row_groups_are_read_once_and_only_wanted_columns(folder, monkeypatch):
    read = spy(monkeypatch, parquet.ParquetSource, "_table")
    arms = ParquetArms(folder / "*.parquet", COLUMNS)
    assert read == []
    for start in range(0, 90, 7):
        arms[start : start + 7]
    assert read == [(arms.source, group, COLUMNS) for group in range(9)]
    monkeypatch.setattr(parquet, "CACHE_BYTES", 0)
    monkeypatch.setattr(parquet, "FAR_APART", 1)
    rows = torch.tensor([81, 3, 44, 3])
    taken = arms[rows]
    read.clear()
    # Rows from here and there are kept: they are needed again and again.
    assert torch.equal(arms[rows.flip(0)], taken.flip(0))
    assert read == []


def test_files_are_in_the_order_of_their_paths(folder):
    paths = sorted(folder.glob("*.parquet"), reverse=True)
    arms = ParquetArms(paths, COLUMNS, ids="name")
    assert arms.ids(torch.tensor([89, 0])) == ["m89", "m0"]
    with pytest.raises(InputDataError, match="between 0 and 89"):
        arms.ids([90])
    with pytest.raises(InputDataError, match="none was named"):
        ParquetArms(paths[0], COLUMNS).ids([0])
    assert ParquetArms(paths[0], ids="name").shape == (30, 2)  # all other columns


def test_a_pickle_has_no_rows_and_files_that_change_are_named(folder):
    arms = ParquetArms(folder / "*.parquet", COLUMNS)
    text = pickle.dumps(arms)
    arms[:20]
    assert len(pickle.dumps(arms)) == len(text)
    assert torch.equal(pickle.loads(text)[15:40], arms[15:40])
    path = folder / "arms-1.parquet"
    for change, match in (
        (lambda: os.utime(path, ns=(1, 1)), "arms-1.parquet to stay .* has changed"),
        (path.unlink, "arms-1.parquet cannot be read"),
    ):
        change()
        arms.source._forget()
        for each in (arms, pickle.loads(text)):
            with pytest.raises(ShardDataError, match=match):
                each[15:40]


def test_footers_that_do_not_fit_are_refused(folder):
    path = folder / "arms-1.parquet"
    rewrite(path, with_column("x1", lambda column: column.cast(pa.string())))
    match = r"column 'x1' of .*arms-1.parquet to hold numbers, .* got string"
    with pytest.raises(ShardDataError, match=match):
        ParquetArms(folder / "*.parquet", COLUMNS)
    rewrite(path, lambda table: table.drop_columns("x1"))
    match = r"arms-1.parquet has no column 'x1', only \['name', 'x0'\]"
    with pytest.raises(ShardDataError, match=match):
        ParquetArms(folder / "*.parquet", COLUMNS)


def test_lists_of_another_width_are_refused(tmp_path):
    write_parquet(np.zeros((9, 2)), tmp_path, is_list=True)
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(9)), 3)
    pq.write_table(pa.table({"x": values}), tmp_path / "arms-1.parquet")
    with pytest.raises(ShardDataError, match=r"2 features in .*arms-1.* but got 3"):
        ParquetArms(tmp_path / "*.parquet", "x")


@pytest.mark.parametrize(
    ("is_list", "value"), [(False, None), (True, [0.5, None]), (True, None)]
)
def test_missing_numbers_are_named(tmp_path, is_list, value):
    table = np.random.default_rng(0).random((90, 2))
    write_parquet(table, tmp_path, is_list=is_list, row_group_size=10)

    def change(column):
        values = column.to_pylist()
        values[17] = value
        return pa.array(values, type=column.type)

    name = "x" if is_list else "x1"
    rewrite(tmp_path / "arms-1.parquet", with_column(name, change))
    arms = ParquetArms(tmp_path / "*.parquet", "x" if is_list else COLUMNS)
    match = f"'{name}', but that of arm 47, row 7 of row group 1 of .*-1.parquet, is m"
    with pytest.raises(ShardDataError, match=match):
        GPBandit(arms)


def test_damaged_files_are_named(folder):
    path = folder / "arms-1.parquet"
    rewrite(path, lambda table: table, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(2)
    content[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 255
    path.write_bytes(content)
    arms = ParquetArms(folder / "*.parquet", COLUMNS)
    with pytest.raises(ShardDataError, match=r"row group 1 of .*-1.parquet cannot be"):
        GPBandit(arms)
    path.write_bytes(content[:100])
    with pytest.raises(ShardDataError, match=r"arms-1.parquet cannot be read"):
        ParquetArms(folder / "*.parquet", COLUMNS)


def test_large_row_groups_are_refused(folder, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 100)
    with pytest.raises(
        ShardDataError, match=r"row group 0 of .*-0.* has 160. .* smaller `row_group_s"
    ):
        ParquetArms(folder / "*.parquet", COLUMNS)


def test_no_files_no_columns_and_no_rows_are_refused(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"at .*nothing.*, but there are none"):
        ParquetArms(tmp_path / "nothing*")
    with pytest.raises(BotorchTensorDimensionError, match="at least one of `columns`"):
        ParquetArms(folder / "*.parquet", [])
    empty = tmp_path / "empty"
    empty.mkdir()
    write_parquet(np.zeros((0, 2)), empty, is_list=False, num_files=1)
    with pytest.raises(BotorchTensorDimensionError, match="got 0 x 2"):
        ParquetArms(empty / "*.parquet", COLUMNS)


def test_without_pyarrow_one_is_told_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r'pip install "botorch_bkb\[parquet\]"'):
        ParquetArms(tmp_path / "a.parquet")
