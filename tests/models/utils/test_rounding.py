import warnings

import pytest
import torch
from botorch.exceptions.warnings import NumericsWarning

from botorch_bkb.models.utils.rounding import ROUNDING_THRESHOLD, RoundingReport


def warned(report, errors):
    """Return which of several errors, noted one after the other, were worth a word."""
    said = []
    for arm, error in enumerate(errors):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report.note(error, arm)
        said += [arm] * len(caught)
    return said


def test_errors_up_to_the_threshold_go_unsaid():
    report = RoundingReport(torch.double)
    just_below = 0.999 * ROUNDING_THRESHOLD
    assert warned(report, [0.0, 1e-300, just_below, float("-inf")]) == []
    assert warned(report, [1.001 * ROUNDING_THRESHOLD]) == [0]


def test_it_is_said_again_where_it_is_ten_times_what_was_said():
    errors = [0.02, 0.02, 0.19, 0.21, 0.1, 2.0, 2.2, float("inf"), float("inf")]
    assert warned(RoundingReport(torch.double), errors) == [0, 3, 6, 7]


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (0.025, "2.5%"),
        (12.4, "12 times"),
        (float("inf"), "1000000 times"),
    ],
)
def test_the_warning_names_dtype_arm_and_size(error, size):
    match = (
        f"Rounding in torch.float32 changes the variance of arm 7 by about {size} of"
    )
    with pytest.warns(NumericsWarning, match=match) as caught:
        RoundingReport(torch.float).note(error, 7)
    assert "float64 or a larger `noise_variance`" in str(caught[0].message)
    assert caught[0].filename.endswith("test_rounding.py")  # who asked for it


def test_an_error_that_is_a_warning_is_still_counted_as_said():
    """So a caller that goes on after the exception is not stopped at every update."""
    report = RoundingReport(torch.double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NumericsWarning, match="arm 0"):
            report.note(0.5, 0)
        report.note(0.5, 0)
