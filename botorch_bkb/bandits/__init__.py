"""Ask/tell bandits over a finite set of arms, and over a box."""

from botorch_bkb.bandits.bandit import FiniteArmBandit
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.bandits.box_policies import BoxThompsonPolicy, BoxUCBPolicy
from botorch_bkb.bandits.diagnostics import Diagnostics
from botorch_bkb.bandits.effects import MainEffects
from botorch_bkb.bandits.gp_bandit import GPBandit
from botorch_bkb.bandits.inducing import LeverageScoreSampling
from botorch_bkb.bandits.outcomes import OutcomesBandit, Recommendation
from botorch_bkb.bandits.papers import (
    BBKB,
    BKB,
    BoxThompsonSampling,
    EpsilonGreedy,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    matern_block_size,
    rbf_block_size,
    RGPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.bandits.policies import (
    EpsilonGreedyPolicy,
    Policy,
    ThompsonPolicy,
    UCBPolicy,
    UniformPolicy,
)
from botorch_bkb.bandits.progress import Progress
from botorch_bkb.bandits.roles import (
    AtLeast,
    AtMost,
    Limit,
    Maximize,
    Minimize,
    Objective,
    Role,
    Target,
)
from botorch_bkb.bandits.warping import LogWarp
from botorch_bkb.models.kernels.learned import (
    anova_to_learn,
    composite_to_learn,
    matern_to_learn,
    rbf_to_learn,
)


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
    "BoxThompsonPolicy",
    "BoxThompsonSampling",
    "BoxUCBPolicy",
    "Diagnostics",
    "EpsilonGreedy",
    "EpsilonGreedyPolicy",
    "FiniteArmBandit",
    "GPBandit",
    "GPThompsonSampling",
    "LeverageScoreSampling",
    "Limit",
    "LogWarp",
    "MainEffects",
    "Maximize",
    "Minimize",
    "Objective",
    "OutcomesBandit",
    "Policy",
    "Progress",
    "Recommendation",
    "Role",
    "Target",
    "ThompsonPolicy",
    "UCBPolicy",
    "UniformPolicy",
    "UniformRandom",
    "anova_to_learn",
    "composite_to_learn",
    "matern_block_size",
    "matern_to_learn",
    "rbf_block_size",
    "rbf_to_learn",
]
