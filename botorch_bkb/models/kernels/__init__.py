"""Kernels of features, fingerprints, drifting objectives, and covariance tables."""

from botorch_bkb.models.kernels.learned import AnovaKernel
from botorch_bkb.models.kernels.precomputed import nearest_covariance, PrecomputedKernel
from botorch_bkb.models.kernels.tanimoto import TanimotoKernel
from botorch_bkb.models.kernels.temporal_decay import TemporalDecayKernel


__all__ = [
    "AnovaKernel",
    "PrecomputedKernel",
    "TanimotoKernel",
    "TemporalDecayKernel",
    "nearest_covariance",
]
