import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import ScaleKernel

from botorch_bkb.arms import BitArms
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.models.kernels.learned import tanimoto_sum_to_learn, tanimoto_to_learn
from botorch_bkb.models.utils.nystrom import dense_covariance
from tests.helpers import random_points
from tests.reference import composite_covariance


def fingerprints(*shape, counts, seed=0, dtype=torch.double):
    """Return sparse bits, or counts, of which the first row is all zero."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(*shape, generator=generator) < 0.15).to(dtype)
    if counts:
        x *= torch.randint(1, 6, shape, generator=generator)
    x[..., 0, :] = 0
    return x


def min_max(x1, x2):
    """The definition, over an array of all pairs."""
    x1, x2 = x1.numpy()[..., :, None, :], x2.numpy()[..., None, :, :]
    smaller, larger = np.minimum(x1, x2).sum(-1), np.maximum(x1, x2).sum(-1)
    return np.where(larger == 0, 1.0, smaller / np.where(larger == 0, 1.0, larger))


each_kind = pytest.mark.parametrize("counts", [False, True], ids=["bits", "counts"])


@each_kind
@pytest.mark.parametrize(
    ("dtype", "batch_shape"), [(torch.float, ()), (torch.double, (2, 3))]
)
def test_it_is_the_definition(batch_shape, dtype, counts):
    kernel = TanimotoKernel().to(dtype)
    x1 = fingerprints(*batch_shape, 5, 64, counts=counts, dtype=dtype)
    x2 = fingerprints(*batch_shape, 7, 64, counts=counts, dtype=dtype, seed=1)
    rtol = 1e-12 if dtype == torch.double else 1e-6
    found = dense_covariance(kernel, x1, x2)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, min_max(x1, x2), rtol=rtol)
    np.testing.assert_allclose(kernel(x1, diag=True), np.ones((*batch_shape, 5)))
    pairs = kernel(x1, x2[..., :5, :], diag=True)
    expected = np.diagonal(min_max(x1, x2[..., :5, :]), axis1=-2, axis2=-1)
    np.testing.assert_allclose(pairs, expected, rtol=rtol)


@each_kind
def test_gradients_are_those_of_differences(counts):
    x1 = fingerprints(3, 6, counts=counts, seed=3) + 0.3
    x2 = fingerprints(4, 6, counts=counts, seed=4) + 0.1
    x1.requires_grad_()

    def similarities(x):
        return dense_covariance(TanimotoKernel(), x, x2)

    assert torch.autograd.gradcheck(similarities, (x1,))


def test_the_fingerprint_may_be_some_of_the_columns():
    x = fingerprints(6, 12, counts=True)
    wide = torch.cat([torch.full((6, 2), -3.0).double(), x], dim=-1)
    kernel = ScaleKernel(TanimotoKernel(active_dims=tuple(range(2, 14)))).double()
    kernel.outputscale = 2.5
    with torch.no_grad():
        found = dense_covariance(kernel, wide)
    np.testing.assert_allclose(found, 2.5 * min_max(x, x), rtol=1e-12)


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_features_below_zero_are_refused(value):
    x = fingerprints(4, 8, counts=True)
    bad = x.clone()
    bad[2, 3] = value
    for pair in ((bad, x), (x, bad)):
        with pytest.raises(InputDataError, match="Expected features of at least zero"):
            dense_covariance(TanimotoKernel(), *pair)


@each_kind
def test_numbers_beside_a_fingerprint_multiply_or_add(counts):
    x, numbers = fingerprints(9, 16, counts=counts), random_points(9, 3, seed=5)
    arms = BitArms(x.to(torch.uint8), is_packed=False, numbers=numbers)
    product = tanimoto_to_learn(arms).double()
    total = tanimoto_sum_to_learn(arms).double()
    scales = np.array([0.3, 0.8, 2.0])
    matern = composite_covariance(numbers.numpy(), numbers.numpy(), [(scales, 1.0)])
    product.outputscale = 1.75
    total.kernels[0].outputscale, total.kernels[1].outputscale = 0.5, 2.5
    for part in (product.base_kernel.kernels[1], total.kernels[1].base_kernel):
        part.lengthscale = torch.from_numpy(scales)
    for kernel, expected in (
        (product, 1.75 * min_max(x, x) * matern),
        (total, 0.5 * min_max(x, x) + 2.5 * matern),
    ):
        for rows in (arms, arms.dense()):
            with torch.no_grad():
                found = dense_covariance(kernel, rows)
            np.testing.assert_allclose(found, expected, rtol=1e-10)
