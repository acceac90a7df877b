"""Plates whose results have an offset, and results of an earlier campaign.

- Plates: 112 measurements of candidates of a pool, a batch for each plate. The first is
  random. The offset of a plate is normal, with `offsets` times the standard deviation
  of the rewards. `share` is the share of the best 1 % that were measured.
- Pairs SOURCE:TARGET of tables with the same columns: Suzuki couplings, amidations of
  one of ten nucleophiles, catalysts of other elements. The earlier campaign measured 20
  random candidates of the source, then four batches of ten by `GPBandit`. The new one
  has batches of five. `needed` is the number of measurements until one of the best 1 %
  is measured, 101 without one. Earlier results may be `permuted`.

The noise has 5 % of the rewards' standard deviation. Methods: a `GPBandit` without
correction and earlier results (`none`), with `group=`, and with `campaign=`. `means`:
results minus the mean of their plate. `column`: a new bandit for each plate, with its
number as a column. `mixing`: earlier results as if they were new. `MultiTaskGP`:
BoTorch's model of both campaigns, each standardized, and `qLogEI`; five seeds at most.

Finished runs are not run again: parts can be run one after the other with the same
`--output`. `--pools` or `--pairs` without names leaves these out. `--page` makes the
docs' tables from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Generator, Tensor
from typing_extensions import override

from benchmarks.pools import as_pool, data_file, Laboratory, load_pools, REWARD
from benchmarks.practice import Protocol
from benchmarks.practice_methods import Peer, QLogEI
from benchmarks.record import Record, show_for_page
from benchmarks.rows import add_run_arguments, finished_rows
from botorch_bkb import GPBandit


FILE = "groups.csv.gz"
NUMBERS = "hplc hpobench_segment hartmann6 matern4 rosenbrock4"
POOLS = f"{NUMBERS} mixed borylation cernak buchwald suzuki".split()
# The rank correlations of amidations: .7 and more, .6, about 0, and -.3.
AMIDATIONS = ["56", "65", "28", "82", "76", "35", "36", "12", "18", "96"]
PAIRS = [
    "suzuki_emulated_iv:suzuki_emulated_i",
    "suzuki_emulated_i:suzuki_emulated_iv",
    "oer_3851:oer_3496",
    *(f"amidation_{pair[0]}:amidation_{pair[1]}" for pair in AMIDATIONS),
]
# On plates, and after an earlier campaign beside `none`.
METHODS = ["none", "group", "means", "column"], ["campaign", "mixing", "MultiTaskGP"]
NOISE, NUM_ON_PLATES, MOST, BATCH, PEER_SEEDS = 0.05, 112, 100, 5, 5


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    table: str
    earlier: str  # none; or a table, and whether its results are permuted
    plate: int  # 0 after an earlier campaign
    offsets: float
    method: str
    seed: int


# --- tables


def read(name: str) -> pd.DataFrame | None:
    """Read a table whose last column is to be maximized; None if it is a pool."""
    kind, _, number = name.rpartition("_")
    if kind == "amidation":
        table = data_file("amidation.csv", "reactions")
        words = sorted(table["nucleophile_name"].unique())
        table = table[table["nucleophile_name"] == words[int(number)]]
        return table[["base_name", "solvent_name", "activator_name", "yield"]]
    if kind == "suzuki_emulated":
        return data_file(f"{name}.csv", "two_outcomes").drop(columns="turnover")
    if kind == "oer":
        table = data_file(f"{name}.csv", "plates")
        return table.assign(overpotential=-table["overpotential"])
    if kind == "made_up":
        table = pd.DataFrame({"x": [*"ab"] * 30, "y": range(60)})
        return table.assign(z=-(table["y"] - 30.0 - int(number)).abs())
    return None


@lru_cache
def load(name: str) -> Any:
    """Load a pool, always with a frame; None if it is not on this machine."""
    table = read(name)
    if table is None:
        pool = load_pools([name]).get(name)
    else:
        pool = as_pool(name, table.rename(columns={table.columns[-1]: REWARD}))
    if pool is None or pool.frame is not None:
        return pool
    return replace(pool, frame=pd.DataFrame(pool.arms.numpy()).add_prefix("x"))


@lru_cache(maxsize=1)
def play_earlier(name: str, seed: int, size: int) -> tuple[pd.DataFrame, Tensor]:
    """Play an earlier campaign; return settings and results."""
    pool, protocol = load(name), Protocol(size, size // 2, 3 * size)
    table = measure(Ours("none", pool, None, seed), pool, protocol, seed, 0.0)
    return pool.frame.iloc[table["arm"]], torch.tensor(table["result"])


# --- methods


class Ours:
    """A ``GPBandit``, with the option of a method."""

    def __init__(self, method: str, pool: Any, earlier: Any, seed: int) -> None:
        self.method, self.frame, self.seed = method, pool.frame, seed
        self.plates: list[tuple[Tensor, Tensor]] = []
        self.bandit = GPBandit(pool.frame, seed=seed)
        if method in METHODS[1]:
            frame, results = earlier
            label = "earlier" if method == "campaign" else ""
            self.bandit.add_observations(None, results, campaign=label, arms=frame)

    def ask(self, size: int) -> Tensor:
        """Choose a batch."""
        if self.method != "column":
            return self.bandit.ask(size)
        arms, results = map(torch.cat, zip(*self.plates, strict=True))
        parts = [*(self.frame.iloc[plate.numpy()] for plate, _ in self.plates)]
        numbered = enumerate([*parts, self.frame])
        both = pd.concat(part.assign(plate=number) for number, part in numbered)
        bandit, start = GPBandit(both, seed=self.seed), len(arms)
        bandit.add_observations(range(start), results)
        is_left = torch.arange(len(both)) >= start
        is_left[start + arms] = False
        return bandit.ask(size, available=is_left) - start

    def tell(self, indices: Tensor, results: Tensor) -> None:
        """Bring the results of a plate."""
        label = f"plate {len(self.plates)}" if self.method == "group" else None
        self.plates.append((indices, results))
        shift = results.mean() if self.method == "means" else 0.0
        tell = self.bandit.tell if self.bandit.pending else self.bandit.add_observations
        tell(indices, results - shift, group=label)


class MultiTask(QLogEI):
    """BoTorch's ``MultiTaskGP`` of an earlier campaign and this one."""

    tell = Peer.tell

    def __init__(self, method: str, pool: Any, earlier: Any, seed: int) -> None:
        frame = pd.concat([pool.frame, earlier[0]])
        super().__init__(frame, Generator().manual_seed(seed))
        self.earlier, self.num_arms = earlier[1], pool.num_arms

    @override
    def ask(self, size: int) -> Tensor:
        parts = [part for part in (self.earlier, self.rewards) if len(part)]
        parts = [(part - part.mean()) / part.std().clamp_min(1e-12) for part in parts]
        self.targets, Y = parts[-1], torch.cat(parts).unsqueeze(-1)
        X = torch.cat([self.points[self.num_arms :], self.points[self.indices]])
        new: Any = SingleTaskGP  # at first, as if both were the same function
        if len(parts) == 2:
            is_new = torch.arange(len(X)) >= len(self.earlier)
            X = torch.cat([X, is_new.unsqueeze(-1)], dim=-1)
            new = partial(MultiTaskGP, task_feature=-1, output_tasks=[1])
        left = self._left()
        left = left[left < self.num_arms]
        with manual_seed(self._seed()):
            self.model = new(X, Y)
            mll = ExactMarginalLogLikelihood(self.model.likelihood, self.model)
            fit_gpytorch_mll(mll)
            return left[self._choose(self.points[left], size)]


# --- runs


def measure(
    player: Any, pool: Any, protocol: Protocol, seed: int, offsets: float | None
) -> pd.DataFrame:
    """Return a row for each measurement.

    With offsets, the first batch is random. If they are None, the player chooses it,
    and one of the best 1 % ends the campaign.
    """
    stream = Generator().manual_seed(1_000_000 + seed)
    indices = torch.randperm(pool.num_arms, generator=stream)[: protocol.first]
    shifts = torch.randn(protocol.total, generator=stream, dtype=torch.double)
    shifts *= pool.deviation * (offsets or 0.0)
    laboratory, rows, done = Laboratory(pool, NOISE, seed), [], 0
    for shift, end in zip(shifts, protocol.ends(pool.num_arms), strict=False):
        start = time.perf_counter()
        if done or offsets is None:
            indices = player.ask(end - done)
        columns: Any = {"arm": indices, "seconds": time.perf_counter() - start}
        columns["result"] = laboratory.measure(indices) + shift
        player.tell(indices, columns["result"])
        rows.append(pd.DataFrame(columns))
        done = end
        if offsets is None and pool.is_best[indices].any():
            break
    return pd.concat(rows, ignore_index=True)


def play(one: Run, smoke: bool) -> pd.DataFrame:
    """Return the figures of a run."""
    pool, (source, _, permuted) = load(one.table), one.earlier.partition(" ")
    total, offsets = (NUM_ON_PLATES, one.offsets) if one.plate else (MOST, None)
    size, correlation, worth, earlier = one.plate or BATCH, np.nan, np.nan, None
    protocol = Protocol(size, size, 10 if smoke else total)
    with warnings.catch_warnings():
        # Of fits that the optimizer gives up on.
        warnings.simplefilter("ignore")
        if source != "none":
            frame, results = play_earlier(source, 500 + one.seed, 6 if smoke else 20)
            order = np.random.default_rng(one.seed).permutation(len(frame))
            earlier = frame, results[order] if permuted else results
            both = [
                each.frame.assign(**{each.name: each.rewards})
                for each in (pool, load(source))
            ]
            common = both[0].merge(both[1])[[pool.name, source]]
            correlation = common.corr("spearman").iloc[0, 1]
        method = MultiTask if one.method == "MultiTaskGP" else Ours
        player: Any = method(one.method, pool, earlier, one.seed)
        table = measure(player, pool, protocol, one.seed, offsets)
    if one.method == "campaign":
        worth = pd.DataFrame(player.bandit.groups())["worth"].max()
    is_hit = pool.is_best[table["arm"]].numpy()
    figures = {
        "share": table["arm"][is_hit].nunique() / int(pool.is_best.sum()),
        "needed": int(is_hit.argmax()) + 1 if is_hit.any() else MOST + 1,
        "seconds": table["seconds"].max(),
    }
    return pd.DataFrame([figures | {"correlation": correlation, "worth": worth}])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    methods = [*METHODS[0], *METHODS[1]]
    parser.add_argument("--pools", nargs="*", default=POOLS)
    parser.add_argument("--pairs", nargs="*", default=PAIRS, metavar="SOURCE:TARGET")
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--plates", nargs="+", type=int, default=[16, 10, 96])
    parser.add_argument("--offsets", nargs="+", type=float, default=[0, 1, 0.5, 2])
    add_run_arguments(parser, 5)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left; print tables."""
    if args.smoke:
        args.pools, args.pairs = ["made_up_0"], ["made_up_1:made_up_0"]
        args.plates, args.offsets = [5], [0]
    pairs = [pair.split(":") for pair in args.pairs]
    targets = sorted({target for _, target in pairs})
    settings = list(
        product(args.pools, ["none"], args.plates, args.offsets, METHODS[0])
    )
    settings += [(target, "none", 0, 0, "none") for target in targets]
    settings += [
        (target, source + permuted, 0, 0, method)
        for source, target in pairs
        for permuted in ("", " permuted")
        for method in METHODS[1]
    ]
    wanted = [
        Run(*one, seed)
        for seed in range(0 if args.page else args.seeds)
        for one in settings
        if one[-1] in args.methods and load(one[0])
        if one[-1] != "MultiTaskGP" or seed < PEER_SEEDS
    ]
    what = FILE, Run._fields, wanted, lambda one: play(one, args.smoke)
    for name, table in summaries(finished_rows(args, record, *what)).items():
        print(f"\n{name}")
        show_for_page(table, name, is_page=args.page)


def summaries(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Compare runs with those of `none` without offsets, on the same seeds."""
    same, figures = ["table", "plate", "seed"], ["share", "needed"]
    is_reference = (rows["method"] == "none") & (rows["offsets"] == 0)
    reference = rows[is_reference].set_index(same)[figures].add_suffix("_none")
    both = rows.join(reference, on=same).dropna(subset="share_none")
    both["rise"] = both["share"] - both["share_none"]
    groups = both[both["plate"] > 0].groupby(["plate", "offsets", "method"])
    plates = groups[["share", "share_none"]].mean().assign(runs=groups.size())
    plates["ratio"] = plates["share"] / plates["share_none"]
    plates["error"] = groups["rise"].sem() / plates["share_none"]
    groups = both[both["earlier"] != "none"].groupby(
        ["table", "earlier", "method"], sort=False
    )
    columns = ["correlation", "needed", "needed_none", "worth"]
    pairs = groups[columns].median().assign(runs=groups.size())
    pairs["ratio"] = pairs["needed"] / pairs["needed_none"]
    return {"plates": plates.reset_index(), "earlier": pairs.reset_index()}
