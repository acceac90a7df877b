"""Campaigns with known mean results: of `suggest` over a table, and a demonstration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from botorch.test_functions.synthetic import Michalewicz
from torch import Tensor
from tqdm import tqdm

from botorch_bkb.bandits import EpsilonGreedyPolicy, FiniteArmBandit, GPBandit
from botorch_bkb.cli.arguments import DemoOptions, SimulateOptions, SuggestOptions
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.suggest import bandit_options, SuggestLoop
from botorch_bkb.cli.tables import (
    note,
    require_different_columns,
    reward_column,
    status,
)
from botorch_bkb.plotting import blank_figure, plot_found, plot_regret
from botorch_bkb.tables.columns import require_column
from botorch_bkb.tables.files import require_own
from botorch_bkb.test_functions import FiniteArmProblem
from botorch_bkb.test_functions.finite_arm import standardized


# The share of the candidates that a search should find.
BEST_SHARE = 0.01
DEMO_BATCH_SIZE = 10
DEMO_NOISE_STD = 0.2
DEMO_POLICIES = {"GPBandit": None, "greedy": EpsilonGreedyPolicy(0.0)}


def run(args: SimulateOptions) -> None:
    """Run the campaigns and write their outcome."""
    check_folder(args.output)
    status("Reading the table", args.quiet)
    problem, options, names = load_problem(args)
    most = (args.max_repeats or math.inf) * problem.num_arms
    if args.horizon > most:
        raise InputDataError(
            f"--max-repeats {args.max_repeats} allows {most:,} measurements of the "
            f"{problem.num_arms:,} candidates, but --horizon is {args.horizon:,}. "
            "Lower it, or allow more repeats."
        )
    recommended, rounds = "", []
    for seed in range(args.seed, args.seed + args.repetitions):
        generator = torch.Generator().manual_seed(seed)
        loop = SuggestLoop(problem.arms, seed=seed, **options)
        rounds.append(
            run_bandit(
                loop,
                problem,
                args.horizon,
                name="suggest",
                seed=seed,
                generator=generator,
                quiet=args.quiet,
            )
        )
        recommended = recommendation(loop, problem, names)
    report(
        pd.concat(rounds),
        problem,
        args.output,
        title=f"suggest on {args.table.name}, {problem.num_arms:,} candidates, "
        f"{args.horizon:,} measurements, noise {args.noise_std:g}",
        reward_unit=f"standard deviations of {args.reward}",
        recommended=recommended if len(rounds) == 1 else "",
    )


def run_demo(args: DemoOptions) -> None:
    """Run campaigns on a function with several peaks: a bandit and a greedy policy."""
    check_folder(args.output)
    generator = torch.Generator().manual_seed(args.seed)
    problem = FiniteArmProblem.from_test_function(
        Michalewicz(), args.num_arms, noise_std=DEMO_NOISE_STD, generator=generator
    )
    rounds, recommended = [], ""
    names = [f"candidate {arm:,}" for arm in range(args.num_arms)]
    for name, policy in DEMO_POLICIES.items():
        own = torch.Generator().manual_seed(args.seed)
        bandit = GPBandit(problem.arms, policy=policy, generator=own)
        rounds.append(
            run_bandit(
                bandit,
                problem,
                args.horizon,
                name=name,
                seed=args.seed,
                generator=generator,
                batch_size=DEMO_BATCH_SIZE,
                quiet=args.quiet,
            )
        )
        recommended = recommended or recommendation(bandit, problem, names)
    report(
        pd.concat(rounds, ignore_index=True),
        problem,
        args.output,
        title=f"Michalewicz-2, {args.num_arms:,} candidates, {args.horizon:,} "
        f"measurements in batches of {DEMO_BATCH_SIZE}, noise {DEMO_NOISE_STD}",
        recommended=recommended,
    )


def check_folder(folder: Path) -> None:
    """Raise an error if :func:`report` would replace files that no run wrote."""
    if folder.exists() and not folder.is_dir():
        raise InputDataError(f"--output {folder} is a file. Name a folder.")
    mark = "(?m)^bandit,seed,num_pulls|Matplotlib version"
    for name in ("rounds.csv", "regret.png"):
        require_own("--output", folder / name, mark, None)


def load_problem(
    args: SimulateOptions,
) -> tuple[FiniteArmProblem, dict[str, Any], Sequence[str]]:
    """Return the problem, the options of its :class:`SuggestLoop`, and the names.

    The table is read as `suggest` would read it.
    """
    # The other options of `suggest` keep their defaults.
    names = [option.name for option in fields(SuggestOptions)]
    own = {name: getattr(args, name) for name in names if hasattr(args, name)}
    del own["output"]  # a folder
    options = SuggestOptions(**own | {"arms": args.table})
    require_different_columns(options)
    campaign = Campaign(options)
    require_column(campaign.file_rows, args.reward, args.table, "--reward")
    is_kept = campaign.candidate_of >= 0
    rewards = campaign.file_rows[args.reward][is_kept]
    rewards = reward_column(rewards, may_be_empty=False)
    rewards = rewards.groupby(campaign.candidate_of[is_kept]).mean()
    campaign.make_features()
    note(
        "results, regret and --noise-std are in standard deviations of "
        f"{args.reward!r}, which is {rewards.std(ddof=0):.4g}, results from the mean "
        f"{rewards.mean():.4g}"
    )
    problem = FiniteArmProblem(
        campaign.features.arms,
        standardized(rewards),
        args.noise_std,
        not args.minimize,
    )
    chosen = {"batch_size": args.batch_size, **bandit_options(campaign)}
    return problem, chosen, campaign.table[options.id].tolist()


def run_bandit(
    bandit: FiniteArmBandit | SuggestLoop,
    problem: FiniteArmProblem,
    horizon: int,
    *,
    name: str,
    seed: int,
    generator: torch.Generator,
    batch_size: int | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Ask and tell until ``horizon`` pulls are told; return one row per round.

    ``generator`` draws the noise of the rewards. All columns except ``batch_size``
    count from the start. ``seconds`` is the bandit's own time; ``num_best_found`` is
    how many of the best 1 % of all arms were pulled. The columns that start with
    ``uniform`` are the expected values of uniform choice.
    """
    picks: list[Tensor] = []
    recommended: list[int] = []
    seconds = [0.0]
    hidden = True if quiet else None
    with tqdm(desc=f"{name}, seed {seed}", total=horizon, disable=hidden) as progress:
        while bandit.num_pulls < horizon:
            start = perf_counter()
            indices = bandit.ask(min(horizon - bandit.num_pulls, batch_size or horizon))
            asked = perf_counter()
            if picks:
                # The posterior has all rewards now, so the best arm costs nothing.
                recommended.append(bandit.best_arm())
            rewards = problem.sample(indices, generator)
            told = perf_counter()
            bandit.tell(indices, rewards)
            seconds.append(seconds[-1] + asked - start + perf_counter() - told)
            picks.append(indices)
            progress.update(len(indices))
        recommended.append(bandit.best_arm())
    rounds = _counted(picks, problem)
    rounds["seconds"] = seconds[1:]
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

    ``rounds`` are the tables of ``run_bandit``, concatenated.
    """
    num_runs = rounds.groupby("bandit")["seed"].nunique().max()
    if num_runs > 1:
        title = f"{title}, repetitions {num_runs:,}"
    print(f"\n{title}\n\n{outcome_table(rounds, problem)}\n{recommended}")
    print(
        f"best 1 %: how many of these {int(best_arms(problem).sum()):,} candidates "
        "were measured. simple regret: of the candidate\nthat is recommended at the "
        "end. All columns are means over repetitions. Uniform choice: expected\nvalues;"
        " its simple regret is that of the best candidate that it measures."
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
    # Names are no formulas.
    unit = reward_unit and reward_unit.replace("$", r"\$")
    plot_regret(right, runs, reward_unit=unit)
    figure.suptitle(title.replace("$", r"\$"), fontsize="medium")
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
        "seconds": ("seconds", "{:,.1f}"),
    }
    shown = {
        label: means[column].map(form.format, na_action="ignore").fillna("")
        for label, (column, form) in columns.items()
    }
    return pd.DataFrame(shown).rename_axis(None).to_string()


def recommendation(
    bandit: FiniteArmBandit | SuggestLoop,
    problem: FiniteArmProblem,
    arm_names: Sequence[str],
) -> str:
    """Return a sentence about the arm that a bandit recommends."""
    best = bandit.best_arm()
    return (
        f"\nBest candidate found: {arm_names[best]}, mean result "
        f"{problem.mean_rewards[best].item():.4g}; the best of all candidates has "
        f"{problem.best_value:.4g}.\n"
    )
