"""What a seed draws does not depend on the user's settings."""

import torch

from botorch_bkb.models.utils.draws import (
    as_generator,
    draw_integers,
    draw_normals,
    draw_seed,
    draw_uniforms,
)


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


def test_integers_and_seeds_are_in_their_range():
    generator = torch.Generator().manual_seed(0)
    assert draw_integers(3, 200, generator).unique().tolist() == [0, 1, 2]
    seeds = [draw_seed(generator) for _ in range(200)]
    assert 0 <= min(seeds) < max(seeds) < 2**31 - 1


def test_a_generator_stays_and_a_new_one_has_a_random_seed():
    generator = torch.Generator()
    assert as_generator(generator) is generator
    assert as_generator(None).initial_seed() != as_generator(None).initial_seed()
