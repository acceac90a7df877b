"""What one shard answers is the part of the dense answer that its arms are."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from typing_extensions import override

from botorch_bkb.posteriors import arm_shard
from botorch_bkb.posteriors.arm_shard import ArmShard, expected_rise, largest, Ranked
from botorch_bkb.posteriors.basis import Basis
from tests import posteriors
from tests.posteriors import ATOL, each_dtype, longs, NOISE


BLOCK_SIZE = 4
each_cut = pytest.mark.parametrize("limits", [[0, 17], [0, 8, 17], [0, 4, 16, 17]])
each_cache = pytest.mark.parametrize("cached", [True, False])
none = longs()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Let every pass have several chunks, some of them of a part of a block."""
    monkeypatch.setattr(arm_shard, "MIN_CHUNK", 2)
    for name in ("CHUNK_BYTES", "PASS_CHUNK_BYTES"):
        monkeypatch.setattr(arm_shard, name, 64)


class Problem(posteriors.Problem):
    """Some basis arms are not inducing: the factor's complement leaves them out."""

    def __init__(self, dtype=torch.double, S=(9, 14)):
        super().__init__(dtype=dtype, inducing=S)
        self.kernel, basis = self.posterior.covar_module, [9, 2, 14, 6]
        self.covariance, projected = self.dense()
        self.projected = np.diag(projected)
        self.residual = np.diag(self.covariance) - self.projected
        # In the coordinates of the basis.
        L = np.linalg.cholesky(self.gram[np.ix_(basis, basis)])
        self.Z = np.linalg.solve(L, self.gram[basis])
        inside = np.isin(basis, S)
        complement = np.linalg.qr(L[inside].T, mode="complete")[0][:, len(S) :]
        Z, W = self.Z, self.counts / NOISE
        small = L, complement, (Z * W) @ Z.T, Z @ self.sums / NOISE
        L, complement, *sums = (torch.as_tensor(x).to(dtype) for x in small)
        inside = torch.as_tensor(inside)
        self.factor = Basis(longs(*basis), L, inside, complement, *sums)

    def shard(self, start, stop):
        return ArmShard(self.arms, start, stop, self.kernel, BLOCK_SIZE)

    def rebuild(self, shard, S, width):
        points = self.arms[self.factor.indices]
        shard.rebuild(self.factor, points, longs(*S), width)

    def shards(self, limits, cached=True):
        shards = [self.shard(*pair) for pair in pairwise(limits)]
        for shard in shards:
            self.rebuild(shard, self.S, 6 if cached else 0)  # there may be room
        return shards


def whole(shards, name):
    columns = ("prior", "mean", "residual", "projected")
    return torch.cat([shard.moments[columns.index(name)] for shard in shards])


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
    found = [shard.moments_of(longs(16, 3)) for shard in shards]
    assert sum(map(len, found)) == 2  # each of its own arms
    moments = torch.cat([shard.moments for shard in shards], dim=-1)
    assert {tuple(x.tolist()) for x in torch.cat(found)} == {
        tuple(moments[:, arm].tolist()) for arm in (16, 3)
    }


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
    variance = whole(shards, "residual") + whole(shards, "projected")
    bounds = whole(shards, "mean") + scale * variance.sqrt()
    competes = None if everyone else torch.rand(17, generator=stream) < 0.6
    if competes is not None:
        bounds[~competes] = -torch.inf
    expected = sorted(range(17), key=lambda i: (-bounds[i].item(), i))[:size]
    parts = [shard.largest_bounds(size, scale, competes) for shard in shards]
    found = Ranked.merged(parts).first(size)
    assert found.arms.tolist() == expected
    assert torch.equal(found.values, bounds[expected])


@each_cut
@each_dtype
def test_the_expected_number_above_a_level_is_a_sum_of_normal_tails(limits, dtype):
    problem = Problem(dtype)
    levels, without = np.array([-1.0, 0.3, 2.0]), torch.tensor([0, 13])
    std = np.sqrt(np.diag(problem.covariance))
    above = norm.sf(levels[:, None], problem.mean, std)
    competes = np.arange(17) % 4 > 0
    for mask in (None, torch.as_tensor(competes)):
        found = [
            shard.expected_above(torch.as_tensor(levels).to(dtype), mask, without)
            for shard in problem.shards(limits)
        ]
        inside = np.ones(17, dtype=bool) if mask is None else competes.copy()
        inside[without] = False
        assert sum(number for number, _ in found) == inside.sum()
        sums = torch.cat([blocks for _, blocks in found])
        assert len(sums) == 5  # blocks, whatever the shards
        expected = above[:, inside].sum(axis=1)
        np.testing.assert_allclose(sums.sum(dim=0), expected, atol=10 * ATOL[dtype])


@given(
    start=st.integers(0, 3),
    num_arms=st.integers(1, 17),
    numbers=st.integers(1, 40),
    num_bytes=st.sampled_from([1, 64, 10**6]),
)
@settings(max_examples=25)
def test_chunks_hold_every_arm_once_and_cross_no_block(
    start, num_arms, numbers, num_bytes
):
    problem = Problem()
    start *= BLOCK_SIZE
    shard = problem.shard(start, min(start + num_arms, 17))
    chunks = list(shard.chunks(numbers, num_bytes))
    places = [place for rows in chunks for place in range(rows.start, rows.stop)]
    assert places == list(range(shard.num_arms))
    for rows in chunks:
        assert rows.start // BLOCK_SIZE == (rows.stop - 1) // BLOCK_SIZE
    sizes = {rows.stop - rows.start for rows in chunks[:-1]}
    assert len(sizes) <= 1
    assert sizes <= {1, 2, 4}


@each_cut
def test_the_largest_gain_is_of_arms_that_compete_and_are_not_left_out(limits):
    shards = Problem().shards(limits)
    mean = whole(shards, "mean")
    variance = whole(shards, "residual") + whole(shards, "projected")
    is_open = torch.arange(17) % 3 > 0
    for competes in (None, is_open, torch.zeros_like(is_open)):
        some = mean if competes is None else mean.masked_fill(~competes, -torch.inf)
        top = largest(some, 2)
        is_best = torch.arange(17) == top.arms[0]
        gain = expected_rise(mean, variance, NOISE, top, is_best)
        gain = gain if competes is None else gain.masked_fill(~competes, -torch.inf)
        for without in (none, gain.argsort(descending=True)[:4]):
            expected = gain.index_fill(0, without, -torch.inf).max()
            args = NOISE, top, competes, without
            assert max(shard.largest_gain(*args) for shard in shards) == expected


def test_a_residual_below_zero_is_remembered_and_made_zero():
    """Of a factor that is not that of the kernel: features are twice too large."""
    problem = Problem(S=(9, 2, 14, 6))
    problem.factor.L /= 2
    shard = problem.shard(8, 17)
    problem.rebuild(shard, [], 4)
    Z = 2 * problem.Z[:, 8:]
    Z[:, [1, 6]] /= 4  # arms of the basis have their row of the factor
    residual = 1 - np.square(Z).sum(axis=0)
    assert residual.min() < -0.5
    assert shard.soundness()[1] == pytest.approx(residual.min(), rel=1e-9)
    np.testing.assert_allclose(shard.moments[2], residual.clip(min=0), atol=1e-9)


class BadKernel(Kernel):
    @override
    def forward(self, x1, x2, diag=False, **params):
        return torch.where(x1[:, 0] > 1.6, torch.nan, -x1[:, 0])


def test_a_prior_variance_that_no_kernel_has_is_refused_by_its_arm():
    arms = torch.arange(8).double().unsqueeze(-1) / 2
    with pytest.raises(InputDataError, match=r"got -0.5 for arm 1\."):
        ArmShard(arms, 0, 8, BadKernel(), BLOCK_SIZE)
    with pytest.raises(InputDataError, match=r"got nan for arm 4\."):
        ArmShard(arms, 4, 8, BadKernel(), BLOCK_SIZE)
