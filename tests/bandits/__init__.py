"""Small bandits, and comparisons of their whole state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_bkb import (
    BBKB,
    BKB,
    EpsilonGreedy,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    RGPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.optim import FixedSize
from tests.helpers import random_points, seeded


EXACT_BANDITS = (GPUCB, GPBUCB)
UCB_BANDITS = (BKB, BBKB, GPUCB, GPBUCB)
DRAWN_BANDITS = (EpsilonGreedy, UniformRandom, GPThompsonSampling)
# Sparse, with a prior mean of zero.
SPARSE_BANDITS = (BKB, BBKB, EpsilonGreedy, GPThompsonSampling)
DRIFTING_BANDITS = (TVGPUCB, RGPUCB)
# They learn a kernel or noise that is not given.
LEARNING_BANDITS = (UniformRandom, GPThompsonSampling)
# Those of the papers for which time does not matter.
STILL_BANDITS = (*UCB_BANDITS, *DRAWN_BANDITS)
PAPERS_BANDITS = (*STILL_BANDITS, *DRIFTING_BANDITS)
ALL_BANDITS = (*PAPERS_BANDITS, GPBandit)
LEARNED = {"covar_module": None, "noise_variance": None}
NOISE = 0.1


def rbf(lengthscale: float = 0.4, **options: Any) -> Kernel:
    kernel = RBFKernel(**options).double()
    kernel.lengthscale = lengthscale
    return kernel


def grid_arms(num_arms: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return arms on a line, so far apart that ``rbf(1e-3)`` is the identity."""
    return torch.linspace(0, 1, num_arms, dtype=dtype).unsqueeze(-1)


def random_arms(num_arms: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return random_points(num_arms, 2).to(dtype)


def make_bandit(
    bandit_class: type[FiniteArmBandit],
    arms: Tensor | None = None,
    seed: int = 0,
    lengthscale: float = 0.4,
    **options: Any,
) -> FiniteArmBandit:
    """Return a bandit of known hyper-parameters, if no option says otherwise."""
    options.setdefault("covar_module", rbf(lengthscale))
    if bandit_class is GPThompsonSampling:
        options.setdefault("batch_rule", FixedSize(1))  # of 30 if not given
    if bandit_class is TVGPUCB:
        options.setdefault("forgetting_rate", 0.05)
    if bandit_class is RGPUCB:
        options.setdefault("block_size", 20)
    options.setdefault("noise_variance", NOISE)
    options.setdefault("generator", seeded(seed))
    return bandit_class(random_arms(30) if arms is None else arms, **options)


def identity_bandit(
    bandit_class: type[FiniteArmBandit], num_arms: int = 8, **options: Any
) -> FiniteArmBandit:
    """Return a bandit whose arms say nothing about each other."""
    return make_bandit(bandit_class, grid_arms(num_arms), lengthscale=1e-3, **options)


def true_rewards(arms: Tensor) -> Tensor:
    """Return a smooth function of the arms, of standard deviation about one."""
    return 2 * torch.sin(4 * arms.double().sum(dim=-1))


def noisy_rewards(
    arms: Tensor, seed: int = 0, noise_std: float = NOISE**0.5
) -> Callable[[Tensor], Tensor]:
    """Return the measurement, its noise of its own stream of random numbers."""
    means, stream = true_rewards(arms), seeded(seed)

    def measure(indices: Tensor) -> Tensor:
        noises = torch.randn(len(indices), generator=stream, dtype=torch.double)
        return means[indices] + noise_std * noises

    return measure


def play(
    bandit: FiniteArmBandit,
    num_rounds: int,
    measure: Callable[[Tensor], Tensor] | None = None,
    size: int | None = None,
    **options: Any,
) -> list[list[int]]:
    """Ask and tell; return the batches."""
    measure = noisy_rewards(bandit.arms) if measure is None else measure
    sizes = [] if size is None else [size]
    batches = []
    for _ in range(num_rounds):
        indices = bandit.ask(*sizes, **options)
        bandit.tell(indices, measure(indices))
        batches.append(indices.tolist())
    return batches


def assert_same(left: Any, right: Any) -> None:
    """Compare nested states, tensors bit by bit and numbers up to rounding.

    Leverage scores of a rebuilt posterior may differ in their last bits.
    """
    assert type(left) is type(right)
    if isinstance(left, Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for first, second in zip(left, right, strict=True):
            assert_same(first, second)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-9, abs=1e-12)
    else:
        assert left == right


@contextmanager
def unchanged(bandit: FiniteArmBandit) -> Iterator[None]:
    """Check that the whole state is the same afterwards."""
    before = deepcopy(bandit.state_dict())
    yield
    assert_same(bandit.state_dict(), before)
