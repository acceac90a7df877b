"""Who takes part in the benchmark ``practice``: our bandits, and the peers.

All but BayBE and ours get columns of 0 and 1 in place of words, and counts of fragments
in place of molecules.

The peers are uniform choice and stock BoTorch: ``SingleTaskGP`` with its default kernel
and priors on features scaled to the unit cube and standardized rewards, fitted by
``fit_gpytorch_mll`` after every batch, and one of its acquisition functions over the
candidates that were not measured: ``optimize_acqf_discrete`` on qLogEI or qLogNEI, one
pick at a time given those before it, or Thompson sampling by ``draw_matheron_paths``,
one path a pick. No peer measures a candidate twice. They recommend the measured
candidate of the largest posterior mean.

Random forests, which practitioners use as often, are scikit-learn's with 500 trees. A
batch are the candidates with the largest mean, mean plus one standard deviation, or
expected improvement over the trees' predictions.

BayBE (0.15.0, if it is installed) is asked with its own defaults for a choice among the
candidates. A table with words has a parameter per column, categorical or numerical.
Molecules are substances, by default with Mordred's descriptors (extra `chem` of BayBE).
Candidates of numbers are the labels of one parameter with their features as
descriptors.

PHYSBO (3.2.1, if it is installed) chooses by Thompson sampling with 500 random
features, on standardized columns and rewards, and learns hyperparameters at every ask.

`suggest, counts` and `suggest, bits` are the command with `--kernel tanimoto`, without
and with `--bits`. They need molecules, and are played if they are named.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
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
from torch.distributions import Normal
from typing_extensions import override

from benchmarks.pools import (
    Candidates,
    fingerprints,
    for_bandits,
    one_hot,
    SMILES,
    words_of,
)
from botorch_bkb import GPBandit
from botorch_bkb.arms import BitArms, TableArms
from botorch_bkb.bandits import ThompsonPolicy
from botorch_bkb.cli.suggest import SuggestLoop


# Peers


class Peer(ABC):
    """Measurements so far and the candidates that are left.

    Args:
        arms: An ``A x d``-dim tensor of features, or a frame with words.
        generator: The source of all randomness.
    """

    def __init__(self, arms: Candidates, generator: torch.Generator) -> None:
        self.arms = one_hot(arms) if isinstance(arms, pd.DataFrame) else arms
        self.generator = generator
        self.indices = torch.empty(0, dtype=torch.long)
        self.rewards = self.arms.new_empty(0)

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
        return _seed(self.generator)


class Uniform(Peer):
    """Distinct candidates, all equally likely."""

    @override
    def ask(self, size: int) -> Tensor:
        left = self._left()
        return left[torch.randperm(len(left), generator=self.generator)[:size]]


class StockPeer(Peer):
    """A GP that ``tell`` fits to all measurements; a subclass chooses by it."""

    def __init__(self, arms: Candidates, generator: torch.Generator) -> None:
        super().__init__(arms, generator)
        low, high = self.arms.aminmax(dim=0)
        # A pool has no column that does not vary.
        self.points = (self.arms - low) / (high - low)

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


class Forest(Peer):
    """A random forest, and a score of its trees' predictions.

    Args:
        arms: An ``A x d``-dim tensor of features, or a frame with words.
        generator: The source of all randomness.
        score: Of the ``T x A`` predictions of the trees, given the best reward so far.
    """

    def __init__(
        self,
        arms: Candidates,
        generator: torch.Generator,
        score: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__(arms, generator)
        self.score = score

    @override
    def ask(self, size: int) -> Tensor:
        left = self._left()
        score = self.score(self._predictions(left), self.rewards.max())
        return left[score.topk(min(size, len(left))).indices]

    @override
    def best_arm(self) -> int:
        mean = self._predictions(self.indices).mean(dim=0)
        return int(self.indices[mean.argmax()])

    @override
    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        from sklearn.ensemble import RandomForestRegressor

        super().tell(indices, rewards)
        self.forest = RandomForestRegressor(500, random_state=self._seed())
        self.forest.fit(self.arms[self.indices].numpy(), self.rewards.numpy())

    def _predictions(self, arms: Tensor) -> Tensor:
        X = self.arms[arms].numpy()
        trees = [tree.predict(X) for tree in self.forest.estimators_]
        return torch.from_numpy(np.stack(trees))


def expected_improvement(predictions: Tensor, best: Tensor) -> Tensor:
    """Return the improvement expected if trees' predictions were normal.

    No tree exceeds the best reward that it was fitted to.
    """
    normal = Normal(predictions.mean(dim=0), predictions.std(dim=0).clamp_min(1e-12))
    density = normal.log_prob(best).exp() * normal.variance
    return (normal.mean - best) * (1 - normal.cdf(best)) + density


class BayBE(Peer):
    """A campaign of BayBE."""

    def __init__(self, arms: Candidates, generator: torch.Generator) -> None:
        from baybe import Campaign
        from baybe.objectives import SingleTargetObjective
        from baybe.parameters import (
            CategoricalParameter,
            CustomDiscreteParameter,
            NumericalDiscreteParameter,
            SubstanceParameter,
        )
        from baybe.recommenders import BotorchRecommender
        from baybe.searchspace import SearchSpace
        from baybe.targets import NumericalTarget

        super().__init__(arms, generator)
        if isinstance(arms, pd.DataFrame):
            self.table, words = arms, words_of(arms)
            parameters = [
                SubstanceParameter(name, dict(zip(arms[name], arms[name], strict=True)))
                if name == SMILES
                else CategoricalParameter(name, arms[name].unique())
                if name in words
                else NumericalDiscreteParameter(str(name), arms[name].unique())
                for name in arms
            ]
            # The rows keep their order, which those of a product would not.
            space = SearchSpace.from_dataframe(arms, parameters)
        else:
            features = pd.DataFrame(arms.numpy()).add_prefix("x")
            features.index = "arm " + features.index.astype(str)
            self.table = pd.DataFrame({"arm": features.index})
            parameter = CustomDiscreteParameter("arm", features, decorrelate=False)
            space = SearchSpace.from_product([parameter])
        self.campaign = Campaign(
            space,
            SingleTargetObjective(NumericalTarget("reward")),
            BotorchRecommender(),
        )

    @override
    def ask(self, size: int) -> Tensor:
        with manual_seed(self._seed()):
            picks = self.campaign.recommend(size)
        return torch.tensor(picks.index)

    @override
    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        super().tell(indices, rewards)
        rows = self.table.iloc[indices.numpy()]
        self.campaign.add_measurements(rows.assign(reward=rewards.numpy()))


class PHYSBO(Peer):
    """PHYSBO's Thompson sampling over a list of candidates."""

    @override
    def ask(self, size: int) -> Tensor:
        from physbo.misc import centering
        from physbo.search.discrete import Policy

        rewards = (self.rewards - self.rewards.mean()) / self.rewards.std()
        policy = Policy(
            centering(self.arms.numpy()),
            initial_data=(self.indices.numpy(), rewards.numpy()),
        )
        policy.set_seed(self._seed())
        with redirect_stdout(StringIO()):
            picks = policy.bayes_search(
                num_search_each_probe=size,
                score="TS",
                num_rand_basis=500,
                is_disp=False,
            )
        return torch.from_numpy(picks)


class BanditPlayer:
    """A ``GPBandit``; the first candidates were not asked for."""

    def __init__(
        self, arms: Candidates, generator: torch.Generator, **options: Any
    ) -> None:
        arms = for_bandits(arms)
        self.bandit = GPBandit(arms, generator=generator, **options)
        self.ask = self.bandit.ask
        self.best_arm = self.bandit.best_arm

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring measurements."""
        if self.bandit.pending:
            self.bandit.tell(indices, rewards)
        else:
            self.bandit.add_observations(indices, rewards)


# What takes part, and what makes it from the candidates, a tensor or a frame, and the
# source of randomness.
Player = Peer | BanditPlayer | SuggestLoop
PlayerFactory = Callable[[Any, torch.Generator], Player]

PEERS: dict[str, PlayerFactory] = {
    "uniform": Uniform,
    "qLogEI": QLogEI,
    "Thompson": StockThompson,
    "qLogNEI": QLogNEI,
    "forest, mean": partial(Forest, score=lambda f, best: f.mean(dim=0)),
    "forest, UCB": partial(Forest, score=lambda f, best: f.mean(dim=0) + f.std(dim=0)),
    "forest, EI": partial(Forest, score=expected_improvement),
}
if find_spec("baybe") is not None:
    PEERS["BayBE"] = BayBE
if find_spec("physbo") is not None:
    PEERS["PHYSBO"] = PHYSBO


# Ours


def suggest(arms: Candidates, generator: torch.Generator) -> Player:
    """Return the command `suggest`, called for one batch after another."""
    arms = for_bandits(arms)
    table = TableArms(arms) if isinstance(arms, pd.DataFrame) else arms
    return SuggestLoop(table, seed=_seed(generator))


def suggest_by_fragments(
    arms: pd.DataFrame, generator: torch.Generator, most: int
) -> Player:
    """Return the same without descriptors, of counts that are cut."""
    fragments = fingerprints(arms).clamp_max(most)
    return SuggestLoop(BitArms.of(fragments), seed=_seed(generator), kernel="tanimoto")


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator))


OURS: dict[str, PlayerFactory] = {
    "GPBandit": BanditPlayer,
    "GPBandit, regret": partial(BanditPlayer, goal="regret"),
    "GPBandit, Thompson": partial(BanditPlayer, policy=ThompsonPolicy()),
    "suggest": suggest,
}
# Only of molecules.
BY_FRAGMENTS: dict[str, PlayerFactory] = {
    "suggest, counts": partial(suggest_by_fragments, most=255),
    "suggest, bits": partial(suggest_by_fragments, most=1),
}
METHODS = PEERS | OURS | BY_FRAGMENTS
