r"""Arms, their pulls and their results: what a bandit knows before any model.

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.ledger import Pull, PullLedger
from botorch_bkb.bandits.storage import StoredBandit
from botorch_bkb.checks import (
    check_arms,
    check_available,
    check_count,
    check_generator,
    check_indices,
    check_size,
)
from botorch_bkb.models.utils.crossing import UNLIMITED
from botorch_bkb.models.utils.draws import as_generator, draw_integers
from botorch_bkb.models.utils.replicates import find_twins, first_of_twins


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
        check_arms(arms)
        if max_repeats is not None:
            check_size("max_repeats", max_repeats)
        check_generator(generator)
        self.arms = arms
        self.is_retired = torch.zeros_like(arms[:, 0], dtype=torch.bool)
        self.maximize = maximize
        self.max_repeats = max_repeats
        self.generator = as_generator(generator)
        self.num_batches = 0
        self._num_given = arms.shape[0]  # the arms of the constructor
        self._ledger = PullLedger(arms.shape[0], like=arms)
        # Rows that are added later are equal to none that is there.
        self._twins = find_twins(arms)

    @abstractmethod
    def _leverage_scores(self, indices: Tensor) -> Tensor:
        """Return the leverage scores of a few arms, of the last ask."""

    @abstractmethod
    def _extend(self, arms: Tensor) -> None:
        """Let arms follow those of ``arms``, in all that is known but the pulls.

        Replaces attributes and changes none of them, for the sake of shallow copies.
        """

    @property
    def counts(self) -> Tensor:
        """The ``A`` numbers of told pulls."""
        return self._ledger.counts.clone()

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
        """Follow the ledger, from which told pulls at these places have gone."""

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
        self._retire(indices, False)
        return indices

    def retire_arms(self, indices: Tensor | Sequence[int]) -> None:
        """Let arms not be pulled any more; ``add_arms`` takes them back.

        Their results keep informing, and pulls that are pending can still be told.

        Raises:
            InputDataError: If an arm is unknown. Nothing has changed then.
        """
        arms = check_indices(indices, self.arms.shape[0])
        self._retire(self._indices(arms), True)

    def replace_arms(self, arms: Tensor) -> Tensor:
        """Retire all arms but these; arguments, returns and errors of ``add_arms``.

        Arms that are retired keep their row, and cost what others do. Where one table
        follows another, ``ask(arms=...)`` keeps only what was pulled.
        """
        indices, new = self._match(arms)
        self._append(new, is_retired=False)
        self.is_retired = torch.ones_like(self.is_retired)
        self._retire(indices, False)
        return indices

    def _match(self, arms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of ``k x d`` arms, new ones at the end, and the new."""
        check_arms(arms)
        if arms.shape[-1] != self.arms.shape[-1]:
            raise BotorchTensorDimensionError(
                f"Expected `arms` of {self.arms.shape[-1]} features, like those that "
                f"are there, but got {arms.shape[-1]}."
            )
        if arms.dtype != self.arms.dtype:
            # Rounded, a row would no longer be the one that is there.
            raise InputDataError(
                f"Expected `arms` of dtype {self.arms.dtype}, like those that are "
                f"there, but got {arms.dtype}."
            )
        return match_rows(self.arms, arms.to(self.arms.device))

    def _append(self, arms: Tensor, is_retired: bool) -> None:
        if arms.shape[0] == 0:
            return
        self._extend(arms)
        self._ledger.add_arms(arms.shape[0])
        flags = self.is_retired.new_full((arms.shape[0],), is_retired)
        self.is_retired = torch.cat([self.is_retired, flags])

    def _retire(self, indices: Tensor, is_retired: bool) -> None:
        self.is_retired = self.is_retired.clone()
        self.is_retired[indices] = is_retired

    def _offered(self, available: Tensor | None) -> Tensor | None:
        """Return which arms can be pulled now; None for all."""
        if available is None:
            return ~self.is_retired if self.is_retired.any() else None
        available = check_available(available, self.arms.shape[0])
        return available.to(self.is_retired.device) & ~self.is_retired

    def _in_play(self) -> Tensor:
        """Return which arms are not retired; all if all are."""
        return ~self.is_retired | self.is_retired.all()

    def _distinct(self, allowed: Tensor) -> Tensor:
        """Return the arms among those allowed that have no equal of lower index."""
        return (
            first_of_twins(self._twins, allowed) if len(self._twins.rows) else allowed
        )

    def _capacity(self, offered: Tensor | None) -> Tensor | None:
        """Return how many more pulls each arm allows; None for no limit.

        Args:
            offered: Which arms can be pulled now; arms may follow those of the table.
        """
        if offered is None:
            if self.max_repeats is None:
                return None
            offered = torch.ones_like(self.is_retired)
        capacity = torch.full_like(offered, UNLIMITED, dtype=torch.long)
        if self.max_repeats is not None:
            used = self._ledger.counts + self._ledger.pending_counts()
            capacity = torch.full_like(capacity, self.max_repeats)
            capacity[: len(used)] -= used
        return capacity.clamp_min(0) * offered

    def _draw_arm(self, capacity: Tensor | None) -> int:
        """Draw one of the arms that may be pulled, uniformly."""
        if capacity is None:
            return self._draw_index(self.arms.shape[0])
        allowed = (capacity > 0).nonzero().squeeze(-1)
        return int(allowed[self._draw_index(len(allowed))])

    def _draw_index(self, size: int) -> int:
        return int(draw_integers(size, 1, self.generator))

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
            "added_arms": self.arms[self._num_given :].clone(),
            "retired": self.is_retired.nonzero().squeeze(-1),
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
        self.arms = torch.cat([self.arms[: self._num_given], added])
        check_arms(self.arms)
        self.is_retired = torch.zeros_like(self.arms[:, 0], dtype=torch.bool)
        self.retire_arms(state["retired"])
        self._ledger = PullLedger(self.arms.shape[0], like=self.arms)
        self._ledger.load_state_dict(state["ledger"])
        self.generator.set_state(state["generator"])
        self.num_batches = check_count("num_batches", state["num_batches"])


def match_rows(table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Find rows in a table, equal in every number.

    Args:
        table: An ``A x d`` tensor.
        rows: A ``k x d`` tensor.

    Returns:
        The ``k`` indices of the rows in the table with the new ones at its end, the
        lowest where rows are equal; and the new rows, each once.
    """
    columns = zip(table.unbind(-1), rows.unbind(-1), strict=True)
    near = torch.stack([torch.isin(*column) for column in columns]).all(dim=0)
    known = near.nonzero().squeeze(-1)
    both = torch.cat([table[known], rows])
    _, group = both.unique(dim=0, return_inverse=True)
    order = torch.arange(both.shape[0], device=both.device)
    first = torch.full_like(order, both.shape[0])
    first = first.scatter_reduce(0, group, order, "amin")[group][known.shape[0] :]
    is_new = first == order[known.shape[0] :]
    indices = torch.cat([known, table.shape[0] + is_new.cumsum(0) - 1])
    return indices[first], rows[is_new]


def fingerprint(arms: Tensor) -> Tensor:
    """Return ``d`` numbers that tell tables of arms apart, and their order."""
    return _row_weights(arms) @ arms.double()


def has_fingerprint(arms: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether arms have this fingerprint, up to relative changes of their numbers."""
    allowed = tolerance * (_row_weights(arms) @ arms.double().abs())
    expected = expected.to(allowed)
    if expected.shape != allowed.shape:
        return False
    return bool(((fingerprint(arms) - expected).abs() <= allowed).all())


def _row_weights(arms: Tensor) -> Tensor:
    """Return a number between 1 and 2 for every row, far apart for neighbours."""
    rows = torch.arange(arms.shape[0], dtype=torch.float64, device=arms.device)
    return 1 + (rows * 0.6180339887498949).frac()
