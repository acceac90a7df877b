"""What models, kernels and acquisition functions refuse, and by which error."""

import math
import re

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.transforms import Normalize, Standardize
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
MANY_NOISES = GaussianLikelihood(batch_shape=PAIR)


SHAPE, INPUT, OTHER = BotorchTensorDimensionError, InputDataError, UnsupportedError
X_BATCH, Y_BATCH = X.expand(2, 12, 2), Y.expand(2, 12, 1)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"train_X": X.numpy()}, INPUT, "`train_X` to be a.*got ndarray"),
        ({"train_Y": Y.log()}, INPUT, r"`train_Y` without NaN.*Y\[\d+, 0\] is"),
        ({"inducing_points": "all"}, INPUT, "`inducing_points` to be a den"),
        ({"inducing_points": X / 0}, INPUT, "`inducing_points` without"),
        ({"inducing_points": X[:, :1]}, SHAPE, "of shape m x 2"),
        ({"inducing_points": 0}, INPUT, "an integer of at least 1"),
        ({"inducing_points": True}, INPUT, "`inducing_points` to be a den"),
        ({"inducing_points": X[:0]}, SHAPE, "at least one row"),
        ({"covar_module": "rbf"}, INPUT, "class Kernel, but got 'rbf'"),
        (
            {"covar_module": RBFKernel(batch_shape=PAIR)},
            OTHER,
            r"one Kernel, .* batch of shape \(2,\)",
        ),
        ({"likelihood": StudentTLikelihood()}, OTHER, "a StudentTLikel"),
        ({"likelihood": MultitaskGaussianLikelihood(2)}, OTHER, "one outp"),
        ({"likelihood": MANY_NOISES}, OTHER, "one noise variance, or 12, on"),
        ({"train_X": X_BATCH}, OTHER, "Expected unbatched"),
        (
            {"train_X": X_BATCH, "train_Y": Y_BATCH},
            OTHER,
            "`SingleTaskDTCGP.loo_posterior`.* in place of `batch_cross_validation`",
        ),
        ({"train_Y": Y_BATCH}, OTHER, "Expected unbatched"),
        ({"train_Y": torch.cat([Y, Y], dim=-1)}, OTHER, "one output in"),
    ],
)
def test_models_name_the_argument_that_is_wrong(change, error, match):
    with pytest.raises(error, match=match):
        SingleTaskDTCGP(**{"train_X": X, "train_Y": Y, **change}).posterior(X)


COLUMN = "`{0}` to be a column with a row for each row.*Use `{0}.reshape"


@pytest.mark.parametrize("model_class", [SingleTaskDTCGP, TimeVaryingGP])
@pytest.mark.parametrize("name", ["train_Y", "train_Yvar"])
@pytest.mark.parametrize("rows", [slice(11), slice(1), slice(0)])
def test_training_data_have_one_length(model_class, name, rows):
    data = {"train_X": X, "train_Y": Y, "train_Yvar": torch.full_like(Y, 0.1)}
    with pytest.raises(BotorchTensorDimensionError, match=COLUMN.format(name)):
        model_class(**{**data, name: data[name][rows]})
    with pytest.raises(BotorchTensorDimensionError, match=COLUMN.format(name)) as error:
        model_class(**{**data, name: data[name][:, 0]})
    remedy = re.findall("Use `(.*?)`", str(error.value))[0]
    column = eval(remedy, {name: data[name][:, 0]})
    model_class(**{**data, name: column})
    infinite = data[name].index_fill(0, torch.tensor([2]), math.inf)
    with pytest.raises(InputDataError, match=rf"{name}\[2, 0\] is inf"):
        model_class(**{**data, name: infinite})
    with pytest.raises(InputDataError, match="share the same dtype"):
        model_class(**{**data, name: data[name].float()})


@pytest.mark.parametrize("Y_new", [Y[:2], Y[:1], Y[:3, 0], Y[:3].expand(3, 2)])
def test_conditioning_takes_one_outcome_per_point(Y_new):
    with pytest.raises(BotorchTensorDimensionError, match=COLUMN.format("Y")):
        model().condition_on_observations(X[:3], Y_new)
    with pytest.raises(InputDataError, match=r"`Y` without NaN.*Y\[0, 0\] is nan"):
        model().condition_on_observations(X[:3], Y[:3] * math.nan)


def model():
    return SingleTaskDTCGP(X, Y, inducing_points=X[:4])


def resampled(*args, **options):
    return lambda: model().resample_inducing_points(*args, **options)


def wrong_calls():  # not checked by mypy, which would refuse them too
    return [
        (lambda: model().set_inducing_points(X[:3].long()), "`inducing_points` to be"),
        (resampled(2.0, 3), "`generator` to be a"),
        (resampled(0.0), "`oversampling` to be pos"),
        (resampled(resampling="same"), "`resampling` to be 'independent'"),
        (resampled(max_inducing=0), "`max_inducing` to be an integer of at least 1"),
        (resampled(inclusion="all"), "`inclusion` to be 'merged'"),
        (resampled(scores=[1.0]), "`scores` to be a d"),
        (lambda: model().leverage_scores(X.tolist()), "`X` to be a dense tensor"),
        (
            lambda: model().condition_on_observations(X[:1], Y[:1], noise="0.1"),
            "`noise` to be a dense tensor",
        ),
        (
            lambda: model().condition_on_observations(X[:1], Y[:1], noise=Y[:1] / 0),
            r"`noise` without NaN and infinity, but noise\[0, 0\] is",
        ),
        (
            lambda: TimeVaryingGP(X, Y, input_transform=Normalize),
            r"`input_transform` to be an object of class In.*Pass `Normalize\(\)`",
        ),
        (
            lambda: SingleTaskDTCGP(X, Y, outcome_transform=Standardize),
            r"`outcome_transform` to be an object of class Out.*Pass `Standardize\(\)`",
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
