"""A table of rows that grows run by run, and of which a killed run breaks nothing."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd


RunKey = TypeVar("RunKey", bound=tuple[Any, ...])


class RowFile:
    """A CSV file of finished runs.

    A run is there if all its rows are: their column ``rows`` says how many. What a
    killed program has left of one is dropped at the start, also half of a line.

    Args:
        path: Made when the first run is appended. One that ends in `.gz` is compressed,
            and written anew with each run.
        keys: The columns that name a run.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self.keys = list(keys)
        if path.is_file():
            text = self._text()
            table = self._finished(text)
            is_whole = text.endswith("\n") and text.count("\n") == len(table) + 1
            if not is_whole:
                self._replace(table)

    def table(self) -> pd.DataFrame:
        """Return the rows of all finished runs."""
        if not self.path.is_file():
            return pd.DataFrame(columns=self.keys)
        return self._finished(self._text())

    def table_for_page(self) -> pd.DataFrame:
        """Return the rows of which a page of the docs is made.

        Raises:
            SystemExit: If there are none.
        """
        table = self.table()
        if table.empty:
            raise SystemExit(
                f"Expected rows of finished runs, but {self.path} has none."
            )
        return table

    def runs(self) -> set[tuple[Any, ...]]:
        """Return the keys of all finished runs."""
        return set(self._keys(self.table()))

    def missing(self, wanted: Sequence[RunKey], *, again: bool = False) -> list[RunKey]:
        """Return, and print how many, of these runs are not there yet.

        Args:
            wanted: The keys of runs.
            again: Whether to forget them first.
        """
        if again:
            self.drop(wanted)
        done = self.runs()
        missing = [one for one in wanted if one not in done]
        print(f"{len(missing):,} of {len(wanted):,} runs are left to do", flush=True)
        return missing

    def append(self, table: pd.DataFrame) -> None:
        """Write the rows of one run.

        Raises:
            ValueError: If they have other columns than those that are there.
        """
        if not self.path.is_file():
            self._replace(table)
            return
        text = self._text()
        columns = text[: text.index("\n")].split(",")
        if columns != list(table.columns):
            raise ValueError(
                f"Expected the columns of {self.path}, {columns}, but got "
                f"{list(table.columns)}. Take another folder by --output."
            )
        lines = table.to_csv(index=False, header=False)
        if self.path.suffix == ".gz":
            self._write(text + lines)
        else:
            with self.path.open("a") as file:
                file.write(lines)

    def drop(self, runs: Iterable[tuple[Any, ...]]) -> None:
        """Forget some runs."""
        table, dropped = self.table(), set(runs)
        is_kept = [key not in dropped for key in self._keys(table)]
        if not all(is_kept):
            self._replace(table[is_kept])

    def _finished(self, text: str) -> pd.DataFrame:
        # Whatever stands behind the last end of a line was not written to its end.
        lines = text[: text.rfind("\n") + 1]
        if not lines:
            return pd.DataFrame(columns=self.keys)
        # A short hash may be digits alone, or look like 12e4567.
        table = pd.read_csv(io.StringIO(lines), dtype={"commit": str})
        sizes = table.groupby(self.keys)["rows"].transform("size")
        return table[sizes == table["rows"]].reset_index(drop=True)

    def _keys(self, table: pd.DataFrame) -> list[tuple[Any, ...]]:
        return list(table[self.keys].itertuples(index=False, name=None))

    def _text(self) -> str:
        content = self.path.read_bytes()
        if self.path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode()

    def _replace(self, table: pd.DataFrame) -> None:
        self._write(table.to_csv(index=False))

    def _write(self, text: str) -> None:
        content = text.encode()
        if self.path.suffix == ".gz":
            # Without the time: the same rows are the same file.
            content = gzip.compress(content, mtime=0)
        # Renamed when it is complete: killed here, the old file is still there.
        scratch = self.path.with_suffix(".new")
        scratch.write_bytes(content)
        os.replace(scratch, self.path)
