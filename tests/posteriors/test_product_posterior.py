"""Answers over a product space are those of dense algebra over all of its products."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, ProductKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.arms import ProductArms, ProductLimits, ProductMask
from botorch_bkb.arms.table import UNLIMITED
from botorch_bkb.posteriors import (
    product_cells,
    product_posterior,
    product_search,
    ProductPosterior,
)
from botorch_bkb.posteriors.product_cells import Cells
from botorch_bkb.posteriors.upper_bounds import UpperBounds
from tests.helpers import spy
from tests.reference import Arms, composite_covariance


NOISE = 0.1


def tanimoto(bits):
    common = (bits @ bits.T).astype(float)
    totals = bits.sum(axis=1)
    return common / (totals[:, None] + totals - common)


def matern(x):
    return composite_covariance(x, x, [(1.0, 1.0)])


class Space:
    """A small product space with some observations, and its dense Gram matrix."""

    def __init__(self, seed, dtype=torch.float64, weights=(0.5, 3.0)):
        numbers = np.random.default_rng(seed)
        x = numbers.random((5, 2))
        bits = numbers.random((6, 24)) < 0.4
        bits[:, 0] = True
        components = {"x": x, "bits": bits, "word": list("abcd")}
        self.arms = ProductArms(components, dtype=dtype)
        self.kernel = self.arms.kernel_to_learn().to(dtype)
        # As tensors: GPyTorch rounds other numbers to float32.
        scale, lengthscale, reach = torch.tensor([1.7, 0.6, 1.5]).double()
        mixed = [part for part in self.kernel.modules() if hasattr(part, "raw_weight")]
        for part, weight in zip(mixed, weights, strict=True):
            part.initialize(raw_weight=weight)
        product = self.kernel.covar_module
        product.outputscale = scale
        mixed[0].base_kernel.lengthscale = lengthscale
        product.base_kernel.kernels[2].lengthscale = reach
        unit = (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))
        parts = [matern(unit / float(lengthscale)), tanimoto(bits.astype(int))]
        parts = [(1 + w * K) / (1 + w) for w, K in zip(weights, parts, strict=True)]
        word = np.where(np.eye(4, dtype=bool), 1.0, np.exp(-1 / float(reach)))
        self.gram = float(scale) * np.kron(np.kron(parts[0], parts[1]), word)
        num_arms = len(self.arms)
        self.pulled = np.sort(numbers.choice(num_arms, 12, replace=False))
        self.counts = np.zeros(num_arms)
        self.counts[self.pulled] = numbers.integers(1, 4, 12)
        self.sums = self.counts * numbers.normal(size=num_arms)
        self.S = self.pulled[: numbers.integers(3, 13)]
        self.posterior = ProductPosterior(self.arms, self.kernel, NOISE)
        self.posterior.update(
            torch.from_numpy(self.S),
            torch.from_numpy(self.pulled),
            torch.from_numpy(self.counts[self.pulled]),
            torch.from_numpy(self.sums[self.pulled]),
        )
        dense = Arms(self.gram, NOISE)
        self.mean, self.variance, _ = dense.posterior(self.S, self.counts, self.sums)
        self.covariance = dense.parts(self.S, self.counts, self.sums)[1]


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)]
)
def test_moments_are_those_of_dense_algebra(dtype, atol):
    for seed in range(3):
        space = Space(seed, dtype)
        posterior, some = space.posterior, torch.tensor([0, 17, 60, 119, 17])
        np.testing.assert_allclose(posterior.means(some), space.mean[some], atol=atol)
        np.testing.assert_allclose(
            posterior.variances(some), space.variance[some], atol=atol
        )
        for projected in (False, True):
            found = posterior.covariance(some, some, projected)
            expected = Arms(space.gram, NOISE).parts(space.S, space.counts, space.sums)[
                2 if projected else 1
            ][some][:, some]
            np.testing.assert_allclose(found, expected, atol=atol)
        total = (space.counts * space.variance).sum() / NOISE
        assert posterior.effective_dimension == pytest.approx(total, rel=1e-3)


# Blocks, chunks and starting points so small that every branch is entered.
SMALL = {
    "BLOCK_SIZE": 16,
    "LAST_SIZE": 3,
    "CHUNK_NUMBERS": 64,
    "NUM_SCATTERED": 10,
    "MIN_KEPT": 3,
    "STAGES": (0, 1, 2),
}


@pytest.mark.parametrize("is_small", [False, True])
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.0, 0.5, 3.0]),
    size=st.sampled_from([1, 4, 50, 500]),
    num_closed=st.integers(0, 119),
    fixed=st.sampled_from([{}, {0: 2}, {2: 1}, {0: 4, 1: 3}]),
)
@settings(max_examples=30)
def test_the_largest_bounds_are_those_of_all_products(
    is_small, seed, scale, size, num_closed, fixed
):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items() if is_small else ():
            for module in (product_posterior, product_search):
                patch.setattr(module, name, value, raising=False)
        space = Space(seed)
        order = torch.randperm(120, generator=torch.Generator().manual_seed(seed))
        closed = order[:num_closed].sort().values
        mask = ProductMask(space.arms, closed) if num_closed else None
        bounds = space.mean + scale * np.sqrt(space.variance)
        bounds[closed] = -np.inf
        if fixed:
            if seed % 2:  # its search may be answered from one of all products
                space.posterior.largest_bounds(scale, size, mask)
            mask = ProductMask(space.arms.fixing(fixed), closed)
            positions = np.stack(np.unravel_index(np.arange(120), (5, 6, 4)))
            for column, position in fixed.items():
                bounds[positions[column] != position] = -np.inf
        num_open = np.isfinite(bounds).sum()
        for more in (size, size + 3):  # the second may be answered from the first
            found = space.posterior.largest_bounds(scale, more, mask)
            best = np.argsort(-bounds, kind="stable")[: min(more, num_open)]
            np.testing.assert_allclose(found.values, bounds[best], atol=1e-9)
            # Products whose bounds differ in the last bits may come in either order.
            np.testing.assert_allclose(bounds[found.arms], bounds[best], atol=1e-9)
            assert len(found.arms.unique()) == len(best)


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.5, 3.0]),
    arms=st.lists(st.integers(0, 119), min_size=2, max_size=2, unique=True),
    projected=st.booleans(),
)
@settings(max_examples=15)
def test_a_search_serves_posteriors_given_more_pulls(seed, scale, arms, projected):
    """Each of them lowers bounds of its own, not those of another one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            for module in (product_posterior, product_search):
                patch.setattr(module, name, value, raising=False)
        base = Space(seed).posterior
        base.largest_bounds(scale, 5)
        one = base.given({arms[0]: 3}, projected)
        one.largest_bounds(scale, 40)
        two = one.given({arms[0]: 3, arms[1]: 2}, projected)
        other = base.given({arms[1]: 1}, projected)
        for posterior in (two, other, base):
            found = posterior.largest_bounds(scale, 10)
            everything = torch.arange(120)
            variance = posterior.variances(everything)
            bounds = posterior.means(everything) + scale * variance.sqrt()
            expected = bounds.sort(descending=True, stable=True)
            torch.testing.assert_close(found.values, expected.values[:10])
            assert found.arms.tolist() == expected.indices[:10].tolist()


def test_a_pass_that_a_batch_exhausts_is_followed_by_a_larger_one(monkeypatch):
    """Greedy picks of 30 of 8,000 products: those of dense algebra, by two passes."""
    monkeypatch.setattr(product_posterior, "MAX_KEPT", 100)
    monkeypatch.setattr(product_posterior, "MIN_KEPT", 100)
    passes = spy(monkeypatch, ProductPosterior, "_pass")
    numbers = np.random.default_rng(0)
    lists = [numbers.random((20, 2)) for _ in range(3)]
    arms = ProductArms(dict(zip("abc", lists, strict=True)))
    parts = [MaternKernel(nu=2.5, active_dims=(2 * i, 2 * i + 1)) for i in range(3)]
    for part in parts:
        part.lengthscale = 0.6
    kernel = arms.kernel_of(ProductKernel(*parts).double())
    pulled = np.sort(numbers.choice(8_000, 40, replace=False))
    sums = numbers.normal(size=40)
    posterior = ProductPosterior(arms, kernel, NOISE)
    told = map(torch.from_numpy, (pulled, pulled, np.ones(40), sums))
    posterior.update(*told)
    positions = np.stack(np.unravel_index(np.arange(8_000), (20, 20, 20)))
    factors = [matern(rows / 0.6) for rows in lists]

    def dense(points):
        """Return covariances with some products, and their inverse with noise."""
        pairs = zip(factors, positions, strict=True)
        K = np.prod([factor[at][:, at[points]] for factor, at in pairs], axis=0)
        return K, np.linalg.inv(K[points] + NOISE * np.eye(len(points)))

    K, inverse = dense(pulled)
    mean, points = K @ inverse @ sums, list(pulled)
    mask = ProductMask(arms, torch.tensor([], dtype=torch.long))
    limits = ProductLimits(mask, UNLIMITED, {})
    bounds = UpperBounds(posterior, 1.0, False, limits)
    for _ in range(30):
        K, inverse = dense(points)
        variance = 1 - np.einsum("ij,jk,ik->i", K, inverse, K)
        best = bounds.best()
        assert best == (mean + np.sqrt(variance.clip(0))).argmax()
        bounds.pull(best, 1)
        points.append(best)
    assert [target for _, _, target, _ in passes] == [100, 400]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("cell_size", [1, 8, 1000])
def test_standard_deviations_are_bounded_by_those_of_near_products(
    monkeypatch, dtype, cell_size
):
    monkeypatch.setattr(product_cells, "CELL_SIZE", cell_size)
    space = Space(1, dtype)
    cells = Cells(space.posterior, first=2)
    at = torch.arange(30)
    rows = cells.places(torch.unravel_index(at, (5, 6)), at)
    columns = cells.places((torch.arange(4),), torch.arange(4), first=2)
    bounds = cells.bounds(rows, columns).flatten().double().numpy()
    std = np.sqrt(space.variance)
    rounding = 1e-6 if dtype == torch.float64 else 1e-4
    assert (bounds >= std - rounding).all()
    assert bounds.max() <= np.sqrt(1.7) + 1e-6
    if cell_size == 1:  # every product is a centre, and all rows of R are used
        slack = 1e-3 if dtype == torch.float64 else 1e-2
        np.testing.assert_allclose(bounds, std, atol=slack)


def test_products_that_are_all_alike_are_found_in_order():
    """Rounding must not count ties as products that a pass has missed."""
    words = [str(number) for number in range(30)]
    arms = ProductArms({"a": words, "b": words, "c": words})
    posterior = ProductPosterior(arms, arms.kernel_to_learn(), NOISE)
    one = torch.tensor([0])
    posterior.update(one, one, torch.ones(1), torch.ones(1))
    for size in (1, 500, 5000):
        found = posterior.largest_bounds(1.0, size)
        assert len(found.arms.unique()) == size
        variance = posterior.variances(found.arms)
        bounds = posterior.means(found.arms) + variance.sqrt()
        torch.testing.assert_close(found.values, bounds)


def test_few_products_are_evaluated_exactly_once_there_are_observations():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(0, 1, 100).double()
    arms = ProductArms({"a": x, "b": x, "c": x})
    kernel = arms.kernel_to_learn()
    pulled = torch.randint(len(arms), (60,), generator=generator).unique()
    rewards = -(arms[pulled] / 100 - 0.5).square().sum(dim=-1) * 10
    posterior = ProductPosterior(arms, kernel, 0.01)
    posterior.update(pulled, pulled, torch.ones(len(pulled)), rewards)
    posterior.largest_bounds(1.0, 10)
    assert 0 < posterior.num_evaluated < 0.1 * len(arms)


def test_without_rewards_few_products_are_found_in_blocks_of_a_large_space():
    sizes = []

    def forbidden(positions):
        sizes.append(len(positions))
        return (positions != positions[:, :1]).any(dim=-1) | (positions[:, 0] % 50 != 7)

    x = np.arange(100.0)
    arms = ProductArms({"a": x, "b": x, "c": x}, forbidden)
    posterior = ProductPosterior(arms, arms.kernel_to_learn(), NOISE)
    mask = ProductMask(arms, torch.tensor([], dtype=torch.long))
    found = posterior.largest_bounds(1.0, 5, mask).arms.sort().values
    assert found.tolist() == [70_707, 575_757]
    assert max(sizes) <= product_posterior.NUM_SCATTERED
    assert sum(sizes) >= len(arms)
