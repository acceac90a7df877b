"""Signs of life on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NoReturn

from tqdm import tqdm


REFRESH_SECONDS = 1.0


@contextmanager
def clock(text: str, quiet: bool) -> Iterator[None]:
    """Say what is done that cannot be counted, and for how long.

    Args:
        text: What is done.
        quiet: Whether to say nothing, as where standard error is no terminal.
    """
    hidden = True if quiet else None
    form = "{desc} ({elapsed})"
    with (
        tqdm(desc=text, bar_format=form, disable=hidden, leave=False) as bar,
        ticking(bar),
    ):
        yield


@contextmanager
def ticking(bar: tqdm[NoReturn]) -> Iterator[None]:
    """Let the time of a progress bar go on while nothing moves it."""
    done = Event()

    def tick() -> None:
        while not done.wait(REFRESH_SECONDS):
            bar.refresh()

    thread = Thread(target=tick, daemon=True)
    if not bar.disable:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if not bar.disable:
            thread.join()


def note(text: str) -> None:
    """Say in one line what was found or done."""
    # Not print: a line would begin where a progress bar stands.
    tqdm.write(f"Note: {text}.")
