"""Questions about a few arms have the answers of all arms, at the cost of a few."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_bkb.posteriors import (
    ArmPosterior,
)
from botorch_bkb.posteriors.hallucination import (
    Excerpt,
    HallucinatedPosterior,
)
from tests.helpers import gram_matrix


NOISE = 0.3
S, PULLED = torch.tensor([3, 10, 20]), torch.tensor([3, 10, 20, 31])


def rbf():
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return kernel


@pytest.fixture
def posterior():
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(50, 2, generator=generator, dtype=torch.double)
    posterior = ArmPosterior(arms, rbf(), NOISE)
    counts = torch.tensor([2.0, 1.0, 3.0, 1.0])
    posterior.update(S, PULLED, counts, torch.tensor([1.0, -1.0, 2.0, 0.5]))
    return posterior


def test_a_few_arms_hold_no_graph_of_the_kernel(posterior):
    """Each row of theirs kept one, where the kernel's parameters are learned."""
    few = torch.tensor([4, 8, 31])
    assert posterior.covar_module.raw_lengthscale.requires_grad
    rows = Excerpt(posterior, few).prior_rows(posterior.arms[5:7])
    assert not rows.requires_grad
    expected = gram_matrix(posterior.covar_module, posterior.arms)[5:7, few]
    np.testing.assert_allclose(rows, expected, rtol=1e-12)
    tracked = HallucinatedPosterior(posterior, 2.0, None, few)
    tracked.append(7)
    tracked.pull(7, 1)
    (part,) = tracked.shards.parts
    for column in (part.mean, part.residual, part.projected, part.appended):
        assert not column.requires_grad
