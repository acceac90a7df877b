"""A product over features, for effects of single features and of few together."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import LogNormalPrior
from torch import nn, Tensor
from typing_extensions import override


# Covariances that a thread computes at once, so that they fit its cache.
TILE = 2**15


class WeightedKernel(Kernel):
    """A kernel with weights to learn, positive, log-normal around 1.

    Args:
        weight_shape: Their shape.
        **kwargs: Options of ``gpytorch.kernels.Kernel``.
    """

    def __init__(self, weight_shape: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_parameter("raw_weight", nn.Parameter(torch.zeros(weight_shape)))
        bounds = Interval(1e-3, 1e3, transform=None, initial_value=1.0)
        self.register_constraint("raw_weight", bounds)
        self.register_prior(
            "weight_prior",
            LogNormalPrior(0.0, 1.0),
            self._weight_param,
            self._weight_closure,
        )

    @property
    def weight(self) -> Tensor:
        """The weights."""
        return self.raw_weight_constraint.transform(self.raw_weight)

    # Methods and no lambdas: a kernel with a prior can be pickled.
    def _weight_param(self, module: WeightedKernel) -> Tensor:
        return module.weight

    def _weight_closure(self, module: WeightedKernel, value: Tensor) -> None:
        module.initialize(raw_weight=value)


class AnovaKernel(WeightedKernel):
    r"""Effects of single features, and of their interactions.

    The ANOVA kernel of [durrande2013anova]_ with RBF kernels and weights, ::

        k(x, z) = prod_i (1 + w_i exp(-(x_i - z_i)^2 / (2 l_i^2))) / (1 + w_i)

    Multiplied out, it is a sum over all sets of features. If weights are small, the
    function is nearly a sum of functions of one feature each, and a few observations of
    each value of a feature tell about all points with that value. A feature with a
    weight of almost 0 does not matter.

    Args:
        num_features: The number ``d`` of features.
        **kwargs: Options of ``gpytorch.kernels.Kernel``, as for the lengthscales.
    """

    has_lengthscale = True

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        """Take the arguments that the class describes."""
        super().__init__((1, num_features), ard_num_dims=num_features, **kwargs)

    @property
    def effective_lengthscale(self) -> Tensor:
        """The ``1 x d`` lengthscales of RBF kernels with the same curvature at 0."""
        return self.lengthscale * (1 + 1 / self.weight).sqrt()

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        scale = math.sqrt(2) * self.lengthscale
        a, b = x1 / scale, x2 / scale
        constant = 1 / (1 + self.weight[0])
        if not (diag or torch.is_grad_enabled()) and a.dim() == b.dim() == 2:
            return _in_tiles(a, b, constant)
        if not diag:
            a, b = a.unsqueeze(-2), b.unsqueeze(-3)
        K = torch.ones_like(a[..., 0] + b[..., 0])
        for u, v, c in zip(a.unbind(-1), b.unbind(-1), constant, strict=True):
            K = K * (c + (1 - c) * torch.exp(-(u - v).square()))
        return K


def _in_tiles(a: Tensor, b: Tensor, constant: Tensor) -> Tensor:
    """Return ``prod_i (c_i + (1 - c_i) exp(-(a_i - b_i)^2))``, computed in place.

    Args:
        a: An ``n x d`` tensor.
        b: An ``n' x d`` tensor.
        constant: The ``d`` numbers ``c_i``.
    """
    if len(a) > len(b):
        return _in_tiles(b, a, constant).mT
    K = a.new_ones(len(a), len(b))
    columns = b.mT.contiguous()
    log_rest = torch.log1p(-constant)
    step = max(len(b), 1)
    if a.device.type == "cpu":
        step = max(TILE * torch.get_num_threads() // max(len(a), 1), 1)
    for start in range(0, len(b), step):
        tile = K[:, start : start + step]
        part = columns[:, start : start + step]
        for i, c in enumerate(constant.tolist()):
            difference = a[:, i : i + 1] - part[i]
            torch.addcmul(log_rest[i], difference, difference, value=-1, out=difference)
            tile.mul_(difference.exp_().add_(c))
    return K
