import itertools
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks import breakdown
from benchmarks.breakdown import METHODS, PARTS, REST, Timers
from tests.test_benchmarks import options


class Clock:
    """Stands still but where it is told how long something takes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


def ticks():
    """Return a clock that goes on by one second whenever somebody looks at it."""
    return itertools.count().__next__


# --- timers


def test_what_is_nested_is_not_counted_twice():
    clock = Clock()
    timers = Timers(clock)

    def inner():
        clock.wait(2)

    def middle():
        clock.wait(4)
        rows()
        clock.wait(8)

    def outer():
        clock.wait(1)
        rebuild()
        rows()
        clock.wait(16)

    rows = timers.timed("kernel rows", inner)
    rebuild = timers.timed("full rebuild", middle)
    timers.timed(REST, outer)()
    taken = {part: seconds for part, seconds in timers.seconds.items() if seconds}
    assert taken == {REST: 17, "full rebuild": 12, "kernel rows": 4}
    assert sum(taken.values()) == clock.now


def test_a_part_inside_itself_counts_once():
    clock = Clock()
    timers = Timers(clock)

    def factorial(n):
        clock.wait(1)
        return n * timed(n - 1) if n else 1

    timed = timers.timed("batch", factorial)
    assert timed(4) == 24
    assert timers.seconds["batch"] == clock.now == 5


def test_what_is_outside_of_every_part_counts_nowhere():
    clock = Clock()
    timers = Timers(clock)
    wait = timers.timed("draws", clock.wait)
    for _ in range(3):
        clock.wait(10)
        wait(seconds=1)
    assert sum(timers.seconds.values()) == timers.seconds["draws"] == 3


def test_a_part_that_fails_is_over():
    clock = Clock()
    timers = Timers(clock)

    def fail():
        clock.wait(1)
        raise ValueError("a bug")

    def retry():
        with pytest.raises(ValueError, match="a bug"):
            broken()
        clock.wait(2)

    broken = timers.timed("change of basis", fail)
    timers.timed("full rebuild", retry)()
    assert timers.seconds["change of basis"] == 1
    assert timers.seconds["full rebuild"] == 2


# --- what is timed


def test_every_name_is_a_function_of_one_part_and_is_put_back():
    targets = [target for functions in PARTS.values() for target in functions]
    assert len(set(targets)) == len(targets)
    before = [vars(owner)[name] for owner, name in targets]
    with Timers(Clock()).installed():
        inside = [vars(owner)[name] for owner, name in targets]
    assert all(new.__wrapped__ is old for new, old in zip(inside, before, strict=True))
    assert [vars(owner)[name] for owner, name in targets] == before


def test_a_name_that_is_gone_is_an_error_and_leaves_nothing_behind():
    owner = SimpleNamespace(here=len)
    parts = {"batch": [(owner, "here"), (owner, "renamed")]}
    with (
        pytest.raises(AttributeError, match="renamed"),
        Timers(Clock()).installed(parts),
    ):
        pass
    assert owner.here is len


@pytest.mark.parametrize("method", METHODS)
def test_parts_add_up_to_asks_and_tells(method):
    clock = ticks()
    problem = breakdown.new_problem(200, "cpu")
    rows = breakdown.play(method, problem, 40, clock).set_index("part")
    # Between asks and tells the clock goes on once, and nothing is counted.
    num_calls = 2 * rows["asks"].iloc[0]
    assert rows["seconds"].sum() == clock() - num_calls
    assert rows["share"].sum() == pytest.approx(1)
    assert (rows["pulls"] == 40).all()
    draws = method == "GPThompsonSampling"
    assert (rows.loc["draws", "seconds"] > 0) == draws
    resamples = not method.startswith("GPUCB")
    assert (rows.loc["resampling", "seconds"] > 0) == resamples
    some = ["draws", "resampling", "full rebuild", "change of basis"]
    assert (rows.drop(index=some)["seconds"] > 0).all()
    updates = rows.loc[["full rebuild", "change of basis"], "seconds"]
    assert updates.sum() > 0


# --- output


@pytest.fixture
def table():
    """Two sizes, two methods; one part in four of each run."""
    rows = []
    for num_arms, method in itertools.product((100, 20_000), ("BBKB", "BKB")):
        for place, part in enumerate([*PARTS, REST]):
            seconds = num_arms * (place % 2) * (1 if method == "BBKB" else 10)
            run = {"num_arms": num_arms, "method": method, "pulls": 60, "asks": 5}
            row = run | {"inducing": 3, "part": part, "seconds": float(seconds)}
            rows.append(row | {"share": place % 2 / 4})
    return pd.DataFrame(rows)


def test_a_summary_has_a_row_per_run_and_shares_in_percent(table):
    found = breakdown.summary(table)
    assert list(found["method"]) == ["BBKB", "BKB"] * 2
    assert list(found["seconds"]) == [400, 4000, 80_000, 800_000]
    assert list(found.columns[-8:]) == [*PARTS, REST]
    assert (found[[*PARTS, REST]].sum(axis=1) == 100).all()
    assert (found["change of basis"] == 25).all()


def test_a_bar_has_the_shares_one_after_the_other_and_its_seconds(table):
    figure = breakdown.draw(table)
    small, large = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "100 arms",
        "20,000 arms",
    ]
    (top,) = {bar.get_y() for bar in large.patches if bar.get_y() < 0}
    ends = [(bar.get_x(), bar.get_width()) for bar in large.patches]
    bars = [
        end for end, bar in zip(ends, large.patches, strict=True) if bar.get_y() == top
    ]
    assert bars == [(25 * (place // 2), 25 * (place % 2)) for place in range(8)]
    texts = {text.get_text().strip() for text in small.texts}
    assert {"400.00 s", "4,000.00 s", "25"} <= texts
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*PARTS, REST]
    assert len(set(breakdown.COLORS.values())) == len(PARTS) + 1


def test_a_short_run_writes_a_table_and_a_picture(tmp_path, capsys):
    args = options(breakdown, "--smoke")
    args.output = tmp_path
    breakdown.run(args)
    table = pd.read_csv(tmp_path / "breakdown.csv")
    names = {"method", "num_arms", "pulls", "part", "seconds", "share", "commit"}
    assert names <= {*table.columns}
    runs = table.groupby(["num_arms", "method"])
    assert len(runs) == 2 * len(METHODS)
    assert list(runs["share"].sum()) == pytest.approx([1] * len(runs))
    assert (table["seconds"] >= 0).all()
    assert (tmp_path / "breakdown.png").read_bytes().startswith(b"\x89PNG")
    assert "BKB, one by one" in capsys.readouterr().out
