import gpytorch
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
    MultitaskGaussianLikelihood,
    StudentTLikelihood,
)
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise

from botorch_bkb.models.utils.noise import (
    check_likelihood,
    new_noise,
    observed_noise,
    train_noise,
)


each_dtype = pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
KNOWN = torch.tensor([0.5, 0.25, 2.0])


class Slope(gpytorch.Module):
    """Noise of ``0.05 + x``, after the constraint of the least noise."""

    def forward(self, x):
        return MultivariateNormal(x[..., 0] + 0.05, torch.eye(x.shape[-2]).to(x))


def identity(dtype):
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(0, transform=None))
    likelihood.noise = 0.25
    return likelihood.to(dtype)


def known(dtype, **options):
    return FixedNoiseGaussianLikelihood(KNOWN.to(dtype), **options)


def called(dtype):
    """Return a likelihood that says its noise only when it is called."""
    noise = HeteroskedasticNoise(Slope(), noise_constraint=GreaterThan(0, None))
    return _GaussianLikelihoodBase(noise).to(dtype)


def inputs(dtype, *shape):
    return torch.linspace(0, 1, shape[-1], dtype=dtype).expand(shape).unsqueeze(-1)


def prior_of(X):
    return lambda: MultivariateNormal(X[..., 0], torch.eye(X.shape[-2]).to(X))


@pytest.mark.parametrize(
    "likelihood",
    [
        BernoulliLikelihood(),
        StudentTLikelihood(),
        MultitaskGaussianLikelihood(num_tasks=2),
        HadamardGaussianLikelihood(num_tasks=2),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_other_noise_is_refused_by_name(likelihood):
    match = f"Gaussian one of one output, but got a {type(likelihood).__name__}"
    with pytest.raises(UnsupportedError, match=match):
        check_likelihood(likelihood)


@each_dtype
@pytest.mark.parametrize(
    ("make", "expected"),
    [(identity, [0.25] * 3), (known, KNOWN), (called, [0.05, 0.55, 1.05])],
)
def test_every_row_has_its_noise_variance(dtype, make, expected):
    X = inputs(dtype, 3)
    noise = train_noise(make(dtype), prior_of(X), X)
    torch.testing.assert_close(noise, torch.as_tensor(expected).to(dtype))


@pytest.mark.parametrize(
    ("likelihood", "match"),
    [
        (GaussianLikelihood(batch_shape=torch.Size([2])), r"shape \(2, 1\) from a"),
        (known(torch.double), r"or 5, .* but got shape \(3,\) from a FixedNoise"),
    ],
)
def test_noise_that_fits_no_rows_is_refused(likelihood, match):
    X = inputs(torch.double, 5)
    with pytest.raises(UnsupportedError, match=match):
        train_noise(likelihood, prior_of(X), X)


@each_dtype
@pytest.mark.parametrize(("batch_shape", "q"), [((), 0), ((2,), 3), ((4, 1), 1)])
def test_new_pulls_have_the_noise_of_their_inputs(dtype, batch_shape, q):
    X = inputs(dtype, *batch_shape, q)
    found = new_noise(called(dtype), X).expand(X.shape[:-1])
    torch.testing.assert_close(found, X[..., 0] + 0.05)
    assert new_noise(identity(dtype), X).expand(X.shape[:-1]).unique().tolist() in (
        [[0.25]] if q else [[]]
    )


@each_dtype
@pytest.mark.parametrize(("batch_shape", "q"), [((), 0), ((2,), 2)])
def test_observations_of_known_noise_are_appended(dtype, batch_shape, q):
    X, likelihood = inputs(dtype, *batch_shape, q), known(dtype)
    new = torch.full((*batch_shape, q), 0.125, dtype=dtype)
    after, noise = observed_noise(likelihood, new, X)
    assert torch.equal(noise, new)
    all_noise = torch.cat([KNOWN.to(dtype).expand(*batch_shape, 3), new], dim=-1)
    assert torch.equal(after.noise, all_noise)
    assert torch.equal(likelihood.noise, KNOWN.to(dtype))
