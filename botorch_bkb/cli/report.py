"""One page that explains a batch: the report of `suggest`."""

from __future__ import annotations

import base64
import io
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

import botorch
import gpytorch
import jinja2
import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

import botorch_bkb
from botorch_bkb.bandits import GPBandit
from botorch_bkb.bandits.fitting import MIN_PULLS_TO_FIT
from botorch_bkb.bandits.outcome_choice import MOST_PRODUCTS
from botorch_bkb.bandits.roles import Limit, objectives_of, Target
from botorch_bkb.cli.arguments import flags_of, SuggestOptions
from botorch_bkb.cli.components import Candidates
from botorch_bkb.cli.diagnosis import (
    HeldOut,
    is_fitted,
    MIN_CANDIDATES_TO_JUDGE,
    NUM_FOLDS,
)
from botorch_bkb.cli.effects import batch_places, ColumnEffects
from botorch_bkb.cli.features import Features
from botorch_bkb.cli.predictions import best_hits, best_measured, settings_shown
from botorch_bkb.cli.results import labels, Rows, told
from botorch_bkb.cli.tables import in_digits_of
from botorch_bkb.integrations.chem import draw_molecules
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import as_dense
from botorch_bkb.plotting import (
    _best_so_far,
    blank_figure,
    plot_effect,
    plot_front,
    plot_importance,
    plot_places,
    plot_predicted,
    plot_progress,
)
from botorch_bkb.tables.columns import (
    days,
    is_numeric,
    listing,
    require_column,
    row_name,
    to_numbers,
)


NUM_LENGTHSCALES_SHOWN = 10
# In inches; fonts stay legible if the picture is as wide as a telephone.
PICTURE_SIZE = (4.5, 3.9)
# So many of the most important columns, and of the best words, are drawn.
WORD_HEIGHT, NUM_EFFECTS, NUM_WORDS = 0.22, 12, 16
# The titles of the columns of the batch.
COLUMNS = {
    "structure": "structure",
    "repeats": "times",
    "mean": "mean",
    "std": "std",
    "low": "95 % interval",
    "nearest": "nearest measured",
    "why": "why",
}


@dataclass
class Part:
    """The reward, or one of several outcomes as if it were the only result.

    Attributes:
        campaign: The measurements, with its results as rewards, and options with its
            name and roles alone, ``args``.
        rounds: Those of :func:`read_rounds`.
        bandit: Its model.
        held_out: Predictions of held-out candidates, and warnings, ``problems``.
        groups: Sentences on groups and earlier campaigns.
        effects: What its columns do; None if too little is known.
        own: Its results of candidates, as :func:`told` returns them.
        others: Those of earlier campaigns and of controls.
    """

    campaign: Candidates
    bandit: Any = None
    held_out: HeldOut | None = None
    problems: Sequence[str] = ()
    groups: Sequence[str] = ()
    effects: ColumnEffects | None = None

    def __post_init__(self) -> None:
        self.args = self.campaign.args
        self.name = self.args.reward_label
        self.rounds = read_rounds(self.campaign)
        campaign = self.campaign
        own = campaign.results, campaign.indices, campaign.rewards
        self.own = told(Rows(*own), self.args)
        others = (rows.where(~np.isnan(rows.rewards)) for rows in self.campaign.others)
        self.others = pd.concat([told(rows, self.args) for rows in others])
        known = pd.concat([self.own, self.others[self.others["control"] == ""]])
        rewards = torch.tensor(known["rewards"].dropna().to_numpy())
        self.is_fitted = is_fitted(rewards)
        is_one_of_several = bool(self.args.roles) and len(rewards) >= MIN_PULLS_TO_FIT
        is_constant = is_one_of_several and not self.is_fitted
        self.constant = rewards[0].item() if is_constant else None


def read_rounds(campaign: Candidates) -> pd.DataFrame:
    """Return the ``name`` of the round, its ``key`` and the ``reward`` of each result.

    Keys put rounds in the order of their numbers or dates, else of the table. Without
    ``--round`` or a column ``round`` each file is a round; of one file, each batch size
    of rows, failed ones included.
    """
    args, results = campaign.args, campaign.results
    observed = ~np.isnan(campaign.rewards)
    rewards, name = campaign.rewards[observed], args.round
    if name is None and "round" in results:
        name = "round" if results["round"][observed].notna().all() else None
    if name is None or results.empty:
        index: Any = results.index
        files = index.get_level_values(0)
        if files.nunique() > 1:
            names, by = pd.Series(files), "Each file is a round."
            # Files of failures alone count.
            at = {
                name: n
                for n, p in enumerate(args.observations)
                for name in (f"{p}", p.name)
            }
            keys = pd.Series(files.map(at)) + 1
        else:
            rows = index.get_level_values(-1)
            every = np.union1d(rows, campaign.last.failed)
            keys = pd.Series(np.searchsorted(every, rows) // args.batch_size) + 1
            names = keys
            by = f"Each round has {args.batch_size:,} results (--batch-size), in the "
            by += "order of the table. --round names a column of rounds."
        keys, names = keys[observed], names[observed]
    else:
        by = f"Column {name} has the rounds."
        require_column(results, name, args.observations[-1], "--round")
        column = results[name]
        missing = column.isna() & observed
        if missing.any():
            raise InputDataError(
                f"{args.results_name} has no round in {row_name(missing)}, column "
                f"{name!r}. Fill it, or leave out --round."
            )
        names = labels(results[observed], name)
        keys = to_numbers(column[observed])
        if not is_numeric(column):
            dates = days(names.astype("str"))
            keys = pd.Series(pd.factorize(names)[0]) if dates is None else dates
    told = {"name": np.asarray(names), "key": np.asarray(keys), "reward": rewards}
    rounds = pd.DataFrame(told)
    rounds.attrs["by"] = by
    return rounds


def report_page(
    bandit: Any,
    campaign: Candidates,
    batch: pd.DataFrame,
    parts: Sequence[Part],
    stop: Sequence[str],
) -> str:
    """Return the page: results so far, checks of the model, and the batch."""
    args = campaign.args
    picks = batch.dropna(axis="columns", how="all").rename(columns={args.id: "id"})
    settings = settings_shown(campaign, batch.index.to_numpy())
    picks["settings"] = settings.to_numpy().tolist()
    if args.smiles and not args.component:
        # A dot separates the molecules of several columns.
        molecules = campaign.columns_of(batch.index.to_numpy())[args.smiles]
        structures = draw_molecules(list(molecules.agg(".".join, axis="columns")))
        picks["structure"] = list(map(_data_uri, structures))
    is_fitted = "mean" in picks
    titles = [args.id, *settings]
    content: dict[str, Any] = {"parts": list(map(_pictures, parts)), "best": None}
    if args.roles:
        content["fronts"] = _fronts(bandit, campaign, batch, parts)
        shown, cells = outcome_cells(args, batch)
        titles += shown
        picks["cells"] = pd.Series(cells, picks.index)
    if is_fitted:
        content["outcomes"], content["hits"] = best_hits(bandit, campaign)
    own = parts[0].own.dropna(subset="rewards")
    if is_fitted and len(own):
        arms = torch.tensor(batch.index.to_numpy())
        nearest = nearest_measured(bandit, arms, own)
        picks["nearest"] = campaign.ids_of(nearest["arm"])
        picks[["similarity", "measured"]] = nearest[["similarity", "mean"]].to_numpy()
        content["best"] = best_measured(bandit, campaign)
    places, words = batch_places(parts, campaign, batch.index.to_numpy())
    if words:
        width, height = (1.4 + WORD_HEIGHT * len(own) for own in words.values())
        size = max(width, PICTURE_SIZE[0]), max(height, PICTURE_SIZE[1])
        content["places"] = _draw(plot_places, places, words, size=size)
        content["axes"] = words
    if not args.roles:
        titles += [title for name, title in COLUMNS.items() if name in picks]
    return _template().render(
        content,
        args=args,
        reward=args.reward_label,
        stop=stop,
        num_candidates=campaign.num_candidates,
        num_results=max(len(part.rounds) for part in parts),
        is_fitted=is_fitted,
        assumed=_assumed(campaign, parts),
        titles=titles,
        picks=picks.to_dict("records"),
        settings=list(settings),
    )


def outcome_cells(
    args: SuggestOptions, table: pd.DataFrame
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return mean and interval of each outcome, and the limits' probability.

    The titles first, then a tuple for each row. Outcomes without results are left out.
    """
    cells, titles = list[list[str]](), list[str]()
    for name in args.roles:
        std = table[f"{name}_std"]
        if std.isna().all():
            continue
        parts = (table[f"{name}_{kind}"] for kind in ("mean", "low", "high"))
        mean, low, high = (list(map(in_digits_of, part, std)) for part in parts)
        cells += [mean, [*map("{} to {}".format, low, high)]]
        titles += [name, "95 % interval"]
    if args.limit and table["probability_feasible"].notna().any():
        cells.append([f"{100 * each:.0f} %" for each in table["probability_feasible"]])
        titles.append("limits hold")
    rows = zip(*cells, strict=True) if cells else [()] * len(table)
    return titles, list(rows)


def _assumed(campaign: Candidates, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the models that are fitted, versions, and all options, by name."""
    args = campaign.args
    assumed: dict[str, Any] = {}
    for part in parts:
        if not part.is_fitted:
            continue
        variance = part.bandit.noise_variance
        model = describe_kernel(part.bandit.covar_module, campaign.features)
        known = f"without one in column {args.noise_column}"
        model["noise of a single measurement"] = (
            f"standard deviation {variance**0.5:.4g}, variance {variance:.4g}, the "
            f"same for all {'' if args.noise_column is None else known}".strip()
        )
        of = f"{part.name}: " if args.roles else ""
        assumed |= {f"{of}{name}": value for name, value in model.items()}
    packages = botorch_bkb, botorch, gpytorch, torch
    versions = [f"{package.__name__} {package.__version__}" for package in packages]
    assumed["versions"] = ", ".join([*versions, f"Python {platform.python_version()}"])
    flags = {each.name: flag for flag, each in flags_of(SuggestOptions).items()}
    assumed["date"] = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    return assumed | {
        flags[name]: getattr(value, "name", value)
        for name, value in sorted(vars(args).items())
        if name in flags and name != "arms"
    }


def nearest_measured(bandit: GPBandit, arms: Tensor, own: pd.DataFrame) -> pd.DataFrame:
    """Return the most similar measured arm of each arm: its index, similarity and mean.

    Similarity is the kernel's correlation of the two: 1 for equal arms, 0 for
    independent ones.
    """
    means = own.groupby("indices")["rewards"].mean()
    kernel, measured = bandit.covar_module, torch.tensor(means.index.to_numpy())
    # In the units in which the bandit evaluates its kernel.
    features = bandit._surrogate.fitter.to_features
    x, z = (as_dense(features(bandit.arms[rows])) for rows in (arms, measured))
    with torch.no_grad():
        variances = kernel(x, diag=True).unsqueeze(-1) * kernel(z, diag=True)
        correlation = dense_covariance(kernel, x, z) / variances.sqrt()
    similarity, nearest = correlation.max(dim=-1)
    found = means.iloc[nearest.numpy()].rename_axis("arm").reset_index(name="mean")
    return found.assign(similarity=similarity.numpy())


def describe_kernel(kernel: Kernel, features: Features) -> dict[str, Any]:
    """Return a kernel's parts and hyperparameters as text.

    Those of a single column, or component, have its name.
    """
    owners = {}
    for path, part in kernel.named_modules():
        factor = part.base_kernel if isinstance(part, ScaleKernel) else part
        if hasattr(factor, "component"):  # None for columns that hold numbers
            at = factor.component
            own = factor.active_dims.tolist() if at is None else [at]
            if len(own) == 1:
                owners[f"{path}."] = f" ({features.columns[own[0]]})"
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    described = {"kernel": ", ".join(type(part).__name__ for part in parts)}
    for name, raw, constraint in kernel.named_parameters_and_constraints():
        value = raw if constraint is None else constraint.transform(raw)
        numbers = value.detach().flatten().tolist()
        shown = [f"{number:.3g}" for number in numbers]
        if 1 < len(numbers) == len(features.names):
            shown = list(map("{} {}".format, features.names, shown))
        owner = next((own for path, own in owners.items() if path in name), "")
        name = re.sub("base_kernel.|raw_|^covar_module.", "", name)
        name = re.sub(r"kernels\.(\d+)\.", lambda n: f"part {int(n[1]) + 1} ", name)
        described[name.replace("_", " ") + owner] = listing(
            shown, NUM_LENGTHSCALES_SHOWN
        )
    return described


def _pictures(part: Part) -> dict[str, Any]:
    """Return a part of the page with its pictures, and what describes the first one."""
    rows = pd.DataFrame(part.bandit.groups() if part.groups else {}).to_dict("records")
    acting = [row for row in rows if row["group"] and row["std"] > 0]
    pictures = {"of": part, "num_results": len(part.rounds), "groups": acting}
    if part.rounds.empty:
        return pictures
    rounds = part.rounds.groupby("key")["reward"]
    rewards, keys = [own.to_numpy() for _, own in rounds], np.unique(part.rounds["key"])
    # A round of failures alone has no results, but a number.
    are_numbers = (keys % 1 == 0).all() and keys[-1] - keys[0] < 2 * len(keys)
    roles = part.args.roles.get(part.name, ())
    values = [role.value for role in roles if isinstance(role, Target)]
    target, maximize = next(iter(values), None), not part.args.minimize
    best = _best_so_far(rewards, maximize, target)
    limits = [role.limit for role in roles if isinstance(role, Limit)]
    goal: dict[str, Any] = {"maximize": maximize, "target": target, "limits": limits}
    goal |= {"reward": part.name, "numbers": keys if are_numbers else None}
    pictures |= {
        "num_rounds": len(rewards),
        "best_first": best[0],
        "best_last": best[-1],
        # Two digits more than those of the spread of single results.
        "unit": part.rounds["reward"].std(ddof=0) / 100,
        "progress": _draw(plot_progress, rewards, **goal),
    }
    held_out = part.held_out
    if held_out is not None:
        drawn = (held_out.measured, held_out.mean, held_out.low, held_out.high)
        pictures["predicted"] = _draw(plot_predicted, *drawn, reward=part.name)
    if part.effects is not None:
        shares = part.effects.shares[:NUM_EFFECTS]
        size = PICTURE_SIZE[0], 1.4 + WORD_HEIGHT * len(shares)
        pictures["importance"] = _draw(plot_importance, shares, size=size)
        pictures["effects"] = _effects(part.effects, part.name)
    return pictures


def _effects(effects: ColumnEffects, reward: str) -> list[dict[str, Any]]:
    """Return a picture of each column, all of them over the same range of results."""
    shown = dict([*effects.tables.items()][:NUM_EFFECTS])
    ends = pd.concat([pd.DataFrame(columns=["low", "high"]), *shown.values()])
    limits, pictures = (ends["low"].min(), ends["high"].max()), []
    for name, table in shown.items():
        words = (
            [] if is_numeric(table["value"]) else table["value"].tolist()[:NUM_WORDS]
        )
        options: dict[str, Any] = {"column": name, "reward": reward, "limits": limits}
        options["size"] = 3.6, 1 + WORD_HEIGHT * (len(words) or 6)
        drawn = _draw(plot_effect, table[: len(words) or None], **options)
        own = {"name": name, "words": words, "num_values": len(table)}
        pictures.append({**own, "picture": drawn})
    return pictures


def _fronts(
    bandit: Any, campaign: Candidates, batch: pd.DataFrame, parts: Sequence[Part]
) -> list[dict[str, Any]]:
    """Return a picture for each pair of objectives."""
    args = campaign.args
    names = [name for name, _ in objectives_of(args.roles)]
    told = pd.DataFrame({part.name: part.campaign.rewards for part in parts})
    means = told.groupby(campaign.indices).mean()
    front = batch[:0]
    if all(part.is_fitted or part.constant is not None for part in parts):
        is_large = args.component and campaign.num_candidates > MOST_PRODUCTS
        arms = bandit.pareto_front(among_pulled=bool(is_large))
        front = pd.DataFrame(bandit.predictions(arms))
    fronts = []
    for pair in combinations(names, 2):
        columns = [f"{name}_mean" for name in pair]
        tables = means[[*pair]], front[columns], batch[columns]
        picture = _draw(plot_front, *(x.to_numpy("float64") for x in tables), pair)
        fronts.append({"names": pair, "picture": picture, "size": len(front)})
    return fronts


def _draw(
    plot: Callable[..., Any],
    *data: Any,
    size: tuple[float, float] = PICTURE_SIZE,
    **options: Any,
) -> str:
    """Return a picture with the legend, if it has one, above it."""
    figure = blank_figure(*size)
    axes = plot(figure.subplots(), *data, **options)
    if axes.get_legend_handles_labels()[0]:
        marks = {"ncols": 2, "frameon": False, "fontsize": "small"}
        figure.legend(loc="outside upper left", **marks)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _data_uri(file.getvalue())


def _data_uri(svg: str) -> str:
    """Return an SVG picture as an image, in which no script can run."""
    # ASCII is valid in any encoding that the picture's first line names.
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
        "MIN_CANDIDATES_TO_JUDGE": MIN_CANDIDATES_TO_JUDGE,
    }
    return environment.get_template("report.html")
