"""The bandits of the papers: a learner, a policy, a width and a batch rule each."""

from __future__ import annotations

from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    ConfidenceSchedule,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.bandits.box_policies import BoxThompsonPolicy, BoxUCBPolicy
from botorch_bkb.bandits.drifting import DriftingBandit
from botorch_bkb.bandits.forgetting import FilterBelief, ForgettingLearner
from botorch_bkb.bandits.learners import BlockLearner, ExactLearner, SparseLearner
from botorch_bkb.bandits.policies import EpsilonGreedyPolicy, ThompsonPolicy
from botorch_bkb.models.utils.leverage_scores import Inclusion, Resampling
from botorch_bkb.optim.batch_rules import FixedSize, ProductRule, SumRule
from botorch_bkb.posteriors import ResidualPart


# The paper draws this many points from the distribution of the maximizer per round.
DRAWS_PER_ROUND = 30
# Of Thompson draws where anything is learned.
PRACTICAL_SPREAD = 0.7


def _sparse_learner(options: dict[str, Any], **defaults: Any) -> SparseLearner:
    """Take the options of a sparse learner out of those of a bandit."""
    names = {"oversampling", "resampling", "inclusion", "max_inducing"} & options.keys()
    chosen = {name: options.pop(name) for name in names}
    return SparseLearner(**chosen, **defaults)


class BKB(FiniteArmBandit):
    """Budgeted kernel bandit: GP-UCB on the sparse posterior, one arm at a time.

    Algorithm 1 of [calandriello2019bkb]_, resampled at every step. ``oversampling``,
    ``resampling``, ``inclusion`` and ``max_inducing`` are those of
    :class:`~botorch_bkb.bandits.SparseLearner`.

    Example:
        >>> bandit = BKB(arms, covar_module=RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        oversampling: float = 2.0,
        resampling: Resampling = "independent",
        inclusion: Inclusion = "merged",
        max_inducing: int | None = None,
        **options: Any,
    ) -> None:
        learner = SparseLearner(
            oversampling, resampling, inclusion, max_inducing=max_inducing
        )
        super().__init__(arms, covar_module, noise_variance, learner=learner, **options)


class BBKB(FiniteArmBandit):
    """Batch budgeted kernel bandit: batches that close before the posterior is stale.

    Algorithm 1 of [calandriello2020bbkb]_, resampled once a batch. ``oversampling``,
    ``resampling``, ``inclusion`` and ``max_inducing`` are those of
    :class:`~botorch_bkb.bandits.SparseLearner`.

    Example:
        >>> bandit = BBKB(arms, covar_module=RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    default_confidence = PracticalBBKBWidth()
    default_batch_rule = SumRule()

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        oversampling: float = 2.0,
        resampling: Resampling = "independent",
        inclusion: Inclusion = "merged",
        max_inducing: int | None = None,
        **options: Any,
    ) -> None:
        learner = SparseLearner(
            oversampling, resampling, inclusion, max_inducing=max_inducing
        )
        super().__init__(arms, covar_module, noise_variance, learner=learner, **options)


class GPUCB(FiniteArmBandit):
    """GP-UCB on the exact posterior, with the width of [chowdhury2017]_."""

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        **options: Any,
    ) -> None:
        learner = ExactLearner()
        super().__init__(arms, covar_module, noise_variance, learner=learner, **options)


class GPBUCB(FiniteArmBandit):
    """GP-BUCB: batches on the exact posterior, closed by the product rule.

    [desautels2014gpbucb]_. Its theorem multiplies the width by the bound on the
    variance ratio; the default width does not.
    """

    default_batch_rule = ProductRule()

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        **options: Any,
    ) -> None:
        learner = ExactLearner()
        super().__init__(arms, covar_module, noise_variance, learner=learner, **options)


class TVGPUCB(DriftingBandit):
    r"""TV-GP-UCB: forgets smoothly. Algorithm 2 of [bogunovic2016tvgpucb]_.

    The posterior is that of ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``,
    equations (7) and (8), filtered from step to step at a cost that does not grow with
    time, by :class:`~botorch_bkb.posteriors.SparseArmFilter`: a step takes ``O(A m)``
    for ``m`` inducing arms, which are all pulled arms unless ``sparse``. It computes in
    double precision then. Batches are picked one by one with
    the variance of those before, as if each had brought its mean; so are pulls still
    pending, each as if it had at the time at which it was asked for: a pull that is
    lost is forgotten like any other. The bandit keeps a filter of the rewards up to the
    time of the oldest pull that is pending, and replays those after it at every
    decision: fail what is lost. Only a reward that is older still replays the whole
    history.
    The theorem covers single pulls at times 1, 2, 3, ...

    Args:
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time. None: learned by the
            marginal likelihood, equation (24), at every update from 4 to 128 told pulls
            and at doubling numbers after that, from at most the last 512 of them, and
            per step of about the gap between their times, so that the unit of time does
            not matter.
        sparse: Whether arms of little leverage are inducing no longer.
        tolerance: The leverage under which an inducing arm leaves, if ``sparse``.
        max_inducing: The most inducing arms, if ``sparse``; fewer, two at least, where
            ``max_feature_bytes`` does not hold their features.

    All other arguments are those of :class:`~botorch_bkb.bandits.FiniteArmBandit`. The
    default ``confidence`` is :class:`~botorch_bkb.acquisition.TVWidth`, and the paper's
    experiments take ``LogWidth``. A kernel or noise that is None is fitted together
    with ``eps``.

    Raises:
        InputDataError: If ``forgetting_rate`` or another argument is out of range, or
            ``max_feature_bytes`` does not hold the two ``A x A`` tables of a filter
            over all arms (2 GiB, if not given, hold those of 11,585 arms in double).

    Example:
        >>> bandit = TVGPUCB(arms, RBFKernel(), 0.01, forgetting_rate=0.03)
        >>> indices = bandit.ask(time=7.5)
        >>> bandit.tell(indices, measure(indices), time=7.6)
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        forgetting_rate: float | None = None,
        sparse: bool = False,
        tolerance: float = 1e-3,
        max_inducing: int = 512,
        **options: Any,
    ) -> None:
        learner = ForgettingLearner(forgetting_rate, sparse, tolerance, max_inducing)
        super().__init__(arms, covar_module, noise_variance, learner=learner, **options)

    _belief: FilterBelief

    @property
    def forgetting_rate(self) -> float:
        """``eps`` per unit of time, given or learned so far.

        One that was learned from steps that are small against the unit is 1 up to
        rounding; what is remembered is counted in those steps.
        """
        return self._belief.hyperparameters.forgetting_rate


class RGPUCB(DriftingBandit):
    r"""R-GP-UCB: GP-UCB that starts afresh with every block of time.

    Algorithm 1 of [bogunovic2016tvgpucb]_. A block is ``block_size`` long, the first
    starts at time 1, and a decision uses the rewards of its own block; pulls of earlier
    ones that are still pending do not count. The width goes
    on with the number of all pulls. Where nothing is known, as at the start of a block,
    the lowest index wins.

    Args:
        block_size: The paper's ``N``, in units of time; see
            :func:`~botorch_bkb.bandits.drifting.rbf_block_size` and
            :func:`~botorch_bkb.bandits.drifting.matern_block_size` for its formulas.

    All other arguments are those of :class:`FiniteArmBandit`; hyper-parameters that are
    not given are fitted to all rewards as if nothing drifted. The default
    ``confidence`` is :class:`~botorch_bkb.acquisition.RTVWidth`.

    Raises:
        InputDataError: If ``block_size`` or another argument is out of range.

    Example:
        >>> N = rbf_block_size(forgetting_rate=0.01, horizon=200)
        >>> bandit = RGPUCB(arms, RBFKernel(), 0.01, block_size=N)
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        block_size: float,
        **options: Any,
    ) -> None:
        learner = BlockLearner(block_size)
        super().__init__(arms, covar_module, noise_variance, learner=learner, **options)
        self.block_size = block_size


class GPThompsonSampling(FiniteArmBandit):
    r"""Thompson sampling: each pull is the best arm of a draw from the posterior.

    Algorithm 1 of [basu2017]_ on the weights of the sparse posterior, which leverage
    scores keep small, at ``O(A m)`` a draw. The draws of one batch come from the
    posterior at its start, as the paper's thirty per round do; pulls still pending from
    earlier batches lower the variance of the draws. Before the first reward all pulls
    are uniform, the paper's ``F_0``.

    Hyper-parameters that are not given are estimated by maximum a posteriori at every
    update up to 128 told pulls (section 2.3 of the paper, which does so in every
    round), and at doubling numbers after that, a prior mean with them: where the prior
    stands at the rewards' average, which rises as the bandit gets better, the best of
    many draws is an arm of which nothing is known. (A ``learner`` of your own says so
    itself, ``learns_mean``.) ``ask(size=n)`` returns as many draws of one posterior.

    Args:
        uniform_probability: The paper's xi: with this probability a pull is a uniformly
            chosen arm in place of a draw. (The epsilon-greedy Thompson sampling of
            later papers mixes with the mean of several draws instead.) The theorem
            needs it to be positive; the paper names no value. None: 0.05 where kernel
            and noise are given, 0 where anything is learned and no theorem applies.
        residual: How draws treat what the inducing arms do not explain: ``"omitted"``
            or ``"correlated"``; see
            :mod:`botorch_bkb.posteriors.arm_sampler` for what each gets wrong. None:
            the draw of the paper's weights, ``"omitted"``, where kernel and noise are
            given, and the posterior's own law, ``"correlated"``, where anything is
            learned.
        spread: How far draws go from the posterior mean: of each, ``mean + spread (draw
            - mean)`` is maximized, the posterior reshaping of [chapelle2011]_. None: 1,
            the posterior's deviation, where kernel and noise are given; 0.7 where
            anything is learned and no theorem applies, which found more of the best
            arms in a hundred pulls with an RBF kernel, and no fewer with the one that
            is learned now. ``maximizer_distribution`` is always the posterior's.

    All other arguments are those of :class:`~botorch_bkb.bandits.BKB`. The default
    ``batch_rule`` is ``FixedSize(30)``; BBKB's rules are welcome too. The confidence
    schedule only serves ``confidence_bound``. The paper's answer is
    ``maximizer_distribution().mode``.

    Example:
        >>> bandit = GPThompsonSampling(arms, RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    default_batch_rule = FixedSize(DRAWS_PER_ROUND)

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float | None = None,
        residual: ResidualPart | None = None,
        spread: float | None = None,
        **options: Any,
    ) -> None:
        learns = covar_module is None or noise_variance is None
        if uniform_probability is None:
            uniform_probability = 0.0 if learns else 0.05
        if residual is None:
            residual = "correlated" if learns else "omitted"
        if spread is None:
            spread = PRACTICAL_SPREAD if learns else 1.0
        policy = ThompsonPolicy(uniform_probability, residual, spread)
        learner = _sparse_learner(options, learns_mean=True)
        options = {"learner": learner, "policy": policy, **options}
        super().__init__(arms, covar_module, noise_variance, **options)


class EpsilonGreedy(FiniteArmBandit):
    """The arm of the largest posterior mean, or with some probability a uniform one.

    Args:
        uniform_probability: The probability of a uniform draw, for each pull.

    All other arguments are those of :class:`~botorch_bkb.bandits.BKB`; the confidence
    schedule only serves ``confidence_bound``.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float = 0.1,
        **options: Any,
    ) -> None:
        policy = EpsilonGreedyPolicy(uniform_probability)
        options = {"learner": _sparse_learner(options), "policy": policy, **options}
        super().__init__(arms, covar_module, noise_variance, **options)


class UniformRandom(FiniteArmBandit):
    """Every arm drawn uniformly: what any bandit has to beat."""

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        **options: Any,
    ) -> None:
        policy = EpsilonGreedyPolicy(uniform_probability=1.0)
        options = {"learner": _sparse_learner(options), "policy": policy, **options}
        super().__init__(arms, covar_module, noise_variance, **options)


class BoxGPUCB(BoxBandit):
    """GP-UCB on a box, on the exact posterior.

    Points pending or chosen earlier in the batch lower the variance (GP-BUCB). The
    arguments are those of :class:`BoxBandit`, and ``confidence``, a schedule or a
    number. By default it is the width of Chowdhury and Gopalan with kernel and noise
    given, and ``RandomDeviationWidth(1.0)`` where either is learned.

    Example:
        >>> bandit = BoxGPUCB(bounds, covar_module=RBFKernel(), noise_variance=0.2)
        >>> points = bandit.ask()
        >>> bandit.tell(points, measure(points))
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        confidence: ConfidenceSchedule | float | None = None,
        **options: Any,
    ) -> None:
        policy = BoxUCBPolicy(confidence, ChowdhuryGopalanWidth())
        super().__init__(bounds, covar_module, noise_variance, policy=policy, **options)


class BoxBKB(BoxBandit):
    """BKB on a box: GP-UCB on the sparse posterior.

    Algorithm 1 of [calandriello2019bkb]_ on an infinite set of arms: each told point is
    inducing with probability ``min(1, oversampling * var / lambda)``, with the variance
    before the update, drawn anew after every batch; where more than 256 points are new,
    as of a warm start, as if they had come in doubling blocks. Where kernel or noise is
    learned, the posterior is exact up to 256 told points. The gradient optimizer
    finds a local maximum of the bound, where the theorem asks for the global one.

    Args:
        oversampling: q-bar.
        max_inducing: A ceiling, see :class:`~botorch_bkb.bandits.SparseLearner`; None
            for none.

    All other arguments are those of :class:`BoxGPUCB`. By default the width is the
    practical one of BKB with kernel and noise given, and ``RandomDeviationWidth(1.0)``
    where either is learned.
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        oversampling: float = 2.0,
        max_inducing: int | None = None,
        confidence: ConfidenceSchedule | float | None = None,
        **options: Any,
    ) -> None:
        options["policy"] = BoxUCBPolicy(confidence, PracticalBKBWidth())
        options |= {"oversampling": oversampling, "max_inducing": max_inducing}
        super().__init__(bounds, covar_module, noise_variance, **options)


class BoxThompsonSampling(BoxBandit):
    r"""Thompson sampling on a box: points where draws from the posterior are largest.

    Algorithm 1 of [basu2017]_, on draws from the sparse posterior whose prior part is
    approximate; see :mod:`botorch_bkb.generation.paths`.

    Args:
        uniform_probability: The paper's xi: with this probability a point is uniform in
            the box in place of a draw's maximizer. None: the paper's 0.05 where kernel
            and noise are given, 0 where either is learned.
        spread: How far draws go from the posterior mean, at least 0.001, as in
            :class:`~botorch_bkb.bandits.GPThompsonSampling`. None: 1 where kernel and
            noise are given, 0.7 where either is learned.
        oversampling: q-bar, as in :class:`~botorch_bkb.bandits.BoxBKB`.
        max_inducing: As there.
        batch_size: The number of draws from one posterior, the paper's 30. Who measures
            one point at a time asks for one: ``ask(1)``.

    All other arguments are those of :class:`BoxBandit`. The paper's answer is
    ``maximizer_distribution().mode``.

    Example:
        >>> bandit = BoxThompsonSampling(bounds)
        >>> points = bandit.ask()
        >>> bandit.tell(points, measure(points))
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float | None = None,
        spread: float | None = None,
        oversampling: float = 2.0,
        max_inducing: int | None = None,
        batch_size: int = DRAWS_PER_ROUND,
        **options: Any,
    ) -> None:
        learns = covar_module is None or noise_variance is None
        if uniform_probability is None:
            uniform_probability = 0.0 if learns else 0.05
        if spread is None:
            spread = PRACTICAL_SPREAD if learns else 1.0
        options["policy"] = BoxThompsonPolicy(uniform_probability, spread)
        options |= {"oversampling": oversampling, "max_inducing": max_inducing}
        options["batch_size"] = batch_size
        super().__init__(bounds, covar_module, noise_variance, **options)
