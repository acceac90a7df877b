"""The algorithms of the papers, with kernel and noise given."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, cast, TypedDict, Unpack

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    RTVWidth,
    TVWidth,
)
from botorch_bkb.acquisition.schedules import ConfidenceSchedule
from botorch_bkb.arms import ProductArms
from botorch_bkb.arms.table import as_arms
from botorch_bkb.bandits.bandit import FiniteArmBandit
from botorch_bkb.bandits.base import Array, locked
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.bandits.box_policies import BoxThompsonPolicy
from botorch_bkb.bandits.drifting import DriftFitter, FilterSurrogate
from botorch_bkb.bandits.fitting import Fitter, PrintedFitter
from botorch_bkb.bandits.inducing import LeverageScoreSampling
from botorch_bkb.bandits.policies import (
    EpsilonGreedyPolicy,
    Policy,
    ThompsonPolicy,
    UniformPolicy,
)
from botorch_bkb.bandits.surrogates import PosteriorSurrogate
from botorch_bkb.checks import check_number, check_positive, check_size
from botorch_bkb.models.kernels.learned import scaled_rbf_to_learn
from botorch_bkb.models.utils.leverage_scores import Inclusion, Resampling
from botorch_bkb.optim.batch_rules import BatchRule, FixedSize, ProductRule, SumRule
from botorch_bkb.posteriors import DrawCovariance


# The paper draws this many points from the distribution of the maximizer per round.
DRAWS_PER_ROUND = 30


class BanditOptions(TypedDict, total=False):
    """Options of :class:`~botorch_bkb.bandits.FiniteArmBandit`, with its defaults."""

    confidence: ConfidenceSchedule | float | None
    batch_rule: BatchRule | None
    maximize: bool
    max_repeats: int | None
    generator: torch.Generator | None
    seed: int | None


class SparseOptions(BanditOptions, total=False):
    """Options of :class:`BKB`, with its defaults."""

    oversampling: float
    resampling: Resampling
    inclusion: Inclusion
    max_inducing: int | None
    max_feature_bytes: int


class _SparseBandit(FiniteArmBandit):
    """An algorithm on the sparse posterior, kernel and noise given."""

    _surrogate: PosteriorSurrogate
    default_confidence: ConfidenceSchedule = PracticalBKBWidth()

    def __init__(
        self,
        arms: Array,
        covar_module: Any = None,
        noise_variance: float | None = None,
        *,
        policy: Policy | None = None,
        oversampling: float = 2.0,
        resampling: Resampling = "independent",
        inclusion: Inclusion = "merged",
        max_inducing: int | None = None,
        max_feature_bytes: int = 2**31,
        **options: Unpack[BanditOptions],
    ) -> None:
        fitter = self._fitter(arms, covar_module, noise_variance)
        sampling = LeverageScoreSampling(
            oversampling, resampling, inclusion, max_inducing
        )
        surrogate = PosteriorSurrogate(fitter, max_feature_bytes, sampling)
        super().__init__(arms, surrogate, policy, **options)

    @property
    def oversampling(self) -> float:
        """q-bar, which may be raised during a run that goes on longer than planned.

        Section 3.2 of [calandriello2019bkb]_ says how: suspend the algorithm, and set
        ``bandit.oversampling = bkb_oversampling(longer, delta)``. The next ``ask`` with
        new results draws by it. Saved states do not have it: construct the bandit that
        loads one with it.
        """
        return cast(LeverageScoreSampling, self._surrogate.sampling).oversampling

    @oversampling.setter
    @locked
    def oversampling(self, value: float) -> None:
        surrogate = copy(self._surrogate)
        sampling = cast(LeverageScoreSampling, surrogate.sampling)
        surrogate.sampling = replace(sampling, oversampling=value)
        self._surrogate = surrogate

    def _fitter(self, arms: Array, kernel: Any, noise_variance: float | None) -> Fitter:
        return _given(type(self).__name__, arms, kernel, noise_variance)


class _ExactBandit(FiniteArmBandit):
    """An algorithm on the exact posterior, kernel and noise given."""

    default_confidence: ConfidenceSchedule = ChowdhuryGopalanWidth()

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        max_feature_bytes: int = 2**31,
        **options: Unpack[BanditOptions],
    ) -> None:
        given = _given(type(self).__name__, arms, covar_module, noise_variance)
        surrogate = PosteriorSurrogate(given, max_feature_bytes)
        super().__init__(arms, surrogate, **options)


class BKB(_SparseBandit):
    """Budgeted kernel bandit: GP-UCB on the sparse posterior, one arm at a time.

    Algorithm 1 of [calandriello2019bkb]_, resampled at every step. The theorems assume
    that every reward is observed before the next pull.

    Args:
        arms: An ``A x d`` tensor of features.
        covar_module: Any GPyTorch kernel, used as it is. The kernel that a function of
            the features returns is learned, and no theorem holds.
        noise_variance: lambda, the variance of the rewards' noise.
        policy: Chooses, as in :class:`~botorch_bkb.bandits.FiniteArmBandit`.
        oversampling, resampling, inclusion, max_inducing: Those of
            :class:`~botorch_bkb.bandits.LeverageScoreSampling`; ``oversampling`` is
            q-bar.
        max_feature_bytes: The byte budget of the cached features, 2 GiB.
        options: ``confidence``, ``batch_rule``, ``maximize``, ``max_repeats``,
            ``generator`` and ``seed`` of :class:`~botorch_bkb.bandits.FiniteArmBandit`.

    Raises:
        InputDataError: If kernel or noise is not given; ``GPBandit`` learns them.

    Example:
        >>> bandit = BKB(arms, covar_module=RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """


class BBKB(_SparseBandit):
    """Batch budgeted kernel bandit: batches that close before the posterior is stale.

    Algorithm 1 of [calandriello2020bbkb]_, resampled once a batch. All arguments are
    those of :class:`BKB`.

    Batches may overlap: an ``ask`` with pending pulls starts its batch rule from what
    these have used up. So, on the exact posterior, a variance given the observed
    rewards is at most ``ratio_threshold`` times the one that counts pending pulls, up
    to the pull that closes a batch and the one arm that every ``ask`` returns. The
    theorems assume that all rewards of a batch are observed before the next ask.

    Example:
        >>> bandit = BBKB(arms, covar_module=RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    default_confidence = PracticalBBKBWidth()
    default_batch_rule = SumRule()


class GPUCB(_ExactBandit):
    """GP-UCB on the exact posterior, with the width of [chowdhury2017]_.

    ``O(A P^2)`` an ask for ``P`` distinct pulled arms. The arguments are those of
    :class:`BKB`, without the options of inducing arms.
    """


class GPBUCB(_ExactBandit):
    """GP-BUCB: batches on the exact posterior, closed by the product rule.

    [desautels2014gpbucb]_. Its theorem multiplies the width by the bound on the
    variance ratio; the default width does not. It also covers rewards that are late by
    a bounded number of pulls, for a wider bound. The arguments are those of
    :class:`GPUCB`.
    """

    default_batch_rule = ProductRule()


class TVGPUCB(FiniteArmBandit):
    r"""TV-GP-UCB: forgets smoothly. Algorithm 2 of [bogunovic2016tvgpucb]_.

    The posterior is that of ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``,
    equations (7) and (8), by a Kalman filter over the inducing arms at ``O(A m)`` a
    step. All pulled arms are inducing unless ``sparse``. Batches are chosen one by one;
    chosen and pending pulls count as if each reward had been the posterior mean at the
    time of the ask. The filter is kept at the time of the oldest pending pull,
    and later rewards are replayed at every decision, so ``fail`` pulls that are lost. A
    reward that is older replays all rewards. The theorem covers single pulls at times
    1, 2, 3, ...

    Args:
        arms, covar_module, noise_variance: Those of :class:`BKB`.
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time.
        sparse: Whether arms of little leverage leave the inducing arms.
        tolerance: The leverage under which an inducing arm leaves, if ``sparse``.
        max_inducing: The most inducing arms, if ``sparse``; fewer, two at least, if
            ``max_feature_bytes`` does not hold their features.
        max_feature_bytes: The byte budget of a filter.
        options: Those of :class:`~botorch_bkb.bandits.FiniteArmBandit`. The default
            ``confidence`` is :class:`~botorch_bkb.acquisition.TVWidth`, and the paper's
            experiments take ``LogWidth``.

    Raises:
        InputDataError: If an argument is missing or out of range, or
            ``max_feature_bytes`` does not hold a filter on which all arms are inducing
            (2 GiB hold that of 16,384 arms).

    Example:
        >>> bandit = TVGPUCB(arms, RBFKernel(), 0.01, forgetting_rate=0.03)
        >>> indices = bandit.ask(time=7.5)
        >>> bandit.tell(indices, measure(indices), time=7.6)
    """

    default_confidence = TVWidth()

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        forgetting_rate: float | None = None,
        sparse: bool = False,
        tolerance: float = 1e-3,
        max_inducing: int = 512,
        max_feature_bytes: int = 2**31,
        **options: Unpack[BanditOptions],
    ) -> None:
        _check_given("TVGPUCB", covar_module, noise_variance, forgetting_rate)
        given = DriftFitter(
            as_arms(arms), covar_module, noise_variance, forgetting_rate
        )
        surrogate = FilterSurrogate(
            given, max_feature_bytes, sparse, tolerance, max_inducing
        )
        super().__init__(arms, surrogate, **options)
        self.forgetting_rate = surrogate.fit.forgetting_rate


class RGPUCB(FiniteArmBandit):
    r"""R-GP-UCB: GP-UCB that restarts with every block of time.

    Algorithm 1 of [bogunovic2016tvgpucb]_. A decision uses the rewards and pending
    pulls of its own block; the first block starts at time 1. The width goes on with the
    number of all pulls. The first arm of every block is drawn uniformly.

    Args:
        arms, covar_module, noise_variance: Those of :class:`BKB`.
        block_size: The paper's ``N``, in units of time; see :func:`rbf_block_size` and
            :func:`matern_block_size` for its formulas.
        max_feature_bytes: The byte budget of the cached features.
        options: Those of :class:`~botorch_bkb.bandits.FiniteArmBandit`. The default
            ``confidence`` is :class:`~botorch_bkb.acquisition.RTVWidth`.

    Raises:
        InputDataError: If kernel or noise is None, or an argument is out of range.

    Example:
        >>> N = rbf_block_size(forgetting_rate=0.01, horizon=200)
        >>> bandit = RGPUCB(arms, RBFKernel(), 0.01, block_size=N)
    """

    default_confidence = RTVWidth()

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        block_size: float,
        max_feature_bytes: int = 2**31,
        **options: Unpack[BanditOptions],
    ) -> None:
        given = _given("RGPUCB", arms, covar_module, noise_variance)
        check_positive("block_size", block_size)
        surrogate = PosteriorSurrogate(given, max_feature_bytes, block_size=block_size)
        super().__init__(arms, surrogate, **options)
        self.block_size = block_size


class GPThompsonSampling(_SparseBandit):
    r"""Thompson sampling: each pull is the best arm of a draw from the posterior.

    Algorithm 1 of [basu2017]_ on the weights of the sparse posterior, at ``O(A m)`` a
    draw. The draws of one batch come from the posterior at its start, as the paper's
    thirty per round do; the draws of later batches are given pending pulls, whose arms
    are inducing ones. Before the first reward all pulls are uniform, the paper's
    ``F_0``.

    As printed, the algorithm learns kernel and noise, and estimates them in every round
    (section 2.3): ``GPThompsonSampling(arms)``. Over a box it is
    :class:`BoxThompsonSampling`.

    Args:
        arms: An ``A x d`` tensor of features.
        covar_module: Any GPyTorch kernel, used as it is, or a function of the features
            whose kernel is learned. None: an RBF kernel is learned, with its variance
            and a lengthscale per feature.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        uniform_probability: The paper's xi: with this probability a pull is a uniformly
            drawn arm. The theorem needs it to be positive; the paper names no value.
        covariance: The covariance of the draws: ``"projected"``, that of the paper's
            weights, or ``"full"``, that of the posterior; see
            :mod:`botorch_bkb.posteriors.arm_sampler`. None: ``"projected"``, but
            ``"full"`` over a product space, which has no other.
        scale: Of each draw, ``mean + scale (draw - mean)`` is maximized, the posterior
            reshaping of [chapelle2011]_.
        options: Those of :class:`BKB`. The default ``batch_rule`` is ``FixedSize(30)``.
            The confidence schedule only serves ``confidence_bound``.

    The paper's answer is ``maximizer_distribution().mode``.

    Example:
        >>> bandit = GPThompsonSampling(arms)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    default_batch_rule = FixedSize(DRAWS_PER_ROUND)

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float = 0.05,
        covariance: DrawCovariance | None = None,
        scale: float = 1.0,
        **options: Unpack[SparseOptions],
    ) -> None:
        if covariance is None:
            covariance = "full" if isinstance(arms, ProductArms) else "projected"
        policy = ThompsonPolicy(uniform_probability, covariance, scale)
        super().__init__(arms, covar_module, noise_variance, policy=policy, **options)

    @override
    def _fitter(self, arms: Array, kernel: Any, noise_variance: float | None) -> Fitter:
        kernel = scaled_rbf_to_learn if kernel is None else kernel
        return PrintedFitter(as_arms(arms), kernel, noise_variance)


class BoxThompsonSampling(BoxBandit):
    r"""Thompson sampling over a box: each point maximizes a draw from the posterior.

    Algorithm 1 of [basu2017]_ as printed: points are uniform until the first reward,
    and hyperparameters are estimated in every round (section 2.3), with a prior mean of
    0. Draws are approximate, see :class:`~botorch_bkb.bandits.BoxThompsonPolicy`. The
    paper's answer is ``maximizer_distribution().mode``.

    Args:
        bounds: A ``2 x d`` tensor, the lower and the upper corner.
        covar_module, noise_variance, uniform_probability: Those of
            :class:`GPThompsonSampling`.
        batch_size: The paper's simulations draw 30 points per round.
        options: Those of :class:`~botorch_bkb.BoxBandit`.

    Example:
        >>> bandit = BoxThompsonSampling(bounds)
        >>> points = bandit.ask()
        >>> bandit.tell(points, measure(points))
    """

    _as_printed = True

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float = 0.05,
        batch_size: int = DRAWS_PER_ROUND,
        **options: Any,
    ) -> None:
        super().__init__(
            bounds,
            scaled_rbf_to_learn if covar_module is None else covar_module,
            noise_variance,
            policy=BoxThompsonPolicy(uniform_probability, scale=1.0),
            batch_size=batch_size,
            **options,
        )


class EpsilonGreedy(_SparseBandit):
    """The arm of the largest posterior mean, or with some probability a uniform one.

    Args:
        arms, covar_module, noise_variance: Those of :class:`BKB`.
        uniform_probability: The probability of a uniform draw, for each pull.
        options: Those of :class:`BKB`. The confidence schedule only serves
            ``confidence_bound``.
    """

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float = 0.1,
        **options: Unpack[SparseOptions],
    ) -> None:
        policy = EpsilonGreedyPolicy(uniform_probability)
        super().__init__(arms, covar_module, noise_variance, policy=policy, **options)


class UniformRandom(_SparseBandit):
    """The uniform baseline: every arm is drawn with the same probability.

    The arguments are those of :class:`BKB`. Kernel and noise only serve predictions,
    whose prior mean is the average of the rewards; they are learned if they are None.
    """

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        **options: Unpack[SparseOptions],
    ) -> None:
        policy = UniformPolicy()
        super().__init__(arms, covar_module, noise_variance, policy=policy, **options)

    @override
    def _fitter(self, arms: Array, kernel: Any, noise_variance: float | None) -> Fitter:
        return Fitter(as_arms(arms), kernel, noise_variance, "average")


def _given(
    name: str, arms: Array, kernel: Kernel | None, noise_variance: float | None
) -> Fitter:
    """Return kernel and noise, which must be given."""
    _check_given(name, kernel, noise_variance)
    return Fitter(as_arms(arms), kernel, noise_variance)


def _check_given(name: str, *values: Any) -> None:
    if any(value is None for value in values):
        names = ("`covar_module`", "`noise_variance`", "`forgetting_rate`")
        rate = ', forgetting_rate="learn"' if len(values) == len(names) else ""
        raise InputDataError(
            f"Expected {', '.join(names[: len(values)])}, since {name} is the "
            "algorithm of a paper and does not learn them. Use "
            f"`GPBandit(arms{rate})` to learn them."
        )


def rbf_block_size(forgetting_rate: float, horizon: int) -> int:
    r"""Return R-GP-UCB's ``N`` for an RBF kernel: ``ceil(min(T, 12 eps^{-1/4}))``.

    Section 5 of [bogunovic2016tvgpucb]_.

    Args:
        forgetting_rate: ``eps``.
        horizon: ``T``.

    Raises:
        InputDataError: If an argument is out of range.
    """
    return _block_size(forgetting_rate, horizon, 12.0, 1 / 4)


def matern_block_size(
    forgetting_rate: float, horizon: int, nu: float, dimension: int
) -> int:
    r"""Return R-GP-UCB's ``N`` for a Matern kernel.

    ``ceil(min(T, 24 eps^{-1/(4 - c)}))`` with ``c = d (d + 1) / (2 nu + d (d + 1))``;
    section 5 of [bogunovic2016tvgpucb]_. Arguments and errors are those of
    :func:`rbf_block_size`, ``nu``, the smoothness of the kernel, and ``dimension``,
    ``d``.
    """
    check_size("dimension", dimension)
    check_positive("nu", nu)
    c = dimension * (dimension + 1) / (2 * nu + dimension * (dimension + 1))
    return _block_size(forgetting_rate, horizon, 24.0, 1 / (4 - c))


def _block_size(
    forgetting_rate: float, horizon: int, factor: float, exponent: float
) -> int:
    check_size("horizon", horizon)
    check_number("forgetting_rate", forgetting_rate, 0.0, 1.0)
    if forgetting_rate == 0:
        return horizon
    return math.ceil(min(horizon, factor * forgetting_rate**-exponent))
