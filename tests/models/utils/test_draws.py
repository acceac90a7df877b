"""What a seed draws does not depend on the user's settings."""

import pytest
import torch

from botorch_bkb.models.utils.draws import (
    ASKS,
    draw_integers,
    draw_normals,
    draw_seed,
    draw_uniforms,
    keyed_uniforms,
    opening_number,
    seed_of,
    seeded_generator,
    UPDATES,
)
from tests.reference import coupled_uniforms, splitmix64


def drawn(seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [
        draw_normals(4, 2, generator=generator),
        draw_uniforms(5, generator),
        draw_integers(7, 6, generator),
        draw_seed(generator),
    ]


def test_draws_do_not_depend_on_the_default_dtype():
    expected = drawn()
    torch.set_default_dtype(torch.float64)
    try:
        found = drawn()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    assert [len(draw) for draw in expected[:3]] == [4, 5, 6]


@pytest.mark.parametrize("limit", [1, 7, 1000, 10**7])
def test_a_seed_opens_with_what_its_generator_draws_next(limit):
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        torch.rand(seed % 7, generator=generator)
        before = generator.get_state()
        found = opening_number(seed_of(generator), 0) % limit
        assert torch.equal(generator.get_state(), before)
        assert found == int(draw_integers(limit, 1, generator))


def test_generators_of_purposes_and_counts_are_pinned_and_differ():
    """Saved bandits count on them."""
    draws = {
        (seed, purpose, count): draw_integers(
            10**6, 1, seeded_generator(seed, purpose, count)
        ).item()
        for seed in (0, 1, 2**64 - 1)
        for purpose in (UPDATES, ASKS)
        for count in (0, 1, 10**6)
    }
    assert len(set(draws.values())) == 18
    assert (draws[0, UPDATES, 0], draws[2**64 - 1, ASKS, 10**6]) == PINNED_DRAWS


PINNED_DRAWS = (381676, 975660)
# The first outputs that several libraries publish as their test of SplitMix64.
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_the_reference_is_the_published_generator():
    assert splitmix64(1234567, 5) == PUBLISHED


@pytest.mark.parametrize("seed", [0, 1, 1234567, 2**31 - 2, 2**63 - 1])
def test_keyed_numbers_are_those_of_the_generator_in_any_order(seed):
    expected = coupled_uniforms(seed, 300)
    keys = torch.tensor([7, 0, 299, 7, 150])
    assert keyed_uniforms(seed, keys).tolist() == expected[keys].tolist()
    everything = keyed_uniforms(seed, torch.arange(300))
    assert everything.dtype == torch.double
    assert everything.tolist() == expected.tolist()
    assert keyed_uniforms(seed, keys[:0]).tolist() == []


def test_keyed_numbers_are_never_zero_or_one(monkeypatch):
    """Not even of the extreme outputs: an arm of probability one is always kept."""
    numbers = keyed_uniforms(0, torch.arange(10**5))
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    monkeypatch.setattr("botorch_bkb.models.utils.draws.MIXING", ())
    monkeypatch.setattr("botorch_bkb.models.utils.draws.STEP", 2**64 - 1)
    least, most = keyed_uniforms(1, torch.tensor([0, 1])).tolist()
    assert 0 < least < 1e-15
    assert 1 - 1e-15 < most < 1
