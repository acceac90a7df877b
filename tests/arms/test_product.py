"""Product spaces: numbers of products, forbidden combinations, components."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.models.kernels import product, TanimotoKernel
from botorch_bkb.models.kernels.learned import MixedKernel


# Sizes of two lists of fingerprints: counts below 4, and bits.
LISTS = ((6, 4), (3, 2))


COMPONENTS = {
    "acid": torch.rand(4, 2, generator=torch.Generator().manual_seed(0)).double(),
    "base": ["none", "weak", "strong"],
    "print": np.eye(5, 16, dtype=bool),
    "temperature": [20, 40, 60],
}
SIZES = (4, 3, 5, 3)


@given(
    sizes=st.lists(st.integers(1, 999), min_size=1, max_size=4),
    numbers=st.lists(st.integers(0, 10**12), min_size=1, max_size=5),
)
@settings(max_examples=25)
def test_the_last_component_varies_fastest(sizes, numbers):
    lists = {str(place): range(size) for place, size in enumerate(sizes)}
    arms = ProductArms(lists)
    assert arms.shape == (math.prod(sizes), len(sizes))
    indices = torch.tensor(numbers) % len(arms)
    expected = np.stack(np.unravel_index(indices.numpy(), sizes), axis=-1)
    np.testing.assert_array_equal(arms.components(indices), expected)
    np.testing.assert_array_equal(arms[indices], expected)
    np.testing.assert_array_equal(arms.numbers(torch.from_numpy(expected)), indices)


def test_products_are_taken_as_rows_are_but_no_others_are_joined():
    arms = ProductArms(COMPONENTS)
    dense = arms.components(torch.arange(len(arms))).double()
    last = torch.tensor([-1, 2])
    for rows in (slice(3, 90, 4), slice(9, 3), dense[:, 0] == 1, slice(None), last):
        assert torch.equal(arms[rows] + 0, dense[rows])
    assert torch.equal(arms.index_select(0, torch.tensor(3)), dense[3])
    with pytest.raises(IndexError, match="rows of 180 arms, but got"):
        arms[torch.tensor([0, len(arms)])]
    with pytest.raises(UnsupportedError, match="no arms beside those of a product"):
        torch.cat([arms, dense[:1]])


def test_the_form_of_a_component_says_what_it_is():
    arms = ProductArms(COMPONENTS, dtype=torch.float32)
    assert arms.sizes == SIZES
    assert [isinstance(rows, BitArms) for rows in arms.tables] == [0, 0, 1, 0]
    assert [each is not None for each in arms.categories] == [False, True, False, False]
    assert all(rows.dtype == torch.float32 for rows in arms.tables)
    assert arms.tables[3].flatten().tolist() == [20, 40, 60]
    assert len(ProductArms({name: range(10**4) for name in "abc"})) == 10**12
    counts = torch.tensor([[0, 2, 1], [3, 0, 0]], dtype=torch.uint8)
    assert isinstance(ProductArms({"a": counts}).tables[0], BitArms)


RULES = [{"base": 1, "temperature": 2}, {"base": 2, "temperature": 0}, {"acid": 3}]


def is_forbidden(positions):
    acid, base, _, temperature = positions.T
    is_too_hot = (base == 1) & (temperature == 2)
    return is_too_hot | ((base == 2) & (temperature == 0)) | (acid == 3)


@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        (rule for rule in RULES),
        is_forbidden,
        lambda positions: is_forbidden(positions).long(),
        lambda positions: is_forbidden(positions).numpy(),
    ],
    ids=["list", "generator", "bool", "long", "array"],
)
def test_forbidden_combinations_are_not_allowed(rules):
    arms = ProductArms(COMPONENTS, forbidden=rules)
    everything = torch.arange(len(arms))
    expected = ~is_forbidden(arms.components(everything))
    assert torch.equal(arms.is_allowed(everything), expected)


def side_by_side(arms, indices):
    positions = arms.components(indices)
    tables = [
        rows.dense() if isinstance(rows, BitArms) else rows for rows in arms.tables
    ]
    columns = [rows[at] for rows, at in zip(tables, positions.mT, strict=True)]
    return torch.cat(columns, dim=-1)


def sum_of_products():
    """Columns: 0, 1 the acid, 2 the base, 3 to 18 the fingerprint, 19 the rest."""
    acid = MaternKernel(nu=2.5, ard_num_dims=2, active_dims=(0, 1))
    part = RBFKernel(active_dims=(1,))
    prints = TanimotoKernel(active_dims=range(3, 19))
    rest = MaternKernel(nu=1.5, active_dims=(19,))
    rest.lengthscale = 15.0
    first = ScaleKernel(ProductKernel(ScaleKernel(acid), prints))
    first.outputscale = 2.5
    return (first + ScaleKernel(ProductKernel(part, rest, acid)) + rest).double()


@pytest.mark.parametrize("most_similar", [0, 2048])
def test_the_learned_kernel_of_fingerprints_and_its_gradient(most_similar, monkeypatch):
    monkeypatch.setattr(product, "MOST_SIMILAR", most_similar)
    generator = torch.Generator().manual_seed(0)
    lists = [torch.randint(most, (n, 16), generator=generator) for n, most in LISTS]
    arms = ProductArms(dict(zip("ab", lists, strict=True)))
    kernel = arms.kernel_to_learn()
    mixed = [part for part in kernel.modules() if isinstance(part, MixedKernel)]
    for part, weight in zip(mixed, (0.5, 2.0), strict=True):
        part.initialize(raw_weight=weight)
    x, z = torch.tensor([[0, 1], [3, 2], [3, 1]]), torch.tensor([[3, 0], [5, 2]])
    K = kernel(x.double(), z.double()).to_dense()
    K.sum().backward()
    parts, slopes = [], []
    for rows, w, at in zip(lists, (0.5, 2.0), (0, 1), strict=True):
        left, right = rows.numpy()[x[:, at]][:, None], rows.numpy()[z[:, at]]
        T = np.minimum(left, right).sum(-1) / np.maximum(left, right).sum(-1)
        parts.append((1 + w * T) / (1 + w))
        slopes.append((T - 1) / (1 + w) ** 2)
    np.testing.assert_allclose(K.detach(), parts[0] * parts[1], rtol=1e-6)
    for part, slope, other in zip(mixed, slopes, parts[::-1], strict=True):
        expected = pytest.approx((slope * other).sum(), rel=1e-5)
        assert part.raw_weight.grad.item() == expected


def test_a_kernel_of_the_columns_is_evaluated_by_component():
    arms, kernel = ProductArms(COMPONENTS), sum_of_products()
    indices = torch.tensor([0, 7, 7, 55, 179, 120])
    rows = side_by_side(arms, indices)
    expected = kernel(rows).to_dense().detach().numpy()
    ours = arms.kernel_of(kernel)
    np.testing.assert_allclose(
        ours(arms[indices]).to_dense().detach(), expected, atol=1e-12
    )
    np.testing.assert_allclose(
        ours(arms[indices], diag=True).detach(), expected.diagonal(), atol=1e-12
    )
    total = 0.0
    for tables in ours.tables(arms[indices]):
        product = 1.0
        for table, at in zip(tables, arms.components(indices).mT, strict=True):
            product = product * table[at]
        total = total + product
    np.testing.assert_allclose(total, expected, atol=1e-12)


@pytest.mark.parametrize("columns", [None, (0, 2)])
def test_a_kernel_across_components_is_refused(columns):
    arms = ProductArms(COMPONENTS)
    with pytest.raises(UnsupportedError, match="act on one component each"):
        arms.kernel_of(RBFKernel(active_dims=columns))


@pytest.mark.parametrize(
    ("components", "forbidden", "error", "message"),
    [
        ({}, (), InputDataError, "at least one component"),
        ({"a": ["x", "x"]}, (), InputDataError, "distinct categories of 'a'"),
        ({"a": [0.0, math.nan]}, (), InputDataError, "NaN or infinity"),
        ({"a": np.ones((2, 3, 4))}, (), BotorchTensorDimensionError, "shape"),
        ({name: range(10**5) for name in "abc"}, (), InputDataError, "at most 1e"),
        ({"a": [1, 2]}, [{"b": 0}], InputDataError, r"name components.*\['a'\]"),
        ({"a": [1, 2]}, [{"a": 2}], InputDataError, "list 'a', 0 to 1, but got 2"),
        ({"a": ["x", "y"]}, [{"a": "x"}], InputDataError, "positions in the list 'a'"),
        ({"a": [1, 2]}, [{}], InputDataError, r"one is \{\}. Leave empty ones out"),
        ({"a": [1, 2]}, {"a": 1}, InputDataError, "put a single one into a list"),
        ({"a": [1, 2]}, None, InputDataError, "one is None"),
        ({"a": np.array([[300], [2]])}, (), InputDataError, "'a', from 0 to 255"),
    ],
)
def test_what_is_no_product_space_is_refused(components, forbidden, error, message):
    with pytest.raises(error, match=message):
        ProductArms(components, forbidden=forbidden)
