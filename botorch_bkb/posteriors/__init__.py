"""Posteriors over all arms, for fixed objectives and for drifting ones."""

from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_sampler import ArmSampler, DrawCovariance
from botorch_bkb.posteriors.posterior import Posterior, StaticPosterior
from botorch_bkb.posteriors.product_posterior import ProductPosterior
from botorch_bkb.posteriors.replay import FilterPosterior, ReplayedFilter
from botorch_bkb.posteriors.sparse_arm_filter import SparseArmKalmanFilter


# The names of 1.0.
ArmMoments = FilterPosterior
Moments = Posterior

__all__ = [
    "ArmMoments",
    "ArmPosterior",
    "ArmSampler",
    "DrawCovariance",
    "FilterPosterior",
    "Moments",
    "Posterior",
    "ProductPosterior",
    "ReplayedFilter",
    "SparseArmKalmanFilter",
    "StaticPosterior",
]
