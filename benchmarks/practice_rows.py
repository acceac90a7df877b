"""A table of rows that grows run by run, and of which a killed run breaks nothing."""

from __future__ import annotations

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
        path: Made when the first run is appended.
        keys: The columns that name a run.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self.keys = list(keys)
        if path.is_file():
            text = path.read_text()
            table = self._finished(text)
            is_whole = text.endswith("\n") and text.count("\n") == len(table) + 1
            if not is_whole:
                self._replace(table)

    def table(self) -> pd.DataFrame:
        """Return the rows of all finished runs."""
        if not self.path.is_file():
            return pd.DataFrame(columns=self.keys)
        return self._finished(self.path.read_text())

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
        with self.path.open("r+") as file:
            columns = file.readline().rstrip("\n").split(",")
            if columns != list(table.columns):
                raise ValueError(
                    f"Expected the columns of {self.path}, {columns}, but got "
                    f"{list(table.columns)}. Take another folder by --output."
                )
            file.seek(0, os.SEEK_END)
            file.write(table.to_csv(index=False, header=False))

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
        table = pd.read_csv(io.StringIO(lines))
        sizes = table.groupby(self.keys)["rows"].transform("size")
        return table[sizes == table["rows"]].reset_index(drop=True)

    def _keys(self, table: pd.DataFrame) -> list[tuple[Any, ...]]:
        return list(table[self.keys].itertuples(index=False, name=None))

    def _replace(self, table: pd.DataFrame) -> None:
        # Renamed when it is complete: killed here, the old file is still there.
        scratch = self.path.with_suffix(".new")
        table.to_csv(scratch, index=False)
        os.replace(scratch, self.path)
