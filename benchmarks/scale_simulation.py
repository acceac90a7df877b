"""Asks over more arms than these machines hold, by a model with measured constants.

One worker a core, which has an equal share of the arms. A question to all workers
takes as long as the slowest: its share's seconds, times a lognormal factor, and if a
worker is lost meanwhile, until another was started, read its share, and computed all
anew. The coordinator sends one message after the other, and everything passes its one
network link. A question about a few arms goes to their shards one after the other, as
the code does today, or to all of them at once.

What is assumed and not measured is in ``ASSUMED``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import ndtri

from benchmarks.record import print_table, Record
from botorch_bkb.plotting import blank_figure, tidy_axes
from botorch_bkb.posteriors.ray_shards import MAX_INLINE_BYTES


ASSUMED = {
    "cores_per_machine": 16,
    "bytes_per_core": 4e9,
    "memory_used": 0.75,
    "dollars_per_core_hour": 0.05,
    "link_bytes_per_second": 1.25e9,
    "network_trip": 2e-4,
    "hours_between_failures": 30 * 24.0,
    "restart": 1.6,
}
# Where the seconds go.
WAITS = (
    "passes",
    "stragglers",
    "failures",
    "calls",
    "top-k",
    "broadcast",
    "coordinator",
)
PARTS = ("from nothing", "update", "pool", "sweep")
NUMBER = 4  # the bytes of a feature
VECTORS = 5  # numbers that a shard keeps of each arm, beside features


class Question(NamedTuple):
    """A question to shards.

    Attributes:
        part: The part of the ask.
        name: What is asked.
        num_inducing: m.
        arms: About how many arms; 0 for all, -1 for a change, which travels with the
            next question.
        sent: Bytes.
        answered: Bytes, of one shard where it is about all arms.
        seconds: Of the processor.
    """

    part: str
    name: str
    num_inducing: int
    arms: int
    sent: int
    answered: int
    seconds: float


class Cost(NamedTuple):
    """Seconds by the number of inducing points: of an arm, of a call, of a part."""

    constant: float
    low: float
    high: float
    powers: tuple[int, int]

    def at(self, m: int) -> float:
        """Return the seconds."""
        low, high = self.powers
        return self.constant + self.low * m**low + self.high * m**high


# By whether features are kept, and by the name of a question, or of a part of an ask
# for the coordinator's own work.
Costs = dict[tuple[str, str], Cost]


class Setting(NamedTuple):
    """What is simulated.

    Attributes:
        num_arms: A.
        num_workers: W.
        num_inducing: m.
        dim: d.
        mode: Whether features are "kept", or computed "anew".
        at_once: Whether a question about a few arms goes to their shards at once.
    """

    num_arms: float
    num_workers: int
    num_inducing: int
    dim: int
    mode: str
    at_once: bool = False

    @property
    def share(self) -> float:
        """The arms of a worker."""
        return self.num_arms / self.num_workers

    def messages(self, question: Question) -> float:
        """Return to how many workers a question goes."""
        if question.arms < 0:
            return 0.0
        if question.arms == 0:
            return self.num_workers
        return (
            self.num_workers
            * -math.expm1(question.arms * math.log1p(-1 / self.num_workers))
            if self.num_workers > 1
            else 1.0
        )

    def trips(self, question: Question) -> float:
        """Return how many round trips it takes, one after the other."""
        if question.arms > 0 and not self.at_once:
            return self.messages(question)
        return float(question.arms >= 0)


def per_arm_seconds(costs: Costs, mode: str, questions: list[Question]) -> float:
    """Return a shard's seconds for each of its arms."""
    return sum(costs[mode, q.name].at(q.num_inducing) for q in questions if q.arms <= 0)


def fixed_seconds(
    costs: Costs, mode: str, part: str, questions: list[Question]
) -> float:
    """Return the seconds of the coordinator, and of answers about a few arms."""
    few = sum(costs[mode, q.name].at(q.num_inducing) for q in questions if q.arms > 0)
    return few + costs[mode, part].at(questions[0].num_inducing)


def simulate(
    setting: Setting,
    questions: list[Question],
    costs: Costs,
    constants: dict[str, float],
    assumed: dict[str, float],
    repeats: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the seconds of one part of an ask, and where they go: a row per run."""
    generator = np.random.default_rng(seed)
    mode, W = setting.mode, setting.num_workers
    link = assumed["link_bytes_per_second"]
    machines = math.ceil(W / assumed["cores_per_machine"])
    again = recovery(setting, costs, constants, assumed)
    found = {name: np.zeros(repeats) for name in WAITS}
    waiting = 0.0  # changes are computed when the next question comes
    for question in questions:
        cost = costs[mode, question.name].at(question.num_inducing)
        if question.arms <= 0:
            waiting += cost * setting.share
        copies = machines if question.sent > MAX_INLINE_BYTES else W
        found["broadcast"] += question.sent * copies / link
        if question.arms < 0:
            continue
        messages, trips = setting.messages(question), setting.trips(question)
        found["calls"] += (
            trips * (constants["trip"] + assumed["network_trip"])
            + messages * constants["call_worker"]
        )
        size = question.answered
        if question.arms > 0:
            found["calls"] += cost * trips / messages
        else:
            size *= W
            # The largest of W standard normal numbers.
            worst = ndtri(generator.random(repeats) ** (1 / W))
            slowest = waiting * np.exp(constants["sigma"] * worst)
            rate = W * slowest / (3600 * assumed["hours_between_failures"])
            is_lost = generator.random(repeats) < -np.expm1(-rate)
            found["passes"] += waiting
            found["stragglers"] += slowest - waiting
            found["failures"] += is_lost * again
            waiting = 0.0
        found["top-k"] += size * (1 / link + constants["byte"])
    found["coordinator"] += costs[mode, questions[0].part].at(questions[0].num_inducing)
    return pd.DataFrame(found)


def recovery(
    setting: Setting,
    costs: Costs,
    constants: dict[str, float],
    assumed: dict[str, float],
) -> float:
    """Return the seconds until another worker is where a lost one was."""
    m, share = setting.num_inducing, setting.share
    fill = costs[setting.mode, "rebuild"].at(m)
    if (setting.mode, "add_rows") in costs:
        fill += costs[setting.mode, "add_rows"].at(m)
    return assumed["restart"] + share * (constants["read"] + fill)


def bytes_per_arm(mode: str, m: int, dim: int) -> int:
    """Return what a worker holds of an arm, features in memory included."""
    return NUMBER * (dim + VECTORS + (m + max(32, m // 8) if mode == "kept" else 0))


def least_workers(
    num_arms: float, mode: str, m: int, dim: int, assumed: dict[str, float]
) -> int:
    """Return how many workers hold the arms."""
    held = assumed["bytes_per_core"] * assumed["memory_used"]
    return max(1, math.ceil(num_arms * bytes_per_arm(mode, m, dim) / held))


def curves(
    costs: Costs,
    constants: dict[str, float],
    profiles: dict[str, list[Question]],
    dim: int,
    most_workers: int,
    repeats: int,
) -> pd.DataFrame:
    """Return the seconds of parts of asks by arms and workers."""
    rows = []
    for mode, questions in profiles.items():
        m = questions[0].num_inducing
        picks = sum(q.part == "sweep" and q.name == "pull" for q in questions)
        for num_arms in (1e8, 1e9, 1e10):
            for num_workers in _powers_of_two(most_workers):
                for at_once in (False, True):
                    setting = Setting(num_arms, num_workers, m, dim, mode, at_once)
                    is_held = num_workers >= least_workers(
                        num_arms, mode, m, dim, ASSUMED
                    )
                    for part in PARTS:
                        some = [q for q in questions if q.part == part]
                        runs = simulate(
                            setting, some, costs, constants, ASSUMED, repeats
                        )
                        seconds = runs.mean()
                        if part == "from nothing":
                            seconds["reading"] = setting.share * constants["read"]
                        rows.append(
                            {
                                "arms": num_arms,
                                "workers": num_workers,
                                "features": mode,
                                "at_once": at_once,
                                "fits_memory": is_held,
                                "part": part,
                                "picks": picks,
                                "seconds": seconds.sum(),
                                **seconds,
                            }
                        )
    return pd.DataFrame(rows).fillna(0.0)


def _powers_of_two(most: int) -> list[int]:
    return [2**power for power in range(2, most.bit_length())]


def requirements(table: pd.DataFrame, constants: dict[str, float]) -> pd.DataFrame:
    """Return what arms take on the least workers, and where asks are the fastest.

    Columns: seconds from nothing; of an ask whose batch comes from a pool, when
    questions go out at once and by today's code; of a pass over all arms for one pick;
    of finding equal arms, which the coordinator does alone before; and the price of a
    start and 100 asks, and where these choose 100 arms each by passes.
    """
    price = ASSUMED["dollars_per_core_hour"] / 3600
    keys = ["arms", "features", "workers"]
    held = table[table.fits_memory]
    seconds = held.pivot_table(
        index=[*keys, "picks", "at_once"], columns="part", values="seconds"
    )
    seconds = seconds.reset_index()
    seconds["ask"] = seconds["update"] + seconds["pool"]
    seconds["a_pass"] = seconds["sweep"] / seconds["picks"]
    today = seconds[~seconds.at_once].set_index(keys).ask.rename("ask_today")
    found = seconds[seconds.at_once].join(today, on=keys)
    groups = found.groupby(["arms", "features"])
    least, fastest = groups.workers.idxmin(), groups.ask.idxmin()
    found = found.loc[sorted({*least, *fastest})]
    cores = price * found.workers
    passes = found["update"] + 100 * found.a_pass
    return found.assign(
        machines=np.ceil(found.workers / ASSUMED["cores_per_machine"]),
        twins=found.arms * constants["twins"],
        dollars=cores * (found["from nothing"] + 100 * found.ask),
        dollars_passes=cores * (found["from nothing"] + 100 * passes),
    ).drop(columns=["at_once", "picks", "pool", "sweep", "update"])


def draw(table: pd.DataFrame) -> Figure:
    """Draw the seconds of an ask by workers, and where they go for 10^9 arms."""
    figure = blank_figure(10, 4)
    left, right = figure.subplots(1, 2)
    kept = table[table.features == "kept"]
    asks = kept[kept.part.isin(["update", "pool"])]
    for place, num_arms in enumerate((1e8, 1e9, 1e10)):
        for at_once, style in ((True, "-"), (False, ":")):
            some = asks[(asks.arms == num_arms) & (asks.at_once == at_once)]
            held = some[some.fits_memory].groupby("workers").seconds.sum()
            label = f"$10^{{{math.log10(num_arms):.0f}}}$ arms" if at_once else None
            left.plot(held.index, held, style, color=f"C{place}", label=label)
    left.set(title="an ask (dotted: by today's code)")
    some = asks[(asks.arms == 1e9) & asks.at_once & asks.fits_memory]
    parts = some.groupby("workers")[list(WAITS)].sum()
    for name in parts:
        right.plot(parts.index, parts[name].replace(0.0, math.nan), label=name)
    right.set_ylim(bottom=1e-3)
    right.set(title="where the seconds go, $10^9$ arms")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="workers, one core each")
        axes.set_ylabel("seconds")
        tidy_axes(axes)
    left.legend(frameon=False, fontsize="small")
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def tables_of(
    costs: Costs, constants: dict[str, float], profiles: dict[str, list[Question]]
) -> dict[str, pd.DataFrame]:
    """Return constants as tables, which :func:`read` reads."""
    rows = [
        {
            "features": mode,
            "what": name,
            "constant": cost.constant,
            "low": cost.low,
            "high": cost.high,
            "low_power": cost.powers[0],
            "high_power": cost.powers[1],
        }
        for (mode, name), cost in costs.items()
    ]
    asked = [
        {"features": mode, **question._asdict()}
        for mode, questions in profiles.items()
        for question in questions
    ]
    return {
        "costs": pd.DataFrame(rows),
        "constants": pd.DataFrame(
            {"name": list(constants), "value": list(constants.values())}
        ),
        "questions": pd.DataFrame(asked),
    }


def read(
    folder: Path,
) -> tuple[Costs, dict[str, float], dict[str, list[Question]]]:
    """Return the constants of an earlier run."""
    tables = {
        name: pd.read_csv(folder / f"{name}.csv")
        for name in ("costs", "constants", "questions")
    }
    costs: Costs = {}
    columns = ["features", "what", *Cost._fields[:3], "low_power", "high_power"]
    rows = tables["costs"][columns].to_numpy().tolist()
    for mode, name, constant, first, second, low, high in rows:
        costs[mode, name] = Cost(constant, first, second, (low, high))
    constants = dict(
        zip(tables["constants"].name, tables["constants"].value, strict=True)
    )
    profiles: dict[str, list[Question]] = {}
    asked = tables["questions"][["features", *Question._fields]]
    for mode, *values in asked.itertuples(index=False):
        profiles.setdefault(mode, []).append(Question(*values))
    return costs, constants, profiles


def run(
    costs: Costs,
    constants: dict[str, float],
    profiles: dict[str, list[Question]],
    dim: int,
    record: Record,
    smoke: bool,
) -> None:
    """Simulate; write curves, one picture and one table of what arms take."""
    most, repeats = (2**8, 2) if smoke else (2**17, 1000)
    table = curves(costs, constants, profiles, dim, most, repeats)
    record.write_table(table, "simulation")
    found = requirements(table, constants)
    record.write_table(found, "requirements")
    print_table(found)
    record.write_figure(draw(table), "scale")
