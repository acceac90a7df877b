"""A bandit on a problem: the loop, its table of rounds, and the outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.cli.suggest import SuggestLoop
from botorch_bkb.plotting import blank_figure, plot_found, plot_regret
from botorch_bkb.test_functions import FiniteArmProblem


# The share of the arms that a search should find.
BEST_SHARE = 0.01
Player = FiniteArmBandit | SuggestLoop


def run_bandit(
    bandit: Player,
    problem: FiniteArmProblem,
    horizon: int,
    *,
    name: str,
    seed: int,
    generator: torch.Generator,
    batch_size: int | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Ask and tell until ``horizon`` pulls are told.

    Args:
        bandit: A bandit over the problem's arms, without observations.
        problem: The problem.
        horizon: The number of pulls.
        name: The name of the bandit in the table.
        seed: The seed of the run in the table.
        generator: The source of the rewards' noise.
        batch_size: The most pulls of a batch; None for no limit.
        quiet: Whether to hide the progress bar.

    Returns:
        One row per round. All columns except ``batch_size`` count from the start.
        ``seconds`` is the bandit's own time; ``num_best_found`` is how many of the best
        1 % of all arms were pulled; ``confidence_width`` is the ``w`` of
        ``mean + w sqrt(variance / lambda)``, also of bandits that do not use it. The
        columns that start with ``uniform`` are the expected values of uniform choice.
    """
    picks: list[Tensor] = []
    recommended: list[int] = []
    rows: list[tuple[float, ...]] = []
    seconds, most = 0.0, batch_size or horizon
    label, hidden = f"{name}, seed {seed}", True if quiet else None
    with tqdm(
        desc=label, total=horizon, unit=" measurements", disable=hidden
    ) as progress:
        while bandit.num_pulls < horizon:
            start = perf_counter()
            indices = bandit.ask(min(horizon - bandit.num_pulls, most))
            seconds += perf_counter() - start
            width = bandit.confidence_width
            if picks:
                # The posterior has all rewards now, so the best arm costs nothing.
                recommended.append(bandit.best_arm())
            rewards = problem.sample(indices, generator)
            start = perf_counter()
            bandit.tell(indices, rewards)
            seconds += perf_counter() - start
            picks.append(indices)
            rows.append((len(bandit.inducing_indices), width, seconds))
            progress.update(len(indices))
        recommended.append(bandit.best_arm())
    columns = ["num_inducing_points", "confidence_width", "seconds"]
    rounds = _counted(picks, problem).join(pd.DataFrame(rows, columns=columns))
    rounds["simple_regret"] = problem.regret(torch.tensor(recommended)).numpy()
    rounds.insert(0, "bandit", name)
    rounds.insert(1, "seed", seed)
    return rounds


def _counted(picks: Sequence[Tensor], problem: FiniteArmProblem) -> pd.DataFrame:
    """Return the columns that count from the start, a row per batch."""
    arms = torch.cat(list(picks))
    is_best = best_arms(problem)
    is_new = ~pd.Series(arms.numpy()).duplicated()
    totals = pd.DataFrame(
        {
            "num_pulls": 1,
            "cumulative_regret": problem.regret(arms).numpy(),
            "num_distinct": is_new,
            "num_best_found": is_new & is_best[arms].numpy(),
        }
    ).cumsum()
    sizes = np.array([len(indices) for indices in picks])
    rounds = totals.iloc[sizes.cumsum() - 1].reset_index(drop=True)
    rounds.insert(1, "batch_size", sizes)
    num_pulls = rounds["num_pulls"]
    expected = problem.uniform_cumulative_regret(1) * num_pulls
    rounds["uniform_cumulative_regret"] = expected
    share_pulled = 1 - (1 - 1 / problem.num_arms) ** num_pulls
    rounds["uniform_num_best_found"] = share_pulled * int(is_best.sum())
    return rounds


def best_arms(problem: FiniteArmProblem) -> Tensor:
    """Return which arms are the best 1 %, rounded up, and those that tie with them."""
    regrets = problem.regret(torch.arange(problem.num_arms))
    num_best = math.ceil(BEST_SHARE * problem.num_arms)
    return regrets <= regrets.kthvalue(num_best).values


def report(
    rounds: pd.DataFrame,
    problem: FiniteArmProblem,
    output: Path,
    *,
    title: str,
    reward_unit: str | None = None,
    recommended: str = "",
) -> None:
    """Print the outcome of runs and write ``rounds.csv`` and ``regret.png``.

    Args:
        rounds: The tables of ``run_bandit``, concatenated; all with the same number of
            pulls.
        problem: The problem of the runs.
        output: The folder to write to; made if missing.
        title: The first line of the outcome and of the picture.
        reward_unit: The unit of the rewards, for the picture.
        recommended: The text of :func:`recommendation`, for a single run.
    """
    num_runs = rounds.groupby("bandit")["seed"].nunique().max()
    if num_runs > 1:
        title = f"{title}, repetitions {num_runs:,}"
    print(f"\n{title}\n\n{outcome_table(rounds, problem)}\n{recommended}")
    print(
        f"best 1 %: how many of these {int(best_arms(problem).sum()):,} candidates "
        "were measured. simple regret: of the candidate\nthat is recommended at the "
        "end. All columns are means over repetitions. Uniform choice:\nexpected "
        "values; its simple regret is that of the best candidate that it measures."
    )
    output.mkdir(parents=True, exist_ok=True)
    rounds.to_csv(output / "rounds.csv", index=False)
    runs = {
        str(name): [run for _, run in part.groupby("seed", sort=False)]
        for name, part in rounds.groupby("bandit", sort=False)
    }
    figure = blank_figure(11.0, 4.2)
    left, right = figure.subplots(1, 2)
    plot_found(left, runs)
    plot_regret(right, runs, reward_unit=reward_unit)
    figure.suptitle(title, fontsize="medium")
    figure.savefig(output / "regret.png")
    print(f"\nWrote {output / 'rounds.csv'} and {output / 'regret.png'}")


def outcome_table(rounds: pd.DataFrame, problem: FiniteArmProblem) -> str:
    """Return the means over the runs of each bandit, and a row of uniform choice."""
    runs = rounds.groupby(["bandit", "seed"], sort=False)
    last = runs.last().assign(batches=runs.size())
    means = last.groupby("bandit", sort=False).mean()
    end = last.iloc[0]
    uniform = {
        "simple_regret": problem.uniform_simple_regret(int(end["num_pulls"])),
        "num_best_found": end["uniform_num_best_found"],
        "cumulative_regret": end["uniform_cumulative_regret"],
    }
    means.loc["uniform choice"] = pd.Series(uniform)
    columns = {
        "simple regret": ("simple_regret", "{:.4g}"),
        "best 1 %": ("num_best_found", "{:,.1f}"),
        "cumulative regret": ("cumulative_regret", "{:,.1f}"),
        "distinct candidates": ("num_distinct", "{:,.1f}"),
        "batches": ("batches", "{:,.1f}"),
        "inducing points": ("num_inducing_points", "{:,.1f}"),
        "seconds": ("seconds", "{:,.1f}"),
    }
    shown = {
        label: means[column].map(form.format, na_action="ignore").fillna("")
        for label, (column, form) in columns.items()
    }
    return pd.DataFrame(shown).rename_axis(None).to_string()


def recommendation(
    bandit: Player, problem: FiniteArmProblem, arm_names: Sequence[str]
) -> str:
    """Return a sentence about the arm that a bandit recommends."""
    best = bandit.best_arm()
    return (
        f"\nBest candidate found: {arm_names[best]}, mean result "
        f"{problem.mean_rewards[best].item():.4g}; the best of all candidates has "
        f"{problem.best_value:.4g}.\n"
    )
