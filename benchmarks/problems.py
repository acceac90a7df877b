"""The problems of the BBKB paper: two tables, and its kernel."""

from __future__ import annotations

import math

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel

from botorch_bkb.test_functions import FiniteArmProblem
from botorch_bkb.test_functions.datasets import load_abalone, load_cadata


# Of the noise on a reward, in standard deviations of the reward over the arms.
NOISE_STD = 0.1
NUM_SMOKE_ARMS = 300
# The papers' "Gaussian kernel with sigma^2 = 5".
LENGTHSCALE = math.sqrt(5)

DATA_SETS = ("abalone", "cadata")


def load_problem(
    data: str, smoke: bool, *, unit_features: bool = False
) -> FiniteArmProblem:
    """Return one of the problems, its features and rewards standardized.

    Args:
        data: One of ``DATA_SETS``.
        smoke: Whether to make up a small table in place of a file.
        unit_features: Whether features go from 0 to 1 instead.
    """
    if smoke:
        table, reward = _made_up()
    elif data == "abalone":
        table, reward = load_abalone(), "rings"
    else:
        table, reward = load_cadata(), "median_house_value"
    problem = FiniteArmProblem.from_table(
        table, reward, noise_std=NOISE_STD, standardize_reward=True
    )
    if unit_features:
        low, high = problem.arms.aminmax(dim=0)
        problem.arms = (problem.arms - low) / (high - low)
    return problem


def new_kernel() -> RBFKernel:
    """Return the papers' kernel, ``exp(-|x - x'|^2 / (2 sigma^2))``, sigma^2 = 5."""
    kernel = RBFKernel().double()
    kernel.lengthscale = LENGTHSCALE
    return kernel


def _made_up() -> tuple[pd.DataFrame, str]:
    generator = torch.Generator().manual_seed(0)
    arms = torch.randn(NUM_SMOKE_ARMS, 3, generator=generator, dtype=torch.double)
    table = pd.DataFrame(arms.numpy()).add_prefix("x")
    return table.assign(reward=arms.sum(dim=-1).sin().numpy()), "reward"
