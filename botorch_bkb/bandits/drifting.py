"""Bandits whose pulls have times, for objectives that drift."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.bandit import locked
from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.forgetting import ForgettingLearner
from botorch_bkb.bandits.ledger import PullLedger
from botorch_bkb.checks import as_number, check_size, check_time
from botorch_bkb.posteriors.sparse_arm_filter import check_forgetting_rate


class DriftingBandit(FiniteArmBandit):
    r"""A bandit whose pulls have times.

    Times are real numbers, and those of asks never go back. Without them, every ``ask``
    is one step later than the last time known, starting at 1, and a reward is of the
    time at which its pull was asked for, however late it is told; one from outside of
    that of the last ``ask``. A result of a wrong time is taken back by ``withdraw``:
    the clock goes back to the last time of results and pending pulls, so fail before
    it what was asked for by a wrong clock. ``predict``, ``confidence_bound`` and
    ``best_arm`` speak of the next decision time.

    The arguments are those of :class:`FiniteArmBandit`; ``learner`` is one for pulls
    with times, by default :class:`~botorch_bkb.bandits.forgetting.ForgettingLearner`.
    """

    default_learner = ForgettingLearner()
    _has_times = True

    @property
    def decision_time(self) -> float:
        """The time of the next decision, unless ``ask`` names another."""
        return self._next_time

    @override
    @locked
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
                the last ask or of a reward. Nothing has changed then.
        """
        last = -math.inf if self._now is None else self._now
        time = check_time(self.decision_time if time is None else time, last)
        indices = self._ask_at(time, max_size, available, size, arms)
        self._now = time
        return indices

    @override
    @locked
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
                pending, or ``time`` is not finite. Nothing has changed then.
        """
        given = None if time is None else check_time(time)
        num_before = self.num_pulls
        self._tell_at(given, indices, rewards, pull_ids, external)
        last = [] if self._now is None else [self._now]
        self._now = max([*last, *self._ledger.told_times[num_before:]], default=None)

    @override
    def _forget(self, places: list[int]) -> None:
        pending = [pull.time for pull in self._ledger.pending.values()]
        # The clock goes back to the last time that is left.
        self._now = max([*self._ledger.told_times, *pending], default=None)
        super()._forget(places)

    @override
    def _clock_state(self) -> dict[str, Any]:
        return {"times": list(self._ledger.told_times), "now": self._now}

    @override
    def _load_clock(self, ledger: PullLedger, state: dict[str, Any]) -> float | None:
        times = [check_time(time) for time in state["times"]]
        if len(times) != ledger.num_pulls:
            raise InputDataError(
                f"Expected a time for each of {ledger.num_pulls} pulls, but got "
                f"{len(times)}."
            )
        ledger.told_times = array("d", times)
        now = state["now"]
        return None if now is None else check_time(now)


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
