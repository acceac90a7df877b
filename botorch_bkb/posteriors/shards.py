"""Where what there is per arm lives: in shards of whole blocks of arms.

A shard is told changes (:meth:`Shards.change`), which are small and the same for all
shards, and answers questions (:meth:`Shards.ask`), whose answers are small and merged
by who asks. Its state is a function of its arms and of the changes in their order;
questions change nothing.

Shards are made of whole blocks of arms, passes go over chunks that never cross a block,
and no number depends on more than its own chunk. So how many shards there are, and
where, changes no bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override


# Arms of a block. Chunks are of a power of two arms, which divides it.
BLOCK_SIZE = 2**16


class PerArm(NamedTuple):
    """An argument of one number per arm, of which every shard gets its part."""

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


class Shards(ABC):
    """The parts of something that has numbers of all arms.

    Attributes:
        limits: Where the shards start, and the number of arms.
    """

    limits: list[int]

    @abstractmethod
    def change(self, name: str, *args: Any) -> None:
        """Call a method of every shard that changes it."""

    @abstractmethod
    def ask(self, name: str, *args: Any) -> list[Any]:
        """Return what a method of every shard answers, in their order."""

    @abstractmethod
    def ask_one(self, shard: int, name: str, *args: Any) -> Any:
        """Return what a method of one shard answers."""

    @abstractmethod
    def fork(self, kind: Callable[..., Any], *args: Any) -> Shards:
        """Return ``kind(shard, *args)`` of every shard.

        While they are used, nothing may change these.
        """

    @property
    def num_arms(self) -> int:
        """A."""
        return self.limits[-1]

    def ask_of(self, name: str, indices: Tensor, *args: Any) -> Tensor:
        """Return the rows of a table that stand for a few arms, in their order."""
        if len(self.limits) == 2:
            rows: Tensor = self.ask_one(0, name, indices, *args)
            return rows
        inner = torch.tensor(self.limits[1:-1], device=indices.device)
        shard = torch.bucketize(indices, inner, right=True)
        parts, places = [], []
        for number in shard.unique().tolist() or [0]:
            place = (shard == number).nonzero().squeeze(-1)
            parts.append(self.ask_one(number, name, indices[place], *args))
            places.append(place)
        return torch.cat(parts)[torch.cat(places).argsort()]

    def column(self, name: str) -> Tensor:
        """Return a number of every arm."""
        parts = self.ask("column", name)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def largest(self, name: str, size: int, *args: Any) -> Ranked:
        """Return the largest values that shards name, and their arms."""
        return Ranked.merged(self.ask(name, size, *args), size)


class LocalShards(Shards):
    """Shards in this process.

    Args:
        parts: The shards.
        limits: Where they start, and the number of arms.
    """

    def __init__(self, parts: list[Any], limits: list[int]) -> None:
        self.parts = parts
        self.limits = limits

    @override
    def change(self, name: str, *args: Any) -> None:
        self.ask(name, *args)

    @override
    def ask(self, name: str, *args: Any) -> list[Any]:
        return [self.ask_one(shard, name, *args) for shard in range(len(self.parts))]

    @override
    def ask_one(self, shard: int, name: str, *args: Any) -> Any:
        args = part_of(args, *self.limits[shard : shard + 2])
        return getattr(self.parts[shard], name)(*args)

    @override
    def fork(self, kind: Callable[..., Any], *args: Any) -> LocalShards:
        forks = [
            kind(part, *part_of(args, *self.limits[shard : shard + 2]))
            for shard, part in enumerate(self.parts)
        ]
        return LocalShards(forks, self.limits)


def part_of(args: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    """Return what one shard gets of the arguments of all."""
    return tuple(
        (None if arg.values is None else arg.values[start:stop])
        if isinstance(arg, PerArm)
        else arg
        for arg in args
    )
