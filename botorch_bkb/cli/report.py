"""One page that explains a batch: the report of `suggest`."""

from __future__ import annotations

import argparse
import base64
import io
import math
import platform
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import botorch
import gpytorch
import jinja2
import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor

import botorch_bkb
from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.columns import days, is_numeric, row_name, to_numbers
from botorch_bkb.cli.diagnosis import (
    DEVIATIONS_OF_95_PERCENT,
    HeldOut,
    is_fitted,
    kernel_features,
    MIN_CANDIDATES_TO_JUDGE,
    NOT_FITTED,
    NUM_FOLDS,
)
from botorch_bkb.cli.results import results_name, reward_label
from botorch_bkb.cli.tables import require_column
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import sum_replicates
from botorch_bkb.plotting import blank_figure, plot_predicted, plot_progress


# Of a kernel of many lengthscales.
NUM_LENGTHSCALES_SHOWN = 10
# In inches; fonts stay legible where the picture is as wide as a telephone.
PICTURE_SIZE = (4.5, 3.9)
# What the page calls the columns of the batch, beside the id; and those of numbers.
COLUMNS = {
    "structure": "structure",
    "repeats": "times",
    "mean": "mean",
    "std": "std",
    "low": "95 % interval",
    "nearest": "nearest measured",
    "why": "why",
}
NUMBERS = ("times", "mean", "std", "95 % interval", "measurements", "best so far")
# Numbers with more of them, or before them, are written with an exponent.
MAX_DECIMALS = 9


# The name of each round, and its rewards, at least one.
Rounds = list[tuple[str, np.ndarray]]


def plan_report(args: argparse.Namespace, campaign: Campaign) -> Rounds | None:
    """Return the measurements by round; None if nobody asks for them.

    Rounds are in the order of their numbers or dates, else of the table.

    Raises:
        InputDataError: If the report's file is one of the tables, if its folder or the
            column of rounds does not exist, or if the column has a gap.
    """
    if args.report is None and args.round is None:
        return None
    if args.report is not None:
        require_other_file(
            "--report", args.report, [args.arms, *args.observations, args.output]
        )
        if not args.report.parent.is_dir():
            raise InputDataError(
                f"There is no folder {args.report.parent} for --report."
            )
    observed = (~campaign.rewards.isnan()).numpy()
    rewards = campaign.rewards.numpy()[observed]
    if args.round is None:
        size = args.batch_size
        return [
            (f"{n + 1:,} to {min(n + size, len(rewards)):,}", rewards[n : n + size])
            for n in range(0, len(rewards), size)
        ]
    if campaign.results.empty:
        return []
    require_column(campaign.results, args.round, args.observations[-1], "--round")
    column = campaign.results[args.round]
    missing = column.isna() & observed
    if missing.any():
        raise InputDataError(
            f"{results_name(args)} has no round in {row_name(missing)}, column "
            f"{args.round!r}. Fill it, or leave out --round."
        )
    return _rounds_of(column[observed], rewards)


def require_other_file(option: str, path: Path, tables: Sequence[Path]) -> None:
    """Refuse to write a file in the place of one of the tables.

    Raises:
        InputDataError: If it is one of them.
    """
    if any(table.resolve() == path.resolve() for table in tables):
        raise InputDataError(
            f"{option} {path} is one of the tables, which it would replace. Name "
            "another file."
        )


def _rounds_of(column: pd.Series, rewards: np.ndarray) -> Rounds:
    """Return ``n`` rewards by the round of each."""
    if is_numeric(column):
        names = column.map("{:.15g}".format)
        keys = to_numbers(column)
    else:
        names = column.map(str)
        dates = None if column.empty else days(column)
        keys = names if dates is None else dates[0]
    table = pd.DataFrame({"name": names, "reward": rewards, "key": keys})
    groups = table.groupby("key", sort=keys is not names)
    return [(part["name"].iloc[0], part["reward"].to_numpy()) for _, part in groups]


def report_page(
    args: argparse.Namespace,
    bandit: GPBandit,
    campaign: Campaign,
    batch: pd.DataFrame,
    rounds: Rounds,
    feature_names: Sequence[str],
    held_out: HeldOut | None,
    problems: Sequence[str],
    structures: Sequence[str] | None = None,
) -> str:
    """Return the page: what was measured, what the fit is worth, and the batch.

    Args:
        args: The options of `suggest`.
        bandit: The bandit that was asked for the batch.
        campaign: The tables.
        batch: One row per distinct pick, as `describe_batch` returns it.
        rounds: The measurements, as :func:`plan_report` returns them.
        feature_names: The name of each feature with a lengthscale.
        held_out: Predictions of held-out candidates, if there are any.
        problems: Why the fit cannot be trusted, as far as that is known already.
        structures: An SVG picture per row of ``batch``; None for no pictures.
    """
    ids = pd.Index(campaign.arms[args.id])
    observed = ~campaign.rewards.isnan()
    indices, rewards = campaign.indices[observed], campaign.rewards[observed]
    picks = batch.dropna(axis="columns", how="all").rename(columns={args.id: "id"})
    if structures is not None:
        picks["structure"] = list(map(_data_uri, structures))
    content: dict[str, Any] = {}
    if bandit.num_pulls > 0:
        arms = torch.from_numpy(ids.get_indexer(pd.Index(picks["id"])))
        nearest = nearest_measured(bandit, arms, indices, rewards)
        picks["nearest"] = ids[nearest["arm"]]
        picks[["similarity", "measured"]] = nearest[["similarity", "mean"]]
        best = bandit.best_arm()
        mean, variance = bandit.predict(torch.tensor([best]))
        std = variance.sqrt().item() if "std" in picks else None
        content["best"] = {"id": ids[best], "mean": mean.item(), "std": std}
        content |= _pictures(rounds, held_out, maximize=not args.minimize)
    columns = {"id": args.id, **COLUMNS}
    return _template().render(
        content,
        args=args,
        reward=reward_label(args),
        problems=problems,
        held_out=held_out,
        num_candidates=campaign.num_candidates,
        num_pulls=bandit.num_pulls,
        not_fitted=None if is_fitted(bandit) else NOT_FITTED,
        assumed=_assumed(args, bandit, campaign, feature_names, "std" in picks),
        options={
            f"--{name.replace('_', '-')}": getattr(value, "name", value)
            for name, value in sorted(vars(args).items())
            if name not in ("arms", "command")
        },
        columns={name: title for name, title in columns.items() if name in picks},
        picks=picks.to_dict("records"),
    )


def _assumed(
    args: argparse.Namespace,
    bandit: GPBandit,
    campaign: Campaign,
    feature_names: Sequence[str],
    has_unit: bool,
) -> dict[str, str]:
    """Return what the batch rests on, by name."""
    assumed = {
        "candidates": f"{campaign.num_candidates:,} of {args.arms.name}, of which "
        f"{int(campaign.available.sum()):,} may be chosen",
        "results used": f"{bandit.num_pulls:,}",
        "in flight": f"{int(campaign.rewards.isnan().sum()):,}",
        "features": f"{bandit.arms.shape[-1]:,}",
    }
    if bandit.num_pulls > 0:
        assumed |= describe_kernel(bandit.covar_module, feature_names)
    if has_unit:
        variance = bandit.noise_variance
        assumed["noise of a single measurement"] = (
            f"standard deviation {variance**0.5:.4g}, variance {variance:.4g}, the "
            "same for all"
        )
    packages = botorch_bkb, botorch, gpytorch, torch
    versions = [f"{package.__name__} {package.__version__}" for package in packages]
    return assumed | {
        "what is best": f"{'small' if args.minimize else 'large'} rewards",
        "goal": args.goal,
        "seed": str(args.seed),
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    }


def nearest_measured(
    bandit: GPBandit, arms: Tensor, indices: Tensor, rewards: Tensor
) -> pd.DataFrame:
    """Return the most similar measured arm of each arm: its index, similarity and mean.

    Similarity is the kernel's correlation of the two: 1 for the same, and 0 where one
    tells nothing of the other.

    Args:
        bandit: A bandit that learns its kernel.
        arms: The ``k`` arms.
        indices: The ``n`` measured arms, repeats included, at least one.
        rewards: Their ``n`` rewards.
    """
    measured, place, counts = indices.unique(return_inverse=True, return_counts=True)
    means = sum_replicates(rewards, place, len(measured)) / counts
    kernel = bandit.covar_module
    x, z = kernel_features(bandit, arms), kernel_features(bandit, measured)
    with torch.no_grad():
        variances = kernel(x, diag=True).unsqueeze(-1) * kernel(z, diag=True)
        correlation = dense_covariance(kernel, x, z) / variances.sqrt()
    similarity, nearest = correlation.max(dim=-1)
    return pd.DataFrame(
        {"arm": measured[nearest], "similarity": similarity, "mean": means[nearest]}
    )


def describe_kernel(kernel: Kernel, feature_names: Sequence[str]) -> dict[str, str]:
    """Return a kernel's parts and hyperparameters, in words."""
    parts = [
        type(part).__name__ for part in kernel.modules() if isinstance(part, Kernel)
    ]
    described = {"kernel": ", ".join(parts)}
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
            num_more = len(values) - len(order)
            if num_more > 0:
                text += f" and {num_more:,} more, up to {values.max().item():.3g}"
        name = name.replace("base_kernel.", "").replace("raw_", "")
        name = re.sub(r"kernels\.(\d+)\.", lambda n: f"part {int(n[1]) + 1} ", name)
        described[name.replace("_", " ")] = text
    return described


def in_digits_of(value: float, std: float | None) -> str:
    """Return a number with the digits that its standard deviation leaves it.

    These go down to the second digit of the deviation. Ten digits if there is none.
    """
    if std is None or not 0 < std < math.inf:
        return f"{value:.10g}"
    num_decimals = 1 - math.floor(math.log10(std))
    size = math.floor(math.log10(abs(value))) if value else 0
    if num_decimals > MAX_DECIMALS or size > MAX_DECIMALS:
        return f"{value:.{min(max(size + num_decimals, 1), 15)}e}"
    return f"{value:.{max(num_decimals, 0)}f}"


def _pictures(
    rounds: Rounds, held_out: HeldOut | None, maximize: bool
) -> dict[str, Any]:
    best_of = np.maximum if maximize else np.minimum
    best = best_of.accumulate([best_of.reduce(part) for _, part in rounds])
    rows = [
        {"name": name, "size": len(part), "mean": part.mean(), "best": so_far}
        for (name, part), so_far in zip(rounds, best, strict=True)
    ]
    pictures = {
        "rounds": rows,
        # Of single rewards: two digits more than those of their spread.
        "unit": np.concatenate([part for _, part in rounds]).std() / 100,
        "progress": _draw(
            plot_progress, [part for _, part in rounds], maximize=maximize
        ),
    }
    if held_out is not None:
        drawn = held_out.measured, held_out.mean, held_out.half_width
        pictures["predicted"] = _draw(plot_predicted, *drawn)
    return pictures


def _draw(plot: Callable[..., object], *data: Any, **options: Any) -> str:
    """Return a picture, with the legend above it, where no mark can be."""
    figure = blank_figure(*PICTURE_SIZE)
    plot(figure.subplots(), *data, **options)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize="small")
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _data_uri(file.getvalue())


def _data_uri(svg: str) -> str:
    """Return an SVG picture as an image of its own, in which nothing can run."""
    # Right in whatever encoding the picture's first line names.
    data = base64.b64encode(svg.encode("ascii", "xmlcharrefreplace")).decode()
    return f"data:image/svg+xml;base64,{data}"


def _template() -> jinja2.Template:
    """Return the template of the page, which escapes whatever the tables hold."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("botorch_bkb.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "integer": "{:,}".format,
        # Zeros at the end included, so that columns line up.
        "number": lambda value: f"{value:#.4g}".rstrip("."),
        "digits": in_digits_of,
        "percent": lambda share: f"{100 * share:.0f} %",
    }
    environment.globals |= {
        "NUM_FOLDS": NUM_FOLDS,
        "DEVIATIONS_OF_95_PERCENT": DEVIATIONS_OF_95_PERCENT,
        "MIN_CANDIDATES_TO_JUDGE": MIN_CANDIDATES_TO_JUDGE,
        "NUMBERS": NUMBERS,
    }
    return environment.get_template("report.html")
