from typing import Any

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.utils.datasets import SupervisedDataset

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    ScheduledUpperConfidenceBound,
)
from tests.acquisition import fixed_gp, standardized_data


X, Y = standardized_data(10)
PENDING = X[:3] + 0.01
TEST_X = X[4:9].unsqueeze(-2)


def arguments_of_ax(**options: Any) -> dict[str, Any]:
    """Return what Ax passes to an input constructor for a minimization."""
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
        fixed_gp(X, Y), 1.5, X_pending=PENDING, maximize=False
    )
    torch.testing.assert_close(acqf(TEST_X), expected(TEST_X))


@pytest.mark.parametrize(
    ("acqf_class", "schedule"),
    [
        (ScheduledUpperConfidenceBound, PracticalBKBWidth()),
        (BatchUpperConfidenceBound, PracticalBBKBWidth()),
    ],
)
def test_default_confidence_is_the_practical_width(acqf_class, schedule):
    inputs = get_acqf_input_constructor(acqf_class)(**arguments_of_ax())
    assert inputs["confidence"] == schedule


def test_budgeted_bound_refuses_pending_points():
    construct = get_acqf_input_constructor(ScheduledUpperConfidenceBound)
    construct(**arguments_of_ax(X_pending=PENDING[:0]))
    with pytest.raises(UnsupportedError, match="Use BatchUpperConfidenceBound"):
        construct(**arguments_of_ax(X_pending=PENDING))
