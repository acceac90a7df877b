"""Several outcomes as one score, against the formula in NumPy."""

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb import Desirability


NUMBERS = st.floats(-1e6, 1e6)


@st.composite
def objectives(draw):
    low = draw(NUMBERS)
    width = draw(st.floats(1e-3, 1e6))
    direction = draw(st.sampled_from(["max", "min"]))
    weight = draw(st.none() | st.floats(1e-3, 1e3))
    return direction, low, low + width, *([] if weight is None else [weight])


def expected_score(row, objectives):
    """The product of d^(w / sum of w), by logarithms."""
    if np.isnan(row).any():
        return np.nan
    logs, weights = [], []
    for y, (direction, low, high, *weight) in zip(row, objectives, strict=True):
        good, bad = (high, low) if direction == "max" else (low, high)
        d = np.interp((y - bad) / (good - bad), [0, 1], [0, 1])
        logs.append(np.log(d) if d > 0 else -np.inf)
        weights.append(weight[0] if weight else 1.0)
    return np.exp(np.average(logs, weights=weights))


@given(st.data())
def test_scores_are_weighted_geometric_means_of_ramps(data):
    each = data.draw(st.lists(objectives(), min_size=1, max_size=4))
    inside = [st.floats(low - 1, high + 1) for _, low, high, *_ in each]
    cells = [st.one_of(cell, NUMBERS, st.just(np.nan)) for cell in inside]
    rows = data.draw(st.lists(st.tuples(*cells), min_size=1, max_size=5))
    score = Desirability({f"y{n}": objective for n, objective in enumerate(each)})
    expected = [expected_score(row, each) for row in np.array(rows)]
    found = score(torch.tensor(rows, dtype=torch.double))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)
    # A table goes by its names, in any order and with others beside them.
    table = pd.DataFrame(rows, columns=list(score.objectives), dtype=object)
    table = table.assign(remark="none")[["remark", *table.columns[::-1]]]
    torch.testing.assert_close(score(table), found, equal_nan=True)
    torch.testing.assert_close(score(np.array(rows)), found, equal_nan=True)


@pytest.mark.parametrize(
    ("objectives", "match"),
    [
        ({}, "to name an outcome"),
        ({"yield": ("max", 0)}, r"\(direction, low, high\)"),
        ({"yield": ("most", 0, 1)}, "objective 'yield'.*but got .'most', 0, 1"),
        ({"yield": ("max", 5, 5)}, "low < high"),
        ({"yield": ("min", 0, float("inf"))}, "but got .'min', 0, inf"),
        ({"yield": ("max", 0, 1, 0)}, "a positive weight"),
        ({"yield": ("max", 0, 1, "2 ")}, "a positive weight"),
        ({"yield": ()}, r"but got \(\)"),
    ],
)
def test_impossible_objectives_are_refused(objectives, match):
    with pytest.raises(InputDataError, match=match):
        Desirability(objectives)


def test_outcomes_have_a_column_each():
    score = Desirability({"yield": ("max", 0, 1), "cost": ("min", 0, 1)})
    with pytest.raises(KeyError, match="'cost'"):
        score(pd.DataFrame({"yield": [1.0]}))
    with pytest.raises(BotorchTensorDimensionError, match=r"n x 2, but got \(3,\)"):
        score(torch.ones(3))
    assert score(torch.ones(1, 2, dtype=torch.float)).dtype == torch.float
