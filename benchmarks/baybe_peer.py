"""BayBE over a pool, where the package `baybe` (seen: 0.15.0) is installed.

A campaign on the pool as a discrete search space of numbers, with every default left
alone. On such a space it recommends no candidate that was measured, as the other peers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from baybe import Campaign
from baybe.parameters import NumericalDiscreteParameter
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget
from botorch.utils.sampling import manual_seed
from torch import Tensor
from typing_extensions import override

from benchmarks.peers import Peer


TARGET = "target"


class BayBE(Peer):
    """A campaign; recommends the measured candidate of the largest posterior mean."""

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        super().__init__(arms, generator)
        self.table = pd.DataFrame(arms.numpy()).add_prefix("x")
        parameters = [
            NumericalDiscreteParameter(name, values=np.unique(column).tolist())
            for name, column in self.table.items()
        ]
        space = SearchSpace.from_dataframe(self.table, parameters)
        self.campaign = Campaign(space, NumericalTarget(TARGET).to_objective())

    @override
    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        super().tell(indices, rewards)
        rows = self.table.iloc[indices.numpy()]
        self.campaign.add_measurements(rows.assign(**{TARGET: rewards.numpy()}))

    @override
    def ask(self, size: int) -> Tensor:
        with manual_seed(int(torch.randint(2**31, (1,), generator=self.generator))):
            picks = self.campaign.recommend(size)
        return torch.tensor(picks.index.to_numpy(dtype="int64", copy=True))

    @override
    def best_arm(self) -> int:
        rows = self.table.iloc[self.indices.numpy()]
        mean = self.campaign.posterior_stats(rows, stats=["mean"]).iloc[:, 0]
        return int(self.indices[int(mean.to_numpy().argmax())])
