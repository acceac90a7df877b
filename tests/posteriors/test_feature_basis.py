"""Changes of a basis say of every arm what the dense posterior says of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors.feature_basis import BasisPosterior, change_basis
from tests.posteriors import ATOL, each_dtype, longs, NOISE, Problem
from tests.reference import Arms, nystrom_gram


NUM_ARMS = 16  # without the twin, which no factor allows


class Basis:
    """The features of all arms in a basis, by dense algebra."""

    def __init__(self, arms, dtype, seed=0):
        self.arms = list(arms)
        problem = Problem(seed)
        self.gram = problem.gram[:NUM_ARMS, :NUM_ARMS]
        self.L = np.linalg.cholesky(self.gram[np.ix_(self.arms, self.arms)])
        self.Z = np.linalg.solve(self.L, self.gram[self.arms])
        self.dtype = dtype

    def tensor(self, numbers):
        return torch.tensor(numbers, dtype=self.dtype)

    def moments(self, counts, sums):
        """Return scatter and target."""
        scatter = (self.Z * counts / NOISE) @ self.Z.T
        return self.tensor(scatter), self.tensor(self.Z @ sums / NOISE)

    def posterior(self, S, counts, sums):
        """Return the posterior with inducing arms that are some of the basis."""
        places = [self.arms.index(arm) for arm in S]
        rotation = np.linalg.qr(self.L[places].T, mode="complete")[0]
        complement = self.tensor(rotation[:, len(S) :])
        L = self.tensor(self.L)
        return BasisPosterior(
            longs(*self.arms),
            L,
            self.mask(S),
            complement,
            *self.moments(counts, sums),
        )

    def mask(self, S):
        return torch.tensor([arm in S for arm in self.arms], dtype=torch.bool)


def change(before, after, S_0, S_1, counts, more, sums, posterior=None):
    """Return the change of two bases, the later one with arms at its end."""
    M, joined = len(before.arms), after.arms[len(before.arms) :]
    pulled = np.flatnonzero(more)
    scatter, target = after.moments(counts + more, sums)
    return change_basis(
        posterior or before.posterior(S_0, counts, 0 * sums),
        joined=longs(*joined),
        cross=after.tensor(after.L[M:, :M].T),
        corner=after.tensor(after.L[M:, M:]),
        inside=before.mask(S_1),
        scatter=scatter,
        target=target,
        pulled=before.tensor(before.Z[:, pulled]),
        precisions=before.tensor(more[pulled] / NOISE),
    )


def assert_moves(found, after, S_0, S_1, counts, more, sums, atol):
    """The products with all arms' features take the dense moments to the new ones."""
    arms = Arms(after.gram, NOISE)
    _, old, old_projected = arms.parts(S_0, counts, sums)
    mean, new, new_projected = arms.parts(S_1, counts + more, sums)
    products = after.Z.T @ found.vectors.double().numpy()
    signs = found.signs.double().numpy()
    moved = products**2 @ signs.T
    np.testing.assert_allclose(products[:, -1], mean, atol=atol)
    projected = np.diag(new_projected - old_projected)
    np.testing.assert_allclose(moved[:, 0], projected, atol=atol)
    residual = np.diag(new - new_projected) - np.diag(old - old_projected)
    np.testing.assert_allclose(moved[:, 1], residual, atol=atol)
    assert found.signs.abs().sum(dim=0)[:-1].eq(1).all()
    assert not found.signs[:, -1].any()
    assert found.turns == (set(S_0) != set(S_1)) == bool(found.signs[1].any())


def random_pulls(stream, most):
    counts = stream.integers(1, 4, size=NUM_ARMS) * (stream.random(NUM_ARMS) < 0.4)
    counts[most:] = 0
    return counts.astype(float)


@each_dtype
@given(seed=st.integers(0, 10**6), num_joined=st.integers(0, 4))
@settings(max_examples=25)
def test_every_change_is_that_of_the_dense_posterior(dtype, seed, num_joined):
    """Arms dropped, added, joined and pulled, in any numbers, none as well."""
    stream = np.random.default_rng(seed)
    arms = stream.permutation(NUM_ARMS)[: stream.integers(1, 9) + num_joined].tolist()
    M = len(arms) - num_joined
    before, after = (Basis(arms[:size], dtype, seed) for size in (M, len(arms)))
    S_0 = [arm for arm in arms[:M] if stream.random() < 0.6]
    S_1 = [arm for arm in arms if stream.random() < 0.6 or arm in arms[M:]]
    counts, more = random_pulls(stream, NUM_ARMS), random_pulls(stream, seed % 17)
    sums = (counts + more) * stream.normal(size=NUM_ARMS)
    found = change(before, after, S_0, S_1, counts, more, sums)
    assert_moves(found, after, S_0, S_1, counts, more, sums, 10 * ATOL[dtype])
    # What a next change starts from.
    Q = found.after.complement.double().numpy()
    np.testing.assert_allclose(Q.T @ Q, np.eye(len(arms) - len(S_1)), atol=ATOL[dtype])
    Z = found.after.project(after.tensor(after.Z)).double().numpy()
    expected = nystrom_gram(after.gram[np.ix_(S_1, S_1)], after.gram[S_1])
    np.testing.assert_allclose(Z.T @ Z, expected, atol=ATOL[dtype])
    assert found.after.indices.tolist() == arms
    np.testing.assert_allclose(found.after.L, after.L, atol=ATOL[dtype])
    assert found.vectors.dtype == found.signs.dtype == dtype


@each_dtype
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_changes_of_changes_do_not_drift_away(dtype, seed):
    """Twelve in a row, each from the posterior that the last one left."""
    stream = np.random.default_rng(seed)
    arms, counts = stream.permutation(NUM_ARMS)[:8].tolist(), np.zeros(NUM_ARMS)
    basis, none = Basis(arms, dtype, seed), np.zeros(NUM_ARMS)
    S, posterior = arms, basis.posterior(arms, none, none)
    for _ in range(12):
        S_0, S = S, [arm for arm in arms if stream.random() < 0.7]
        more = random_pulls(stream, NUM_ARMS)
        sums = (counts + more) * stream.normal(size=NUM_ARMS)
        found = change(basis, basis, S_0, S, counts, more, sums, posterior)
        assert_moves(found, basis, S_0, S, counts, more, sums, 10 * ATOL[dtype])
        posterior, counts = found.after, counts + more


@each_dtype
def test_the_small_matrices_are_those_of_the_inducing_arms(dtype):
    """V is the identity where the inducing arms have no features."""
    stream = np.random.default_rng(1)
    basis, S = Basis([4, 9, 1, 12, 6], dtype), [9, 12]
    counts = random_pulls(stream, NUM_ARMS)
    sums = counts * stream.normal(size=NUM_ARMS)
    posterior = basis.posterior(S, counts, sums)
    assert posterior.size == 5
    arms = Arms(basis.gram, NOISE)
    log_det = 2 * posterior.L_v.diagonal().log().sum().item()
    assert log_det == pytest.approx(arms.log_det(S, counts), rel=ATOL[dtype])
    Z = posterior.project(basis.tensor(basis.Z))
    mean, _, projected = arms.parts(S, counts, sums)
    found = (posterior.weights @ Z).double()
    np.testing.assert_allclose(found, mean, atol=ATOL[dtype])
    found = (Z.mT @ posterior.solve(Z)).double()
    np.testing.assert_allclose(found, projected, atol=ATOL[dtype])
    V = posterior.L_v @ posterior.L_v.mT
    across = V @ posterior.complement
    torch.testing.assert_close(across, posterior.complement, rtol=0, atol=ATOL[dtype])


@pytest.mark.parametrize("S_0", [[], [4], [9, 1]])
@pytest.mark.parametrize("S_1", [[], [4], [4, 9]])
def test_all_inducing_arms_may_leave_and_others_come(S_0, S_1):
    basis, counts = Basis([4, 9, 1], torch.float64), np.ones(NUM_ARMS)
    more = np.eye(NUM_ARMS)[9]  # one arm
    found = change(basis, basis, S_0, S_1, counts, more, 2 * counts)
    assert_moves(found, basis, S_0, S_1, counts, more, 2 * counts, 1e-9)
    # Two vectors an arm that changes at most, one a pulled one, and the weights.
    assert found.vectors.shape[-1] <= 2 * len(set(S_0) ^ set(S_1)) + 1 + 1


def test_data_that_no_pulls_can_bring_are_an_error_of_linear_algebra():
    """The posterior then rebuilds."""
    basis, S = Basis([4, 9, 1], torch.float64), [4, 9]
    counts, more = np.zeros(NUM_ARMS), np.zeros(NUM_ARMS)
    more[[1, 4, 9]] = -2.0
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        basis.posterior(S, more, counts)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        change(basis, basis, S, S, counts, more, counts)
