"""Thompson draws over arms, and the distribution of the maximizer."""

from botorch_bkb.generation.maximizer import (
    BoxMaximizerDistribution,
    MaximizerDistribution,
    VarianceStoppingRule,
)
from botorch_bkb.generation.thompson import ArmSampler, ResidualPart


__all__ = [
    "ArmSampler",
    "BoxMaximizerDistribution",
    "MaximizerDistribution",
    "ResidualPart",
    "VarianceStoppingRule",
]
