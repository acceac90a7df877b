"""Seeded draws: the one place of the package where a generator is asked.

In double precision, on the generator's own device: what a seed draws depends neither on
the arms' device and dtype nor on the user's default dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_generator(generator: torch.Generator | None) -> torch.Generator:
    """Return a generator, or for None a new one with a random seed."""
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return generator


def draw_normals(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers."""
    return torch.randn(
        shape, generator=generator, device=generator.device, dtype=torch.float64
    )


def draw_uniforms(size: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in ``[0, 1)``."""
    return torch.rand(
        size, generator=generator, device=generator.device, dtype=torch.float64
    )


def draw_integers(limit: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``size`` uniform integers from 0 to ``limit - 1``."""
    return torch.randint(limit, (size,), generator=generator, device=generator.device)


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed for what cannot take a generator."""
    return int(draw_integers(2**31 - 1, 1, generator))
