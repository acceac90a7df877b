"""Run the commands of the guides on their example files: ``python docs/run_guides.py``.

A page of ``docs/guides`` shows a command in a block ``sh``, and the output in the file
of the ``literalinclude`` that follows. This script writes these files. The example
files of a page are in the folder of its name.
"""

import io
import re
import runpy
import shlex
import shutil
import sys
import tempfile
import textwrap
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from botorch_bkb.__main__ import main


GUIDES = Path(__file__).parent / "guides"
WIDTH = 80
# Pages with example files.
PAGES = [page for page in sorted(GUIDES.glob("*.rst")) if page.with_suffix("").is_dir()]


class Step(NamedTuple):
    """A command of a page, and the file that shows its output; None if none does."""

    command: str
    output: Path | None


def steps(page: Path) -> list[Step]:
    """Return the commands of a page, in order."""
    found = re.findall(
        r"\.\. code-block:: sh\n\n((?: {3}.*\n|\n)+)"
        r"(?:\.\. literalinclude:: (\S+/output\S*\.txt))?",
        page.read_text(),
    )
    return [
        Step(line.strip(), page.parent / shown if shown else None)
        for block, shown in found
        for line in block.strip().splitlines()
    ]


def run(page: Path, folder: Path) -> list[tuple[Step, str]]:
    """Run the commands of a page on a copy of its example files in a new folder."""
    shutil.copytree(page.with_suffix(""), folder)
    with chdir(folder):
        return [(step, run_one(step.command)) for step in steps(page)]


def run_one(command: str) -> str:
    """Run a command, and return what it prints, in lines of at most ``WIDTH``."""
    printed = io.StringIO()
    words = shlex.split(command)
    with redirect_stdout(printed), redirect_stderr(printed):
        if words[:3] == ["python", "-m", "botorch_bkb"]:
            code = main(words[3:])
        else:
            runpy.run_path(words[1])
            code = 0
    if code:
        raise RuntimeError(f"{command} failed:\n{printed.getvalue()}")
    return "".join(f"{wrapped(line)}\n" for line in printed.getvalue().splitlines())


def wrapped(line: str) -> str:
    """Break a long line, unless it is a row of a table."""
    if len(line) <= WIDTH or "  " in line:
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def write_outputs() -> None:
    """Write the outputs of all pages, or of those that are named."""
    names = sys.argv[1:] or [page.stem for page in PAGES]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            done = run(GUIDES / f"{name}.rst", Path(folder) / name)
        for step, output in done:
            if step.output is not None:
                step.output.write_text(output)
        sys.stdout.write(f"{name}: {len(done)} commands\n")


if __name__ == "__main__":
    write_outputs()
