"""The ask/tell contract: predictions, inducing arms, and what schedules are shown."""

import numpy as np
import pytest
import torch

from botorch_bkb import BBKB, EpsilonGreedy, GPBandit, GPUCB, TVGPUCB
from botorch_bkb.acquisition.schedules import ConstantWidth
from botorch_bkb.bandits import inducing, ThompsonPolicy
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.optim import SumRule
from tests.bandits import (
    ALL_BANDITS,
    LEARNED,
    make_bandit,
    NOISE,
    noisy_rewards,
    play,
    random_arms,
    true_rewards,
    UCB_BANDITS,
    unchanged,
)
from tests.bandits.contract import answers, both_signs, each, leverage_at_ask, Recorder


pytestmark = pytest.mark.usefixtures("short_fits")


# Predictions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bandit_class", "options"),
    [
        *((bandit_class, {}) for bandit_class in ALL_BANDITS),
        (BBKB, {"oversampling": 0.3}),
        (BBKB, {"oversampling": 0.3, "resampling": "coupled"}),
        (GPBandit, {**LEARNED, "policy": ThompsonPolicy()}),
        (GPBandit, {**LEARNED, "forgetting_rate": "learn"}),
        (GPBandit, {**LEARNED, "goal": "regret", "max_inducing": 3}),
    ],
)
@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
def test_predictions_are_those_of_the_next_ask_and_change_no_later_one(
    bandit_class, options
):
    """They count the latest results, and no pending pull."""
    options = {"confidence": 1.0, **options}
    quiet, asking = (make_bandit(bandit_class, **options) for _ in range(2))
    measure, is_sparse = noisy_rewards(quiet.arms), False
    for _ in range(3 if "noise_variance" in options else 5):
        with unchanged(asking):
            before = answers(asking)
        expected, indices = quiet.ask(6), asking.ask(6)
        assert torch.equal(indices, expected)
        for bandit in (quiet, asking):
            bandit.add_pending([0, 0, 5])
        with unchanged(asking):
            after = answers(asking)
        if not asking.drifts:  # the next decision is later
            torch.testing.assert_close(before, after)
        is_sparse |= len(asking.inducing_indices) < (asking.counts > 0).sum()
        rewards = measure(indices)
        for bandit in (quiet, asking):
            bandit.tell(indices, rewards)
    assert is_sparse or "oversampling" not in options


def test_bounds_are_numbers_where_the_squares_of_rewards_underflow():
    bounds = []
    for unit in (1.0, 1e-24):
        bandit = make_bandit(GPBandit, random_arms(20, torch.float32), **LEARNED)
        rewards = unit * true_rewards(bandit.arms)[:12]
        bandit.add_observations(range(12), rewards)
        bounds.append(bandit.confidence_bound() / unit)
    torch.testing.assert_close(bounds[1], bounds[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["given", "learned"])
@pytest.mark.parametrize("confidence", [1.5, ConstantWidth(1.5)], ids=str)
@both_signs
def test_a_number_counts_posterior_deviations_and_a_width_does_not(
    confidence, maximize, options, monkeypatch
):
    monkeypatch.setattr(Fitter, "compares", False)  # bounds would be no sums
    for bandit_class in [GPBandit] if options else [BBKB, GPUCB, TVGPUCB, GPBandit]:
        options = {"maximize": maximize, "confidence": confidence, **options}
        bandit = make_bandit(bandit_class, **options)
        play(bandit, 6)
        bandit.fail(bandit.ask(1))  # takes in the rewards
        mean, variance = bandit.predict()
        bonus = 1.5 * variance.sqrt()
        if confidence != 1.5:  # in the units of the rewards
            scale = (
                bandit.state_dict()["prior"]["unit"]
                if "covar_module" in options
                else 1.0
            )
            bonus = bonus / bandit.noise_variance**0.5 * scale
        expected = mean + bonus if maximize else mean - bonus
        torch.testing.assert_close(bandit.confidence_bound(), expected)


@each(ALL_BANDITS)
def test_minimizing_mirrors_maximizing_the_negated_rewards(bandit_class):
    up = make_bandit(bandit_class)
    down = make_bandit(bandit_class, maximize=False)
    measure = noisy_rewards(up.arms)
    for _ in range(10):
        indices = up.ask()
        assert torch.equal(down.ask(), indices)
        rewards = measure(indices)
        up.tell(indices, rewards)
        down.tell(indices, -rewards)
        assert torch.equal(down.predict()[0], -up.predict()[0])
        assert torch.equal(down.predict()[1], up.predict()[1])
        assert torch.equal(down.confidence_bound(), -up.confidence_bound())
        assert down.best_arm() == up.best_arm()
        assert down.best_arm(among_pulled=False) == up.best_arm(among_pulled=False)
    assert torch.equal(down.inducing_indices, up.inducing_indices)


# Inducing arms ------------------------------------------------------------------------


@each(ALL_BANDITS)
def test_resampling_happens_once_in_the_first_ask_after_rewards(bandit_class):
    options = {"uniform_probability": 0.0} if bandit_class is EpsilonGreedy else {}
    bandit = make_bandit(bandit_class, **options)
    play(bandit, 6)
    before = bandit.inducing_indices.clone()
    bandit.add_observations([0, 1], [3.0, 1.0])
    assert torch.equal(bandit.inducing_indices, before)
    assert bandit.state_dict()["num_updates"] == 5
    bandit.ask(1)
    after = bandit.inducing_indices.clone()
    for _ in range(4):
        bandit.ask(1)
        assert torch.equal(bandit.inducing_indices, after)
        assert bandit.state_dict()["num_updates"] == 6
    assert not torch.equal(after, before)


@pytest.mark.parametrize("resampling", ["independent", "coupled"])
@pytest.mark.parametrize("most", [None, 30])
@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
def test_much_outside_data_does_not_make_every_arm_inducing(
    resampling, most, monkeypatch
):
    """Nor in a prediction before the first ask, which draws nothing itself."""
    monkeypatch.setattr(inducing, "BULK_SIZE", 8)
    options = {"resampling": resampling, "seed": 2, "max_inducing": most}
    arms = random_arms(100)
    bandit, quiet, exact = (
        make_bandit(kind, arms, lengthscale=1.0, **some)
        for kind, some in ((BBKB, options), (BBKB, options), (GPUCB, {}))
    )
    for one in (bandit, quiet, exact):
        one.add_observations(range(100), true_rewards(arms))
    before = bandit.predict()
    assert torch.equal(bandit.ask(1), quiet.ask(1))
    assert len(bandit.inducing_indices) <= (most or 60)
    moments = before, bandit.predict(), exact.predict()
    for early, late, expected in zip(*moments, strict=True):
        torch.testing.assert_close(early, late)
        assert torch.allclose(late, expected, atol=0.05)


# What schedules are shown -------------------------------------------------------------


@each(UCB_BANDITS)
def test_schedules_are_shown_told_pulls_only(bandit_class):
    recorder = Recorder()
    bandit = make_bandit(bandit_class, confidence=recorder, batch_rule=SumRule(1.5))
    frozen: dict[int, float] = {}
    scores_told: list[float] = []
    measure = noisy_rewards(bandit.arms)
    for _ in range(10):
        known = set(bandit.pending)
        bandit.ask(3)
        new = [key for key in bandit.pending if key not in known]
        arms = [bandit.pending[key] for key in new]
        frozen.update(zip(new, leverage_at_ask(bandit, arms), strict=True))
        state = recorder.states[-1]
        assert state.num_pulls == bandit.num_pulls == len(scores_told)
        assert state.decision_number == len(scores_told) + len(known) + 1
        assert state.num_arms == 30
        assert state.noise_variance == NOISE
        assert state.max_prior_variance == pytest.approx(1.0)
        assert state.ratio_threshold == 1.5
        assert state.log_det_start == 0.0
        assert np.allclose(state.frozen_leverage_scores, scores_told)
        variance = bandit.predict()[1]
        dimension = (bandit.counts * variance / NOISE).sum().item()
        assert state.effective_dimension == pytest.approx(dimension)
        pulled = bandit.counts > 0
        assert torch.equal(state.observations.counts.long(), bandit.counts[pulled])
        assert torch.allclose(
            state.observations.posterior_means, bandit.predict()[0][pulled]
        )
        assert torch.allclose(
            state.observations.leverage_scores, variance[pulled] / NOISE
        )
        back = list(bandit.pending)[:-1]
        arms = torch.tensor([bandit.pending[key] for key in back]).long()
        bandit.tell(arms, measure(arms), pull_ids=back)
        scores_told += [frozen[key] for key in back]
    assert state.num_pulls > 5


def test_an_opening_draw_that_failed_is_not_taken_out_of_the_sum():
    """The score that schedules take out of the sum is one that is in it."""
    recorder = Recorder()
    bandit = make_bandit(BBKB, confidence=recorder)
    bandit.fail(bandit.ask())
    bandit.add_observations([4], [0.0])
    bandit.ask()
    assert recorder.states[-1].opening_score == 0.0


def test_the_second_opening_draw_is_taken_out_of_the_sum_if_the_first_failed():
    def width(fails):
        bandit = make_bandit(BBKB, seed=1)
        for _ in range(fails):
            bandit.fail(bandit.ask())
        bandit.tell(bandit.ask(), [0.0])
        other = make_bandit(BBKB, seed=1)
        other.load_state_dict(bandit.state_dict())
        assert other.confidence_width == bandit.confidence_width
        return bandit.confidence_width

    assert width(0) == width(1) == width(2)
