r"""Arms, their pulls and their results: what a bandit knows before any model.

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms.table import ArmTable, as_arms, fingerprint, has_fingerprint
from botorch_bkb.bandits.ledger import Pull, PullLedger
from botorch_bkb.bandits.storage import StoredBandit
from botorch_bkb.checks import (
    check_available,
    check_count,
    check_generator,
    check_indices,
    check_size,
)
from botorch_bkb.models.utils.bits import as_dense
from botorch_bkb.models.utils.draws import as_generator


class ArmBandit(StoredBandit):
    r"""The table of arms, who was pulled, what came back and what is still out.

    An arm is its row number in ``arms``, for good: rows are added at the end, and arms
    that can no longer be pulled are *retired* where they are. What was told of them
    keeps informing about the others, as Appendix A of [calandriello2019bkb]_ says of
    arm sets that change.

    Every pull asked for has an id, counted from zero; ``pending`` lists those that are
    out. A pull is settled once: ``tell`` and ``fail`` by ``pull_ids`` refuse a result
    that was told before, and a pull that was never asked. Without ids a result goes to
    the oldest pending pull of its arm, so one that is told twice would settle another
    pull of that arm: pass ids where results may come twice.

    Several threads may ask and tell: a lock of the bandit lets one in at a time. Who
    needs the ids of what it asked for holds it for both, ``with bandit.lock:``.
    """

    def __init__(
        self,
        arms: Tensor,
        *,
        maximize: bool,
        max_repeats: int | None,
        generator: torch.Generator | None,
    ) -> None:
        arms = as_arms(arms)
        if max_repeats is not None:
            check_size("max_repeats", max_repeats)
        check_generator(generator)
        self._table = ArmTable.of(arms)
        self.maximize = maximize
        self.max_repeats = max_repeats
        self.generator = as_generator(generator)
        self.num_batches = 0
        self._num_given = arms.shape[0]  # the arms of the constructor
        self._ledger = PullLedger(arms.shape[0], like=arms)

    @abstractmethod
    def _leverage_scores(self, indices: Tensor) -> Tensor:
        """Return the leverage scores of a few arms, of the last ask."""

    @property
    def arms(self) -> Tensor:
        """The ``A x d`` arms, one per row."""
        return self._table.rows

    @property
    def is_retired(self) -> Tensor:
        """An ``A``-dim boolean tensor: which arms can no longer be pulled."""
        return self._table.is_retired

    @abstractmethod
    def _extend(self, arms: Tensor, is_retired: bool) -> None:
        """Let arms follow those of ``arms``, in all that is known but the pulls.

        Replaces attributes and changes none of them, for the sake of shallow copies.
        """

    @property
    def counts(self) -> Tensor:
        """The ``A`` numbers of told pulls."""
        return self._ledger.counts

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return self._ledger.num_pulls

    @property
    def pending(self) -> dict[int, int]:
        """The arms of pending pulls by pull id, in order of asking."""
        return {key: pull.arm for key, pull in self._ledger.pending.items()}

    def tell(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        pull_ids: Tensor | Sequence[int] | None = None,
        external: bool = False,
    ) -> None:
        """Bring rewards, in any order and any part of what was asked.

        Args:
            indices: The ``q`` arms.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending``. If None, the oldest
                pending pulls of those arms.
            external: Whether rewards of arms without a pending pull are welcome:
                historical or outside data. Pending pulls are settled first.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, or a pull is
                not pending. Nothing has changed then.
        """
        self._tell(indices, rewards, pull_ids, external)

    def _tell(
        self, indices: Any, rewards: Any, pull_ids: Any, external: bool
    ) -> list[Pull | None]:
        """Bring rewards; return the pulls, None for those from outside."""
        scores = self._leverage_scores if external else None
        return self._ledger.tell(indices, rewards, pull_ids, scores)

    def fail(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``."""
        self._ledger.fail(indices, pull_ids)

    def withdraw(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Take told results back, such as one with a mistyped reward or time.

        As if they had not been told: pulls that were asked are pending again, to be
        told anew or failed; results from outside are gone. Picks that were made since
        stay, and so do doublings of ``NormDoubling``; hyper-parameters that are learned
        are fitted anew by the next ask. That costs a rebuild of the posterior.

        Args:
            indices: The ``q`` arms.
            pull_ids: Which pulls these are. If None, the results of those arms that
                were told last.

        Raises:
            InputDataError: If an arm is unknown, or no such result was told. Nothing
                has changed then.
        """
        places = self._ledger.find_told(indices, pull_ids)
        self._ledger.withdraw(places)
        self._forget(places)

    @abstractmethod
    def _forget(self, places: list[int]) -> None:
        """Update what is known after told pulls at these places were withdrawn."""

    def add_pending(self, indices: Tensor | Sequence[int]) -> None:
        """Count pulls that somebody else has started as pending, repeats included.

        Raises:
            InputDataError: If an arm is unknown.
        """
        arms = check_indices(indices, self.arms.shape[0])
        self._add_pending(torch.tensor(arms, dtype=torch.long))

    def add_arms(self, arms: Tensor) -> Tensor:
        """Let more arms be pulled from now on.

        A row that the table has already is that arm, which is no longer retired.

        Args:
            arms: A ``k x d`` tensor.

        Returns:
            The ``k`` arm indices of its rows.

        Raises:
            BotorchTensorDimensionError: If it is not ``k x d``.
            InputDataError: If a number is not finite, or the kernel is not positive
                semi-definite on all arms. Nothing has changed then.
        """
        indices, new = self._match(arms)
        self._append(new, is_retired=False)
        self._table = self._table.retire(indices, False)
        return indices

    def retire_arms(self, indices: Tensor | Sequence[int]) -> None:
        """Let arms not be pulled any more; ``add_arms`` takes them back.

        Their results keep informing, and pulls that are pending can still be told.

        Raises:
            InputDataError: If an arm is unknown. Nothing has changed then.
        """
        arms = check_indices(indices, self.arms.shape[0])
        self._table = self._table.retire(self._indices(arms))

    def replace_arms(self, arms: Tensor) -> Tensor:
        """Retire all arms but these; arguments, returns and errors of ``add_arms``.

        Arms that are retired keep their row, and cost what others do. Where one table
        follows another, ``ask(arms=...)`` keeps only what was pulled.
        """
        indices, new = self._match(arms)
        self._append(new, is_retired=False)
        self._table = self._table.retire_all().retire(indices, False)
        return indices

    def _match(self, arms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of ``k x d`` arms, new ones at the end, and the new."""
        arms = as_arms(arms)
        if arms.shape[-1] != self.arms.shape[-1]:
            raise BotorchTensorDimensionError(
                f"Expected `arms` of {self.arms.shape[-1]} features, like those that "
                f"are there, but got {arms.shape[-1]}."
            )
        if arms.dtype != self.arms.dtype:
            # A row that is rounded would not be found in the table.
            raise InputDataError(
                f"Expected `arms` of dtype {self.arms.dtype}, like those that are "
                f"there, but got {arms.dtype}."
            )
        return self._table.find(arms.to(self.arms.device))

    def _append(self, arms: Tensor, is_retired: bool) -> None:
        if arms.shape[0]:
            self._extend(arms, is_retired)
            self._ledger.num_arms += arms.shape[0]

    def _offered(self, available: Tensor | None) -> Tensor | None:
        """Return which arms can be pulled now; None for all."""
        if available is not None:
            available = check_available(available, self._table.num_arms)
        return self._table.offered(available)

    def _add_pending(self, indices: Tensor) -> None:
        scores = self._leverage_scores(indices.to(self.arms.device))
        self._ledger.ask(indices.tolist(), scores.tolist(), self._time_of_asking)

    @property
    def _time_of_asking(self) -> float:
        """The time of the pulls that become pending now, if there is time."""
        return 0.0

    @property
    def _sign(self) -> float:
        return 1.0 if self.maximize else -1.0

    def _rows(self, indices: Tensor | Sequence[int] | None) -> Tensor:
        num_arms = self.arms.shape[0]
        if indices is None:
            return torch.arange(num_arms, device=self.arms.device)
        return self._indices(check_indices(indices, num_arms))

    def _indices(self, arms: Sequence[int]) -> Tensor:
        return torch.tensor(arms, dtype=torch.long, device=self.arms.device)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "bandit": type(self).__name__,
            "num_arms": self._num_given,
            "fingerprint": fingerprint(self.arms[: self._num_given]),
            "maximize": self.maximize,
            "added_arms": as_dense(self.arms[self._num_given :]).clone(),
            "retired": self._table.retired,
            "ledger": self._ledger.state_dict(),
            "generator": self.generator.get_state(),
            "num_batches": self.num_batches,
        }

    @override
    def _check_state(self, state: dict[str, Any]) -> None:
        expected = (type(self).__name__, self._num_given)
        found = (state.get("bandit"), state.get("num_arms"))
        if found != expected:
            raise InputDataError(
                f"Expected the state of a {expected[0]} over {expected[1]} arms, but "
                f"got that of a {found[0]} over {found[1]}. Construct the bandit with "
                "the arms and options of the saved one."
            )
        if state["maximize"] is not self.maximize:
            raise InputDataError(
                f"Expected the state of a bandit with maximize={self.maximize}, but it "
                f"is that of one with maximize={state['maximize']}."
            )
        given, saved = self.arms[: self._num_given], state["added_arms"]
        # Rounding to float32 changes a number by 6e-8 of itself.
        tolerance = 1e-12 if saved.dtype == given.dtype else 1.2e-7
        if not has_fingerprint(given, state["fingerprint"], tolerance):
            raise InputDataError(
                "Expected the state of a bandit over these arms, but it is that of one "
                "over others, or in another order: its results would go to wrong arms. "
                "Construct the bandit with the arms of the saved one."
            )

    @override
    def _load(self, state: dict[str, Any]) -> None:
        added = state["added_arms"].to(self.arms)
        arms = as_arms(torch.cat([self.arms[: self._num_given], added]))
        is_retired = torch.zeros_like(arms[:, 0], dtype=torch.bool)
        self._table = replace(self._table, rows=arms, is_retired=is_retired)
        self.retire_arms(state["retired"])
        self._ledger = PullLedger(self.arms.shape[0], like=self.arms)
        self._ledger.load_state_dict(state["ledger"])
        self.generator.set_state(state["generator"])
        self.num_batches = check_count("num_batches", state["num_batches"])
