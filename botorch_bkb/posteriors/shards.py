"""Shards: the numbers of all arms, in ranges of whole blocks.

A shard is an object in this process or in one of Ray's workers. Its methods are passed
as ``ArmShard.rebuild``, so that their arguments and answers are typed.
:meth:`Shards.change` calls a method that changes a shard, on all shards alike.
:meth:`Shards.ask` calls one that changes nothing. Arguments and answers are small.

Shards are made of whole blocks of arms, and passes go over chunks that never cross a
block. So numbers depend on the number of shards and their places up to floating-point
rounding, and choices are the same unless two arms are equal up to rounding.
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


def arm_shards(arms: Tensor, covar_module: Kernel) -> Shards[ArmShard]:
    """Return the shards of arms: one in this process, or those of Ray's workers."""
    if isinstance(arms, StoredArms) and arms.workers is not None:
        from botorch_bkb.posteriors.ray_shards import shards_on_ray

        return shards_on_ray(arms, arms.workers, covar_module, BLOCK_SIZE)
    limits = plan_shards(len(arms), 1, BLOCK_SIZE)
    parts = [
        ArmShard(arms, start, stop, covar_module, BLOCK_SIZE)
        for start, stop in pairwise(limits)
    ]
    return LocalShards(parts, limits)


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
