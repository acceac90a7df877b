"""Where figures come from, and where they go: provenance, tables, pictures."""

from __future__ import annotations

import math
import platform
import subprocess
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from typing_extensions import override


Provenance = dict[str, str | int]


def provenance(device: str = "cpu") -> Provenance:
    """Return what traces a benchmark's rows: commit, versions, threads, device."""
    versions = {name: version(name) for name in ("torch", "botorch", "gpytorch")}
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        **versions,
        "threads": torch.get_num_threads(),
        "device": _device_name(torch.device(device)),
    }


def caption(origin: Provenance) -> str:
    """Return the provenance as one line."""
    return "; ".join(f"{name} {value}" for name, value in origin.items())


def print_table(table: pd.DataFrame) -> None:
    """Print a table without its index, numbers to four digits."""
    print(table.to_string(index=False, na_rep="", float_format=_format))


class Record:
    """The folder of one benchmark's output; every row in it carries its provenance.

    Args:
        folder: Made if missing. Files of the same name are replaced.
        device: The device that the benchmark runs on.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.origin = provenance(device)

    def write_table(self, table: pd.DataFrame, name: str) -> None:
        """Write ``NAME.csv`` with the provenance as its last columns."""
        table.assign(**self.origin).to_csv(self.folder / f"{name}.csv", index=False)

    def write_figure(self, figure: Figure, name: str) -> None:
        """Write ``NAME.png``."""
        figure.savefig(self.folder / f"{name}.png")


class PageRecord(Record):
    """The tables and pictures of a page of the docs: fewer columns, in words.

    Args:
        folder: Made if missing. Files of the same name are replaced.
        columns: By the name of a table, the heading of each column to show.
        pictures: The names of the pictures to show.
    """

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, Mapping[str, str]],
        pictures: Collection[str],
    ) -> None:
        super().__init__(folder)
        self.columns = columns
        self.pictures = pictures

    @override
    def write_table(self, table: pd.DataFrame, name: str) -> None:
        if name in self.columns:
            headings = self.columns[name]
            shown = table[list(headings)].rename(columns=headings)
            text = shown.map(_in_words)
            text.to_csv(self.folder / f"{name}.csv", index=False)

    @override
    def write_figure(self, figure: Figure, name: str) -> None:
        if name in self.pictures:
            # Without the version of matplotlib: the same picture is the same file.
            path = self.folder / f"{name}.png"
            figure.savefig(path, dpi=80, metadata={"Software": None})


def _in_words(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else _format(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _format(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _commit() -> str:
    name = _git("describe", "--always").stdout.strip() or "unknown"
    # Rows and pages change while a benchmark runs; its code had better not.
    changed = _git("diff", "--quiet", "HEAD", "--", ":/*.py").returncode == 1
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.machine()}"
