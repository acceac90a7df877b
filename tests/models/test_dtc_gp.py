"""The DTC model against the dense answer and against BoTorch's own exact GP."""

import io
import math

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.kernels.orthogonal_additive_kernel import OrthogonalAdditiveKernel
from botorch.models.transforms import Normalize
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import prior_mode

from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.prediction import ExactPosterior
from tests.helpers import gram_matrix, LargestTensor, seeded, spy
from tests.reference import dtc_posterior, exact_posterior, noise_log_likelihood


def make_kernel(name: str):
    kernels = {
        "rbf": RBFKernel(),
        "smooth": RBFKernel(),
        "product": RBFKernel() * MaternKernel(nu=1.5),
        "linear": LinearKernel(),
    }
    kernel = kernels[name].double()
    if name in ("rbf", "smooth"):
        kernel.lengthscale = 0.4 if name == "rbf" else 3.0
    return kernel


def make_data(generator, n=40, d=3, repeats=15, clustered=False):
    X = torch.rand(n, d, generator=generator, dtype=torch.double)
    if clustered:
        X[n // 2 :] = X[: n - n // 2] + 1e-7 * X[n // 2 :]
    X = torch.cat([X, X[:repeats], X[: repeats // 2]])
    noise = 0.1 * torch.randn(X.shape[0], 1, generator=generator, dtype=torch.double)
    return X, torch.sin(4 * X.sum(dim=-1, keepdim=True)) + noise


def plain_model(X, Y, kernel, noise=0.05, **options):
    options = {"mean_module": ZeroMean(), "outcome_transform": None, **options}
    model = SingleTaskDTCGP(X, Y, covar_module=kernel, **options)
    if "train_Yvar" not in options:
        model.likelihood.noise = torch.tensor([noise], dtype=X.dtype)
    return model


def dense_answer(kernel, X, Y, S, X_test, noise):
    """The DTC posterior by the reference, repeats merged by NumPy."""
    rows, inverse = np.unique(X.numpy(), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    noise = np.broadcast_to(noise, inverse.shape)
    W = np.bincount(inverse, 1 / noise)
    means = np.bincount(inverse, Y.squeeze(-1).numpy() / noise) / W
    P = torch.as_tensor(rows)
    pairs = (S, S), (S, P), (S, X_test), (X_test, X_test)
    return dtc_posterior(*(gram_matrix(kernel, *pair) for pair in pairs), W, means)


def assert_same_posterior(ours, theirs, atol):
    """Compare means and covariances of any batch shape."""
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=atol)
    torch.testing.assert_close(
        ours.distribution.covariance_matrix,
        theirs.distribution.covariance_matrix,
        rtol=0,
        atol=atol,
    )


@pytest.mark.parametrize(
    ("name", "clustered"),
    [("smooth", False), ("product", False), ("linear", False), ("rbf", True)],
)
def test_posterior_equals_the_dense_reference(name, clustered, generator):
    kernel = make_kernel(name)
    X, Y = make_data(generator, clustered=clustered)
    S = X[5:25]
    X_test = torch.rand(30, 3, generator=generator, dtype=torch.double)
    model = plain_model(X, Y, kernel, inducing_points=S)
    mean, covariance = dense_answer(kernel, X, Y, S, X_test, 0.05)
    prior = np.diag(gram_matrix(kernel, X_test, X_test)).max()
    posterior = model.posterior(X_test)
    joint = posterior.distribution.covariance_matrix.detach().numpy()
    scale = math.sqrt(prior)
    np.testing.assert_allclose(
        posterior.mean.squeeze(-1).detach().numpy(), mean, atol=1e-7 * scale
    )
    np.testing.assert_allclose(joint, covariance, atol=1e-7 * prior)
    one_by_one = model.posterior(X_test.unsqueeze(-2))
    np.testing.assert_allclose(
        one_by_one.variance.flatten().detach(), np.diag(covariance), atol=1e-7 * prior
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_merged_and_unmerged_likelihoods_agree_as_sums(sparse, generator):
    """Against the dense Gaussian density over all rows, none of them merged."""
    kernel = make_kernel("rbf")
    X, Y = make_data(generator)
    S = X[:10] if sparse else None
    model = SingleTaskDTCGP(X, Y, inducing_points=S, covar_module=kernel)
    model.likelihood.noise = torch.tensor([0.07], dtype=torch.double)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    prior_terms = sum(
        prior.log_prob(closure(module)).sum()
        for _, module, prior, closure, _ in model.named_priors()
    )
    total = mll(model(*model.train_inputs), model.train_targets) * X.shape[0]
    total = (total - prior_terms).item()
    K = gram_matrix(kernel, X, X)
    if sparse:
        K_sx = gram_matrix(kernel, S, X)
        K = K_sx.T @ np.linalg.solve(gram_matrix(kernel, S, S), K_sx)
    y = model.train_targets.numpy() - model.mean_module.constant.item()
    expected = noise_log_likelihood(K, np.full(len(X), 0.07), y)
    assert total == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_likelihood_gradients_are_right(sparse, generator):
    X, Y = make_data(generator, n=15, repeats=6)
    model = SingleTaskDTCGP(X, Y, inducing_points=X[:6] if sparse else None)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()

    def value():
        return mll(model(*model.train_inputs), model.train_targets)

    value().backward()
    for parameter in model.parameters():
        gradient = parameter.grad.flatten()[0].item()
        with torch.no_grad():
            parameter.flatten()[0] += 1e-5
            above = value().item()
            parameter.flatten()[0] -= 2e-5
            below = value().item()
            parameter.flatten()[0] += 1e-5
        assert gradient == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-7)


def test_no_factorized_matrix_is_larger_than_the_inducing_set(monkeypatch, generator):
    """The complexity claim of fitting and prediction: Cholesky of m x m only."""
    X, Y = make_data(generator, n=200)
    factored = [
        spy(monkeypatch, torch.linalg, name) for name in ("cholesky", "cholesky_ex")
    ]
    model = SingleTaskDTCGP(X, Y, inducing_points=X[:12])
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    mll(model(*model.train_inputs), model.train_targets).backward()
    _ = model.posterior(X.unsqueeze(-2)).variance
    sizes = [matrix.shape[-1] for calls in factored for matrix, *_ in calls]
    assert max(sizes) == 12


def reloaded(model):
    """Return the state dict after a trip through a file."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    ("dtype", "as_list"), [(torch.double, False), (torch.float, True)]
)
@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_a_state_dict_brings_back_the_inducing_points(dtype, as_list, generator):
    X, Y = make_data(generator)

    def make(S=None, rows=slice(None), dtype=torch.double):
        X_rows, Y_rows = X[rows].to(dtype), Y[rows].to(dtype)
        options = {"inducing_points": S, "input_transform": Normalize(3)}
        model = SingleTaskDTCGP(X_rows, Y_rows, **options)
        return ModelListGP(model, model) if as_list else model

    def points_of(model):
        return (model.models[1] if as_list else model).inducing_points

    S = 0.5 * (X[:7] + X[7:14])  # not of the data
    saved = make(S)
    state = reloaded(saved)
    for new in (make(dtype=dtype), make(X[:2], dtype=dtype)):
        new.load_state_dict(state)
        torch.testing.assert_close(points_of(new), S.to(dtype))
        if dtype == torch.double:
            mean = saved.posterior(X[:3]).mean
            torch.testing.assert_close(new.posterior(X[:3]).mean, mean)
    exact = make(S)
    exact.load_state_dict(reloaded(make()))
    assert torch.equal(points_of(exact), points_of(make()))
    # A model of other data keeps its own, as when Ax refits or cross-validates.
    for rows in (slice(1, None), slice(-1), [*range(len(X)), 0]):
        other = make(X[:2], rows)
        other.load_state_dict(state)
        assert torch.equal(points_of(other), X[:2])


def test_factors_follow_data_mode_and_dtype(generator):
    X, Y = make_data(generator)
    model = plain_model(X, Y, make_kernel("rbf"), inducing_points=X[:7])
    first = model.posterior(X[:3]).mean
    strategy = model.prediction_strategy
    UpperConfidenceBound(model, beta=1.0)(X[:3].unsqueeze(-2))  # calls model.to(X)
    assert model.prediction_strategy is strategy
    model.set_train_data(targets=2 * model.train_targets, strict=False)
    torch.testing.assert_close(model.posterior(X[:3]).mean, 2 * first)
    model.float()
    mean = model.posterior(X[:3].float()).mean
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.double(), 2 * first, rtol=1e-3, atol=1e-3)


def test_effective_dimension_and_log_det_by_their_definitions(generator):
    X, Y = make_data(generator)
    kernel = make_kernel("rbf")
    model = plain_model(X, Y, kernel)
    K = gram_matrix(kernel, X, X)
    expected = np.trace(K @ np.linalg.inv(K + 0.05 * np.eye(len(X))))
    assert model.effective_dimension() == pytest.approx(expected, rel=1e-9)
    log_det = np.linalg.slogdet(np.eye(len(X)) + K / 0.05)[1]
    assert model.log_det() == pytest.approx(log_det, rel=1e-9)
    _, covariance = exact_posterior(K, K, K, np.full(len(X), 0.05), np.zeros(len(X)))
    np.testing.assert_allclose(
        model.leverage_scores(), np.diag(covariance) / 0.05, atol=1e-8
    )
    torch.testing.assert_close(model.leverage_scores(X), model.leverage_scores())
    fixed = SingleTaskDTCGP(X, Y, torch.ones_like(Y))
    with pytest.raises(UnsupportedError, match="or `Yvar` of"):
        fixed.leverage_scores(X)


def test_resampling_keeps_inputs_with_the_stated_probabilities(generator):
    """Each is kept with 1 - (1 - p)^n, by one uniform number in single precision."""
    X, Y = make_data(generator, n=30, repeats=20)
    model = plain_model(X, Y, make_kernel("smooth"), noise=0.3)
    unique, inverse = torch.unique(X, dim=0, return_inverse=True)
    scores = torch.zeros(len(unique), dtype=torch.double)
    scores[inverse] = model.leverage_scores()
    kept = 1 - (1 - (2.0 * scores).clamp(max=1)) ** torch.bincount(inverse)
    model.resample_inducing_points(2.0, seeded(1))
    drawn = torch.rand(30, generator=seeded(1)) < kept
    assert 0 < drawn.sum() < 30
    assert torch.equal(model.inducing_points, unique[drawn])
    # Coupled: one number for each input, whatever the generator has drawn since.
    draws = []
    for _ in range(2):
        model.set_inducing_points(None)
        model.resample_inducing_points(0.5, generator, "coupled")
        draws.append(model.inducing_points)
    assert len(draws[0]) < 30
    assert torch.equal(*draws)


def test_resampling_knows_both_laws_a_ceiling_and_earlier_scores(
    generator, monkeypatch
):
    X, Y = make_data(generator, n=100, repeats=60)
    unique, inverse = torch.unique(X, dim=0, return_inverse=True)
    counts = torch.bincount(inverse)
    model = plain_model(X, Y, make_kernel("smooth"), noise=0.3)
    previous = plain_model(X[:30], Y[:30], make_kernel("smooth"), noise=0.3)
    scores = previous.leverage_scores(X)
    kept = counts * 2 * previous.leverage_scores(unique)
    drawn = torch.rand(100, generator=seeded(1)) < kept
    assert 20 < drawn.sum() <= 40
    options = {"inclusion": "merged", "scores": scores}
    model.resample_inducing_points(2, seeded(1), **options)
    assert torch.equal(model.inducing_points, unique[drawn])
    options["max_inducing"] = 15
    model.set_inducing_points(None)
    factored = []
    monkeypatch.setattr(ExactPosterior, "from_observations", factored.append)
    model.resample_inducing_points(2, seeded(1), **options)
    assert len(model.inducing_points) == 15
    assert factored == []  # the exact posterior is too slow for many inputs
    assert len(torch.cat([model.inducing_points, unique[drawn]]).unique(dim=0)) == (
        drawn.sum()
    )
    # Exact if sparse would predict as slowly.
    model.resample_inducing_points(1e3, scores=scores)
    assert len(model.inducing_points) == 100
    with pytest.raises(BotorchTensorDimensionError, match=r"shape 190.*got \(20,\)"):
        model.resample_inducing_points(scores=scores[:20])


def test_inducing_points_by_number_are_the_pivots_of_the_reference(generator):
    """Among random inputs, by leverage times the second moment of the function."""
    X, Y = make_data(generator)
    unique, inverse = torch.unique(X, dim=0, return_inverse=True)
    order = torch.randperm(40, generator=seeded())
    for mean_module in (ZeroMean(), ConstantMean().double()):
        kernel, options = make_kernel("rbf"), {"mean_module": mean_module}
        if isinstance(mean_module, ConstantMean):
            mean_module.constant.data.fill_(0.7)
        model = plain_model(X, Y, kernel, **options)
        constant = mean_module(X[:1]).item()
        model.set_inducing_points(7)
        candidates = unique[order[:35]]
        mean, _ = dense_answer(
            kernel, X, Y - constant, candidates[:7], candidates, 0.05
        )
        counts = torch.bincount(inverse)[order[:35]].numpy()
        weights = counts * (1 + mean**2)
        chosen = [
            int((candidates == point).all(-1).nonzero())
            for point in model.inducing_points
        ]
        K, ordered = gram_matrix(kernel, candidates), []
        for _ in range(7):
            S = np.array(ordered, dtype=int)
            known = K[:, S] @ np.linalg.solve(K[np.ix_(S, S)], K[S])
            ordered.append(int((weights * np.diag(K - known)).argmax()))
        assert sorted(ordered) == sorted(chosen)


@pytest.mark.parametrize("known_noise", [False, True])
def test_a_fit_chooses_inducing_points_by_number_again(known_noise, generator):
    X, Y = make_data(generator)
    Yvar = torch.full_like(Y, 0.01) if known_noise else None
    options = {"train_Yvar": Yvar, "input_transform": Normalize(3)}
    model = SingleTaskDTCGP(X, Y, inducing_points=8, **options)
    assert model.training
    before = model.inducing_points
    mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert not mll.training
    unique = torch.unique(X, dim=0)
    order = torch.randperm(40, generator=seeded())
    options["input_transform"] = Normalize(3)
    plain = SingleTaskDTCGP(X, Y, inducing_points=unique[order[:8]], **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(plain.likelihood, plain))
    torch.testing.assert_close(
        model.covar_module.lengthscale, plain.covar_module.lengthscale
    )
    plain.set_inducing_points(8)
    assert torch.equal(model.inducing_points, plain.inducing_points)
    assert not torch.equal(model.inducing_points, before)
    # A loaded model chooses again after its next fit, and a tensor stays.
    options["input_transform"] = Normalize(3)
    loaded = SingleTaskDTCGP(X, Y, inducing_points=8, **options)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded.inducing_points, model.inducing_points)
    assert hasattr(loaded, "custom_fit")
    loaded.set_inducing_points(model.inducing_points)
    assert not hasattr(loaded, "custom_fit")
    # Not more than the unique inputs: the exact GP.
    model.set_inducing_points(41)
    exact = SingleTaskGP(X, Y, Yvar, input_transform=Normalize(3))
    exact.covar_module, exact.mean_module = model.covar_module, model.mean_module
    exact.likelihood = model.likelihood
    assert_same_posterior(model.posterior(X[:3]), exact.posterior(X[:3]), 1e-8)


@pytest.mark.parametrize(
    ("per_dim_lengthscales", "second_order"), [(True, False), (False, True)]
)
def test_orthogonal_additive_kernels(per_dim_lengthscales, second_order, generator):
    """Their base kernel is a batch, one kernel per feature."""
    X, Y = make_data(generator)

    def make_oak():
        return OrthogonalAdditiveKernel(
            dim=3,
            per_dim_lengthscales=per_dim_lengthscales,
            second_order=second_order,
            dtype=torch.double,
        )

    Yvar = torch.full_like(Y, 0.05)
    X_test = torch.rand(4, 5, 3, generator=generator, dtype=torch.double)
    exact = SingleTaskGP(X, Y, Yvar, covar_module=make_oak())
    model = SingleTaskDTCGP(X, Y, Yvar, covar_module=make_oak())
    for points in (X_test, X_test[0], X_test[:, :1]):
        assert_same_posterior(model.posterior(points), exact.posterior(points), 1e-8)
    many = torch.rand(600, 3, generator=generator, dtype=torch.double)
    for S in (None, X[:6]):
        model.set_inducing_points(S)
        large = model.posterior(many).variance
        torch.testing.assert_close(large[:5], model.posterior(many[:5]).variance)
        new = (many[:2], Y[:2], Yvar[:2])
        conditioned = model.condition_on_observations(*new, reproject=False)
        assert (conditioned.posterior(many).variance < large + 1e-9).all()
    scaled = ScaleKernel(make_oak())
    if per_dim_lengthscales:  # BoTorch's own model fails at it
        with pytest.raises(UnsupportedError, match="pass `per_dim_lengthscales=False`"):
            SingleTaskDTCGP(X, Y, covar_module=scaled)
    else:
        assert SingleTaskDTCGP(X, Y, covar_module=scaled).posterior(X_test[0])


def test_a_large_joint_posterior_stays_lazy(generator):
    X, Y = make_data(generator)
    model = plain_model(X, Y, make_kernel("rbf"), inducing_points=X[:7])
    X_test = torch.rand(600, 3, generator=generator, dtype=torch.double)
    largest = LargestTensor()
    with torch.no_grad(), largest:
        variance = model.posterior(X_test).variance
    assert largest.nbytes < 600 * 600 * 8
    torch.testing.assert_close(
        variance, model.posterior(X_test.unsqueeze(-2)).variance.squeeze(-1).detach()
    )


@pytest.mark.parametrize(
    ("pending", "q", "sparse"),
    [(False, 1, True), (True, 2, True), (False, 2, False), (True, 1, False)],
)
def test_a_t_batch_copies_neither_training_data_nor_factors(
    sparse, q, pending, generator
):
    X, Y = make_data(generator, n=200 if sparse else 20)
    S = X[:20] if sparse else None
    model = plain_model(X, Y, make_kernel("rbf"), inducing_points=S)
    X_test = torch.rand(1000, q, 3, generator=generator, dtype=torch.double)
    if pending:
        model.posterior(X_test[:1])  # fantasies start from a posterior
        model = model.condition_on_observations(X_test[:5, 0], Y[:5])
    largest = LargestTensor()
    with torch.no_grad(), largest:
        _ = model.posterior(X_test).variance
    assert largest.nbytes <= 1000 * 25 * q * 8


def test_a_model_in_training_changes_no_setting_of_other_threads(generator):
    seen = []

    class Watched(RBFKernel):
        def forward(self, *args, **options):
            seen.append(prior_mode.on())
            return super().forward(*args, **options)

    X, Y = make_data(generator, n=12, d=2, repeats=0)
    model = SingleTaskDTCGP(X, Y, covar_module=Watched()).train()
    model(*model.train_inputs).log_prob(model.train_targets)
    assert seen
    assert not any(seen)
