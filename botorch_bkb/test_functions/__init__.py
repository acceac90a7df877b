"""Finite-arm problems with known regret, and the papers' tabular data sets."""

from botorch_bkb.test_functions.datasets import (
    load_abalone,
    load_cadata,
    load_intel_temperature,
    load_traffic_speed,
)
from botorch_bkb.test_functions.drifting import (
    DriftingProblem,
    MarkovGPProblem,
    TimeSeriesProblem,
)
from botorch_bkb.test_functions.finite_arm import FiniteArmProblem


__all__ = [
    "DriftingProblem",
    "FiniteArmProblem",
    "MarkovGPProblem",
    "TimeSeriesProblem",
    "load_abalone",
    "load_cadata",
    "load_intel_temperature",
    "load_traffic_speed",
]
