"""Gaussian process bandits over large finite sets of candidates, on BoTorch.

- ``botorch_bkb.bandits``: ask/tell bandits (also exported here).
- ``botorch_bkb.models``: the sparse DTC posterior as a BoTorch model, and models of
  functions that drift.
- ``botorch_bkb.acquisition``: confidence widths and upper confidence bounds.
- ``botorch_bkb.generation``: Thompson draws, the distribution of the maximizer.
- ``botorch_bkb.optim``: exact optimizers over finite sets of arms, batch rules.
- ``botorch_bkb.test_functions``: problems with known regret.
"""

from botorch_bkb._version import __version__
from botorch_bkb.bandits import (
    AtLeast,
    AtMost,
    BBKB,
    BKB,
    BoxBandit,
    EpsilonGreedy,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    Maximize,
    Minimize,
    OutcomesBandit,
    RGPUCB,
    Target,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.desirability import Desirability


__all__ = [
    "BBKB",
    "BKB",
    "GPBUCB",
    "GPUCB",
    "RGPUCB",
    "TVGPUCB",
    "AtLeast",
    "AtMost",
    "BoxBandit",
    "Desirability",
    "EpsilonGreedy",
    "GPBandit",
    "GPThompsonSampling",
    "Maximize",
    "Minimize",
    "OutcomesBandit",
    "Target",
    "UniformRandom",
    "__version__",
]
