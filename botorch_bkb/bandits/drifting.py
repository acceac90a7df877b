r"""Bandits on objectives that drift: smooth forgetting, and resets.

References:
    [bogunovic2016tvgpucb] I. Bogunovic, J. Scarlett, V. Cevher. Time-varying Gaussian
    process bandit optimization. AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule, ConfidenceState
from botorch_bkb.acquisition.time_varying import RTVWidth
from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.goal import Goal
from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.bandits.inducing import ExactBandit
from botorch_bkb.bandits.ledger import Pull, Totals
from botorch_bkb.checks import as_number, check_size, check_time
from botorch_bkb.optim.batch_rules import BatchRule, FixedSize
from botorch_bkb.posteriors import ArmPosterior, Moments
from botorch_bkb.posteriors.drifting import check_forgetting_rate


# A time is refused once where it is further ahead than this multiple of the span of
# all times before it,
LARGEST_JUMP = 100.0
# if at least so many results are known.
MIN_RESULTS_TO_DOUBT = 8


class DriftingBandit(FiniteArmBandit):
    r"""A bandit whose pulls have times.

    Times are real numbers, and those of asks never go back. Without them, every ``ask``
    is one step later than the last time known, starting at 1, and a reward is of the
    time at which its pull was asked for, however late it is told; one from outside of
    that of the last ``ask``. A result of a wrong time is taken back by ``withdraw``:
    the clock goes back to the last time of results and pending pulls, so fail before
    it what was asked for by a wrong clock. ``predict``, ``confidence_bound`` and
    ``best_arm`` speak of the next decision time.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._times: list[float] = []  # of told pulls
        self._now: float | None = None
        self._doubted: float | None = None  # a time that was refused once
        self._decision: float | None = None  # of the ask under way
        super().__init__(*args, **options)

    @override
    def default_goal(self, learns: bool) -> Goal:
        return "regret"  # the best arm changes

    @override
    def practical_confidence(self) -> ConfidenceSchedule:
        return self.default_confidence()

    @override
    def default_batch_rule(self) -> BatchRule:
        return FixedSize(1)

    @property
    def decision_time(self) -> float:
        """The time of the next decision, unless ``ask`` names another."""
        if self._decision is not None:
            return self._decision
        return 1.0 if self._now is None else self._now + 1.0

    @override
    def ask(
        self,
        max_size: int | None = None,
        available: Tensor | None = None,
        time: float | None = None,
        *,
        size: int | None = None,
        arms: Tensor | None = None,
    ) -> Tensor:
        """Choose the next batch; see :meth:`FiniteArmBandit.ask`.

        Args:
            max_size: A cap on the size of this batch.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.
            time: When the pulls will be made; ``decision_time`` if None.
            size: The size of this batch, in the place of ``max_size``.
            arms: A ``k x d`` tensor of the arms of this round.

        Raises:
            InputDataError: As there; and if ``time`` is not finite, or before that of
                the last ask or of a reward, or far ahead of all that is known, see
                :meth:`tell`. Nothing has changed then.
        """
        last = -math.inf if self._now is None else self._now
        if time is not None:
            self._check_jump(check_time(time, last))
        time = self.decision_time if time is None else time
        self._decision = check_time(time, last)
        try:
            indices = super().ask(max_size, available, size=size, arms=arms)
            self._now = self._decision
        finally:
            self._decision = None
        return indices

    @override
    def tell(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        pull_ids: Tensor | Sequence[int] | None = None,
        external: bool = False,
        time: float | None = None,
    ) -> None:
        """Bring rewards of one time; see :meth:`FiniteArmBandit.tell`.

        Args:
            indices: The ``q`` arms.
            rewards: Their ``q`` rewards.
            pull_ids: Which pulls these are.
            external: Whether rewards of arms without a pending pull are welcome.
            time: When they were measured; if None, when they were asked for. Rewards
                may come in any order of their times.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, a pull is not
                pending, or ``time`` is not finite. Nothing has changed then. And if
                ``time`` is more than a hundred times as far ahead as all times before
                it are apart, from eight results on: a mistyped one would let all that
                is known be forgotten. The second time it is taken at its word.
        """
        given = None if time is None else check_time(time)
        if given is not None:
            self._check_jump(given)
        pulls = self._tell(indices, rewards, pull_ids, external)
        now = self._time_of_asking
        asked = [now if pull is None else pull.time for pull in pulls]
        self._times.extend(asked if given is None else [given] * len(asked))
        if pulls:
            last = -math.inf if self._now is None else self._now
            self._now = max([last, *self._times[-len(pulls) :]])

    def _check_jump(self, time: float) -> None:
        """Raise unless a time is near those before it, or was refused once before."""
        doubted, self._doubted = self._doubted, None
        if self._now is None or len(self._times) < MIN_RESULTS_TO_DOUBT:
            return
        known = [*self._times, *(pull.time for pull in self._ledger.pending.values())]
        span = self._now - min(known)
        if time - self._now <= LARGEST_JUMP * span or span == 0 or time == doubted:
            return
        self._doubted = time
        raise InputDataError(
            f"Expected `time` near {self._now:g}, the last that is known, but got "
            f"{time:g}: all times before it are no more than {span:g} apart. If it is "
            "right, make the call again."
        )

    @override
    def _forget(self, places: list[int]) -> None:
        out = set(places)
        times = [time for place, time in enumerate(self._times) if place not in out]
        pending = [pull.time for pull in self._ledger.pending.values()]
        self._times = times
        # The clock goes back to the last time that is left.
        self._now = max([*times, *pending], default=None)
        super()._forget(places)

    @property
    @override
    def _time_of_asking(self) -> float:
        if self._decision is not None:
            return self._decision
        return 0.0 if self._now is None else self._now

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "times": list(self._times), "now": self._now}

    @override
    def _load(self, state: dict[str, Any]) -> None:
        now = state["now"]
        self._now = None if now is None else check_time(now)
        self._times = [check_time(time) for time in state["times"]]
        super()._load(state)
        if len(self._times) != self.num_pulls:
            raise InputDataError(
                f"Expected a time for each of {self.num_pulls} pulls, but got "
                f"{len(self._times)}."
            )

    @override
    def _confidence_state(
        self, hyperparameters: Hyperparameters, posterior: Moments, num_pending: int = 0
    ) -> ConfidenceState:
        state = super()._confidence_state(hyperparameters, posterior, num_pending)
        return replace(state, decision_time=self.decision_time)


class RGPUCB(DriftingBandit, ExactBandit):
    r"""R-GP-UCB: GP-UCB that starts afresh with every block of time.

    Algorithm 1 of [bogunovic2016tvgpucb]_. A block is ``block_size`` long, the first
    starts at time 1, and a decision uses the rewards of its own block; pulls of earlier
    ones that are still pending do not count. The width goes
    on with the number of all pulls. Where nothing is known, as at the start of a block,
    the lowest index wins.

    Args:
        block_size: The paper's ``N``, in units of time; see :func:`rbf_block_size` and
            :func:`matern_block_size` for its formulas.

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
        if not 0 < as_number(block_size) < math.inf:
            raise InputDataError(
                f"Expected `block_size` to be a positive time, but got {block_size!r}."
            )
        self.block_size = block_size
        self._block = 0
        super().__init__(arms, covar_module, noise_variance, **options)

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return RTVWidth()

    @override
    def _totals(self, num_pulls: int) -> Totals:
        if self._block <= 0:
            return self._ledger.totals(num_pulls)
        times = torch.tensor(self._times[:num_pulls], dtype=torch.float64)
        return self._ledger.totals(num_pulls, times >= self._block_start)

    @property
    def _block_start(self) -> float:
        return 1.0 + self._block * self.block_size if self._block > 0 else -math.inf

    @override
    def _choose(
        self,
        rule: BatchRule,
        capacity: Capacity,
        first: int | None,
        pending: Sequence[Pull],
    ) -> Tensor:
        pending = [pull for pull in pending if pull.time >= self._block_start]
        return super()._choose(rule, capacity, first, pending)

    @override
    def _refresh(self) -> None:
        self._open_block()
        super()._refresh()

    @override
    def _predictive(self) -> tuple[Hyperparameters, ArmPosterior]:
        self._open_block()
        return super()._predictive()

    def _open_block(self) -> None:
        """Turn to the block of the next decision."""
        block = math.floor((self.decision_time - 1) / self.block_size)
        if block != self._block:
            self._block = block
            self._num_processed = 0  # what was processed no longer counts
            self._prediction = None

    @override
    def _load(self, state: dict[str, Any]) -> None:
        self._block = int(state["block"])
        super()._load(state)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "block": self._block}


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
    section 5 of [bogunovic2016tvgpucb]_.

    Args:
        forgetting_rate: ``eps``.
        horizon: ``T``.
        nu: The smoothness of the kernel.
        dimension: ``d``.

    Raises:
        InputDataError: If an argument is out of range.
    """
    check_size("dimension", dimension)
    if not 0 < as_number(nu) < math.inf:
        raise InputDataError(f"Expected `nu` to be positive, but got {nu!r}.")
    c = dimension * (dimension + 1) / (2 * nu + dimension * (dimension + 1))
    return _block_size(forgetting_rate, horizon, 24.0, 1 / (4 - c))


def _block_size(
    forgetting_rate: float, horizon: int, factor: float, exponent: float
) -> int:
    check_size("horizon", horizon)
    check_forgetting_rate(forgetting_rate)
    if forgetting_rate == 0:
        return horizon
    return math.ceil(min(horizon, factor * forgetting_rate**-exponent))
