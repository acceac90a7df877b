"""What the papers plot: `diagnostics`, and q-bar that rises during a run."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb import BKB, GPUCB, RGPUCB, TVGPUCB
from botorch_bkb.bandits import Diagnostics
from tests.bandits import (
    ALL_BANDITS,
    EXACT_BANDITS,
    make_bandit,
    NOISE,
    play,
    random_arms,
    rbf,
)
from tests.helpers import gram_matrix
from tests.reference import Arms


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("bandit_class", EXACT_BANDITS)
def test_exact_numbers_are_dense_ones(bandit_class, maximize):
    arms = random_arms(30)
    bandit = make_bandit(bandit_class, arms, maximize=maximize)
    dense = Arms(gram_matrix(rbf(), arms), NOISE)
    rng, told, rewards = np.random.default_rng(0), [], []
    for _ in range(6):
        batch = bandit.ask(4)
        found = bandit.diagnostics()
        S, counts = sorted({*told}), np.bincount(np.array(told, int), minlength=30)
        scores = dense.posterior(S, counts, np.zeros(30))[1] / NOISE
        assert found.effective_dimension == pytest.approx(counts @ scores, abs=1e-9)
        assert found.log_det == pytest.approx(dense.log_det(S, counts), abs=1e-9)
        assert found.observed_arms.tolist() == S
        assert {*found.inducing_indices.tolist()} == {*told}
        np.testing.assert_allclose(found.leverage_scores, scores[S], rtol=1e-8)
        assert found.batch_size == len(batch)
        assert found.arms.tolist() == told
        assert found.rewards.tolist() == rewards
        bound, (mean, variance) = bandit.confidence_bound(), bandit.predict()
        half = found.confidence_width * (variance / NOISE).sqrt()
        torch.testing.assert_close(bound, mean + half if maximize else mean - half)
        new = rng.normal(size=len(batch)).tolist()
        bandit.tell(batch, new)
        told += batch.tolist()
        rewards += new


@pytest.mark.parametrize("bandit_class", ALL_BANDITS)
def test_every_bandit_has_them_and_no_pick_changes(bandit_class):
    one, other = (make_bandit(bandit_class, random_arms(20)) for _ in range(2))
    for number in range(5):
        batch = one.ask(2)
        assert batch.tolist() == other.ask(2).tolist()
        found = one.diagnostics()
        assert isinstance(found, Diagnostics)
        assert found.batch_size == len(batch)
        assert len(found.arms) == len(found.times) == one.num_pulls
        assert (found.times <= number).all()
        assert found.leverage_scores.shape == found.observed_arms.shape
        for bandit in (one, other):
            bandit.tell(batch, batch / 20)


@pytest.mark.parametrize("options", [{"forgetting_rate": 0.2}, {"block_size": 3.0}])
def test_numbers_are_those_of_the_ask_although_the_objective_drifts(options):
    bandit_class = TVGPUCB if "forgetting_rate" in options else RGPUCB
    bandit = bandit_class(random_arms(20), rbf(), NOISE, seed=0, **options)
    arms = Arms(gram_matrix(rbf(), random_arms(20)), NOISE)
    told: list[tuple[int, int]] = []
    for now in range(1, 8):
        batch = bandit.ask()
        found = bandit.diagnostics()
        if "block_size" in options:  # results of earlier blocks do not count
            told = [each for each in told if each[0] >= 1 + 3 * ((now - 1) // 3)]
        decay = options.get("forgetting_rate", 0.0)
        times, rows = np.array(told, int).reshape(-1, 2).T
        K = arms.gram[np.ix_(rows, rows)]
        K = K * (1 - decay) ** (np.abs(times[:, None] - times) / 2)
        seen = found.observed_arms.numpy()
        k = arms.gram[np.ix_(seen, rows)] * (1 - decay) ** ((now - times) / 2)
        solved = np.linalg.solve(K + NOISE * np.eye(len(rows)), k.T)
        expected = arms.gram[seen, seen] - (k * solved.T).sum(axis=1)
        np.testing.assert_allclose(found.leverage_scores, expected / NOISE, rtol=1e-8)
        bandit.tell(batch, torch.ones(len(batch)))
        told += [(now, arm) for arm in batch.tolist()]


@pytest.mark.parametrize(("size", "time"), [(0.1, 7.8), (1.1, 31.8), (3.0, 7.0)])
def test_a_block_that_starts_at_the_time_has_its_results(size, time):
    bandit = RGPUCB(random_arms(20), rbf(), NOISE, block_size=size, seed=0)
    bandit.tell(bandit.ask(time=time), [1.0])
    bandit.ask(time=time)
    assert bandit.diagnostics().effective_dimension > 0.5


def test_results_have_times_and_failed_pulls_are_no_part_of_a_batch():
    bandit = TVGPUCB(random_arms(8), rbf(), NOISE, forgetting_rate=0.1, seed=0)
    first = bandit.ask(time=2.5)
    bandit.tell(first, [1.0], time=2.75)
    assert bandit.diagnostics().times.tolist() == [2.75]
    still = GPUCB(random_arms(8), rbf(), NOISE, batch_rule=None, seed=0)
    still.add_pending([0])  # not of the last ask
    assert still.diagnostics().batch_size == 0
    batch = still.ask()
    still.tell(batch, [0.5])
    batch = still.ask()
    still.fail(batch)
    still.add_observations([1], [2.0])
    found = still.diagnostics()
    assert found.times.tolist() == [1.0, 2.0]
    assert found.rewards.tolist() == [0.5, 2.0]


def test_q_bar_that_rises_draws_like_one_that_was_large():
    arms, told = random_arms(400), torch.arange(200)
    few, raised, large = (
        BKB(arms, rbf(1.0), 0.5, oversampling=q, seed=1) for q in (0.5, 0.5, 20.0)
    )
    few.add_observations(told, torch.sin(5 * arms[told, 0]))
    play(few, 2)
    for bandit in (raised, large):
        bandit.load_state_dict(few.state_dict())
    raised.oversampling = 20.0
    assert raised.ask().tolist() == large.ask().tolist()
    assert raised.inducing_indices.tolist() == large.inducing_indices.tolist()
    few.ask()
    assert len(raised.inducing_indices) > 2 * len(few.inducing_indices)
    with pytest.raises(InputDataError, match="oversampling"):
        raised.oversampling = 0.0
    assert raised.oversampling == 20.0
