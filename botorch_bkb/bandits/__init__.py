"""Ask/tell bandits over a finite set of arms."""

from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.baselines import EpsilonGreedy, UniformRandom
from botorch_bkb.bandits.thompson import GPThompsonSampling
from botorch_bkb.bandits.ucb import BBKB, BKB, GPBUCB, GPUCB


__all__ = [
    "BBKB",
    "BKB",
    "GPBUCB",
    "GPUCB",
    "EpsilonGreedy",
    "FiniteArmBandit",
    "GPThompsonSampling",
    "UniformRandom",
]
