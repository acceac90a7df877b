"""Hyper-parameters of a bandit whose objective drifts, the rate among them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Self

import torch
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.hyperparameters import (
    fit_or_warn,
    for_fits,
    Hyperparameters,
    MIN_PULLS_TO_FIT,
)
from botorch_bkb.checks import check_number
from botorch_bkb.models.time_varying_gp import default_temporal_kernel, TimeVaryingGP
from botorch_bkb.posteriors.sparse_arm_filter import check_forgetting_rate


# The likelihood is fitted to at most this many pulls, the latest.
MAX_FIT_PULLS = 512


class DriftHyperparameters(Hyperparameters):
    r"""Kernel, noise, units and forgetting rate in which a bandit works.

    What is not given is fitted by the marginal likelihood over space and time, equation
    (24) of [bogunovic2016tvgpucb]_. A rate that is learned is one per step, about
    the gap between the times of pulls: per unit of time it is 1 up to rounding where
    steps are small against that, whatever they forget, and where they are large the
    likelihood is flat in it.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel over space; None to learn one.
        noise_variance: lambda; None to learn it.
        forgetting_rate: ``eps``; None to learn it.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None,
        noise_variance: float | None,
        forgetting_rate: float | None,
    ) -> None:
        if forgetting_rate is not None:
            check_forgetting_rate(forgetting_rate)
        super().__init__(arms, covar_module, noise_variance)
        self.given_rate = forgetting_rate
        self.temporal_kernel = default_temporal_kernel().double()
        self.step = 1.0  # in units of time

    @property
    def forgetting_rate(self) -> float:
        """``eps``, per unit of time; 1 where that forgets all but rounding."""
        if self.step == 1:
            return self.step_rate
        return 1 - (1 - self.step_rate) ** (1 / self.step)

    @property
    def step_rate(self) -> float:
        """``eps``, per step, in which filters count time."""
        if self.given_rate is not None:
            return self.given_rate
        return self.temporal_kernel.forgetting_rate.item()

    def steps(self, time: float) -> float:
        """Return a time in steps."""
        return time / self.step

    @override
    def unfitted(self) -> Self:
        other = super().unfitted()
        other.temporal_kernel, other.step = default_temporal_kernel().double(), 1.0
        return other

    @override
    def is_due(self, num_pulls: int) -> bool:
        learns = self.learns or self.given_rate is None
        return learns and num_pulls >= self.next_fit

    @override
    def refitted(self, indices: Tensor, rewards: Tensor, times: Tensor) -> Self:
        order = times.argsort(stable=True)
        other = deepcopy(self)
        other._fit_over_time(indices[order], rewards[order], times[order])
        return other

    def _fit_over_time(self, indices: Tensor, rewards: Tensor, times: Tensor) -> None:
        num_pulls = indices.shape[0]
        self._set_units(rewards)
        if num_pulls < MIN_PULLS_TO_FIT:
            return
        recent = slice(-MAX_FIT_PULLS, None)
        times = for_fits(times[recent])
        step = 1.0 if self.given_rate is not None else typical_step(times)
        model = self._model_over_time(
            indices[recent], self._targets(rewards[recent]), times / step
        )
        if not fit_or_warn(model, num_pulls):
            return
        self.step = step
        # Not strict: the model's kernels store active dimensions, ours do not.
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
        covar_module = deepcopy(self.covar_module).cpu().double()
        # From the start: few pulls may give a rate of 0 or 1, whose gradient is 0.
        temporal_kernel = default_temporal_kernel().double()
        if self.given_rate is not None:
            # The ends of the interval have no finite raw value.
            temporal_kernel.forgetting_rate = min(max(self.given_rate, 1e-9), 1 - 1e-9)
        known = self.given_noise is not None
        X = torch.cat([for_fits(self.features[indices]), times.unsqueeze(-1)], dim=-1)
        with warnings.catch_warnings():
            # No scaling: of time by design, of features where the kernel is given.
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
            "step": self.step,
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.temporal_kernel.load_state_dict(state["temporal_kernel"])
        self.step = check_number("step", state["step"], least=1e-150)


def typical_step(times: Tensor) -> float:
    """Return the mean gap between distinct times, of the middle half of them.

    Bursts and single times far off hardly change it. To a power of two: dividing by it
    rounds nothing, and asks one unit apart, some without a result, have a step of 1.
    """
    times = times.unique()
    if len(times) < 2:
        return 1.0
    low, high = times.quantile(0.25).item(), times.quantile(0.75).item()
    return 2.0 ** round(math.log2((high - low) / (0.5 * (len(times) - 1))))
