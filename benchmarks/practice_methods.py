"""Who takes part in the benchmark ``practice``: our bandits, and the peers.

The peers are uniform choice and stock BoTorch: ``SingleTaskGP`` with its default kernel
and priors on features scaled to the unit cube and standardized rewards, fitted by
``fit_gpytorch_mll`` after every batch, and one of its acquisition functions over the
candidates that were not measured: ``optimize_acqf_discrete`` on qLogEI or qLogNEI, one
pick at a time given those before it, or Thompson sampling by ``draw_matheron_paths``,
one path a pick. No peer measures a candidate twice. They recommend the measured
candidate of the largest posterior mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import (
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf_discrete
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from typing_extensions import override

from botorch_bkb import BBKB, GPBUCB, GPThompsonSampling
from botorch_bkb.acquisition import DeviationWidth
from botorch_bkb.bandits import (
    FiniteArmBandit,
    matern_to_learn,
    rbf_to_learn,
    SparseLearner,
)
from botorch_bkb.cli.suggest import SuggestLoop


# Peers


class Peer(ABC):
    """Measurements so far and the candidates that are left.

    Args:
        arms: An ``A x d``-dim tensor of features.
        generator: The source of all randomness.
    """

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        self.arms = arms
        self.generator = generator
        self.indices = torch.empty(0, dtype=torch.long)
        self.rewards = arms.new_empty(0)

    @abstractmethod
    def ask(self, size: int) -> Tensor:
        """Choose ``size`` candidates that were not measured."""

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements."""
        self.indices = torch.cat([self.indices, indices])
        self.rewards = torch.cat([self.rewards, rewards])

    def best_arm(self) -> int:
        """Return the measured candidate that is recommended: the best by default."""
        return int(self.indices[self.rewards.argmax()])

    def _left(self) -> Tensor:
        is_left = torch.ones(len(self.arms), dtype=torch.bool)
        is_left[self.indices] = False
        return is_left.nonzero().squeeze(-1)

    def _seed(self) -> int:
        """Draw a seed: BoTorch's samplers and retries use torch's global generator."""
        return int(torch.randint(2**31, (1,), generator=self.generator))


class Uniform(Peer):
    """Distinct candidates, all equally likely."""

    @override
    def ask(self, size: int) -> Tensor:
        left = self._left()
        return left[torch.randperm(len(left), generator=self.generator)[:size]]


class StockPeer(Peer):
    """A GP that ``tell`` fits to all measurements; a subclass chooses by it."""

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        super().__init__(arms, generator)
        low, high = arms.aminmax(dim=0)
        # A pool has no column that does not vary.
        self.points = (arms - low) / (high - low)

    @override
    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        super().tell(indices, rewards)
        # Standardized before the model does so once more: the constants by which
        # qLogEI smooths the maximum are made for rewards of unit scale.
        spread = self.rewards.std().clamp_min(1e-12)
        self.targets = (self.rewards - self.rewards.mean()) / spread
        self.model = SingleTaskGP(
            self.points[self.indices],
            self.targets.unsqueeze(-1),
            covar_module=self._kernel(),
            outcome_transform=Standardize(m=1),
        )
        mll = ExactMarginalLogLikelihood(self.model.likelihood, self.model)
        with manual_seed(self._seed()):
            fit_gpytorch_mll(mll)

    @override
    def ask(self, size: int) -> Tensor:
        left = self._left()
        with manual_seed(self._seed()):
            return left[self._choose(self.points[left], min(size, len(left)))]

    @override
    def best_arm(self) -> int:
        with torch.no_grad():
            mean = self.model.posterior(self.points[self.indices]).mean.squeeze(-1)
        return int(self.indices[mean.argmax()])

    def _kernel(self) -> Kernel | None:
        """Return the kernel of the next fit; None for BoTorch's default."""
        return None

    @abstractmethod
    def _choose(self, choices: Tensor, size: int) -> Tensor:
        """Return the rows of ``size`` distinct choices."""


class QLogEI(StockPeer):
    """The best by an acquisition function, one after the other."""

    def _acquisition(self) -> AcquisitionFunction:
        return qLogExpectedImprovement(self.model, best_f=self.targets.max())

    @override
    def _choose(self, choices: Tensor, size: int) -> Tensor:
        picks, _ = optimize_acqf_discrete(
            self._acquisition(), q=size, choices=choices, unique=True
        )
        # It returns points. Those of a pool are distinct, and are not changed by it.
        is_pick = (choices == picks.unsqueeze(-2)).all(dim=-1)  # size x A
        return is_pick.int().argmax(dim=-1)


class QLogNEI(QLogEI):
    """The same over the best of what the measurements measured, which is not known."""

    @override
    def _acquisition(self) -> AcquisitionFunction:
        return qLogNoisyExpectedImprovement(
            self.model, X_baseline=self.points[self.indices], prune_baseline=True
        )


class StockThompson(StockPeer):
    """The best by a path each, among those that no path before it has taken."""

    @override
    def _choose(self, choices: Tensor, size: int) -> Tensor:
        with torch.no_grad():
            paths = draw_matheron_paths(self.model, torch.Size([size]))
            values = paths(choices)  # size x A
        picks: list[int] = []
        for path in values:
            path[picks] = -torch.inf
            picks.append(int(path.argmax()))
        return torch.tensor(picks)


class BanditPlayer:
    """A bandit; the first candidates come from outside."""

    def __init__(self, bandit: Any) -> None:
        self.bandit = bandit
        self.best_arm = bandit.best_arm

    def ask(self, size: int) -> Tensor:
        """Ask for exactly ``size``, or all that are left."""
        return self.bandit.ask(size=size)

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements."""
        self.bandit.tell(indices, rewards, external=True)


# What takes part, and what makes it from the candidates and the source of randomness.
Player = Peer | BanditPlayer | SuggestLoop
PlayerFactory = Callable[[Tensor, torch.Generator], Player]

PEERS: dict[str, PlayerFactory] = {
    "uniform": Uniform,
    "qLogEI": QLogEI,
    "Thompson": StockThompson,
    "qLogNEI": QLogNEI,
}


# Ours


def ours(kind: Callable[..., Any], **options: Any) -> PlayerFactory:
    """Return a maker of one of our bandits."""
    return lambda arms, generator: BanditPlayer(
        kind(arms, generator=generator, **options)
    )


def bbkb_that_learns(new_kernel: Callable[[Tensor], Kernel]) -> PlayerFactory:
    """Return a maker of ``BBKB(arms)`` with another kernel to learn."""
    return lambda arms, generator: BanditPlayer(
        FiniteArmBandit(
            arms,
            learner=SparseLearner(new_kernel=new_kernel),
            batch_rule=BBKB.default_batch_rule,
            generator=generator,
        )
    )


def suggest(arms: Tensor, generator: torch.Generator) -> Player:
    """Return the command `suggest`, called for one batch after another."""
    seed = int(torch.randint(2**31, (1,), generator=generator))
    return SuggestLoop(arms, seed=seed)


OURS: dict[str, PlayerFactory] = {
    "BBKB": ours(BBKB),
    "BBKB, regret": ours(BBKB, goal="regret"),
    "GPBUCB": ours(GPBUCB),
    "GPThompsonSampling": ours(GPThompsonSampling),
    "suggest": suggest,
    "BBKB, 1.5 deviations": ours(
        BBKB, confidence=DeviationWidth(1.5, noise_deviations=1.0)
    ),
    "BBKB, Matern": bbkb_that_learns(matern_to_learn),
    "BBKB, RBF": bbkb_that_learns(rbf_to_learn),
}
METHODS = PEERS | OURS
