"""Write tables and outputs into the guides: ``python docs/run_guides.py [PAGE ...]``.

A block after ``.. file NAME`` shows that example file, or its first lines if a number
follows. A block ``text`` after a block ``sh`` shows what its commands print. GitHub
shows such blocks, but not those of ``literalinclude``. The example files of a page are
in the folder of its name.
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

from botorch_bkb.__main__ import main


DOCS = Path(__file__).parent
WIDTH = 80
# Pages with example files, and their folders.
PAGES = {
    page: page.with_suffix("")
    for page in sorted(DOCS.glob("guides/*.rst"))
    if page.with_suffix("").is_dir()
}
PAGES[DOCS / "get_started.rst"] = DOCS / "guides" / "first_campaign"
# A file or commands, and the block that shows it.
LINES = r"(?:\n* {3}.*\n)+"
PART = re.compile(
    rf"(?:\.\. file (?P<file>\S+)(?: (?P<length>\d+))?|"
    rf"\.\. code-block:: sh\n\n(?P<commands>{LINES}))"
    rf"(?:\n+\.\. code-block:: (?:text|py)\n\n(?P<shown>{LINES}))?"
)


def run(page: Path, folder: Path) -> list[tuple[re.Match[str], str]]:
    """Return each part of a page, and what its block should show.

    Commands run in ``folder``, a new copy of the example files.
    """
    shutil.copytree(PAGES[page], folder)
    with chdir(folder):
        return [(part, content(part)) for part in PART.finditer(page.read_text())]


def content(part: re.Match[str]) -> str:
    """Return the lines of a file, or what commands print."""
    if part["file"]:
        length = part["length"] and int(part["length"])
        return "".join(Path(part["file"]).read_text().splitlines(True)[:length])
    lines = part["commands"].splitlines()
    words = (shlex.split(line) for line in lines)
    return "".join(run_one(each) for each in words if each[:1] == ["python"])


def run_one(words: list[str]) -> str:
    """Run a command, and return what it prints, in lines of at most ``WIDTH``."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        if words[:3] == ["python", "-m", "botorch_bkb"]:
            code = main(words[3:])
        else:
            runpy.run_path(words[1])
            code = 0
    if code:
        raise RuntimeError(f"{shlex.join(words)} failed:\n{printed.getvalue()}")
    return "".join(f"{wrapped(line)}\n" for line in printed.getvalue().splitlines())


def wrapped(line: str) -> str:
    """Break a long line, unless it is a row of a table."""
    if len(line) <= WIDTH or "  " in line:
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def write_pages() -> None:
    """Write the blocks of all pages, or of those that are named."""
    names = sys.argv[1:] or [page.stem for page in PAGES]
    for page in (page for page in PAGES if page.stem in names):
        with tempfile.TemporaryDirectory() as folder:
            done = run(page, Path(folder) / page.stem)
        text = page.read_text()
        for part, lines in reversed(done):
            if part["shown"] is not None:
                start, end = part.span("shown")
                text = text[:start] + textwrap.indent(lines, "   ") + text[end:]
        page.write_text(text)
        sys.stdout.write(f"{page.stem}: {len(done)} parts\n")


if __name__ == "__main__":
    write_pages()
