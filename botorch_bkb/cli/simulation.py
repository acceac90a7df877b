"""Bandits against a problem: the loop, its table of rounds, and the outcome."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.cli.progress import ticking
from botorch_bkb.cli.suggest import SuggestLoop
from botorch_bkb.plotting import blank_figure, plot_found, plot_regret, plot_rounds
from botorch_bkb.test_functions import FiniteArmProblem


if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Of all arms; a search has done well when it has measured these.
BEST_SHARE = 0.01
UNIFORM_NOTE = """
Uniform choice: expected values; its simple regret is that of the best arm it pulls,
which noise may hide."""


# What takes part: a bandit, or a loop around bandits.
Player = FiniteArmBandit | SuggestLoop


def run_bandit(
    bandit: Player,
    problem: FiniteArmProblem,
    horizon: int,
    *,
    generator: torch.Generator,
    quiet: bool = False,
    label: str | None = None,
) -> pd.DataFrame:
    """Ask and tell until ``horizon`` pulls are told.

    Args:
        bandit: A bandit over the problem's arms that was told nothing yet.
        problem: Draws the rewards and knows the regret.
        horizon: The number of pulls.
        generator: The source of the rewards' noise.
        quiet: Whether to hide the progress bar, which also hides itself where standard
            error is no terminal.
        label: What the progress bar is of.

    Returns:
        One row per round. All but ``batch_size`` count from the start. ``seconds`` is
        the bandit's own time, without the bookkeeping around it; ``num_best_found`` is
        how many of the best 1 % of all arms were pulled; ``confidence_width`` is the
        ``w`` of ``mean + w sqrt(variance / lambda)`` by which the batch was chosen (or
        would have been by a bandit that chooses by bounds). The columns that start with
        ``uniform`` are what uniform choice can expect.
    """
    is_best = best_arms(problem)
    is_pulled = torch.zeros_like(is_best)
    rows: list[dict[str, float]] = []
    seconds = regret = 0.0
    with (
        tqdm(
            total=horizon, unit=" pulls", disable=True if quiet else None, desc=label
        ) as progress,
        ticking(progress),
    ):
        while bandit.num_pulls < horizon:
            progress.set_postfix_str("fitting, choosing", refresh=False)
            start = perf_counter()
            indices = bandit.ask(horizon - bandit.num_pulls)
            seconds += perf_counter() - start
            progress.set_postfix_str("", refresh=False)
            width = bandit.confidence_width
            if rows:
                # Told rewards are in the posterior now, so the best arm costs nothing.
                rows[-1]["simple_regret"] = _regret_of_best_arm(bandit, problem)
            rewards = problem.sample(indices, generator)
            start = perf_counter()
            bandit.tell(indices, rewards)
            seconds += perf_counter() - start
            regret += problem.regret(indices).sum().item()
            is_pulled[indices] = True
            rows.append(
                {
                    "num_pulls": bandit.num_pulls,
                    "batch_size": len(indices),
                    "num_inducing_points": len(bandit.inducing_indices),
                    "confidence_width": width,
                    "simple_regret": math.nan,
                    "cumulative_regret": regret,
                    "num_distinct": int(is_pulled.sum()),
                    "num_best_found": int((is_pulled & is_best).sum()),
                    "seconds": seconds,
                }
            )
            progress.update(len(indices))
        # The rewards told last are not in the posterior yet.
        rows[-1]["simple_regret"] = _regret_of_best_arm(bandit, problem)
    rounds = pd.DataFrame(rows)
    uniform = [_uniform_outcome(problem, n) for n in rounds["num_pulls"]]
    for column in ("cumulative_regret", "num_best_found"):
        rounds[f"uniform_{column}"] = [outcome[column] for outcome in uniform]
    return rounds


def best_arms(problem: FiniteArmProblem) -> Tensor:
    """Return which arms are the best 1 %, rounded up; more where the last tie."""
    regrets = problem.regret(torch.arange(problem.num_arms))
    num_best = math.ceil(BEST_SHARE * problem.num_arms)
    return regrets <= regrets.kthvalue(num_best).values


def _uniform_outcome(problem: FiniteArmProblem, num_pulls: int) -> dict[str, float]:
    """Return what uniform choice is expected to reach, by column of the rounds."""
    share_pulled = 1 - (1 - 1 / problem.num_arms) ** num_pulls
    return {
        "simple_regret": problem.uniform_simple_regret(num_pulls),
        "cumulative_regret": problem.uniform_cumulative_regret(num_pulls),
        "num_distinct": share_pulled * problem.num_arms,
        "num_best_found": share_pulled * int(best_arms(problem).sum()),
    }


def report(
    bandit: Player,
    problem: FiniteArmProblem,
    rounds: pd.DataFrame,
    output: Path,
    *,
    name: str,
    title: str,
    reward_unit: str | None = None,
    arm_name: Callable[[int], str] = str,
    seeks_best: bool = False,
) -> None:
    """Print the outcome of a run and write ``rounds.csv`` and ``regret.png``.

    Args:
        bandit: The bandit after its run.
        problem: The problem it ran on.
        rounds: The rounds that ``run_bandit`` returned.
        output: The folder to write to; made if missing.
        name: What to call the bandit.
        title: The first line of the outcome and of the picture.
        reward_unit: The unit of the rewards, for the picture.
        arm_name: What to call an arm in the outcome.
        seeks_best: Whether the picture shows what was found of the best arms, on plain
            axes, in place of the batch sizes. On logarithmic ones a few large batches
            are a short line at the end.
    """
    print(f"\n{title}\n")
    print(outcome_table(bandit, problem, rounds, name, arm_name))
    print(UNIFORM_NOTE)
    if seeks_best:
        figure = found_figure({name: [rounds]}, title, reward_unit)
    else:
        figure = plot_rounds({name: rounds}, title=title, reward_unit=reward_unit)
    _write(rounds, figure, output)


def report_comparison(
    runs: Mapping[str, Sequence[pd.DataFrame]],
    problem: FiniteArmProblem,
    output: Path,
    *,
    title: str,
    reward_unit: str,
) -> None:
    """Print one row per bandit, write all rounds, and draw means over repetitions.

    Args:
        runs: The rounds that ``run_bandit`` returned, one table per repetition, by the
            name of their bandit; all of the same number of pulls.
        problem: The problem they ran on.
        output: The folder to write to; made if missing.
        title: The first line of the outcome and of the picture.
        reward_unit: The unit of the rewards, for the picture.
    """
    print(f"\n{title}\n")
    print(comparison_table(runs, problem))
    print(
        "\nMeans over repetitions. Simple regret: of the arm that is recommended at "
        "the end.\nBest 1 %: how many of these "
        f"{int(best_arms(problem).sum()):,} arms were pulled. Distinct: of all pulls."
    )
    print(UNIFORM_NOTE)
    figure = found_figure(runs, title, reward_unit)
    tables = [rounds for repetitions in runs.values() for rounds in repetitions]
    _write(pd.concat(tables), figure, output)


def found_figure(
    runs: Mapping[str, Sequence[pd.DataFrame]], title: str, reward_unit: str | None
) -> Figure:
    """Draw what was found of the best arms, and the regret, over pulls."""
    figure = blank_figure(11.0, 4.2)
    left, right = figure.subplots(1, 2)
    plot_found(left, runs)
    plot_regret(right, runs, reward_unit=reward_unit)
    figure.suptitle(title, fontsize="medium")
    return figure


def comparison_table(
    runs: Mapping[str, Sequence[pd.DataFrame]], problem: FiniteArmProblem
) -> str:
    """Return one row per bandit, means over its runs, and one of uniform choice."""
    columns = {
        "simple regret": ("simple_regret", "{:.4g}"),
        "best 1 %": ("num_best_found", "{:,.1f}"),
        "cumulative regret": ("cumulative_regret", "{:,.1f}"),
        "distinct": ("num_distinct", "{:,.1f}"),
        "seconds": ("seconds", "{:,.1f}"),
    }
    means = pd.DataFrame(
        {
            name: pd.concat([rounds.iloc[[-1]] for rounds in tables]).mean(
                numeric_only=True
            )
            for name, tables in runs.items()
        }
    )
    num_pulls = int(next(iter(runs.values()))[0]["num_pulls"].iloc[-1])
    means["uniform choice"] = pd.Series(_uniform_outcome(problem, num_pulls))
    shown = {
        label: means.loc[column].map(form.format, na_action="ignore").fillna("")
        for label, (column, form) in columns.items()
    }
    return pd.DataFrame(shown).to_string()


def _write(rounds: pd.DataFrame, figure: Figure, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    rounds.to_csv(output / "rounds.csv", index=False)
    figure.savefig(output / "regret.png")
    print(f"\nWrote {output / 'rounds.csv'} and {output / 'regret.png'}")


def outcome_table(
    bandit: Player,
    problem: FiniteArmProblem,
    rounds: pd.DataFrame,
    name: str,
    arm_name: Callable[[int], str] = str,
) -> str:
    """Return the outcome of a run, beside what uniform choice can expect."""
    best_arm = bandit.best_arm()
    last, uniform = rounds.iloc[-1], _uniform_outcome(problem, bandit.num_pulls)
    rows = [
        ("", name, "uniform choice"),
        ("best arm found", arm_name(best_arm), ""),
        ("its mean reward", f"{problem.mean_rewards[best_arm].item():.4g}", ""),
        ("best mean reward of all arms", f"{problem.best_value:.4g}", ""),
        *(
            (label, form.format(last[column]), form.format(uniform[column]))
            for label, column, form in (
                ("simple regret", "simple_regret", "{:.4g}"),
                ("cumulative regret", "cumulative_regret", "{:,.1f}"),
            )
        ),
        (
            "best 1 % of arms, found",
            f"{last['num_best_found']:,.0f} of {int(best_arms(problem).sum()):,}",
            f"{uniform['num_best_found']:,.1f}",
        ),
        ("distinct arms", f"{last['num_distinct']:,.0f}", ""),
        ("batches", f"{len(rounds):,}", ""),
        ("inducing points", f"{len(bandit.inducing_indices):,}", ""),
        ("seconds asking and telling", f"{last['seconds']:.1f}", ""),
        ("peak memory of the process", peak_memory(), ""),
    ]
    return "\n".join(
        f"{label:<30}{value:>18}{other:>18}".rstrip() for label, value, other in rows
    )


def _regret_of_best_arm(bandit: Player, problem: FiniteArmProblem) -> float:
    return problem.regret(torch.tensor(bandit.best_arm())).item()


def peak_memory() -> str:
    """Return the largest resident size of this process so far."""
    if sys.platform == "win32":
        return "unknown"
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, the others KiB.
    mebibytes = peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    return f"{mebibytes:,.0f} MiB"
