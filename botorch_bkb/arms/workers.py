"""Who computes what there is per arm, where that is not this process."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from botorch.exceptions.errors import BotorchError, InputDataError

from botorch_bkb.checks import as_number, check_size, is_integer


class ShardLostError(BotorchError):
    """A worker was lost, and is not replaced any more."""


class ShardTimeoutError(BotorchError):
    """A worker gave no answer in time."""


class Workers:
    """Ray's workers, which start when they are first needed.

    Args:
        num_workers: How many, at most.
        timeout: The longest wait for an answer, in seconds.
        max_restarts: How often each one that is lost is replaced.

    Attributes:
        pool: What runs; None before that and after :meth:`close`.

    Raises:
        InputDataError: If a number is out of range.
    """

    def __init__(self, num_workers: int, timeout: float, max_restarts: int) -> None:
        check_size("workers", num_workers)
        if not 0 < as_number(timeout) < math.inf:
            raise InputDataError(
                f"Expected `timeout` to be a positive time, but got {timeout!r}."
            )
        if not is_integer(max_restarts) or max_restarts < 0:
            raise InputDataError(
                "Expected `max_restarts` to be a number of at least 0, but got "
                f"{max_restarts!r}."
            )
        self.num_workers = num_workers
        self.timeout = timeout
        self.max_restarts = max_restarts
        self.pool: Any = None
        self._end: Callable[[], object] | None = None

    def started(self, pool: Any, end: Callable[[], object]) -> None:
        """Remember what runs, and how it ends."""
        self.pool, self._end = pool, end

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        if self._end is not None:
            self._end()
        self.pool = self._end = None
