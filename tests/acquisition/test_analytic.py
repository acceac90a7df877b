"""Upper confidence bounds against dense algebra, and as Ax constructs them."""

import math

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import RBFKernel

import botorch_bkb.acquisition.input_constructors  # noqa: F401
from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    LogWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    ScheduledUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
    TVWidth,
)
from botorch_bkb.models import SingleTaskDTCGP
from tests.acquisition import (
    exact_moments,
    fixed_gp,
    LENGTHSCALE,
    NOISE,
    rbf_gram,
    standardized_data,
)


GENERATOR = torch.Generator().manual_seed(7)
TEST_X = torch.rand(9, 2, dtype=torch.float64, generator=GENERATOR)
PENDING = torch.rand(4, 2, dtype=torch.float64, generator=GENERATOR)[[0, 1, 1, 1, 2]]


def scores(acqf):
    return acqf(TEST_X.unsqueeze(-2)).detach().numpy()


def test_pending_points_only_lower_the_variances_of_a_sparse_model():
    """By Bayes' rule on its posterior, residual included; its means stay."""
    X, Y = standardized_data(30)
    model = fixed_gp(X, Y, model_class=SingleTaskDTCGP, inducing_points=X[:3])
    plain = ScheduledUpperConfidenceBound(model, 1.5)
    acqf = BatchUpperConfidenceBound(model, 1.5)
    before, S = scores(plain), X[:3].numpy()
    for pending in (PENDING[:1], PENDING, torch.cat([PENDING, X])):
        acqf.set_X_pending(pending)
        after = scores(acqf)
        assert (after < before + 1e-9).all()
        before = after
    joint = model.posterior(torch.cat([TEST_X, PENDING])).covariance_matrix
    C = joint.detach().numpy()
    gain = C[:9, 9:] @ np.linalg.inv(C[9:, 9:] + NOISE * np.eye(5))
    variance = np.diag(C)[:9] - (gain * C[:9, 9:]).sum(1)
    k = rbf_gram(S, TEST_X.numpy())
    residual = 1 - (k * np.linalg.solve(rbf_gram(S, S), k)).sum(0)
    assert (residual > 0.05).any()  # there is some
    acqf.set_X_pending(PENDING)
    mean = model.posterior(TEST_X).mean.detach().numpy()[:, 0]
    np.testing.assert_allclose(scores(acqf), mean + 1.5 * np.sqrt(variance), atol=1e-6)


def test_the_ratio_threshold_is_that_of_bbkb():
    X, Y = standardized_data(10)
    log_det = np.linalg.slogdet(np.eye(10) + rbf_gram(X.numpy(), X.numpy()) / NOISE)[1]
    model, inputs = fixed_gp(X, Y), {"ratio_threshold": 2.0}
    construct = get_acqf_input_constructor(BatchUpperConfidenceBound)
    width = math.sqrt(NOISE) * (1 + math.sqrt(2 * log_det + math.log(20)))
    for options in (inputs, construct(**arguments_of_ax(), **inputs)):
        options = {"model": model, "confidence": PracticalBBKBWidth(), **options}
        acqf = BatchUpperConfidenceBound(**options)
        assert acqf.confidence_width == pytest.approx(width, rel=1e-6)
    with pytest.raises(InputDataError, match="`ratio_threshold` to be a number from 1"):
        BatchUpperConfidenceBound(model, 1.0, ratio_threshold=0.5)


def two_outputs(as_list):
    """Return a model whose outputs are Y and X's sum, of known noises .1 and .3."""
    X, Y = standardized_data(10)
    Y = torch.cat([Y, X.sum(dim=-1, keepdim=True)], dim=-1)
    noise = torch.tensor([0.1, 0.3], dtype=torch.float64).expand(10, 2)
    options = {"outcome_transform": None}
    if not as_list:
        options["covar_module"] = RBFKernel(batch_shape=torch.Size([2])).double()
        return SingleTaskGP(X, Y, noise, **options)
    data = (X, Y[:, :1], noise[:, :1]), (X, Y[:, 1:], noise[:, 1:])
    kernel = RBFKernel().double()
    options["covar_module"] = kernel
    return ModelListGP(*(SingleTaskGP(*part, **options) for part in data))


@pytest.mark.parametrize("as_list", [False, True])
def test_a_number_of_deviations_takes_any_model_and_transform(as_list):
    model = two_outputs(as_list)
    weights = torch.tensor([0.4, -2.0], dtype=torch.float64)
    transform = ScalarizedPosteriorTransform(weights)
    options = {"model": model, "posterior_transform": transform, "maximize": False}
    acqf = ScheduledUpperConfidenceBound(confidence=0.3, **options)
    beta = torch.tensor(0.09, dtype=torch.float64)
    stock = UpperConfidenceBound(beta=beta, **options)
    np.testing.assert_allclose(scores(acqf), scores(stock), rtol=1e-12)
    with pytest.raises(UnsupportedError, match="pass a number of posterior standard"):
        _ = acqf.confidence_width
    with pytest.raises(UnsupportedError, match="an unbatched exact or DTC GP with one"):
        ScheduledUpperConfidenceBound(confidence=PracticalBKBWidth(), **options)
    # Pending points have the noise of each output.
    acqf = BatchUpperConfidenceBound(confidence=0.3, X_pending=PENDING, **options)
    both = torch.cat([standardized_data(10)[0], PENDING])
    unit = LENGTHSCALE / RBFKernel().lengthscale.item()
    both, points = both.numpy() * unit, TEST_X.numpy() * unit
    K, k = rbf_gram(both, both), rbf_gram(both, points)
    variance = sum(
        w**2 * (1 - (k * np.linalg.solve(K + noise * np.eye(15), k)).sum(0))
        for w, noise in ((0.4, 0.1), (-2.0, 0.3))
    )
    mean = stock._mean_and_sigma(TEST_X.unsqueeze(-2))[0].squeeze(-1)
    expected = -mean.detach().numpy() + 0.3 * np.sqrt(variance)
    np.testing.assert_allclose(scores(acqf), expected, atol=1e-6)


@pytest.mark.parametrize("as_column", [False, True])
def test_deviations_may_be_a_tensor(as_column):
    model = fixed_gp(*standardized_data(10))
    numbers = torch.linspace(0, 2, 9, dtype=torch.double)
    acqf = BatchUpperConfidenceBound(
        model, numbers.unsqueeze(-1) if as_column else numbers, X_pending=PENDING
    )
    each = [BatchUpperConfidenceBound(model, c, X_pending=PENDING) for c in numbers]
    expected = [scores(one)[place] for place, one in enumerate(each)]
    np.testing.assert_allclose(scores(acqf), expected, rtol=1e-12)
    widths = acqf.confidence_width
    torch.testing.assert_close(widths, numbers * math.sqrt(NOISE))
    assert each[3].confidence_width == pytest.approx(widths[3].item())
    for wrong in (-0.5, math.nan):
        with pytest.raises(InputDataError, match="finite and not negative, but got"):
            ScheduledUpperConfidenceBound(model, torch.tensor([1.0, wrong]))


@pytest.mark.parametrize("nothing", [None, PENDING[:0]])
def test_without_pending_points_it_is_the_plain_bound(nothing):
    model = fixed_gp(*standardized_data(10))
    acqf = BatchUpperConfidenceBound(model, 1.5, X_pending=PENDING)
    acqf.set_X_pending(nothing)
    plain = ScheduledUpperConfidenceBound(model, 1.5)
    np.testing.assert_allclose(scores(acqf), scores(plain), atol=1e-12)
    assert acqf.X_pending is None


def test_the_width_is_that_of_the_decision_after_the_pending_ones():
    """Frozen there: what follows is of the same batch."""
    model = fixed_gp(*standardized_data(10))
    acqf = BatchUpperConfidenceBound(model, LogWidth(0.8, 4.0), X_pending=PENDING)
    expected = 0.8 * math.log(4 * (10 + len(PENDING) + 1))
    assert acqf.beta.item() == pytest.approx(expected)
    acqf.set_X_pending(torch.cat([PENDING, PENDING]))
    assert acqf.beta.item() == pytest.approx(expected)


def test_scores_are_in_original_units_under_transforms():
    """By dense algebra: the mean is frozen, the variance falls with repeats."""
    X, Y = standardized_data(10)
    reference = fixed_gp(X, Y)
    model = SingleTaskGP(
        10 * X,
        100 + 7 * Y,
        likelihood=reference.likelihood,
        covar_module=reference.covar_module,
        mean_module=reference.mean_module,
        input_transform=Normalize(2, bounds=torch.tensor([[0.0, 0.0], [10.0, 10.0]])),
    )
    acqf = BatchUpperConfidenceBound(model, 1.5, X_pending=10 * PENDING)
    mean, _ = exact_moments(X, Y, TEST_X)
    both = torch.cat([X, PENDING])
    _, variance = exact_moments(both, torch.zeros(len(both), 1), TEST_X)
    expected = 100 + 7 * (mean + 1.5 * np.sqrt(variance))
    values = acqf(10 * TEST_X.unsqueeze(-2)).detach().numpy()
    np.testing.assert_allclose(values, expected, atol=1e-4)


def test_gradient_in_the_inputs_is_that_of_finite_differences():
    acqf = BatchUpperConfidenceBound(
        fixed_gp(*standardized_data(10)), 1.5, X_pending=PENDING
    )
    test_X = TEST_X[:3].unsqueeze(-2).clone().requires_grad_(True)
    assert torch.autograd.gradcheck(acqf, test_X, eps=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("X_pending", "error", "message"),
    [
        (PENDING[0], BotorchTensorDimensionError, r"n x d, but got \(2,\)"),
        (PENDING[:, :1].repeat(1, 5), RuntimeError, None),
    ],
)
def test_pending_points_of_a_wrong_shape_change_nothing(X_pending, error, message):
    acqf = BatchUpperConfidenceBound(
        fixed_gp(*standardized_data(10)), 1.5, X_pending=PENDING
    )
    before = scores(acqf)
    with pytest.raises(error, match=message):
        acqf.set_X_pending(X_pending)
    np.testing.assert_array_equal(scores(acqf), before)
    torch.testing.assert_close(acqf.X_pending, PENDING)


def arguments_of_ax(**options):
    """Return what Ax passes to an input constructor for a minimization."""
    X, Y = standardized_data(10)
    return {
        "model": fixed_gp(X, Y),
        "training_data": SupervisedDataset(
            X=X, Y=Y, feature_names=["a", "b"], outcome_names=["y"]
        ),
        "bounds": torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        "X_baseline": X,
        "posterior_transform": ScalarizedPosteriorTransform(
            weights=torch.tensor([-1.0], dtype=torch.float64)
        ),
        **options,
    }


def test_batch_bound_takes_what_ax_passes():
    construct = get_acqf_input_constructor(BatchUpperConfidenceBound)
    inputs = construct(
        **arguments_of_ax(X_pending=PENDING, confidence=1.5, num_arms=100)
    )
    acqf = BatchUpperConfidenceBound(**inputs)
    expected = BatchUpperConfidenceBound(
        fixed_gp(*standardized_data(10)), 1.5, X_pending=PENDING, maximize=False
    )
    np.testing.assert_array_equal(scores(acqf), scores(expected))


@pytest.mark.parametrize(
    ("acqf_class", "schedule", "options"),
    [
        (ScheduledUpperConfidenceBound, PracticalBKBWidth(), {}),
        (BatchUpperConfidenceBound, PracticalBBKBWidth(), {}),
        (TimeVaryingUpperConfidenceBound, TVWidth(), {"decision_time": 8.0}),
    ],
)
def test_default_confidence_is_that_of_the_algorithm(acqf_class, schedule, options):
    options = {"num_arms": 15, **options}
    inputs = get_acqf_input_constructor(acqf_class)(**arguments_of_ax(**options))
    acqf_class(**inputs)
    assert inputs["confidence"] == schedule
    assert options.items() <= inputs.items()


def test_budgeted_bound_refuses_pending_points():
    construct = get_acqf_input_constructor(ScheduledUpperConfidenceBound)
    construct(**arguments_of_ax(X_pending=PENDING[:0]))
    with pytest.raises(UnsupportedError, match="Use BatchUpperConfidenceBound"):
        construct(**arguments_of_ax(X_pending=PENDING))
