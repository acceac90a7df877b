import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb.bandits import GPBandit, rbf_to_learn
from botorch_bkb.cli import diagnosis
from botorch_bkb.cli.diagnosis import (
    decades_trouble,
    diagnose,
    fit_trouble,
    HeldOut,
    reward_trouble,
    round_effect,
)
from botorch_bkb.cli.results import told_table
from botorch_bkb.cli.tables import unit_trouble
from tests.bandits.test_warping import failing
from tests.helpers import learned_parts, seeded
from tests.reference import composite_covariance


# The fits are those of the package: what they predict is the question.
pytestmark = pytest.mark.usefixtures("full_fits")


@pytest.fixture(scope="module")
def measured():
    """Return a bandit that was asked, with the pulls that it was told."""
    rng = np.random.default_rng(0)
    arms = rng.uniform(5, 9, size=(60, 2))
    indices = np.repeat(rng.permutation(60)[:30], rng.integers(1, 4, 30))
    rewards = 3 * np.sin(arms[indices, 0]) + rng.normal(scale=0.5, size=len(indices))
    bandit = GPBandit(torch.tensor(arms), seed=0)
    told = torch.tensor(indices), torch.tensor(rewards)
    bandit.add_observations(*told)
    bandit.ask(1)
    return bandit, *told


@pytest.fixture(scope="module")
def held_out(measured):
    """Return the predictions of the pulls by fits without them."""
    bandit, *told = measured
    return diagnose(bandit, told_table(*told))[1]


def half_widths(found):
    return (found.high - found.low) / 2


def test_leaving_one_out_mirrors_rewards_that_are_minimized(measured, monkeypatch):
    """Far from zero, a wrong sign of the prior mean would show."""
    monkeypatch.setattr(diagnosis, "MAX_REFITTED", 0)
    bandit, indices, rewards = measured
    found = []
    for sign in (1, -1):
        generator = seeded()
        own = GPBandit(bandit.arms, maximize=sign > 0, generator=generator)
        told = sign * (rewards + 50)
        own.add_observations(indices, told)
        own.ask(1)
        found.append(sign * diagnose(own, told_table(indices, told))[1].mean)
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert np.corrcoef(found[0], rewards)[0, 1] > 0.8


def test_many_candidates_are_left_out_one_by_one(measured, monkeypatch):
    """Equation 5.12 of Rasmussen and Williams, over the means of repeats."""
    monkeypatch.setattr(diagnosis, "MAX_REFITTED", 0)
    bandit, indices, rewards = measured
    text, found = diagnose(bandit, told_table(indices, rewards))
    arms = bandit.arms.numpy()
    x = (arms - arms.min(axis=0)) / np.ptp(arms, axis=0)
    rows = np.unique(indices)
    counts = np.array([(indices.numpy() == row).sum() for row in rows])
    means = np.array([rewards.numpy()[indices.numpy() == row].mean() for row in rows])
    parts = learned_parts(bandit.covar_module)
    noise = bandit.noise_variance / means.var() / counts
    K = composite_covariance(x[rows], x[rows], parts) + np.diag(noise)
    y = (means - means.mean()) / means.std()
    inverse = np.linalg.inv(K)
    predicted = y - inverse @ y / np.diag(inverse)
    variance = 1 / np.diag(inverse) - noise
    expected = np.corrcoef(predicted, means)[0, 1]
    assert len(bandit.inducing_indices) <= len(rows)
    assert found.correlation == pytest.approx(expected, abs=0.02)
    assert found.num_candidates == len(rows)
    assert not found.is_refitted
    place = np.searchsorted(rows, indices.numpy())
    np.testing.assert_array_equal(found.measured, rewards)
    np.testing.assert_allclose(
        found.mean, (predicted * means.std() + means.mean())[place], atol=0.1
    )
    # Of a single measurement, with the noise of one.
    std = np.sqrt(variance * means.var() + bandit.noise_variance)
    np.testing.assert_allclose(half_widths(found), 2.78 * std[place], rtol=0.03)
    noise_share = bandit.noise_variance / rewards.numpy().var()
    assert text == (
        f"noise is {noise_share:.0%} of the results' variance; cross-validated "
        f"correlation between predicted and measured results: {found.correlation:.2f}"
    )


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize(
    ("again", "noise_variance", "is_guess"),
    [([], None, True), ([3], None, False), ([], 1e-4, False)],
)
def test_the_noise_is_a_guess_without_a_repeat(again, noise_variance, is_guess):
    bandit = GPBandit(
        torch.rand(20, 2, dtype=torch.double), rbf_to_learn, noise_variance, seed=0
    )
    indices = torch.tensor([*range(12), *again])
    rewards = bandit.arms[indices].sum(dim=-1)
    bandit.add_observations(indices, rewards)
    bandit.ask(1)
    text, _ = diagnose(bandit, told_table(indices, rewards))
    note = "(a guess: no candidate was measured twice)"
    assert (note in text) == is_guess
    # One result of a control tells no noise, the second one does.
    for number, tells in enumerate([False, True]):
        bandit.add_observations(None, [number], group=["P1"], control=["standard"])
        bandit.ask(1)
        text, _ = diagnose(bandit, told_table(indices, rewards))
        assert (note in text) == (is_guess and not tells)


def test_what_is_predicted_of_a_candidate_knows_nothing_of_its_rewards(
    measured, held_out
):
    bandit, indices, rewards = measured
    before = held_out
    changed = torch.where(indices == indices[0], rewards + 5, rewards)
    after = diagnose(bandit, told_table(indices, changed))[1]
    assert before.is_refitted
    own = (indices == indices[0]).numpy()
    np.testing.assert_allclose(after.mean[own], before.mean[own])
    np.testing.assert_allclose(after.low[own], before.low[own])
    # Those of its fold do not know them either, most others do.
    assert len(indices[after.mean != before.mean].unique()) == 24
    assert (half_widths(before) > 2.78 * bandit.noise_variance**0.5).all()


def test_errors_are_those_of_single_measurements(measured, held_out):
    _, indices, rewards = measured
    found = held_out
    y, rows = rewards.numpy(), indices.numpy()
    assert found.error == pytest.approx(np.sqrt(((found.mean - y) ** 2).mean()))
    others = np.array([y[rows != row].mean() for row in rows])
    assert found.error_of_mean == pytest.approx(np.sqrt(((others - y) ** 2).mean()))
    inside = (found.low <= y) & (y <= found.high)
    assert found.share_inside == inside.mean()
    assert found.least_share == pytest.approx(0.95 - 3 * np.sqrt(0.95 * 0.05 / 30))


@pytest.mark.parametrize(("most", "maximize"), [(0, True), (0, False), (256, False)])
def test_poor_results_are_predicted_on_a_logarithmic_scale(maximize, most, monkeypatch):
    monkeypatch.setattr(diagnosis, "MAX_REFITTED", most)
    bandit = failing(maximize, num_told=40)
    indices, rewards, *_ = bandit._observations.history()
    rewards = rewards if maximize else -rewards
    text, found = diagnose(bandit, told_table(indices, rewards))
    side = "below" if maximize else "above"
    limit = bandit.warp.median if maximize else -bandit.warp.median
    assert f"results {side} {limit:.3g} are on a logarithmic scale;" in text
    np.testing.assert_array_equal(found.measured, rewards)
    good = (rewards > limit if maximize else rewards < limit).numpy()
    assert np.median(np.abs(found.mean - rewards.numpy())[good]) < 0.6
    assert half_widths(found)[good].mean() < half_widths(found)[~good].mean()
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()
    assert found.share_inside > found.least_share
    assert found.correlation > 0.7


@pytest.mark.parametrize("most", [0, 256], ids=["one by one", "folds"])
def test_known_noise_weighs_and_widens_intervals(measured, most, monkeypatch):
    """The intervals of measurements differ by their noise, the predictions do not."""
    monkeypatch.setattr(diagnosis, "MAX_REFITTED", most)
    _, indices, rewards = measured
    rewards = rewards.clone()
    noise = torch.where(torch.arange(len(rewards)) % 2 == 0, 0.25, torch.nan).double()
    noise[-1] = 1e8
    rewards[-1] = 1e4  # of no weight
    bandit = GPBandit(measured[0].arms, seed=0)
    bandit.add_observations(indices, rewards, noise_variance=noise)
    bandit.ask(1)
    text, found = diagnose(bandit, told_table(indices, rewards, noise))
    full = noise.nan_to_num(bandit.noise_variance).numpy()
    share = full[:-1].mean() / rewards[:-1].numpy().var()  # without the last
    shown = float(re.match(r"noise is (\d+)% of", text)[1]) / 100
    assert shown == pytest.approx(share, abs=0.02)
    assert reward_trouble(bandit, rewards, noise, range(len(rewards))) is None
    assert found.beats_mean
    variances = (half_widths(found) / 2.78) ** 2 - full
    of_arm = {}
    own = ~noise.isnan()  # the noise of others is fitted in each fold
    for arm, *pair in zip(
        indices[own].tolist(), found.mean[own], variances[own], strict=True
    ):
        mean, variance = of_arm.setdefault(arm, pair)
        assert pair == [mean, pytest.approx(variance, abs=1e-6)]
    assert min(variance for _, variance in of_arm.values()) > 0
    assert np.abs(found.mean).max() < 6
    assert found.correlation > 0.8


def test_candidates_of_equal_features_are_left_out_together():
    """Rewards of random settings, each of which has three ids."""
    rng = np.random.default_rng(0)
    arms = torch.from_numpy(np.repeat(rng.uniform(size=(20, 2)), 3, axis=0))
    rewards = np.repeat(rng.normal(size=20), 3) + rng.normal(scale=0.01, size=60)
    told = torch.arange(60), torch.from_numpy(rewards)
    bandit = GPBandit(arms, seed=0)
    bandit.add_observations(*told)
    bandit.ask(1)
    _, found = diagnose(bandit, told_table(*told))
    assert found.num_candidates == 20
    assert found.correlation < 0.5


def test_few_candidates_are_not_held_out(measured):
    bandit, indices, rewards = measured
    few = indices < indices.unique()[7]
    assert diagnose(bandit, told_table(indices[few], rewards[few]))[1] is None


@pytest.mark.parametrize("shifts", [[0, 0, 0], [0, 2, -1]])
def test_rounds_that_differ_as_a_whole_are_told_from_better_candidates(
    measured, held_out, shifts
):
    """Later rounds of better candidates, as predicted, are no shift."""
    rewards = measured[2]
    order = rewards.argsort(stable=True)
    rounds = np.empty(len(order), dtype=int)
    rounds[order] = np.sort(np.arange(len(order)) % 3)
    rounds[::4] = np.arange(len(rounds[::4])) % 3  # not only by their rewards
    shifted = rewards + torch.tensor(shifts)[rounds]
    held_out = replace(held_out, measured=shifted.numpy())
    names = [f"plate {round_}" for round_ in rounds]
    effect = round_effect(held_out, names, "Pass --group plate")
    if any(shifts):
        assert "(plate 2) to +" in effect[1]
        assert effect[1].endswith("between candidates. Pass --group plate")
    else:
        assert effect[1] is None
        # Without the predictions the rounds seem to explain a lot.
        constant = replace(held_out, mean=np.zeros(len(rounds)))
        assert round_effect(constant, rounds, "")[1] is not None
    assert round_effect(held_out, ["one"] * len(rounds), "") is None
    assert round_effect(held_out, range(len(rounds)), "") is None


def test_the_verdict_depends_on_the_number_of_candidates():
    def held_out(num_candidates, correlation=0.9, num_inside=0):
        measured = np.where(np.arange(num_candidates) < num_inside, 0.0, 5.0)
        zeros, twos = np.zeros(num_candidates), np.full(num_candidates, 2.0)
        return HeldOut(
            measured=measured,
            weights=np.ones(num_candidates),
            mean=zeros,
            low=-twos,
            high=twos,
            num_candidates=num_candidates,
            correlation=correlation,
            error_of_mean=1.0,
            is_refitted=True,
        )

    # 1.645 / sqrt(16) = 0.41
    said = fit_trouble(held_out(16, 0.4))
    assert said.startswith("the model cannot yet be told from guessing. Early on this")
    assert "random" not in said
    assert fit_trouble(held_out(16, 0.42)) is None
    assert fit_trouble(held_out(15, 0.0)) is None
    assert fit_trouble(held_out(100, 0.2)) is None
    assert fit_trouble(held_out(100, -0.1)) == said
    # 0.95 - 3 sqrt(0.95 0.05 / 100) = 0.885
    assert not held_out(100, num_inside=89).is_too_sure
    assert held_out(100, num_inside=88).is_too_sure
    assert held_out(100, num_inside=99).beats_mean
    assert not held_out(100, num_inside=90).beats_mean


def test_a_far_candidate_that_was_not_measured_tells_what_it_does_to_the_fit(
    measured, held_out
):
    """It takes the range that lengthscales are a share of, as it does in the bandit."""
    bandit, indices, rewards = measured
    arms = bandit.arms.clone()
    unmeasured = ~torch.isin(torch.arange(60), indices)
    arms[unmeasured.nonzero()[0], 0] = 1e5
    typo = GPBandit(arms, seed=0)
    typo.add_observations(indices, rewards)
    typo.ask(1)
    _, found = diagnose(typo, told_table(indices, rewards))
    assert held_out.correlation > 0.9
    assert found.correlation < 0.5
    assert found.num_candidates == 30


YIELDS = np.random.default_rng(0).uniform(1, 95, 60).round(1)


@pytest.mark.parametrize(
    ("marks", "num_others"),
    [
        ([1e12] * 3, 21),
        ([-9999], 25),
        ([-9999] * 20, 11),
        ([1e12] * 3 + [-1e20] * 4, 20),
        ([-1.5e6, -3e6, -2e6, -1e6, -4e6], 25),
        ([1e12] * 3, 3),
        ([859], 23),
    ],
    ids=str,
)
def test_marks_far_beyond_all_others_are_named_however_many(marks, num_others):
    told = np.random.default_rng(1).permutation([*marks, *YIELDS[:num_others]])
    minimized = fitted(told, minimize=True)
    found = reward_trouble(*minimized)
    assert found.startswith(f"{len(marks)} of {len(told)} results (")
    assert found.endswith("continue" if min(marks) < 0 else "pass --log-reward")
    first = np.flatnonzero(np.isin(told, marks))[0]
    assert f"({told[first]:g} of {first}" in found
    assert reward_trouble(*fitted(told)) == found
    scores = reward_trouble(*minimized, log_reward=None)
    assert scores.endswith("If they are right, continue")


def fitted(told, minimize=False):
    """Return the first arguments of `reward_trouble` for results of other arms."""
    stream = seeded()
    arms = torch.rand(80, 2, generator=stream, dtype=torch.double)
    bandit = GPBandit(arms, maximize=not minimize, generator=stream)
    rewards = torch.tensor(np.asarray(told, dtype="float64"))
    bandit.add_observations(torch.arange(len(told)), rewards)
    bandit.ask(1)
    return bandit, rewards, None, range(len(told))


@pytest.mark.parametrize(
    "told",
    [
        YIELDS[:30],
        [0.0] * 20 + [40, 60, 50, 30],
        [0.1] * 6 + [*YIELDS[:20] / 10 + 50],
        [*YIELDS[:20] / 20, 60, 72, 55],
        [0, 0, *YIELDS[:20] / 10 + 80],
        [0.5, 60],
    ],
    ids=["yields", "zeros", "limits", "hits", "failures", "two"],
)
def test_results_that_may_be_right_are_no_marks(told):
    assert reward_trouble(*fitted(told)) is None


def test_logarithms_are_not_for_results_that_are_mostly_zero():
    sizes = torch.logspace(-1, 3, 12, dtype=torch.double)
    few = torch.cat([torch.zeros(5), sizes])
    assert unit_trouble("x", {"a": pd.Series([0.2, 0.9]), "b": pd.Series([30.0, 90.0])})
    # Two rounds of a concentration that spans decades.
    rounds = {"a": pd.Series([1.8, 5.0, 9.0]), "b": pd.Series([300.0, 900.0, 5900.0])}
    assert not unit_trouble("x", rounds)
    assert "positive results: replace 0 by the detection limit" in decades_trouble(
        few, False
    )
    most = torch.cat([torch.zeros(13), sizes])
    assert decades_trouble(most, False) is None
    assert decades_trouble(torch.cat([sizes, -sizes]), False) is None


@pytest.mark.parametrize("most", [0, 100], ids=["left out", "folds"])
def test_bounds_are_of_means_and_not_of_single_results(most, monkeypatch):
    monkeypatch.setattr(diagnosis, "MAX_REFITTED", most)
    rng = np.random.default_rng(0)
    arms = torch.from_numpy(rng.random((60, 2)))
    means = (100 * (arms[:, 0] - 0.5)).clamp_min(0.0)
    rewards = means + 4 * torch.from_numpy(rng.standard_normal(60))
    inside = []
    for bounds in ((-100.0, 200.0), (0.0, 100.0)):
        bandit = GPBandit(arms, bounds=bounds, seed=0)
        bandit.add_observations(range(60), rewards)
        bandit.ask(1)
        told = told_table(np.arange(60), rewards.numpy())
        inside.append(diagnose(bandit, told)[1].num_inside)
    assert inside[0] == inside[1] > 50
