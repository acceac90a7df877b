"""Posteriors over all arms, for fixed objectives and for drifting ones."""

from botorch_bkb.posteriors.arm_posterior import ArmPosterior, Moments
from botorch_bkb.posteriors.arm_sampler import ArmSampler, DrawCovariance
from botorch_bkb.posteriors.product_posterior import ProductPosterior
from botorch_bkb.posteriors.replay import ArmMoments, ReplayedFilter
from botorch_bkb.posteriors.sparse_arm_filter import SparseArmKalmanFilter


__all__ = [
    "ArmMoments",
    "ArmPosterior",
    "ArmSampler",
    "DrawCovariance",
    "Moments",
    "ProductPosterior",
    "ReplayedFilter",
    "SparseArmKalmanFilter",
]
