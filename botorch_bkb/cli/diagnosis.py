"""Checks of a fit: a description in one line, and whether it can be trusted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.warnings import BotorchWarning
from scipy import special
from torch import Tensor

from botorch_bkb.arms import ProductArms
from botorch_bkb.arms.units import extreme_arms
from botorch_bkb.bandits import GPBandit
from botorch_bkb.bandits.fitting import MIN_PULLS_TO_FIT
from botorch_bkb.bandits.progress import DEVIATIONS_OF_95_PERCENT
from botorch_bkb.cli.arguments import SuggestOptions
from botorch_bkb.cli.results import add_results
from botorch_bkb.models.utils.rows import sum_replicates
from botorch_bkb.tables.columns import listing


# With fewer measured candidates there is no correlation, and with fewer than the second
# number no verdict.
MIN_CANDIDATES = 8
MIN_CANDIDATES_TO_JUDGE = 16
# Up to so many candidates, kernel and noise are fitted again for each fold. Of more,
# single results hardly change them.
NUM_FOLDS = 5
MAX_REFITTED = 256
# Chance gives a correlation above this over sqrt(n) once in twenty times.
CHANCE_QUANTILE = 1.645
NUM_REWARDS_SHOWN = 3
# Two decades.
MAX_RATIO = 100
MUCH_LESS = 0.8
# Intervals are wrong if the share inside is so many standard errors below 95 %: chance
# alone does that once in 60 times at most.
FAR_OFF = 3.0
# Rounds differ as a whole if they explain so much of the variance, and chance alone
# does that with a smaller probability than this.
SHARE_OF_ROUNDS = 0.1
CHANCE_OF_ROUNDS = 0.01
# Rounds are judged only if there are so many more measurements than coefficients.
MIN_FREE = 5


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Measurements, and their predictions by fits without their candidates.

    Attributes:
        measured: The ``n`` rewards, as they would be in the average group.
        weights: Their ``n`` weights in means of squared errors: an imprecise one says
            little of the model.
        mean: Their ``n`` predictions.
        low: The ``n`` lower ends of the 95 % interval of a single measurement.
        high: The upper ends.
        num_candidates: The number of measured candidates.
        correlation: Between the candidates' mean rewards and their predictions.
        error_of_mean: The root mean squared error if each candidate is predicted by the
            mean of the other candidates' measurements.
        is_refitted: Whether kernel and noise were fitted without the candidates, too.
    """

    measured: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_candidates: int
    correlation: float
    error_of_mean: float
    is_refitted: bool

    @property
    def can_judge(self) -> bool:
        """Whether enough candidates were measured to judge the model."""
        return self.num_candidates >= MIN_CANDIDATES_TO_JUDGE

    @property
    def error(self) -> float:
        """The root mean squared error."""
        squares = (self.mean - self.measured) ** 2
        return float(np.sqrt(np.average(squares, weights=self.weights)))

    @property
    def num_inside(self) -> int:
        """The number of measurements inside their 95 % interval."""
        is_inside = (self.low <= self.measured) & (self.measured <= self.high)
        return int(is_inside.sum())

    @property
    def share_inside(self) -> float:
        """The share of measurements inside their 95 % interval."""
        return self.num_inside / len(self.measured)

    @property
    def least_share(self) -> float:
        """The least such share, up to rare chance, if the intervals are right.

        Errors of one candidate's measurements are correlated: candidates are counted.
        """
        return 0.95 - FAR_OFF * (0.95 * 0.05 / self.num_candidates) ** 0.5

    @property
    def is_too_sure(self) -> bool:
        """Whether too few measurements lie inside."""
        return self.share_inside < self.least_share

    @property
    def beats_mean(self) -> bool:
        """Whether the predictions are better than the mean of the others."""
        return self.error < self.error_of_mean


def is_fitted(rewards: Tensor) -> bool:
    """Whether kernel and noise are fitted: enough results, and not all equal."""
    return len(rewards) >= MIN_PULLS_TO_FIT and has_spread(rewards)


def warped(
    bandit: GPBandit, rewards: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return rewards and their noise variances as the model takes them.

    ``noise`` is NaN, or None for all, where it is not known: that of the bandit.
    """
    if noise is None:
        noise = torch.full_like(rewards, torch.nan)
    if bandit.warp is not None:
        sign = 1 if bandit.maximize else -1
        rewards, noise = bandit.warp.measured(sign * rewards, noise)
        rewards = sign * rewards
    return rewards, noise.where(~noise.isnan(), bandit.noise_variance)


def diagnose(
    bandit: GPBandit, own: pd.DataFrame, others: pd.DataFrame | None = None
) -> tuple[str, HeldOut | None]:
    """Describe a bandit's fit to ``n`` measurements; also return held-out predictions.

    ``own`` are the measurements, and ``others`` those of earlier campaigns and of
    controls, as :func:`~botorch_bkb.cli.results.told_table` returns them.
    """
    indices, rewards, noise = _tensors(own)
    # Those of equal features are one candidate for the model.
    measured, place = bandit._table.first_equal(indices).unique(return_inverse=True)
    values, variances = warped(bandit, rewards, noise)
    weights = _weights(bandit, variances)
    spread = torch.cov(values, correction=0, aweights=weights)
    noise_share = ((weights @ variances) / weights.sum() / spread).item()
    parts = [f"noise is {noise_share:.0%} of the results' variance"]
    told = bandit._observations.told
    # Controls and candidates of earlier campaigns tell the noise as well.
    samples = torch.column_stack([told.indices, told.labels[:, 1:]])
    is_repeated = len(samples.unique(dim=0)) < len(samples)
    is_repeated |= len(measured) < len(indices)
    if not is_repeated and bandit._surrogate.fit.known_noise is None:
        parts[0] += " (a guess: no candidate was measured twice)"
    if bandit.warp is not None:
        side, sign = ("below", 1) if bandit.maximize else ("above", -1)
        limit = sign * bandit.warp.median
        parts.append(f"results {side} {limit:.3g} are on a logarithmic scale")
    held_out = _hold_out(bandit, measured, place, own, others)
    if held_out is not None:
        parts.append(
            "cross-validated correlation between predicted and measured results: "
            f"{held_out.correlation:.2f}"
        )
    return "; ".join(parts), held_out


def intervals_trouble(held_out: HeldOut) -> str | None:
    """Return that the model is overconfident, if it is."""
    if not (held_out.can_judge and held_out.is_too_sure):
        return None
    return (
        f"do not trust the intervals: {held_out.share_inside:.0%} of the results lie "
        f"inside their 95 % interval, and at least {held_out.least_share:.0%} should"
    )


def fit_trouble(held_out: HeldOut) -> str | None:
    """Return that the fit cannot be told from guessing, if it cannot."""
    chance = CHANCE_QUANTILE / math.sqrt(held_out.num_candidates)
    if held_out.correlation > chance or not held_out.can_judge:
        return None
    return (
        "the model cannot yet be told from guessing. Early on this is normal: "
        "continue. If it stays so, check that results and candidates belong together, "
        "and that the columns hold what the result depends on"
    )


def round_effect(
    held_out: HeldOut, rounds: Sequence[str], advice: str
) -> tuple[str, str | None] | None:
    """Return how much of the variance rounds explain beside held-out predictions.

    By least squares: results depend on the predictions, since later rounds may have
    better candidates, and on one constant for all rounds, or one for each. The share
    that chance alone gives is subtracted.
    Returns a description, and a warning with ``advice`` if rounds differ as a whole;
    None if there are too few measurements.
    """
    codes, names = pd.factorize(np.asarray(rounds, dtype=object))
    is_of = (codes[:, None] == np.arange(len(names))).astype("float64")
    num_more, num_free = len(names) - 1, len(codes) - len(names) - 1
    if num_more < 1 or num_free < MIN_FREE:
        return None
    y, predicted = held_out.measured, (held_out.mean - held_out.mean.mean())[:, None]
    errors, coefficients = [], np.empty(0)
    for columns in (np.ones_like(predicted), is_of):
        x = np.hstack([columns, predicted])
        coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
        errors.append(((y - x @ coefficients) ** 2).sum())
    by_chance = max(errors[1] / num_free, np.finfo("float64").tiny)
    gain = max(errors[0] - errors[1], 0.0)
    share = max(0.0, gain - num_more * by_chance) / ((y - y.mean()) ** 2).sum()
    p_value = special.fdtrc(num_more, num_free, gain / num_more / by_chance)
    if share < SHARE_OF_ROUNDS or p_value > CHANCE_OF_ROUNDS:
        return "no difference found (a small one cannot be excluded)", None
    text = f"{share:.0%} of the differences between results are between rounds"
    shifts = coefficients[:-1] - y.mean()
    low, high = shifts.argmin(), shifts.argmax()
    return text, (
        f"rounds differ as a whole, by {shifts[low]:+.2g} ({names[low]}) to "
        f"{shifts[high]:+.2g} ({names[high]}), and the model takes that for "
        f"differences between candidates. {advice}"
    )


def _tensors(told: pd.DataFrame) -> Iterator[Tensor]:
    """Return the candidates, rewards and noise variances of results."""
    names = "indices", "rewards", "noise"
    return (torch.tensor(told[name].to_numpy()) for name in names)


def _hold_out(
    bandit: GPBandit,
    measured: Tensor,
    place: Tensor,
    own: pd.DataFrame,
    others: pd.DataFrame | None,
) -> HeldOut | None:
    """Predict measured candidates by fits without them, unless they are too few."""
    if len(measured) < MIN_CANDIDATES:
        return None
    _, rewards, known = _tensors(own)
    is_refitted = len(measured) <= MAX_REFITTED
    if is_refitted:
        # Candidates of equal features are one.
        own = own.assign(indices=measured[place].numpy())
        told = pd.concat([own, others])
        *predicted, rewards = _predict_by_folds(bandit, told, place)
    else:
        offsets, unknown = _offsets(bandit, own["group"])
        rewards = rewards - offsets
    values, noise = warped(bandit, rewards, known)
    if not is_refitted:
        predicted = [*_predict_by_loo(bandit, measured, place, noise + unknown)]
    weights = _weights(bandit, noise)
    precisions = sum_replicates(1 / noise, place, len(measured))
    means = sum_replicates(values / noise, place, len(measured)) / precisions
    sums = sum_replicates(weights * rewards, place, len(measured))
    totals = sum_replicates(weights, place, len(measured))
    rest = ((sums.sum() - sums) / (totals.sum() - totals))[place]
    error_of_mean = np.average((rest - rewards).square(), weights=weights) ** 0.5
    # All measurements of a candidate have the same prediction.
    mean = torch.zeros_like(means).index_copy(0, place, predicted[0])
    # A constant prediction has no correlation.
    pairs = torch.stack([warped(bandit, mean)[0], means])
    C = torch.cov(pairs, aweights=_weights(bandit, 1 / precisions))
    correlation = (C[0, 1] / (C[0, 0] * C[1, 1]).sqrt()).nan_to_num(0.0)
    return HeldOut(
        measured=rewards.numpy(),
        weights=weights.numpy(),
        mean=predicted[0].numpy(),
        low=predicted[1].numpy(),
        high=predicted[2].numpy(),
        num_candidates=len(measured),
        correlation=correlation.item(),
        error_of_mean=float(error_of_mean),
        is_refitted=is_refitted,
    )


def _weights(bandit: GPBandit, noise: Tensor) -> Tensor:
    """Return weights of measurements with these noise variances in sums of squares."""
    std = bandit._surrogate.fit.units.std
    return 1 / (1 + noise / std**2)


def _offsets(bandit: GPBandit, group: Any) -> Tensor:
    """Return the offsets of ``n`` groups and their variances, ``2 x n``."""
    table = pd.DataFrame(bandit.groups())
    table = table[table["campaign"] == ""].set_index("group")[["offset", "std"]]
    fit = bandit._present()[0].fit
    # Of groups that the bandit has not seen.
    prior = fit.groups.offset_std * fit.reward_std if table["std"].any() else 0.0
    found = table.fillna(0.0).reindex(group).fillna({"offset": 0.0, "std": prior})
    return torch.tensor(found.to_numpy().T ** [[1], [2]])


def _predict_by_folds(bandit: GPBandit, told: pd.DataFrame, place: Tensor) -> Tensor:
    """Predict the first ``n`` results by fits to the arms of other folds, ``4 x n``.

    ``place`` has the numbers of their ``n`` candidates. The rows are means, the ends of
    intervals, and the rewards without the offsets of their groups.
    Kernel and noise are fitted again: those of the fit to all would predict even pure
    noise with a correlation of 0.3 to 0.5. Bounds are of means, and a single
    measurement may be beyond them, so there are none.
    """
    arms = bandit.arms
    if not isinstance(arms, ProductArms):
        # The extreme arms keep the ranges by which features are normalized.
        seen = told["indices"][told["control"] == ""]
        rows = np.union1d(seen, extreme_arms(arms))
        arms = arms[torch.from_numpy(rows)]
        told = told.assign(indices=np.searchsorted(rows, told["indices"]))
    generator = torch.Generator().manual_seed(0)
    fold_of = torch.randperm(int(place.max()) + 1, generator=generator) % NUM_FOLDS
    # All folds see the other results.
    fold = np.append(fold_of[place], np.full(len(told) - len(place), -1))
    predicted = torch.empty(4, len(place), dtype=torch.double)
    for number in range(NUM_FOLDS):
        part = GPBandit(
            arms,
            bandit.kernel_to_learn,
            maximize=bandit.maximize,
            generator=generator,
        )
        add_results(part, told[fold != number])
        with warnings.catch_warnings():
            # Warnings of a fit to a part of the data are not for the user.
            warnings.simplefilter("ignore", BotorchWarning)
            part.ask(1)  # fits
        out = told[fold == number]
        indices, rewards, noise = _tensors(out)
        offsets, unknown = _offsets(part, out["group"])
        ends = part._interval(indices, warped(part, rewards, noise)[1] + unknown)
        found = torch.stack([part.predict(indices)[0], *ends, rewards - offsets])
        predicted[:, fold_of[place] == number] = found
    return predicted


def _predict_by_loo(
    bandit: GPBandit, measured: Tensor, indices: Tensor, noise: Tensor
) -> Tensor:
    """Predict ``n`` measurements by the fit to all, given all other arms, ``3 x n``."""
    surrogate, posterior = bandit._present()
    # Bounds are of means: a single measurement may be beyond them.
    units = replace(surrogate.fit.units, bounds=(-math.inf, math.inf))
    sign = 1 if bandit.maximize else -1
    found = [torch.cat(posterior.left_out(arm)) for arm in measured.split(1)]
    mean, variance = torch.stack(found, dim=-1).double().cpu()
    std = (variance[indices] + noise / units.std**2).sqrt()
    half = sign * DEVIATIONS_OF_95_PERCENT * std
    ends = torch.stack([0 * half, -half, half]) + mean[indices]
    return sign * units.original(ends)


def has_spread(rewards: Tensor) -> bool:
    """Whether ``n`` rewards differ by more than rounding."""
    largest = (rewards - rewards.mean()).square().max()
    # Squares of tiny rewards are zero.
    return bool(largest > (1e-12 * rewards.abs().max()).square())


def reward_trouble(
    bandit: GPBandit,
    rewards: Tensor,
    noise: Tensor | None,
    names: Sequence[str],
    log_reward: bool | None = False,
    outcomes: Sequence[Tensor] = (),
) -> str | None:
    """Return why a model cannot be fitted well to rewards of some ids, if so.

    ``noise`` are the rewards' noise variances, NaN where not known. ``log_reward`` says
    whether rewards are logarithms; None if they cannot be. ``outcomes`` are those of
    scores, which hide marks.
    """
    num_rewards = len(rewards)
    if num_rewards >= 2 and not has_spread(rewards):
        return (
            f"all {num_rewards:,} results are {rewards[0].item():.10g}: there is no "
            "difference between candidates to learn, and these results do not guide "
            "the batch"
        )
    values, variances = warped(bandit, rewards, noise)
    distances = (values - values.median()).abs()
    # A logarithmic scale of poor results hides marks such as -9999.
    scale = _weights(bandit, variances).sqrt()
    told = [(distances * scale, rewards)]
    told += [] if log_reward else [(rewards.abs() * scale, rewards)]
    told += [(each.abs(), each) for each in outcomes]
    found = [(rows, own) for sizes, own in told if (rows := _far(sizes))]
    if not found:
        return None
    rows, own = found[0]
    can_log = log_reward is False and bool((rewards > 0).all())
    shown = [f"{own[n].item():g} of {names[n]}" for n in rows]
    return (
        f"{len(rows):,} of {num_rewards:,} results "
        f"({listing(shown, NUM_REWARDS_SHOWN)}) are far beyond all others. Correct "
        "slips. Write failed for a failed measurement, and the worst real result for a "
        f"penalty. If they are right, {'pass --log-reward' if can_log else 'continue'}"
    )


def bounds_trouble(rewards: Tensor, args: SuggestOptions) -> str | None:
    """Return that most rewards of an outcome are outside of its bounds, if they are."""
    low, high = args.bounds_of.get(args.outcome_columns[0], (-math.inf, math.inf))
    num_out = int(((rewards < low) | (rewards > high)).sum())
    if 2 * num_out <= len(rewards):
        return None
    return (
        f"{num_out:,} of {len(rewards):,} results are outside of --bounds, and no "
        "prediction is. Write both in the same unit"
    )


def objective_troubles(told: pd.DataFrame, args: SuggestOptions) -> list[str]:
    """Return which columns of a score have all results on one side of their range."""
    return [
        f"no result of {name!r} is within {low:g}:{high:g}, its range in --objective, "
        "so it does not distinguish candidates. Write both in the same unit"
        for name, (_, low, high, *_) in args.objective
        if len(told) and ((told[name] < low).all() or (told[name] > high).all())
    ]


def _far(sizes: Tensor) -> list[int]:
    """Return those of ``n`` results that are far larger than all others, if any are.

    One, or equal ones, are at 5 times the next one; two, or a tenth, at 10 times; up to
    half at 1,000 times; most, and any of too few, at a million times.
    """
    distinct, num_results = sizes[sizes > 0].unique().tolist(), len(sizes)
    for size, larger in pairwise(distinct):
        is_far = sizes >= larger
        num_far, ratio = int(is_far.sum()), 1e6
        if num_results >= MIN_CANDIDATES:
            is_few = num_far <= max(2, num_results // 10)
            ratio = 10 if is_few else 1e3 if 2 * num_far <= num_results else 1e6
            ratio = 5 if larger == distinct[-1] else ratio
        if larger >= ratio * size:
            return is_far.nonzero().flatten().tolist()
    return []


def decades_trouble(rewards: Tensor, minimize: bool) -> str | None:
    """Return why the logarithms of ``n`` rewards would be better, if they would.

    They are if rewards of one sign, few of them 0, span more than two decades, and
    their logarithms are less skewed: yields from 0.5 to 95 % are right as they are.
    """
    values = np.delete(rewards.numpy(), _far(rewards.abs()))
    is_negative, sizes = bool((values < 0).any()), np.abs(values[values != 0])
    if (is_negative and (values > 0).any()) or 2 * len(sizes) < len(values):
        return None
    if len(sizes) < MIN_PULLS_TO_FIT or sizes.max() <= MAX_RATIO * sizes.min():
        return None
    logs = np.log10(sizes)
    of_logs, of_sizes = pd.DataFrame([logs, sizes]).T.skew().abs()
    if of_logs >= MUCH_LESS * of_sizes:
        return None
    change = "leave out" if minimize else "pass"
    before = [f"write them without the minus and {change} --minimize"] * is_negative
    before += ["replace 0 by the detection limit"] * (len(sizes) < len(values))
    return (
        f"results span {np.ptp(logs):.1f} decades, from {sizes.min():g} to "
        f"{sizes.max():g} in size, and the model sees hardly anything but the largest. "
        "Pass --log-reward, which fits their logarithms"
        + "".join(f". Logarithms need positive results: {step}" for step in before)
    )
