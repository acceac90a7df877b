"""Kernels with priors, to be learned, and the parts of any kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from botorch_bkb.models.kernels import AnovaKernel, TanimotoKernel
from botorch_bkb.models.kernels.product import MixedKernel
from botorch_bkb.models.utils.bits import BitArms


# Where the lengthscales of BoTorch's kernels stop.
MIN_LENGTHSCALE = 0.025
# A part of a sum that vanished would have no logarithm, over which fits search.
MIN_OUTPUTSCALE = 1e-3


def tanimoto_to_learn(arms: BitArms) -> Kernel:
    """Return a Tanimoto kernel of packed fingerprints, with a variance to learn.

    Times a Matern kernel on the numbers beside them, if there are any.
    """
    num_bits, num_columns = arms.num_bits, arms.shape[-1]
    kernel: Kernel = TanimotoKernel()
    if num_columns > num_bits:
        kernel = TanimotoKernel(active_dims=range(num_bits))
        kernel *= get_covar_module_with_dim_scaled_prior(
            num_columns - num_bits,
            use_rbf_kernel=False,
            active_dims=range(num_bits, num_columns),
        )
    # Around the variance 1 of standardized rewards.
    kernel = ScaleKernel(kernel, outputscale_prior=LogNormalPrior(0.0, 1.0))
    kernel.outputscale = 1.0
    return kernel


def matern_to_learn(arms: Tensor) -> Kernel:
    """Return a Matern-5/2 kernel to learn, a lengthscale per feature.

    The prior of the lengthscales is BoTorch's, which grows with the dimension.

    Args:
        arms: An ``A x d`` tensor of features; fingerprints count as numbers.
    """
    return get_covar_module_with_dim_scaled_prior(arms.shape[-1], use_rbf_kernel=False)


def rbf_to_learn(arms: Tensor) -> Kernel:
    """Return an RBF kernel to learn, a lengthscale per feature: BoTorch's default.

    The prior of the lengthscales grows with the dimension.

    Args:
        arms: An ``A x d`` tensor of features; fingerprints count as numbers.
    """
    return get_covar_module_with_dim_scaled_prior(arms.shape[-1])


def composite_to_learn(arms: Tensor) -> Kernel:
    r"""Return a trend and detail to learn, for rewards that are rough beside it.

    The Matern kernel of :func:`matern_to_learn`, a lengthscale per feature, plus one of
    less variance with one short lengthscale for all features, as in the composite
    Gaussian processes of [ba2012composite]_. A single Matern kernel has to explain
    roughness by short lengthscales, and forgets the trend with them.

    Both parts are Matern-5/2 kernels. The variances start at 0.7 and 0.2 of that of the
    standardized rewards, and the lengthscale of the detail at a tenth of the unit
    cube's diagonal.

    Args:
        arms: An ``A x d`` tensor of features; fingerprints count as numbers.
    """
    return _with_detail(matern_to_learn(arms))


def anova_to_learn(arms: Tensor) -> Kernel:
    """Return effects of single features and of interactions to learn, and detail.

    An :class:`~botorch_bkb.models.kernels.AnovaKernel` in the place of the trend of
    :func:`composite_to_learn`. For rewards that are nearly a sum of functions of one
    feature each, or of few features together.

    Args:
        arms: An ``A x d`` tensor of features; fingerprints count as numbers.
    """
    of_one = get_covar_module_with_dim_scaled_prior(1)
    trend = AnovaKernel(
        arms.shape[-1],
        lengthscale_prior=of_one.lengthscale_prior,
        lengthscale_constraint=of_one.raw_lengthscale_constraint,
    )
    return _with_detail(trend)


def _with_detail(trend: Kernel) -> Kernel:
    """Return a scaled trend plus rough detail over all its features."""
    # A tenth of the unit cube's diagonal.
    short = 0.1 * math.sqrt(trend.ard_num_dims)
    detail = MaternKernel(
        nu=2.5,
        lengthscale_prior=LogNormalPrior(math.log(short), 0.7),
        lengthscale_constraint=GreaterThan(
            MIN_LENGTHSCALE, transform=None, initial_value=short
        ),
    )
    return _scaled_to_learn(trend, 0.7, 0.5, largest=4.0) + _scaled_to_learn(
        detail, 0.2, 1.0, largest=1.0
    )


def product_to_learn(tables: Sequence[Tensor], is_category: Sequence[bool]) -> Kernel:
    r"""Return the kernel to learn over a product space.

    ``s prod_i (1 + w_i k_i) / (1 + w_i)``, with a Tanimoto kernel ``k_i`` of a
    component of fingerprints, a Matern-5/2 kernel of numbers, and a categorical kernel,
    whose lengthscale takes the place of ``w_i``.

    Args:
        tables: The ``n_i x d_i`` rows of each component.
        is_category: Whether a component is a list of categories.
    """
    factors: list[Kernel] = []
    start = 0
    for rows, one_of_many in zip(tables, is_category, strict=True):
        columns = range(start, start := start + rows.shape[-1])
        if one_of_many:
            prior = LogNormalPrior(0.0, 1.0)
            factor = CategoricalKernel(active_dims=columns, lengthscale_prior=prior)
        elif isinstance(rows, BitArms):
            factor = MixedKernel(TanimotoKernel(), active_dims=columns)
        else:
            factor = MixedKernel(matern_to_learn(rows), active_dims=columns)
        factors.append(factor)
    return _scaled_to_learn(ProductKernel(*factors), 1.0, 1.0, largest=10.0)


def _scaled_to_learn(
    kernel: Kernel, variance: float, spread: float, *, largest: float
) -> ScaleKernel:
    """Return the kernel with a variance to learn, log-normal around this one.

    Without a largest one the variance of rewards that nothing explains, such as
    repeats that differ by far more than their noise, would grow without end.
    """
    return ScaleKernel(
        kernel,
        outputscale_prior=LogNormalPrior(math.log(variance), spread),
        outputscale_constraint=Interval(
            MIN_OUTPUTSCALE, largest, transform=None, initial_value=variance
        ),
    )


def kernel_form(covar_module: Kernel) -> list[tuple[str, dict[str, float]]]:
    """Return each part's class, and its numbers that are no parameters (``nu``)."""
    return [
        (
            type(part).__name__,
            {
                name: float(value)
                for name, value in vars(part).items()
                if isinstance(value, Real)
                and not isinstance(value, bool)
                and not name.startswith("_")
            },
        )
        for part in covar_module.modules()
    ]


def fingerprint_columns(covar_module: Kernel | None, num_columns: int) -> list[int]:
    """Return the columns of a Tanimoto kernel: counts have no units to take out."""
    if covar_module is None:
        return []
    columns: set[int] = set()
    for kernel in covar_module.modules():
        if isinstance(kernel, TanimotoKernel):
            active = kernel.active_dims
            columns.update(range(num_columns) if active is None else active.tolist())
    return sorted(columns)


@torch.no_grad()
def variance_shares(covar_module: Kernel, points: Tensor) -> list[tuple[Kernel, float]]:
    """Return the parts of a sum, or the kernel alone, and their shares of the variance.

    Args:
        covar_module: The kernel.
        points: An ``n x d`` tensor, over which prior variances are averaged.
    """
    is_sum = isinstance(covar_module, AdditiveKernel)
    parts = list(covar_module.kernels) if is_sum else [covar_module]
    variances = [part(points, diag=True).mean().item() for part in parts]
    total = sum(variances) or 1.0
    return [(part, each / total) for part, each in zip(parts, variances, strict=True)]
