"""The default job: BBKB on Hartmann-6 restricted to Sobol arms."""

from __future__ import annotations

import argparse

import torch
from botorch.test_functions.synthetic import Hartmann
from gpytorch.kernels import RBFKernel

from botorch_bkb.acquisition.confidence import LogWidth
from botorch_bkb.bandits import BBKB
from botorch_bkb.cli.simulation import recommendation, report, run_bandit
from botorch_bkb.test_functions import FiniteArmProblem


# Chosen so that the default horizon finds a good arm in seconds on two cores. The width
# is the schedule of [bogunovic2016tvgpucb], far narrower than those of the theorems.
LENGTHSCALE = 0.35
NOISE_STD = 0.2
WIDTH = LogWidth(0.8, 4.0)


def run(args: argparse.Namespace) -> None:
    """Run the job and write its outcome."""
    generator = torch.Generator().manual_seed(args.seed)
    problem = FiniteArmProblem.from_test_function(
        Hartmann(dim=6), args.num_arms, noise_std=NOISE_STD, generator=generator
    )
    kernel = RBFKernel()
    kernel.lengthscale = LENGTHSCALE
    bandit = BBKB(
        problem.arms,
        covar_module=kernel,
        noise_variance=NOISE_STD**2,
        confidence=WIDTH,
        generator=generator,
    )
    rounds = run_bandit(
        bandit,
        problem,
        args.horizon,
        name="BBKB",
        seed=args.seed,
        generator=generator,
        quiet=args.quiet,
    )
    report(
        rounds,
        problem,
        args.output,
        title=f"BBKB on Hartmann-6, {args.num_arms:,} arms, {args.horizon:,} pulls, "
        f"noise {NOISE_STD}",
        recommended=recommendation(
            bandit, problem, [f"arm {arm:,}" for arm in range(args.num_arms)]
        ),
    )
