"""Bandits where their arms lie: on a GPU too, where there is one."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPBUCB, GPThompsonSampling, GPUCB
from tests.reference import exact_posterior


DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
EXACT = [GPUCB, GPBUCB]
SPARSE = [BKB, BBKB, EpsilonGreedy, GPThompsonSampling]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bandit_class", EXACT + SPARSE)
def test_bandits_know_the_exact_posterior_on_any_device(bandit_class, device, dtype):
    draws = torch.Generator().manual_seed(3)
    arms = torch.rand(60, 2, generator=draws, dtype=torch.double).to(dtype)
    rewards = (5 * arms.double()).sin().sum(dim=-1)
    kernel = RBFKernel().to(device, dtype)
    kernel.lengthscale = 0.4
    # So many that every pulled arm is inducing: then sparse is exact.
    options = {"oversampling": 1e9} if bandit_class in SPARSE else {}
    generator = torch.Generator().manual_seed(0)
    bandit = bandit_class(arms.to(device), kernel, 0.1, generator=generator, **options)
    told = []
    for _ in range(6):
        indices = bandit.ask(max_size=5)
        assert indices.device.type == device
        # As a laboratory does, from the processor.
        bandit.tell(indices.cpu(), rewards[indices.cpu()])
        told += indices.tolist()
    bandit.fail(bandit.ask(max_size=1))
    mean, variance = (moment.cpu().double().numpy() for moment in bandit.predict())
    points = arms.double().numpy()
    squared = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    K = np.exp(-squared / (2 * 0.4**2))
    y = rewards[told].numpy()
    expected, covariance = exact_posterior(
        K[np.ix_(told, told)], K[told], K, np.full(len(told), 0.1), y
    )
    tolerance = 1e-6 if dtype == torch.float64 else 2e-3
    np.testing.assert_allclose(mean, expected, atol=tolerance)
    np.testing.assert_allclose(variance, np.diag(covariance), atol=tolerance)
    assert bandit.best_arm() in told
