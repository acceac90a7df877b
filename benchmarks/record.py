"""Where figures come from, and where they go: provenance, tables, pictures."""

from __future__ import annotations

import math
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure


# Where rows are kept, and where the docs read their tables and pictures.
RESULTS = Path(__file__).with_name("results")
PAGE = RESULTS.parents[1] / "docs" / "benchmarks"
Provenance = dict[str, str | int]
# Tables and pictures by their names.
Report = tuple[dict[str, pd.DataFrame], dict[str, Figure]]


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


def print_table(table: pd.DataFrame) -> None:
    """Print a table without its index, numbers to four digits."""
    print(table.to_string(index=False, na_rep="", float_format=_format))


class Record:
    """The folder of one benchmark's output; every row in it carries its provenance.

    Args:
        folder: Files of the same name are replaced.
        device: The device that the benchmark runs on.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder = folder
        self.origin = provenance(device)

    def write_table(self, table: pd.DataFrame, name: str) -> None:
        """Write ``NAME.csv`` with the provenance as its last columns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        table.assign(**self.origin).to_csv(self.folder / f"{name}.csv", index=False)

    def show(self, table: pd.DataFrame, name: str) -> None:
        """Write a table, and print it."""
        self.write_table(table, name)
        print_table(table)


def write_page_table(table: pd.DataFrame, folder: Path, name: str) -> None:
    """Write ``NAME.csv`` for the docs: numbers as text, no underscores in headings."""
    folder.mkdir(parents=True, exist_ok=True)
    text = table.map(_in_words).rename(columns=lambda column: column.replace("_", " "))
    text.to_csv(folder / f"{name}.csv", index=False)


def show_for_page(table: pd.DataFrame, name: str, *, is_page: bool) -> None:
    """Print a table, and write it for the docs if ``--page`` was given."""
    print_table(table)
    if is_page:
        write_page_table(table, PAGE, name)


def write_page_figure(figure: Figure, folder: Path, name: str, dpi: int = 80) -> None:
    """Write ``NAME.png`` for the docs: the same picture is the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without the version of matplotlib.
    figure.savefig(folder / f"{name}.png", dpi=dpi, metadata={"Software": None})


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
