"""Questions about a few arms have the answers of all arms, at the cost of a few."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_bkb import BKB
from botorch_bkb.arms import Capacity
from botorch_bkb.posteriors import (
    ArmPosterior,
    hallucination,
    upper_bounds,
)
from botorch_bkb.posteriors.hallucination import (
    Excerpt,
    HallucinatedPosterior,
)
from botorch_bkb.posteriors.upper_bounds import UpperBounds
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


def test_the_pick_that_ends_a_batch_hallucinates_nothing(monkeypatch):
    """It took two passes over the features of all arms."""
    generator = torch.Generator().manual_seed(1)
    arms = torch.rand(200, 2, generator=generator, dtype=torch.double)
    bandit = BKB(arms, rbf(), NOISE, oversampling=0.5, generator=generator)
    for name in ("append", "pull"):
        monkeypatch.delattr(HallucinatedPosterior, name)
    for _ in range(12):
        picks = bandit.ask()
        bandit.tell(picks, arms[picks].sum(dim=-1))
    assert len(bandit.inducing_indices) < int((bandit.counts > 0).sum())


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


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("max_feature_bytes", [2**31, 0])
def test_more_arms_than_a_pool_holds_are_tracked_before_all(
    monkeypatch, size, max_feature_bytes
):
    """Ten million arms: a pull was a pass over all of them, and read their files."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(400, 2, generator=generator, dtype=torch.double)
    posterior = ArmPosterior(arms, rbf(), NOISE, max_feature_bytes)
    pulled = torch.arange(0, 400, 8)
    posterior.update(pulled, pulled, torch.ones(50), torch.zeros(50))
    none = torch.tensor([], dtype=torch.long)
    picks = []
    for excerpt_size in (2**15, 20):
        sizes = []

        class Counted(Excerpt):
            def __init__(self, posterior, indices, sizes=sizes):
                super().__init__(posterior, indices)
                sizes.append(len(indices))

        monkeypatch.setattr(hallucination, "Excerpt", Counted)
        monkeypatch.setattr(upper_bounds, "POOL_SIZE", 2)
        monkeypatch.setattr(upper_bounds, "MAX_POOL_SIZE", 4)
        monkeypatch.setattr(upper_bounds, "EXCERPT_SIZE", excerpt_size)
        posterior.max_feature_bytes = 2**31  # of the excerpt
        bounds = UpperBounds(posterior, 2.0, False, none, Capacity(400))
        chosen = []
        for _ in range(size * 5):
            chosen.append(bounds.best())
            bounds.pull(chosen[-1], 1)
        picks.append(chosen)
    assert picks[0] == picks[1]
    assert sizes[:1] == [20]
