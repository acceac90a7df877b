"""What the options of BBKB do: one changed at a time, all else as in `regret`.

BBKB in the practical setting on Abalone, T = 10^4 (q-bar = 2, C~ = 2, merged inclusion,
independent resampling, the sum rule, F = 1 and the width of the authors' code), and
with one option changed: q-bar from 0.5 to 16, C~ from 1.2 to 8, a draw per pull instead
of per arm, coupled resampling, the width of the theorem.

Beside regret, batches, inducing arms and the bandit's seconds: how far the sparse
posterior is from the exact one of the same pulls when the run ends, over all arms. The
largest ratio of the variances, either way; the largest difference of the means, in
exact posterior deviations. Writes `ablations.csv` and `ablations.png`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure

from benchmarks.problems import load_problem
from benchmarks.record import print_table, Record
from benchmarks.regret import Choices, TenThousandPulls
from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.plotting import blank_figure, tidy_axes
from botorch_bkb.test_functions import FiniteArmProblem


AS_IT_IS = "nothing"
VARIANTS = {
    AS_IT_IS: Choices(),
    **{f"q-bar {q:g}": Choices(oversampling=q) for q in (0.5, 1.0, 4.0, 8.0, 16.0)},
    **{f"C~ {c:g}": Choices(ratio_threshold=c) for c in (1.2, 1.5, 3.0, 4.0, 8.0)},
    "per-pull inclusion": Choices(inclusion="per_pull"),
    "coupled resampling": Choices(resampling="coupled"),
    "the theorem's width": Choices(setting="paper", norm_bound=1.0),
}


class Run(NamedTuple):
    """What one run is of."""

    changed: str
    seed: int


class Ablations(TenThousandPulls):
    """One option of BBKB changed at a time."""

    keys = Run._fields

    def runs(self, repetitions: int) -> list[Run]:
        """Return the runs of some seeds."""
        return [
            Run(changed, seed) for seed in range(repetitions) for changed in VARIANTS
        ]

    def seconds(self, run: Run) -> float:
        """Return about how long a run takes."""
        slow = {
            "q-bar 0.5": 50.0,
            "q-bar 1": 40.0,
            "per-pull inclusion": 50.0,
            "the theorem's width": 70.0,
        }
        return slow.get(run.changed, 3.0)

    def play(self, run: Run) -> pd.DataFrame:
        """Return one row."""
        problem = _problem(self.smoke)
        bandit, rounds = self.pulled(VARIANTS[run.changed], problem, run.seed)
        last = rounds.iloc[-1]
        row = {
            "num_pulls": last["num_pulls"],
            "regret": last["cumulative_regret"],
            "batches": last["batch"],
            "largest_batch": rounds["batch_size"].max(),
            "inducing": last["num_inducing_points"],
            "distinct": int((bandit.counts > 0).sum()),
            "seconds": last["seconds"],
            **accuracy(bandit),
        }
        return pd.DataFrame([row])

    def report(self, rows: pd.DataFrame, record: Record) -> None:
        """Write, draw and print means and standard errors."""
        groups = rows.groupby("changed", sort=False)
        quantities = [
            "regret",
            "batches",
            "largest_batch",
            "inducing",
            "distinct",
            "seconds",
            "variance_ratio",
            "mean_error",
        ]
        table = groups[quantities].mean()
        table.insert(0, "runs", groups.size())
        table.insert(2, "regret_error", groups["regret"].sem())
        table = table.reindex([name for name in VARIANTS if name in table.index])
        table = table.reset_index()
        record.write_table(table, "ablations")
        print_table(table)
        record.write_figure(draw(table), "ablations")


@torch.no_grad()
def accuracy(bandit: FiniteArmBandit) -> dict[str, float]:
    """Return how far a bandit's posterior is from the exact one of its pulls.

    The last tell has not been learned from; asking and failing what was asked does it.
    """
    bandit.fail(bandit.ask(max_size=1))
    pulled, counts, sums = bandit._pulls().totals()
    means = sums / counts
    kernel, arms = bandit.covar_module, bandit.arms
    K = kernel(arms[pulled]).to_dense()
    K.diagonal().add_(bandit.noise_variance / counts)
    L = torch.linalg.cholesky(K)
    root = torch.linalg.solve_triangular(
        L, kernel(arms[pulled], arms).to_dense(), upper=False
    )
    weights = torch.linalg.solve_triangular(L, means.unsqueeze(-1), upper=False)
    mean = (root.mT @ weights).squeeze(-1)
    variance = 1 - root.square().sum(dim=0)
    sparse_mean, sparse_variance = bandit.predict()
    ratio = sparse_variance / variance
    return {
        "variance_ratio": torch.maximum(ratio, 1 / ratio).max().item(),
        "mean_error": ((sparse_mean - mean).abs() / variance.sqrt()).max().item(),
    }


def draw(table: pd.DataFrame) -> Figure:
    """Draw regret and inducing arms against q-bar and C~."""
    figure = blank_figure(9.0, 3.6)
    panels = figure.subplots(1, 2)
    for axes, letter in zip(panels, ("q-bar", "C~"), strict=True):
        is_base = table["changed"] == AS_IT_IS
        chosen = table[table["changed"].str.startswith(letter) | is_base]
        value = chosen["changed"].str.split().str[-1].replace(AS_IT_IS, "2")
        chosen = chosen.assign(value=value.astype(float)).sort_values("value")
        axes.errorbar(
            chosen["value"], chosen["regret"], chosen["regret_error"], fmt="o-"
        )
        axes.set(xscale="log", xlabel=letter)
        axes.set_ylabel("regret (standard deviations)")
        axes.set_xticks(chosen["value"], [f"{one:g}" for one in chosen["value"]])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        tidy_axes(axes)
    return figure


@functools.cache
def _problem(smoke: bool) -> FiniteArmProblem:
    return load_problem("abalone", None, smoke)
