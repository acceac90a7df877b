"""Lines that say what a command does and what it found."""

from __future__ import annotations

import sys


def status(text: str, quiet: bool) -> None:
    """Say on a terminal what begins now, unless ``quiet``."""
    if sys.stderr.isatty() and not quiet:
        print(f"{text} ...", file=sys.stderr)


def note(text: str) -> None:
    """Say in one line what was found or done, if anything was."""
    if text:
        print(f"Note: {text}.")
