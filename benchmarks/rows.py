"""A table of rows that grows run by run."""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from tqdm import tqdm

from benchmarks.record import Record, RESULTS


Run = TypeVar("Run", bound=tuple[Any, ...])


def add_run_arguments(
    parser: argparse.ArgumentParser, num_seeds: int | None, *, has_page: bool = True
) -> None:
    """Add the options of benchmarks that play runs.

    Args:
        parser: Of a benchmark.
        num_seeds: The default; None for all.
        has_page: Whether the docs have tables of rows that we keep.
    """
    parser.add_argument(
        "--seeds", type=int, default=num_seeds, metavar="N", help="the first N seeds"
    )
    parser.add_argument(
        "--again", action="store_true", help="drop the rows of these runs first"
    )
    parser.set_defaults(page=False)
    if has_page:
        parser.add_argument(
            "--page", action="store_true", help="only make the docs' tables"
        )


def finished_rows(
    args: argparse.Namespace,
    record: Record,
    file: str,
    keys: Sequence[str],
    wanted: Sequence[Run],
    play: Callable[[Run], pd.DataFrame],
) -> pd.DataFrame:
    """Play the runs that are not there yet; return the rows of all finished runs.

    With ``--page`` none is played, and the rows are those in ``benchmarks/results``.

    Args:
        args: With the options of :func:`add_run_arguments`.
        record: Of the benchmark's output.
        file: The name of the file of rows.
        keys: The columns that name a run.
        wanted: The keys of runs.
        play: Returns the rows of a run, without its keys.
    """
    if args.page:
        return RowFile(RESULTS / file, keys).table()
    rows = RowFile(record.folder / file, keys)
    rows.play_missing(wanted, play, record.origin, again=args.again)
    return rows.table()


class RowFile:
    """A CSV file of finished runs.

    It is replaced as a whole after each run, so a killed program leaves either all rows
    of a run or none.

    Args:
        path: Made when the first run is appended. One that ends in `.gz` is compressed.
        keys: The columns that name a run.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self.keys = list(keys)

    def table(self) -> pd.DataFrame:
        """Return the rows of all finished runs."""
        if not self.path.is_file():
            return pd.DataFrame(columns=self.keys)
        # A short hash may be digits alone, or look like 12e4567.
        return pd.read_csv(self.path, dtype={"commit": str})

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
            wanted: The keys of runs.
            play: Returns the rows of a run, without its keys.
            origin: The last columns of every row.
            again: Whether to forget the wanted runs first.

        Raises:
            SystemExit: At the end, if runs failed.
        """
        if again and self.path.is_file():
            dropped = set(wanted)
            self._write(self._text()[[key not in dropped for key in self._done()]])
        done = set(self._done())
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
            self._append(table.assign(**origin))
        if failures:
            raise SystemExit("These failed:\n" + "\n".join(failures))

    def _done(self) -> list[tuple[Any, ...]]:
        """Return the key of every row."""
        keys = self.table()[self.keys]
        return list(keys.itertuples(index=False, name=None))

    def _text(self) -> pd.DataFrame:
        """Return the rows as they are written in the file."""
        return pd.read_csv(self.path, dtype=str, keep_default_na=False)

    def _append(self, table: pd.DataFrame) -> None:
        if self.path.is_file():
            text = self._text()
            if list(text.columns) != list(table.columns):
                raise ValueError(
                    f"Expected the columns of {self.path}, {list(text.columns)}, but "
                    f"got {list(table.columns)}. Take another folder by --output."
                )
            table = pd.concat([text, table])
        self._write(table)

    def _write(self, table: pd.DataFrame) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete: killed here, the old file is still there.
        scratch = self.path.with_name(f"new-{self.path.name}")
        # Without the time: the same rows are the same file.
        how = {"method": "infer", "mtime": 0}
        table.to_csv(scratch, index=False, compression=how)
        os.replace(scratch, self.path)
