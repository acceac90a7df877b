"""Widths (16) and (19), and the upper confidence bound at a decision time."""

import math
from dataclasses import replace

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    LogWidth,
    RTVWidth,
    SmoothBox,
    TimeVaryingUpperConfidenceBound,
    TVWidth,
)
from botorch_bkb.optim import optimize_acqf_finite
from tests.acquisition.test_confidence import STATE
from tests.models.test_time_varying_gp import drifting_data, make_model


def state(num_pulls, num_arms=None):
    return replace(STATE, num_pulls=num_pulls, num_arms=num_arms)


@pytest.mark.parametrize(
    ("width", "union"),
    [
        (TVWidth, lambda t, d: math.pi**2 * t**2 / (2 * d)),
        (RTVWidth, lambda t, d: 2 * math.pi**2 * t**2 / (3 * d)),
    ],
    ids=["19", "16"],
)
def test_widths_are_those_of_equations_16_and_19(width, union):
    box, delta, t = SmoothBox(dimension=2, side_length=1.5, a=3.0, b=0.7), 0.1, 40
    u = union(t, delta)
    cells = 1.5 * 2 * 0.7 * t**2 * math.sqrt(math.log(2 * 3.0 * u))
    beta = 2 * math.log(u) + 2 * 2 * math.log(cells)
    w = width(delta, box)(state(t - 1))
    assert w == pytest.approx(math.sqrt(beta * 0.25), rel=1e-12)
    # On arms no derivative is needed.
    beta = 2 * math.log(50 * math.pi**2 * t**2 / (6 * delta))
    w = width(delta)(state(t - 1, num_arms=50))
    assert w == pytest.approx(math.sqrt(beta * 0.25), rel=1e-12)


def test_widths_refuse_what_they_cannot_use():
    with pytest.raises(UnsupportedError, match="`box` or the number of arms for TV"):
        TVWidth()(state(3))
    with pytest.raises(InputDataError, match="`side_length` to be positive"):
        SmoothBox(2, 0.0, 1.0, 1.0)


@pytest.mark.parametrize("maximize", [True, False], ids=["max", "min"])
def test_the_score_is_the_bound_at_the_decision_time(maximize):
    X, times, Y = drifting_data(0.1, num_times=12)
    model = make_model(X, times, Y)
    acqf = TimeVaryingUpperConfidenceBound(
        model, LogWidth(0.8, 4.0), 14.0, maximize=maximize
    )
    points = torch.linspace(0, 1, 9, dtype=torch.double).reshape(9, 1, 1)
    posterior = model.posterior(torch.cat([points, torch.full_like(points, 14.0)], -1))
    mean, variance = posterior.mean.flatten(), posterior.variance.flatten()
    beta = 0.8 * math.log(4 * 37)
    score = (mean if maximize else -mean) + (beta * variance).sqrt()
    torch.testing.assert_close(acqf(points), score)
    later = TimeVaryingUpperConfidenceBound(model, LogWidth(0.8, 4.0), 60.0)
    assert later(points).std() < 0.1 * acqf(points).std()  # all is forgotten
    (index,), _ = optimize_acqf_finite(acqf, points.squeeze(1))
    assert index == score.argmax()


def test_pending_points_are_pulls_at_the_decision_time():
    X, times, Y = drifting_data(0.1, num_times=12)
    model = make_model(X, times, Y)
    choices = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    acqf = TimeVaryingUpperConfidenceBound(model, 1.5, 14.0)
    picks, values = optimize_acqf_finite(acqf, choices, q=3)
    assert acqf.X_pending is None
    # The plain batch bound, of points in space and time.
    both = torch.cat([choices, torch.full_like(choices, 14.0)], dim=-1)
    plain = BatchUpperConfidenceBound(model, 1.5)
    expected, scores = optimize_acqf_finite(plain, both, q=3)
    assert picks.tolist() == expected.tolist()
    torch.testing.assert_close(values, scores)
    given = TimeVaryingUpperConfidenceBound(
        model, LogWidth(0.8, 4.0), 14.0, X_pending=choices[picks]
    )
    assert given.beta.item() == pytest.approx(0.8 * math.log(4 * (len(Y) + 3 + 1)))
