"""Thompson draws on a box: differentiable functions, in BoTorch's path machinery.

Importing this module makes ``draw_matheron_paths``, and with it
``get_matheron_path_model``, ``PathwiseThompsonSampling`` and
``optimize_posterior_samples``, work with ``SingleTaskDTCGP``, and BoTorch's random
Fourier features with products and sums of stationary kernels.

A draw from the sparse posterior is a prior draw plus an update at the inducing points
("decoupled", section 3.2 of [wilson2020]_):

    f(x) = f_0(x) + z(x)^T V^{-1} Z^T W (ybar - Z u_0 - eps),
    u_0 = L^{-1} f_0(S),    eps ~ N(0, W^{-1}),    V = I + Z^T W Z.

If ``f_0`` is an exact draw from the prior, ``f`` has the posterior's mean and its whole
covariance. It is approximate:

- Random Fourier features (``draw_kernel_feature_paths``, BoTorch's default; stationary
  kernels, products and sums): the prior variances are exact, covariances are wrong by
  ``O(1 / sqrt(number of features))`` in either direction.
- The feature map of [basu2017]_ (:func:`draw_eigenfeature_paths`; any kernel), the top
  eigenpairs of the kernel matrix of some points: **over-confident away from these
  points**, and everywhere by the eigenvalues left out.
- No prior draw at all (:func:`draw_weight_paths`): ``z(x)^T theta``, the paper's draw.
  **Over-confident far from the inducing points**, where it falls back to the mean.

BoTorch's own functions draw from the global generator. :func:`draw_posterior_paths`
takes a generator and leaves the global one as it was.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.generation.gen import gen_candidates_scipy
from botorch.sampling.pathwise import (
    draw_kernel_feature_paths,
    draw_matheron_paths,
    gaussian_update,
    GeneralizedLinearPath,
    MatheronPath,
)
from botorch.sampling.pathwise.features.generators import (
    gen_kernel_features,
    GenKernelFeatures,
)
from botorch.sampling.pathwise.features.maps import (
    FeatureMap,
    KernelEvaluationMap,
    KernelFeatureMap,
)
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import TPathwisePriorSampler
from botorch.sampling.pathwise.update_strategies import GaussianUpdate, TPathwiseUpdate
from botorch.sampling.pathwise.utils import (
    get_input_transform,
    get_output_transform,
    SineCosineTransform,
)
from botorch.utils.context_managers import delattr_ctx
from botorch.utils.sampling import manual_seed
from botorch.utils.transforms import unnormalize
from gpytorch import settings
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from gpytorch.likelihoods import _GaussianLikelihoodBase
from linear_operator import to_dense
from linear_operator.operators import LinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Size, Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import override

from botorch_bkb.checks import check_size
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import as_generator, draw_normals, draw_seed
from botorch_bkb.models.utils.nystrom import (
    dense_covariance,
    independent_points,
    SPAN_TOLERANCE,
)
from botorch_bkb.models.utils.prediction import KernelFeatures, Observations
from botorch_bkb.models.utils.rows import find_replicates


MAX_ITERATIONS = 100  # of the optimizer, for all draws together


def draw_posterior_paths(
    model: SingleTaskDTCGP,
    num_draws: int,
    generator: torch.Generator,
    prior_sampler: TPathwisePriorSampler = draw_kernel_feature_paths,
) -> MatheronPath:
    """Draw functions by ``draw_matheron_paths``, with randomness from a generator.

    Args:
        model: The model; it is put in eval mode.
        num_draws: The number of draws.
        generator: The source of randomness.
        prior_sampler: The prior part, see the module.

    Returns:
        A differentiable path from ``q x d`` points to ``num_draws x q`` values.
    """
    check_size("num_draws", num_draws)
    with manual_seed(draw_seed(generator)):
        return draw_matheron_paths(
            model, sample_shape=Size([num_draws]), prior_sampler=prior_sampler
        )


def maximize_paths(
    paths: SamplePath,
    bounds: Tensor,
    generator: torch.Generator,
    candidates: Tensor | None = None,
    raw_samples: int = 1024,
    num_restarts: int = 4,
) -> Tensor:
    """Maximize every draw over a box, by BoTorch's gradient optimizer.

    Each draw is evaluated at the same points, a scrambled Sobol sequence and the
    candidates; its best ones are improved by L-BFGS-B.

    Args:
        paths: ``n`` draws: a path that returns ``n x q`` values of ``q x d`` points.
        bounds: A ``2 x d`` tensor.
        generator: The source of randomness.
        candidates: A ``k x d`` tensor of further points to start from.
        raw_samples: The number of points of the Sobol sequence.
        num_restarts: How many of the best points are improved, for each draw.

    Returns:
        An ``n x d`` tensor of points in the box.
    """
    engine = SobolEngine(bounds.shape[-1], scramble=True, seed=draw_seed(generator))
    X = unnormalize(engine.draw(raw_samples).to(bounds), bounds)
    X = X if candidates is None else torch.cat([X, candidates])
    with torch.no_grad():
        values = paths(X)
        starts = X[values.topk(min(num_restarts, len(X))).indices]
        # The sum of all draws is maximized, scaled to fit the optimizer's tolerances.
        # Starts that are one point, such as a corner, have no scale.
        spread = values.std().clamp_min(torch.finfo(X.dtype).tiny)
        scale = paths(starts).std() if starts[..., 0].numel() > 1 else spread
        scale = scale.clamp_min(1e-9 * spread)
    found, _ = gen_candidates_scipy(
        starts,
        # Any function of points will do.
        cast(AcquisitionFunction, lambda points: paths(points) / scale),
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        options={"maxiter": MAX_ITERATIONS},
        use_parallel_mode=False,
    )
    with torch.no_grad():
        best = paths(found).argmax(dim=-1)
    return found[torch.arange(len(found)), best]


class EigenfeatureMap(FeatureMap):
    r"""The paper's feature map, from the top eigenpairs of a kernel matrix.

    Equation (4) of [basu2017]_, ``phi_j(x) = sqrt(lambda_j) psi_j(x)``. With eigenpairs
    ``K = U D U^T`` of the kernel matrix of some points, ``phi(x) = D^{-1/2} U^T
    k(points, x)``: on the points ``phi(x)^T phi(x')`` is the kernel, up to the
    eigenvalues left out, and elsewhere it never has more variance.

    Args:
        kernel: The kernel.
        points: An ``n x d`` tensor, in the kernel's units.
        num_features: The paper's ``m*``: at most this many eigenpairs, of those that
            are not zero to rounding. None for all.
        input_transform: As in BoTorch's feature maps.

    Raises:
        BotorchTensorDimensionError: If ``points`` is not ``n x d`` with ``n >= 1``.
        InputDataError: If the kernel matrix of the points is zero.
    """

    points: Tensor
    projection: Tensor
    output_transform = None
    batch_shape = Size()

    def __init__(
        self,
        kernel: Kernel,
        points: Tensor,
        num_features: int | None = None,
        input_transform: Any = None,
    ) -> None:
        """Take the arguments that the class describes."""
        super().__init__()
        if points.dim() != 2 or points.shape[0] == 0:
            raise BotorchTensorDimensionError(
                "Expected `points` of shape n x d with at least one point, but got "
                f"{tuple(points.shape)}."
            )
        num_features = len(points) if num_features is None else num_features
        check_size("num_features", num_features)
        self.kernel = kernel
        self.input_transform = input_transform
        with torch.no_grad():
            values, vectors = torch.linalg.eigh(dense_covariance(kernel, points))
        largest = values[-1].item()
        kept = (values > SPAN_TOLERANCE[values.dtype] * largest).nonzero().squeeze(-1)
        if not largest > 0:
            raise InputDataError(
                "Expected `kernel` to have a positive eigenvalue on `points`, but the "
                f"largest is {largest}."
            )
        kept = kept[-num_features:]
        self.num_outputs = kept.shape[0]
        self.register_buffer("points", points)
        self.register_buffer("projection", vectors[:, kept] / values[kept].sqrt())

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the ``... x q x m`` features of ``... x q x d`` points."""
        return dense_covariance(self.kernel, x, self.points) @ self.projection


def draw_eigenfeature_paths(
    model: SingleTaskDTCGP,
    sample_shape: Size,
    points: Tensor,
    num_features: int | None = None,
    generator: torch.Generator | None = None,
) -> GeneralizedLinearPath:
    """Draw functions from the prior by the paper's feature map.

    A prior sampler for ``draw_matheron_paths``, at ``O(n^3)`` once for ``n`` points.

    Args:
        model: The model.
        sample_shape: The shape of the draws.
        points: An ``n x d`` tensor of points that fill the region of interest, in the
            units of the training inputs.
        num_features: At most this many eigenpairs; all if None.
        generator: The source of randomness; None for a new one, never the global.
    """
    model.eval()
    X = model.transform_inputs(points)
    feature_map = EigenfeatureMap(model.covar_module, X, num_features)
    shape = *sample_shape, feature_map.num_outputs
    weight = draw_normals(*shape, generator=as_generator(generator))
    return _linear_path(model, feature_map, weight.to(points))


def draw_weight_paths(
    model: SingleTaskDTCGP,
    sample_shape: Size,
    points: Tensor | None = None,
    num_features: int | None = None,
    generator: torch.Generator | None = None,
) -> GeneralizedLinearPath:
    r"""Draw functions ``phi(x)^T theta`` from the posterior of the weights alone.

    The paper's draw, equation (5) of [basu2017]_: ``theta ~ N(A^{-1} Phi^T y, sigma^2
    A^{-1})`` with ``A = Phi^T Phi + sigma^2 I``, ``phi`` the top eigenpairs of the
    kernel matrix of some points. With the inducing points these are the weights of the
    sparse model.

    Args:
        model: The model.
        sample_shape: The shape of the draws.
        points: An ``n x d`` tensor, in the units of the training inputs. None for the
            inducing points.
        num_features: At most this many eigenpairs; all if None.
        generator: The source of randomness; None for a new one, never the global.

    Raises:
        UnsupportedError: If the training data are batched.
    """
    X, W, means = model.merged_observations()
    points = model.inducing_points if points is None else points
    S = model.transform_inputs(points)
    feature_map = EigenfeatureMap(model.covar_module, S, num_features)
    with torch.no_grad():
        Phi = feature_map.forward(X)  # P x m
        precision = torch.eye(Phi.shape[-1]).to(Phi) + (Phi.mT * W) @ Phi
        L = torch.linalg.cholesky(precision)
        theta = torch.cholesky_solve((Phi.mT @ (W * means)).unsqueeze(-1), L)
        shape = *sample_shape, Phi.shape[-1], 1
        eps = draw_normals(*shape, generator=as_generator(generator)).to(Phi)
        spread = torch.linalg.solve_triangular(L.mT, eps, upper=True)
    return _linear_path(model, feature_map, (theta + spread).squeeze(-1))


def _linear_path(
    model: SingleTaskDTCGP, feature_map: EigenfeatureMap, weight: Tensor
) -> GeneralizedLinearPath:
    return GeneralizedLinearPath(
        feature_map=feature_map,
        weight=weight,
        bias_module=model.mean_module,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


@DrawMatheronPaths.register(SingleTaskDTCGP)
def _draw_matheron_paths_dtc(
    model: SingleTaskDTCGP,
    *,
    sample_shape: Size,
    prior_sampler: TPathwisePriorSampler = draw_kernel_feature_paths,
    update_strategy: TPathwiseUpdate = gaussian_update,
) -> MatheronPath:
    model.eval()
    with delattr_ctx(model, "outcome_transform"):
        prior_paths = prior_sampler(model, sample_shape)
        # `forward` takes transformed points.
        sample_values = prior_paths.forward(_update_points(model))
        update_paths = update_strategy(model, sample_values)
    return MatheronPath(
        prior_paths=prior_paths,
        update_paths=update_paths,
        output_transform=get_output_transform(model),
    )


@GaussianUpdate.register(SingleTaskDTCGP, _GaussianLikelihoodBase)
@torch.no_grad()
def _gaussian_update_dtc(
    model: SingleTaskDTCGP,
    likelihood: _GaussianLikelihoodBase,
    *,
    sample_values: Tensor,
    target_values: Tensor | None = None,
    noise_covariance: Tensor | LinearOperator | None = None,
) -> GeneralizedLinearPath:
    """Return the update, given prior values at :func:`_update_points`.

    The targets are transformed, and ``noise_covariance`` is a diagonal ``n x n``
    matrix; None for the training data's. Without noise the exact model interpolates;
    the sparse one rounds noise up to ``gpytorch.settings.min_fixed_noise``.
    """
    points = _update_points(model)
    if sample_values.shape[-1] != points.shape[0]:
        raise BotorchTensorDimensionError(
            f"Expected `sample_values` at the {points.shape[0]} inducing points (all "
            "unique training inputs if the model is exact), but got "
            f"{sample_values.shape[-1]} values. Use `draw_matheron_paths`."
        )
    sparse = model.sparse_inducing_inputs() is not None
    noise = None
    if noise_covariance is not None:
        dense = to_dense(noise_covariance).to(sample_values)
        noise = dense.diagonal()
        if not torch.equal(dense, torch.diag(noise)):
            raise UnsupportedError(
                "Expected a diagonal `noise_covariance`, since repeated rows are "
                "merged, but got one with correlations. Use `SingleTaskGP`."
            )
        # Precisions have to be finite.
        smallest = torch.finfo(noise.dtype).tiny ** 0.5
        if sparse:
            smallest = settings.min_fixed_noise.value(noise.dtype)
        noise = noise.clamp_min(smallest)
    observations = model.merged_observations(target_values, noise)
    centered = sample_values - model.mean_module(points)
    if sparse:
        points, weight = _sparse_update(
            model.covar_module, observations, points, centered
        )
    else:
        # Merged, they are sorted by their coordinates.
        place = find_replicates(model.train_inputs[0]).first.argsort().argsort()
        points = observations.inputs
        weight = _exact_update(model.covar_module, observations, centered[..., place])
    return GeneralizedLinearPath(
        feature_map=KernelEvaluationMap(
            kernel=model.covar_module,
            points=points,
            input_transform=get_input_transform(model),
        ),
        weight=weight,
    )


def _update_points(model: SingleTaskDTCGP) -> Tensor:
    """Return the inducing points, or the distinct inputs of an exact model."""
    S = model.sparse_inducing_inputs()
    X = model.train_inputs[0]
    return X[find_replicates(X).first.sort().values] if S is None else S


def _exact_update(
    covar_module: Kernel,
    observations: Observations,
    f_0: Tensor,  # ... x P, prior draws
) -> Tensor:  # ... x P
    r"""Return ``(K + W^{-1})^{-1} (ybar - f_0(X) - eps)``."""
    X, W, means = observations
    # Without noise a jitter may be needed, as in BoTorch's own update.
    L = psd_safe_cholesky(dense_covariance(covar_module, X) + torch.diag(1 / W))
    errors = means - f_0 - torch.randn_like(f_0) / W.sqrt()
    return torch.cholesky_solve(errors.unsqueeze(-1), L).squeeze(-1)


def _sparse_update(
    covar_module: Kernel,
    observations: Observations,
    S: Tensor,  # m x d
    f_0: Tensor,  # ... x m, prior draws
) -> tuple[Tensor, Tensor]:  # m' x d, ... x m'
    r"""Return the independent inducing points and, on ``k_S(x)``, the coefficients.

    ``L^{-T} V^{-1} Z^T W (ybar - Z u_0 - eps)``.
    """
    X, W, means = observations
    K_ss = dense_covariance(covar_module, S)
    kept = independent_points(K_ss)
    L, S = torch.linalg.cholesky(K_ss[kept][:, kept]), S[kept]
    u_0 = torch.linalg.solve_triangular(L, f_0[..., kept].unsqueeze(-1), upper=False)
    Z = KernelFeatures(covar_module, S, L)(X)  # m' x P
    V = torch.eye(Z.shape[0]).to(Z) + (Z * W) @ Z.mT
    explained = (Z.mT @ u_0).squeeze(-1)  # ... x P
    errors = means - explained - torch.randn_like(explained) / W.sqrt()
    target = Z @ (W * errors).unsqueeze(-1)
    theta = torch.cholesky_solve(target, torch.linalg.cholesky(V))
    weight = torch.linalg.solve_triangular(L.mT, theta, upper=True)
    return S, weight.squeeze(-1)


@GenKernelFeatures.register(ProductKernel)
def _gen_kernel_features_product(
    kernel: ProductKernel, *, num_inputs: int, num_outputs: int
) -> KernelFeatureMap:
    """Return Fourier features of a product; frequencies are sums of the factors'."""
    num = num_outputs // 2
    factors = [_frequencies(factor, num_inputs, num) for factor in kernel.kernels]
    return _fourier_features(kernel, torch.stack(factors).sum(dim=0))


@GenKernelFeatures.register(AdditiveKernel)
def _gen_kernel_features_sum(
    kernel: AdditiveKernel, *, num_inputs: int, num_outputs: int
) -> KernelFeatureMap:
    """Return Fourier features of a sum: its parts share them, by their variances."""
    origin = torch.zeros(1, num_inputs, dtype=kernel.dtype, device=kernel.device)
    with torch.no_grad():
        parts = [part(origin, diag=True).sum() for part in kernel.kernels]
    variances = torch.stack(parts)
    if not variances.any():
        variances = torch.ones_like(variances)
    ends = num_outputs // 2 * variances.cumsum(dim=0) / variances.sum()
    nums = ends.round().diff(prepend=ends.new_zeros(1)).long().tolist()
    frequencies = [
        # A part that gets none has to be stationary too.
        _frequencies(part, num_inputs, max(num, 1))[:num]
        for part, num in zip(kernel.kernels, nums, strict=True)
    ]
    return _fourier_features(kernel, torch.cat(frequencies))


def _fourier_features(
    kernel: Kernel,
    frequencies: Tensor,  # n x d
) -> KernelFeatureMap:
    """Return features: a sine and a cosine for each frequency."""
    with torch.no_grad():
        variance = kernel(torch.zeros_like(frequencies[:1]), diag=True)
    # The squares of a sine and a cosine add to one.
    return KernelFeatureMap(
        kernel=kernel,
        weight=frequencies,
        # A scale with dimensions of its own chains to it.
        input_transform=torch.nn.Identity(),
        output_transform=SineCosineTransform((variance / len(frequencies)).sqrt()),
    )


def _frequencies(kernel: Kernel, num_inputs: int, num: int) -> Tensor:
    """Draw ``num x num_inputs`` frequencies of a stationary kernel."""
    if len(kernel.batch_shape) > 0:
        raise UnsupportedError(
            f"Expected an unbatched `kernel`, but got a {type(kernel).__name__} of "
            f"batch shape {tuple(kernel.batch_shape)}."
        )
    feature_map = gen_kernel_features(
        kernel, num_inputs=num_inputs, num_outputs=2 * num
    )
    # Phases are linear in x: those of the unit vectors are the frequencies.
    eye = torch.eye(num_inputs, dtype=kernel.dtype, device=kernel.device)
    if feature_map.input_transform is not None:
        eye = feature_map.input_transform(eye)
    with torch.no_grad():
        phases: Tensor = feature_map.forward(eye)
    # BoTorch draws them by scrambled Sobol sequences, and two of these go together.
    return phases[:, torch.randperm(phases.shape[-1], device=phases.device)].mT
