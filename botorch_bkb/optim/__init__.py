"""Exact optimizers over finite sets of choices, and batch rules."""

from botorch_bkb.optim.batch_rules import (
    BatchRule,
    FixedSize,
    optimize_batch_ucb,
    ProductRule,
    SumRule,
)
from botorch_bkb.optim.optimize_finite import optimize_acqf_finite, top_k_choices
from botorch_bkb.posteriors import ArmPosterior


__all__ = [
    "ArmPosterior",
    "BatchRule",
    "FixedSize",
    "ProductRule",
    "SumRule",
    "optimize_acqf_finite",
    "optimize_batch_ucb",
    "top_k_choices",
]
