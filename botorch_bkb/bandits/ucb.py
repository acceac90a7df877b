r"""Upper confidence bound bandits: one model, width, batch rule and resampling each.

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
    [calandriello2020bbkb] The same authors. Near-linear time Gaussian process
    optimization with adaptive batching and resparsification. ICML 2020.
    [chowdhury2017] S. R. Chowdhury, A. Gopalan. On kernelized multi-armed bandits. ICML
    2017.
    [desautels2014gpbucb] T. Desautels, A. Krause, J. W. Burdick. Parallelizing
    exploration-exploitation tradeoffs in Gaussian process bandit optimization. JMLR
    2014.
"""

from __future__ import annotations

from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    ConfidenceSchedule,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.bandits.inducing import ExactBandit, SparseBandit
from botorch_bkb.optim.batch_rules import (
    BatchRule,
    FixedSize,
    ProductRule,
    SumRule,
)


class BKB(SparseBandit):
    """Budgeted kernel bandit: GP-UCB on the sparse posterior, one arm at a time.

    Algorithm 1 of [calandriello2019bkb]_, resampled at every step.

    Example:
        >>> bandit = BKB(arms, covar_module=RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return PracticalBKBWidth()

    @override
    def default_batch_rule(self) -> BatchRule:
        return FixedSize(1)


class BBKB(SparseBandit):
    """Batch budgeted kernel bandit: batches that close before the posterior is stale.

    Algorithm 1 of [calandriello2020bbkb]_, resampled once a batch.

    Example:
        >>> bandit = BBKB(arms, covar_module=RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return PracticalBBKBWidth()

    @override
    def default_batch_rule(self) -> BatchRule:
        return SumRule()


class GPUCB(ExactBandit):
    """GP-UCB on the exact posterior, with the width of [chowdhury2017]_."""

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return ChowdhuryGopalanWidth()

    @override
    def default_batch_rule(self) -> BatchRule:
        return FixedSize(1)


class GPBUCB(ExactBandit):
    """GP-BUCB: batches on the exact posterior, closed by the product rule.

    [desautels2014gpbucb]_. Its theorem multiplies the width by the bound on the
    variance ratio; the default width does not.
    """

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return ChowdhuryGopalanWidth()

    @override
    def default_batch_rule(self) -> BatchRule:
        return ProductRule()
