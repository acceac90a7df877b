"""What a fit found, in one line, and whether it can be trusted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.posteriors import GPyTorchPosterior
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.bandits.hyperparameters import (
    extreme_arms,
    feature_units,
    MIN_PULLS_TO_FIT,
)
from botorch_bkb.bandits.learned_kernels import (
    fingerprint_columns,
    lengthscales,
    variance_shares,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.lazy_rows import as_dense
from botorch_bkb.models.utils.replicates import sum_replicates


# Fewer measured candidates make no correlation, and fewer than these no verdict.
MIN_CANDIDATES = 8
MIN_CANDIDATES_TO_JUDGE = 16
# Of so many candidates the fit is made anew without each fifth of them; of more, few
# lengthscales do not follow single rewards.
NUM_FOLDS = 5
MAX_REFITTED = 256
# Chance gives a correlation above this over sqrt(n) once in twenty times.
CHANCE_QUANTILE = 1.645
# One measurement that makes so much of the variance is all that a fit sees.
DOMINANT_SHARE = 0.8
NUM_COLUMNS_SHOWN = 3
# Of a normal distribution, 95 % lies within this many deviations.
DEVIATIONS_OF_95_PERCENT = 1.96
NOT_FITTED = (
    "Kernel and noise are assumed so far: they are fitted from "
    f"{MIN_PULLS_TO_FIT} measurements on."
)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What is predicted of measured candidates by fits without their own rewards.

    Attributes:
        arms: The ``P`` measured candidates, ascending.
        mean: The ``P`` predicted mean rewards.
        variance: The ``P`` variances of a single measurement: that of the mean reward
            and the noise of the fit to all.
        is_refitted: Whether kernel and noise were fitted anew without them, too, or are
            those of the fit to all.
    """

    arms: Tensor
    mean: Tensor
    variance: Tensor
    is_refitted: bool


@dataclass(frozen=True)
class FitDiagnosis:
    """What a fit found.

    Attributes:
        noise_share: The noise variance as a share of the rewards' variance.
        lengthscales: The shortest lengthscale of each column's features, of the trend
            where there is rough detail, as a share of their range, ascending.
        correlation: Between the mean rewards of measured candidates and what is
            predicted of each if it is left out; NaN if there are too few.
        num_candidates: The number of measured candidates.
        held_out: The predictions behind the correlation; None if there are too few.
        detail_share: Which share of the kernel's variance is rough detail.
    """

    noise_share: float
    lengthscales: dict[str, float]
    correlation: float
    num_candidates: int
    held_out: HeldOut | None = None
    detail_share: float = 0.0

    @override
    def __str__(self) -> str:
        shown = list(self.lengthscales.items())[:NUM_COLUMNS_SHOWN]
        columns = ", ".join(f"{name} ({scale:.2g})" for name, scale in shown)
        parts = [f"noise is {self.noise_share:.0%} of the rewards' variance"]
        if columns:
            parts.append(
                f"columns that matter most (lengthscale over range): {columns}"
            )
        if self.detail_share > 0:
            parts.append(
                f"rough detail beside them is {self.detail_share:.0%} of the kernel's "
                "variance"
            )
        if not math.isnan(self.correlation):
            parts.append(
                "candidates left out are predicted with a correlation of "
                f"{self.correlation:.2f}"
            )
        return "; ".join(parts)

    @property
    def trouble(self) -> str | None:
        """Why the fit cannot tell candidates apart, if it cannot."""
        chance = CHANCE_QUANTILE / math.sqrt(self.num_candidates)
        if self.num_candidates < MIN_CANDIDATES_TO_JUDGE or self.correlation > chance:
            return None
        return (
            "the fit cannot tell candidates apart: those left out are predicted with a "
            f"correlation of {self.correlation:.2f}, and chance alone gives up to "
            f"{chance:.2f}. This batch is hardly better than a random one. Check that "
            "rewards and candidates belong together, and that the columns hold what "
            "the reward depends on"
        )


def diagnose(
    bandit: FiniteArmBandit, indices: Tensor, rewards: Tensor, sources: Sequence[str]
) -> FitDiagnosis:
    """Look at a bandit's fit to measurements.

    Args:
        bandit: A bandit that learns kernel and noise, asked after it was told them.
        indices: The ``n`` measured arms, repeats included, not all of one reward.
        rewards: Their ``n`` rewards.
        sources: The column of each feature, of those beside a fingerprint.
    """
    measured, inverse, counts = indices.unique(return_inverse=True, return_counts=True)
    means = sum_replicates(rewards, inverse, len(measured)) / counts
    correlation, held_out = math.nan, None
    if len(measured) >= MIN_CANDIDATES:
        is_refitted = len(measured) <= MAX_REFITTED
        if is_refitted:
            mean, variance = _predict_by_folds(bandit, measured, inverse, rewards)
        else:
            mean, variance = _predict_by_loo(bandit, measured, counts, means)
        variance = variance + bandit.noise_variance
        held_out = HeldOut(measured, mean, variance, is_refitted)
        # A constant prediction has no correlation: it tells nothing.
        pair = torch.stack([mean, means])
        correlation = torch.corrcoef(pair)[0, 1].nan_to_num(0.0).item()
    shortest: dict[str, float] = {}
    found = lengthscales(bandit.covar_module)
    for name, lengthscale in zip(sources, found.values(), strict=True):
        shortest[name] = min(lengthscale, shortest.get(name, math.inf))
    _, *details = variance_shares(
        bandit.covar_module, kernel_features(bandit, measured)
    )
    return FitDiagnosis(
        noise_share=bandit.noise_variance / rewards.var(correction=0).item(),
        lengthscales=dict(sorted(shortest.items(), key=lambda item: item[1])),
        correlation=correlation,
        num_candidates=len(measured),
        held_out=held_out,
        detail_share=sum(share for _, share in details),
    )


def kernel_features(bandit: FiniteArmBandit, rows: Tensor) -> Tensor:
    """Return arms in the units in which a bandit that learns evaluates its kernel."""
    low, width = feature_units(bandit.arms)
    given = as_dense(bandit.arms[rows])
    features = (given - low) / width
    bits = fingerprint_columns(bandit.covar_module, features.shape[-1])
    features[:, bits] = given[:, bits]
    return features


def _predict_by_folds(
    bandit: FiniteArmBandit, measured: Tensor, indices: Tensor, rewards: Tensor
) -> tuple[Tensor, Tensor]:
    """Predict each of ``P`` measured arms by a fit to those of the other folds.

    With the fit anew: one that has seen the rewards predicts pure noise with a
    correlation of 0.3 to 0.5, since its lengthscales were chosen for that.
    """
    # The others bring the units: those of the bandit are the ranges of all its arms.
    arms = bandit.arms[torch.cat([measured, extreme_arms(bandit.arms)])]
    generator = torch.Generator().manual_seed(0)
    fold = torch.randperm(len(measured), generator=generator) % NUM_FOLDS
    mean, variance = torch.empty(2, len(measured), dtype=arms.dtype)
    for number in range(NUM_FOLDS):
        seen = fold[indices] != number
        part = FiniteArmBandit(arms, learner=bandit.learner, generator=generator)
        part.tell(indices[seen], rewards[seen], external=True)
        with warnings.catch_warnings():
            # A verdict on a part of the data is no news.
            warnings.simplefilter("ignore", BotorchWarning)
            mean[fold == number], variance[fold == number] = part.predict(
                (fold == number).nonzero().squeeze(-1)
            )
    return mean, variance


def _predict_by_loo(
    bandit: FiniteArmBandit, measured: Tensor, counts: Tensor, means: Tensor
) -> tuple[Tensor, Tensor]:
    """Predict each of many measured arms by the fit to all, without its rewards."""
    inducing = bandit.inducing_indices
    scale = means.std(correction=0)
    noise_variance = bandit.noise_variance / scale.square() / counts
    model = SingleTaskDTCGP(
        kernel_features(bandit, measured),
        ((means - means.mean()) / scale).unsqueeze(-1),
        # Under 1e-6 GPyTorch would round it up, with a warning.
        noise_variance.clamp_min(1e-6).unsqueeze(-1),
        kernel_features(bandit, inducing) if len(inducing) < len(measured) else None,
        covar_module=bandit.covar_module,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    posterior = cast(GPyTorchPosterior, model.loo_posterior(observation_noise=False))
    mean, variance = posterior.mean.flatten(), posterior.variance.flatten()
    return mean * scale + means.mean(), variance * scale.square()


def is_fitted(bandit: FiniteArmBandit) -> bool:
    """Whether a bandit that learns has had enough results to fit kernel and noise."""
    return bandit.num_pulls >= MIN_PULLS_TO_FIT


def has_spread(rewards: Tensor) -> bool:
    """Whether ``n`` rewards differ: deviations of others would have no unit."""
    if len(rewards) < 2:
        return False
    largest = (rewards - rewards.mean()).square().max()
    # Equal up to rounding. Squares of tiny rewards are zero.
    return bool(largest > (1e-12 * rewards.abs().max()).square())


def reward_trouble(rewards: Tensor, names: Sequence[str]) -> str | None:
    """Return why little can be fitted to ``n`` rewards, if that is so.

    Args:
        rewards: The rewards.
        names: The ids of their candidates.
    """
    num_rewards = len(rewards)
    if num_rewards < 2:
        return None
    if not has_spread(rewards):
        return (
            f"all {num_rewards:,} rewards are {rewards[0].item():g}: nothing tells "
            "candidates apart, and the batch is only spread out"
        )
    squares = (rewards - rewards.mean()).square()
    place = int(squares.argmax())
    share = (squares[place] / squares.sum()).item()
    if num_rewards < MIN_CANDIDATES or share <= DOMINANT_SHARE:
        return None
    return (
        f"the reward {rewards[place].item():g} of {names[place]} alone makes "
        f"{share:.0%} of the rewards' variance, and the fit sees little else. Correct "
        "it if it is a slip; if it is right, a reward on another scale, such as its "
        "logarithm, tells more"
    )
