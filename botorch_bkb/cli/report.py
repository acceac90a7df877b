"""One page that explains a batch: the report of `suggest`."""

from __future__ import annotations

import argparse
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

import botorch
import gpytorch
import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb._version import __version__
from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.columns import days, is_numeric, row_name, to_numbers
from botorch_bkb.cli.diagnosis import (
    DEVIATIONS_OF_95_PERCENT,
    FitDiagnosis,
    HeldOut,
    is_fitted,
    kernel_features,
    MIN_CANDIDATES_TO_JUDGE,
    NOT_FITTED,
    NUM_FOLDS,
    reward_trouble,
)
from botorch_bkb.cli.page import image, page, picture, Piece, svg_of, table, tag
from botorch_bkb.cli.tables import require_column
from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.models.utils.replicates import sum_replicates
from botorch_bkb.plotting import blank_figure, plot_predicted, plot_progress


if TYPE_CHECKING:
    from matplotlib.figure import Figure


# A share of intervals is far from 95 % where it is so many standard errors away: chance
# alone does that once in 60 times at most.
FAR_OFF = 3.0
# Of a kernel of many lengthscales.
NUM_LENGTHSCALES_SHOWN = 10
# In inches; fonts stay legible where the picture is as wide as a telephone.
PICTURE_SIZE = (4.5, 3.9)


@dataclass(frozen=True, eq=False)
class Rounds:
    """The measurements, round by round.

    Attributes:
        names: What each round is called.
        rewards: The rewards of each, at least one.
        told_by: How the rounds are known, in words.
    """

    names: list[str]
    rewards: list[np.ndarray]
    told_by: str


@dataclass(frozen=True)
class Check:
    """How well measurements are predicted by fits without their candidates.

    Attributes:
        measured: The ``n`` rewards.
        mean: The ``n`` predictions.
        half_width: Half the widths of the 95 % intervals around them.
        num_candidates: The number of candidates that they are of.
        error: The root mean squared error.
        error_of_mean: That of the mean of all other candidates' measurements.
    """

    measured: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray
    num_candidates: int
    error: float
    error_of_mean: float

    @property
    def share_inside(self) -> float:
        """The share of measurements inside their 95 % interval."""
        return float((np.abs(self.measured - self.mean) <= self.half_width).mean())

    @property
    def bounds_of_share(self) -> tuple[float, float]:
        """Where that share lies, but for rare chance, if the intervals are right.

        Measurements of one candidate err together, so that candidates are counted.
        """
        error = (0.95 * 0.05 / self.num_candidates) ** 0.5
        return 0.95 - FAR_OFF * error, 0.95 + FAR_OFF * error


def plan_report(args: argparse.Namespace, campaign: Campaign) -> Rounds | None:
    """Return the measurements by round; None if no report is asked for.

    Rounds are in the order of their numbers or dates, else of the table.

    Raises:
        InputDataError: If the report's file is one of the tables or its folder is not
            there, the column of rounds is not there or has a gap, or is of no use.
    """
    if args.report is None:
        if args.round is not None:
            raise InputDataError("--round is for the report. Pass --report HTML too.")
        return None
    for path in (args.arms, args.observations, args.output):
        if path is not None and path.resolve() == args.report.resolve():
            raise InputDataError(
                f"--report {args.report} is one of the tables, which it would replace. "
                "Name another file."
            )
    if not args.report.parent.is_dir():
        raise InputDataError(f"There is no folder {args.report.parent} for --report.")
    told = (~campaign.rewards.isnan()).numpy()
    rewards = campaign.rewards.numpy()[told]
    if args.round is None:
        size = args.batch_size
        starts = range(0, len(rewards), size)
        names = [f"{n + 1:,} to {min(n + size, len(rewards)):,}" for n in starts]
        told_by = (
            "No column tells the rounds (--round names one): shown are measurements "
            f"by {size:,} (--batch-size), in the order of their table"
        )
        return Rounds(names, [rewards[n : n + size] for n in starts], told_by)
    if args.observations is None or campaign.results.empty:
        return Rounds([], [], "Nothing is measured yet")
    require_column(campaign.results, args.round, args.observations, "--round")
    column = campaign.results[args.round]
    missing = column.isna() & told
    if missing.any():
        raise InputDataError(
            f"{args.observations} has no round in {row_name(missing)}, column "
            f"{args.round!r}. Fill it, or leave out --round."
        )
    column = column[told]
    words = column.map("{:.15g}".format if is_numeric(column) else str)
    dates = None if column.empty or is_numeric(column) else days(column)
    if dates is not None:
        keys = dates[0].to_numpy()
    elif is_numeric(column):
        keys = to_numbers(column).to_numpy()
    else:
        keys = pd.factorize(words)[0]
    places = [np.flatnonzero(keys == key) for key in np.unique(keys)]
    return Rounds(
        names=[str(words.iloc[place[0]]) for place in places],
        rewards=[rewards[place] for place in places],
        told_by=f"Rounds are those of column {args.round}",
    )


def report_page(
    args: argparse.Namespace,
    bandit: FiniteArmBandit,
    campaign: Campaign,
    batch: pd.DataFrame,
    rounds: Rounds,
    feature_names: Sequence[str],
    diagnosis: FitDiagnosis | None,
    structures: Sequence[str] | None = None,
) -> str:
    """Return the page: what was measured, what the fit is worth, and the batch.

    Args:
        args: The options of `suggest`.
        bandit: The bandit that was asked for the batch.
        campaign: The tables.
        batch: One row per distinct pick, as `describe_batch` returns it; columns of
            other names are shown as they are.
        rounds: The measurements, as :func:`plan_report` returns them.
        feature_names: The name of each feature with a lengthscale.
        diagnosis: What the fit found; None if there was nothing to fit.
        structures: An SVG picture per row of ``batch``; None for no pictures.
    """
    ids = pd.Index(campaign.arms[args.id])
    batch = batch.dropna(axis="columns", how="all")
    sections = [_summary(args, bandit, campaign, batch, ids)]
    pictures: list[Element] = []
    if bandit.num_pulls > 0:
        told = ~campaign.rewards.isnan()
        indices, rewards = campaign.indices[told], campaign.rewards[told]
        problems = [reward_trouble(rewards, list(ids[indices.numpy()]))]
        check = held_out = None
        if diagnosis is not None:
            problems.append(diagnosis.trouble)
            held_out = diagnosis.held_out
        if held_out is not None:
            check = check_predictions(held_out, indices, rewards)
        headline, sentences = verdict(check, list(filter(None, problems)))
        sections.append(
            tag(
                "div",
                tag("p", tag("strong", headline)),
                tag("ul", *(tag("li", sentence) for sentence in sentences)),
                class_="verdict",
            )
        )
        pictures.append(_progress_section(rounds, args))
        if check is not None and held_out is not None:
            pictures.append(_predicted_section(check, held_out.is_refitted, args))
    sections.append(tag("div", *pictures, class_="pictures"))
    sections.append(_batch_section(args, bandit, campaign, batch, ids, structures))
    sections.append(_assumed_section(args, bandit, campaign, batch, feature_names))
    return page(f"Next batch for {args.arms.name}", sections)


def check_predictions(held_out: HeldOut, indices: Tensor, rewards: Tensor) -> Check:
    """Compare ``n`` measurements with what fits without their candidates predict.

    Args:
        held_out: The predictions.
        indices: The arm of each measurement.
        rewards: The rewards.
    """
    place = torch.searchsorted(held_out.arms, indices)
    num_candidates = len(held_out.arms)
    sums = sum_replicates(rewards, place, num_candidates)
    counts = place.bincount(minlength=num_candidates)
    mean_of_others = (sums.sum() - sums) / (counts.sum() - counts)
    half_width = DEVIATIONS_OF_95_PERCENT * held_out.variance.sqrt()

    def error_of(predicted: Tensor) -> float:
        return (predicted[place] - rewards).square().mean().sqrt().item()

    return Check(
        measured=rewards.numpy(),
        mean=held_out.mean[place].numpy(),
        half_width=half_width[place].numpy(),
        num_candidates=num_candidates,
        error=error_of(held_out.mean),
        error_of_mean=error_of(mean_of_others),
    )


def verdict(check: Check | None, problems: Sequence[str]) -> tuple[str, list[str]]:
    """Say whether the rest of the page can be believed, and why.

    The model is not to be trusted if there is a problem or if it predicts no better
    than a mean; its intervals are not if too few measurements lie inside.

    Args:
        check: How it predicts, if that could be checked.
        problems: What is known of rewards and fit already.

    Returns:
        A headline, and sentences.
    """
    reasons, headline = list(problems), "Nothing speaks against the model."
    if check is None or check.num_candidates < MIN_CANDIDATES_TO_JUDGE:
        headline = "The model cannot be judged yet."
        if not problems:
            reasons.append(
                "it is judged by candidates that are held out, from "
                f"{MIN_CANDIDATES_TO_JUDGE} measured ones on: of fewer, chance decides"
            )
    else:
        share, (least, most) = check.share_inside, check.bounds_of_share
        inside = f"{_percent(share)} of the measurements lie inside their 95 % interval"
        errors = (
            "on measurements of candidates that it has not seen its typical error is "
            f"{_number(check.error)}; that of the mean of the other candidates is "
            f"{_number(check.error_of_mean)}"
        )
        if check.error >= check.error_of_mean:
            problems = [
                *problems,
                f"the model predicts no better than a mean: {errors}",
            ]
            errors = ""
        if share < least:
            headline = "The model's intervals are not to be trusted."
            inside = (
                f"the model is surer than it may be: {inside}, where it should be "
                f"{_percent(least)} at least, even by bad luck, on "
                f"{check.num_candidates:,} candidates. Deviations and intervals of the "
                "batch are too small"
            )
        elif share > most:
            inside += ": they are wider than they need be"
        reasons = [*problems, inside, errors]
    if problems:
        headline = "The model is not to be trusted."
    return headline, [f"{text[0].upper()}{text[1:]}." for text in reasons if text]


def nearest_measured(
    bandit: FiniteArmBandit, arms: Tensor, measured: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the most similar measured arm of each arm, and the similarity.

    Similarity is the kernel's correlation of the two: 1 for the same, and 0 where one
    tells nothing of the other.

    Args:
        bandit: A bandit that learns its kernel.
        arms: The ``k`` arms.
        measured: The measured arms, at least one.
    """
    kernel = bandit.covar_module
    x, z = kernel_features(bandit, arms), kernel_features(bandit, measured)
    with torch.no_grad():
        variances = kernel(x, diag=True).unsqueeze(-1) * kernel(z, diag=True)
        correlation = dense_covariance(kernel, x, z) / variances.sqrt()
    similarity, place = correlation.max(dim=-1)
    return measured[place], similarity


def describe_kernel(kernel: Kernel, feature_names: Sequence[str]) -> dict[str, str]:
    """Return a kernel's parts and hyperparameters, in words."""
    parts = [
        type(part).__name__ for part in kernel.modules() if isinstance(part, Kernel)
    ]
    told = {"kernel": ", ".join(parts)}
    for name, raw, constraint in kernel.named_parameters_and_constraints():
        value = raw if constraint is None else constraint.transform(raw)
        values = value.detach().flatten()
        if len(values) == 1:
            text = f"{values.item():.4g}"
        else:
            order = values.argsort()[:NUM_LENGTHSCALES_SHOWN].tolist()
            named = len(feature_names) == len(values)
            text = ", ".join(
                f"{feature_names[place] if named else place} {values[place].item():.3g}"
                for place in order
            )
            if len(values) > len(order):
                text += (
                    f" and {len(values) - len(order):,} more, up to "
                    f"{values.max().item():.3g}"
                )
        name = name.replace("base_kernel.", "").replace("raw_", "")
        name = re.sub(r"kernels\.(\d+)\.", lambda n: f"part {int(n[1]) + 1} ", name)
        told[name.replace("_", " ")] = text
    return told


def _summary(
    args: argparse.Namespace,
    bandit: FiniteArmBandit,
    campaign: Campaign,
    batch: pd.DataFrame,
    ids: pd.Index,
) -> Element:
    num_next = int(batch["repeats"].sum())
    said = (
        f"{num_next:,} measurements to make next, on {len(batch):,} of "
        f"{campaign.num_candidates:,} candidates"
    )
    if bandit.num_pulls == 0:
        return tag(
            "p",
            f"{said}. Nothing is measured yet: the batch is spread out over the "
            "candidates, and there is no model to judge.",
        )
    best = bandit.best_arm()
    mean, variance = bandit.predict(torch.tensor([best]))
    interval = ""
    if "std" in batch:
        half = DEVIATIONS_OF_95_PERCENT * variance.sqrt().item()
        interval = f" ± {half:.2g} (95 %)"
    wanted = "smallest" if args.minimize else "largest"
    return tag(
        "p",
        f"{said}, chosen from {bandit.num_pulls:,} measurements so far. Best measured "
        f"candidate by the model ({wanted} mean): ",
        tag("strong", ids[best]),
        f", mean {args.reward} {_number(mean.item())}{interval}.",
    )


def _progress_section(rounds: Rounds, args: argparse.Namespace) -> Element:
    figure = blank_figure(*PICTURE_SIZE)
    plot_progress(figure.subplots(), rounds.rewards, maximize=not args.minimize)
    _legend_above(figure)
    best_of = np.min if args.minimize else np.max
    rows: list[list[Piece]] = []
    best: list[float] = []
    for number, (name, rewards) in enumerate(
        zip(rounds.names, rounds.rewards, strict=True), start=1
    ):
        best.append(best_of([*best[-1:], *rewards]))
        cells = [name, f"{len(rewards):,}", *map(_number, (rewards.mean(), best[-1]))]
        rows.append([f"{number}", *cells])
    means = [rewards.mean() for rewards in rounds.rewards]
    return tag(
        "section",
        tag("h2", "Progress"),
        picture(
            svg_of(figure),
            f"Line chart of rewards over {len(rows):,} rounds. The best so far went "
            f"from {_number(best[0])} to {_number(best[-1])}, the mean of a round from "
            f"{_number(means[0])} to {_number(means[-1])}.",
            f"Rewards ({args.reward}) round by round: triangles on a full line are the "
            "best single measurement so far, circles on a dashed line the mean of the "
            f"round, dots single measurements. {rounds.told_by}.",
        ),
        tag(
            "details",
            tag("summary", "The numbers of this picture"),
            table(
                f"Rewards ({args.reward}) by round",
                ["round", "which", "measurements", "mean", "best so far"],
                rows,
                numbers={2, 3, 4},
            ),
        ),
    )


def _predicted_section(
    check: Check, is_refitted: bool, args: argparse.Namespace
) -> Element:
    figure = blank_figure(*PICTURE_SIZE)
    plot_predicted(figure.subplots(), check.measured, check.mean, check.half_width)
    _legend_above(figure)
    if is_refitted:
        method = (
            f"{NUM_FOLDS}-fold cross-validation: each candidate is predicted by a fit, "
            "of kernel and noise too, to the candidates of the other folds"
        )
    else:
        method = (
            "Leave-one-out in closed form: each candidate is predicted from all "
            "others. Kernel and noise stay those of the fit to all, which flatters "
            "the model a little"
        )
    num_inside = round(check.share_inside * len(check.measured))
    return tag(
        "section",
        tag("h2", "Predicted against measured"),
        picture(
            svg_of(figure),
            "Scatter chart of predicted over measured rewards with 95 % intervals: "
            f"{num_inside:,} of {len(check.measured):,} measurements lie inside.",
            f"{method}. Bars are 95 % intervals of a single measurement, noise "
            f"included: {num_inside:,} of {len(check.measured):,} measurements "
            f"({_percent(check.share_inside)}) lie inside theirs (circles), the others "
            "(crosses) do not. Typical error (root mean square, in units of "
            f"{args.reward}): {_number(check.error)}; of the mean of all other "
            f"candidates: {_number(check.error_of_mean)}.",
        ),
    )


def _batch_section(
    args: argparse.Namespace,
    bandit: FiniteArmBandit,
    campaign: Campaign,
    batch: pd.DataFrame,
    ids: pd.Index,
    structures: Sequence[str] | None,
) -> Element:
    own = [args.id, "repeats", "mean", "std", "low", "high"]
    others = [name for name in batch.columns if name not in own]
    is_measured = bandit.num_pulls > 0
    names = [args.id, *(["structure"] if structures is not None else []), "times"]
    numbers = {len(names) - 1}
    if is_measured:
        shown = ["mean", *(["std", "95 % interval"] if "std" in batch else [])]
        numbers |= set(range(len(names), len(names) + len(shown)))
        names += [*shown, "nearest measured"]
    columns: list[list[Piece]] = [list(map(str, batch[args.id]))]
    if structures is not None:
        columns.append(
            [
                image(svg, f"structure of {name}")
                for svg, name in zip(structures, columns[0], strict=True)
            ]
        )
    columns.append([f"{count:,}" for count in batch["repeats"]])
    if is_measured:
        columns.append(list(map(_number, batch["mean"])))
        if "std" in batch:
            pairs = zip(batch["low"], batch["high"], strict=True)
            columns += [
                list(map(_number, batch["std"])),
                [f"{_number(low)} to {_number(high)}" for low, high in pairs],
            ]
        columns.append(_neighbours(bandit, campaign, batch[args.id], ids))
    columns += [list(map(str, batch[name])) for name in others]
    rows = [list(row) for row in zip(*columns, strict=True)]
    note = (
        f"mean: what the model expects of {args.reward} on average over many "
        "measurements; std: how uncertain that mean is; 95 % interval: where the mean "
        "lies by the model; nearest measured: the measured candidate most similar by "
        "the kernel (similarity 1: the same, 0: nothing in common), with its measured "
        "mean. A candidate is chosen for mean and std together."
    )
    return tag(
        "section",
        tag("h2", "The batch"),
        *([tag("p", note, class_="note")] if is_measured else []),
        table(
            "What to measure next, in the order of the choice",
            [*names, *others],
            rows,
            numbers=numbers,
        ),
    )


def _neighbours(
    bandit: FiniteArmBandit, campaign: Campaign, picks: pd.Series, ids: pd.Index
) -> list[Piece]:
    told = ~campaign.rewards.isnan()
    measured, inverse, counts = campaign.indices[told].unique(
        return_inverse=True, return_counts=True
    )
    means = sum_replicates(campaign.rewards[told], inverse, len(measured)) / counts
    arms = ids.get_indexer(pd.Index(picks))
    nearest, similarity = nearest_measured(bandit, torch.from_numpy(arms), measured)
    place = torch.searchsorted(measured, nearest)
    return [
        f"{ids[arm]} (similarity {alike:.2f}, measured {_number(mean)})"
        for arm, alike, mean in zip(
            nearest.tolist(), similarity.tolist(), means[place].tolist(), strict=True
        )
    ]


def _assumed_section(
    args: argparse.Namespace,
    bandit: FiniteArmBandit,
    campaign: Campaign,
    batch: pd.DataFrame,
    feature_names: Sequence[str],
) -> Element:
    num_told = int((~campaign.rewards.isnan()).sum())
    told: dict[str, str] = {
        "candidates": f"{campaign.num_candidates:,} of {args.arms.name}, of which "
        f"{int(campaign.available.sum()):,} may be chosen",
        "results used": f"{num_told:,}",
        "in flight": f"{len(campaign.rewards) - num_told:,}",
        "features": f"{bandit.arms.shape[-1]:,}",
    }
    if bandit.num_pulls > 0:
        told |= describe_kernel(bandit.covar_module, feature_names)
    if "std" in batch:
        std = bandit.noise_variance**0.5
        told["noise of a single measurement"] = (
            f"standard deviation {std:.4g}, variance {bandit.noise_variance:.4g}, the "
            "same for all"
        )
    told |= {
        "what is best": "small rewards" if args.minimize else "large rewards",
        "goal": args.goal,
        "seed": f"{args.seed}",
        "versions": f"botorch_bkb {__version__}, botorch {botorch.__version__}, "
        f"gpytorch {gpytorch.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    }
    fitted = "Kernel and noise are fitted to the results."
    origin = fitted if is_fitted(bandit) else NOT_FITTED
    options: list[list[Piece]] = [
        [f"--{name.replace('_', '-')}", _option(value)]
        for name, value in sorted(vars(args).items())
        if name not in ("arms", "command")
    ]
    return tag(
        "section",
        tag("h2", "What was assumed"),
        table(
            f"{origin} Lengthscales are shares of the range of a feature, the shortest "
            "first. Each part of a sum has its own; its outputscale is its variance, "
            "that of the rewards being 1",
            ["what", "value"],
            [list(row) for row in told.items()],
        ),
        tag(
            "details",
            tag("summary", "All options"),
            table("Options of suggest", ["option", "value"], options),
        ),
    )


def _option(value: object) -> str:
    if isinstance(value, Path):
        return value.name
    return "" if value is None else str(value)


def _number(value: float) -> str:
    """Return four digits, zeros at the end included, so that columns line up."""
    return f"{value:#.4g}".rstrip(".")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _legend_above(figure: Figure) -> None:
    """Put the legend where no mark can be, however many there are."""
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize="small")
