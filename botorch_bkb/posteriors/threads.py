"""One thread for work that is too small to share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


# Below this many bytes of features, waking and joining threads for the many small
# operations of an update costs more than they save: twice the time of a whole run on
# 4,000 arms, on the two virtual cores where it was measured.
MIN_SHARED_BYTES = 2**24


@contextmanager
def threads_for(num_bytes: int) -> Iterator[None]:
    """Limit PyTorch to one thread for a while, if the work is small.

    Args:
        num_bytes: How much data the work passes over.
    """
    num_threads = torch.get_num_threads()
    if num_threads == 1 or num_bytes >= MIN_SHARED_BYTES:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
