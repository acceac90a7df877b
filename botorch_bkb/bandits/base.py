"""What bandits over arms and over a box share: results, errors, states and files."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Any, ParamSpec, Protocol, Self, TypeVar

import torch
from botorch.exceptions.errors import (
    BotorchError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.observations import Observations
from botorch_bkb.bandits.storage import load_state, MAX_BYTES, save_state
from botorch_bkb.bandits.surrogates import Surrogate
from botorch_bkb.bandits.warping import LogWarp
from botorch_bkb.checks import check_one, check_time, check_truth


P = ParamSpec("P")
R = TypeVar("R")


class Array(Protocol):
    """A tensor, a NumPy array, or a table or a column of pandas."""

    def __array__(self) -> Any: ...


Values = Array | Sequence[Any]
# A name for all results, or one for each.
Labels = str | Values | None


def locked(method: Callable[P, R]) -> Callable[P, R]:
    """Run one such method of a bandit at a time; an error undoes what it changed.

    The method may assign attributes, and change the observations, which are a copy.
    """

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        bandit: Any = args[0]
        with bandit.lock:
            undo = bandit._begin()
            try:
                return method(*args, **options)
            except BaseException:  # an interrupt as well
                undo()
                raise

    return call


class SavedBandit(ABC):
    """What is locked, copied, pickled, and kept in a file.

    One thread at a time is in the public methods (:func:`locked`). A copy is
    independent: it has a lock and surrogates of its own. So has an unpickled bandit.

    Attributes:
        lock: Hold it (``with bandit.lock:``) if several calls belong together, or while
            the object is copied.
        num_batches: The number of asks.
    """

    lock: RLock
    num_batches: int
    # The first lines of files as this bandit last read or wrote them.
    _known_files: dict[Path, bytes]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make the lock before any constructor runs: it may call public methods."""
        self = super().__new__(cls)
        self.lock, self._known_files = RLock(), {}
        return self

    @override
    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        del state["lock"]
        return state

    @abstractmethod
    def _begin(self) -> Callable[[], None]:
        """Return what undoes the changes from here on, see :func:`locked`."""

    @abstractmethod
    def _forget_posteriors(self) -> None:
        """Compute posteriors of the state when they are next needed."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next ``ask`` depends on, ``O(pulls)`` numbers.

        Load it into a bandit constructed with the same arms or box, and options; arms
        that were added later are part of it.
        """

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return the part of the state that says to which bandits it belongs."""

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; later picks agree up to rounding.

        Raises:
            InputDataError: If the state is that of another kind of bandit, of other
                arms or another box, or does not fit its options. Nothing has changed
                then.
        """
        try:
            identity = self._identity()
            state = {"block_size": identity.get("block_size")} | state  # 1.0 has none
            for name, own in identity.items():
                if state[name] != own:
                    raise InputDataError(
                        f"expected {name}={own}, but it has {name}={state[name]}. "
                        "Construct the bandit that was saved"
                    )
            self._load(state)
        except Exception as error:  # a strange state may raise anything
            is_ours = isinstance(error, BotorchError)
            strange = f"expected what `state_dict` returned, but it is not ({error!r})."
            raise InputDataError(
                f"The state does not fit this {type(self).__name__} and its options: "
                f"{error if is_ours else strange}"
            ) from error

    @locked
    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the state to a file; a crash leaves the old one or the new one.

        When it is next needed, the posterior is recomputed, as after :meth:`load`, so
        that this bandit and one that loads the file choose the same arms.
        Unfinished files of killed processes are removed by the next save.

        Args:
            path: The file; its folder must exist.
            overwrite: Whether to replace a file that this bandit neither loaded nor
                saved, or that another one has saved since.

        Raises:
            InputDataError: If there is such a file and ``overwrite`` is False. The file
                is unchanged.
            OSError: If the file cannot be written.
        """
        path = Path(path).resolve()
        is_free = check_truth("overwrite", overwrite)
        expected = None if is_free else self._known_files.get(path, b"")
        self._forget_posteriors()
        line = save_state(self.state_dict(), path, expected)
        self._known_files = {**self._known_files, path: line}

    @locked
    def load(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        """Restore what :meth:`save` wrote, in a bandit of the same arms and options.

        Args:
            path: The file.
            max_bytes: The largest file that is read.

        Raises:
            FileNotFoundError: If there is no such file.
            InputDataError: If the file is damaged or none of ours, or its state does
                not fit. Nothing has changed then.
        """
        line, state = load_state(path, max_bytes)
        self.load_state_dict(state)
        self._known_files = {**self._known_files, Path(path).resolve(): line}


class Bandit(SavedBandit):
    """Observations and a surrogate that learns from them, kept in a file.

    Attributes:
        maximize: Whether large rewards are good.
        takes_noise: Whether results may have a ``noise_variance`` of their own, and
            be of groups, controls and earlier campaigns.
    """

    maximize: bool
    takes_noise = False
    _pulled = "arms"
    _observations: Observations
    # The surrogate of the last ask.
    _surrogate: Surrogate

    @override
    def _begin(self) -> Callable[[], None]:
        before = vars(self).copy()
        self._observations = copy(self._observations)
        return lambda: vars(self).update(before)

    @override
    def _identity(self) -> dict[str, Any]:
        own = {"bandit": type(self).__name__, "maximize": self.maximize}
        return own | {"block_size": self._surrogate.block_size}

    @override
    def _forget_posteriors(self) -> None:
        self._surrogate.restore(self._surrogate.state)

    @override
    def __repr__(self) -> str:
        fitter, pulls = self._surrogate.fitter, self._observations
        learned = ["kernel"] * fitter.learns_kernel
        learned += ["noise"] * (fitter.given_noise is None)
        learned += ["drift"] * (getattr(fitter, "given_rate", 0.0) is None)
        goal = f", goal={self.goal!r}" if hasattr(self, "goal") else ""
        return (
            f"{type(self).__name__}({pulls.num_arms:,} {self._pulled}, "
            f"{pulls.num_pulls:,} results, {len(pulls.pending):,} pending, "
            f"maximize={self.maximize}{goal}, "
            f"learns {' and '.join(learned) or 'nothing'})"
        )

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        with self.lock:
            vars(other).update(self.__getstate__())
            # An update changes the posterior in place, so the copy computes its own.
            other._surrogate = copy(self._surrogate)
            other._forget_posteriors()
        return other

    @property
    def num_pulls(self) -> int:
        """The number of observations."""
        return self._observations.num_pulls

    @property
    def noise_variance(self) -> float:
        """Lambda at the last ask, in the original scale.

        The noise variance of good rewards if poor ones are warped.
        """
        return self._surrogate.fit.original_noise_variance

    @property
    def warp(self) -> LogWarp | None:
        """The transformation of rewards (negated if minimized) at the last ask.

        None if rewards were not transformed, as with a given kernel.
        """
        return self._surrogate.fit.units.warp

    @property
    def covar_module(self) -> Kernel:
        """The kernel, given or fitted at the last ask, in its own units."""
        return self._surrogate.fit.covar_module

    @property
    def drifts(self) -> bool:
        """Whether pulls have times."""
        return self._surrogate.drifts

    @property
    def decision_time(self) -> float:
        """The time of the next decision, unless ``ask`` names another."""
        return self._observations.last_time + 1.0

    @locked
    def tell(
        self,
        indices: Values,
        rewards: Values,
        pull_ids: Values | None = None,
        *,
        noise_variance: Values | float | None = None,
        time: float | None = None,
        group: Labels = None,
    ) -> None:
        """Record rewards of pending pulls, in any order, all of them or some.

        Args:
            indices: The ``q`` arms; of a box the ``q x d`` points, exactly as asked.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending``. If None, the oldest
                pending pulls of those arms.
            noise_variance: For :class:`~botorch_bkb.GPBandit`, if the objective does
                not drift: the variance of each reward's noise, or one for all, in
                squared units of the reward; ``s^2 / n`` for a mean of ``n``
                measurements of variance ``s^2``. None or NaN: that of the bandit.
            time: When they were measured, if the objective drifts; if None, when they
                were asked for. Rewards may come in any order of their times.
            group: For :class:`~botorch_bkb.GPBandit`, if the objective does not drift:
                the plate, day or device of each reward, or one for all, which shifts
                its results by an unknown offset. None or "": no offset. See
                :meth:`GPBandit.groups <botorch_bkb.GPBandit.groups>`.

        Raises:
            BotorchTensorDimensionError: If the shapes do not fit.
            InputDataError: If a reward is not finite, an arm is unknown, a pull is not
                pending, a variance is not positive and finite, or ``time`` is not
                finite. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift,
                or a ``noise_variance`` or ``group`` that this bandit does not take.
        """
        time = self._checked_time(time, noise_variance, group)
        self._observations.tell(indices, rewards, pull_ids, time, noise_variance, group)

    @locked
    def add_observations(
        self,
        indices: Values | None,
        rewards: Values,
        *,
        noise_variance: Values | float | None = None,
        time: float | None = None,
        group: Labels = None,
        campaign: Labels = None,
        control: Labels = None,
        arms: Array | None = None,
    ) -> None:
        """Record results that were never asked for; they settle no pending pull.

        The other arguments and errors are those of :meth:`tell`, and arms may repeat.
        The default ``time`` is the last one known, of an ask or a reward.

        Args:
            indices: The ``q`` arms; None with ``control`` or ``arms``.
            rewards: Their ``q`` rewards.
            noise_variance: See :meth:`tell`.
            time: See :meth:`tell`.
            group: See :meth:`tell`. Groups of different campaigns are different groups.
            campaign: The earlier campaign of each result, or one for all: it was
                measured under slightly different conditions. It informs predictions,
                and is no measurement of this campaign, not even for ``counts``. None or
                "": this campaign.
            control: The name of the sample of each result, or one for all, which is not
                an arm and is measured in several groups.
            arms: A ``q x d`` tensor or frame of the features of the measured arms. Rows
                that the table lacks join it as retired arms. Over a product space, a
                ``q x n`` tensor of their values' positions in the lists.
        """
        time = self._checked_time(time, noise_variance, group, campaign, control)
        check_one(indices=indices, control=control, arms=arms)
        if arms is not None:
            indices = self._joined(arms)
        self._observations.add(
            indices,
            rewards,
            self._scores,
            time,
            noise_variance,
            group,
            campaign,
            control,
        )

    @locked
    def fail(
        self,
        indices: Values,
        pull_ids: Values | None = None,
    ) -> None:
        """Release pending pulls that have failed; arguments as in ``tell``."""
        self._observations.fail(indices, pull_ids)

    def _scores(self, indices: Tensor) -> Tensor:
        """Return the present leverage scores of arms; 0 if no rule needs them."""
        return torch.zeros_like(indices)

    def _joined(self, arms: Array) -> Tensor:
        """Return the indices of measured arms, which join the table."""
        raise UnsupportedError("Expected points in place of `arms` over a box.")

    def _checked_time(
        self,
        time: float | None,
        noise_variance: object = None,
        *labels: object,
        earliest: float = -math.inf,
    ) -> float | None:
        """Return a user's time; raise if pulls have no times, noise, or labels."""
        if noise_variance is not None and not self.takes_noise:
            raise UnsupportedError(
                "Expected no `noise_variance` of results, since all results of this "
                f"{type(self).__name__} have the same noise. Leave it out, or use a "
                "GPBandit on an objective that does not drift."
            )
        if any(each is not None for each in labels) and not self.takes_noise:
            raise UnsupportedError(
                "Expected no `group`, `campaign` or `control` of results, since this "
                f"{type(self).__name__} has no offsets: they are modelled by a "
                "GPBandit over arms whose objective does not drift. Leave them out, or "
                "use one."
            )
        if time is None or self.drifts:
            return None if time is None else check_time(time, earliest)
        raise UnsupportedError(
            "Expected no `time`, since the objective of this "
            f"{type(self).__name__} does not drift. Leave it out, or pass "
            "`forgetting_rate` to a GPBandit."
        )

    def _predictor(self) -> Any:
        """Return the surrogate that knows all observations; no state changes.

        It has the hyperparameters and, if these are learned, the inducing points that
        the next ask will have.
        """
        return self._surrogate.preview(self._observations, self.decision_time)

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "observations": self._observations.state_dict(),
            "num_batches": self.num_batches,
            **self._surrogate.state_dict(),
        }
