"""Arms that come and go: as if all had been there from the start, and masked."""

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import LinearKernel

from botorch_bkb import (
    BBKB,
    EpsilonGreedy,
    GPBandit,
    GPThompsonSampling,
    UniformRandom,
)
from botorch_bkb.arms.table import match_rows
from botorch_bkb.bandits import ThompsonPolicy
from botorch_bkb.optim import FixedSize
from tests.bandits import (
    ALL_BANDITS,
    DRIFTING_BANDITS,
    LEARNED,
    make_bandit,
    play,
    random_arms,
    rbf,
    SPARSE_BANDITS,
    true_rewards,
    unchanged,
)
from tests.bandits.contract import each


pytestmark = pytest.mark.usefixtures("short_fits")
ARMS = random_arms(60)
# Draw by position, and what visits is last.
UNIFORM_BANDITS = [EpsilonGreedy, UniformRandom]
DECIDED_BANDITS = [item for item in ALL_BANDITS if item not in UNIFORM_BANDITS]


def make(bandit_class, arms, **options):
    if bandit_class is GPThompsonSampling:
        options["uniform_probability"] = 0.0
    if bandit_class in DRIFTING_BANDITS:
        options["confidence"] = 2.0  # their default knows the number of arms
    return make_bandit(bandit_class, arms, **options)


def measure_by_features(seed=0):
    """Return a measurement that does not depend on the numbers of arms."""
    stream = torch.Generator().manual_seed(seed)

    def measure(points):
        noise = torch.randn(len(points), generator=stream, dtype=torch.double)
        return true_rewards(points) + 0.3 * noise

    return measure


def step(bandit, measure, **options):
    """Ask and tell; return the points that were pulled."""
    indices = bandit.ask(6, **options)
    points = bandit.arms[indices]
    bandit.tell(indices, measure(points))
    return points


def mask(*parts):
    available = torch.zeros(len(ARMS), dtype=torch.bool)
    for part in parts:
        available[part] = True
    return available


@each(ALL_BANDITS)
def test_added_and_retired_arms_are_those_of_a_masked_table(bandit_class):
    bandit, whole = make(bandit_class, ARMS[:30]), make(bandit_class, ARMS)
    measures = [measure_by_features() for _ in range(2)]

    def run(num_rounds, available):
        for _ in range(num_rounds):
            ours = step(bandit, measures[0])
            expected = step(whole, measures[1], available=available)
            assert torch.equal(ours, expected)

    run(3, mask(slice(0, 30)))
    assert bandit.add_arms(ARMS[25:50]).tolist() == list(range(25, 50))
    run(3, mask(slice(0, 50)))
    bandit.retire_arms(range(10, 35))
    run(3, mask(slice(0, 10), slice(35, 50)))
    assert bandit.add_arms(ARMS[40:]).tolist() == list(range(40, 60))
    bandit.retire_arms(range(40))
    run(3, mask(slice(40, 60)))
    assert torch.equal(bandit.arms, ARMS)
    assert torch.equal(~bandit.is_retired, mask(slice(40, 60)))
    assert torch.equal(bandit.counts, whole.counts)
    torch.testing.assert_close(bandit.predict(), whole.predict(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("bandit_class", "options"),
    [
        *((bandit_class, {}) for bandit_class in DECIDED_BANDITS),
        (GPBandit, {**LEARNED, "policy": ThompsonPolicy()}),
    ],
)
def test_arms_of_one_round_are_those_of_a_masked_table(bandit_class, options):
    """Some rows are known, some twice in a round; what was not pulled is forgotten."""
    options = dict(options)
    if bandit_class is not GPBandit:
        options["batch_rule"] = FixedSize(4)  # several new arms at once
    if bandit_class in SPARSE_BANDITS:
        options["oversampling"] = 1e9  # which draw is whose depends on the numbers
    # The corners are in both tables: the unit cube is that of the first arms.
    corners = torch.stack([ARMS.amin(dim=0), ARMS.amax(dim=0)])
    table = torch.cat([corners, ARMS])
    bandit = make(bandit_class, corners, **options)
    whole = make(bandit_class, table, **options)
    measures = [measure_by_features() for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        rows = torch.randint(len(table), (15,), generator=generator)
        available = torch.zeros(len(table), dtype=torch.bool)
        available[rows] = True
        # In the order of the whole table: ties go to the lowest index.
        ours = step(bandit, measures[0], arms=table[rows.sort().values])
        assert torch.equal(ours, step(whole, measures[1], available=available))
    pulled = whole.counts.nonzero().squeeze(-1)
    assert len(bandit.arms) == 2 + int((pulled >= 2).sum())
    known, new = match_rows(bandit.arms, table[pulled])
    assert len(new) == 0
    assert torch.equal(bandit.counts[known], whole.counts[pulled])
    torch.testing.assert_close(
        bandit.predict(known), whole.predict(pulled), rtol=1e-7, atol=1e-9
    )


def test_visitors_that_were_pulled_are_known_but_not_offered_again():
    bandit = make(BBKB, ARMS[:2])
    for seed in range(4):
        step(bandit, measure_by_features(seed), arms=ARMS[10:20])
    assert len(bandit.arms) > 2
    assert bandit.is_retired.tolist() == [False, False] + [True] * (
        len(bandit.arms) - 2
    )
    assert set(bandit.ask(5).tolist()) <= {0, 1}
    assert bandit.best_arm() in (0, 1)
    best = bandit.maximizer_distribution(50, torch.Generator().manual_seed(0))
    assert best.probabilities[2:].sum() == 0
    bandit.retire_arms([0, 1])
    assert bandit.counts[bandit.best_arm()] > 0


@pytest.mark.parametrize(
    ("arms", "error", "match"),
    [
        (torch.rand(3, 5), BotorchTensorDimensionError, "2 features.* but got 5"),
        (torch.rand(3, 2), InputDataError, "of dtype torch.float64, like those"),
        (torch.tensor([[0.1, torch.nan]]), InputDataError, "1 rows hold NaN"),
    ],
)
@pytest.mark.parametrize("bandit_class", [BBKB, GPBandit, DRIFTING_BANDITS[0]])
def test_arms_that_are_none_change_nothing(bandit_class, arms, error, match):
    bandit = make_bandit(bandit_class)
    play(bandit, 3)
    for change in (bandit.add_arms, lambda new: bandit.ask(arms=new)):
        with unchanged(bandit), pytest.raises(error, match=match):
            change(arms)
    with unchanged(bandit), pytest.raises(InputDataError, match="but got both"):
        bandit.ask(arms=ARMS, available=torch.ones(30, dtype=torch.bool))
    with unchanged(bandit), pytest.raises(InputDataError, match="between 0 and 29"):
        bandit.retire_arms([30])


def test_a_kernel_that_refuses_an_arm_changes_nothing():
    bandit = make_bandit(BBKB, covar_module=LinearKernel().double())
    play(bandit, 3)
    bandit.ask(1)  # takes in the rewards
    huge = torch.tensor([[1e200, 1.0]], dtype=torch.double)
    for change in (bandit.add_arms, lambda new: bandit.ask(arms=new)):
        with unchanged(bandit), pytest.raises(InputDataError, match="arm 30"):
            change(huge)
    assert len(bandit.arms) == len(bandit.counts) == 30


# State --------------------------------------------------------------------------------


def test_a_state_goes_to_its_own_arms_only(tmp_path):
    bandit = make_bandit(BBKB)
    play(bandit, 3)
    bandit.save(tmp_path / "state")
    others = {
        "flipped": bandit.arms.flip(0),
        "swapped": bandit.arms[[1, 0, *range(2, 30)]],
        "moved": bandit.arms + 1e-6 * torch.eye(30, 2).double(),
    }
    for arms in others.values():
        other = make_bandit(BBKB, arms)
        with unchanged(other), pytest.raises(InputDataError, match="to wrong arms"):
            other.load(tmp_path / "state")
    single = make_bandit(BBKB, bandit.arms.float())
    single.load(tmp_path / "state")
    assert torch.equal(single.counts, bandit.counts)
    assert single.predict()[0].dtype == torch.float32
    torch.testing.assert_close(
        single.predict()[0].double(), bandit.predict()[0], rtol=0, atol=1e-3
    )
    single.save(tmp_path / "single")
    bandit.load(tmp_path / "single")
    assert bandit.predict()[0].dtype == torch.float64
    # In another dtype, too, other arms or another order are refused.
    for saved, dtype in (("state", torch.float32), ("single", torch.float64)):
        for arms in others.values():
            other = make_bandit(BBKB, arms.to(dtype))
            with unchanged(other), pytest.raises(InputDataError, match="to wrong arms"):
                other.load(tmp_path / saved)


def test_a_state_of_version_1_0_fits_the_dtype_that_its_error_names():
    """It has no sums in single precision."""
    bandit = make_bandit(BBKB)
    play(bandit, 3)
    state = bandit.state_dict()
    table = state["table"]
    del table["columns"]
    table["checksum"] = table["checksum"][:2]
    make_bandit(BBKB).load_state_dict(state)
    single = make_bandit(BBKB, bandit.arms.float())
    with (
        unchanged(single),
        pytest.raises(InputDataError, match=r"of dtype .*float64"),
    ):
        single.load_state_dict(state)


# Frames -------------------------------------------------------------------------------


FRAME = pd.DataFrame(
    random_arms(90).reshape(60, 3).numpy(), columns=["temperature", 7, "time"]
)


def framed(arms=FRAME, bandit_class=GPBandit):
    kernel = rbf().double() if bandit_class is BBKB else None
    generator = torch.Generator().manual_seed(0)
    bandit = bandit_class(arms[:20], kernel, 0.1, generator=generator)
    bandit.add_observations(range(6), [0.3, 0.5, 0.1, 0.9, 0.2, 0.4])
    return bandit


@pytest.mark.parametrize("bandit_class", [GPBandit, BBKB])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_columns_of_frames_are_matched_by_name(bandit_class, is_loaded, tmp_path):
    bandit = framed(bandit_class=bandit_class)
    if is_loaded:  # also into a bandit whose arms have no names
        bandit.save(tmp_path / "state")
        bandit = framed(torch.tensor(FRAME.to_numpy()), bandit_class)
        bandit.load(tmp_path / "state")
    other = framed(torch.tensor(FRAME.to_numpy()), bandit_class)
    moved = FRAME[["time", "temperature", 7]].rename(columns={7: "7"})
    assert bandit.add_arms(moved[3:25]).tolist() == list(range(3, 25))
    other.add_arms(torch.tensor(FRAME.to_numpy()[3:25]))
    asked = bandit.ask(3, arms=moved[30:]), other.ask(3, arms=FRAME[30:])
    assert torch.equal(*asked)
    assert torch.equal(bandit.arms, other.arms)
    assert torch.equal(bandit.arms[20:25], torch.tensor(FRAME.to_numpy()[20:25]))
    if bandit_class is GPBandit:
        batch = bandit.ask(2, same=["time"])
        assert torch.equal(batch, other.ask(2, same=[0]))
        assert bandit.arms[batch, 0].unique().numel() == 1
        rows = bandit.predict(rows=moved), bandit.predict(rows=FRAME.to_numpy())
        assert torch.equal(rows[0][0], rows[1][0])


def test_frames_of_other_columns_are_refused(tmp_path):
    bandit = framed()
    twice = pd.concat([FRAME, FRAME[["time"]]], axis=1)
    for frame, match in (
        (FRAME[["time", 7]], r"lacks \['temperature'\] and has \[\] beside"),
        (FRAME.assign(id="A"), r"lacks \[\] and has \['id'\] beside"),
        (FRAME.rename(columns={7: "x"}), r"lacks \['7'\] and has \['x'\] beside"),
        (twice, r"distinct names of columns, but got \['time'\]"),
    ):
        for call in (
            lambda frame=frame: bandit.predict(rows=frame),
            lambda frame=frame: bandit.add_arms(frame),
            lambda frame=frame: bandit.ask(arms=frame),
        ):
            with unchanged(bandit), pytest.raises(InputDataError, match=match):
                call()
    with pytest.raises(InputDataError, match=r"`to_numpy\(\)`, whose columns go by"):
        GPBandit(twice)
    assert GPBandit(twice.to_numpy()).arms.shape == (60, 4)
    with pytest.raises(BotorchTensorDimensionError, match="of shape A x d"):
        GPBandit(FRAME["time"])
    for cell, match in (
        (None, "no missing cell, but row 2"),
        (torch.inf, "finite numb"),
    ):
        gap = FRAME.assign(time=FRAME["time"].mask(FRAME.index == FRAME.index[2], cell))
        for call in (framed, bandit.add_arms, lambda rows: bandit.predict(rows=rows)):
            with unchanged(bandit), pytest.raises(InputDataError, match=match):
                call(gap)
    bandit.save(tmp_path / "state")
    renamed = framed(FRAME.rename(columns={"time": 7, 7: "time"}))
    with unchanged(renamed), pytest.raises(InputDataError, match=r"columns .*'7', 'ti"):
        renamed.load(tmp_path / "state")
