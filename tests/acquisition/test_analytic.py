import math

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP

from botorch_bkb.acquisition import (
    ChowdhuryGopalanWidth,
    ScheduledUpperConfidenceBound,
)
from tests.acquisition import (
    exact_moments,
    fixed_gp,
    NOISE,
    rbf_gram,
    standardized_data,
)


TEST_X = torch.rand(
    9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
)


def test_score_is_the_mean_plus_a_number_of_deviations():
    X, Y = standardized_data(10)
    acqf = ScheduledUpperConfidenceBound(fixed_gp(X, Y), confidence=1.5)
    mean, variance = exact_moments(X, Y, TEST_X)
    expected = mean + 1.5 * np.sqrt(variance)
    np.testing.assert_allclose(acqf(TEST_X.unsqueeze(-2)).detach(), expected, atol=1e-6)


def test_width_comes_from_the_schedule_and_beta_from_the_width():
    X, Y = standardized_data(10)
    acqf = ScheduledUpperConfidenceBound(fixed_gp(X, Y), ChowdhuryGopalanWidth())
    log_det = np.linalg.slogdet(np.eye(10) + rbf_gram(X.numpy(), X.numpy()) / NOISE)[1]
    width = math.sqrt(NOISE) * (1 + math.sqrt(2 * (log_det + math.log(20))))
    assert acqf.confidence_width == pytest.approx(width, rel=1e-6)
    assert acqf.beta.item() == pytest.approx(width**2 / NOISE, rel=1e-6)


def test_both_ways_to_minimize_score_the_negative_mean():
    X, Y = standardized_data(10)
    model = fixed_gp(X, Y)
    mean, variance = exact_moments(X, Y, TEST_X)
    expected = -mean + 1.5 * np.sqrt(variance)
    weights = torch.tensor([-1.0], dtype=torch.float64)
    for acqf in (
        ScheduledUpperConfidenceBound(model, 1.5, maximize=False),
        ScheduledUpperConfidenceBound(
            model, 1.5, posterior_transform=ScalarizedPosteriorTransform(weights)
        ),
    ):
        values = acqf(TEST_X.unsqueeze(-2)).detach()
        np.testing.assert_allclose(values, expected, atol=1e-6)


def test_unsupported_confidence_and_models_are_refused():
    X, Y = standardized_data(10)
    with pytest.raises(InputDataError, match="`num_deviations` to be finite"):
        ScheduledUpperConfidenceBound(fixed_gp(X, Y), -1.0)
    with pytest.raises(UnsupportedError, match="one noise variance"):
        ScheduledUpperConfidenceBound(SingleTaskGP(X, Y, 0.1 + Y.square()), 1.0)
