"""Ask/tell bandits over a finite set of arms, and over a box."""

from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.bandits.drifting import (
    DriftingBandit,
    matern_block_size,
    rbf_block_size,
)
from botorch_bkb.bandits.forgetting import ForgettingLearner
from botorch_bkb.bandits.learned_kernels import (
    composite_to_learn,
    matern_to_learn,
    rbf_to_learn,
)
from botorch_bkb.bandits.learners import (
    BlockLearner,
    ExactLearner,
    Learner,
    SparseLearner,
)
from botorch_bkb.bandits.named import (
    BBKB,
    BKB,
    BoxBKB,
    BoxGPUCB,
    BoxThompsonSampling,
    EpsilonGreedy,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    RGPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.bandits.policies import (
    EpsilonGreedyPolicy,
    Policy,
    ThompsonPolicy,
    UCBPolicy,
)


__all__ = [
    "BBKB",
    "BKB",
    "GPBUCB",
    "GPUCB",
    "RGPUCB",
    "TVGPUCB",
    "BlockLearner",
    "BoxBKB",
    "BoxBandit",
    "BoxGPUCB",
    "BoxThompsonSampling",
    "DriftingBandit",
    "EpsilonGreedy",
    "EpsilonGreedyPolicy",
    "ExactLearner",
    "FiniteArmBandit",
    "ForgettingLearner",
    "GPThompsonSampling",
    "Learner",
    "Policy",
    "SparseLearner",
    "ThompsonPolicy",
    "UCBPolicy",
    "UniformRandom",
    "composite_to_learn",
    "matern_block_size",
    "matern_to_learn",
    "rbf_block_size",
    "rbf_to_learn",
]
