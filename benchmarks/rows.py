"""A table of rows that grows run by run, and of which a killed run breaks nothing."""

from __future__ import annotations

import gzip
import io
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from tqdm import tqdm


Run = TypeVar("Run", bound=tuple[Any, ...])


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
        self._write(text + table.to_csv(index=False, header=False))

    def drop(self, runs: Iterable[tuple[Any, ...]]) -> None:
        """Forget some runs."""
        table, dropped = self.table(), set(runs)
        is_kept = [key not in dropped for key in self._keys(table)]
        self._replace(table[is_kept])

    def play_missing(
        self,
        wanted: Sequence[Run],
        play: Callable[[Run], pd.DataFrame],
        origin: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> None:
        """Play the runs that are not there yet, and append their rows.

        A run that raises an error does not stop the others, unless a file is missing.

        Args:
            wanted: The keys of runs, named tuples.
            play: Returns the rows of a run, without its keys.
            origin: The last columns of every row.
            again: Whether to forget the wanted runs first.

        Raises:
            SystemExit: At the end, if runs failed.
        """
        if again and self.path.is_file():
            self.drop(wanted)
        done = set(self._keys(self.table()))
        missing = [one for one in wanted if one not in done]
        print(f"{len(missing):,} of {len(wanted):,} runs are left to do", flush=True)
        failures = []
        for one in tqdm(missing, unit="run", disable=not missing):
            try:
                played = play(one)
            except FileNotFoundError:
                raise  # other runs need it too
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{one}: {type(error).__name__}: {error}")
                continue
            keys = pd.DataFrame([one] * len(played), columns=self.keys)
            columns = [keys, played.reset_index(drop=True)]
            table = pd.concat(columns, axis="columns").assign(rows=len(played))
            self.append(table.assign(**origin))
        if failures:
            raise SystemExit("These failed:\n" + "\n".join(failures))

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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete: killed here, the old file is still there.
        scratch = self.path.with_suffix(".new")
        scratch.write_bytes(content)
        os.replace(scratch, self.path)
