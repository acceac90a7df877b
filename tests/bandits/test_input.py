"""Whatever is passed: an answer, or an error that says so and changes nothing."""

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import MultitaskKernel, RBFKernel, ScaleKernel

from botorch_bkb import BBKB, BoxBandit, GPBandit, GPUCB, RGPUCB, TVGPUCB
from botorch_bkb.acquisition import ScheduledUpperConfidenceBound
from botorch_bkb.acquisition.schedules import ConstantWidth, RandomDeviationWidth
from botorch_bkb.bandits import BoxThompsonPolicy, UniformPolicy
from tests.bandits import (
    ALL_BANDITS,
    assert_same,
    LEARNED,
    make_bandit,
    NOISE,
    play,
    rbf,
    unchanged,
)


ARMS = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).double()
REFUSED = (InputDataError, BotorchTensorDimensionError, UnsupportedError)
JUNK = {
    "none": None,
    "text": "3",
    "bytes": b"3",
    "empty": [],
    "nones": [None],
    "texts": ["3"],
    "dictionary": {},
    "set": {1, 2},
    "object": object(),
    "fraction": 1.5,
    "fractions": [1.5],
    "nan": math.nan,
    "infinity": [-math.inf],
    "negative": [-1],
    "huge": [10**30],
    "true": True,
    "truths": [True, False],
    "complex": [1 + 2j],
    "complex tensor": torch.tensor([1 + 2j]),
    "ragged": [[1, 2], [3]],
    "deep": [[[1]]],
    "columns": torch.ones(3, 1, dtype=torch.long),
    "numpy": np.array([1.5, np.nan]),
    "objects": np.array([object()]),
    "sparse": torch.eye(3).to_sparse(),
    "no numbers": torch.empty(0),
    "double": torch.ones(30, 2).double(),
}


def answers(call, *args, **options):
    """Call; return whether that was taken, and let no other error pass."""
    try:
        call(*args, **options)
    except REFUSED:
        return False
    return True


def waiting_bandit(bandit_class):
    bandit = make_bandit(bandit_class)
    play(bandit, 3)
    bandit.ask(3)
    return bandit


@pytest.fixture(scope="module", params=[GPBandit, TVGPUCB])
def waiting(request):
    """A bandit that every test leaves as it was."""
    return waiting_bandit(request.param)


@pytest.mark.parametrize("name", JUNK)
def test_junk_is_refused_and_changes_nothing(waiting, name):
    junk, bandit = JUNK[name], waiting
    arm = next(iter(bandit.pending.values()))
    calls = {
        "ask size": lambda: bandit.ask(junk),
        "ask available": lambda: bandit.ask(available=junk),
        "ask arms": lambda: bandit.ask(arms=junk),
        "tell": lambda: bandit.tell(junk, [1.0]),
        "tell rewards": lambda: bandit.tell([arm], junk),
        "tell ids": lambda: bandit.tell([arm], [1.0], pull_ids=junk),
        "add observations": lambda: bandit.add_observations(junk, [1.0]),
        "add rewards": lambda: bandit.add_observations([arm], junk),
        "fail": lambda: bandit.fail(junk),
        "fail ids": lambda: bandit.fail([arm], pull_ids=junk),
        "pending": lambda: bandit.add_pending(junk),
        "add": lambda: bandit.add_arms(junk),
        "retire": lambda: bandit.retire_arms(junk),
        "predict": lambda: bandit.predict(junk),
        "bound": lambda: bandit.confidence_bound(junk),
    }
    if bandit.drifts:
        calls["time"] = lambda: bandit.ask(time=junk)
        calls["tell time"] = lambda: bandit.tell([arm], [1.0], time=junk)
        calls["add time"] = lambda: bandit.add_observations([arm], [1.0], time=junk)
    for call in calls.values():
        state = bandit.state_dict()
        with unchanged(bandit):
            if answers(call):
                bandit.load_state_dict(state)  # some of it is no junk there


@pytest.mark.parametrize("name", JUNK)
def test_junk_makes_no_bandit(name):
    arms, junk = torch.rand(5, 2).double(), JUNK[name]
    known = {"arms": arms, "covar_module": rbf(), "noise_variance": NOISE}
    own = ["oversampling", "resampling", "inclusion", "max_inducing"]
    shared = ["confidence", "max_repeats", "generator", "max_feature_bytes"]
    for option in (*known, *shared, "batch_rule", *own):
        answers(BBKB, **{**known, option: junk})
    for option in (*known, *shared, "goal", "max_inducing", "forgetting_rate"):
        answers(GPBandit, **{**known, option: junk})
    known["forgetting_rate"] = 0.1
    for option in ("forgetting_rate", "confidence", "batch_rule", "sparse"):
        answers(TVGPUCB, **{**known, option: junk})
    for option in ("tolerance", "max_inducing"):
        answers(TVGPUCB, **{**known, "sparse": True, option: junk})
    answers(RGPUCB, arms, rbf(), NOISE, block_size=junk)


def test_numbers_of_numpy_are_numbers():
    bandit = TVGPUCB(ARMS, rbf(), NOISE, forgetting_rate=np.float32(0.25))
    assert bandit.forgetting_rate == 0.25
    assert GPBandit(ARMS, forgetting_rate=np.float32(0.25)).forgetting_rate == 0.25
    assert len(RGPUCB(ARMS, rbf(), NOISE, block_size=np.int64(20)).ask()) == 1
    assert ConstantWidth(np.float32(0.5)) == ConstantWidth(0.5)
    size, options = np.int64(3), {"oversampling": np.float32(2.0)}
    bandit = BBKB(ARMS, rbf(), NOISE, max_repeats=size, **options)
    assert len(bandit.ask(size)) == 1
    assert len(GPBandit(ARMS, max_repeats=size).ask(size)) == 3


Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("make", [GPBandit, partial(BBKB, covar_module=rbf())])
def test_arrays_and_tables_are_what_tensors_are(make: type[GPBandit]) -> None:
    """Annotated, so that mypy checks these calls too."""
    array = ARMS.numpy()
    table, more = pd.DataFrame(array), array[:2] + 1.0

    def choices(arms: Array | pd.DataFrame | torch.Tensor) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        bandit = make(arms, noise_variance=0.1, generator=generator)
        available: Array = np.arange(6) < 4
        asked = bandit.ask(available=available).numpy()
        bandit.tell(asked, np.full(len(asked), 0.5), np.array([0]))
        bandit.add_observations(table.index, table[0])
        bandit.add_pending(np.array([2, 2]))
        bandit.fail(np.array([2]), pull_ids=np.array([2]))
        bandit.withdraw(np.array([5]))
        assert bandit.add_arms(pd.DataFrame(more)).tolist() == [6, 7]
        bandit.retire_arms(np.array([6]))
        assert len(bandit.predict(np.array([0, 1]))[0]) == 2
        assert len(bandit.confidence_bound(pd.Series([0, 1]))) == 2
        return [bandit.ask().tolist(), bandit.ask(arms=array[3:]).tolist()]

    expected = choices(ARMS)
    assert choices(array) == expected
    assert choices(table) == expected
    box = BoxBandit(torch.tensor([[0.0], [1.0]]).double(), rbf(), 0.1)
    box.add_observations([[0.5]], np.array([1.0]))
    assert len(box.predict(np.array([[0.5], [0.7]]))[0]) == 2


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", JUNK)
def test_junk_is_no_point_and_no_state_of_a_box(name):
    junk = JUNK[name]
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    bandit = BoxBandit(bounds, rbf(), 0.1, raw_samples=8, num_restarts=1)
    bandit.add_observations(torch.rand(3, 2), [1.0, 2.0, 3.0])
    point = bandit.ask()
    state = bandit.state_dict()
    for call in (
        lambda: bandit.ask(junk),
        lambda: bandit.tell(junk, [1.0]),
        lambda: bandit.tell(point, junk),
        lambda: bandit.fail(junk),
        lambda: bandit.tell(point, [1.0], pull_ids=junk),
        lambda: bandit.fail(point, pull_ids=junk),
        lambda: bandit.predict(junk),
        lambda: BoxBandit(junk),
        lambda: BoxBandit(bounds, junk),
        lambda: BoxBandit(bounds, None, junk),
    ):
        if answers(call):
            bandit.load_state_dict(state)
        assert torch.equal(bandit.pending_points, point)
    bandit.load_state_dict(state)
    for key in state:
        if answers(lambda key=key: bandit.load_state_dict({**state, key: junk})):
            bandit.load_state_dict(state)
        assert_same(bandit.state_dict(), state)
    bandit.tell(point, [1.0])


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", JUNK)
def test_junk_is_no_state(waiting, name):
    bandit = waiting
    state = bandit.state_dict()
    scores = {**state["observations"], "told_scores": JUNK[name]}
    for wrong in [{"observations": scores}, *({key: JUNK[name]} for key in state)]:
        with unchanged(bandit):
            if answers(lambda wrong=wrong: bandit.load_state_dict({**state, **wrong})):
                bandit.load_state_dict(state)


def test_pulls_that_cannot_be_are_no_state():
    bandit = waiting_bandit(BBKB)
    state = bandit.state_dict()
    kept = state["observations"]
    for changes, match in (
        ({"told_indices": [*kept["told_indices"][:-1], 99]}, "between 0 and 29"),
        ({"told_rewards": kept["told_rewards"][:-1]}, "one number per index"),
        ({"told_rewards": [math.nan] * len(kept["told_rewards"])}, "finite"),
        ({"told_scores": kept["told_scores"][:-1]}, "a number per observation"),
        ({"pending": {99: (1, 0.5, 0.0)}}, "from 0 to"),
        ({"pending": {0: (30, 0.5, 0.0)}}, "between 0 and 29"),
        ({"pending": {0: (1, -0.5, 0.0)}}, "number from 0 to"),
        ({"pending": {0: (1, 0.5, math.nan)}}, "`time` to be a finite"),
        ({"pending": {0: (1, 0.5)}}, "not enough values"),
        ({"pending": {math.inf: (1, 0.5, 0.0)}}, "integer from 0"),
        ({"now": 10**400}, "does not fit"),
        ({"opening_score": math.nan}, "does not fit"),
    ):
        with unchanged(bandit), pytest.raises(InputDataError, match=match):
            bandit.load_state_dict({**state, "observations": {**kept, **changes}})


def test_numbers_that_cannot_be_are_no_state():
    options = {"confidence": RandomDeviationWidth(), "forgetting_rate": "learn"}
    bandit = make_bandit(GPBandit, **options, **LEARNED)
    play(bandit, 3)
    state = bandit.state_dict()
    values = {
        "prior": [
            {**state["prior"], name: value}
            for name in ("unit", "offset", "step")
            for value in (-1e200, 10**400, math.nan)
        ],
        "restart": [(0, -1e308), (99, 0.0), 3],
        "seed": [-1, 2**64, 0.5],
        "confidence": [{"seed": seed} for seed in (-1, 1.0, None)],
    }
    for name, wrong in values.items():
        for value in wrong:
            with unchanged(bandit), pytest.raises(InputDataError, match="does not fit"):
                bandit.load_state_dict({**state, name: value})


def test_columns_of_a_table_come_in_their_order():
    """Not by their labels, by which torch would read them."""
    bandit = waiting_bandit(GPUCB)
    table = pd.DataFrame({"arm": [3, 4, 5], "y": [0.3, 0.5, 0.4]}, index=[7, 8, 9])
    bandit.add_observations(table["arm"], table["y"])
    by_value = table.reset_index(drop=True).sort_values("y", ascending=False)
    bandit.add_observations(by_value["arm"], by_value[["y"]])
    observations = bandit.state_dict()["observations"]
    assert observations["told_indices"][-6:] == [3, 4, 5, 4, 5, 3]
    assert observations["told_rewards"][-6:] == [0.3, 0.5, 0.4, 0.5, 0.4, 0.3]
    available = pd.Series([True] + 29 * [False]).sort_values()
    assert bandit.ask(available=available).unique().tolist() == [29]


def box_bandit(covar_module=None, **options):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    return BoxBandit(bounds, covar_module or rbf(), NOISE, **options)


EVERY_BANDIT = {
    **{each.__name__: partial(make_bandit, each) for each in ALL_BANDITS},
    "BoxBandit": box_bandit,
}
each_bandit = pytest.mark.parametrize("make", EVERY_BANDIT.values(), ids=EVERY_BANDIT)


@each_bandit
def test_a_direction_is_true_or_false(make):
    for junk in ("no", "False", 0, None):
        with pytest.raises(InputDataError, match="`maximize` to be True or False, but"):
            make(maximize=junk)
    assert make(maximize=np.bool_(False)).state_dict()["maximize"] is False


@each_bandit
def test_a_state_that_lacks_something_is_refused(make):
    bandit = make()
    state = bandit.state_dict()
    names = state.keys() - {"block_size"}  # which 1.0 did not write
    missing = [{k: v for k, v in state.items() if k != name} for name in names]
    for junk in ({}, None, "state", [], 3, *missing):
        with unchanged(bandit), pytest.raises(InputDataError, match="`state_dict` ret"):
            bandit.load_state_dict(junk)
    bandit.load_state_dict(state)


UNFIT = {
    "more lengthscales": (RBFKernel(ard_num_dims=3), "must match the size"),
    "scaled": (ScaleKernel(RBFKernel(ard_num_dims=3)), "must match the size"),
    "of no such column": (RBFKernel(active_dims=(5,)), "out of"),
    "of several outputs": (MultitaskKernel(RBFKernel(), 2), r"shape \(4, 4\)"),
    "learned": (lambda features: RBFKernel(ard_num_dims=3), "must match the size"),
    "of one column": (
        ScaleKernel(RBFKernel(active_dims=(0,), ard_num_dims=3)),
        "3 lengthscales of one feature",
    ),
}


@each_bandit
@pytest.mark.parametrize("name", UNFIT)
def test_a_kernel_that_does_not_fit_the_arms_is_refused_at_once(make, name):
    kernel, match = UNFIT[name]
    match = f"to fit arms of 2 features, .*{match}.*Check its `ard_num_dims`"
    with pytest.raises(InputDataError, match=match):
        box_bandit(kernel) if make is box_bandit else make(covar_module=kernel)


@each_bandit
def test_a_class_in_place_of_a_kernel_is_refused(make):
    make = box_bandit if make is box_bandit else partial(make, None, 0, 0.4)
    match = r"`covar_module` to be an object of class Kernel.*Pass `RBFKernel\(\)`"
    with pytest.raises(InputDataError, match=match):
        make(covar_module=RBFKernel)
    make(covar_module=RBFKernel())


NOTHING: Any = None
JUNK_OPTIONS = {
    "generator": lambda bandit: bandit.maximizer_distribution(8, "seed"),
    "num_draws": lambda bandit: bandit.maximizer_distribution(1.5),
    "among_pulled": lambda bandit: bandit.best_arm("no"),
    "same": lambda bandit: bandit.ask(2, same=0.5),
    "policy": lambda _: box_bandit(policy=BoxThompsonPolicy),
    "block_size": lambda _: RGPUCB(ARMS, rbf(), NOISE, block_size=NOTHING),
    "maximize": lambda _: ScheduledUpperConfidenceBound(NOTHING, 1.0, maximize=NOTHING),
}


@pytest.mark.parametrize("name", JUNK_OPTIONS)
def test_junk_in_place_of_an_option_is_refused_by_name(name):
    with pytest.raises(InputDataError, match=f"Expected `{name}` to "):
        JUNK_OPTIONS[name](make_bandit(GPBandit))


@pytest.mark.parametrize("covar_module", [rbf(), None], ids=["given", "learned"])
def test_the_state_of_an_objective_that_drifts_fits_no_other(covar_module):
    noise = NOISE if covar_module else None
    still = GPBandit(ARMS, covar_module, noise)
    drifting = GPBandit(ARMS, covar_module, noise, forgetting_rate=0.1)
    for bandit, other in ((still, drifting), (drifting, still)):
        with unchanged(bandit), pytest.raises(InputDataError, match="the same kernel"):
            bandit.load_state_dict(other.state_dict())


def test_dates_and_complex_numbers_are_no_features():
    dates = pd.DataFrame({"day": pd.date_range("2026-01-01", periods=4)})
    waits = dates - dates.iloc[0]
    for junk in (dates, waits, np.array([[1j], [2.0]])):
        with pytest.raises(InputDataError, match=r"to hold numbers.*dates"):
            GPBandit(junk)
    assert GPBandit(pd.DataFrame({"t": [20, 40]})).arms.dtype == torch.double
    with pytest.raises(
        InputDataError, match=r"`add_arms\(rows\)` returns those of rows"
    ):
        GPBandit(ARMS).predict(ARMS)


def test_columns_of_objects_are_what_they_hold():
    bandit = make_bandit(GPBandit)
    mask = pd.Series(torch.arange(len(bandit.arms)).numpy() < 2, dtype=object)
    indices = bandit.ask(2, available=mask)
    assert sorted(indices.tolist()) == [0, 1]
    bandit.tell(pd.Series([0, 1], dtype=object), pd.Series([0.5, 1], dtype=object))
    assert bandit.state_dict()["observations"]["told_rewards"] == [0.5, 1.0]
    for junk in (["0.5"], [None], [pd.NA]):
        with unchanged(bandit), pytest.raises(InputDataError, match="`rewards`"):
            bandit.add_observations([0], pd.Series(junk, dtype=object))


def test_progress_of_no_arm_is_refused_and_a_uniform_policy_is_uniform():
    bandit = make_bandit(GPBandit)
    bandit.add_observations([0, 1], [0.1, 0.3])
    with unchanged(bandit), pytest.raises(InputDataError, match="one arm at least"):
        bandit.progress(indices=[])
    with pytest.raises(InputDataError, match=r"Use `EpsilonGreedyPolicy\(0.0\)`"):
        UniformPolicy(0.0)
    with pytest.raises(InputDataError, match="a number from 0 to 1, but got 2"):
        UniformPolicy(2.0)
    assert UniformPolicy(1.0) == UniformPolicy()
