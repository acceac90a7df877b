"""The benchmark of a node in Ax: what chance would reach."""

import itertools

import pytest
import torch

from benchmarks.practice_ax import expected_loss_of_uniform, FUNCTIONS, losses_of


@pytest.mark.parametrize("num_trials", [1, 2, 4])
def test_chance_is_the_mean_over_all_ways_to_draw(num_trials):
    losses = torch.tensor([3.0, 0.0, 1.5, 1.5, 7.0], dtype=torch.double)
    ways = itertools.product(losses.tolist(), repeat=num_trials)
    expected = sum(min(way) for way in ways) / len(losses) ** num_trials
    assert expected_loss_of_uniform(losses, num_trials) == pytest.approx(expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_losses_are_in_deviations_above_the_best_choice(function):
    losses = losses_of(function)
    assert losses.shape == (10 * 12 * 8 * 5,)
    assert losses.min() == 0
    assert losses.std().item() == pytest.approx(1.0)
