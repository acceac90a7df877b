"""The GP over space and time is equations (7) and (8), and learns the rate."""

import math
import re
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import (
    ChainedInputTransform,
    FilterFeatures,
    InputPerturbation,
    InputStandardize,
    Log10,
    Normalize,
    Round,
    Warp,
)
from gpytorch.kernels import MaternKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_bkb.models import TimeVaryingGP
from botorch_bkb.models.kernels import TemporalDecayKernel
from tests.bandits import rbf
from tests.helpers import random_points, seeded
from tests.reference import time_varying_posterior


NOISE, RATE = 0.1, 0.2


def decay(rate):
    kernel = TemporalDecayKernel().double()
    kernel.forgetting_rate = rate
    return kernel


def make_model(X, times, Y, **options):
    options = {
        "train_Yvar": torch.full_like(Y, NOISE),
        "covar_module": rbf(),
        "temporal_kernel": decay(RATE),
        "mean_module": ZeroMean(),
        "outcome_transform": None,
    } | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputDataWarning)  # times are not scaled
        return TimeVaryingGP(torch.cat([X, times.unsqueeze(-1)], dim=-1), Y, **options)


def test_the_posterior_is_that_of_equations_7_and_8():
    rng = np.random.default_rng(0)
    arms = torch.as_tensor(rng.uniform(size=(20, 2)))
    pulled, times = rng.integers(0, 20, size=30), np.sort(rng.uniform(0, 15, size=30))
    rewards = rng.normal(size=30)
    model = make_model(
        arms[pulled], torch.as_tensor(times), torch.as_tensor(rewards).unsqueeze(-1)
    )
    gram = rbf()(arms).to_dense().detach().numpy()
    mean, variance = time_varying_posterior(
        gram, NOISE, RATE, pulled, times, rewards, 17.0
    )
    decision = torch.cat([arms, torch.full((20, 1), 17.0).double()], dim=-1)
    posterior = model.posterior(decision)
    np.testing.assert_allclose(posterior.mean.detach().squeeze(-1), mean, atol=1e-8)
    np.testing.assert_allclose(
        posterior.variance.detach().squeeze(-1), variance, atol=1e-8
    )
    assert model.forgetting_rate == pytest.approx(RATE)


def drifting_data(rate, num_times=60):
    """Return three observations at each time, of functions that forget at a rate."""
    stream = seeded()
    X = torch.rand(15, 1, generator=stream, dtype=torch.double)
    K = rbf()(X).to_dense().detach() + 1e-9 * torch.eye(15).double()
    root = torch.linalg.cholesky(K)
    f = root @ torch.randn(15, generator=stream, dtype=torch.double)
    points, times, rewards = [], [], []
    for time in range(num_times):
        pulled = torch.randint(15, (3,), generator=stream)
        noise = torch.randn(3, generator=stream, dtype=torch.double)
        points.append(X[pulled])
        times.append(torch.full((3,), float(time), dtype=torch.double))
        rewards.append(f[pulled] + 0.1 * noise)
        new = root @ torch.randn(15, generator=stream, dtype=torch.double)
        f = math.sqrt(1 - rate) * f + math.sqrt(rate) * new
    return torch.cat(points), torch.cat(times), torch.cat(rewards).unsqueeze(-1)


def test_the_rate_is_learned_by_the_marginal_likelihood():
    learned = []
    for rate in (0.02, 0.2):
        X, times, Y = drifting_data(rate)
        model = make_model(
            X,
            times,
            Y,
            train_Yvar=torch.full_like(Y, 0.01),
            covar_module=rbf().requires_grad_(False),
            temporal_kernel=None,
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        learned.append(model.forgetting_rate)
    assert 0.01 < learned[0] < 0.04
    assert 0.1 < learned[1] < 0.4


def test_a_stationary_kernel_over_time_takes_its_place():
    """Without a rate, time may be normalized."""
    X, times, Y = drifting_data(0.05, num_times=10)
    smooth = MaternKernel().double()
    smooth.lengthscale = 5.0
    model = make_model(X, times, Y, temporal_kernel=smooth)
    inputs = model.train_inputs[0]
    space = rbf()(inputs[:, :1]).to_dense()
    time = smooth(inputs[:, 1:]).to_dense()
    torch.testing.assert_close(model.covar_module(inputs).to_dense(), space * time)
    assert smooth.active_dims is None  # the kernel that was given stays as it was
    make_model(X, times, Y, temporal_kernel=smooth, input_transform=Normalize(2))


SPACE = [0, 1]
TIME = 3


@pytest.mark.parametrize(
    "transform",
    [
        Normalize(TIME, bounds=torch.tensor([[0.0] * 3, [1.0, 1.0, 60.0]])),
        InputStandardize(TIME),
        ChainedInputTransform(a=Normalize(TIME, indices=SPACE), b=Normalize(TIME)),
        Round(integer_indices=[2]),
        Log10(indices=[2]),
        Warp(TIME, indices=[2], batch_shape=torch.Size([])),
        FilterFeatures(torch.tensor([0, 2])),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_transforms_of_the_time_column_are_refused(transform):
    X = random_points(12, 2)
    times, Y = torch.arange(12.0).double(), X.sum(dim=-1, keepdim=True)
    before = deepcopy(transform.state_dict())
    name = type(transform).__name__
    for factor in (1.0, 0.05):  # also of times that Warp takes
        with pytest.raises(UnsupportedError, match=f"the last.*time.*{name}") as e:
            make_model(X, factor * times, Y, input_transform=transform)
    assert str(transform.state_dict()) == str(before)
    remedy = re.findall("such as `(.*?)`", str(e.value))[0]
    plain = make_model(X, times, Y)
    model = make_model(10 * X, times, Y, input_transform=eval(remedy))
    assert model.forgetting_rate == plain.forgetting_rate
    # Space is normalized, and time is not.
    points = torch.cat([X, 14.5 + 0 * times.unsqueeze(-1)], dim=-1)
    low, high = X.min(0).values, X.max(0).values
    same = make_model((X - low) / (high - low), times, Y)
    unit = torch.cat([(points[:, :2] - low) / (high - low), points[:, 2:]], dim=-1)
    torch.testing.assert_close(
        model.posterior(points * torch.tensor([10.0, 10.0, 1.0])).mean,
        same.posterior(unit).mean,
    )


@pytest.mark.parametrize(
    "transform",
    [
        InputStandardize(TIME, indices=SPACE),
        Warp(TIME, indices=SPACE, batch_shape=torch.Size([])),
        ChainedInputTransform(
            a=Normalize(TIME, indices=SPACE), b=Round(integer_indices=[0])
        ),
        InputPerturbation(torch.tensor([[0.0, 0.0, 0.0], [0.01, 0.0, 0.0]]).double()),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_transforms_of_space_are_taken(transform):
    X = torch.linspace(0.1, 0.9, 24, dtype=torch.double).reshape(12, 2)
    times = torch.arange(12.0).double()
    model = make_model(X, times, X[:, :1] + 0.0, input_transform=transform)
    later = torch.tensor([[0.2, 0.3, 13.5]]).double()
    assert model.posterior(later).mean.isfinite().all()
