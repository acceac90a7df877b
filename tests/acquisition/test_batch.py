import math

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    LogWidth,
    ScheduledUpperConfidenceBound,
)
from tests.acquisition import exact_moments, fixed_gp, standardized_data


GENERATOR = torch.Generator().manual_seed(7)
TEST_X = torch.rand(9, 2, dtype=torch.float64, generator=GENERATOR)
PENDING = torch.rand(4, 2, dtype=torch.float64, generator=GENERATOR)[[0, 1, 1, 1, 2]]


def hallucinated_scores(X, Y, pending, num_deviations, sign=1.0):
    """Return GP-BUCB's scores of TEST_X by dense algebra."""
    mean, _ = exact_moments(X, Y, TEST_X)
    both = torch.cat([X, pending])
    _, variance = exact_moments(both, torch.zeros(len(both), 1), TEST_X)
    return sign * mean + num_deviations * np.sqrt(variance)


def scores(acqf):
    return acqf(TEST_X.unsqueeze(-2)).detach().numpy()


def test_mean_is_frozen_and_variance_falls_with_repeated_pending_points():
    X, Y = standardized_data(10)
    acqf = BatchUpperConfidenceBound(fixed_gp(X, Y), 1.5, X_pending=PENDING)
    expected = hallucinated_scores(X, Y, PENDING, 1.5)
    np.testing.assert_allclose(scores(acqf), expected, atol=1e-6)
    merged = hallucinated_scores(X, Y, PENDING.unique(dim=0), 1.5)
    assert np.abs(merged - expected).max() > 1e-3


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


def test_both_ways_to_minimize_score_the_negative_mean():
    X, Y = standardized_data(10)
    expected = hallucinated_scores(X, Y, PENDING, 1.5, sign=-1.0)
    weights = torch.tensor([-1.0], dtype=torch.float64)
    for options in (
        {"maximize": False},
        {"posterior_transform": ScalarizedPosteriorTransform(weights)},
    ):
        acqf = BatchUpperConfidenceBound(
            fixed_gp(X, Y), 1.5, X_pending=PENDING, **options
        )
        np.testing.assert_allclose(scores(acqf), expected, atol=1e-6)


def test_scores_are_in_original_units_under_transforms():
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
    expected = 100 + 7 * hallucinated_scores(X, Y, PENDING, 1.5)
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
