"""Ray's workers on this machine, for the commands that have `--workers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from botorch_bkb.arms import ArrayArms, BitArms, StoredArms


def require_ray(num_workers: int | None) -> None:
    """Refuse workers where there is no Ray, before anything is read."""
    if num_workers is not None and find_spec("ray") is None:
        raise UnsupportedError(
            "--workers needs Ray, which is not installed. Install with pip install "
            '"botorch_bkb[ray]", or leave the option out.'
        )


@contextmanager
def on_workers(arms: Tensor, num_workers: int | None) -> Iterator[Tensor]:
    """Yield the same arms, for which so many workers compute; with None, as they are.

    Raises:
        UnsupportedError: If the arms are fingerprints.
    """
    if num_workers is None:
        yield arms
        return
    if isinstance(arms, BitArms):
        raise UnsupportedError(
            "--workers means nothing to fingerprints, which stay packed in this "
            "process. Leave it out."
        )
    stored = arms if isinstance(arms, StoredArms) else ArrayArms(arms.numpy())
    shared = stored.on_ray(workers=num_workers)
    try:
        yield shared
    finally:
        if shared.workers is not None:
            shared.workers.close()
