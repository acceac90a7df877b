"""Which points the features stand on, and what rounding leaves of them."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_bkb.models.utils.nystrom import independent_points, is_well_conditioned


def smooth_line(dtype):
    """Return a kernel of a lengthscale of 0.08, and 400 arms from 0 to 1."""
    kernel = RBFKernel().to(dtype)
    kernel.lengthscale = 0.08
    return kernel, torch.linspace(0, 1, 400, dtype=dtype).unsqueeze(-1)


@pytest.mark.parametrize("size", [14, 20])
@pytest.mark.parametrize(("dtype", "most"), [(torch.double, 1e-6), (torch.float, 1e-2)])
def test_residuals_are_no_less_than_zero_whatever_the_points(dtype, most, size):
    """In the order of the line some of these draws have no small pivot, and an inverse
    that leaves an arm far from them a residual of -0.27 (14 points) or -0.008 (16).
    Another processor is worse at the kernel: the noise imitates it."""
    kernel, arms = smooth_line(dtype)
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        K = kernel(arms).to_dense()
        noise = 8 * torch.finfo(dtype).eps * torch.randn(K.shape, generator=stream)
        K = K + (noise + noise.mT).to(dtype) / 2
    for number in range(80):
        width = 150 if number % 2 else 200
        drawn = torch.randperm(width, generator=stream)[:size].sort().values
        kept = drawn[independent_points(K[drawn][:, drawn])]
        L = torch.linalg.cholesky(K[kept][:, kept])
        Z = torch.linalg.solve_triangular(L, K[kept], upper=False)
        residual = 1 - Z.square().sum(dim=0)
        assert residual.min() > -most


def test_the_condition_is_that_of_the_inverse_and_not_of_the_diagonal():
    """Kahan's matrix: no small pivot, and an inverse that grows with its powers."""
    size, cosine = 60, 0.6
    sine = np.sqrt(1 - cosine**2)
    upper = np.diag(sine ** np.arange(size)) @ (
        np.eye(size) - cosine * np.triu(np.ones((size, size)), 1)
    )
    L = torch.from_numpy(upper.T.copy())
    inverse = torch.linalg.solve_triangular(L, torch.eye(size).double(), upper=False)
    assert L.diagonal().square().min() > 1e-12
    assert not is_well_conditioned(inverse)
    assert is_well_conditioned(torch.eye(size).double())
