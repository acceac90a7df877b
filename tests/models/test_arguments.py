"""What models, kernels and acquisition functions refuse, and by which error."""

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import (
    GaussianLikelihood,
    MultitaskGaussianLikelihood,
    StudentTLikelihood,
)

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.models import SingleTaskDTCGP, TimeVaryingGP
from botorch_bkb.models.kernels import PrecomputedKernel


X = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
Y = (X.sum(dim=-1, keepdim=True) - 1) / X.sum(dim=-1).std()
PAIR = torch.Size([2])
RBF = RBFKernel().double()
ONE_NOISE = "one noise variance, or 12, one per"


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"train_X": X.numpy()}, InputDataError, "`train_X` to be a.*got ndarray"),
        (
            {"train_Y": Y.index_fill(0, torch.tensor([3]), torch.nan)},
            InputDataError,
            r"`train_Y` without NaN.*train_Y\[3, 0\] is",
        ),
        ({"inducing_points": "all"}, InputDataError, "`inducing_points` to be a den"),
        ({"inducing_points": X[:2] * torch.nan}, InputDataError, "finite `inducing_p"),
        ({"inducing_points": X[:, :1]}, BotorchTensorDimensionError, "of shape m x 2"),
        ({"inducing_points": X[:0]}, BotorchTensorDimensionError, "at least one row"),
        ({"covar_module": "rbf"}, InputDataError, "Kernel object, but got 'rbf'"),
        (
            {"covar_module": RBFKernel(batch_shape=PAIR)},
            UnsupportedError,
            r"one Kernel, .* batch of shape \(2,\)",
        ),
        ({"likelihood": StudentTLikelihood()}, UnsupportedError, "a StudentTLikel"),
        ({"likelihood": MultitaskGaussianLikelihood(2)}, UnsupportedError, "one outp"),
        (
            {"likelihood": GaussianLikelihood(batch_shape=PAIR)},
            UnsupportedError,
            ONE_NOISE,
        ),
        ({"train_X": X.expand(2, 12, 2)}, UnsupportedError, "Expected unbatched"),
        ({"train_Y": torch.cat([Y, Y], dim=-1)}, UnsupportedError, "one output in"),
    ],
)
def test_models_name_the_argument_that_is_wrong(change, error, match):
    with pytest.raises(error, match=match):
        SingleTaskDTCGP(**{"train_X": X, "train_Y": Y, **change}).posterior(X)


def model():
    return SingleTaskDTCGP(X, Y, inducing_points=X[:4])


def wrong_calls():  # not checked by mypy, which would refuse them too
    return [
        (lambda: model().set_inducing_points(X[:3].long()), "`inducing_points` to be"),
        (lambda: model().resample_inducing_points(2.0, 3), "`generator` to be a"),
        (lambda: model().resample_inducing_points(0.0), "`oversampling` to be pos"),
        (
            lambda: model().resample_inducing_points(resampling="same"),
            "`resampling` to be 'independent'",
        ),
        (lambda: model().leverage_scores(X.tolist()), "`X` to be a dense tensor"),
        (
            lambda: model().condition_on_observations(X[:1], Y[:1], noise="0.1"),
            "`noise` to be a dense tensor",
        ),
        (lambda: TimeVaryingGP(X, Y, temporal_kernel=3), "`temporal_kernel` to be a"),
        (lambda: PrecomputedKernel([[1.0]]), "`covariance` to be a dense tensor"),
        (lambda: PrecomputedKernel(X[:2] * torch.nan), "finite `covariance`"),
        (
            lambda: TimeVaryingUpperConfidenceBound(model(), 2.0, "now"),
            "`decision_time` to be a number",
        ),
        (
            lambda: BatchUpperConfidenceBound(model(), 2.0, X_pending=[[1.0, 2.0]]),
            "`X_pending` to be a dense tensor",
        ),
    ]


@pytest.mark.parametrize(("call", "match"), wrong_calls())
def test_wrong_arguments_of_others_are_input_errors(call, match):
    with pytest.raises(InputDataError, match=match):
        call()
