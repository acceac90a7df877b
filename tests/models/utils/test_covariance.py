import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from botorch_bkb.models.utils.nystrom import dense_covariance, lazy_covariance
from tests.reference import matern_covariance


# Set as tensors: GPyTorch takes numbers through float32.
LENGTHSCALE, VARIANCE, OUTPUTSCALE = torch.tensor([0.7, 1.3, 2.5]).double()


def rbf(**options):
    kernel = RBFKernel(**options).double()
    kernel.lengthscale = LENGTHSCALE
    return kernel


def linear(**options):
    kernel = LinearKernel(**options).double()
    kernel.variance = VARIANCE
    return kernel


def scaled(kernel):
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = OUTPUTSCALE
    return kernel


def np_rbf(x, z):
    squares = ((x[..., :, None, :] - z[..., None, :, :]) ** 2).sum(axis=-1)
    return np.exp(-squares / (2 * LENGTHSCALE.item() ** 2))


def np_linear(x, z):
    return VARIANCE.item() * (x @ np.swapaxes(z, -1, -2))


# Kernels with a linear part, and what they are.
KERNELS = {
    "sum": (lambda: rbf() + linear(), lambda x, z: np_rbf(x, z) + np_linear(x, z)),
    "scaled sum": (
        lambda: scaled(rbf() + linear()),
        lambda x, z: OUTPUTSCALE.item() * (np_rbf(x, z) + np_linear(x, z)),
    ),
    "product": (
        lambda: rbf() * (rbf() + linear()),
        lambda x, z: np_rbf(x, z) * (np_rbf(x, z) + np_linear(x, z)),
    ),
    "columns": (
        lambda: (
            scaled(rbf(active_dims=[1, 2])) + scaled(linear(active_dims=[0]) * rbf())
        ),
        lambda x, z: (
            OUTPUTSCALE.item()
            * (
                np_rbf(x[..., 1:], z[..., 1:])
                + np_linear(x[..., :1], z[..., :1]) * np_rbf(x, z)
            )
        ),
    ),
}
each_kernel = pytest.mark.parametrize(
    ("kernel", "formula"),
    [(make(), formula) for make, formula in KERNELS.values()],
    ids=KERNELS,
)


@each_kernel
@pytest.mark.parametrize(("batch_shape", "square"), [((), True), ((2,), False)])
def test_values_are_the_formulas(kernel, formula, batch_shape, square, generator):
    """To the last bits, for a singular matrix too."""
    x = torch.rand(*batch_shape, 12, 3, generator=generator, dtype=torch.double)
    x[..., 7, :] = x[..., 2, :]
    z = x if square else x[..., :5, :] / 2
    with torch.no_grad():
        found = dense_covariance(kernel, x, None if square else z)
        expected = formula(x.numpy(), z.numpy())
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15 * scale)
        lazy = lazy_covariance(kernel, x)
        np.testing.assert_array_equal(
            lazy.to_dense(), dense_covariance(kernel, x), strict=True
        )
        np.testing.assert_allclose(
            lazy.diagonal(dim1=-1, dim2=-2), kernel(x, diag=True), rtol=1e-15
        )


@each_kernel
def test_gradients_are_those_of_the_parts(kernel, formula, generator):
    x = torch.rand(5, 3, generator=generator, dtype=torch.double, requires_grad=True)

    def covariance(x):
        return dense_covariance(kernel, x, x)

    assert torch.autograd.gradcheck(covariance, (x,))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_matern_kernel_is_its_formula(dtype, shape, gradients):
    """In place without gradients, and by GPyTorch with them."""
    stream = np.random.default_rng(0)
    x, z = stream.random((*shape, 7, 3)), stream.random((*shape, 5, 3))
    z[..., 0, :] = x[..., 0, :]  # a distance of zero
    lengthscales = np.array([0.3, 2.0])
    part = MaternKernel(nu=2.5, ard_num_dims=2, active_dims=[0, 2])
    part.lengthscale = torch.tensor(lengthscales)
    kernel = (scaled(part) + rbf()).to(dtype)
    X, Z = (torch.tensor(points).to(dtype) for points in (x, z))
    with torch.set_grad_enabled(gradients):
        found = dense_covariance(kernel, X, Z)
        alone = dense_covariance(kernel.kernels[0], X, Z)
    gaps = (x[..., :, None, :] - z[..., None, :, :])[..., [0, 2]] / lengthscales
    expected = OUTPUTSCALE.item() * matern_covariance((gaps**2).sum(axis=-1))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(alone.detach(), expected, atol=tolerance)
    expected = expected + np_rbf(x, z)
    np.testing.assert_allclose(found.detach(), expected, atol=tolerance)
    assert found.dtype == dtype
    assert found.requires_grad == gradients
