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
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    MultitaskGaussianLikelihood,
    StudentTLikelihood,
)
from gpytorch.means import ConstantMean

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.models import SingleTaskDTCGP, TimeVaryingGP
from botorch_bkb.models.kernels import (
    nearest_covariance,
    PrecomputedKernel,
    TemporalDecayKernel,
)
from botorch_bkb.optim import ArmPosterior
from botorch_bkb.posteriors import SparseArmFilter


X = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
Y = (X.sum(dim=-1, keepdim=True) - 1) / X.sum(dim=-1).std()
PAIR = torch.Size([2])
BATCH = RBFKernel(batch_shape=PAIR).double()
RBF = RBFKernel().double()
DECAYS = TemporalDecayKernel(batch_shape=PAIR)


def model():
    return SingleTaskDTCGP(X, Y, inducing_points=X[:4])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"train_X": X.numpy()}, InputDataError, "`train_X` to be a.*got ndarray"),
        ({"train_X": X.long()}, InputDataError, "`train_X` to be a.*got torch.int64"),
        ({"train_Y": Y.tolist()}, InputDataError, "`train_Y` to be a .*got list"),
        ({"train_Yvar": 0.1}, InputDataError, "`train_Yvar` to be a .*got float"),
        ({"covar_module": "rbf"}, InputDataError, "a GPyTorch Kernel, but got 'rbf'"),
        ({"covar_module": BATCH}, UnsupportedError, r"batch of shape \(2,\)"),
        ({"mean_module": "zero"}, InputDataError, "a GPyTorch Mean, but got 'zero'"),
        ({"mean_module": ConstantMean(batch_shape=PAIR)}, UnsupportedError, "one Mean"),
        ({"likelihood": StudentTLikelihood()}, UnsupportedError, "a StudentTLikel"),
        ({"likelihood": MultitaskGaussianLikelihood(2)}, UnsupportedError, "one outp"),
        ({"train_X": X.expand(2, 12, 2)}, UnsupportedError, "Expected unbatched"),
        ({"train_Y": torch.cat([Y, Y], dim=-1)}, UnsupportedError, "one output in"),
    ],
)
def test_models_name_the_argument_that_is_wrong(change, error, match):
    with pytest.raises(error, match=match):
        SingleTaskDTCGP(**{"train_X": X, "train_Y": Y, **change})


@pytest.mark.parametrize(
    "likelihood",
    [
        GaussianLikelihood(batch_shape=PAIR),
        FixedNoiseGaussianLikelihood(torch.ones(5)),
        FixedNoiseGaussianLikelihood(torch.ones(2, 12)),
    ],
)
def test_a_likelihood_has_one_noise_variance_a_row(likelihood):
    with pytest.raises(UnsupportedError, match="one noise variance, or 12, one per"):
        SingleTaskDTCGP(X, Y, likelihood=likelihood)


@pytest.mark.parametrize("points", ["all", X[:3].tolist(), X[:3].long()])
def test_inducing_points_are_a_tensor(points):
    with pytest.raises(InputDataError, match="Expected `inducing_points` to be a ten"):
        SingleTaskDTCGP(X, Y, inducing_points=points)
    with pytest.raises(InputDataError, match="Expected `inducing_points` to be a ten"):
        model().set_inducing_points(points)


def wrong_calls():  # not checked by mypy, which would refuse them too
    return [
        (lambda: model().resample_inducing_points(2.0, 3), "`generator` to be a"),
        (lambda: model().leverage_scores(X.tolist()), "`X` to be a tensor"),
        (lambda: model().leverage_scores(X, "0.1"), "`Yvar` to be a tensor"),
        (
            lambda: model().condition_on_observations(X[:1], Y[:1], noise="0.1"),
            "`noise` to be a tensor",
        ),
        (lambda: TimeVaryingGP(X, Y, temporal_kernel=3), "`temporal_kernel` to be a"),
        (lambda: SparseArmFilter(X, "rbf", 0.1, 0.1), "`covar_module` to be a GPyT"),
        (lambda: SparseArmFilter([[1.0]], RBF, 0.1, 0.1), "`arms` to be a tensor"),
        (lambda: ArmPosterior(X.tolist(), RBF, 0.1), "`arms` to be a tensor"),
        (lambda: ArmPosterior(X, "rbf", 0.1), "`covar_module` to be a GPyTorch"),
        (lambda: ArmPosterior(X, RBF, "0.1"), "`noise_variance` to be a positive"),
        (lambda: PrecomputedKernel([[1.0]]), "`covariance` to be a tensor"),
        (lambda: nearest_covariance("table"), "`covariance` to be a tensor"),
        (lambda: nearest_covariance(X[:2] * torch.nan), "finite `covariance`"),
        (
            lambda: TimeVaryingUpperConfidenceBound(model(), 2.0, "now"),
            "finite `decision_time`",
        ),
        (
            lambda: SingleTaskDTCGP(X, Y, Y.abs().where(Y[3] != Y, torch.nan)),
            r"`train_Yvar` without NaN, but train_Yvar\[3, 0\] is NaN",
        ),
        (
            lambda: BatchUpperConfidenceBound(model(), 2.0, X_pending=[[1.0, 2.0]]),
            "`X_pending` to be a tensor",
        ),
    ]


@pytest.mark.parametrize(("call", "match"), wrong_calls())
def test_wrong_types_are_input_errors(call, match):
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=match):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: TimeVaryingGP(
            X, Y, temporal_kernel=TemporalDecayKernel(batch_shape=PAIR)
        ),
        lambda: SparseArmFilter(X, BATCH, 0.1, 0.1),
        lambda: ArmPosterior(X, BATCH, 0.1),
    ],
)
def test_a_batch_of_kernels_is_refused(call):
    with pytest.raises(UnsupportedError, match=r"one Kernel, but it is a batch of sh"):
        call()
