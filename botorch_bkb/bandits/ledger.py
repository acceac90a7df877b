"""Who was pulled, what came back, and what is still out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor


class Pull(NamedTuple):
    """A pull without reward: its arm, and its leverage score when it was asked."""

    arm: int
    score: float


class PullLedger:
    """The pulls of a bandit over ``num_arms`` arms.

    Every pull that was asked has an id, counted from zero. It stays pending until it is
    told or fails. All checks come before any change.

    Attributes:
        counts: An ``A``-dim long tensor of told pulls.
        sums: An ``A``-dim tensor of summed rewards, as told.
        told_indices: The arms of told pulls, in order of telling.
        told_rewards: Their rewards.
        told_scores: Their leverage scores, frozen at the start of their batch.
        pending: Pulls by id, in order of asking.
        next_id: The id of the next pull.
        first_is_told: Whether pull 0 brought a reward.
    """

    def __init__(self, num_arms: int, like: Tensor) -> None:
        self.counts = torch.zeros(num_arms, dtype=torch.long, device=like.device)
        self.sums = like.new_zeros(num_arms)
        self.told_indices: list[int] = []
        self.told_rewards: list[float] = []
        self.told_scores: list[float] = []
        self.pending: dict[int, Pull] = {}
        self.next_id = 0
        self.first_is_told = False

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return len(self.told_indices)

    def ask(self, indices: Sequence[int], scores: Sequence[float]) -> None:
        """Make pulls pending."""
        for index, score in zip(indices, scores, strict=True):
            self.pending[self.next_id] = Pull(index, score)
            self.next_id += 1

    def tell(
        self,
        indices: Any,
        rewards: Any,
        pull_ids: Sequence[int] | None,
        external_scores: Tensor | None,
    ) -> None:
        """Settle pending pulls with rewards.

        Args:
            indices: The arms, ``q`` of them.
            rewards: Their ``q`` rewards.
            pull_ids: Which pulls these are; if None, the oldest pending ones.
            external_scores: An ``A``-dim tensor of leverage scores for pulls that were
                never asked; None if there must not be any.
        """
        arms = self.check_indices(indices)
        values = check_rewards(rewards, len(arms), self.sums.dtype)
        settled = self._match(arms, pull_ids, external=external_scores is not None)
        for arm, value, pull_id in zip(arms, values, settled, strict=True):
            if pull_id is not None:
                score = self.pending.pop(pull_id).score
            elif external_scores is not None:
                score = external_scores[arm].item()
            self.told_indices.append(arm)
            self.told_rewards.append(value)
            self.told_scores.append(score)
            self.first_is_told |= pull_id == 0
        self._add(arms, values)

    def fail(self, indices: Any, pull_ids: Sequence[int] | None) -> None:
        """Release pending pulls without reward."""
        arms = self.check_indices(indices)
        for pull_id in self._match(arms, pull_ids, external=False):
            if pull_id is not None:
                del self.pending[pull_id]

    def pending_counts(self) -> Tensor:
        """Return the ``A`` numbers of pending pulls."""
        arms = [pull.arm for pull in self.pending.values()]
        indices = torch.tensor(arms, dtype=torch.long, device=self.counts.device)
        return torch.bincount(indices, minlength=self.counts.shape[0])

    def totals(self, num_pulls: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """Return counts and sums of the first told pulls, from ``start`` on."""
        if num_pulls == self.num_pulls and start == 0:
            return self.counts, self.sums
        indices = torch.tensor(self.told_indices[start:num_pulls], dtype=torch.long)
        indices = indices.to(self.counts.device)
        told = self.told_rewards[start:num_pulls]
        rewards = torch.tensor(told, dtype=torch.float64).to(self.sums)
        counts = torch.bincount(indices, minlength=self.counts.shape[0])
        return counts, torch.zeros_like(self.sums).index_add_(0, indices, rewards)

    def check_indices(self, indices: Any) -> list[int]:
        """Return arm indices as a list, or raise an ``InputDataError``."""
        try:
            values = torch.as_tensor(indices)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputDataError(
                f"Expected `indices` to be row numbers of `arms`, but got {indices!r}."
            ) from error
        if values.numel() == 0 and values.dim() <= 1:
            return []
        if values.dim() > 1 or values.is_floating_point() or values.dtype == torch.bool:
            raise InputDataError(
                "Expected `indices` to be a one-dimensional tensor or list of "
                f"integers, but got {values.dtype} of shape {tuple(values.shape)}."
            )
        num_arms = self.counts.shape[0]
        arms: list[int] = values.reshape(-1).tolist()
        unknown = [arm for arm in arms if not 0 <= arm < num_arms]
        if unknown:
            raise InputDataError(
                f"Expected `indices` between 0 and {num_arms - 1}, but got "
                f"{unknown[0]}. Indices are row numbers of `arms`."
            )
        return arms

    def _match(
        self, arms: list[int], pull_ids: Sequence[int] | None, external: bool
    ) -> list[int | None]:
        if pull_ids is not None:
            return self._match_ids(arms, [int(pull_id) for pull_id in pull_ids])
        waiting: dict[int, list[int]] = {arm: [] for arm in arms}
        for pull_id, pull in self.pending.items():
            if pull.arm in waiting:
                waiting[pull.arm].append(pull_id)
        matched: list[int | None] = []
        for arm in arms:
            if waiting[arm]:
                matched.append(waiting[arm].pop(0))
            elif external:
                matched.append(None)
            else:
                raise InputDataError(
                    f"Expected a pending pull of arm {arm}, but it has none left to "
                    "settle. Ask first, or pass `external=True` to `tell` if the "
                    "reward is historical or outside data."
                )
        return matched

    def _match_ids(self, arms: list[int], pull_ids: list[int]) -> list[int | None]:
        if len(pull_ids) != len(arms) or len(set(pull_ids)) != len(pull_ids):
            raise InputDataError(
                f"Expected `pull_ids` to hold {len(arms)} different ids, one per "
                f"index, but got {pull_ids}."
            )
        for arm, pull_id in zip(arms, pull_ids, strict=True):
            pull = self.pending.get(pull_id)
            if pull is None or pull.arm != arm:
                found = "no pending pull" if pull is None else f"arm {pull.arm}"
                raise InputDataError(
                    f"Expected pull {pull_id} to be a pending pull of arm {arm}, but "
                    f"it is {found}. `pending_pulls` lists ids and arms."
                )
        return list(pull_ids)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
        return {
            "told_indices": list(self.told_indices),
            "told_rewards": list(self.told_rewards),
            "told_scores": list(self.told_scores),
            "pending": {key: tuple(pull) for key, pull in self.pending.items()},
            "next_id": self.next_id,
            "first_is_told": self.first_is_told,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.told_indices = list(state["told_indices"])
        self.told_rewards = list(state["told_rewards"])
        self.told_scores = list(state["told_scores"])
        self.pending = {key: Pull(*pull) for key, pull in state["pending"].items()}
        self.next_id = state["next_id"]
        self.first_is_told = state["first_is_told"]
        self.counts = torch.zeros_like(self.counts)
        self.sums = torch.zeros_like(self.sums)
        self._add(self.told_indices, self.told_rewards)

    def _add(self, arms: list[int], rewards: list[float]) -> None:
        indices = torch.tensor(arms, dtype=torch.long, device=self.counts.device)
        self.counts.index_add_(0, indices, torch.ones_like(indices))
        values = torch.tensor(rewards, dtype=torch.float64).to(self.sums)
        self.sums.index_add_(0, indices, values)


def check_rewards(rewards: Any, num_pulls: int, dtype: torch.dtype) -> list[float]:
    """Return rewards as a list, or raise.

    Raises:
        BotorchTensorDimensionError: If there is not one reward per pull; one output.
        InputDataError: If a reward is no number, NaN, infinite, or so large that
            squares overflow in the dtype of the arms.
    """
    try:
        if isinstance(rewards, Tensor) and rewards.is_complex():
            raise TypeError("complex")
        values = torch.as_tensor(rewards, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputDataError(
            f"Expected `rewards` to be real numbers, but got {rewards!r}."
        ) from error
    if values.dim() == 2 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    values = values.reshape(1) if values.dim() == 0 else values
    if values.shape != (num_pulls,):
        raise BotorchTensorDimensionError(
            "Expected `rewards` to hold one number per index, i.e. shape "
            f"({num_pulls},) or ({num_pulls}, 1), but got {tuple(values.shape)}. One "
            "output only."
        )
    usable = values.abs() < 1e-6 * torch.finfo(dtype).max ** 0.5
    if not usable.all():
        position = int((~usable).nonzero()[0])
        raise InputDataError(
            f"Expected finite `rewards` that {dtype} can square, but got "
            f"{values[position].item()} at position {position}. Use `fail` for a pull "
            "that brought no reward."
        )
    result: list[float] = values.tolist()
    return result
