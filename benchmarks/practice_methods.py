"""Who takes part in the benchmark ``practice``: our bandits, and the peers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from benchmarks.peers import PEERS
from botorch_bkb import BBKB, GPBUCB, GPThompsonSampling
from botorch_bkb.acquisition import DeviationWidth
from botorch_bkb.bandits import (
    FiniteArmBandit,
    matern_to_learn,
    rbf_to_learn,
    SparseLearner,
)
from botorch_bkb.cli.suggest import SuggestLoop


class Player(Protocol):
    """What takes part."""

    def ask(self, size: int, /) -> Tensor:
        """Choose at most ``size`` candidates, at least one."""

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements, asked for or not."""

    def best_arm(self) -> int:
        """Return the candidate that is recommended."""


class BanditPlayer:
    """A bandit, told of the first candidates from outside."""

    def __init__(self, bandit: Any) -> None:
        self.bandit = bandit

    def ask(self, size: int) -> Tensor:
        """Ask for exactly ``size``, or all that are left."""
        return self.bandit.ask(size=size)

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements."""
        self.bandit.tell(indices, rewards, external=True)

    def best_arm(self) -> int:
        """Return the measured arm of the largest posterior mean."""
        return self.bandit.best_arm()


# From the candidates and the source of all randomness.
PlayerFactory = Callable[[Tensor, torch.Generator], Player]


def bbkb_that_learns(new_kernel: Callable[[Tensor], Kernel]) -> PlayerFactory:
    """Return a maker of ``BBKB(arms)`` with another kernel to learn."""

    def make(arms: Tensor, generator: torch.Generator) -> Player:
        bandit = FiniteArmBandit(
            arms,
            learner=SparseLearner(new_kernel=new_kernel),
            batch_rule=BBKB.default_batch_rule,
            generator=generator,
        )
        return BanditPlayer(bandit)

    return make


# A new way to set our bandits up is one line.
OURS: dict[str, PlayerFactory] = {
    "BBKB": lambda arms, generator: BanditPlayer(BBKB(arms, generator=generator)),
    "BBKB, regret": lambda arms, generator: BanditPlayer(
        BBKB(arms, goal="regret", generator=generator)
    ),
    "GPBUCB": lambda arms, generator: BanditPlayer(GPBUCB(arms, generator=generator)),
    "GPThompsonSampling": lambda arms, generator: BanditPlayer(
        GPThompsonSampling(arms, generator=generator)
    ),
    "suggest": lambda arms, generator: SuggestLoop(
        arms, seed=int(torch.randint(2**31, (1,), generator=generator))
    ),
    "BBKB, 1.5 deviations": lambda arms, generator: BanditPlayer(
        BBKB(
            arms,
            confidence=DeviationWidth(1.5, noise_deviations=1.0),
            generator=generator,
        )
    ),
    "BBKB, Matern": bbkb_that_learns(matern_to_learn),
    "BBKB, RBF": bbkb_that_learns(rbf_to_learn),
}


def _optional_peers() -> dict[str, PlayerFactory]:
    try:
        version("baybe")
    except PackageNotFoundError:
        return {}
    from benchmarks.baybe_peer import BayBE

    return {"BayBE": BayBE}


METHODS: dict[str, PlayerFactory] = {**PEERS, **_optional_peers(), **OURS}
