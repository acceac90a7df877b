import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.kernels.categorical import CategoricalKernel

from botorch_bkb.models.kernels import (
    nearest_covariance,
    PrecomputedKernel,
    product,
    TemporalDecayKernel,
)
from tests.helpers import seeded


def times(*shape, dtype=torch.double):
    generator = seeded()
    return (10 * torch.rand(*shape, 1, generator=generator)).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "batch_shape"), [(torch.float, ()), (torch.double, (2, 3))]
)
def test_temporal_decay_is_the_paper_s_formula(dtype, batch_shape):
    """Of one rate, or of a batch of them."""
    kernel = TemporalDecayKernel(batch_shape=torch.Size(batch_shape)).to(dtype)
    rates = torch.linspace(0.3, 0.7, math.prod(batch_shape)).double()
    rates = rates.reshape(*batch_shape, 1, 1)
    kernel.forgetting_rate = rates
    x1, x2 = times(*batch_shape, 4, dtype=dtype), times(*batch_shape, 5, dtype=dtype)
    gaps = np.abs(x1.numpy() - np.swapaxes(x2.numpy(), -1, -2))
    rtol = 1e-10 if dtype == torch.double else 1e-5
    with torch.no_grad():
        found = kernel(x1, x2).to_dense()
        np.testing.assert_allclose(found, (1 - rates.numpy()) ** (gaps / 2), rtol=rtol)
        np.testing.assert_allclose(kernel(x1, diag=True), np.ones_like(x1)[..., 0])
    assert found.dtype == dtype


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_ends_of_the_interval_remember_everything_and_nothing(rate):
    kernel = TemporalDecayKernel().double()
    kernel.forgetting_rate = rate
    t = torch.tensor([[0.0], [1.0], [1.0]]).double()
    with torch.no_grad():
        gram = kernel(t).to_dense()
    same = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 1, 1]]).double()
    torch.testing.assert_close(gram, same if rate else torch.ones(3, 3).double())


@pytest.mark.parametrize("diag", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1 - 1e-16, 1.0])
def test_gradients_are_finite_up_to_the_ends_of_the_interval(rate, diag):
    kernel = TemporalDecayKernel().double()
    kernel.forgetting_rate = rate
    t = torch.tensor([[0.0], [0.4], [1.0], [1.0], [9.0]]).double().requires_grad_()
    K = kernel(t, diag=True) if diag else kernel(t).to_dense()
    K.square().sum().backward()
    assert t.grad.isfinite().all()
    assert kernel.raw_forgetting_rate.grad.isfinite().all()
    if rate == 0.3 and not diag:  # d/d eps of (1 - eps)^gap, by the chain rule
        gap = (t - t.mT).abs()
        slope = -(gap * 0.7 ** (gap - 1)).sum() * 0.3 * 0.7
        torch.testing.assert_close(kernel.raw_forgetting_rate.grad.sum(), slope)


@pytest.fixture
def table():
    readings = torch.randn(40, 6, generator=seeded(), dtype=torch.double)
    return readings.T.cov()


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_precomputed_covariances_are_looked_up(table, batch_shape):
    kernel = PrecomputedKernel(table)
    x1 = torch.tensor([[0.0], [3.0]]).double().expand(*batch_shape, 2, 1)
    x2 = torch.tensor([[5.0], [0.0], [2.0]]).double().expand(*batch_shape, 3, 1)
    expected = table[[0, 3]][:, [5, 0, 2]].expand(*batch_shape, 2, 3)
    torch.testing.assert_close(kernel(x1, x2).to_dense(), expected)
    expected = table.diagonal()[[0, 3]].expand(*batch_shape, 2)
    torch.testing.assert_close(kernel(x1, diag=True), expected)


def test_a_repair_is_the_nearest_table(table):
    broken = table - 1.5 * torch.eye(6).double()
    with pytest.raises(InputDataError, match="smallest eigenvalue is -"):
        PrecomputedKernel(broken)
    repaired = nearest_covariance(broken)
    PrecomputedKernel(repaired)
    eigenvalues = np.linalg.eigvalsh(broken.numpy())
    distance = np.sqrt((eigenvalues[eigenvalues < 0] ** 2).sum())
    assert (repaired - broken).norm().item() == pytest.approx(distance, rel=1e-9)
    torch.testing.assert_close(nearest_covariance(table), table)


def test_bad_tables_and_inputs_are_refused(table):
    with pytest.raises(BotorchTensorDimensionError, match="of shape A x A"):
        PrecomputedKernel(table[:3])
    skewed = table.clone()
    skewed[0, 1] += 1
    with pytest.raises(InputDataError, match="from the transpose"):
        PrecomputedKernel(skewed)
    with pytest.raises(BotorchTensorDimensionError, match="the time, but got 2"):
        TemporalDecayKernel()(torch.rand(3, 2)).to_dense()
    for bad in (0.5, 6.0, -1.0):
        with pytest.raises(InputDataError, match="arm indices from 0 to 5"):
            PrecomputedKernel(table)(torch.tensor([[bad]]).double()).to_dense()


@pytest.mark.parametrize("words", [1, 2])
def test_variances_of_many_words_are_computed_a_part_at_a_time(words, monkeypatch):
    monkeypatch.setattr(product, "DIAGONAL_ROWS", 3)
    codes = torch.arange(8).unsqueeze(-1).repeat(1, words).double()
    part = CategoricalKernel(active_dims=range(words)).double()
    kernel = product.ComponentKernel([codes], part)
    x, z = torch.arange(8).unsqueeze(-1), torch.arange(8).flip(0).unsqueeze(-1) // 2
    with torch.no_grad():
        full = kernel(x, z).to_dense().diagonal()
        assert kernel(x, z, diag=True).equal(full)
        assert kernel(x, diag=True).equal(torch.ones(8).double())
