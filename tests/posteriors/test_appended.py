"""Arms that are appended make a factor of all inducing arms, old and new."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import arm_posterior, ArmPosterior
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
def test_the_features_of_appended_arms_are_their_rows_of_the_factor(dtype):
    problem = Problem(1, dtype, inducing=[2, 5])
    appended = append(problem.posterior, [7, 3], [11])
    assert appended.indices.tolist() == [7, 3, 11]
    assert appended.B.shape == (3, 2)
    assert torch.equal(appended.C, appended.C.tril())
    assert (appended.C.diagonal() > 0.1).all()
    rows = torch.cat([appended.B, appended.C], dim=-1)
    features = appended.features(longs(7, 3, 11)).mT
    torch.testing.assert_close(features, rows, rtol=0, atol=ATOL[dtype])
    assert features.dtype == dtype


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


def test_an_arm_without_prior_variance_stays_out():
    arms = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]).double()
    posterior = ArmPosterior(arms, LinearKernel().double(), 0.1)
    appended = append(posterior, [0], [0, 1, 2], [3])
    assert sorted(appended.indices.tolist()) == [1, 2]  # the kernel's rank
    assert appended.features(longs(0)).tolist() == [[0.0], [0.0]]
    gram = posterior.covar_module.variance.item() * (arms @ arms.mT).numpy()
    Z = appended.features(torch.arange(4)).detach().numpy()
    np.testing.assert_allclose(Z.T @ Z, gram, rtol=1e-12, atol=1e-12)


def test_nothing_is_appended_to_begin_with():
    posterior = Problem(3).posterior
    for appended in (append(posterior), append(posterior, [], [])):
        assert appended.indices.shape == (0,)
        assert (appended.B.shape, appended.C.shape) == ((0, 4), (0, 0))
        assert torch.equal(appended.features(ALL), posterior.features(ALL))


def test_no_arms_have_no_features():
    appended = append(Problem(3, inducing=[1, 2]).posterior, [5, 6, 7])
    assert appended.features(longs()).shape == (5, 0)


@each_dtype
def test_a_posterior_without_inducing_arms_can_be_appended_to(dtype):
    problem = Problem(4, dtype, inducing=[])
    for posterior in (problem.posterior, problem.new_posterior()):
        appended = append(posterior, [8], [1, 2])
        assert appended.B.shape == (3, 0)
        assert_spans(appended, problem, [8, 1, 2], ATOL[dtype])


def test_with_all_arms_appended_the_features_are_a_root_of_the_gram_matrix():
    problem = Problem(5)
    appended = append(problem.posterior, range(NUM_ARMS))
    assert len(problem.S) + len(appended.indices) == NUM_ARMS - 1  # but for a twin
    Z = appended.features(ALL).numpy()
    np.testing.assert_allclose(Z.T @ Z, problem.gram, atol=1e-9)


@each_dtype
def test_a_border_that_is_known_is_that_of_an_arm_that_is_appended(dtype):
    problem = Problem(6, dtype, inducing=[3, 4])
    expected = append(problem.posterior, [7], [9])
    appended = append(problem.posterior, [7])
    z = appended.features(longs(9))
    root = (1 - z.square().sum()).sqrt()
    appended.border(longs(9), z, root.reshape(1, 1))
    assert appended.indices.tolist() == [7, 9]
    for name in ("B", "C"):
        torch.testing.assert_close(
            getattr(appended, name), getattr(expected, name), rtol=0, atol=ATOL[dtype]
        )


def test_coordinates_are_what_old_features_leave_in_units_of_the_factor():
    problem = Problem(7, inducing=[1, 2])
    appended = append(problem.posterior, [7, 9, 11])
    residual = np.random.default_rng(0).normal(size=(3, 4))
    coordinates = appended.coordinates(torch.tensor(residual)).numpy()
    np.testing.assert_allclose(appended.C.numpy() @ coordinates, residual, atol=1e-12)
    assert appended.coordinates(torch.empty(3, 0).double()).shape == (3, 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inducing_arms_that_left_the_span_can_come_back(monkeypatch, seed):
    """The basis still has them: features are projected."""
    monkeypatch.setattr(arm_posterior, "REBUILD_COST", 1e9)
    problem = Problem(seed, inducing=[1, 2, 3, 4, 5])
    assert problem.posterior.variance.min() >= 0  # asked: the next is an increment
    problem.S = [2, 4, 5]
    problem.update()
    posterior = problem.posterior
    assert posterior.L_v.shape == (5, 5)
    assert_spans(append(posterior, [9]), problem, [9], 1e-9)
    appended = append(posterior, [3, 4], [9, 1])
    assert appended.indices.tolist() == [3, 9, 1]
    assert_spans(appended, problem, [3, 9, 1], 1e-9)


def test_two_lists_of_one_posterior_know_nothing_of_each_other():
    problem = Problem(8, inducing=[3, 4])
    left, right = append(problem.posterior, [7]), append(problem.posterior, [9])
    left.append(longs(10))
    assert (left.indices.tolist(), right.indices.tolist()) == ([7, 10], [9])
    assert_spans(right, problem, [9], 1e-9)
    assert problem.posterior.inducing_indices.tolist() == [3, 4]
