"""GP models as BoTorch models."""

from botorch_bkb.models.dtc_gp import SingleTaskDTCGP


__all__ = ["SingleTaskDTCGP"]
