"""Seconds, peak memory and growth: how the benchmarks measure."""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from textwrap import shorten
from typing import Any

import torch


MEBIBYTE = 2**20


@dataclass(frozen=True)
class Outcome:
    """What a function in a process of its own returned, or how it failed."""

    value: Any
    failure: str | None = None

    def result(self) -> Any:
        """Return the value.

        Raises:
            RuntimeError: If the function failed.
        """
        if self.failure is not None:
            raise RuntimeError(f"Expected a measurement, but got {self.failure}.")
        return self.value


def in_own_process(
    function: Callable[..., Any],
    *args: Any,
    max_seconds: float = math.inf,
) -> Outcome:
    """Call a function in a fresh process.

    Peak memory never falls within a process, so every measurement of it needs one. The
    traceback of an error is printed.

    Args:
        function: An importable function.
        *args: Its arguments, which can be pickled, as can what it returns.
        max_seconds: A limit on the life of the process, its imports included.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once. Not the package: `sys.path` may name another checkout's.
    context.set_forkserver_preload(["botorch", "pandas"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, args))
    process.start()
    # The child's copy is the only one left, so its end is seen here.
    sender.close()
    try:
        if not receiver.poll(None if math.isinf(max_seconds) else max_seconds):
            return Outcome(None, f"more than {max_seconds:.3g} s")
        outcome: Outcome = receiver.recv()
        return outcome
    except EOFError:
        process.join()
        return Outcome(None, f"killed, exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _child(
    sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    try:
        outcome = Outcome(function(*args))
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        outcome = Outcome(None, shorten(text, 70))
    sender.send(outcome)


def peak_memory(device: str = "cpu") -> float:
    """Return the most memory, in MiB, held so far: resident, or on an accelerator."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB


def seconds_of(
    function: Callable[[], Any],
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Call a function; return its seconds, with what an accelerator still had to do."""
    synchronize(device)
    start = clock()
    function()
    synchronize(device)
    return clock() - start


def synchronize(device: str) -> None:
    """Wait for an accelerator; nothing on a processor."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
