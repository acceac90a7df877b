"""A bandit against a problem: the loop, its table of rounds, and its outcome."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pandas as pd
import torch
from tqdm import tqdm

from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.plotting import plot_rounds
from botorch_bkb.test_functions import FiniteArmProblem


def run_bandit(
    bandit: FiniteArmBandit,
    problem: FiniteArmProblem,
    horizon: int,
    *,
    generator: torch.Generator,
    quiet: bool = False,
) -> pd.DataFrame:
    """Ask and tell until ``horizon`` pulls are told.

    Args:
        bandit: A bandit over the problem's arms that was told nothing yet.
        problem: Draws the rewards and knows the regret.
        horizon: The number of pulls.
        generator: The source of the rewards' noise.
        quiet: Whether to hide the progress bar, which also hides itself where standard
            error is no terminal.

    Returns:
        One row per round. ``num_pulls`` and ``seconds`` count from the start, and
        ``seconds`` is the bandit's own time, without the bookkeeping around it.
    """
    rows: list[dict[str, float]] = []
    cumulative_regret = 0.0
    seconds = 0.0
    hidden = True if quiet else None
    with tqdm(total=horizon, unit=" pulls", disable=hidden) as progress:
        while bandit.num_pulls < horizon:
            start = perf_counter()
            indices = bandit.ask(max_size=horizon - bandit.num_pulls)
            seconds += perf_counter() - start
            if rows:
                # Told rewards are in the posterior now, so the best arm costs nothing.
                rows[-1]["simple_regret"] = _regret_of_best_arm(bandit, problem)
            rewards = problem.sample(indices, generator)
            start = perf_counter()
            bandit.tell(indices, rewards)
            seconds += perf_counter() - start
            cumulative_regret += problem.regret(indices).sum().item()
            rows.append(
                {
                    "num_pulls": bandit.num_pulls,
                    "batch_size": len(indices),
                    "num_inducing_points": len(bandit.inducing_indices),
                    "simple_regret": math.nan,
                    "cumulative_regret": cumulative_regret,
                    "uniform_cumulative_regret": problem.uniform_cumulative_regret(
                        bandit.num_pulls
                    ),
                    "seconds": seconds,
                }
            )
            progress.update(len(indices))
    rows[-1]["simple_regret"] = _regret_of_best_arm(bandit, problem)
    return pd.DataFrame(rows)


def report(
    bandit: FiniteArmBandit,
    problem: FiniteArmProblem,
    rounds: pd.DataFrame,
    output: Path,
    *,
    title: str,
    reward_unit: str | None = None,
    arm_name: Callable[[int], str] = str,
) -> None:
    """Print the outcome of a run and write ``rounds.csv`` and ``regret.png``.

    Args:
        bandit: The bandit after its run.
        problem: The problem it ran on.
        rounds: The rounds that ``run_bandit`` returned.
        output: The folder to write to; made if missing.
        title: The first line of the outcome and of the picture.
        reward_unit: The unit of the rewards, for the picture.
        arm_name: What to call an arm in the outcome.
    """
    name = type(bandit).__name__
    print(f"\n{title}\n")
    print(outcome_table(bandit, problem, rounds, name, arm_name))
    print(
        "\nUniform choice: expected values; its simple regret is that of the best arm "
        "it pulls,\nwhich noise may hide."
    )
    output.mkdir(parents=True, exist_ok=True)
    rounds.to_csv(output / "rounds.csv", index=False)
    figure = plot_rounds({name: rounds}, title=title, reward_unit=reward_unit)
    figure.savefig(output / "regret.png")
    print(f"\nWrote {output / 'rounds.csv'} and {output / 'regret.png'}")


def outcome_table(
    bandit: FiniteArmBandit,
    problem: FiniteArmProblem,
    rounds: pd.DataFrame,
    name: str,
    arm_name: Callable[[int], str] = str,
) -> str:
    """Return the outcome of a run, beside what uniform choice can expect."""
    best_arm = bandit.best_arm()
    last = rounds.iloc[-1]
    num_pulls = bandit.num_pulls
    rows = [
        ("", name, "uniform choice"),
        ("best arm found", arm_name(best_arm), ""),
        ("its mean reward", f"{problem.mean_rewards[best_arm].item():.4g}", ""),
        ("best mean reward of all arms", f"{problem.best_value:.4g}", ""),
        (
            "simple regret",
            f"{last['simple_regret']:.4g}",
            f"{problem.uniform_simple_regret(num_pulls):.4g}",
        ),
        (
            "cumulative regret",
            f"{last['cumulative_regret']:,.1f}",
            f"{last['uniform_cumulative_regret']:,.1f}",
        ),
        ("batches", f"{len(rounds):,}", ""),
        ("inducing points", f"{len(bandit.inducing_indices):,}", ""),
        ("seconds asking and telling", f"{last['seconds']:.1f}", ""),
        ("peak memory of the process", peak_memory(), ""),
    ]
    return "\n".join(
        f"{label:<30}{value:>18}{uniform:>18}".rstrip()
        for label, value, uniform in rows
    )


def _regret_of_best_arm(bandit: FiniteArmBandit, problem: FiniteArmProblem) -> float:
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
