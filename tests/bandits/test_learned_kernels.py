"""Kernels to learn: a trend or effects of features, with rough detail."""

import math

import numpy as np
import pytest
import torch

from botorch_bkb import GPBandit
from botorch_bkb.bandits import composite_to_learn
from botorch_bkb.models.kernels import AnovaKernel
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


def told(function, num_features=4, num_told=60, **options):
    """A bandit that was told values of a function at random arms."""
    stream = torch.Generator().manual_seed(0)
    arms = torch.rand(90, num_features, generator=stream, dtype=torch.double)
    bandit = GPBandit(arms, generator=stream, **options)
    bandit.add_observations(range(num_told), function(arms)[:num_told])
    return bandit


def waves(arms):
    """A sum of functions of one feature each."""
    return torch.sin(9 * arms).sum(dim=-1)


def is_anova(bandit):
    return isinstance(bandit.covar_module.kernels[0].base_kernel, AnovaKernel)


def test_the_likelihood_decides_between_kernels():
    bandit = told(waves)
    bandit.ask(1)
    assert is_anova(bandit)
    mean, _ = bandit.predict(range(60, 90))
    assert torch.corrcoef(torch.stack([mean, waves(bandit.arms)[60:]]))[0, 1] > 0.95
    # All features together.
    bandit = told(lambda arms: torch.sin(4 * arms.sum(dim=-1)))
    bandit.ask(1)
    assert not is_anova(bandit)


@pytest.mark.parametrize(
    ("options", "num_features"),
    [
        ({"covar_module": composite_to_learn}, 4),
        ({"forgetting_rate": "learn"}, 4),
        ({}, 1),
        ({}, 65),
    ],
    ids=["chosen", "drift", "one feature", "many features"],
)
def test_where_nothing_is_to_decide(options, num_features):
    bandit = told(waves, num_features, num_told=12, **options)
    bandit.ask(1)
    assert not is_anova(bandit)


def test_a_loaded_bandit_has_the_kernel_that_was_chosen(tmp_path):
    bandit = told(waves)
    bandit.ask(1)
    bandit.save(tmp_path / "state")
    other = GPBandit(bandit.arms)
    other.load(tmp_path / "state")
    assert is_anova(other)
    assert torch.equal(bandit.predict()[0], other.predict()[0])
    for one in (bandit, other):
        one.add_observations(range(60, 90), waves(bandit.arms)[60:])
    assert torch.equal(bandit.ask(3), other.ask(3))
    bandit.withdraw(range(90))
    bandit.ask(1)
    assert not is_anova(bandit)  # as before any observation
