r"""The prior of a bandit whose objective drifts at a rate that is given or learned.

References:
    [bogunovic2016tvgpucb] I. Bogunovic, J. Scarlett, V. Cevher. Time-varying Gaussian
    process bandit optimization. AISTATS 2016.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.hyperparameters import (
    fit_or_warn,
    MIN_PULLS_TO_FIT,
    Prior,
)
from botorch_bkb.models.time_varying_gp import default_temporal_kernel, TimeVaryingGP


# The likelihood is fitted to at most this many pulls, the latest.
MAX_FIT_PULLS = 512


class DriftPrior(Prior):
    r"""Kernel, noise, units and forgetting rate in which a bandit works.

    What is not given is fitted by the marginal likelihood over space and time, equation
    (24) of [bogunovic2016tvgpucb]_.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel over space; None to learn one.
        noise_variance: lambda; None to learn it.
        forgetting_rate: ``eps``; None to learn it.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None,
        noise_variance: float | None,
        forgetting_rate: float | None,
    ) -> None:
        super().__init__(arms, covar_module, noise_variance)
        self.given_rate = forgetting_rate
        self.temporal_kernel = default_temporal_kernel().double()

    @property
    def forgetting_rate(self) -> float:
        """``eps``, per unit of time."""
        if self.given_rate is not None:
            return self.given_rate
        return self.temporal_kernel.forgetting_rate.item()

    @property
    def step_rate(self) -> float:
        """``eps``, per step in which filters count time."""
        return self.forgetting_rate

    def steps(self, time: float) -> float:
        """Return a time in the steps in which filters count it."""
        return time

    @override
    def is_due(self, num_pulls: int) -> bool:
        learns = self.learns or self.given_rate is None
        return learns and num_pulls >= self.next_fit

    def fit_over_time(self, indices: Tensor, rewards: Tensor, times: Tensor) -> None:
        """Fit to the told pulls, ``n`` of them; as :meth:`Prior.fit`, with times."""
        num_pulls = indices.shape[0]
        self._set_units(rewards)
        if num_pulls < MIN_PULLS_TO_FIT:
            return
        recent = slice(-MAX_FIT_PULLS, None)
        model = self._model_over_time(
            indices[recent], self._targets(rewards[recent]), times[recent]
        )
        if not fit_or_warn(model, num_pulls):
            return
        # Not strict: the model's kernels know which columns are theirs.
        self.covar_module.load_state_dict(
            model.spatial_kernel.state_dict(), strict=False
        )
        if self.given_noise is None:
            self.likelihood.load_state_dict(model.likelihood.state_dict())
        if self.given_rate is None:
            self.temporal_kernel.load_state_dict(
                model.temporal_kernel.state_dict(), strict=False
            )

    def _model_over_time(
        self, indices: Tensor, targets: Tensor, times: Tensor
    ) -> TimeVaryingGP:
        covar_module = deepcopy(self.covar_module).double()
        # Anew: where a few pulls said 0 or 1, the gradient no longer leads away.
        temporal_kernel = default_temporal_kernel().double()
        if self.given_rate is not None:
            # The ends of the interval have no finite raw value.
            temporal_kernel.forgetting_rate = min(max(self.given_rate, 1e-9), 1 - 1e-9)
        known = self.given_noise is not None
        X = torch.cat([self.features[indices].double(), times.unsqueeze(-1)], dim=-1)
        with warnings.catch_warnings():
            # Time is no feature to be scaled, nor are those of a given kernel.
            warnings.simplefilter("ignore", InputDataWarning)
            return TimeVaryingGP(
                X,
                targets,
                torch.full_like(targets, self.noise_variance) if known else None,
                likelihood=None if known else deepcopy(self.likelihood).double(),
                covar_module=covar_module.requires_grad_(self.learns_kernel),
                temporal_kernel=temporal_kernel.requires_grad_(self.given_rate is None),
                mean_module=ZeroMean(),
                outcome_transform=None,
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "temporal_kernel": self.temporal_kernel.state_dict(),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.temporal_kernel.load_state_dict(state["temporal_kernel"])
