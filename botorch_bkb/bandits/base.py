"""Base classes of bandits and surrogates, over arms and over a box."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, ParamSpec, Self, TypeVar

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.fitting import Hyperparameters
from botorch_bkb.bandits.observations import Observations
from botorch_bkb.bandits.storage import load_state, MAX_BYTES, save_state
from botorch_bkb.checks import check_count, check_indices, check_number, check_time


P = ParamSpec("P")
R = TypeVar("R")


def locked(method: Callable[P, R]) -> Callable[P, R]:
    """Let one thread at a time be in this and other such methods of a bandit."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        bandit: Any = args[0]
        with bandit.lock:
            return method(*args, **options)

    return call


@dataclass(frozen=True)
class SurrogateState:
    """The state of a surrogate, beside its posterior.

    Attributes:
        hyperparameters: Kernel, noise and units.
        inducing_indices: The inducing arms of the last update.
        num_told: The number of told pulls that it knows, the first ones.
        num_updates: The number of updates so far.
        restart: The number of told pulls at the last fit of hyperparameters, and the
            log determinant then. Frozen sums start there.
        block: The block of time.
    """

    hyperparameters: Hyperparameters
    inducing_indices: Tensor
    num_told: int = 0
    num_updates: int = 0
    restart: tuple[int, float] = (0, 0.0)
    block: int = 0


class Surrogate(ABC):
    """A state and a posterior, learned from observations, over arms or over a box.

    The posterior is large, and a function of state and observations. An update changes
    both. An error restores the state, and the posterior is computed when it is next
    needed.

    Args:
        hyperparameters: Kernel, noise and units.

    Attributes:
        state: The state, which is saved.
        seed: The seed of all random numbers.
        drifts: Whether pulls have times, on which the posterior depends.
    """

    drifts = False

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        device = hyperparameters.features.device
        none = torch.empty(0, dtype=torch.long, device=device)
        self.state = SurrogateState(hyperparameters, none)
        self.seed = 0

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Kernel, noise and units."""
        return self.state.hyperparameters

    def is_current(self, observations: Any, time: float) -> bool:
        """Whether an update would change nothing."""
        return bool(self.state.num_told == observations.num_pulls)

    @abstractmethod
    def update(self, observations: Any, time: float) -> None:
        """Learn from all told pulls: fit what is due, choose the inducing points."""

    @abstractmethod
    def preview(self, observations: Any, time: float) -> Self:
        """Return a copy that has learned from all told pulls."""

    @abstractmethod
    def refresh(self, observations: Any) -> None:
        """Compute the posterior from the state, unless it is there."""

    @abstractmethod
    def mark_stale(self) -> None:
        """Drop the posterior, which is computed when it is next needed."""

    def restore(self, state: SurrogateState) -> None:
        """Go back to an earlier state."""
        self.state = state
        self.mark_stale()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers."""
        state = self.state
        return {
            "seed": self.seed,
            "num_updates": state.num_updates,
            "prior": deepcopy(state.hyperparameters.state_dict()),
            "inducing_indices": state.inducing_indices.clone(),
            "num_processed": state.num_told,
            "restart": state.restart,
            "block": state.block,
        }

    def loaded(
        self, state: dict[str, Any], observations: Observations, rows: Tensor
    ) -> Self:
        """Return a copy in the state that :meth:`state_dict` returned.

        Args:
            state: The state.
            observations: Those that were saved with it.
            rows: The rows that inducing indices count, in the original scale: the
                ``A x d`` arms, or the told points of a box.
        """
        num_pulls = observations.num_pulls
        hyperparameters = deepcopy(self.hyperparameters)
        hyperparameters.load_state_dict(state["prior"])
        hyperparameters.features = hyperparameters.to_features(rows)
        inducing = check_indices(state["inducing_indices"], len(rows))
        start, log_det = state["restart"]
        other = copy(self)
        other.seed = check_count("seed", state["seed"], 2**64 - 1)
        other.restore(
            SurrogateState(
                hyperparameters,
                torch.tensor(inducing, dtype=torch.long, device=rows.device),
                check_count("num_processed", state["num_processed"], num_pulls),
                check_count("num_updates", state["num_updates"]),
                (
                    check_count("restart", start, num_pulls),
                    check_number("restart", log_det, least=-1e-6),
                ),
                int(state["block"]),
            )
        )
        other.refresh(observations)
        return other


class Bandit(ABC):
    """Observations and a surrogate that learns from them, kept in a file.

    In its public methods is one thread at a time: those of subclasses are decorated by
    :func:`locked`. A method may call another, whose lock is the same. A copy has a lock
    of its own, and so has what a pickle brings back.

    Attributes:
        lock: Hold it (``with bandit.lock:``) where several calls belong together, or
            while the object is copied.
        maximize: Whether large rewards are good.
        num_batches: The number of asks.
    """

    lock: RLock
    maximize: bool
    num_batches: int
    _observations: Observations
    # The surrogate of the last ask, and a copy that knows the results since then.
    _surrogate: Any
    _preview: Any = None
    # The first lines of files as this bandit last read or wrote them.
    _known_files: Mapping[Path, bytes] = MappingProxyType({})

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make the lock before any constructor runs: it may call public methods."""
        self = super().__new__(cls)
        self.lock = RLock()
        return self

    @override
    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        del state["lock"]
        return state

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return self._observations.num_pulls

    @property
    def noise_variance(self) -> float:
        """Lambda, in the original scale."""
        hyperparameters = self._surrogate.hyperparameters
        noise: float = hyperparameters.noise_variance * hyperparameters.scale**2
        return noise

    @property
    def covar_module(self) -> Kernel:
        """The kernel, given or fitted so far, in the units that it works in."""
        return self._surrogate.hyperparameters.covar_module

    @property
    def drifts(self) -> bool:
        """Whether pulls have times."""
        drifts: bool = self._surrogate.drifts
        return drifts

    @property
    def decision_time(self) -> float:
        """The time of the next decision, unless ``ask`` names another."""
        return self._observations.next_time

    @locked
    def tell(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        pull_ids: Tensor | Sequence[int] | None = None,
        *,
        time: float | None = None,
    ) -> None:
        """Bring rewards of pending pulls, in any order and any part of what was asked.

        Args:
            indices: The ``q`` arms; of a box the ``q x d`` points, exactly as asked.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending``. If None, the oldest
                pending pulls of those arms.
            time: When they were measured, if the objective drifts; if None, when they
                were asked for. Rewards may come in any order of their times.

        Raises:
            BotorchTensorDimensionError: If the shapes do not fit.
            InputDataError: If a reward is not finite, an arm is unknown, a pull is not
                pending, or ``time`` is not finite. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift.
        """
        time = self._checked_time(time)
        self._observations.tell(self._arms_of(indices), rewards, pull_ids, time)

    @locked
    def add_observations(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        *,
        time: float | None = None,
    ) -> None:
        """Bring results that were never asked for; they settle no pending pull.

        Args:
            indices: The ``q`` arms, repeats included; of a box the ``q x d`` points.
            rewards: Their ``q`` rewards (or ``q x 1``).
            time: When they were measured, if the objective drifts; if None, at the time
                of the last ask.

        Raises:
            BotorchTensorDimensionError: If the shapes do not fit.
            InputDataError: If a reward is not finite, an arm is unknown, or ``time`` is
                not finite. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift.
        """
        time = self._checked_time(time)
        arms = self._arms_of(indices)
        self._observations.add(arms, rewards, self._scores_now, time)

    @locked
    def fail(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``."""
        self._observations.fail(self._arms_of(indices), pull_ids)

    def _arms_of(self, indices: Any) -> Any:
        """Return the arms that a user names."""
        return indices

    @abstractmethod
    def _scores_now(self, indices: Tensor) -> Tensor:
        """Return the leverage scores of pulls that become pending now."""

    def _checked_time(
        self, time: float | None, earliest: float | None = None
    ) -> float | None:
        """Return a time that a user names; raise if pulls have none."""
        if time is None:
            return None
        if not self.drifts:
            raise UnsupportedError(
                "Expected no `time`, since the objective of this "
                f"{type(self).__name__} does not drift. Leave it out, or pass "
                "`forgetting_rate` to a GPBandit."
            )
        return check_time(time, -math.inf if earliest is None else earliest)

    def _predictor(self) -> Any:
        """Return the surrogate that knows all told pulls, without a draw or a commit.

        It has the hyperparameters that the next ask will have, and, if these are
        learned, the inducing points.
        """
        observations = self._observations
        time = observations.next_time
        for surrogate in (self._surrogate, self._preview):
            if surrogate is not None and surrogate.is_current(observations, time):
                return surrogate
        self._preview = self._surrogate.preview(observations, time)
        return self._preview

    @property
    @abstractmethod
    def _schedule(self) -> Any:
        """The object whose ``state_dict`` an ask may change."""

    @contextmanager
    def _restored_after_errors(self) -> Iterator[None]:
        """Undo what an error, or an interrupt, would leave half done."""
        surrogate, state = self._surrogate, self._surrogate.state
        before, schedule_state = vars(self).copy(), self._schedule.state_dict()
        observed = vars(self._observations).copy()
        try:
            yield
        except BaseException:
            vars(self).update(before)
            vars(self._observations).update(observed)
            self._schedule.load_state_dict(schedule_state)
            surrogate.restore(state)
            raise

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next ``ask`` depends on, ``O(pulls)`` numbers.

        Load it into a bandit constructed with the same arms or box, and options; arms
        that were added later are part of it.
        """

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise an ``InputDataError`` unless this is the state of such a bandit."""
        if state.get("bandit") != type(self).__name__:
            raise InputDataError(
                f"Expected the state of a {type(self).__name__}, but got that of a "
                f"{state.get('bandit')}. Construct the bandit that was saved."
            )
        if state["maximize"] is not self.maximize:
            raise InputDataError(
                f"Expected the state of a bandit with maximize={self.maximize}, but it "
                f"is that of one with maximize={state['maximize']}."
            )

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> None:
        """Restore a state: everything is read before anything changes."""

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; picks go on up to rounding.

        Raises:
            InputDataError: If the state is that of another kind of bandit, of other
                arms or another box, or does not fit its options. Nothing has changed
                then.
        """
        try:
            self._check_state(state)
            self._load(state)
        except Exception as error:  # a strange state may raise anything
            raise InputDataError(
                f"The state does not fit this {type(self).__name__} and its options: "
                f"{error}"
            ) from error
        self._preview = None

    @locked
    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the state to a file; a crash leaves the old one or the new one.

        When it is next needed, the posterior is recomputed, as after :meth:`load`, so
        that this bandit and one that loads the file go on alike to the last bit. What a
        process that was killed left unfinished beside the file, the next save to it
        removes.

        Args:
            path: The file; its folder must exist.
            overwrite: Whether to replace a file that somebody else has saved since this
                bandit loaded or saved it.

        Raises:
            InputDataError: If somebody has and ``overwrite`` is False. The file stays
                as it is.
            OSError: If the file cannot be written.
        """
        path = Path(path).resolve()
        expected = None if overwrite else self._known_files.get(path)
        self._surrogate.mark_stale()
        self._preview = None
        line = save_state(self.state_dict(), path, expected)
        self._known_files = {**self._known_files, path: line}

    @locked
    def load(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        """Restore what :meth:`save` wrote, in a bandit of the same arms and options.

        Args:
            path: The file.
            max_bytes: The largest file that is read. Reading takes at most eight times
                as much memory and 16 MiB.

        Raises:
            FileNotFoundError: If there is no such file.
            InputDataError: If the file is damaged or none of ours, or its state does
                not fit. Nothing has changed then.
        """
        line, state = load_state(path, max_bytes)
        self.load_state_dict(state)
        self._known_files = {**self._known_files, Path(path).resolve(): line}
