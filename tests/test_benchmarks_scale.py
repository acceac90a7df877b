import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import scale, scale_simulation
from benchmarks.places import write_library
from benchmarks.record import Record
from benchmarks.scale_simulation import ASSUMED, Cost, Question, Setting, simulate
from tests.test_benchmarks import options


CONSTANTS = {
    "read": 1e-6,
    "twins": 1e-6,
    "sigma": 0.0,
    "trip": 1e-3,
    "trip_worker": 1e-4,
    "call": 1e-4,
    "call_worker": 1e-4,
    "byte": 1e-9,
}
COSTS = {
    ("kept", "rebuild"): Cost(1e-8, 0.0, 1e-9, (1, 2)),
    ("kept", "best"): Cost(2e-8, 0.0, 0.0, (1, 2)),
    ("kept", "moments"): Cost(3e-5, 0.0, 0.0, (1, 2)),
    ("kept", "update"): Cost(0.01, 1e-7, 0.0, (2, 3)),
}
QUESTIONS = [
    Question("update", "rebuild", 10, -1, 1000, 0, 0.0),
    Question("update", "best", 10, 0, 100, 16, 0.0),
    Question("update", "moments", 10, 5, 40, 80, 0.0),
]


def generator():
    return np.random.default_rng(0)


def test_coefficients_of_powers_are_found():
    sizes = [50, 100, 200, 400, 50]
    costs = [3.0 + 1e-4 * m**2 for m in sizes]
    assert scale.fitted(sizes, costs, (0, 1, 2)) == pytest.approx([3.0, 0.0, 1e-4])


def test_sizes_of_messages_count_tensors_and_numbers():
    message = (torch.zeros(3, 4), [scale.PerArm(torch.ones(5)), 1.0, None], "name")
    assert scale.num_bytes(message) == 48 + 20 + 8


@pytest.mark.parametrize("mode", scale.MODES)
def test_logged_shards_answer_alike_and_every_question_is_noted(mode):
    asks = scale.Asks(900, 40, mode)
    parts = asks.run(asks.local(1))
    picks = scale.MODES[mode]
    assert [part.part for part in parts] == [
        *(["from nothing", "pool", "sweep"]),
        *(["update", "pool", "sweep"] * scale.UPDATES),
    ]
    for part in parts:
        names = [question.name for question in part.questions]
        if part.part == "sweep":
            assert names.count("pull") == picks
            assert names.count("best") == 2 * picks
        elif part.part == "pool":
            assert "largest_bounds" in names
            assert "pull" not in names
        elif part.part == "from nothing" or mode == "anew":
            assert "rebuild" in names
        else:
            assert "advance" in names
        assert part.busy > 0
    alone = scale.Asks(900, 40, mode)
    plain = alone._posterior(alone.arms)
    told = alone.order[: 40 + scale.UPDATES * picks]
    rewards = (3 * alone.arms[told, :4]).sin().sum(dim=-1)
    plain.update(told, told, torch.ones_like(rewards), rewards)
    logged = asks.shards.column("variance")
    assert torch.allclose(logged, plain.variance, atol=1e-4)


def test_a_question_about_a_few_arms_goes_to_the_shards_that_hold_them():
    arms, workers, draws = 40, 16, 4000
    holders = generator().integers(workers, size=(draws, arms))
    distinct = np.mean([len(np.unique(row)) for row in holders])
    question = Question("pool", "features", 10, arms, 0, 0, 0.0)
    setting = Setting(1e6, workers, 10, 32, "kept")
    assert setting.messages(question) == pytest.approx(distinct, rel=0.01)
    assert setting.trips(question) == setting.messages(question)
    assert setting._replace(at_once=True).trips(question) == 1.0
    alone = setting._replace(num_workers=1)
    assert alone.messages(question) == 1.0
    everyone, change = (question._replace(arms=number) for number in (0, -1))
    assert (setting.messages(everyone), setting.trips(everyone)) == (workers, 1)
    assert (setting.messages(change), setting.trips(change)) == (0, 0)


def test_seconds_add_up_as_on_paper():
    workers, num_arms = 4, 1e6
    assumed = ASSUMED | {"hours_between_failures": math.inf}
    setting = Setting(num_arms, workers, 10, 32, "kept", at_once=True)
    found = simulate(setting, QUESTIONS, COSTS, CONSTANTS, assumed, repeats=3)
    share, link = num_arms / workers, assumed["link_bytes_per_second"]
    few = workers * (1 - (1 - 1 / workers) ** 5)
    once = CONSTANTS["trip"] + assumed["network_trip"]
    expected = {
        "passes": share * (1e-8 + 1e-9 * 10**2 + 2e-8),
        "stragglers": 0.0,
        "failures": 0.0,
        "calls": 2 * once + (workers + few) * CONSTANTS["call_worker"] + 3e-5 / few,
        "top-k": (16 * workers + 80) * (1 / link + CONSTANTS["byte"]),
        "broadcast": workers * (1000 + 100 + 40) / link,
        "coordinator": 0.01 + 1e-7 * 10**2,
    }
    assert list(found) == list(expected)
    for name, seconds in expected.items():
        assert list(found[name]) == pytest.approx([seconds] * 3)


def test_stragglers_are_the_slowest_of_all_workers():
    constants = CONSTANTS | {"sigma": 0.5}
    workers = 64
    setting = Setting(64e6, workers, 10, 32, "kept", at_once=True)
    runs = simulate(setting, QUESTIONS, COSTS, constants, ASSUMED, repeats=4000)
    found = runs.mean()
    factors = np.exp(0.5 * generator().standard_normal((4000, workers)))
    slowest = found["passes"] * factors.max(axis=1).mean()
    assert found["passes"] + found["stragglers"] == pytest.approx(slowest, rel=0.03)


def test_a_lost_worker_costs_its_share_anew():
    assumed = ASSUMED | {"hours_between_failures": 1e-12}
    setting = Setting(4e6, 4, 10, 32, "kept")
    found = simulate(setting, QUESTIONS, COSTS, CONSTANTS, assumed, repeats=3)
    fill = COSTS["kept", "rebuild"].at(10)
    seconds = assumed["restart"] + 1e6 * (1e-6 + fill)
    assert list(found["failures"]) == pytest.approx([seconds] * 3)


def test_constants_are_read_as_they_were_written(tmp_path):
    record = Record(tmp_path)
    profiles = {"kept": QUESTIONS}
    tables = scale_simulation.tables_of(COSTS, CONSTANTS, profiles)
    for name, table in tables.items():
        record.write_table(table, name)
    assert scale_simulation.read(tmp_path) == (COSTS, CONSTANTS, profiles)


def test_a_short_run_writes_tables_and_a_picture(tmp_path, capsys):
    args = options(scale, "--smoke")
    args.output = tmp_path
    scale.run(args)
    checked = pd.read_csv(tmp_path / "check.csv")
    assert set(checked["part"]) == set(scale_simulation.PARTS)
    assert (checked[["measured", "predicted", "clock"]] > 0).all(axis=None)
    found = pd.read_csv(tmp_path / "requirements.csv")
    assert (found["ask"] <= found["ask_today"]).all()
    assert (tmp_path / "scale.png").stat().st_size > 0
    # Constants of an earlier run need not be measured again.
    args = options(scale, "--smoke", "--constants", str(tmp_path))
    args.output, args.parts = tmp_path / "again", ["simulation"]
    scale.run(args)
    again = pd.read_csv(tmp_path / "again" / "requirements.csv")
    pd.testing.assert_frame_equal(found, again)
    assert "twins" in capsys.readouterr().out


def test_rays_round_trips_are_those_that_are_predicted():
    args = (400, "kept", "ray", 1, 12, *measured())
    rows = pd.DataFrame(scale.in_own_process(scale.check, *args).value)
    assert (rows["counted"] <= rows["round_trips"]).all()
    assert (rows["counted"] > 0.5 * rows["round_trips"]).all()


def measured():
    costs = scale.measured_costs(300, {"kept": [8, 12, 16]})
    return costs, CONSTANTS


def test_a_bandit_picks_the_same_on_ray_and_its_round_trips_are_counted():
    size = (300, 1, 2)
    local, on_ray = (
        scale.in_own_process(scale.bandit, *size, place).value
        for place in (False, True)
    )
    assert [row["picks"] for row in local] == [row["picks"] for row in on_ray]
    assert [row["waits"] for row in local] == [0, 0]
    assert on_ray[1]["waits"] > 0


def test_the_coordinators_memory_is_read_at_three_times(tmp_path):
    write_library(tmp_path, 2000)
    found = scale.in_own_process(scale.memory, tmp_path, 2000).value
    kinds = [found[f"{kind}_mib"] for kind in ("imported", "constructed", "asked")]
    assert 0 < kinds[0] <= kinds[1] <= kinds[2]
