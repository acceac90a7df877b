"""Seeded draws, in double precision on the generator's own device.

So they depend neither on the arms' device and dtype nor on the user's default dtype. A
bandit keeps a seed, not a generator: its random numbers are a function of the seed, of
their purpose, and of a count (:func:`seeded_generator`) or of the arm
(:func:`keyed_uniforms`).
"""

from __future__ import annotations

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.checks import check_count, check_generator


# Of SplitMix64: the step of its state, and shifts and factors that mix its bits.
STEP = 0x9E3779B97F4A7C15
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))

# What a bandit draws for: the inducing points of an update, the choices of an ask, what
# a batch may bring.
UPDATES, ASKS, PROGRESS = range(3)


def as_generator(
    generator: torch.Generator | None, seed: int | None = None
) -> torch.Generator:
    """Return a generator, or a new one of a seed, or for None of a random one."""
    check_generator(generator)
    if seed is not None:
        if generator is not None:
            raise InputDataError("Expected `generator` or `seed`, but got both.")
        return torch.Generator().manual_seed(check_count("seed", seed, 2**63 - 1))
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return generator


def draw_normals(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers."""
    return torch.randn(
        shape, generator=generator, device=generator.device, dtype=torch.float64
    )


def draw_uniforms(
    size: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Draw uniform numbers in ``[0, 1)``."""
    return torch.rand(size, generator=generator, device=generator.device, dtype=dtype)


def draw_integers(limit: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``size`` uniform integers from 0 to ``limit - 1``."""
    return torch.randint(limit, (size,), generator=generator, device=generator.device)


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed for what cannot take a generator."""
    return int(draw_integers(2**31 - 1, 1, generator))


def seed_of(generator: torch.Generator) -> int:
    """Return 64 random bits of a generator, which stays in its state."""
    bits = torch.randint(
        -(2**63),
        2**63 - 1,
        (1,),
        generator=generator.clone_state(),
        device=generator.device,
    )
    return int(bits) + 2**63


def seeded_generator(seed: int, purpose: int, count: int) -> torch.Generator:
    """Return the generator of one update or one ask of a bandit, on the processor.

    Its seed is a hash of the bandit's seed, the purpose (``UPDATES``, ``ASKS`` or
    ``PROGRESS``) and the count of updates or asks before.
    """
    hashed = np.random.SeedSequence([seed, purpose, count])
    return torch.Generator().manual_seed(int(hashed.generate_state(1, np.uint64)[0]))


def opening_number(seed: int, count: int) -> int:
    """Return 32 random bits, which choose the arm of an ask before all results.

    At count 0, the count of asks before, their remainder is what ``torch.randint``
    draws, on the processor, from the generator of the seed.
    """
    return (seed + count * STEP) % 2**64 >> 32


def keyed_uniforms(seed: int, keys: Tensor) -> Tensor:
    """Return a uniform number in ``(0, 1)`` for each key, the same at every call.

    The output of SplitMix64 [steele2014]_ after ``key`` others, from the state
    ``seed``. The arithmetic is that of 64-bit integers, the same on every machine. Keys
    are not negative. The numbers are doubles on the processor.
    """
    bits = (keys.cpu().numpy().astype(np.uint64) + np.uint64(1)) * np.uint64(STEP)
    bits += np.uint64(seed)
    for shift, factor in MIXING:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    # The middles of 2^52 intervals, which doubles hold exactly: never 0 or 1.
    return torch.from_numpy(((bits >> np.uint64(12)).astype(float) + 0.5) * 2.0**-52)
