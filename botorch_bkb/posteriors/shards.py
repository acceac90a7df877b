"""Storage of per-arm numbers, in shards of whole blocks of arms.

A shard is an object in this process or in one of Ray's workers. Its methods are passed
as ``ArmShard.moments``, so that their arguments and answers are typed.
:meth:`Shards.change` calls a method that changes a shard, on all shards alike.
:meth:`Shards.ask` calls one that changes nothing. Arguments and answers are small.

Shards are made of whole blocks of arms, passes go over chunks that never cross a block,
and no number depends on more than its own chunk. So how many shards there are, and
where, changes no bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple

import torch
from torch import Tensor
from typing_extensions import override


# Arms of a block. Chunks are of a power of two arms, which divides it.
BLOCK_SIZE = 2**16


S = TypeVar("S")
F = TypeVar("F")
T = TypeVar("T")
Args = TypeVarTuple("Args")


class PerArm(NamedTuple):
    """An argument of one number per arm, of which every shard gets its part.

    Attributes:
        values: The numbers of all arms, or of those of the shard; or None.
    """

    values: Tensor | None


class Ranked(NamedTuple):
    """Arms in order of their values, largest first, the lowest index among ties."""

    values: Tensor
    arms: Tensor

    @classmethod
    def merged(cls, parts: Sequence[Ranked], size: int) -> Ranked:
        """Return the first of several lists, each over higher indices than before."""
        if len(parts) == 1:
            return parts[0]
        values = torch.cat([part.values for part in parts])
        arms = torch.cat([part.arms for part in parts])
        values, order = values.sort(descending=True, stable=True)
        return cls(values[:size], arms[order[:size]])


def largest(values: Tensor, size: int) -> Ranked:
    """Return the largest values and where they stand, the lowest index among ties.

    NaN is larger than any number.
    """
    size = min(size, len(values))
    if not size:
        return Ranked(values[:0], torch.arange(0, device=values.device))
    if size == 1:  # `max` returns the first of the largest
        return Ranked(*values.max(dim=0, keepdim=True))
    least = values.topk(size).values[-1:]
    above = (values.isnan() | (values > least)).nonzero().squeeze(-1)[:size]
    ties = (values == least).nonzero().squeeze(-1)[: size - len(above)]
    positions = torch.cat([above, ties]).sort().values
    found, order = values[positions].sort(descending=True, stable=True)
    return Ranked(found, positions[order])


def plan_shards(num_arms: int, num_shards: int, block_size: int) -> list[int]:
    """Return where shards start, and the number of arms: whole blocks each, or none."""
    num_blocks = -(-num_arms // block_size)
    num_shards = max(1, min(num_shards, num_blocks))
    starts = [k * num_blocks // num_shards * block_size for k in range(num_shards)]
    return [*starts, num_arms]


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
    def ask_one(self, shard: int, method: Callable[[S, *Args], T], *args: *Args) -> T:
        """Return the answer of one shard."""

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
        """Return the rows of a table for a few arms, in their order."""
        if len(self.limits) == 2:
            return self.ask_one(0, method, indices, *args)
        inner = torch.tensor(self.limits[1:-1], device=indices.device)
        shard = torch.bucketize(indices, inner, right=True)
        parts, places = [], []
        for number in shard.unique().tolist() or [0]:
            place = (shard == number).nonzero().squeeze(-1)
            parts.append(self.ask_one(number, method, indices[place], *args))
            places.append(place)
        return torch.cat(parts)[torch.cat(places).argsort()]

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
        self.ask(method, *args)

    @override
    def ask(self, method: Callable[[S, *Args], T], *args: *Args) -> list[T]:
        return [self.ask_one(shard, method, *args) for shard in range(len(self.parts))]

    @override
    def ask_one(self, shard: int, method: Callable[[S, *Args], T], *args: *Args) -> T:
        own = part_of(args, *self.limits[shard : shard + 2])
        return method(self.parts[shard], *own)

    @override
    def fork(self, kind: Callable[[S, *Args], F], *args: *Args) -> LocalShards[F]:
        return LocalShards(self.ask(kind, *args), self.limits)


def part_of(args: Any, start: int, stop: int) -> Any:
    """Return what one shard gets of the arguments of all."""
    return tuple(
        PerArm(arg.values[start:stop])
        if isinstance(arg, PerArm) and arg.values is not None
        else arg
        for arg in args
    )
