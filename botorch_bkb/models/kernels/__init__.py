"""Kernels of drifting objectives, of empirical covariance tables, of fingerprints."""

from botorch_bkb.models.kernels.precomputed import nearest_covariance, PrecomputedKernel
from botorch_bkb.models.kernels.tanimoto import TanimotoKernel
from botorch_bkb.models.kernels.temporal_decay import TemporalDecayKernel


__all__ = [
    "PrecomputedKernel",
    "TanimotoKernel",
    "TemporalDecayKernel",
    "nearest_covariance",
]
