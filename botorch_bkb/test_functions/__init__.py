"""Finite-arm problems with known regret, and the papers' tabular data sets."""

from botorch_bkb.test_functions.datasets import load_abalone, load_cadata
from botorch_bkb.test_functions.finite_arm import FiniteArmProblem


__all__ = ["FiniteArmProblem", "load_abalone", "load_cadata"]
