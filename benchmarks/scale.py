"""What an ask costs by the arm, the message and the inducing point; then far more arms.

Arms drawn uniformly from the unit cube in 32 dimensions, float32, RBF kernel of
lengthscale 1, lambda = 0.1; all pulled arms are inducing. Every worker has one thread,
so this has one as well, and what is counted is seconds of the processor, which others
on the machine do not lengthen much.

constants: runs over few arms, in this process. The seconds of every question to a shard
are fitted by ``(c + c' m + c'' m^2)`` per arm, those of the coordinator by ``c + c' m^2
+ c'' m^3``; of features that are kept, and of features that are computed anew for every
pass. Beside them a row of a Parquet file, and Ray's round trip.

check: an ask in four parts, predicted by these and by the number of questions that it
asked, beside what it took: the first update, from nothing; an update by a batch of
results; a batch from a pool of promising arms; and one that passes over all arms for
every pick, as where more than 1,024 arms compete. In this process the seconds are the
processor's. With Ray they are the coordinator's and the slowest worker's of the
processor together, and those of the clock stand beside them.

bandit: BBKB in whole asks of 40 arms, by Ray's workers and by this process with as many
threads: seconds of the clock of each batch, and how often the coordinator waited for
workers. In 16 dimensions, double precision. Fails if picks differ.

memory: BBKB over arms of Parquet files on two of Ray's workers, told 200 results and
asked for 10 arms: the most memory that the coordinator, a process of its own, held.

simulation: see ``scale_simulation``.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from scipy.optimize import nnls
from torch import Tensor
from typing_extensions import override

from benchmarks import scale_simulation
from benchmarks.measure import in_own_process, peak_memory
from benchmarks.places import DIM, read_once, write_library
from benchmarks.record import caption, print_table, Record
from benchmarks.scale_simulation import (
    Cost,
    Costs,
    fixed_seconds,
    per_arm_seconds,
    Question,
    Setting,
)
from botorch_bkb import BBKB
from botorch_bkb.arms import ArrayArms, Capacity, ParquetArms, StoredArms
from botorch_bkb.arms.workers import Workers
from botorch_bkb.models.utils.replicates import find_twins
from botorch_bkb.optim import ArmPosterior, FixedSize, optimize_batch_ucb
from botorch_bkb.posteriors.arm_shard import ArmShard
from botorch_bkb.posteriors.ray_shards import RayShards
from botorch_bkb.posteriors.shards import (
    BLOCK_SIZE,
    LocalShards,
    PerArm,
    plan_shards,
    Shards,
)
from botorch_bkb.posteriors.upper_bounds import UpperBounds


NOISE_VARIANCE = 0.1
WIDTH = 1.0
UPDATES = 2
PARTS = ("check", "bandit", "memory", "simulation")
PLACES = ("local", "ray") if importlib.util.find_spec("ray") else ("local",)
# Of Ray's messages where it is not installed, roughly; see docs/scale.rst.
NO_RAY = {
    "trip": 1e-3,
    "trip_worker": 3e-4,
    "call": 3e-4,
    "call_worker": 3e-4,
    "byte": 2e-9,
}
# Whether features are kept, and the arms of a batch: there is room for 32 new features,
# and a pass is slow where these are computed anew.
MODES = {"kept": 16, "anew": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--num-arms", type=int, nargs="+", default=[100_000, 1_000_000], help="of check"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--places", nargs="+", choices=PLACES, default=PLACES, help="of check"
    )
    parser.add_argument("--bandit-arms", type=int, default=1_000_000, help="of bandit")
    parser.add_argument("--bandit-workers", type=int, default=2, help="of bandit")
    parser.add_argument("--bandit-asks", type=int, default=6, help="of bandit")
    parser.add_argument(
        "--memory-arms", type=int, nargs="+", default=[100_000, 10_000_000]
    )
    parser.add_argument("--inducing", type=int, default=200, help="at the start")
    parser.add_argument(
        "--sigma", type=float, help="of simulation; what is measured if omitted"
    )
    parser.add_argument(
        "--constants", type=Path, help="folder of an earlier run, whose constants stand"
    )


class Log:
    """Questions, by the part of an ask in which they were asked.

    Attributes:
        questions: What was asked.
        part: The part of an ask, for those that follow.
        num_inducing: The inducing points, for those that follow.
    """

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.part = ""
        self.num_inducing = 0

    def call(self, name: str, arms: int, sent: Any, function: Callable[[], Any]) -> Any:
        """Return what a function returns, and note it as a ``Question``."""
        busy = time.process_time()
        answer = function()
        shards = len(answer) if isinstance(answer, list) else 1
        self.questions.append(
            Question(
                self.part,
                name,
                self.num_inducing,
                arms,
                num_bytes(sent),
                num_bytes(answer) // shards,
                time.process_time() - busy,
            )
        )
        return answer


class LoggedShards(Shards):
    """Shards whose questions are written down.

    Args:
        shards: The shards.
        log: Where it is written.
    """

    def __init__(self, shards: Shards, log: Log) -> None:
        self.shards = shards
        self.log = log
        self.limits = shards.limits

    @override
    def change(self, name: str, *args: Any) -> None:
        self.log.call(name, -1, args, lambda: self.shards.change(name, *args))

    @override
    def ask(self, name: str, *args: Any) -> list[Any]:
        found: list[Any] = self.log.call(
            name, 0, args, lambda: self.shards.ask(name, *args)
        )
        return found

    @override
    def ask_one(self, shard: int, name: str, *args: Any) -> Any:
        return self.log.call(
            name, 1, args, lambda: self.shards.ask_one(shard, name, *args)
        )

    @override
    def ask_of(self, name: str, indices: Tensor, *args: Any) -> Tensor:
        sent = (indices, *args)
        rows: Tensor = self.log.call(
            name, max(len(indices), 1), sent, lambda: self.shards.ask_of(name, *sent)
        )
        return rows

    @override
    def fork(self, kind: Callable[..., Any], *args: Any) -> Shards:
        return LoggedShards(self.shards.fork(kind, *args), self.log)


def num_bytes(value: Any) -> int:
    """Return the size of a message: of its tensors, and eight bytes a number."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, PerArm):
        return num_bytes(value.values)
    if isinstance(value, (tuple, list)):
        return sum(num_bytes(part) for part in value)
    return 8 if isinstance(value, (int, float)) else 0


class Part(NamedTuple):
    """A part of an ask, once.

    Attributes:
        part: Which.
        num_inducing: Its inducing points.
        questions: What it asked.
        coordinator: Seconds of the processor beside the questions'.
        seconds: Those of the clock.
        workers: Seconds of each worker's processor; empty in this process.
        messages: How often workers were waited for; 0 in this process.
    """

    part: str
    num_inducing: int
    questions: list[Question]
    coordinator: float
    seconds: float
    workers: list[float]
    messages: int

    @property
    def busy(self) -> float:
        """Seconds of the processor, one worker after the coordinator."""
        here = sum(question.seconds for question in self.questions)
        return self.coordinator + here + max(self.workers, default=0.0)


class Asks:
    """Asks of a posterior over arms.

    Args:
        num_arms: A.
        num_inducing: At the start.
        mode: A name of ``MODES``.
    """

    def __init__(self, num_arms: int, num_inducing: int, mode: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.arms = torch.rand(num_arms, DIM, generator=generator)
        self.order = torch.randperm(num_arms, generator=generator)
        self.kernel = RBFKernel().requires_grad_(False)
        self.kernel.lengthscale = 1.0
        self.num_inducing = num_inducing
        self.batch_size = MODES[mode]
        most = num_inducing + UPDATES * self.batch_size
        self.max_feature_bytes = 12 * num_arms * most if mode == "kept" else 0
        self.log = Log()
        self.waits = Waits()
        self.shards: Shards

    def local(self, num_shards: int) -> ArmPosterior:
        """Return a posterior in this process."""
        posterior = self._posterior(self.arms)
        limits = plan_shards(len(self.arms), num_shards, BLOCK_SIZE)
        rows = posterior._max_rows
        parts = [
            ArmShard(self.arms, start, stop, self.kernel, rows, BLOCK_SIZE)
            for start, stop in pairwise(limits)
        ]
        return self._logged(posterior, LocalShards(parts, limits))

    def on_ray(self, num_shards: int) -> ArmPosterior:
        """Return a posterior whose shards Ray's workers hold."""
        arms = ArrayArms(self.arms.numpy()).on_ray(num_shards)
        posterior = self._posterior(arms)
        self.waits = counted(arms)
        return self._logged(posterior, posterior.shards)

    def _posterior(self, arms: Tensor) -> ArmPosterior:
        return ArmPosterior(arms, self.kernel, NOISE_VARIANCE, self.max_feature_bytes)

    def _logged(self, posterior: ArmPosterior, shards: Shards) -> ArmPosterior:
        self.shards = shards
        posterior._shards = LoggedShards(shards, self.log)
        return posterior

    def run(self, posterior: ArmPosterior) -> list[Part]:
        """Update and choose batches; return what each part took."""
        found = []
        for number in range(1 + UPDATES):
            self.log.num_inducing = self.num_inducing + number * self.batch_size
            told = self.order[: self.log.num_inducing]
            rewards = (3 * self.arms[told, :4]).sin().sum(dim=-1)
            ones = torch.ones_like(rewards)
            name = "update" if number else "from nothing"

            update = partial(posterior.update, told, told, ones, rewards)
            found.append(self._timed(name, update))
            found.append(self._timed("pool", partial(self._from_pool, posterior)))
            found.append(self._timed("sweep", partial(self._by_passes, posterior)))
        return found

    def _from_pool(self, posterior: ArmPosterior) -> None:
        """Choose a batch from the most promising arms."""
        optimize_batch_ucb(
            posterior,
            WIDTH,
            FixedSize(self.batch_size),
            grow=False,
            pending_indices=self.order[:0],
            pending_scores=torch.empty(0),
        )

    def _by_passes(self, posterior: ArmPosterior) -> None:
        """Choose as many arms with a pass over all of them for each.

        As ``optimize_batch_ucb`` does where a pool would grow too large.
        """
        bounds = UpperBounds(
            posterior,
            WIDTH / NOISE_VARIANCE**0.5,
            grow=False,
            pending_indices=self.order[:0],
            capacity=Capacity(posterior.num_arms),
        )
        bounds._track(None, {}, append=False)
        for _ in range(self.batch_size):
            index = bounds.best()
            if index is not None:
                bounds.num_repeats(index)
                bounds.pull(index, 1)

    def _timed(self, part: str, function: Callable[[], None]) -> Part:
        log = self.log
        log.part, log.questions = part, []
        workers, messages = worker_seconds(self.shards), self.waits.number
        start, busy = time.perf_counter(), time.process_time()
        function()
        busy, seconds = time.process_time() - busy, time.perf_counter() - start
        now = worker_seconds(self.shards)
        there = [after - before for before, after in zip(workers, now, strict=True)]
        here = sum(question.seconds for question in log.questions)
        messages = self.waits.number - messages
        return Part(
            part,
            log.num_inducing,
            log.questions,
            busy - here,
            seconds,
            there,
            messages,
        )


def worker_seconds(shards: Shards) -> list[float]:
    """Return the seconds of the processor of each of Ray's workers so far."""
    if not isinstance(shards, RayShards):
        return []
    import ray

    calls = [
        actor.__ray_call__.remote(lambda _: time.process_time())
        for actor in shards.pool.actors
    ]
    found: list[float] = ray.get(calls)
    return found


class Waits:
    """How often workers were waited for, and the messages that they got."""

    def __init__(self) -> None:
        self.number = 0
        self.messages = 0


def counted(arms: ArrayArms) -> Waits:
    """Count from now on how often the workers of some arms are waited for."""
    waits, pool = Waits(), workers_of(arms).pool
    answers = pool.answers

    def counting(messages: dict[int, Any]) -> dict[int, Any]:
        waits.number += 1
        waits.messages += len(messages)
        found: dict[int, Any] = answers(messages)
        return found

    pool.answers = counting
    return waits


def workers_of(arms: Tensor) -> Workers:
    """Return Ray's workers of some arms."""
    if not isinstance(arms, StoredArms) or arms.workers is None:
        raise RuntimeError("Expected arms on Ray.")
    return arms.workers


def fitted(sizes: Sequence[int], costs: Sequence[float], powers: Sequence[int]) -> Any:
    """Return non-negative coefficients of powers, least squares of relative errors.

    Args:
        sizes: What grows.
        costs: Of each; means are taken of the same size.
        powers: Of the size.
    """
    means = pd.Series(costs).groupby(pd.Series(sizes)).mean()
    design = means.index.to_numpy("float64")[:, None] ** np.array(powers)
    weights = 1 / np.maximum(means.to_numpy(), 1e-9)
    design = design * weights[:, None]
    scale = design.max(axis=0)
    found, _ = nnls(design / scale, means.to_numpy() * weights)
    return (found / scale).tolist()


def measured_costs(num_arms: int, sizes: dict[str, list[int]]) -> Costs:
    """Return the costs of questions and of the coordinator, from runs in this process.

    Args:
        num_arms: A.
        sizes: By the mode, numbers of inducing points.
    """
    costs: Costs = {}
    for mode, inducing in sizes.items():
        warm = Asks(num_arms // 4, inducing[0], mode)
        warm.run(warm.local(1))
        parts: list[Part] = []
        for m in inducing:
            asks = Asks(num_arms, m, mode)
            parts += asks.run(asks.local(1))
        seconds: dict[str, list[tuple[int, float]]] = {}
        for part in parts:
            for question in part.questions:
                arms = num_arms if question.arms <= 0 else 1
                found = question.num_inducing, question.seconds / arms
                seconds.setdefault(question.name, []).append(found)
        for name, some in seconds.items():
            costs[mode, name] = _cost(some, (1, 2))
        for name in scale_simulation.PARTS:
            here = [(p.num_inducing, p.coordinator) for p in parts if p.part == name]
            costs[mode, name] = _cost(here, (2, 3))
    return costs


def _cost(seconds: list[tuple[int, float]], powers: tuple[int, int]) -> Cost:
    sizes, found = zip(*seconds, strict=True)
    constant, low, high = fitted(sizes, found, (0, *powers))
    return Cost(constant, low, high, powers)


def ray_costs(shards: Sequence[int], repeats: int) -> dict[str, float]:
    """Return seconds of a round trip: alone, a worker more, and a byte more."""
    rows = []
    for number in shards:
        arms = ArrayArms(torch.rand(64 * number, DIM).numpy()).on_ray(number)
        asked = RayShards.of(arms, workers_of(arms), RBFKernel(), 0, block_size=64)
        own = torch.zeros(100_000, dtype=torch.long)
        for size in (0, len(own)):
            for _ in range(repeats):
                start, busy = time.perf_counter(), time.process_time()
                if size:
                    asked.ask_one(0, "moments", own)
                else:
                    asked.ask("cached_bytes")
                rows.append(
                    (
                        number,
                        24 * size,
                        time.perf_counter() - start,
                        time.process_time() - busy,
                    )
                )
        workers_of(arms).close()
    table = pd.DataFrame(rows, columns=["workers", "bytes", "seconds", "busy"])
    short = table[table.bytes == 0]
    long = table[(table.bytes > 0) & (table.workers == shards[0])]
    found = short.groupby("workers").median()
    once, more = fitted(list(found.index), list(found.seconds), (0, 1))
    call, call_worker = fitted(list(found.index), list(found.busy), (0, 1))
    extra = long.seconds.median() - found.seconds[shards[0]]
    return {
        "trip": once,
        "trip_worker": more,
        "call": call,
        "call_worker": call_worker,
        "byte": max(float(extra) / long.bytes.max(), 0.0),
    }


def slowness(num_arms: int, m: int, repeats: int) -> float:
    """Return the deviation of the logarithm of one question's seconds, by the clock."""
    asks = Asks(num_arms, m, "kept")
    posterior = asks.local(1)
    asks.run(posterior)
    shard = asks.shards
    vector = torch.ones(posterior.L_v.shape[0])
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        shard.ask("dot", vector)
        seconds.append(time.perf_counter() - start)
    return float(np.log(seconds).std())


def machine_constants(
    num_arms: int, is_small: bool, is_on_ray: bool
) -> dict[str, float]:
    """Return what does not depend on the inducing points, see ``CONSTANTS``."""
    with tempfile.TemporaryDirectory() as name:
        write_library(Path(name), num_arms)
        _, reading = read_once(Path(name), 1)
    arms = torch.rand(num_arms, DIM)
    busy = time.process_time()
    find_twins(arms)
    twins = time.process_time() - busy
    found = {
        "read": reading / num_arms,
        "twins": twins / num_arms,
        "sigma": slowness(num_arms // 4, 32, 10 if is_small else 300),
    }
    if is_on_ray:
        shards = [1, 2] if is_small else [1, 2, 4]
        return found | in_own_process(ray_costs, shards, 5 if is_small else 300).value
    return found | NO_RAY


def check(
    num_arms: int,
    mode: str,
    place: str,
    num_shards: int,
    num_inducing: int,
    costs: Costs,
    constants: dict[str, float],
) -> list[dict[str, Any]]:
    """Return predicted and measured seconds of each part of an ask."""
    torch.set_num_threads(1)
    asks = Asks(num_arms, num_inducing, mode)
    is_ray = place == "ray"
    posterior = asks.on_ray(num_shards) if is_ray else asks.local(num_shards)
    limits = posterior.shards.limits
    largest = max(stop - start for start, stop in pairwise(limits))
    parts = asks.run(posterior)
    if is_ray:
        workers_of(posterior.arms).close()
    workers = len(limits) - 1
    setting = Setting(num_arms, workers, num_inducing, DIM, mode)
    cores = os.cpu_count() or 1
    rows = []
    for name in scale_simulation.PARTS:
        some = [part for part in parts if part.part == name]
        questions = [question for part in some for question in part.questions]
        per_arm = per_arm_seconds(costs, mode, questions) / len(some)
        row: dict[str, Any] = {
            "arms": num_arms,
            "features": mode,
            "place": place,
            "shards": workers,
            "part": name,
            "round_trips": sum(setting.trips(q) for q in questions) / len(some),
            "counted": statistics.mean(part.messages for part in some),
            "sent_kb": 1e-3 * sum(q.sent for q in questions) / len(some),
            "arms_seconds": per_arm * (largest if is_ray else num_arms),
            "fixed_seconds": statistics.mean(
                fixed_seconds(costs, mode, name, part.questions) for part in some
            ),
            "call_seconds": 0.0,
            "measured": statistics.mean(part.busy for part in some),
            "clock": statistics.mean(part.seconds for part in some),
            "load": os.getloadavg()[0],
        }
        row["predicted"] = row["arms_seconds"] + row["fixed_seconds"]
        row["predicted_clock"] = row["predicted"]
        if is_ray:
            messages = sum(setting.messages(q) for q in questions) / len(some)
            busy, waiting = (
                row["round_trips"] * constants[key]
                + messages * constants[f"{key}_worker"]
                for key in ("call", "trip")
            )
            rounds = -(-workers // cores)  # workers share cores
            row["call_seconds"] = busy
            row["predicted"] += busy
            row["predicted_clock"] += waiting + (rounds - 1) * row["arms_seconds"]
        row["ratio"] = row["measured"] / row["predicted"]
        rows.append(row)
    return rows


def bandit(
    num_arms: int, num_workers: int, num_asks: int, is_on_ray: bool
) -> list[dict[str, Any]]:
    """Return what each ask of a bandit took, and its picks."""
    torch.set_num_threads(1 if is_on_ray else num_workers)
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_arms, 16, generator=generator, dtype=torch.double)
    direction = torch.randn(16, generator=generator, dtype=torch.double)
    kernel = RBFKernel().double()
    kernel.lengthscale = 2.0
    start = time.perf_counter()
    arms = ArrayArms(X.numpy())
    if is_on_ray:
        arms = arms.on_ray(num_workers)
    player = BBKB(arms, kernel, 0.05, generator=torch.Generator().manual_seed(1))
    waits, before = Waits(), 0
    rows = []
    for number in range(num_asks):
        before = waits.number
        indices = player.ask(size=40)
        seconds = time.perf_counter() - start
        if is_on_ray and not number:
            waits = counted(arms)  # workers start with the first ask
        rows.append(
            {
                "arms": num_arms,
                "place": "ray" if is_on_ray else "local",
                "workers": num_workers,
                "ask": number,
                "inducing": len(player.inducing_indices),
                "seconds": seconds,
                "waits": waits.number - before,
                "load": os.getloadavg()[0],
                "picks": indices.tolist(),
            }
        )
        noise = torch.randn(40, generator=generator, dtype=torch.double)
        player.tell(indices, (2 * X[indices] @ direction).sin() + 0.2 * noise)
        start = time.perf_counter()
    if is_on_ray:
        workers_of(arms).close()
    return rows


def memory(folder: Path, num_arms: int) -> dict[str, float]:
    """Return the memory of a coordinator of two workers, in MiB."""
    torch.set_num_threads(1)
    before = peak_memory()
    arms = ParquetArms(folder / "*.parquet", quiet=True).on_ray(2, timeout=3600)
    kernel = RBFKernel()
    bandit = BBKB(arms, kernel, 0.1, generator=torch.Generator().manual_seed(0))
    constructed = peak_memory()
    told = torch.arange(200) * (num_arms // 200)
    bandit.tell(told, (3 * arms[told][:, :4]).sin().sum(dim=-1), external=True)
    bandit.ask(size=10)
    workers_of(arms).close()
    return {
        "arms": num_arms,
        "imported_mib": before,
        "constructed_mib": constructed,
        "asked_mib": peak_memory(),
    }


def run(args: argparse.Namespace) -> None:
    """Measure the constants, check them, and simulate; a table of each."""
    torch.set_num_threads(1)
    record = Record(args.output)
    print(caption(record.origin))
    num_arms, m, shards = args.num_arms, args.inducing, args.shards
    calibrated, sizes = 200_000, {"kept": [50, 100, 200, 400], "anew": [50, 100, 200]}
    places = args.places
    if args.smoke:
        num_arms, m, shards, places = [2000], 24, [1, 2], ["local"]
        calibrated, sizes = 1000, {"kept": [16, 24, 32], "anew": [16, 24, 32]}
    if args.constants is not None:
        costs, constants, profiles = scale_simulation.read(args.constants)
    else:
        costs = measured_costs(calibrated, sizes)
        constants = machine_constants(calibrated, args.smoke, "ray" in places)
        profiles = {mode: profile(calibrated, m, mode) for mode in sizes}
    tables = scale_simulation.tables_of(costs, constants, profiles)
    for name, table in tables.items():
        record.write_table(table, name)
    print_table(tables["costs"])
    print_table(tables["constants"])
    if "check" in args.parts:
        rows = []
        for task in itertools.product(num_arms, args.modes, places, shards):
            if args.smoke:
                rows += check(*task, m, costs, constants)
            else:
                rows += in_own_process(check, *task, m, costs, constants).value
            record.write_table(pd.DataFrame(rows), "check")
        print_table(pd.DataFrame(rows))
    if "bandit" in args.parts and "ray" in places:
        size = (args.bandit_arms, args.bandit_workers, args.bandit_asks)
        local, on_ray = (in_own_process(bandit, *size, k).value for k in (False, True))
        if [row["picks"] for row in local] != [row["picks"] for row in on_ray]:
            raise RuntimeError("Expected the same picks, but Ray's workers differ.")
        table = pd.DataFrame([*local, *on_ray]).drop(columns="picks")
        record.write_table(table, "bandit")
        print_table(table)
    if "memory" in args.parts and "ray" in places:
        rows = []
        for number in args.memory_arms:
            with tempfile.TemporaryDirectory() as name:
                write_library(Path(name), number)
                rows.append(in_own_process(memory, Path(name), number).value)
        record.write_table(pd.DataFrame(rows), "memory")
        print_table(pd.DataFrame(rows))
    if "simulation" in args.parts:
        if args.sigma is not None:
            constants = constants | {"sigma": args.sigma}
        scale_simulation.run(costs, constants, profiles, DIM, record, args.smoke)


def profile(num_arms: int, num_inducing: int, mode: str) -> list[Question]:
    """Return the questions of an ask: from nothing, an update, and both batches."""
    asks = Asks(num_arms, num_inducing, mode)
    parts = asks.run(asks.local(1))
    last = {part.part: part for part in parts}
    return [question for part in last.values() for question in part.questions]
