"""Whole runs: with the same random numbers, the arms of the dense reference."""

import itertools

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel

from botorch_bkb import BBKB, BKB, GPBUCB, GPUCB
from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    LogWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    SrinivasWidth,
)
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.models.utils.draws import seed_of, seeded_generator, UPDATES
from botorch_bkb.optim import FixedSize, ProductRule, SumRule
from tests.bandits import rbf
from tests.helpers import gram_matrix, seeded
from tests.reference import coupled_uniforms, run_bandit


KERNELS = {
    "rbf": rbf(0.3),
    "matern": MaternKernel(nu=2.5).double(),
    "linear": LinearKernel().double(),
    "sum": rbf(0.3) + LinearKernel().double(),
    "product": rbf(0.5) * MaternKernel(nu=1.5).double(),
    "tanimoto": TanimotoKernel().double(),
}
F, DELTA, NOISE = 0.7, 0.1, 0.2
BBKB_WIDTH = PracticalBBKBWidth(F, None, DELTA)
EXACT_WIDTH = ChowdhuryGopalanWidth(F, None, DELTA)
# Class, schedule, rule, and the reference's names of rule and width.
BANDITS = {
    "bkb": (BKB, PracticalBKBWidth(F, None, DELTA), FixedSize(1), "fixed", "bkb"),
    "bbkb": (BBKB, BBKB_WIDTH, SumRule(), "sum", "bbkb"),
    "plates": (BBKB, BBKB_WIDTH, FixedSize(8), "fixed", "plates"),
    "gpucb": (GPUCB, EXACT_WIDTH, FixedSize(1), "fixed", "gpucb"),
    "gpbucb": (GPBUCB, EXACT_WIDTH, ProductRule(), "product", "gpucb"),
    "srinivas": (GPUCB, SrinivasWidth(DELTA), FixedSize(1), "fixed", "srinivas"),
    "log": (GPUCB, LogWidth(0.8, 4.0), FixedSize(1), "fixed", "log"),
}


def make_arms(kernel_name, num_arms=80):
    """Return arms with near-duplicates: every fourth is another one up to 1e-7."""
    generator = seeded(7)
    if kernel_name == "tanimoto":
        bits = torch.rand(num_arms, 24, generator=generator) < 0.4
        bits[:, 0] = True
        return torch.unique(bits.double(), dim=0)
    arms = torch.rand(num_arms, 3, generator=generator, dtype=torch.double)
    arms[::4] = arms[1::4] + 1e-7 * arms[::4]
    return arms


def noisy(truth, seed):
    noises = np.random.default_rng(seed)
    return lambda arm: truth[arm] + 0.3 * noises.normal()


def compare(name, kernel, arms, truth, num_pulls, resampling="independent"):
    """Run package and reference side by side."""
    bandit_class, schedule, rule, rule_name, width = BANDITS[name]
    exact = bandit_class in (GPUCB, GPBUCB)
    coupled = resampling == "coupled"
    bandit = bandit_class(
        arms,
        kernel,
        NOISE,
        confidence=schedule,
        batch_rule=rule,
        generator=seeded(3),
        **({} if exact else {"resampling": resampling}),
    )
    reward, batches, sets = noisy(truth, 1), [], []
    while bandit.num_pulls < num_pulls:
        indices = bandit.ask()
        batches.append(indices.tolist())
        sets.append(sorted(bandit.inducing_indices.tolist()))
        bandit.tell(indices, [reward(arm) for arm in indices.tolist()])

    first = seeded(3)
    seed, updates = seed_of(first), itertools.count()

    def draw_uniforms(n):
        if coupled:  # once, for all arms
            return coupled_uniforms(seed, n)
        stream = seeded_generator(seed, UPDATES, next(updates))
        return torch.rand(n, generator=stream, dtype=torch.double).numpy()

    gram = gram_matrix(kernel, arms)
    expected, expected_sets = run_bandit(
        gram,
        NOISE,
        noisy(truth, 1),
        lambda: int(torch.randint(len(arms), (1,), generator=first)),
        draw_uniforms,
        num_pulls,
        rule=rule_name,
        width=width,
        exact=exact,
        coupled=coupled,
        size=getattr(rule, "size", 1),
        F=F,
        delta=DELTA,
    )
    assert batches == expected
    assert sets == expected_sets


def runs():
    """A sparse one with every kernel; every other width and rule with one of them."""
    for number, name in enumerate(KERNELS):
        resampling = "independent" if number % 4 < 2 else "coupled"
        yield ("bkb", "bbkb")[number % 2], resampling, name
    for other, name in zip([*BANDITS][2:], KERNELS, strict=False):
        yield other, "independent", name


@pytest.mark.parametrize(("name", "resampling", "kernel_name"), list(runs()))
def test_same_arms_as_the_dense_reference(name, resampling, kernel_name):
    """Over 100 pulls each; near-duplicate arms, and linear kernels of rank three."""
    kernel, arms = KERNELS[kernel_name], make_arms(kernel_name)
    gram = gram_matrix(kernel, arms)
    root = np.linalg.cholesky(gram + 1e-8 * np.eye(len(arms)))
    truth = root @ np.random.default_rng(0).normal(size=len(arms))
    compare(name, kernel, arms, truth, 100, resampling)


def test_same_arms_for_hundreds_of_steps():
    arms = make_arms("rbf", 100)
    compare("bbkb", KERNELS["rbf"], arms, np.sin(7 * arms.sum(dim=-1).numpy()), 300)
