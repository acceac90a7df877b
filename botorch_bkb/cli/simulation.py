"""Bandits against a problem: the loop, its table of rounds, and the outcome."""

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
from botorch_bkb.cli.progress import ticking
from botorch_bkb.cli.suggest import SuggestLoop
from botorch_bkb.plotting import blank_figure, plot_found, plot_regret
from botorch_bkb.test_functions import FiniteArmProblem


# Of all arms; a search has done well when it has measured these.
BEST_SHARE = 0.01
# What takes part: a bandit, or a loop around bandits.
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
        bandit: A bandit over the problem's arms that was told nothing yet.
        problem: Draws the rewards and knows the regret.
        horizon: The number of pulls.
        name: What to call the bandit.
        seed: That of the run, for the table.
        generator: The source of the rewards' noise.
        batch_size: The most pulls of a batch; None: those that are left.
        quiet: Whether to hide the progress bar.

    Returns:
        One row per round. All but ``batch_size`` count from the start. ``seconds`` is
        the bandit's own time, without the bookkeeping around it; ``num_best_found`` is
        how many of the best 1 % of all arms were pulled; ``confidence_width`` is the
        ``w`` of ``mean + w sqrt(variance / lambda)`` by which the batch was chosen (or
        would have been by a bandit that chooses by bounds). The columns that start with
        ``uniform`` are what uniform choice can expect.
    """
    picks: list[Tensor] = []
    recommended: list[int] = []
    rows: list[tuple[float, ...]] = []
    seconds, most = 0.0, batch_size or horizon
    label, hidden = f"{name}, seed {seed}", True if quiet else None
    bar = tqdm(desc=label, total=horizon, unit=" pulls", disable=hidden)
    with bar as progress, ticking(progress):
        while bandit.num_pulls < horizon:
            progress.set_postfix_str("fitting, choosing", refresh=False)
            start = perf_counter()
            indices = bandit.ask(min(horizon - bandit.num_pulls, most))
            seconds += perf_counter() - start
            progress.set_postfix_str("", refresh=False)
            width = bandit.confidence_width
            if picks:
                # Told rewards are in the posterior now, so the best arm costs nothing.
                recommended.append(bandit.best_arm())
            rewards = problem.sample(indices, generator)
            start = perf_counter()
            bandit.tell(indices, rewards)
            seconds += perf_counter() - start
            picks.append(indices)
            rows.append((len(bandit.inducing_indices), width, seconds))
            progress.update(len(indices))
        # The rewards told last are not in the posterior yet.
        recommended.append(bandit.best_arm())
    columns = ["num_inducing_points", "confidence_width", "seconds"]
    rounds = _counted(picks, problem).join(pd.DataFrame(rows, columns=columns))
    rounds["simple_regret"] = problem.regret(torch.tensor(recommended)).numpy()
    rounds.insert(0, "bandit", name)
    rounds.insert(1, "seed", seed)
    return rounds


def _counted(picks: Sequence[Tensor], problem: FiniteArmProblem) -> pd.DataFrame:
    """Return what is counted from the start, after each of some batches."""
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
    """Return which arms are the best 1 %, rounded up; more where the last tie."""
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
        rounds: What ``run_bandit`` returned of each run, one below the other; all of
            the same number of pulls.
        problem: The problem they ran on.
        output: The folder to write to; made if missing.
        title: The first line of the outcome and of the picture.
        reward_unit: The unit of the rewards, for the picture.
        recommended: What :func:`recommendation` says, of a single run.
    """
    num_runs = rounds.groupby("bandit")["seed"].nunique().max()
    if num_runs > 1:
        title = f"{title}, repetitions {num_runs:,}"
    print(f"\n{title}\n\n{outcome_table(rounds, problem)}\n{recommended}")
    print(
        f"best 1 %: how many of these {int(best_arms(problem).sum()):,} arms were "
        "pulled; simple regret: of the arm that is\nrecommended at the end; means over "
        "repetitions. Uniform choice: expected values; its simple regret\nis that of "
        "the best arm it pulls, which noise may hide."
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
    """Return one row per bandit, means over its runs, and one of uniform choice."""
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
        "distinct arms": ("num_distinct", "{:,.1f}"),
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
    """Say which arm a bandit recommends, and what it is worth."""
    best = bandit.best_arm()
    return (
        f"\nBest arm found: {arm_names[best]}, mean reward "
        f"{problem.mean_rewards[best].item():.4g}; the best of all arms has "
        f"{problem.best_value:.4g}.\n"
    )
