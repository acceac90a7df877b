"""Kernels with priors, to be learned by maximum a posteriori, and such fits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from numbers import Real
from typing import Any, Literal

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.constraints import LogTransformedInterval
from gpytorch import Module
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import nn, Tensor
from typing_extensions import override

from botorch_bkb.models.kernels.tanimoto import TanimotoKernel
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import BitArms


# What a component of a product space holds, or a column of a table.
ComponentKind = Literal["numbers", "categories", "molecules", "cyclic"]
# Covariances that a thread computes at once, so that they fit its cache.
TILE = 2**15
# Stands for no upper bound of a hyperparameter while it is fitted.
LARGEST_PARAMETER = 1e10
# Where the lengthscales of BoTorch's kernels stop.
MIN_LENGTHSCALE = 0.025
# A part of a sum that vanished would have no logarithm, over which fits search.
MIN_OUTPUTSCALE = 1e-3


class WeightedKernel(Kernel):
    """A kernel with weights to learn, positive and log-normal.

    Args:
        weight_shape: Their shape.
        prior: Their prior, by default around 1.
        **kwargs: Options of ``gpytorch.kernels.Kernel``.
    """

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        prior: LogNormalPrior | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.register_parameter("raw_weight", nn.Parameter(torch.zeros(weight_shape)))
        bounds = Interval(1e-3, 1e3, transform=None, initial_value=1.0)
        self.register_constraint("raw_weight", bounds)
        self.register_prior(
            "weight_prior",
            prior or LogNormalPrior(0.0, 1.0),
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


class MixedKernel(WeightedKernel):
    r"""A constant plus another kernel, ``(1 + w k(x, x')) / (1 + w)``.

    With a small weight ``w`` the component hardly matters, with a large one only
    similar values of it inform about each other.

    Args:
        base_kernel: The kernel ``k``, with ``k(x, x) = 1``.
    """

    def __init__(self, base_kernel: Kernel, **kwargs: Any) -> None:
        super().__init__((), **kwargs)
        self.base_kernel = base_kernel

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        if diag:
            K = self.base_kernel(x1, x2, diag=True)
        else:
            K = dense_covariance(self.base_kernel, x1, x2)
        return self.mixed(K)

    def mixed(self, K: Tensor) -> Tensor:
        """Return the values of the kernel, given those of ``k``."""
        return (1 + self.weight * K) / (1 + self.weight)


class CyclicKernel(MaternKernel):
    """A Matern-5/2 kernel on the cosine and sine of a number that starts again.

    Its argument is a column of numbers. The distance is that of points on a circle of
    diameter 1, across it: on the length of the arc the kernel would be indefinite.

    Args:
        period: After how much the number starts again, such as 24 for hours.
    """

    def __init__(self, period: float) -> None:
        of_pair = matern_to_learn(torch.empty(0, 2))
        super().__init__(
            nu=2.5,
            lengthscale_prior=of_pair.lengthscale_prior,
            lengthscale_constraint=of_pair.raw_lengthscale_constraint,
        )
        self.period = period

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        angles = (2 * math.pi / self.period * x for x in (x1, x2))
        pairs = (torch.cat([x.cos(), x.sin()], dim=-1) / 2 for x in angles)
        return super().forward(*pairs, diag=diag, **params)


class WordsKernel(CategoricalKernel):
    """BoTorch's kernel of categories, in memory for a number a pair of rows.

    ``exp(-h / l)`` for rows that differ in a share ``h`` of the columns.
    """

    @override
    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
    ) -> Tensor:
        scale = -1 / (x1.shape[-1] * self.lengthscale.squeeze(-1))
        return torch.exp(scale * _num_different(x1, x2, diag))


class SameKernel(Kernel):
    """1 for rows that are equal in all columns, and 0 for others."""

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        return (_num_different(x1, x2, diag) == 0).to(x1)


def _num_different(x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
    """Return in how many columns rows differ, all pairs of them or one by one."""
    return (x1 != x2).sum(dim=-1) if diag else torch.cdist(x2, x1, p=0).mT


def tanimoto_to_learn(arms: BitArms) -> Kernel:
    """Return a Tanimoto kernel of packed fingerprints, with a variance to learn.

    Times a Matern kernel on the numbers beside them, if there are any.
    """
    kernel: Kernel = TanimotoKernel()
    if arms.shape[-1] > arms.num_bits:
        kernel = ProductKernel(*_fingerprints_and_numbers(arms))
    # Around the variance 1 of standardized rewards.
    kernel = ScaleKernel(kernel, outputscale_prior=LogNormalPrior(0.0, 1.0))
    kernel.outputscale = 1.0
    return kernel


def tanimoto_sum_to_learn(arms: BitArms) -> Kernel:
    """Return a Tanimoto kernel plus a Matern kernel on the numbers beside fingerprints.

    With a variance each to learn. For numbers such as descriptors, which tell something
    about molecules that share no fragment.
    """
    parts = _fingerprints_and_numbers(arms)
    return AdditiveKernel(*(_scaled_to_learn(k, 0.5, 1.0, largest=10.0) for k in parts))


def _fingerprints_and_numbers(arms: BitArms) -> tuple[Kernel, Kernel]:
    """Return a kernel of fingerprints, and one of the numbers beside them."""
    num_bits, num_columns = arms.num_bits, arms.shape[-1]
    of_numbers = get_covar_module_with_dim_scaled_prior(
        num_columns - num_bits,
        use_rbf_kernel=False,
        active_dims=range(num_bits, num_columns),
    )
    return TanimotoKernel(active_dims=range(num_bits)), of_numbers


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


def scaled_rbf_to_learn(arms: Tensor) -> Kernel:
    """Return the kernel of :func:`rbf_to_learn` with a variance to learn as well."""
    return _scaled_to_learn(rbf_to_learn(arms), 1.0, 1.0, largest=10.0)


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
    detail = _detail(trend.ard_num_dims)
    return _scaled_to_learn(trend, 0.7, 0.5, largest=4.0) + _scaled_to_learn(
        detail, 0.2, 1.0, largest=1.0
    )


def _detail(num_features: int, **kwargs: Any) -> Kernel:
    """Return a kernel with one short lengthscale, a tenth of the cube's diagonal."""
    short = 0.1 * math.sqrt(num_features)
    return MaternKernel(
        nu=2.5,
        lengthscale_prior=LogNormalPrior(math.log(short), 0.7),
        lengthscale_constraint=GreaterThan(
            MIN_LENGTHSCALE, transform=None, initial_value=short
        ),
        **kwargs,
    )


def product_to_learn(kinds: Sequence[ComponentKind], tables: list[Tensor]) -> Kernel:
    r"""Return the kernel to learn over a product space.

    ``s prod_i (1 + w_i k_i) / (1 + w_i)``, with a Tanimoto kernel ``k_i`` of
    fingerprints, a Matern-5/2 kernel of numbers, and a categorical kernel, whose
    lengthscale takes the place of ``w_i``.

    Args:
        kinds: What each component is.
        tables: The ``n_i x d_i`` rows of each component.
    """
    stops = accumulate(rows.shape[-1] for rows in tables)
    columns = (range(b - r.shape[-1], b) for b, r in zip(stops, tables, strict=True))
    factors = map(_factor, kinds, columns)
    return _scaled_to_learn(ProductKernel(*factors), 1.0, 1.0, largest=10.0)


def columns_to_learn(columns: Iterable[tuple[ComponentKind, range, float]]) -> Kernel:
    r"""Return a product over the columns of a table to learn, and rough detail.

    The kernel of :func:`product_to_learn`, in which all columns of numbers have one
    factor together, and so have all columns of words: with one lengthscale it hardly
    overfits few results. Detail of less variance is shared by rows with the same words
    and nearly the same numbers.

    Args:
        columns: What each column of the table is, its columns beside those of the
            others, of which a fingerprint has many, and its period if it is cyclic.
    """
    factors = _factors(columns)
    trend = _scaled_to_learn(ProductKernel(*factors.values()), 0.8, 1.0, largest=10.0)
    parts: list[Kernel] = []
    if "numbers" in factors:
        numbers = factors.pop("numbers").active_dims
        parts.append(_detail(len(numbers), active_dims=numbers))
    if factors:
        others = torch.cat([factor.active_dims for factor in factors.values()])
        parts.append(SameKernel(active_dims=others))
    return trend + _scaled_to_learn(ProductKernel(*parts), 0.2, 1.0, largest=1.0)


def effects_to_learn(columns: Iterable[tuple[ComponentKind, range, float]]) -> Kernel:
    r"""Return main effects of the columns of a table to learn, and their product.

    ``sum_i s_i k_i`` plus the product of :func:`columns_to_learn`: a sum of a function
    of each column, all columns of numbers together, and interactions.

    Args:
        columns: As for :func:`columns_to_learn`.
    """
    columns, main = list(columns), list[Kernel]()
    for kind, factor in _factors(columns).items():
        if kind != "categories":
            factor.base_kernel.active_dims = factor.active_dims
            main.append(factor.base_kernel)
    words = [each for kind, each, _ in columns if kind == "categories"]
    main += [SameKernel(active_dims=each) for each in words]
    product = ProductKernel(*_factors(columns).values())
    return AdditiveKernel(
        *(_scaled_to_learn(each, 0.3, 1.0, largest=10.0) for each in main),
        _scaled_to_learn(product, 0.4, 1.0, largest=10.0),
    )


def _factors(
    columns: Iterable[tuple[ComponentKind, range, float]],
) -> dict[Any, Kernel]:
    """Return the factors of a table: one of all numbers, and one of all words."""
    joined: dict[Any, list[int]] = {}
    factors: dict[Any, Kernel] = {}
    for kind, own, period in columns:
        if kind in ("categories", "numbers"):
            joined.setdefault(kind, []).extend(own)
        else:
            factors[own] = _factor(kind, own, period)
    return factors | {kind: _factor(kind, each) for kind, each in joined.items()}


def _factor(kind: ComponentKind, columns: Sequence[int], period: float = 0.0) -> Kernel:
    """Return the kernel to learn of a component, or of columns of one kind."""
    if kind == "categories":
        form = CategoricalKernel if len(columns) == 1 else WordsKernel
        prior = LogNormalPrior(0.0, 1.0)
        return form(active_dims=columns, lengthscale_prior=prior)
    if kind == "molecules":
        return MixedKernel(TanimotoKernel(), active_dims=columns)
    if kind == "cyclic":
        return MixedKernel(CyclicKernel(period), active_dims=columns)
    matern = matern_to_learn(torch.empty(0, len(columns)))
    return MixedKernel(matern, active_dims=columns)


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


@torch.no_grad()
def log_likelihood(model: SingleTaskGP) -> float:
    """Return the log likelihood per pull, with the priors: the objective of a fit."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets).item()


@contextmanager
def _logarithms(model: SingleTaskGP) -> Iterator[None]:
    """Search over logarithms of hyperparameters during a fit.

    Of lengthscales, variances and noise only ratios matter. In thirty dimensions L-BFGS
    takes a tenth to a fiftieth of the steps that it takes over the numbers themselves.
    """
    plain = [
        (*name.rpartition("."), constraint)
        for name, parameter, constraint in Module.named_parameters_and_constraints(
            model
        )
        if parameter.requires_grad and constraint is not None
        if not constraint.enforced and (constraint.lower_bound > 0).all()
    ]
    for owner, _, name, constraint in plain:
        upper = constraint.upper_bound.clamp_max(LARGEST_PARAMETER)
        logarithm = LogTransformedInterval(constraint.lower_bound, upper)
        _replace_constraint(model.get_submodule(owner), name, logarithm)
    try:
        yield
    finally:
        for owner, _, name, constraint in plain:
            _replace_constraint(model.get_submodule(owner), name, constraint)


@torch.no_grad()
def _replace_constraint(module: Module, name: str, constraint: Interval) -> None:
    """Give a parameter another constraint, and the same value."""
    parameter: Tensor = getattr(module, name)
    constraint = constraint.to(parameter)
    # The logarithm of a bound and back may miss it by the last bit.
    value = getattr(module, f"{name}_constraint").transform(parameter)
    value = value.clamp(constraint.lower_bound, constraint.upper_bound)
    module.register_constraint(name, constraint)  # may set an initial value
    parameter.copy_(constraint.inverse_transform(value))


def fit_or_warn(model: SingleTaskGP, num_pulls: int) -> bool:
    """Fit a model; return whether that worked, and warn if not."""
    try:
        # Retries start from draws of the global generator, which is restored.
        with torch.random.fork_rng(devices=[]), _logarithms(model):
            torch.default_generator.manual_seed(num_pulls)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError as error:
        warnings.warn(
            f"Fitting the hyperparameters to {num_pulls} pulls failed; the "
            f"previous ones stay. {error}",
            BotorchWarning,
            stacklevel=2,
        )
        return False
    return True


def _in_tiles(a: Tensor, b: Tensor, constant: Tensor) -> Tensor:
    """Return ``prod_i (c_i + (1 - c_i) exp(-(a_i - b_i)^2))`` of rows, ``n x n'``."""
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
