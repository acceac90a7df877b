"""The incremental update equals the full rebuild, over whole runs and at every edge."""

import pytest
import torch
from gpytorch.kernels import LinearKernel

from botorch_bkb.posteriors import arm_posterior, ArmPosterior
from botorch_bkb.posteriors.shards import ArmShard
from tests.bandits import rbf
from tests.helpers import spy


class Walk:
    """Random changes of inducing arms and data, as a bandit would make them."""

    def __init__(self, seed, num_arms=80, dtype=torch.double):
        self.generator = torch.Generator().manual_seed(seed)
        self.arms = torch.rand(num_arms, 3, generator=self.generator, dtype=dtype)
        self.counts = torch.zeros(num_arms, dtype=dtype)
        self.sums = torch.zeros(num_arms, dtype=dtype)
        self.inducing = torch.empty(0, dtype=torch.long)

    def step(self):
        """Pull up to four arms; drop and take back a few inducing ones."""
        size = int(torch.randint(1, 5, (1,), generator=self.generator))
        pulled = torch.randint(len(self.arms), (size,), generator=self.generator)
        for arm in pulled.tolist():
            self.counts[arm] += 1
            self.sums[arm] += torch.randn((), generator=self.generator)
        observed = self.counts.nonzero().squeeze(-1)
        draw = torch.rand(len(observed), generator=self.generator)
        kept = observed[draw < 0.93]
        self.inducing = kept if len(kept) else observed[:1]

    def update(self, posterior):
        pulled = self.counts.nonzero().squeeze(-1)
        posterior.update(self.inducing, pulled, self.counts[pulled], self.sums[pulled])


def assert_same(left, right, atol):
    every = torch.arange(left.num_arms)
    for found, expected in zip(left.moments(every), right.moments(every), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    assert left.log_det == pytest.approx(right.log_det, rel=10 * atol, abs=10 * atol)
    assert sorted(left.inducing_indices.tolist()) == sorted(
        right.inducing_indices.tolist()
    )
    some = torch.tensor([0, 7, 30])
    for projected in (False, True):
        torch.testing.assert_close(
            left.covariance(some, some, projected),
            right.covariance(some, some, projected),
            rtol=0,
            atol=atol,
        )


@pytest.fixture
def increments(monkeypatch):
    """Count the incremental updates, and make them as frequent as possible."""
    monkeypatch.setattr(arm_posterior, "REBUILD_COST", 1e9)
    return spy(monkeypatch, ArmShard, "advance")


@pytest.mark.parametrize(
    ("kernel", "dtype", "atol"),
    [
        (rbf() + LinearKernel().double(), torch.double, 1e-9),
        (rbf().float(), torch.float, 2e-3),
    ],
    ids=["double", "float"],
)
def test_equals_the_full_rebuild_over_a_walk(increments, kernel, dtype, atol):
    walk = Walk(3, dtype=dtype)
    posterior = ArmPosterior(walk.arms, kernel, 0.3)
    for number in range(40):
        walk.step()
        walk.update(posterior)
        if number % 5 == 4:
            fresh = ArmPosterior(walk.arms, kernel, 0.3)
            walk.update(fresh)
            assert_same(posterior, fresh, atol)
    # In float32 less is let in before the rebuild pivots.
    assert len(increments) > (25 if dtype == torch.double else 15)


@pytest.mark.parametrize("gap", [None, 1e-9, 1e-6])
def test_what_would_lose_digits_is_left_to_the_full_rebuild(increments, gap):
    """A near-duplicate that joins, or fewer pulls than before."""
    arms, has_twins = Walk(0).arms, gap is not None
    if has_twins:
        arms[1] = arms[0] + gap
    posterior, fresh = (ArmPosterior(arms, rbf(), 0.3) for _ in range(2))
    pulled, ones = torch.tensor([0, 10, 20]), torch.ones(3).double()
    posterior.update(pulled, pulled, ones if has_twins else 2 * ones, ones)
    inducing = pulled
    if has_twins:
        pulled, ones = torch.tensor([0, 1, 10, 20]), torch.ones(4).double()
        inducing = pulled[[0, 2, 3, 1]]
    for each in (posterior, fresh):
        each.update(inducing, pulled, ones, ones)
    assert not increments
    assert_same(posterior, fresh, 1e-9)


@pytest.mark.parametrize("num_features", [0, 20, 60, 10_000])
def test_the_byte_budget_changes_nothing(increments, num_features):
    """Nothing cached, features at first, all features, more than enough."""
    walk = Walk(5)
    budget = 2 * 8 * len(walk.arms) * num_features
    posterior = ArmPosterior(walk.arms, rbf(), 0.3, budget)
    for _ in range(30):
        walk.step()
        walk.update(posterior)
        (shard,) = posterior.shards.parts
        assert shard._features.nbytes <= budget
    assert bool(increments) == (num_features > 0)
    fresh = ArmPosterior(walk.arms, rbf(), 0.3)
    walk.update(fresh)
    assert_same(posterior, fresh, 1e-9)
