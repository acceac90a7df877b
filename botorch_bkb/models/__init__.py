"""GP models as BoTorch models."""

from botorch_bkb.models.dtc_gp import SingleTaskDTCGP
from botorch_bkb.models.time_varying_gp import TimeVaryingGP


__all__ = ["SingleTaskDTCGP", "TimeVaryingGP"]
