"""What one shard answers is the part of the dense answer that its arms are."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from typing_extensions import override

from botorch_bkb.posteriors import arm_shard
from botorch_bkb.posteriors.arm_shard import ArmShard, Factor
from botorch_bkb.posteriors.shards import PerArm, Ranked
from tests.helpers import gram_matrix
from tests.reference import Arms


BLOCK_SIZE, NOISE = 4, 0.25
ATOL = {torch.double: 1e-9, torch.float: 1e-3}
each_dtype = pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
each_cut = pytest.mark.parametrize("limits", [[0, 21], [0, 8, 21], [0, 4, 20, 21]])
each_cache = pytest.mark.parametrize("cached", [True, False])
none = torch.empty(0, dtype=torch.long)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Let every pass have several chunks, some of them of a part of a block."""
    monkeypatch.setattr(arm_shard, "MIN_CHUNK", 2)
    for name in ("CHUNK_BYTES", "PASS_CHUNK_BYTES"):
        monkeypatch.setattr(arm_shard, name, 64)


class Problem:
    """Arms of a grid, of which the last is the first; six pulled, basis and inducing.

    The basis arms that are not inducing are left out by the factor's complement.
    """

    def __init__(self, dtype=torch.double, basis=(9, 2, 17, 6), S=(9, 17), num_arms=21):
        grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), -1).reshape(-1, 2)
        arms = np.concatenate([grid, grid[:1]])[:num_arms] / 2
        self.arms, self.kernel = torch.as_tensor(arms).to(dtype), RBFKernel().to(dtype)
        self.kernel.lengthscale = 0.5
        self.basis, self.S = list(basis), list(S)
        counts, sums = np.zeros(num_arms), np.zeros(num_arms)
        pulled = np.array([1, 2, 6, 9, 14, 17])
        counts[pulled], sums[pulled] = [1, 2, 1, 3, 1, 2], [2, -1, 0.5, 3, -2, 1]
        self.K = gram_matrix(self.kernel.double(), self.arms.double())
        self.kernel.to(dtype)
        arms = Arms(self.K, NOISE)
        self.mean, self.covariance, self.projected_covariance = arms.parts(
            self.S, counts, sums
        )
        self.projected = np.diag(self.projected_covariance)
        self.residual = np.diag(self.covariance) - self.projected
        # In the coordinates of the basis.
        L = np.linalg.cholesky(self.K[np.ix_(basis, basis)])
        self.Z = np.linalg.solve(L, self.K[self.basis])
        inside = [self.basis.index(arm) for arm in self.S]
        Q = np.linalg.qr(L[inside].T, mode="complete")[0]
        complement = Q[:, len(inside) :]
        self.Q = np.eye(len(L)) - complement @ complement.T
        Z, W = self.Q @ self.Z[:, pulled], counts[pulled] / NOISE
        V = np.eye(len(L)) + (Z * W) @ Z.T
        weights = np.linalg.solve(V, Z @ (sums[pulled] / NOISE))
        self.V_inverse = np.linalg.inv(V)
        small = [L, np.linalg.cholesky(V), complement, weights]
        indices = torch.tensor(self.basis, dtype=torch.long)
        small = [torch.as_tensor(matrix).to(dtype) for matrix in small]
        self.factor = Factor(indices, self.arms[indices], None, *small)

    def tensor(self, values):
        return torch.as_tensor(values).to(self.arms)

    def shard(self, start, stop):
        return ArmShard(self.arms, start, stop, self.kernel, 8, BLOCK_SIZE)

    def shards(self, limits, cached=True):
        shards = [self.shard(*pair) for pair in pairwise(limits)]
        width = len(self.basis) + 2 if cached else 0  # there may be room
        for shard in shards:
            shard.rebuild(self.factor, torch.tensor(self.S, dtype=torch.long), width)
        return shards


def whole(shards, name):
    return torch.cat([getattr(shard, name) for shard in shards])


@each_cut
@each_cache
@each_dtype
def test_moments_are_those_of_the_dense_posterior(limits, cached, dtype):
    problem = Problem(dtype)
    shards = problem.shards(limits, cached)
    for name in ("mean", "residual", "projected"):
        found = whole(shards, name)
        assert found.dtype == dtype
        expected = getattr(problem, name)
        np.testing.assert_allclose(found, expected, atol=ATOL[dtype], err_msg=name)
    assert not whole(shards, "residual")[problem.S].any()
    least = min(shard.soundness()[0] for shard in shards)
    assert least == pytest.approx(np.diag(problem.covariance).min(), abs=ATOL[dtype])
    found = shards[-1].moments(torch.tensor([20, limits[-2]]))
    assert torch.equal(found[0], shards[-1]._moments[:, -1])
    assert torch.equal(found[1], shards[-1]._moments[:, 0])


@each_cut
@given(
    size=st.integers(1, 25),
    scale=st.sampled_from([0.0, 1.5]),
    seed=st.integers(0, 99),
    everyone=st.booleans(),
)
@settings(max_examples=8)
def test_the_largest_bounds_are_those_of_a_sort(limits, size, scale, seed, everyone):
    stream = torch.Generator().manual_seed(seed)
    problem = Problem()
    shards = problem.shards(limits)
    bounds = whole(shards, "mean") + scale * whole(shards, "variance").sqrt()
    competes = None if everyone else torch.rand(21, generator=stream) < 0.6
    arms = torch.randperm(21, generator=stream)[:5]
    known = Ranked(torch.randn(5, generator=stream).double(), arms)
    if competes is not None:
        bounds[~competes] = -torch.inf
    bounds[known.arms] = known.values
    expected = sorted(range(21), key=lambda i: (-bounds[i].item(), i))[:size]
    parts = [
        shard.largest_bounds(
            size,
            scale,
            PerArm(None if competes is None else competes[start:stop]),
            known,
        )
        for shard, (start, stop) in zip(shards, pairwise(limits), strict=True)
    ]
    found = Ranked.merged(parts, size)
    assert found.arms.tolist() == expected
    assert torch.equal(found.values, bounds[expected])


@each_cut
@each_dtype
def test_the_expected_number_above_a_level_is_a_sum_of_normal_tails(limits, dtype):
    problem = Problem(dtype)
    levels, without = np.array([-1.0, 0.3, 2.0]), torch.tensor([0, 13])
    std = np.sqrt(np.diag(problem.covariance))
    above = norm.sf(levels[:, None], problem.mean, std)
    competes = np.arange(21) % 4 > 0
    for mask in (None, torch.as_tensor(competes)):
        found = [
            shard.expected_above(
                problem.tensor(levels),
                PerArm(None if mask is None else mask[a:b]),
                without,
            )
            for shard, (a, b) in zip(
                problem.shards(limits), pairwise(limits), strict=True
            )
        ]
        inside = np.ones(21, dtype=bool) if mask is None else competes.copy()
        inside[without] = False
        assert sum(number for number, _ in found) == inside.sum()
        sums = torch.cat([blocks for _, blocks in found])
        assert len(sums) == 6  # blocks, whatever the shards
        expected = above[:, inside].sum(axis=1)
        np.testing.assert_allclose(sums.sum(dim=0), expected, atol=10 * ATOL[dtype])


@given(
    start=st.integers(0, 3),
    num_arms=st.integers(1, 21),
    numbers=st.integers(1, 40),
    num_bytes=st.sampled_from([1, 64, 10**6]),
)
@settings(max_examples=25)
def test_chunks_hold_every_arm_once_and_cross_no_block(
    start, num_arms, numbers, num_bytes
):
    problem = Problem()
    start *= BLOCK_SIZE
    shard = problem.shard(start, min(start + num_arms, 21))
    chunks = list(shard.chunks(numbers, num_bytes))
    places = [place for rows in chunks for place in range(rows.start, rows.stop)]
    assert places == list(range(shard.num_arms))
    for rows in chunks:
        assert rows.start // BLOCK_SIZE == (rows.stop - 1) // BLOCK_SIZE
    sizes = {rows.stop - rows.start for rows in chunks[:-1]}
    assert len(sizes) <= 1
    assert sizes <= {1, 2, 4}


def test_a_residual_below_zero_is_remembered_and_made_zero():
    """Of a factor that is not that of the kernel: features are twice too large."""
    problem = Problem(S=(9, 2, 17, 6))
    factor = problem.factor._replace(L=problem.factor.L / 2)
    shard = problem.shard(8, 21)
    shard.rebuild(factor, none, 4)
    Z = 2 * problem.Z[:, 8:]
    Z[:, [1, 9]] /= 4  # arms of the basis have their row of the factor
    residual = 1 - np.square(Z).sum(axis=0)
    assert residual.min() < -0.5
    assert shard.soundness()[1] == pytest.approx(residual.min(), rel=1e-9)
    np.testing.assert_allclose(shard.residual, residual.clip(min=0), atol=1e-9)


class BadKernel(Kernel):
    @override
    def forward(self, x1, x2, diag=False, **params):
        return torch.where(x1[:, 0] > 1.6, torch.nan, -x1[:, 0])


def test_a_prior_variance_that_no_kernel_has_is_refused_by_its_arm():
    arms = Problem().arms
    with pytest.raises(InputDataError, match=r"got -0.5 for arm 1\."):
        ArmShard(arms, 0, 8, BadKernel(), 8, BLOCK_SIZE)
    with pytest.raises(InputDataError, match=r"got nan for arm 4\."):
        ArmShard(arms, 4, 8, BadKernel(), 8, BLOCK_SIZE)
