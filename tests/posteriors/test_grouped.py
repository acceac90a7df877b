"""Groups, controls and earlier campaigns: answers are those of dense algebra."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import ArmSampler, product_posterior, product_search
from botorch_bkb.posteriors.grouped import GroupedResults
from tests.helpers import seeded
from tests.posteriors import longs, NOISE, Problem
from tests.posteriors.test_arm_sampler import largest_z, MAX_Z, NUM_DRAWS
from tests.posteriors.test_product_posterior import SMALL, Space
from tests.reference import GroupedGP


ATOL = {torch.float64: 1e-8, torch.float32: 2e-2}
# Results: the place of the arm among the pulled ones (-1 for a control), group, earlier
# campaign, and control.
arm = st.tuples(st.integers(0, 5), st.integers(-1, 2), st.integers(-1, 1), st.just(-1))
control = st.tuples(
    st.just(-1), st.integers(-1, 2), st.integers(-1, 1), st.integers(0, 1)
)
layouts = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 99),
        "rows": st.lists(st.one_of(arm, arm, control), min_size=1, max_size=14),
        "tau": st.sampled_from([0.0, 0.5, 3.0]),
        "rho": st.lists(st.sampled_from([0.0, 0.5, 30.0]), min_size=2, max_size=2),
    }
)


class Grouped:
    """A posterior of results in groups, and the dense answer.

    Args:
        problem: Has the posterior, the arms' Gram matrix and the inducing arms.
        arms: The pulled arms.
        layout: See ``layouts``; its noise variances are drawn unless given.
    """

    def __init__(self, problem, arms, layout):
        stream = np.random.default_rng(layout["seed"])
        labels = np.array(layout["rows"])
        n, tau, rho = len(labels), layout["tau"], layout["rho"]
        noise = np.exp(stream.uniform(-3, 1, n)) * NOISE
        noise = np.full(n, NOISE) if "noise" in layout else noise
        y = stream.normal(size=n)
        place = labels[:, 0].copy()
        arms = np.sort(arms)
        labels[:, 0] = np.where(place < 0, -1, arms[place])
        # One column for each group, campaign and control, groups by campaign.
        same = [labels[:, [column, 2]] for column in (1, 2, 3)]
        self.columns, columns = [], []
        for kind, pairs in enumerate(same):
            for pair in np.unique(pairs[pairs[:, 0] >= 0], axis=0):
                has = (pairs == pair).all(axis=1)
                columns.append(has)
                self.columns.append((int(has.argmax()), kind))
        effects = np.array(columns, float).reshape(-1, n).T
        self.labels, self.S, self.gram = labels, problem.S, problem.gram
        self.options = y, noise, tau, rho
        first = [result for result, _ in self.columns]
        kinds = np.array([kind for _, kind in self.columns], int)
        prior = np.zeros((len(first), len(first)))
        for kind, (both, variance) in enumerate(self.dense().effects):
            own = np.outer(kinds == kind, kinds == kind)
            prior += own * variance * both[np.ix_(first, first)]
        scale, vectors = np.linalg.eigh(prior)
        root = vectors * np.sqrt(scale.clip(0.0))
        self.grouped = GroupedResults(
            torch.from_numpy(place),
            *map(torch.from_numpy, (1 / noise, y / noise)),
            torch.from_numpy(labels[:, 2] + 1),
            torch.from_numpy(effects),
            torch.from_numpy(root),
            tau**2,
            [0.0, *(value**2 for value in rho)],
        ).to(problem.posterior.like)
        weights, sums = np.zeros((2, len(problem.gram)))
        np.add.at(weights, labels[place >= 0, 0], (NOISE / noise)[place >= 0])
        np.add.at(sums, labels[place >= 0, 0], (NOISE * y / noise)[place >= 0])
        arms = torch.from_numpy(arms)
        self.posterior = problem.posterior
        data = torch.from_numpy(weights)[arms], torch.from_numpy(sums)[arms]
        self.posterior.update(torch.tensor(self.S), arms, *data, self.grouped)

    def dense(self, kept=slice(None)):
        """Return the dense process of some of the results."""
        return GroupedGP(self.gram, self.labels, *self.options, self.S, kept=kept)


def problem_of(kind, dtype, seed):
    """Return a problem and its pulled arms."""
    if kind == "product":
        space = Space(seed, dtype)
        return space, space.pulled[:6]
    problem = Problem(seed, dtype, exact=kind == "exact")
    return problem, np.flatnonzero(problem.counts)


def after(covariance, pulls):
    """Return the covariance given pulls without reward, of a typical group."""
    K = covariance[np.ix_(pulls, pulls)] + NOISE * np.eye(len(pulls))
    return covariance - covariance[:, pulls] @ np.linalg.solve(K, covariance[pulls])


@pytest.mark.parametrize("dtype", ATOL, ids=str)
@pytest.mark.parametrize("kind", ["exact", "sparse", "product"])
@given(layout=layouts)
@settings(max_examples=25)
def test_answers_are_those_of_the_dense_process(kind, dtype, layout):
    case = Grouped(*problem_of(kind, dtype, layout["seed"]), layout)
    posterior, dense = case.posterior, case.dense()
    mean, covariance = dense.posterior()
    close = {"rtol": 0.0, "atol": ATOL[dtype]}
    every = torch.arange(len(mean))
    np.testing.assert_allclose(posterior.means(every), mean, **close)
    np.testing.assert_allclose(posterior.variances(every), np.diag(covariance), **close)
    some = longs(2, 11, 7)
    found = posterior.covariance(some, some)
    np.testing.assert_allclose(found, covariance[np.ix_(some, some)], **close)
    found = posterior.given({2: 2, 11: 1}).variances(every)
    expected = np.diag(after(covariance, [2, 2, 11]))
    np.testing.assert_allclose(found, expected, **close)
    # Offsets.
    Z, basis = posterior.features(posterior.pulled_indices), posterior.basis
    mean, covariance = case.grouped.offsets(Z, basis.L_v, basis.weights)
    found = torch.stack([mean, covariance.diagonal()], dim=-1).numpy()
    expected = [dense.offset(*column) for column in case.columns]
    expected = np.reshape(expected, (-1, 2))
    # Means are rounded relative to their standard deviations, variances to themselves.
    unit = 1 + expected[:, 1:] ** [0.5, 1.0]
    np.testing.assert_allclose(found / unit, expected / unit, **close)
    # Present results of some arms are left out.
    left = posterior.pulled_indices[[4, 1]].numpy()
    arm, _, campaign, _ = case.labels.T
    kept = ~(np.isin(arm, left) & (campaign < 0))
    mean, covariance = case.dense(kept).posterior()
    found = posterior.left_out(torch.from_numpy(left))
    expected = mean[left], np.diag(covariance)[left]
    np.testing.assert_allclose(torch.stack(found), expected, **close)


# Of nine results in three groups, three are of an earlier campaign.
LAYOUT = {
    "seed": 5,
    "rows": [(r % 6, r % 3, -1 if r < 6 else 0, -1) for r in range(9)],
    "tau": 1.0,
    "rho": [0.5, 0.0],
}


@pytest.mark.parametrize("kind", ["exact", "sparse"])
def test_draws_have_the_moments_of_the_dense_process(kind):
    case = Grouped(*problem_of(kind, torch.float64, 1), LAYOUT)
    mean, covariance = case.dense().posterior()
    for pending in ([], case.S[:2]):  # inducing arms, which join no others
        sampler = ArmSampler(case.posterior, longs(*pending), covariance="full")
        draws = sampler.draw_values(NUM_DRAWS, seeded())
        assert largest_z(draws, mean, after(covariance, pending)) < MAX_Z


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_bounds_of_a_product_space_are_those_of_all(seed, monkeypatch):
    """Large offsets: each result alone tells more than it does in its group."""
    for name, value in SMALL.items():
        for module in (product_posterior, product_search):
            monkeypatch.setattr(module, name, value, raising=False)
    layout = LAYOUT | {"tau": 30.0, "noise": "equal"}
    case = Grouped(*problem_of("product", torch.float64, seed), layout)
    mean, covariance = case.dense().posterior()
    for pulls in ([], [3, 40, 40]):
        found = case.posterior.given(Counter(pulls)).largest_bounds(2.0, 4)
        bounds = mean + 2 * np.sqrt(np.diag(after(covariance, pulls)))
        assert found.arms.tolist() == np.argsort(-bounds)[:4].tolist()
        np.testing.assert_allclose(found.values, np.sort(bounds)[:-5:-1], atol=1e-8)


@pytest.mark.parametrize(
    ("rho", "noise", "least", "most"),
    [
        (0.0, 1.0, 6.0, 8.0),
        (0.0, 4.0, 2.0, 6.0),
        (0.3, 1.0, 3.0, 6.0),
        (1e4, 1.0, 0.0, 1e-3),
    ],
)
def test_what_an_earlier_campaign_is_worth(rho, noise, least, most):
    """Of eight results, the level of the campaign takes one."""
    rows = [(r % 6, -1, 0, -1) for r in range(8)] + [(0, -1, -1, -1)]
    layout = LAYOUT | {"rows": rows, "rho": [rho, 0.0], "noise": "equal"}
    case = Grouped(*problem_of("exact", torch.float64, 0), layout)
    ratio = torch.where(case.grouped.campaigns == 1, noise, 1.0)
    grouped = replace(case.grouped, precisions=case.grouped.precisions / ratio)
    Z = case.posterior.features(case.posterior.pulled_indices)
    present, earlier, _ = grouped.worth(Z, NOISE)
    assert present == pytest.approx(1.0)
    assert least < earlier < most
