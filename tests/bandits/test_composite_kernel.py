"""The kernel to learn of a trend with rough detail."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from botorch_bkb import GPBandit
from botorch_bkb.bandits import composite_to_learn
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.models.kernels.learned import lengthscales
from tests.reference import composite_covariance


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_it_is_the_sum_of_two_matern_kernels(dimension, dtype):
    stream = torch.Generator().manual_seed(dimension)
    x = torch.rand(9, dimension, generator=stream, dtype=dtype)
    kernel = composite_to_learn(x).to(x).requires_grad_(False)
    trend = kernel.kernels[0].base_kernel
    trend.lengthscale = torch.linspace(0.5, 2.0, dimension).to(x)

    points = x.double().numpy()
    parts = [(np.linspace(0.5, 2.0, dimension), 0.7), (0.1 * math.sqrt(dimension), 0.2)]
    expected = composite_covariance(points, points, parts)
    tolerance = 1e-10 if dtype == torch.double else 1e-5
    np.testing.assert_allclose(kernel(x).to_dense().numpy(), expected, atol=tolerance)


def test_a_bandit_learns_both_parts():
    stream = torch.Generator().manual_seed(1)
    arms = torch.rand(60, 3, generator=stream)
    rewards = arms.sum(dim=-1) + 0.3 * torch.sin(40 * arms[:, 0])
    bandit = GPBandit(arms, generator=stream)
    start = composite_to_learn(arms).state_dict()
    bandit.add_observations(torch.arange(20), rewards[:20])
    bandit.ask(5)
    fitted = bandit.covar_module.state_dict()
    moved = [name for name in start if not start[name].to(arms).equal(fitted[name])]
    assert {name.split(".")[1] for name in moved} == {"0", "1"}


def test_lengthscales_are_those_of_the_trend():
    kernel = composite_to_learn(torch.rand(2, 3))
    trend = kernel.kernels[0].base_kernel
    trend.lengthscale = torch.tensor([1.0, 2.0, 3.0])
    assert lengthscales(kernel) == pytest.approx({0: 1.0, 1: 2.0, 2: 3.0})
    # Of a product each part tells of its own columns.
    product = TanimotoKernel(active_dims=(0, 1)) * MaternKernel(active_dims=(2,))
    assert list(lengthscales(product)) == [2]
