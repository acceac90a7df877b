"""Shards: the numbers of all arms, in ranges of whole blocks, and their cache.

A shard is an object in this process or in one of Ray's workers. Its methods are passed
as ``ArmShard.rebuild``, so that their arguments and answers are typed.
:meth:`Shards.change` calls a method that changes a shard, on all shards alike.
:meth:`Shards.ask` calls one that changes nothing. Arguments and answers are small.

Shards are made of whole blocks of arms, passes go over chunks that never cross a block,
and no number depends on more than its own chunk. So the number of shards and their
places change no bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Generic, TypeVar, TypeVarTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import StoredArms
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors.arm_shard import ArmShard


# Arms of a block. Chunks are of a power of two arms, which divides it.
BLOCK_SIZE = 2**16
# Below this many bytes of features, waking and joining threads for the many small
# operations of an update costs more than they save.
MIN_SHARED_BYTES = 2**24


S = TypeVar("S")
F = TypeVar("F")
T = TypeVar("T")
Args = TypeVarTuple("Args")


def plan_shards(num_arms: int, num_shards: int, block_size: int) -> list[int]:
    """Return where shards start, and the number of arms: whole blocks each, or none."""
    num_blocks = math.ceil(num_arms / block_size)
    size = math.ceil(num_blocks / num_shards) * block_size
    return [*range(0, num_arms, size), num_arms]


class Shards(ABC, Generic[S]):
    """Objects that hold the numbers of all arms, one after the other.

    Attributes:
        limits: Where the shards start, and the number of arms.
    """

    limits: list[int]

    @abstractmethod
    def change(self, method: Callable[[S, *Args], None], *args: *Args) -> None:
        """Call a method that changes a shard, on all shards."""

    @abstractmethod
    def ask(self, method: Callable[[S, *Args], T], *args: *Args) -> list[T]:
        """Return the answers of all shards, in their order."""

    @abstractmethod
    def fork(self, kind: Callable[[S, *Args], F], *args: *Args) -> Shards[F]:
        """Return ``kind(shard, *args)`` of every shard.

        While they are used, nothing may change these.
        """

    def ask_of(
        self,
        method: Callable[[S, Tensor, *Args], Tensor],
        indices: Tensor,
        *args: *Args,
    ) -> Tensor:
        """Return the rows of a table for a few arms, in their order.

        Args:
            method: Returns the rows of those of the arms that are in a shard.
            indices: The arms.
            *args: Other arguments of the method.
        """
        parts = self.ask(method, indices, *args)
        if len(parts) == 1:
            return parts[0]
        inner = torch.tensor(self.limits[1:-1], device=indices.device)
        shard = torch.bucketize(indices, inner, right=True)
        return torch.cat(parts)[shard.argsort(stable=True).argsort()]

    def column(self, method: Callable[[S], Tensor]) -> Tensor:
        """Return a number of every arm."""
        parts = self.ask(method)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class LocalShards(Shards[S]):
    """Shards in this process.

    Args:
        parts: The shards.
        limits: Where they start, and the number of arms.
    """

    def __init__(self, parts: list[S], limits: list[int]) -> None:
        self.parts = parts
        self.limits = limits

    @override
    def change(self, method: Callable[[S, *Args], None], *args: *Args) -> None:
        for part in self.parts:
            method(part, *args)

    @override
    def ask(self, method: Callable[[S, *Args], T], *args: *Args) -> list[T]:
        return [method(part, *args) for part in self.parts]

    @override
    def fork(self, kind: Callable[[S, *Args], F], *args: *Args) -> LocalShards[F]:
        return LocalShards(self.ask(kind, *args), self.limits)


class ArmCache:
    """Cached features and kernel rows of all arms, within a byte budget.

    Features are kept if they fit half of the budget. The kernel rows of arms that were
    ever inducing are kept as far as they fit a third of it, since they take half as
    much again while they move to more room.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel.
        max_bytes: The budget.

    Attributes:
        shards: The shards.
        width: How many features the shards have room for; 0 if they keep none.
    """

    shards: Shards[ArmShard]

    def __init__(self, arms: Tensor, covar_module: Kernel, max_bytes: int) -> None:
        self.arms = arms
        self.covar_module = covar_module
        self.max_bytes = max_bytes
        self.column_bytes = len(arms) * arms.element_size()
        self.max_rows = max_bytes // 3 // max(self.column_bytes, 1)
        self.width = 0
        # The arms whose kernel rows are kept, in their order.
        self._held = torch.empty(0, dtype=torch.long, device=arms.device)
        if isinstance(arms, StoredArms) and arms.workers is not None:
            from botorch_bkb.posteriors.ray_shards import shards_on_ray

            self.shards = shards_on_ray(
                arms, arms.workers, covar_module, self.max_rows, BLOCK_SIZE
            )
            return
        limits = plan_shards(len(arms), 1, BLOCK_SIZE)
        parts = [
            ArmShard(arms, start, stop, covar_module, self.max_rows, BLOCK_SIZE)
            for start, stop in pairwise(limits)
        ]
        self.shards = LocalShards(parts, limits)

    def reserve(self, size: int) -> int:
        """Return the room of the shards for so many features and some more."""
        most = self.max_bytes // (2 * self.column_bytes)
        room = min(size + max(32, size // 8), most) if 0 < size <= most else 0
        if room > self.width or room == 0:
            self.width = room
        return self.width

    def features(self, indices: Tensor) -> Tensor:
        """Return the kept ``M x k`` features of a few arms."""
        return self.shards.ask_of(ArmShard.features, indices).mT

    def solved_features(self, L: Tensor, basis: Tensor, indices: Tensor) -> Tensor:
        """Compute the ``M x k`` features of a few arms, given the basis arms."""
        row = positions_in(basis, indices)
        is_basis = row >= 0
        Z = L.new_empty(len(L), len(indices))
        Z[:, is_basis] = L[row[is_basis]].mT
        K = self.prior_rows(basis, indices[~is_basis])
        Z[:, ~is_basis] = torch.linalg.solve_triangular(L, K, upper=False)
        return Z

    def hold(self, indices: Tensor) -> None:
        """Evaluate and keep the kernel rows of some arms, if the budget allows it."""
        missing = indices[positions_in(self._held, indices) < 0]
        if len(missing) and len(self._held) + len(missing) <= self.max_rows:
            self.shards.change(ArmShard.add_rows, self.arms[missing])
            self._held = torch.cat([self._held, missing])

    def slots(self, indices: Tensor) -> Tensor | None:
        """Return which kernel rows are those of some arms; None if one is missing."""
        slots = positions_in(self._held, indices)
        return slots if (slots >= 0).all() else None

    def prior_rows(self, indices: Tensor, arms: Tensor) -> Tensor:
        """Return the prior covariances of inducing arms with a few."""
        slots = self.slots(indices)
        if slots is None:
            return self.prior_covariance(indices, arms)
        return self.shards.ask_of(ArmShard.held_rows, arms, slots).mT

    @torch.no_grad()
    def prior_covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Evaluate the prior covariances between two lists of arms."""
        arms = self.arms
        covariance = dense_covariance(self.covar_module, arms[left], arms[right])
        return covariance.to(arms)  # kernels may not keep the dtype


@contextmanager
def threads_for(num_bytes: int) -> Iterator[None]:
    """Limit PyTorch to one thread for a while, if the work is small.

    Args:
        num_bytes: How much data the work passes over.
    """
    num_threads = torch.get_num_threads()
    if num_threads == 1 or num_bytes >= MIN_SHARED_BYTES:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
