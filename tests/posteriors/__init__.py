"""A posterior of few arms that stand well apart, and the dense answer about it."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_bkb.posteriors import ArmPosterior
from tests.reference import Arms


# A number of float32 too: GPyTorch makes it one.
LENGTHSCALE, NOISE, NUM_ARMS = 0.75, 0.1, 17
# Gram matrices of different arms have condition numbers below 50.
ATOL = {torch.float64: 1e-9, torch.float32: 1e-3}
each_dtype = pytest.mark.parametrize("dtype", ATOL, ids=str)


def longs(*numbers):
    """Return indices of arms; none are a long tensor too."""
    return torch.tensor(numbers, dtype=torch.long)


class Problem:
    """Arms of a shaken grid, the last one a twin of the first; six have pulls.

    Args:
        seed: Of the arms and the data.
        dtype: Of the posterior.
        exact: Whether the pulled arms are inducing; else half of them and an arm that
            has no pulls.
        inducing: These arms are, instead.
        max_bytes: The byte budget of the posterior.
    """

    def __init__(
        self, seed=0, dtype=torch.float64, exact=False, inducing=None, max_bytes=2**31
    ):
        stream = np.random.default_rng(seed)
        grid = np.stack(np.divmod(np.arange(NUM_ARMS - 1), 4), axis=-1)
        points = stream.permutation(grid) + stream.uniform(-0.15, 0.15, grid.shape)
        self.arms = torch.tensor(np.vstack([points, points[:1]]), dtype=dtype)
        points = self.arms.double().numpy()
        gaps = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
        self.gram = np.exp(-gaps / (2 * LENGTHSCALE**2))
        order = stream.permutation(NUM_ARMS)
        pulled = order[:6]
        self.counts, self.sums = np.zeros(NUM_ARMS), np.zeros(NUM_ARMS)
        self.counts[pulled] = stream.integers(1, 5, size=6)
        self.sums[pulled] = self.counts[pulled] * stream.normal(size=6)
        if inducing is None:
            inducing = pulled if exact else order[3:7]
        self.S = [int(arm) for arm in inducing]
        kernel = RBFKernel().to(self.arms)
        kernel.lengthscale = LENGTHSCALE
        self.posterior = ArmPosterior(self.arms, kernel, NOISE, max_bytes)
        counts, sums = (torch.tensor(x[pulled]) for x in (self.counts, self.sums))
        self.posterior.update(longs(*self.S), torch.tensor(pulled), counts, sums)

    def dense(self, appended=(), pulls=()):
        """Return covariances and projected ones, with more inducing arms and pulls."""
        counts = self.counts + np.bincount(np.array(pulls, int), minlength=NUM_ARMS)
        arms = Arms(self.gram, NOISE)
        return arms.parts([*self.S, *appended], counts, self.sums)[1:]

    @property
    def mean(self):
        """The means, by dense algebra."""
        return Arms(self.gram, NOISE).parts(self.S, self.counts, self.sums)[0]
