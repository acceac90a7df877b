"""Seconds, peak memory and growth: how the benchmarks measure."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch


MEBIBYTE = 2**20


def in_own_process(
    function: Callable[..., Any],
    *args: Any,
    max_seconds: float | None = None,
) -> Any:
    """Call a function in a fresh process; return what it returns, or raise its error.

    Peak memory never falls within a process, so every measurement of it needs one.

    Args:
        function: An importable function.
        *args: Its arguments, which can be pickled, as can what it returns.
        max_seconds: A limit on the life of the process, its imports included.

    Raises:
        BrokenProcessPool: If the process was killed.
        TimeoutError: If it took too long.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once. Not the package: `sys.path` may name another checkout's.
    context.set_forkserver_preload(["botorch", "pandas"])
    with ProcessPoolExecutor(1, context) as executor:
        call = executor.submit(function, *args)
        try:
            return call.result(max_seconds)
        except TimeoutError:
            for process in multiprocessing.active_children():
                process.kill()
            raise TimeoutError(f"more than {max_seconds:.3g} s") from None


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
