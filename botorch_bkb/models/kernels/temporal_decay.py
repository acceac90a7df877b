"""The kernel of an objective that forgets."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor
from typing_extensions import override


class TemporalDecayKernel(Kernel):
    r"""Correlation over time, ``(1 - eps)^(|t - t'| / 2)``.

    Multiplied with a kernel over space it is the covariance of ``f_{t+1} = sqrt(1 -
    eps) f_t + sqrt(eps) g_{t+1}``, equations (3), (4) and (7) of
    [bogunovic2016tvgpucb]_. The forgetting rate ``eps``, the share of the variance that
    is forgotten per unit of time, is learned like any hyperparameter: the marginal
    likelihood of the product kernel is equation (24) of the paper. Time is a column of
    the inputs.

    Args:
        forgetting_rate_prior: A prior on ``eps``.
        **kwargs: Options of ``gpytorch.kernels.Kernel``; ``active_dims`` names the time
            column.

    Example:
        >>> space = MaternKernel(active_dims=(0, 1))
        >>> covar_module = space * TemporalDecayKernel(active_dims=(2,))
    """

    is_stationary = True

    def __init__(
        self,
        forgetting_rate_prior: Prior | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the arguments that the class describes."""
        super().__init__(**kwargs)
        raw = torch.zeros(*self.batch_shape, 1, 1)
        self.register_parameter("raw_forgetting_rate", torch.nn.Parameter(raw))
        self.register_constraint("raw_forgetting_rate", Interval(0.0, 1.0))
        if forgetting_rate_prior is not None:
            self.register_prior(
                "forgetting_rate_prior",
                forgetting_rate_prior,
                self._forgetting_rate_param,
                self._forgetting_rate_closure,
            )

    @property
    def forgetting_rate(self) -> Tensor:
        """The forgetting rate ``eps``, a ``batch_shape x 1 x 1`` tensor."""
        return self.raw_forgetting_rate_constraint.transform(self.raw_forgetting_rate)

    @forgetting_rate.setter
    def forgetting_rate(self, value: Tensor | float) -> None:
        like = self.raw_forgetting_rate
        value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        raw = self.raw_forgetting_rate_constraint.inverse_transform(value)
        self.initialize(raw_forgetting_rate=raw)

    # Methods and no lambdas: a kernel with a prior can be pickled.
    def _forgetting_rate_param(self, module: TemporalDecayKernel) -> Tensor:
        return module.forgetting_rate

    def _forgetting_rate_closure(
        self, module: TemporalDecayKernel, value: Tensor
    ) -> None:
        module.forgetting_rate = value

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        if x1.shape[-1] != 1 or x2.shape[-1] != 1:
            raise BotorchTensorDimensionError(
                "Expected inputs of one column, the time, but got "
                f"{x1.shape[-1]} and {x2.shape[-1]}. Name the column by `active_dims`."
            )
        remembered = 1 - self.forgetting_rate
        if diag:
            gap = (x1 - x2).abs().squeeze(-1)
            remembered = remembered.squeeze(-1)
        else:
            gap = (x1 - x2.mT).abs()
        # 0^0 = 1 and 0^gap = 0, where the gradient of a power would be NaN.
        forgets = remembered <= 0
        power = torch.where(forgets, 1.0, remembered) ** (gap / 2)
        return torch.where(forgets, (gap == 0).to(power), power)
