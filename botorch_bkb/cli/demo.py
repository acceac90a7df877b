"""The demonstration: a campaign on Hartmann-6, a greedy and a uniform choice."""

from __future__ import annotations

import argparse

import pandas as pd
import torch
from botorch.test_functions.synthetic import Hartmann

from botorch_bkb.bandits import EpsilonGreedyPolicy, GPBandit
from botorch_bkb.cli.simulate import check_folder, recommendation, report, run_bandit
from botorch_bkb.test_functions import FiniteArmProblem


BATCH_SIZE = 5
NOISE_STD = 0.2
POLICIES = {"GPBandit": None, "greedy": EpsilonGreedyPolicy(0.0)}


def run(args: argparse.Namespace) -> None:
    """Run the campaigns and write their outcome."""
    check_folder(args.output)
    generator = torch.Generator().manual_seed(args.seed)
    problem = FiniteArmProblem.from_test_function(
        Hartmann(dim=6), args.num_arms, noise_std=NOISE_STD, generator=generator
    )
    bandits = {
        name: GPBandit(
            problem.arms,
            policy=policy,
            generator=torch.Generator().manual_seed(args.seed),
        )
        for name, policy in POLICIES.items()
    }
    rounds = [
        run_bandit(
            bandit,
            problem,
            args.horizon,
            name=name,
            seed=args.seed,
            generator=generator,
            batch_size=BATCH_SIZE,
            quiet=args.quiet,
        )
        for name, bandit in bandits.items()
    ]
    names = [f"candidate {arm:,}" for arm in range(args.num_arms)]
    report(
        pd.concat(rounds, ignore_index=True),
        problem,
        args.output,
        title=f"Hartmann-6, {args.num_arms:,} candidates, {args.horizon:,} "
        f"measurements in batches of {BATCH_SIZE}, noise {NOISE_STD}",
        recommended=recommendation(bandits["GPBandit"], problem, names),
    )
