"""Finite-arm problems whose mean rewards change over time."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import Kernel
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_number
from botorch_bkb.models.utils.draws import draw_normals
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.test_functions.finite_arm import FiniteArmProblem


class DriftingProblem(FiniteArmProblem, ABC):
    r"""A bandit problem over finitely many arms whose mean rewards change in steps.

    Rewards and regrets are those of a
    :class:`~botorch_bkb.test_functions.FiniteArmProblem` at the present step. Larger is
    better.

    Attributes:
        time: The number of the step, from 1 on.
        mean_rewards: The ``A`` mean rewards now.
    """

    time = 1

    @abstractmethod
    def advance(self) -> None:
        """Move to the next step: its time, and its mean rewards."""


class MarkovGPProblem(DriftingProblem):
    r"""A drifting GP, (3) and (4) of [bogunovic2016tvgpucb]_.

    ``f_1 = g_1`` and ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``, every ``g``
    an independent draw from the GP over the arms. ``O(A^2)`` a step, after one Cholesky
    factorization.

    Args:
        arms: An ``A x d``-dim tensor of features.
        covar_module: The kernel.
        forgetting_rate: ``eps``.
        noise_std: The standard deviation of the noise.
        generator: The source of the function. Noise has its own, so that two bandits
            see the same function.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d``.
        InputDataError: If ``forgetting_rate`` or ``noise_std`` is out of range.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel,
        forgetting_rate: float,
        noise_std: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__(arms, arms.new_zeros(len(arms)), noise_std)
        self.forgetting_rate = check_number("forgetting_rate", forgetting_rate, 0, 1)
        self._generator = generator
        with torch.no_grad():
            # In double: smooth kernels over many arms are singular to rounding.
            K = dense_covariance(covar_module, arms).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # of a jitter of 1e-8
            self._root = psd_safe_cholesky(K)
        self.mean_rewards = self._draw().to(arms)

    @override
    def advance(self) -> None:
        kept = 1 - self.forgetting_rate
        new = math.sqrt(self.forgetting_rate) * self._draw().to(self.arms)
        self.mean_rewards = math.sqrt(kept) * self.mean_rewards + new
        self.time += 1

    def _draw(self) -> Tensor:
        normal = draw_normals(self._root.shape[0], generator=self._generator)
        return self._root @ normal.to(self._root)


class TimeSeriesProblem(DriftingProblem):
    r"""Rewards read from a table of time by arm.

    The arms' features are their column numbers, for
    :class:`~botorch_bkb.models.kernels.PrecomputedKernel`, and there is no noise.

    Args:
        values: A ``T x A``-dim tensor: the rewards of every step.

    Raises:
        BotorchTensorDimensionError: If ``values`` is not ``T x A``.
        InputDataError: If a value is not finite.
    """

    def __init__(self, values: Tensor) -> None:
        if values.dim() != 2 or 0 in values.shape:
            raise BotorchTensorDimensionError(
                f"Expected `values` of shape T x A, but got {tuple(values.shape)}."
            )
        bad = (~values.isfinite()).nonzero()
        if bad.numel():
            raise InputDataError(
                "Expected finite `values`, but the first that is not is in row "
                f"{int(bad[0, 0])}, column {int(bad[0, 1])}."
            )
        arms = torch.arange(values.shape[1]).to(values).unsqueeze(-1)
        values = values if values.is_floating_point() else values.double()
        super().__init__(arms, values[0], noise_std=0.0)
        self.values = values

    @property
    def horizon(self) -> int:
        """The number of steps."""
        return self.values.shape[0]

    @override
    def advance(self) -> None:
        if self.time >= self.horizon:
            raise InputDataError(
                f"Expected a step after {self.time}, but the table ends there."
            )
        self.mean_rewards = self.values[self.time]
        self.time += 1
