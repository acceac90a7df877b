"""Kernels of drifting objectives and of empirical covariance tables."""

from botorch_bkb.models.kernels.precomputed import nearest_covariance, PrecomputedKernel
from botorch_bkb.models.kernels.temporal_decay import TemporalDecayKernel


__all__ = ["PrecomputedKernel", "TemporalDecayKernel", "nearest_covariance"]
