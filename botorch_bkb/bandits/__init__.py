"""Ask/tell bandits over a finite set of arms, and over a box."""

from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.baselines import EpsilonGreedy, UniformRandom
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.bandits.box_thompson import BoxThompsonSampling
from botorch_bkb.bandits.box_ucb import BoxBKB, BoxGPUCB
from botorch_bkb.bandits.drifting import (
    DriftingBandit,
    matern_block_size,
    rbf_block_size,
    RGPUCB,
)
from botorch_bkb.bandits.thompson import GPThompsonSampling
from botorch_bkb.bandits.time_varying import TVGPUCB
from botorch_bkb.bandits.ucb import BBKB, BKB, GPBUCB, GPUCB


__all__ = [
    "BBKB",
    "BKB",
    "GPBUCB",
    "GPUCB",
    "RGPUCB",
    "TVGPUCB",
    "BoxBKB",
    "BoxBandit",
    "BoxGPUCB",
    "BoxThompsonSampling",
    "DriftingBandit",
    "EpsilonGreedy",
    "FiniteArmBandit",
    "GPThompsonSampling",
    "UniformRandom",
    "matern_block_size",
    "rbf_block_size",
]
