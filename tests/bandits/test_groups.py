"""Groups, controls and earlier campaigns in bandits, against dense algebra."""

import copy
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import ProductKernel, RBFKernel

from botorch_bkb import AtMost, GPBandit, Maximize, Minimize, OutcomesBandit
from botorch_bkb.acquisition import BBKBWidth, ScheduledUpperConfidenceBound
from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits import BoxBandit, fitting, ThompsonPolicy
from botorch_bkb.bandits.observations import NO_ARM
from botorch_bkb.checks import check_labels
from botorch_bkb.generation import draw_posterior_paths, draw_weight_paths
from tests.bandits import (
    LEARNED,
    make_bandit,
    noisy_rewards,
    PAPERS_BANDITS,
    random_arms,
    rbf,
    true_rewards,
    unchanged,
)
from tests.bandits.test_progress import dense_rise
from tests.bandits.test_state import through_a_file
from tests.helpers import gram_matrix, seeded
from tests.reference import GroupedGP


pytestmark = pytest.mark.usefixtures("short_fits")
ARMS = random_arms(30)
PRODUCTS = ProductArms({"x": [[0.0], [1.0], [2.0]], "y": torch.linspace(1, 5, 10)})
PARTS = RBFKernel(active_dims=(0,)), RBFKernel(active_dims=(1,))
# Arm (-1 for a control), group, earlier campaign and control of each result, and its
# noise variance (0: not known): some arms twice, a control on both plates, two earlier
# campaigns, one of them with plates and a control of the same names.
TABLE = pd.DataFrame(
    [(r % 10, "ab"[r % 2], "", "", 0.0) for r in range(12)]
    + [(20, "", "", "", 0.3), (21, "c", "", "", 0.01)]
    + [(5 + 2 * r, "ab"[r % 2], "2024", "", 0.0) for r in range(7)]
    + [(r, "", "2025", "", 0.05) for r in (0, 20, 25, 26)]
    + [(-1, "ab"[r % 2], "", "dmso", 0.0) for r in range(4)]
    + [(-1, "a", "2024", "dmso", 0.0)],
    columns=["arm", "group", "campaign", "control", "noise"],
)
VALUES = np.where(TABLE.arm < 0, 0.5, true_rewards(ARMS).numpy()[TABLE.arm])
OFFSETS = TABLE.group.map({"a": 1.0, "b": -1.5, "c": 0.0}).fillna(0.0)
OFFSETS += TABLE.campaign.map({"2024": 5.0, "2025": -3.0}).fillna(0.0)
OFFSETS += 0.3 * np.random.default_rng(0).normal(size=len(TABLE))
REWARDS = VALUES + OFFSETS
WARPED = {"rewards": OFFSETS - 9 * np.exp(-2 * VALUES)}


def told(arms=ARMS, rewards=REWARDS, table=TABLE, **options):
    """Return a bandit with the results of a table."""
    bandit = make_bandit(GPBandit, arms, **options)
    for is_control, rows in table.groupby(table.arm < 0):
        bandit.add_observations(
            None if is_control else torch.tensor(rows.arm.to_numpy()),
            rewards[rows.index],
            noise_variance=rows.noise.where(rows.noise > 0),
            group=rows.group,
            campaign=rows.campaign,
            control=rows.control if is_control else None,
        )
    return bandit


def levels_of(bandit, table=TABLE):
    """Return what is subtracted from each result before the warp, and added after."""
    labels, found = ["", *bandit._observations.labels], np.zeros(len(table))
    for (campaign, group), level in bandit._present()[0].fit.units.levels.items():
        is_in = table.campaign == labels[campaign + 1]
        is_in &= (group == -2) | (table.group == labels[max(group, -1) + 1])
        found += level * is_in.to_numpy()
    return found


def dense(bandit, table=TABLE, rewards=REWARDS, S=None, unit=None):
    """Return the process of results, given a fit, in its units or in others."""
    surrogate, _ = bandit._present()
    fit, features = surrogate.fit, surrogate.fitter.features[torch.arange(30)]
    units, unit = fit.units, unit or fit.units.std
    y = (1 if bandit.maximize else -1) * torch.tensor(rewards)
    levels = torch.tensor(levels_of(bandit, table))
    noise = torch.tensor(table.noise.to_numpy())
    if units.warp is not None:
        y, noise = units.warp.measured(y - levels, noise)
        y = y + levels
    labels = table[["arm", "group", "campaign", "control"]].copy()
    for name in labels.columns[1:]:
        labels[name] = pd.Categorical(labels[name].replace("", None)).codes
    # Results without a group are one more group, but those of 2025, which has none.
    labels.loc[(table.group == "") & (table.campaign != "2025"), "group"] = 9
    names = map(bandit._observations.labels.index, ("2024", "2025"))
    rho, ratio = np.array([fit.groups.campaigns[name] for name in names]).T
    own = np.append(ratio, 1.0)[labels.campaign] * fit.original_noise_variance
    return GroupedGP(
        gram_matrix(fit.covar_module, features) * (units.std / unit) ** 2,
        labels.to_numpy(int),
        (y.numpy() - units.mean) / unit,
        np.where(noise > 0, noise, own) / unit**2,
        fit.groups.offset_std * fit.reward_std / unit,
        rho,
        S,
        10 * fit.reward_std / unit,
    )


def frame(bandit):
    return pd.DataFrame(bandit.groups())


@pytest.mark.parametrize(
    ("options", "maximize"),
    [
        ({"max_inducing": 5}, True),
        ({"policy": ThompsonPolicy()}, False),
        ({"noise_variance": None}, True),
        ({"arms": PRODUCTS, "covar_module": ProductKernel(*PARTS).double()}, False),
        (LEARNED, False),
        (LEARNED | WARPED, True),
        (LEARNED | WARPED, False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*max_inducing")
def test_answers_are_those_of_the_dense_process(options, maximize):
    """Predictions, the model, and offsets, given what a fit has learned."""
    rewards = options.get("rewards", REWARDS) * (1 if maximize else -1)
    bandit = told(maximize=maximize, **options | {"rewards": rewards})
    progress, picks = bandit.progress(2), copy.copy(bandit).ask(2)
    assert torch.equal(bandit.ask(2), picks)  # no question changes a pick
    (surrogate, posterior), every = bandit._present(), torch.arange(30)
    units, names = surrogate.fit.units, ["", *bandit._observations.labels]
    assert (units.warp is not None) == ("rewards" in options)
    if units.warp is not None:  # offsets by a fit without warp come off before
        plain = told(maximize=maximize, **options | {"rewards": rewards})
        plain._surrogate.fitter.compares = False
        for _, row in frame(plain).dropna().iterrows():
            pair = names.index(row.campaign) - 1, names.index(row.group) - 1
            pair = (pair[0], -2) if row.campaign and not row.group else pair
            level = units.levels[pair] * (1 if maximize else -1)
            assert row.offset == pytest.approx(level, rel=1e-6)
    S = bandit.inducing_indices if "max_inducing" in options else None
    process, close = dense(bandit, rewards=rewards, S=S), {"rtol": 1e-6, "atol": 1e-7}
    mean, covariance = process.posterior()
    np.testing.assert_allclose(posterior.means(every), mean, **close)
    np.testing.assert_allclose(
        posterior.variances(every), covariance.diagonal(), **close
    )
    if units.warp is None:
        args = posterior.noise_variance, [], picks.tolist()
        offset = float(process.effects[0][1])
        rise = units.std * dense_rise(mean, covariance, *args, offset=offset)
        assert progress.expected_rise == pytest.approx(rise, rel=0.05, abs=2e-3)
        points = PRODUCTS.components(every).double() if "arms" in options else ARMS
        found, (mean, variance) = bandit.model().posterior(points), bandit.predict()
        np.testing.assert_allclose(found.mean[:, 0], mean, **close)
        np.testing.assert_allclose(found.variance[:, 0], variance, **close)
        fantasy = bandit.model().fantasize(
            points[5:7], SobolQMCNormalSampler(torch.Size([2]), seed=0)
        )
        expected = fantasy.posterior(points).mean
        values = fantasy.posterior(points[8:10]).mean  # which tell nothing new
        known = fantasy.condition_on_observations(points[8:10].expand(2, 2, -1), values)
        np.testing.assert_allclose(
            *(each.detach() for each in (known.posterior(points).mean, expected)),
            **close,
        )
        assert torch.equal(bandit.predictions()["mean"], mean)
        if points is ARMS:
            effect = bandit.main_effects().effects[0]
            points = torch.cat([ARMS[:, :1] * 0 + effect["value"][3], ARMS[:, 1:]], -1)
            mean, _ = bandit.predict(rows=points)
            np.testing.assert_allclose(effect["mean"][3], mean.mean(), **close)
    for _, row in frame(bandit).iterrows():
        same, is_whole = TABLE.campaign == row.campaign, row.campaign and not row.group
        same &= (TABLE.group == row.group) | bool(is_whole)
        assert row.num_results == same.sum()
        # By its first result. The level of a campaign that does not count is unknown.
        first, kind = int(same.argmax()), int(bool(is_whole))
        offset, variance = process.offset(first, kind)
        offset *= units.std if maximize else -units.std
        expected = np.array([offset, units.std * math.sqrt(variance)])
        if not is_whole or row.worth > 1e-3:
            np.testing.assert_allclose([row.offset, row["std"]], expected, **close)


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({}, TABLE),
        ({"noise_variance": None}, TABLE.assign(noise=0.2)),
        (LEARNED, TABLE),
    ],
)
def test_fits_have_the_likelihood_of_the_dense_process(options, table):
    bandit = told(table=table, **options)
    (surrogate, _), results = bandit._present(), bandit._observations.history()
    fit, fitter = surrogate.fit, surrogate.fitter
    found = fitter._log_likelihood(fitter._model(results, fit))
    process = dense(bandit, table, unit=fit.reward_std)
    assert found == pytest.approx(process.log_likelihood(), rel=1e-8)
    # What judges campaigns: with a level of the present results.
    is_own = (table.campaign == "").to_numpy()
    process.covariance += 100 * np.outer(is_own, is_own)
    expected = process.log_likelihood() - len(table) * math.log(fit.reward_std)
    assert fitter._evidence(fit, results) == pytest.approx(expected, rel=1e-8)


def test_a_fit_to_few_results_has_some_of_each_campaign_and_controls(monkeypatch):
    monkeypatch.setattr(fitting, "MAX_FIT_ARMS", 9)
    bandit = told(**LEARNED)
    bandit.ask()
    surrogate, observations = bandit._surrogate, bandit._observations
    few = surrogate.fitter._few_arms(observations.history())
    assert set(few.labels[:, 1].tolist()) == {*observations.told.labels[:, 1].tolist()}
    assert (few.indices == NO_ARM).any()  # controls tell how groups differ
    assert surrogate.latest_fit(observations) is surrogate.fit


@pytest.mark.parametrize("labels", ["one", "different", "none", "control"])
def test_labels_that_tell_nothing_change_no_pick(labels, monkeypatch):
    monkeypatch.setattr(fitting, "MAX_FIT_ARMS", 8)
    plain, bandit = (make_bandit(GPBandit, **LEARNED) for _ in range(2))
    for number in range(3):
        batch = plain.ask(3)
        assert torch.equal(bandit.ask(3), batch)
        rewards = noisy_rewards(ARMS, number)(batch)
        plain.tell(batch, rewards)
        different = torch.arange(3) + 3 * number
        groups = {"one": "a", "different": different, "none": [math.nan, None, ""]}
        bandit.tell(batch, rewards, group=groups.get(labels))
        if labels == "control":
            bandit.add_observations(None, [3.0], control="dmso", group="a")
    assert frame(bandit).offset.isna().all()
    torch.testing.assert_close(bandit.predict(), plain.predict())


def test_offsets_act_once_two_groups_have_two_results_each():
    """A third group with one result has an offset from then on."""
    bandit, plain = make_bandit(GPBandit), make_bandit(GPBandit)
    results = [(0, 2.0, "a"), (1, 1.5, "a"), (2, -1.0, "b"), (3, 0.3, "c")]
    for arm, reward, group in [*results, (4, -2.0, "b")]:
        assert frame(bandit).offset.isna().all()
        torch.testing.assert_close(bandit.predict(), plain.predict())
        bandit.add_observations([arm], [reward], group=group)
        plain.add_observations([arm], [reward])
    assert (bandit.predict()[0] - plain.predict()[0]).abs().max() > 0.1
    assert frame(bandit).group.tolist() == ["a", "b", "c"]
    assert frame(bandit).num_results.tolist() == [2, 2, 1]


def test_results_without_a_group_do_not_count_as_one():
    bandit = make_bandit(GPBandit)
    bandit.add_observations([7, 8], [2.0, 1.0], campaign="2025")
    bandit.add_observations([1, 2, 3], [0.4, -0.2, 1.0], group=["a", "b", "b"])
    found = frame(bandit).set_index("group").offset
    assert found.isna()[["a", "b", ""]].tolist() == [True, True, False]


def test_earlier_results_count_for_nothing_but_predictions():
    bandit, other = (make_bandit(GPBandit, max_repeats=1) for _ in range(2))
    bandit.add_observations([7, 8, 9], [9.0, 8.0, 7.0], campaign="2025")
    mean, _ = bandit.predict()
    assert not bandit.counts.any()
    assert not len(bandit.observed_arms)
    torch.testing.assert_close(bandit.predict()[0], mean)  # whatever is asked first
    assert bandit.best_arm() == mean.argmax()
    picks = bandit.ask(30).tolist()
    assert picks[0] != other.ask()  # no random first arm
    assert sorted(picks) == list(range(30))
    bandit.tell([3], [1.0])
    assert bandit.best_arm() == 3
    assert bandit.observed_arms.tolist() == [3]


def test_withdrawn_results_are_as_if_never_told():
    bandit, never = told(), told()
    bandit.add_observations([5], [9.0], campaign="2024", group="b")
    bandit.add_observations([5], [9.0])
    bandit.add_observations(None, [9.0], control="dmso", group="b")
    bandit.predict()
    for arms, match in ((None, "another told result"), ([5], "Expected one of")):
        with unchanged(bandit), pytest.raises(InputDataError, match=match):
            bandit.withdraw(arms, control="dmso", campaign="2025")
    bandit.withdraw([5], campaign=2024)  # as names may be told
    bandit.withdraw(None, control="dmso")
    bandit.withdraw([5])
    pd.testing.assert_frame_equal(frame(bandit), frame(never))
    batch = bandit.ask(3)
    assert torch.equal(batch, never.ask(3))
    bandit.tell(batch, [1.0, 2.0, 3.0], group="d")
    bandit.withdraw(batch)
    assert "d" not in bandit.groups()["group"]
    assert bandit.pending == never.pending


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["given", "learned"])
def test_groups_survive_files_and_copies(options):
    bandit, other = told(**options), make_bandit(GPBandit, **options)
    bandit.ask(2)
    before = frame(bandit)
    other.load_state_dict(through_a_file(bandit.state_dict()))
    new = {"group": ["x", "y"], "campaign": "z"}
    copy.copy(bandit).add_observations([1, 2], [50.0, -50.0], **new)
    pd.testing.assert_frame_equal(frame(bandit), before)
    for one in (bandit, other):
        one.tell([*one.pending.values()], [1.0, 2.0], group=["a", "new"])
    pd.testing.assert_frame_equal(frame(bandit), frame(other), atol=1e-9)
    assert torch.equal(bandit.ask(3), other.ask(3))


def test_results_by_settings_join_the_table():
    table = pd.DataFrame({"x": [0.0, 1.0, 2.0], "word": ["p", "q", "p"]})
    bandit, other = (GPBandit(table, seed=0) for _ in range(2))
    rows = pd.DataFrame({"word": ["q", "p"], "x": [1.0, 1.0]})
    bandit.add_observations(None, [1.0, 2.0], arms=rows, campaign="2025")
    assert bandit.is_retired.tolist() == [False, False, False, True]
    assert bandit._observations.told.indices.tolist() == [1, 3]
    other.load_state_dict(through_a_file(bandit.state_dict()))
    assert torch.equal(other.predict()[0], bandit.predict()[0])
    assert 3 not in bandit.ask(3)
    with unchanged(bandit), pytest.raises(InputDataError, match="Expected one of"):
        bandit.add_observations([0, 1], [1.0, 2.0], arms=rows)


def test_the_model_of_groups_ignores_no_offset_and_no_new_observation():
    bandit = make_bandit(GPBandit, ARMS)
    rewards = true_rewards(ARMS)[:8] + 5 * torch.arange(8) % 2
    bandit.add_observations(range(8), rewards, group=["a", "b"] * 4)
    model, mean = bandit.model(), bandit.predict()[0]
    for ask in (
        lambda: draw_posterior_paths(model, 4, seeded()),
        lambda: draw_weight_paths(model, torch.Size([4])),
        lambda: model.loo_posterior(),
        lambda: model.train()(*model.train_inputs),
    ):
        with pytest.raises(UnsupportedError, match="would ignore the offsets"):
            ask()
    for S in (ARMS[:3], None):  # None: all pulled arms, as before
        model.eval().set_inducing_points(S)
        ScheduledUpperConfidenceBound(model, BBKBWidth())(ARMS[:, None])
    np.testing.assert_allclose(model.posterior(ARMS).mean.detach()[:, 0], mean)
    conditioned = model.condition_on_observations(ARMS[9:10], rewards[:1, None])
    with pytest.raises(UnsupportedError, match=r"`bandit.model\(\)` again"):
        conditioned.train().eval().posterior(ARMS)


def test_controls_alone_tell_nothing_of_arms():
    bandit = make_bandit(GPBandit, **LEARNED)
    bandit.add_observations(None, [1, 2, 3, 5], control="c", group=["a", "b"] * 2)
    assert not bandit.predict()[0].any()
    assert len(set(bandit.ask(3).tolist())) == 3
    assert frame(bandit).num_results.tolist() == [2, 2]
    with pytest.raises(InputDataError, match="observations of arms"):
        bandit.model()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (7, "7 7 7"),
        ([1.0, math.nan, 20250102.0], "1  20250102"),
        (np.array([20250101.5, 20250101.25, 3]), "20250101.5 20250101.25 3"),
        (pd.Series([1, None, 2], dtype="Int64"), "1  2"),
        (pd.Categorical(["x", None, "ä"]), "x  ä"),
        ([pd.NaT, pd.NA, None], "  "),
        (torch.tensor([3, 4, 3]), "3 4 3"),
        (torch.tensor(3), "3 3 3"),
    ],
)
def test_labels_become_strings(labels, expected):
    assert check_labels("group", labels, 3) == expected.split(" ")


def test_labels_of_another_shape_change_nothing():
    bandit, shape = told(), r"`group`.* shape \(3,\)"
    for labels in (["a"] * 2, [["a"]] * 3):
        with unchanged(bandit), pytest.raises(BotorchTensorDimensionError, match=shape):
            bandit.add_observations([1, 2, 3], [1.0, 2.0, 3.0], group=labels)


def test_a_control_without_a_name_changes_nothing():
    bandit, groups = told(), ["p", "q"]  # in fits it would be a result of arm 0
    for names in ("", ["c", math.nan]):
        with unchanged(bandit), pytest.raises(InputDataError, match="`control` to"):
            bandit.add_observations(None, [1.0, 2.0], control=names, group=groups)


@pytest.mark.parametrize(
    "make",
    [
        *(partial(make_bandit, each) for each in PAPERS_BANDITS),
        partial(make_bandit, GPBandit, forgetting_rate=0.1),
        partial(BoxBandit, torch.tensor([[0.0], [1.0]]).double()),
    ],
)
def test_other_bandits_refuse_groups(make):
    bandit = make()
    batch = bandit.ask()
    for tell, name in ((bandit.tell, "group"), (bandit.add_observations, "campaign")):
        with pytest.raises(UnsupportedError, match=r"has no offsets.*GPBandit"):
            tell(batch, [1.0] * len(batch), **{name: "a"})


def test_outcomes_have_groups_of_their_own():
    """An open outcome has no result in its group."""
    bandit = OutcomesBandit(ARMS, {"yield": Maximize(), "cost": AtMost(2.0)}, seed=0)
    rows, is_b = torch.arange(12), torch.arange(12) % 2 > 0
    results = {"yield": true_rewards(ARMS)[rows] + 3 * is_b, "cost": ARMS[rows, 0]}
    results["cost"][3] = torch.nan
    bandit.add_observations(rows, results, group=np.where(is_b, "b", "a"))
    bandit.add_observations(None, {"cost": [1.0, 2.0]}, control="c", group=["a", "b"])
    new, some = torch.cat([ARMS[:1], ARMS[:1] + 2]), {"yield": [1.0, 2.0]}
    bandit.add_observations(None, some, arms=new, campaign="2025")
    for arms in ({"indices": [0, 1], "arms": new}, {"indices": None}):
        with pytest.raises(InputDataError, match="Expected one of"):
            bandit.add_observations(results=some, **arms)
    batch = bandit.ask(2)
    bandit.tell(batch, {"yield": [1, 2], "cost": [math.nan, 1]}, group=["a", "d"])
    bandit.withdraw(None, outcomes="cost", control="c")
    found = {name: pd.DataFrame(of) for name, of in bandit.groups().items()}
    assert found["yield"].group.tolist() == ["a", "b", "", "d"]
    assert found["yield"].num_results.tolist() == [7, 6, 2, 1]
    assert found["cost"].num_results.tolist() == [7, 5, 1]
    assert found["yield"].offset[1] - found["yield"].offset[0] > 1
    assert bandit.is_retired.nonzero().tolist() == [[30]]
    assert bandit.observed_arms.tolist() == sorted({*range(12), int(batch[1])} - {3})


@pytest.mark.parametrize("told", ["campaign", "control"])
def test_outcomes_of_an_earlier_campaign_or_of_controls(told):
    bandit = OutcomesBandit(ARMS, {"yield": Maximize(), "cost": Minimize()}, seed=0)
    results = {"yield": true_rewards(ARMS)[:8], "cost": ARMS[:8, 0]}
    arms = range(8) if told == "campaign" else None
    bandit.add_observations(arms, results, **{told: "2025"})
    picks = bandit.ask(3)
    assert len(set(picks.tolist())) == 3
    assert not len(bandit.observed_arms)
    if told == "control":
        with pytest.raises(InputDataError, match="'yield' has none"):
            bandit.pareto_front()
    else:
        assert len(bandit.pareto_front())


@pytest.mark.parametrize("case", ["later groups", "a plate of controls", "noise"])
@pytest.mark.parametrize("seed", range(3))
def test_predictions_are_at_the_level_of_the_results(case, seed):
    arms = torch.rand(150, 3, generator=seeded(seed)).double()
    values = torch.sin(4 * arms[:, 0]) + arms[:, 1] ** 2 + torch.sin(6 * arms[:, 2])
    values = (values - values.mean()) / values.std()
    bandit = GPBandit(arms, rbf(0.6), 0.01, seed=seed)
    plates = {
        "": (range(8), 0.0),
        "P": (range(8, 16), 10.0),
        "Q": (range(16, 24), 11.0),
    }
    if case == "a plate of controls":
        plates = {"P": (range(24), 10.0)}
        for plate, level in (("P", 10.0), ("Q", 0.0)):
            told = [0.3 + level] * 6
            bandit.add_observations(None, told, control="old", group=plate)
    for plate, (rows, level) in plates.items():
        rewards = values[rows] + level
        noise = {"P": 0.01, "Q": 1.0}.get(plate) if case == "noise" else None
        bandit.add_observations(rows, rewards, group=plate, noise_variance=noise)
    level = sum(level for _, level in plates.values()) / len(plates)
    error = bandit.predict()[0] - values - level
    assert error[24:].mean().abs() < 0.5
    assert error[24:].square().mean().sqrt() < 0.8
    offsets = frame(bandit).set_index("group")["offset"]
    for plate, (_, own) in plates.items():
        assert offsets[plate] == pytest.approx(own - level, abs=0.5)


def test_the_level_of_groups_is_the_plain_average_whatever_their_noise():
    """A weighted one would be that of the exact group, as if it had no offset."""
    group, noise = ["a", "b"] * 6, torch.tensor([0.01, 4.0]).repeat(6)
    rewards = true_rewards(ARMS)[:12] + 3.0 * (torch.arange(12) % 2)
    bandit = make_bandit(GPBandit, ARMS, covar_module=None)
    bandit.add_observations(range(12), rewards, group=group, noise_variance=noise)
    units = bandit._present()[0].fit.units
    assert units.mean == pytest.approx(rewards.mean().item())


def test_most_of_a_plate_is_new_although_plates_differ_a_lot():
    arms = torch.rand(80, 2, generator=seeded(1)).double()
    mean = 10 * torch.sin(5 * arms[:, 0]) * torch.cos(3 * arms[:, 1])
    bandit = GPBandit(arms, seed=1)
    for number, offset in enumerate([0.0, -40.0, 36.0, 12.0]):
        batch = bandit.ask(8)
        assert torch.isin(batch, bandit.observed_arms).sum() <= 4
        noise = 0.5 * torch.randn(8, generator=seeded(number)).double()
        bandit.tell(batch, mean[batch] + offset + noise, group=f"plate {number}")


def test_the_effective_dimension_is_at_most_the_number_of_results():
    assert 1 < told().diagnostics().effective_dimension < len(TABLE)
