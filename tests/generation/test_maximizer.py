"""The distribution of the maximizer, and the rule that stops on it."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.generation import (
    BoxMaximizerDistribution,
    MaximizerDistribution,
    VarianceStoppingRule,
)
from tests.helpers import seeded


ARMS = torch.linspace(0, 1, 6, dtype=torch.double).unsqueeze(-1)


def test_numbers_of_a_small_distribution():
    distribution = MaximizerDistribution(ARMS, torch.tensor([3, 3, 1, 3, 1, 5, 3, 3]))
    p = np.array([0, 2, 0, 5, 0, 1]) / 8
    np.testing.assert_allclose(distribution.probabilities, p)
    np.testing.assert_allclose(distribution.standard_errors, np.sqrt(p * (1 - p) / 8))
    assert distribution.num_draws == 8
    assert distribution.mode == 3
    expected = -sum(x * math.log(x) for x in p if x > 0)
    assert distribution.entropy == pytest.approx(expected)
    x = ARMS.squeeze(-1).numpy()
    variance = (p * x**2).sum() - (p * x).sum() ** 2
    assert distribution.variance.item() == pytest.approx(variance)
    assert distribution.credible_set(0.625).tolist() == [3]
    assert distribution.credible_set(0.626).tolist() == [3, 1]
    assert distribution.credible_set(1.0).tolist() == [3, 1, 5]


@given(
    draws=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    level=st.floats(0.01, 1.0),
)
def test_a_credible_set_is_the_smallest_that_holds_its_level(draws, level):
    distribution = MaximizerDistribution(ARMS, torch.tensor(draws))
    chosen = distribution.credible_set(level)
    p = distribution.probabilities
    assert p[chosen].sum() >= level - 1e-8
    assert p[chosen[:-1]].sum() < level
    others = torch.ones(6, dtype=torch.bool)
    others[chosen] = False
    assert p[chosen].min() >= p[others].max() if others.any() else True
    assert 0 <= distribution.entropy <= math.log(6) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_densities_do_not_depend_on_where_the_box_is(dtype):
    far, spread = (350.0, 0.05) if dtype == torch.float32 else (1e9, 1.0)
    x = (far + spread * torch.randn(256, 2, generator=seeded()).double()).to(dtype)
    near = BoxMaximizerDistribution(x.double() - far).density
    moved = BoxMaximizerDistribution(x).density
    torch.testing.assert_close(moved.double(), near, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gaussian_of_maximizers_on_a_box(dtype):
    generator = torch.Generator().manual_seed(0)
    center, deviation = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    x = torch.randn(1500, 2, generator=generator) * deviation + center
    distribution = BoxMaximizerDistribution(x.to(dtype))
    assert ((distribution.mode - center) / deviation).abs().max() < 0.5
    np.testing.assert_allclose(distribution.variance, deviation**2, rtol=0.1)
    exact = math.log(2 * math.pi * math.e) + deviation.log().sum().item()
    assert distribution.entropy == pytest.approx(exact, abs=0.1)
    inside = distribution.credible_set(0.5)
    assert inside.shape == (750, 2)
    # Half of a Gaussian lies within sqrt(2 log 2) deviations.
    radius = ((inside - center) / deviation).norm(dim=-1).max().item()
    assert radius == pytest.approx(math.sqrt(2 * math.log(2)), abs=0.25)


def test_draws_that_agree():
    points = torch.ones(5, 2, dtype=torch.double)
    distribution = BoxMaximizerDistribution(points)
    assert (distribution.variance == 0).all()
    assert distribution.entropy == -math.inf
    assert torch.equal(distribution.mode, points[0])
    single = BoxMaximizerDistribution(points[:1])
    assert single.credible_set(0.5).shape == (1, 2)
    assert single.entropy == -math.inf


def test_the_rule_looks_at_every_coordinate():
    x = torch.tensor([[0.0, 0.0], [2.0, 20.0]])  # variances 1 and 100
    distribution = BoxMaximizerDistribution(x)
    assert VarianceStoppingRule(100.0)(distribution)
    assert not VarianceStoppingRule(99.0)(distribution)
    assert VarianceStoppingRule(torch.tensor([1.0, 100.0]))(distribution)
    assert not VarianceStoppingRule(torch.tensor([0.9, 100.0]))(distribution)
    arms = MaximizerDistribution(ARMS, torch.tensor([0, 5]))  # variance 1 / 4
    assert VarianceStoppingRule(0.26)(arms)
    assert not VarianceStoppingRule(0.24)(arms)


def test_bad_arguments_are_refused():
    with pytest.raises(BotorchTensorDimensionError, match="at least one draw"):
        MaximizerDistribution(ARMS, torch.empty(0, dtype=torch.long))
    with pytest.raises(InputDataError, match="between 0 and 5"):
        MaximizerDistribution(ARMS, torch.tensor([6]))
    for shape in ((3,), (0, 2), (1, 3, 2)):
        with pytest.raises(BotorchTensorDimensionError, match="shape n x d"):
            BoxMaximizerDistribution(torch.zeros(shape))
    box = BoxMaximizerDistribution(ARMS)
    with pytest.raises(InputDataError, match="Expected `level` above 0"):
        box.credible_set(1.1)
    with pytest.raises(InputDataError, match="`max_variance` to be positive"):
        VarianceStoppingRule(0.0)
    with pytest.raises(BotorchTensorDimensionError, match="one entry per coordinate"):
        VarianceStoppingRule(torch.ones(3))(box)
