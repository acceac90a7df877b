"""Long campaigns with faults: is a result lost, or an ask answered without all arms?

- `campaign`: BBKB, batches of 500, over 10,000 points of Hartmann-6, until `--pulls`
  rewards have been told. The bandit lives in another process, which saves after every
  change. One change in twenty is cut short: the process is killed, and a new one loads
  the file, which must hold the state before the change or the one after it.
  Of every batch 5 % of the pulls fail, 5 % are told up to ten batches later, 1 % are
  told twice, which must be refused, and 1 % are withdrawn and told again with another
  reward. In every tenth batch 20 arms are added and as many retired, and a second
  process loads the file and asks. Its picks must be those of the first, which must not
  save over them.
- `disk`: saves to a tmpfs of 256 KiB until it is full. Needs the right to mount one.
- `Parquet`: a library of `--num-arms` arms, 32 float32 each, one file of which is away
  for a while.
- `Ray`: two workers, one of which is killed within half a second of the start of each
  of `--kills` asks. Then the file of the arms is away while a worker starts. Needs Ray.

In the last two, an ask while arms cannot be read must fail, and all others must pick
what they pick without faults. Fails if anything is lost, doubled or different. Writes
`soak.csv`: what happened, how often.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from botorch.test_functions import Hartmann
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.measure import peak_memory
from benchmarks.record import Record
from benchmarks.scale import write_library
from botorch_bkb import BBKB
from botorch_bkb.arms import ArrayArms, ParquetArms, ShardDataError
from botorch_bkb.optim import FixedSize


SCENARIOS = ("campaign", "disk", "Parquet", "Ray")
FAILED, LATE, TWICE, WITHDRAWN, MOST_BATCHES_LATE = 0.05, 0.05, 0.01, 0.01, 10
KILLED, BATCHES_BETWEEN_EVENTS, NUM_NEW_ARMS = 0.05, 10, 20
BATCH_SIZE = 500
NUM_RAY_ARMS = 2**17  # two blocks
NUM_KNOWN = 200
NUM_ARMS, DIM, NOISE_STD = 10_000, 6, 0.1
TMPFS_BYTES = 2**18
Ask = Callable[[], Tensor]
COUNTED = (
    "batches",
    "kills",
    "kills after saving",
    "failed",
    "late",
    "told twice",
    "withdrawn",
    "added arms",
    "retired arms",
    "refused saves",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--pulls", type=int, default=100_000, help="of `campaign`")
    parser.add_argument("--num-arms", type=int, default=9_000_000, help="of `Parquet`")
    parser.add_argument("--kills", type=int, default=20, help="of `Ray`")


def require(is_met: bool, what: str) -> None:
    """Raise an error unless a condition is met."""
    if not is_met:
        raise RuntimeError(f"Expected {what}.")


def new_bandit(arms: Tensor, **options: Any) -> BBKB:
    """Return a bandit without pulls."""
    kernel = RBFKernel().to(arms)
    kernel.lengthscale = (arms.shape[-1] / DIM) ** 0.5
    generator = torch.Generator().manual_seed(0)
    return BBKB(arms, kernel, 0.1, resampling="coupled", generator=generator, **options)


def first_arms(num_arms: int) -> Tensor:
    """Return the arms of a campaign before any are added."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(num_arms, DIM, generator=generator, dtype=torch.double)


# A campaign in other processes


@dataclass(frozen=True)
class Ledger:
    """What a bandit has to know.

    Attributes:
        pending: The arms of pending pulls, by pull id.
        told: The arms and rewards of told ones, by pull id.
        next_id: The id of the next pull.
        num_arms: The number of arms.
        retired: The arms that are retired.
    """

    pending: dict[int, int]
    told: dict[int, tuple[int, float]]
    next_id: int
    num_arms: int
    retired: frozenset[int]

    @classmethod
    def of(cls, bandit: BBKB) -> Ledger:
        """Return what a bandit knows."""
        state = bandit.state_dict()["observations"]
        results = zip(state["told_indices"], state["told_rewards"], strict=True)
        retired = bandit.is_retired.nonzero().squeeze(-1).tolist()
        ids = state["told_ids"]
        require(len(set(ids)) == len(ids), "every pull once")
        told = dict(zip(ids, results, strict=True))
        pending = dict(bandit.pending)
        num_arms = len(bandit.arms)
        return cls(pending, told, state["next_id"], num_arms, frozenset(retired))

    def after(self, name: str, args: tuple[Any, ...], answer: Any) -> Ledger:
        """Return what a bandit has to know after a change, which gave an answer."""
        if name == "add_arms":
            return replace(self, num_arms=self.num_arms + len(args[0]))
        if name == "retire_arms":
            return replace(self, retired=self.retired | set(args[0]))
        pending, told, next_id = dict(self.pending), dict(self.told), self.next_id
        if name == "ask":
            require(self.retired.isdisjoint(answer), "no pull of a retired arm")
            pending |= dict(enumerate(answer, next_id))
            next_id += len(answer)
        elif name == "tell":
            told |= dict(zip(args[2], zip(*args[:2], strict=True), strict=True))
        elif name == "withdraw":
            pending |= dict(zip(args[1], args[0], strict=True))
            told = {key: pull for key, pull in told.items() if key not in set(args[1])}
        if name in ("tell", "fail"):
            for key in args[-1]:
                del pending[key]
        return replace(self, pending=pending, told=told, next_id=next_id)


class BanditProcess:
    """A bandit in another process, which saves after every change."""

    def __init__(self, path: Path, num_arms: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["botorch_bkb"])
        self.connection, other = context.Pipe()
        args = other, path, num_arms
        self.process = context.Process(target=_serve, args=args, daemon=True)
        self.process.start()
        other.close()

    def attempt(self, name: str, *args: Any) -> tuple[Any, Exception | None]:
        """Call a method and save; return what it returned, and the error of either."""
        self.connection.send((name, args))
        answer: tuple[Any, Exception | None] = self.connection.recv()
        return answer

    def call(self, name: str, *args: Any) -> Any:
        """Call a method and save; raise an error of either."""
        answer, error = self.attempt(name, *args)
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, path: Path, num_arms: int) -> None:
    torch.set_num_threads(1)
    bandit = new_bandit(first_arms(num_arms), batch_rule=FixedSize(BATCH_SIZE))
    if path.exists():
        bandit.load(path)
    while True:
        name, args = connection.recv()
        answer: Any = None
        try:
            if name == "ledger":
                answer = Ledger.of(bandit), peak_memory()
            else:
                answer = getattr(bandit, name)(*args)
                answer = answer.tolist() if isinstance(answer, Tensor) else answer
                bandit.save(path)
            connection.send((answer, None))
        except InputDataError as error:
            connection.send((answer, error))


class Campaign:
    """Whoever measures, with a ledger and a bandit that is killed now and then."""

    def __init__(self, path: Path, num_arms: int) -> None:
        self.path, self.num_arms = path, num_arms
        self.rng = np.random.default_rng(0)
        self.arms = first_arms(num_arms)
        self.ledger = Ledger({}, {}, 0, num_arms, frozenset())
        self.process = BanditProcess(path, num_arms)
        self.seconds: dict[str, float] = {}  # of the last change of each name
        self.late: dict[int, list[int]] = {}  # pull ids by the batch that they come in
        self.counts = dict.fromkeys(COUNTED, 0)

    def change(self, name: str, *args: Any) -> Any:
        """Change the bandit and the ledger, in spite of a kill."""
        before, is_done, answer = self.ledger, False, None
        if self.rng.random() < KILLED:
            self.process.connection.send((name, args))
            time.sleep(self.rng.uniform(0, self.seconds.get(name, 0.0)))
            self.process.kill()
            self.process = BanditProcess(self.path, self.num_arms)
            found, _ = self.process.call("ledger")
            new_ids = range(before.next_id, found.next_id)
            answer = [found.pending[key] for key in new_ids]
            is_done = found != before
            after = before.after(name, args, answer) if is_done else before
            require(found == after, "the state before or after a change")
            self.counts["kills"] += 1
            self.counts["kills after saving"] += is_done
        if not is_done:
            start = time.perf_counter()
            answer = self.process.call(name, *args)
            self.seconds[name] = time.perf_counter() - start
        self.ledger = before.after(name, args, answer)
        return answer

    def batch(self) -> float:
        """Ask, settle what is due, check the ledger; return the bandit's peak MiB."""
        if self.counts["batches"] % BATCHES_BETWEEN_EVENTS == 5:
            self._other_arms()
        first_id = self.ledger.next_id
        if self.counts["batches"] % BATCHES_BETWEEN_EVENTS == 9:
            self._take_over()
        else:
            self.change("ask")
        self.counts["batches"] += 1
        ids = np.arange(first_id, self.ledger.next_id)
        luck = self.rng.random(len(ids))
        is_late = (luck >= FAILED) & (luck < FAILED + LATE)
        for key in ids[is_late].tolist():
            number = self.counts["batches"] + int(self.rng.integers(MOST_BATCHES_LATE))
            self.late.setdefault(number + 1, []).append(key)
        failed = ids[luck < FAILED].tolist()
        if failed:
            self.change("fail", [self.ledger.pending[key] for key in failed], failed)
        due = ids[luck >= FAILED + LATE].tolist()
        due += self.late.pop(self.counts["batches"], [])
        if due:
            self.rng.shuffle(due)
            self._tell(due)
            self._tell_again(due)
        self.counts["failed"] += len(failed)
        self.counts["late"] += int(is_late.sum())
        found, mib = self.process.call("ledger")
        require(found == self.ledger, "what was told and asked")
        return float(mib)

    def _tell(self, ids: list[int]) -> None:
        arms = [self.ledger.pending[key] for key in ids]
        values = Hartmann(negate=True, dtype=torch.double)(self.arms[arms]).numpy()
        values = values + NOISE_STD * self.rng.standard_normal(len(ids))
        self.change("tell", arms, values.tolist(), ids)

    def _tell_again(self, ids: list[int]) -> None:
        """Tell some results twice, and withdraw others and tell them again."""
        twice = ids[: max(1, int(TWICE * len(ids)))]
        arms, rewards = zip(*(self.ledger.told[key] for key in twice), strict=True)
        _, error = self.process.attempt("tell", arms, rewards, twice)
        require(isinstance(error, InputDataError), "an error for results told twice")
        withdrawn = ids[-max(1, int(WITHDRAWN * len(ids))) :]
        taken_back = [self.ledger.told[key][0] for key in withdrawn]
        self.change("withdraw", taken_back, withdrawn)
        self._tell(withdrawn)
        self.counts["told twice"] += len(twice)
        self.counts["withdrawn"] += len(withdrawn)

    def _other_arms(self) -> None:
        """Add arms and retire others."""
        new = torch.from_numpy(self.rng.random((NUM_NEW_ARMS, DIM)))
        self.arms = torch.cat([self.arms, new])
        self.change("add_arms", new)
        retired = self.rng.integers(self.num_arms, size=NUM_NEW_ARMS).tolist()
        self.change("retire_arms", retired)
        self.counts["added arms"] += NUM_NEW_ARMS
        self.counts["retired arms"] = len(self.ledger.retired)

    def _take_over(self) -> None:
        """Ask in a second process; the first must pick the same, and may not save."""
        other = BanditProcess(self.path, self.num_arms)
        picks = other.call("ask")
        own, error = self.process.attempt("ask")
        require(own == picks, "the picks of the process that was saved")
        require(isinstance(error, InputDataError), "no save over another process's")
        self.process.kill()
        self.process = other
        self.ledger = self.ledger.after("ask", (), picks)
        self.counts["refused saves"] += 1


def run_campaign(folder: Path, num_arms: int, pulls: int) -> dict[str, float]:
    """Run the campaign; return what happened."""
    campaign = Campaign(folder / "state", num_arms)
    mib, start = 0.0, time.perf_counter()
    while len(campaign.ledger.told) < pulls:
        mib = max(mib, campaign.batch())
    campaign.process.kill()
    told, seconds = len(campaign.ledger.told), time.perf_counter() - start
    return {"told": told, **campaign.counts, "seconds": seconds, "peak MiB": mib}


# A full disk


@contextmanager
def small_tmpfs(folder: Path) -> Iterator[None]:
    """Mount a file system of a few KiB."""
    options = ["-t", "tmpfs", "-o", f"size={TMPFS_BYTES}"]
    subprocess.run(["mount", *options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def run_disk(folder: Path) -> dict[str, float]:
    """Save until the disk is full, and again when there is room."""
    bandit = new_bandit(first_arms(1000), batch_rule=FixedSize(50))
    with small_tmpfs(folder):
        path, filler = folder / "state", folder / "filler"
        filler.write_bytes(bytes(TMPFS_BYTES // 2))
        saved, is_full = Ledger.of(bandit), False
        while not is_full:
            picks = bandit.ask()
            bandit.tell(picks, torch.arange(len(picks)))
            try:
                bandit.save(path)
                saved = Ledger.of(bandit)
            except OSError:
                is_full = True
        require(_loaded(path) == saved, "the last state that was saved")
        require(len(list(folder.iterdir())) == 2, "no unfinished file")
        require(len(saved.told) < bandit.num_pulls, "the results in memory")
        filler.unlink()
        bandit.save(path)
        require(_loaded(path) == Ledger.of(bandit), "all results in the file")
    return {"told when full": len(saved.told), "told at the end": bandit.num_pulls}


def _loaded(path: Path) -> Ledger:
    bandit = new_bandit(first_arms(1000), batch_rule=FixedSize(50))
    bandit.load(path)
    return Ledger.of(bandit)

    # Arms that cannot be read


def play(arms: Any, asks: int, around: Callable[[int, Ask], Tensor]) -> list[int]:
    """Return the picks of a few asks, each of them made by a function."""
    bandit = new_bandit(arms, batch_rule=FixedSize(20))
    known = torch.arange(NUM_KNOWN) * (len(arms) // NUM_KNOWN)
    bandit.add_observations(known, rewards_of(arms[known]))
    picks: list[int] = []
    for number in range(asks):
        indices = around(number, bandit.ask)
        picks += indices.tolist()
        bandit.tell(indices, rewards_of(arms[indices]))
    return picks


def rewards_of(rows: Tensor) -> Tensor:
    """Return the rewards of arms."""
    return (3 * rows[:, :4]).sin().sum(dim=-1)


def without_faults(number: int, ask: Ask) -> Tensor:
    """Ask without any fault."""
    return ask()


def fails_while_away(path: Path, ask: Ask) -> None:
    """Ask while a file is away."""
    away = path.with_suffix(".away")
    path.rename(away)
    try:
        ask()
    except (ShardDataError, FileNotFoundError):
        return
    finally:
        away.rename(path)
    raise RuntimeError("Expected an error while arms cannot be read, but got picks.")


def run_parquet(folder: Path, num_arms: int) -> dict[str, float]:
    """Ask over a large library, with all files and with one away."""
    write_library(folder, num_arms)
    files = sorted(folder.glob("*.parquet"))
    size = sum(file.stat().st_size for file in files)

    def around(number: int, ask: Ask) -> Tensor:
        if number == 1:
            fails_while_away(files[-1], ask)
        return ask()

    start = time.perf_counter()
    found = play(ParquetArms(files, quiet=True), 2, around)
    seconds = time.perf_counter() - start
    expected = play(ParquetArms(files, quiet=True), 2, without_faults)
    require(found == expected, "the picks of a campaign without faults")
    return {
        "GiB": size / 2**30,
        "refused asks": 1,
        "seconds of 2 asks": seconds,
        "peak MiB": peak_memory(),
    }


def run_ray(folder: Path, kills: int) -> dict[str, float]:
    """Kill a worker around every ask."""
    path = folder / "arms.npy"
    np.save(path, first_arms(NUM_RAY_ARMS).numpy())
    arms = ArrayArms(path).on_ray(2, max_restarts=2 * kills + 2)
    rng = np.random.default_rng(0)
    workers: Any = arms.workers

    def pid() -> int:
        import ray  # not before the workers start it

        actor = workers.pool.actors[int(rng.integers(2))]
        return int(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())))

    def around(number: int, ask: Ask) -> Tensor:
        if number == 0:
            return ask()
        victim = pid()
        if number <= kills:
            delay = rng.uniform(0, 0.5)
            timer = threading.Timer(delay, os.kill, (victim, signal.SIGKILL))
            timer.start()
            picks = ask()
            timer.join()
            return picks
        os.kill(victim, signal.SIGKILL)
        fails_while_away(path, ask)
        return ask()

    start = time.perf_counter()
    found = play(arms, kills + 2, around)
    seconds = time.perf_counter() - start
    workers.close()
    expected = play(ArrayArms(path), kills + 2, without_faults)
    require(found == expected, "the picks of a campaign without faults")
    return {"killed workers": kills + 1, "refused asks": 1, "seconds": seconds}


def run(args: argparse.Namespace, record: Record) -> None:
    """Run the scenarios; write and print what happened."""
    scenarios, pulls, num_arms = list(args.scenarios), args.pulls, NUM_ARMS
    if args.smoke:
        # The others need rights, large files or minutes.
        scenarios, pulls, num_arms = ["campaign"], 5000, 600
    calls: dict[str, Callable[[Path], dict[str, float]]] = {
        "campaign": lambda folder: run_campaign(folder, num_arms, pulls),
        "disk": run_disk,
        "Parquet": lambda folder: run_parquet(folder, args.num_arms),
        "Ray": lambda folder: run_ray(folder, args.kills),
    }
    rows = []
    for name in scenarios:
        with tempfile.TemporaryDirectory() as folder:
            found = calls[name](Path(folder))
        rows += [(name, what, float(number)) for what, number in found.items()]
        print(f"{name}: done", flush=True)
    record.show(pd.DataFrame(rows, columns=["scenario", "what", "number"]), "soak")
