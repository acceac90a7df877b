"""Pulls, files and errors of `OutcomesBandit`."""

import pickle
import re
from copy import copy

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb import (
    AtLeast,
    AtMost,
    GPBandit,
    Maximize,
    Minimize,
    OutcomesBandit,
    Target,
)
from botorch_bkb.bandits import matern_to_learn
from tests.bandits import random_arms, rbf


pytestmark = pytest.mark.usefixtures("short_fits")
ROLES = {"yield": Maximize(), "cost": Minimize()}
ARMS = random_arms(80)


def results_of(arms):
    x, y = arms.unbind(-1)
    return {"yield": x * (1 + y), "cost": (x + y).square()}


def campaign(number=10, roles=ROLES, **options):
    bandit = OutcomesBandit(ARMS, roles, seed=0, **options)
    bandit.add_observations(range(number), results_of(bandit.arms[:number]))
    return bandit


def test_outcomes_come_one_by_one():
    bandit = campaign()
    picks = bandit.ask(3)
    ids = [*bandit.pending]
    found = {
        name: values.clone() for name, values in results_of(bandit.arms[picks]).items()
    }
    found["cost"][1] = torch.nan
    bandit.tell(picks, pd.DataFrame(found))
    assert bandit.pending == {ids[1]: int(picks[1])}
    assert bandit.outcomes["yield"].num_pulls == 13
    assert bandit.outcomes["cost"].num_pulls == 12
    # The other outcome is still open, so the candidate is not chosen again.
    assert not torch.isin(bandit.ask(5), picks).any()
    bandit.tell(picks[1:2], {"cost": [0.5]}, ids[1:2], noise_variance={"cost": 0.01})
    assert ids[1] not in bandit.pending
    assert bandit.outcomes["cost"]._observations.told.noise[-1] == 0.01
    bandit.withdraw(picks[1:2], ids[1:2], outcomes=["cost"])
    assert bandit.pending[ids[1]] == picks[1]


def test_after_an_error_nothing_has_changed():
    bandit = campaign()
    picks = bandit.ask(2)
    before = repr(bandit.state_dict())
    for call, match in (
        (lambda b, p: b.tell(p, {"yields": [1.0, 2]}), "among .*yield.*'yields'"),
        (lambda b, p: b.tell(p, {"yield": [1.0]}), "2 results of 'yield'"),
        (
            lambda b, p: b.tell(
                p, {"yield": [1, 2]}, noise_variance={"yield": [1, 1, 1]}
            ),
            "as many noise variances, or one for all, but got 2 and 3",
        ),
        (lambda b, p: b.tell(p, [1.0, 2.0]), "by name"),
        (lambda b, p: b.tell(p, {"yield": [1, 2], "cost": [1, np.inf]}), "finite"),
        (lambda b, p: b.tell(p, {"yield": [1, 2]}, [90, 91]), "pull 90"),
        (lambda b, p: b.tell([70, 71], {"yield": [1, 2]}), "pending pull of arm 70"),
        (
            lambda b, p: b.tell(p, {"yield": [1, 2]}, noise_variance={"cost": 1.0}),
            "noise variances of the outcomes .*yield.*cost",
        ),
        (lambda b, p: b.fail([70]), "pending pull of arm 70"),
        (lambda b, p: b.withdraw(p), "told result"),
        (lambda b, p: b.ask(2, available=torch.zeros(80).bool()), "available"),
        (lambda b, p: b.add_observations([0], {"cost": ["x"]}), "`cost` to be numbers"),
    ):
        with pytest.raises(InputDataError, match=match):
            call(bandit, picks)
        assert repr(bandit.state_dict()) == before
    bandit.tell(picks, results_of(bandit.arms[picks]))


def test_failed_arms_wait_and_are_retired():
    bandit = campaign()
    picks = bandit.ask(2)
    bandit.tell(picks[:1], {"yield": [1.0]})
    bandit.fail(picks)  # of the first one, the cost has failed
    assert not bandit.pending
    assert not torch.isin(bandit.ask(3), picks).any()
    bandit.add_pending(picks[1:])
    with pytest.warns(InputDataWarning, match=rf"{int(picks[1])}\] have failed twice"):
        bandit.fail(picks[1:])
    assert bandit.is_retired.nonzero().tolist() == [[int(picks[1])]]
    for child in bandit.outcomes.values():
        assert child.is_retired[picks[1]]
    assert bandit.add_arms(bandit.arms[picks[1:]]).tolist() == picks[1:].tolist()
    assert not bandit.is_retired.any()


@pytest.mark.parametrize("way", ["copy", "pickle", "file"])
def test_a_copy_continues_like_the_bandit(way, tmp_path):
    bandit = campaign(roles={**ROLES, "purity": [AtLeast(0.2)]})
    bandit.add_observations([1, 2, 3], {"purity": [0.1, 0.5, 0.9]})
    bandit.tell(picks := bandit.ask(3), results_of(bandit.arms[picks]))
    if way == "file":
        bandit.save(tmp_path / "file")
        other = OutcomesBandit(ARMS, bandit.roles, seed=5)
        other.load(tmp_path / "file")
    else:
        other = pickle.loads(pickle.dumps(bandit)) if way == "pickle" else copy(bandit)
    assert other.pending == bandit.pending
    expected = bandit.ask(4)
    assert other.ask(4).tolist() == expected.tolist()
    with pytest.raises(InputDataError, match="expected roles="):
        campaign().load_state_dict(bandit.state_dict())


def test_new_arms_come_first_and_measured_ones_fill_the_batch():
    bandit = OutcomesBandit(random_arms(6), ROLES, seed=0)
    bandit.add_observations(range(4), results_of(random_arms(6)[:4]))
    batch = bandit.ask(6)
    assert {*batch[:2].tolist()} == {4, 5}
    assert sorted(batch.tolist()) == [*range(6)]
    bandit.tell(batch, results_of(random_arms(6)[batch]))
    assert {*bandit.ask(2).tolist()} == {4, 5}  # the others have two measurements
    once = OutcomesBandit(random_arms(6), ROLES, seed=0, max_repeats=1)
    once.add_observations(range(4), results_of(random_arms(6)[:4]))
    assert sorted(once.ask(6).tolist()) == [4, 5]


def test_equal_rows_are_one_candidate():
    arms = random_arms(20)
    arms[10:] = arms[:10]
    bandit = OutcomesBandit(arms, ROLES, seed=0)
    bandit.add_observations(range(11, 15), results_of(arms[11:15]))
    assert sorted(bandit.ask(6).tolist()) == [0, 5, 6, 7, 8, 9]


def test_an_outcome_that_is_known_of_all_candidates():
    """Nothing is measured until the other outcome is."""
    arms = random_arms(40)
    bandit = OutcomesBandit(arms, {"yield": Maximize(), "cost": AtMost(0.8)}, seed=0)
    bandit.add_observations(range(40), {"cost": results_of(arms)["cost"]})
    bandit.add_observations(range(6), {"yield": results_of(arms[:6])["yield"]})
    assert bandit.observed_arms.tolist() == [*range(6)]
    found = bandit.ask(4)
    assert (found >= 6).all()
    assert (results_of(arms[found])["cost"] <= 0.9).all()
    assert bandit.best_arm().arm < 6


def test_a_batch_is_spread_out_before_the_first_objective():
    bandit = OutcomesBandit(ARMS, {"yield": Maximize(), "cost": AtMost(1)}, seed=3)
    picks = bandit.ask(4)
    assert picks.tolist() == GPBandit(ARMS, matern_to_learn, seed=3).ask(4).tolist()
    bandit.tell(picks, {"cost": [0.1, 0.2, 0.3, 0.4]})
    assert not torch.isin(bandit.ask(4), picks).any()
    with pytest.raises(InputDataError, match="'yield' has none"):
        bandit.best_arm()


def test_one_objective_without_limits_finds_the_best():
    bandit = OutcomesBandit(ARMS, {"yield": Maximize()}, seed=0)
    bandit.add_observations(range(6), {"yield": results_of(ARMS[:6])["yield"]})
    for _ in range(4):
        picks = bandit.ask(4)
        bandit.tell(picks, {"yield": results_of(ARMS[picks])["yield"]})
    best = results_of(ARMS)["yield"].argmax()
    assert bandit.best_arm() == (int(best), True, 1.0)


@pytest.mark.filterwarnings("ignore:Rounding in torch.float32")
def test_single_precision_keeps_small_differences_of_large_outcomes():
    found = []
    for arms, level in (ARMS.float().double(), 0.0), (ARMS.float(), 1e8):
        bandit = OutcomesBandit(arms, ROLES, seed=0)
        results = {name: y[:10] + level for name, y in results_of(ARMS).items()}
        bandit.add_observations(range(10), results)
        found.append((bandit.ask(4).tolist(), bandit.pareto_front().tolist()))
    assert found[0] == found[1]


def test_words_and_plates():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "ligand": rng.choice(["a", "b", "c"], 60),
            "temperature": rng.choice([20.0, 40.0, 60.0], 60),
            "time": rng.random(60),
        }
    )
    bandit = OutcomesBandit(frame, {"yield": Maximize(), "cost": AtMost(0.5)}, seed=0)
    found = frame["time"] + (frame["ligand"] == "b")
    bandit.add_observations(
        range(12), {"yield": found[:12], "cost": frame["time"][:12]}
    )
    batch = bandit.ask(4, same=["temperature"])
    assert frame["temperature"][batch.numpy()].nunique() == 1
    assert len(batch.unique()) == 4
    effects = bandit.outcomes["yield"].main_effects().effects["ligand"]
    assert effects["value"][int(torch.as_tensor(effects["mean"]).argmax())] == "b"


def test_a_value_has_new_arms_while_some_value_has():
    """25 better values have none left, another one two."""
    x, y = torch.cartesian_prod(torch.arange(26.0), torch.arange(4.0)).mT.double()
    bandit = OutcomesBandit(torch.stack([x, y], -1), {"a": Maximize()}, seed=0)
    told = ((x > 0) | (y < 2)).nonzero().squeeze(-1)
    bandit.add_observations(told, {"a": (5 * x + y)[told]})
    assert bandit.ask(2, same=[0]).sort().values.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("outcomes", "match"),
    [
        ({}, "one to 4 outcomes.*got 0"),
        ({"a": AtMost(1.0)}, "one to 4 outcomes.*got 0"),
        ({name: Maximize() for name in "abcde"}, "got 5"),
        ({"a": "max"}, "'a' to have a role"),
        ({"a": [Maximize(), Minimize()]}, "one objective of the outcome 'a'"),
        ({"a": []}, "'a' to have a role"),
        (["a"], "the role of each by name"),
    ],
)
def test_roles_are_checked(outcomes, match):
    with pytest.raises(InputDataError, match=match):
        OutcomesBandit(ARMS, outcomes)


@given(
    st.sampled_from(
        [
            Maximize(),
            Minimize(),
            Target(0.5),
            Target(-1.0, 0.7),
            AtMost(0.2),
            AtLeast(2),
        ]
    ),
    st.floats(-4, 4),
    st.floats(0, 3),
)
def test_the_optimistic_utility_is_the_largest_of_an_interval(role, low, width):
    inside = torch.linspace(low, low + width, 2001, dtype=torch.double)
    found = role.optimistic_utility(inside[0], inside[-1]).item()
    best = role.utility(inside).max().item()
    assert best - 1e-12 <= found <= best + width / 2000


@pytest.mark.parametrize(
    "make", [lambda: Target(np.inf), lambda: Target(1.0, -1.0), lambda: AtMost(np.nan)]
)
def test_numbers_of_roles_are_checked(make):
    with pytest.raises(InputDataError, match=re.compile("value|tolerance|limit")):
        make()


def test_options_are_by_outcome():
    with pytest.raises(InputDataError, match=r"among \['yield', 'cost'\].*'price'"):
        OutcomesBandit(ARMS, ROLES, noise_variance={"price": 1.0})
    options = {"covar_module": rbf(), "noise_variance": 0.1, "bounds": (0, 1)}
    for option, value in (options | {"reference_point": [0.0]}).items():
        with pytest.raises(InputDataError, match=f"`{option}` by outcome.*'yield'"):
            OutcomesBandit(ARMS, ROLES, **{option: value})
    told = pd.DataFrame({"yield": [1.0], "cost": [2.0]})
    with pytest.raises(InputDataError, match="`noise_variance` by outcome"):
        campaign().add_observations([20], told, noise_variance=0.1)
    campaign().add_observations([20], told, noise_variance=told)
    campaign().add_observations([20], told, noise_variance={"cost": None})  # unknown
    with pytest.raises(InputDataError, match="`reference_point` to be a number"):
        OutcomesBandit(ARMS, ROLES, reference_point={"cost": np.nan})
    roles = {"yield": Maximize(), "cost": AtMost(1.0)}
    for name in roles:
        with pytest.raises(
            InputDataError, match=f"several objectives, but got '{name}"
        ):
            OutcomesBandit(ARMS, roles, reference_point={name: 0.5})
    limits = {"yield": Maximize(), "cost": [AtLeast(0.5), AtMost(0.2)]}
    with pytest.raises(InputDataError, match="'cost' that some value meets"):
        OutcomesBandit(ARMS, limits)
    with pytest.raises(UnsupportedError, match="pareto_front"):
        campaign().best_arm()
    bandit = campaign(noise_variance={"cost": 0.25})
    bandit.ask()
    assert bandit.outcomes["cost"].noise_variance == pytest.approx(0.25)
    far = campaign(reference_point={"yield": -5.0})._choice()
    assert far.reference[0] == pytest.approx(-5 / far.models[0].units.std)


@pytest.mark.parametrize(
    ("limits", "inside"),
    [
        ([AtLeast(-0.1), AtMost(0.1)], lambda x: (x >= -0.1) & (x <= 0.1)),
        ([AtMost(0.1), AtMost(0.5)], lambda x: x <= 0.1),
        ([AtLeast(0.0), Minimize()], lambda x: x >= 0.0),
    ],
)
def test_limits_of_one_outcome_are_of_one_normal_number(limits, inside):
    arms, kernel = torch.linspace(0, 1, 20).double().unsqueeze(-1), rbf(0.1)
    roles = {"c": limits}
    if not isinstance(limits[-1], Minimize):
        roles["a"] = Maximize()
    bandit = OutcomesBandit(
        arms,
        roles,
        covar_module=dict.fromkeys(roles, kernel),
        noise_variance=dict.fromkeys(roles, 0.001),
        seed=0,
    )
    bandit.add_observations([2, 8], {name: [0.13, -0.4] for name in roles})
    table = bandit.predictions()
    draws = np.random.default_rng(0).standard_normal((200_000, 1))
    values = table["c_mean"].numpy() + draws * table["c_std"].numpy()
    found = table["probability_feasible"].numpy()
    np.testing.assert_allclose(found, inside(values).mean(axis=0), atol=0.005)


def test_a_limit_is_met_with_the_probability_that_its_outcome_says():
    """Learned noise is larger there than in `std`, as it is in the printed interval."""
    arms = random_arms(60)
    bandit = OutcomesBandit(arms, {"a": Maximize(), "b": AtMost(0.2)}, seed=0)
    told = torch.arange(20)
    noise = np.random.default_rng(0).standard_normal(20)
    values = arms[told].sum(dim=-1).sin() + 0.3 * torch.from_numpy(noise)
    bandit.add_observations(told, {"a": values, "b": values})
    table = bandit.predictions()
    found = table["probability_feasible"]
    said = bandit.outcomes["b"].predictions(threshold=0.2)["probability_below"]
    torch.testing.assert_close(found, said)
    gap = (table["b_mean"] - 0.2).abs() / table["b_std"]
    assert (torch.special.ndtr(gap) - found.maximum(1 - found))[told].min() > 0


def test_a_refused_withdrawal_names_the_outcome_and_the_remedy_works():
    bandit = campaign()
    picks = bandit.ask(2)
    bandit.tell(picks, {"cost": [1.0, 999.0]})
    with pytest.raises(InputDataError, match=r"of the outcome .*, name these by `outc"):
        bandit.withdraw(picks[1:])
    bandit.withdraw(picks[1:], outcomes=["cost"])
    assert bandit.outcomes["cost"].num_pulls == 11
