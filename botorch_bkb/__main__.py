"""The command line: ``python -m botorch_bkb``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from botorch.exceptions.errors import BotorchError

from botorch_bkb.cli.arguments import (
    build_parser,
    COMMANDS,
    DEFAULT_COMMAND,
    PROGRAM,
    with_files,
)


REQUIRED_MODULES = ("jinja2", "matplotlib", "pandas", "pyarrow", "tqdm")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; None for those of the process. Without a command, the
            default job runs.

    Returns:
        The exit code: 0, or 2 after an error, which standard error names in one line.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if hasattr(sys.stdout, "reconfigure"):  # names may have letters that it lacks
        sys.stdout.reconfigure(errors="replace")
    try:
        words = with_files(words)
    except (OSError, ValueError) as error:
        return _fail(f"the file of options cannot be read: {error}.")
    args = build_parser().parse_args(_with_command(words))
    if args.command == "suggest":
        args.words = words[1:]
    extra, more = ("app", ["streamlit"]) if args.command == "app" else ("cli", [])
    missing = [name for name in (*REQUIRED_MODULES, *more) if find_spec(name) is None]
    if missing:
        return _fail(
            f"the command line needs {', '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed. Install with "
            f'pip install "botorch_bkb[{extra}]".'
        )
    # Imported late: commands need the modules above, help does not.
    options, path, *_ = COMMANDS[args.command]
    module, function = path.split(".")
    run = getattr(import_module(f"botorch_bkb.cli.{module}"), function)
    try:
        with _warnings_in_one_line():
            run(options(**vars(args)))
    except (BotorchError, ImportError, OSError) as error:
        return _fail(" ".join(str(error).split()))
    return 0


def _with_command(words: list[str]) -> list[str]:
    if words and (words[0] in ("-h", "--help", "--version") or words[0][:1] != "-"):
        return words
    return [DEFAULT_COMMAND, *words]


def _fail(message: str) -> int:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return 2


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show warnings without the line of code that gave them."""
    before = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"Warning: {' '.join(str(message).split())}\n"


if __name__ == "__main__":
    sys.exit(main())
