"""The ANOVA kernel against NumPy, on all paths."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies

from botorch_bkb.models.kernels import AnovaKernel, learned
from tests.helpers import random_points, seeded
from tests.reference import anova_covariance


def made(num_features, dtype=torch.double, seed=0):
    """A kernel of random lengthscales and weights."""
    stream = seeded(seed)
    kernel = AnovaKernel(num_features).to(dtype)
    scales = 0.2 + torch.rand(2, num_features, generator=stream, dtype=dtype)
    kernel.lengthscale = scales[:1]
    kernel.initialize(raw_weight=5 * scales[1:])
    return kernel


def points(*shape, dtype=torch.double, seed=1):
    return random_points(*shape, seed=seed, dtype=dtype)


def dense(kernel, x, z):
    numbers = (kernel.lengthscale, kernel.weight)
    scales, weights = (one.double().numpy(force=True)[0] for one in numbers)
    return anova_covariance(x.double().numpy(), z.double().numpy(), scales, weights)


@pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
@pytest.mark.parametrize("learns", [False, True], ids=["in place", "with gradients"])
@given(
    sizes=strategies.tuples(*[strategies.integers(1, 7)] * 3),
    tile=strategies.sampled_from([1, 5, 2**15]),
)
@settings(max_examples=25)
def test_it_is_the_formula(sizes, tile, learns, dtype):
    n, m, d = sizes
    kernel, x, z = made(d, dtype), points(n, d, dtype=dtype), points(m, d, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(learns):
        patch.setattr(learned, "TILE", tile)
        found = kernel(x, z).to_dense().numpy(force=True)
    atol = 1e-12 if dtype == torch.double else 1e-5
    np.testing.assert_allclose(found, dense(kernel, x, z), atol=atol)


@pytest.mark.parametrize("learns", [False, True], ids=["in place", "with gradients"])
def test_batches_and_diagonals(learns):
    kernel, x, z = made(3), points(2, 5, 3), points(4, 3)
    with torch.set_grad_enabled(learns):
        found = kernel(x, z).to_dense().numpy(force=True)
        diagonal = kernel(x[0, :4], z, diag=True).numpy(force=True)
    for each, one in zip(found, x, strict=True):
        np.testing.assert_allclose(each, dense(kernel, one, z), atol=1e-12)
    np.testing.assert_allclose(diagonal, np.diag(dense(kernel, x[0, :4], z)))


def test_gradients_are_those_of_differences():
    kernel, x, z = made(2), points(3, 2).requires_grad_(), points(2, 2)

    def covariances(*_):
        return kernel.forward(x, z)

    inputs = (x, kernel.raw_lengthscale, kernel.raw_weight)
    assert torch.autograd.gradcheck(covariances, inputs)


def test_the_effective_lengthscale_has_the_same_curvature():
    kernel, step = made(1), 1e-3
    x = torch.tensor([[0.0], [step]]).double()
    drop = 1 - kernel(x).to_dense()[0, 1].item()
    expected = step / np.sqrt(2 * drop)
    assert kernel.effective_lengthscale.item() == pytest.approx(expected, rel=1e-4)


def test_a_pickle_is_the_same_kernel_with_its_prior():
    kernel, x = made(3), points(4, 3)
    copy = pickle.loads(pickle.dumps(kernel))
    assert torch.equal(copy(x).to_dense(), kernel(x).to_dense())
    ((_, module, _, weight, set_weight),) = copy.named_priors()
    set_weight(module, torch.full((1, 3), 2.0).double())
    assert weight(module).tolist() == [[2.0, 2.0, 2.0]]
