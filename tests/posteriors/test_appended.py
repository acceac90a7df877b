"""Arms that are appended make a factor of all inducing arms, old and new."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import arm_posterior
from botorch_bkb.posteriors.appended import AppendedArms
from tests.posteriors import ATOL, each_dtype, longs, NUM_ARMS, Problem
from tests.reference import nystrom_gram


ALL = torch.arange(NUM_ARMS)


def append(posterior, *groups):
    appended = AppendedArms(posterior)
    for group in groups:
        appended.append(longs(*group))
    return appended


def assert_spans(appended, problem, arms, atol):
    """The features' inner products are those of the inducing arms and of these."""
    S = [*problem.S, *arms]
    Z = appended.features(ALL).double().numpy()
    dense = nystrom_gram(problem.gram[np.ix_(S, S)], problem.gram[S])
    np.testing.assert_allclose(Z.T @ Z, dense, atol=atol)


@each_dtype
@given(
    seed=st.integers(0, 10**6),
    arms=st.lists(st.integers(0, NUM_ARMS - 1), max_size=9),
    first=st.integers(0, 9),
)
@settings(max_examples=25)
def test_it_does_not_matter_in_how_many_parts_arms_are_appended(
    dtype, seed, arms, first
):
    """Repeats, twins and arms that were inducing before are among them."""
    problem = Problem(seed, dtype)
    appended = append(problem.posterior, arms[:first], arms[first:])
    assert_spans(appended, problem, arms, ATOL[dtype])
    at_once = append(problem.posterior, arms)
    assert_spans(at_once, problem, arms, ATOL[dtype])
    assert set(appended.indices.tolist()) <= set(arms)
    assert len(at_once.indices) == len(appended.indices)


@each_dtype
def test_arms_in_the_span_of_the_others_stay_out(dtype):
    """Arm 16 is the twin of arm 0."""
    posterior = Problem(2, dtype, inducing=[3, 4]).posterior
    assert append(posterior, [3, 4]).indices.tolist() == []
    twins = append(posterior, [5], [0, 9, 9, 16])
    assert len(twins.indices) == 3
    twins.append(longs(16, 0, 5, 9))
    assert len(twins.indices) == 3
    assert twins.indices[0] == 5


@each_dtype
def test_a_posterior_without_inducing_arms_can_be_appended_to(dtype):
    problem = Problem(4, dtype, inducing=[])
    for posterior in (problem.posterior, problem.new_posterior()):
        appended = append(posterior, [8], [1, 2])
        assert appended.B.shape == (3, 0)
        assert_spans(appended, problem, [8, 1, 2], ATOL[dtype])


def test_inducing_arms_that_left_the_span_can_come_back(monkeypatch):
    """The basis still has them: features are projected."""
    monkeypatch.setattr(arm_posterior, "REBUILD_COST", 1e9)
    problem = Problem(inducing=[1, 2, 3, 4, 5])
    assert problem.posterior.variance.min() >= 0  # asked: the next is an increment
    problem.S = [2, 4, 5]
    problem.update()
    posterior = problem.posterior
    assert posterior.L_v.shape == (5, 5)
    assert_spans(append(posterior, [9]), problem, [9], 1e-9)
    appended = append(posterior, [3, 4], [9, 1])
    assert appended.indices.tolist() == [3, 9, 1]
    assert_spans(appended, problem, [3, 9, 1], 1e-9)
