"""GP models as BoTorch models."""

from typing import Any

from botorch_bkb.models.dtc_gp import SingleTaskDTCGP
from botorch_bkb.models.time_varying_gp import TimeVaryingGP


__all__ = ["ArmFilter", "SingleTaskDTCGP", "SparseArmFilter", "TimeVaryingGP"]


def __getattr__(name: str) -> Any:
    """Find the filters by the names that they had before `posteriors` was a layer."""
    if name not in ("ArmFilter", "SparseArmFilter"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from botorch_bkb import posteriors  # late: it stands on this layer

    return getattr(posteriors, name)
