"""Draws on a box: moments against dense Gaussians, and BoTorch's path machinery."""

import operator
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import (
    draw_matheron_paths,
    gaussian_update,
    gen_kernel_features,
    get_matheron_path_model,
)
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from linear_operator.operators import DiagLinearOperator

from botorch_bkb.generation import (
    draw_eigenfeature_paths,
    draw_posterior_paths,
    draw_weight_paths,
    EigenfeatureMap,
)
from botorch_bkb.models import SingleTaskDTCGP
from tests.bandits import rbf
from tests.helpers import gram_matrix, seeded
from tests.models.test_dtc_gp import plain_model
from tests.posteriors.test_arm_sampler import largest_z, MAX_Z
from tests.reference import dtc_parts


NOISE = 0.05
NUM_DRAWS = 20_000
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def scaled(base, outputscale):
    kernel = ScaleKernel(base).double()
    kernel.outputscale = outputscale
    return kernel


def product():
    """A product with a scale, an active dimension and a product inside."""
    inner = rbf(0.8) * scaled(MaternKernel(nu=1.5).double(), 0.5)
    return scaled(rbf(0.5, active_dims=[1]), 2.0) * inner


def total():
    """A sum of parts of different variance, one of one dimension."""
    trend = scaled(MaternKernel(nu=2.5, ard_num_dims=2).double(), 0.7)
    return trend + scaled(rbf(0.2), 0.2) + scaled(rbf(0.5, active_dims=[1]), 1.5)


class Data:
    """Repeated measurements in a box, and test points far from and near them."""

    def __init__(self, seed=0):
        generator = seeded(seed)

        def uniform(size):
            return torch.rand(size, 2, generator=generator, dtype=torch.double)

        distinct = 0.6 * uniform(8)
        rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 3, 5])
        self.X = distinct[rows]
        noise = torch.randn(12, 1, generator=generator, dtype=torch.double)
        self.Y = (4 * self.X.sum(dim=-1, keepdim=True)).sin() + 0.2 * noise
        self.S = distinct[:4]
        self.test_X = torch.cat([uniform(8), distinct[3:6], distinct[:1] + 1e-3])
        self.generator = generator

    def model(self, kernel=None, inducing_points=None, **options):
        options["train_Yvar"] = torch.full_like(self.Y, NOISE)
        kernel = rbf(0.3) if kernel is None else kernel
        options["inducing_points"] = inducing_points
        return plain_model(self.X, self.Y, kernel, **options)

    def dense(self, kernel, S):
        """Return mean, covariance and projected covariance at the test points."""
        if S is None:
            S = self.X

        pairs = (S, S), (S, self.X), (S, self.test_X), (self.test_X, self.test_X)
        weights, targets = np.full(12, 1 / NOISE), self.Y.squeeze(-1).numpy()
        return dtc_parts(
            *(gram_matrix(kernel, *pair) for pair in pairs), weights, targets
        )


def values(paths, X):
    with torch.no_grad():
        return paths(X)


kernels = pytest.mark.parametrize(
    "kernel", [product(), LinearKernel().double()], ids=["product", "linear"]
)
models = pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "exact"])


# Moments ------------------------------------------------------------------------------


@kernels
@models
def test_with_an_exact_prior_draw_paths_have_the_whole_posterior(kernel, sparse):
    """Eigenpairs of all points in question: their prior is exact there."""
    data = Data()
    S = data.S if sparse else None
    model = data.model(kernel, S)
    sampler = partial(
        draw_eigenfeature_paths,
        points=torch.cat([data.test_X, data.X[:8]]),
        generator=data.generator,
    )
    paths = draw_posterior_paths(model, NUM_DRAWS, data.generator, sampler)
    draws = values(paths, data.test_X)
    assert draws.shape == (NUM_DRAWS, 12)
    mean, covariance, _ = data.dense(kernel, S)
    assert largest_z(draws, mean, covariance, 1e-4) < MAX_Z


@kernels
@models
def test_weight_paths_have_the_projected_covariance(kernel, sparse):
    data = Data()
    S = data.S if sparse else None
    model = data.model(kernel, S)
    draw = draw_weight_paths(model, torch.Size([NUM_DRAWS]), generator=data.generator)
    mean, _, projected = data.dense(kernel, S)
    assert largest_z(values(draw, data.test_X), mean, projected, 1e-6) < MAX_Z


@pytest.mark.parametrize("num_features", [None, 3])
def test_weight_paths_of_the_papers_feature_map(num_features):
    """Equation (5) of the paper, with the top eigenpairs of K at a few points."""
    data, kernel = Data(), rbf(0.3)
    points = torch.rand(15, 2, generator=data.generator, dtype=torch.double)
    options = points, num_features, data.generator
    draws = draw_weight_paths(data.model(kernel), torch.Size([NUM_DRAWS]), *options)
    eigenvalues, U = np.linalg.eigh(kernel(points).to_dense().detach().numpy())
    kept = slice(-num_features if num_features else None, None)
    root = U[:, kept] / np.sqrt(eigenvalues[kept])
    Phi = kernel(data.X, points).to_dense().detach().numpy() @ root
    phi = kernel(data.test_X, points).to_dense().detach().numpy() @ root
    A = Phi.T @ Phi + NOISE * np.eye(Phi.shape[1])
    mean = phi @ np.linalg.solve(A, Phi.T @ data.Y.squeeze(-1).numpy())
    covariance = NOISE * phi @ np.linalg.solve(A, phi.T)
    assert largest_z(values(draws, data.test_X), mean, covariance, 1e-6) < MAX_Z


# Features of products and sums --------------------------------------------------------


@pytest.mark.parametrize(
    "make_kernel",
    [
        product,
        total,
        lambda: scaled(total() * rbf(0.7), 0.8),
        lambda: rbf(0.3) + ScaleKernel(rbf(0.3) + rbf(0.7), active_dims=[1]).double(),
        lambda: rbf(0.3) * (scaled(rbf(0.3), 0.0) + scaled(rbf(0.3), 0.0)) + rbf(0.5),
    ],
)
def test_features_of_products_and_sums_approximate_their_kernel(make_kernel):
    kernel, X = make_kernel(), Data().test_X
    with manual_seed(0):
        features = gen_kernel_features(kernel, num_inputs=2, num_outputs=2**15)
    phi = features(X)
    assert phi.shape == (12, 2**15)
    torch.testing.assert_close(phi @ phi.mT, kernel(X).to_dense(), atol=0.04, rtol=0)
    # Sines and cosines of the same phases: every variance is exact.
    torch.testing.assert_close((phi @ phi.mT).diagonal(), kernel(X, diag=True))


@pytest.mark.parametrize("combine", [operator.mul, operator.add])
def test_stationary_kernels_have_features_and_others_say_so(combine):
    kernel = combine(rbf(0.3), LinearKernel().double())
    with pytest.raises(NotImplementedError, match="LinearKernel"):
        gen_kernel_features(kernel, num_inputs=2, num_outputs=8)
    batched = combine(RBFKernel(batch_shape=torch.Size([3])), RBFKernel())
    with pytest.raises(UnsupportedError, match="unbatched `kernel`"):
        gen_kernel_features(batched, num_inputs=2, num_outputs=8)


# BoTorch's machinery ------------------------------------------------------------------


@models
def test_botorch_maximizes_the_paths(sparse):
    data = Data()
    model = data.model(product(), data.S if sparse else None)
    with manual_seed(0):
        paths = get_matheron_path_model(model, sample_shape=torch.Size([3]))
        X, f = optimize_posterior_samples(paths, BOUNDS, 128, 4)
    assert X.shape == (3, 2)
    assert f.shape == (3, 1)
    grid = torch.rand(500, 2, generator=data.generator, dtype=torch.double)
    with torch.no_grad():
        assert (paths(grid).squeeze(-1).amax(dim=-1) < f.squeeze(-1) + 0.05).all()
    with manual_seed(0):
        acqf = PathwiseThompsonSampling(model)
        candidates, _ = optimize_acqf(acqf, BOUNDS, q=2, num_restarts=2, raw_samples=16)
    assert candidates.shape == (2, 2)
    assert ((candidates >= 0) & (candidates <= 1)).all()


@models
def test_paths_are_differentiable(sparse):
    data = Data()
    model = data.model(product(), data.S if sparse else None)
    for paths in (
        draw_posterior_paths(model, 2, data.generator),
        draw_weight_paths(model, torch.Size([2]), generator=data.generator),
    ):
        X = data.test_X[:3].clone().requires_grad_()
        assert torch.autograd.gradcheck(paths, X)


@models
def test_transforms_of_inputs_and_outcomes(sparse):
    """A model in other units draws the same functions in these units."""
    data = Data()
    S = data.S if sparse else None
    plain = data.model(inducing_points=S)
    bounds = torch.tensor([[-3.0, 10.0], [7.0, 12.0]], dtype=torch.double)
    width = bounds[1] - bounds[0]
    data.X = data.X * width + bounds[0]
    stretched = data.model(
        inducing_points=None if S is None else S * width + bounds[0],
        input_transform=Normalize(2, bounds=bounds),
    )
    for draw in (
        lambda model: draw_posterior_paths(model, 3, generator()),
        lambda model: draw_weight_paths(model, torch.Size([3]), generator=generator()),
    ):
        expected = values(draw(plain), data.test_X)
        got = values(draw(stretched), data.test_X * width + bounds[0])
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def generator():
    return seeded(9)


def test_standardized_outcomes_come_back_in_their_units():
    data = Data()
    data.Y = 100 + 10 * data.Y
    options = {"inducing_points": data.S, "covar_module": rbf(0.3)}
    model = SingleTaskDTCGP(data.X, data.Y, **options)
    model.likelihood.noise = 0.05
    draws = values(draw_posterior_paths(model, 4000, data.generator), data.X[:4])
    with torch.no_grad():
        posterior = model.posterior(data.X[:4])
    mean, variance = posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)
    assert ((draws.mean(dim=0) - mean) / variance.sqrt()).abs().max() < 0.2
    torch.testing.assert_close(draws.var(dim=0), variance, rtol=0.2, atol=0)


def silent():
    """Stand in for the noise of updates, so that their weights can be compared."""
    return patch.object(torch, "randn_like", torch.zeros_like)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_update_takes_targets_and_noise_of_ones_own(sparse):
    data = Data()
    model = data.model(inducing_points=data.S if sparse else None)
    points = data.S if sparse else data.X[:8]
    f_0 = torch.sin(points.sum(dim=-1))
    n = len(data.X)
    targets = torch.cos(data.X.sum(dim=-1))
    noise = torch.linspace(0.1, 1.0, n).double()
    with silent():
        update = gaussian_update(
            model,
            f_0,
            target_values=targets,
            noise_covariance=DiagLinearOperator(noise),
        )
        stated = gaussian_update(model, f_0, target_values=model.train_targets)
        plain = gaussian_update(model, f_0)
    torch.testing.assert_close(stated.weight, plain.weight)
    # The mean of a model of these targets, less what they say of the prior values.
    kernel = model.covar_module
    K_sx = gram_matrix(kernel, points, data.X)
    K_ss = gram_matrix(kernel, points, points)
    to_data = np.linalg.solve(K_ss, K_sx)
    covariance = K_sx.T @ to_data + np.diag(noise.numpy())
    errors = targets.numpy() - to_data.T @ f_0.numpy()
    expected = gram_matrix(kernel, data.test_X, points) @ to_data
    expected = expected @ np.linalg.solve(covariance, errors)
    found = update(data.test_X).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_list_of_models_and_a_conditioned_model():
    data = Data()
    sparse = data.model(inducing_points=data.S)
    with manual_seed(0):
        both = draw_matheron_paths(
            ModelListGP(sparse, data.model()), sample_shape=torch.Size([2])
        )
    assert [value.shape for value in both(data.test_X)] == [(2, 12), (2, 12)]
    extra = torch.tensor([[0.9, 0.9]], dtype=torch.double)
    noise = torch.full((1, 1), 1e-4, dtype=torch.double)
    conditioned = sparse.condition_on_observations(extra, noise + 3.0, noise)
    draws = values(draw_posterior_paths(conditioned, 50, data.generator), extra)
    assert (draws - 3).abs().max() < 0.2


def test_draws_come_from_the_generator_and_leave_the_global_one():
    data = Data()
    model = data.model(inducing_points=data.S)
    before = torch.get_rng_state()
    first, again, other = (
        values(draw_posterior_paths(model, 2, source), data.test_X)
        for source in (generator(), generator(), data.generator)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    draw_weight_paths(model, torch.Size([2]))
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_arguments_are_refused():
    data = Data()
    model = data.model(inducing_points=data.S)
    with pytest.raises(BotorchTensorDimensionError, match="at the 4 inducing points"):
        gaussian_update(model, torch.zeros(12, dtype=torch.double))
    with pytest.raises(UnsupportedError, match="a diagonal `noise_covariance`"):
        gaussian_update(
            model, torch.zeros(4).double(), noise_covariance=torch.ones(12, 12).double()
        )
    for shape in ((3,), (0, 2), (1, 3, 2)):
        with pytest.raises(BotorchTensorDimensionError, match="at least one point"):
            EigenfeatureMap(RBFKernel(), torch.zeros(shape))
    with pytest.raises(InputDataError, match="positive eigenvalue"):
        EigenfeatureMap(LinearKernel().double(), torch.zeros(3, 2, dtype=torch.double))
    fantasies = model.condition_on_observations(
        data.X[:3, None], data.Y[:3, None], torch.full((3, 1, 1), NOISE).double()
    )
    with pytest.raises(UnsupportedError, match="unbatched training data"):
        draw_posterior_paths(fantasies, 2, data.generator)
