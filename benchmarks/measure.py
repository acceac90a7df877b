"""Seconds, peak memory and growth: how the benchmarks measure."""

from __future__ import annotations

import math
import multiprocessing
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike


MEBIBYTE = 2**20


@dataclass(frozen=True)
class Outcome:
    """What became of a function in a process of its own.

    Attributes:
        value: What it returned; None if it failed.
        failure: Which limit it met; None if it did not.
    """

    value: Any
    failure: str | None = None


def in_own_process(
    function: Callable[..., Any],
    *args: Any,
    max_seconds: float = math.inf,
    max_bytes: int | None = None,
) -> Outcome:
    """Call a function in a fresh process, under limits.

    Peak memory never falls within a process, so every measurement of it needs one.

    Args:
        function: An importable function.
        *args: Its arguments, which can be pickled, as can what it returns.
        max_seconds: A limit on the life of the process, its imports included.
        max_bytes: A limit on the private memory of the process (Linux: RLIMIT_DATA);
            None for none.

    Returns:
        What the function returned, or which limit it met.

    Raises:
        RuntimeError: If it failed for any other reason.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, max_bytes, function, args))
    process.start()
    # The child's copy is the only one left, so its end is seen here.
    sender.close()
    try:
        if not receiver.poll(None if math.isinf(max_seconds) else max_seconds):
            return Outcome(None, f"more than {max_seconds:g} s")
        outcome, error = receiver.recv()
    except EOFError:
        process.join()
        return Outcome(None, f"killed, exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise RuntimeError(f"Expected a measurement, but the process failed:\n{error}")
    return outcome


def _child(
    sender: Connection,
    max_bytes: int | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    try:
        sender.send((Outcome(function(*args)), None))
    except Exception as error:
        if _is_out_of_memory(error):
            limit = "" if max_bytes is None else f" of {max_bytes / MEBIBYTE:,.0f} MiB"
            sender.send((Outcome(None, f"out of memory{limit}"), None))
        else:
            sender.send((None, traceback.format_exc()))


def _is_out_of_memory(error: Exception) -> bool:
    # torch has no class of its own for what a processor's allocator refuses.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def peak_memory(device: str = "cpu") -> float:
    """Return the most memory, in MiB, held so far: resident, or on an accelerator."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, the others KiB.
    return peak / MEBIBYTE if sys.platform == "darwin" else peak / 1024


def seconds_of(function: Callable[[], Any], device: str = "cpu") -> float:
    """Call a function; return its seconds, with what an accelerator still had to do."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str) -> None:
    """Wait for an accelerator; nothing on a processor."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def fitted_exponent(sizes: ArrayLike, costs: ArrayLike) -> float:
    """Return ``p`` of ``cost = c size^p``, by least squares on both logarithms."""
    slope, _ = np.polyfit(np.log(sizes), np.log(costs), deg=1)
    return float(slope)
