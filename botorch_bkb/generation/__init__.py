"""Thompson draws over arms and on a box, and the distribution of the maximizer."""

from botorch_bkb.generation.maximizer import (
    BoxMaximizerDistribution,
    MaximizerDistribution,
    VarianceStoppingRule,
)
from botorch_bkb.generation.paths import (
    draw_eigenfeature_paths,
    draw_posterior_paths,
    draw_weight_paths,
    EigenfeatureMap,
    maximize_paths,
)
from botorch_bkb.posteriors import ArmSampler, DrawCovariance


__all__ = [
    "ArmSampler",
    "BoxMaximizerDistribution",
    "DrawCovariance",
    "EigenfeatureMap",
    "MaximizerDistribution",
    "VarianceStoppingRule",
    "draw_eigenfeature_paths",
    "draw_posterior_paths",
    "draw_weight_paths",
    "maximize_paths",
]
