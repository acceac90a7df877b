"""Who takes part in the benchmark ``practice``: our bandits, and the peers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.peers import PEERS
from botorch_bkb import BBKB, GPThompsonSampling, GPUCB
from botorch_bkb.cli.suggest import WIDTH
from botorch_bkb.optim.batch_rules import FixedSize


class Player(Protocol):
    """What takes part."""

    def ask(self, size: int) -> Tensor:
        """Choose at most ``size`` candidates, at least one."""

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements, asked for or not."""

    def best_arm(self) -> int:
        """Return the candidate that is recommended."""


class BanditPlayer:
    """A bandit, told of the first candidates from outside."""

    def __init__(self, bandit: Any) -> None:
        self.bandit = bandit
        asks_for_size = "size" in inspect.signature(bandit.ask).parameters
        self.size_name = "size" if asks_for_size else "max_size"

    def ask(self, size: int) -> Tensor:
        """Ask for exactly ``size`` where the bandit can be asked so."""
        return self.bandit.ask(**{self.size_name: size})

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements."""
        self.bandit.tell(indices, rewards, external=True)

    def best_arm(self) -> int:
        """Return the measured arm of the largest posterior mean."""
        return self.bandit.best_arm()


class SuggestPlayer:
    """The command ``suggest``: a new bandit a batch, told of all measurements so far.

    What it prints as the best so far comes after its choice, and so does the
    recommendation here.
    """

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        self.arms = arms
        self.seed = int(torch.randint(2**31, (1,), generator=generator))
        self.indices = torch.empty(0, dtype=torch.long)
        self.rewards = arms.new_empty(0)

    def ask(self, size: int) -> Tensor:
        """Call the command."""
        return self._new_bandit(size).ask()

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Append to the table of measurements."""
        self.indices = torch.cat([self.indices, indices])
        self.rewards = torch.cat([self.rewards, rewards])

    def best_arm(self) -> int:
        """Call the command, and read what it says of the measurements."""
        bandit = self._new_bandit(1)
        bandit.ask()
        return bandit.best_arm()

    def _new_bandit(self, size: int) -> BBKB:
        bandit = BBKB(
            self.arms,
            confidence=WIDTH,
            batch_rule=FixedSize(size),
            generator=torch.Generator().manual_seed(self.seed),
        )
        bandit.tell(self.indices, self.rewards, external=True)
        return bandit


# From the candidates and the source of all randomness.
PlayerFactory = Callable[[Tensor, torch.Generator], Player]

# A new way to set our bandits up is one line.
OURS: dict[str, PlayerFactory] = {
    "BBKB": lambda arms, generator: BanditPlayer(BBKB(arms, generator=generator)),
    "GPUCB": lambda arms, generator: BanditPlayer(GPUCB(arms, generator=generator)),
    "GPThompsonSampling": lambda arms, generator: BanditPlayer(
        GPThompsonSampling(arms, generator=generator)
    ),
    "suggest": SuggestPlayer,
}


def _optional_peers() -> dict[str, PlayerFactory]:
    try:
        version("baybe")
    except PackageNotFoundError:
        return {}
    from benchmarks.baybe_peer import BayBE

    return {"BayBE": BayBE}


METHODS: dict[str, PlayerFactory] = {**PEERS, **_optional_peers(), **OURS}
