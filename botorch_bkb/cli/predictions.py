"""Predictions of candidates: the table of `suggest --predictions`, and the hits."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.components import Products
from botorch_bkb.cli.files import write_table
from botorch_bkb.cli.results import reward_label
from botorch_bkb.cli.tables import listing, outcome_columns, to_numbers


# Draws for the probabilities of being the best: a standard error below 0.01.
NUM_DRAWS = 4096
NUM_HITS = 10
NUM_BEST_SHOWN = 3
# Combinations in the table of predictions, unless --top names another number.
NUM_PRODUCTS = 1000


def check_predictions(args: argparse.Namespace) -> None:
    """Raise an error if options for predictions do not fit: before the work."""
    has_threshold = args.threshold is not None
    if args.predictions is None and (args.top or (has_threshold and not args.report)):
        raise InputDataError("--top and --threshold need --predictions FILE.")
    if has_threshold and args.log_reward and args.threshold <= 0:
        raise InputDataError(
            "Expected --threshold in the unit of the results, above 0 with "
            f"--log-reward, but got {args.threshold:g}."
        )


def predict(
    args: argparse.Namespace,
    bandit: GPBandit,
    campaign: Campaign | Products,
    top: int | None,
) -> pd.DataFrame:
    """Return predictions of the candidates, all or the best means, in columns."""
    arms = None
    if isinstance(campaign, Campaign):  # without those that only results have
        arms = torch.arange(campaign.num_candidates)
    threshold = args.threshold
    if args.log_reward and threshold is not None:
        threshold = math.log10(threshold)
    columns = bandit.predictions(
        arms,
        top=top,
        threshold=threshold,
        num_draws=NUM_DRAWS,
        generator=torch.Generator().manual_seed(args.seed),
    )
    return pd.DataFrame(columns)


def write_predictions(
    args: argparse.Namespace,
    bandit: GPBandit,
    campaign: Campaign | Products,
    is_fitted: bool,
) -> None:
    """Write predictions of the candidates, named as in the batch.

    As in the batch, they are empty before the model is fitted.
    """
    if isinstance(campaign, Campaign):
        table = predict(args, bandit, campaign, args.top)
        own = campaign.table if campaign.is_numbered else campaign.table[[args.id]]
        own = own.drop(columns=outcome_columns(args), errors="ignore")
        names = own.iloc[table["arm"]].reset_index(drop=True)
    else:
        table = predict(args, bandit, campaign, args.top or NUM_PRODUCTS)
        names = campaign.columns_of(table["arm"].to_numpy())
    table = table.drop(columns="arm")
    table = table if is_fitted else table * np.nan
    table = pd.concat([names, table], axis="columns")
    write_table(table, args.predictions, campaign.form)


def when_to_stop(
    bandit: GPBandit, batch: pd.DataFrame, campaign: Campaign | Products, reward: str
) -> list[str]:
    """Return what the batch may bring, in three sentences.

    The model knows no limit, such as 100 %: the expected rise is left out if it goes
    beyond all results and the 95 % interval of the best one.
    """
    arms, repeats = batch.attrs["arms"], torch.tensor(batch["repeats"].to_numpy())
    picks = torch.tensor(arms).repeat_interleave(repeats)
    rise, unmeasured, best = bandit.progress(indices=picks)
    names = listing(list(map(str, campaign.ids[best.numpy()])), NUM_BEST_SHOWN)
    leader, sign = torch.tensor([bandit.best_arm()]), 1 if bandit.maximize else -1
    means = np.append(batch["mean"], bandit.predict(leader)[0])
    seen = np.concatenate([campaign.rewards, *bandit._interval(leader)])
    better = "raise" if bandit.maximize else "lower"
    brings = f"is expected to {better} the best predicted mean {reward} by {rise:.2g}"
    if (sign * means).max() + rise > np.nanmax(sign * seen):
        brings = f"may {better} the best {reward}, by how much is unknown: "
        brings += "predictions go beyond all results so far"
    return [
        f"This batch {brings}.",
        "A candidate without measurement is better than all measured ones with a "
        f"probability of {100 * unmeasured:.0f} %.",
        "By the model, the best candidate is with 95 % probability one of "
        f"{len(best):,}: {names}.",
    ]


def best_hits(
    args: argparse.Namespace, bandit: GPBandit, campaign: Campaign | Products
) -> tuple[list[str], list[dict[Any, Any]]]:
    """Return the best predicted candidates, and names of what was measured.

    Each candidate has its ``id``, the predictions, the number of its ``results`` and
    their means, ``told``: of the reward and of each outcome of a score.
    """
    observed = ~np.isnan(campaign.rewards)
    names = [name for name, _ in args.objective]
    outcomes = [to_numbers(campaign.results[name][observed]) for name in names]
    columns = np.column_stack([campaign.rewards[observed], *outcomes])
    told = pd.DataFrame(columns).groupby(campaign.indices[observed])
    hits = predict(args, bandit, campaign, NUM_HITS)
    hits["id"] = campaign.ids[hits["arm"].to_numpy()]
    hits["results"] = hits["arm"].map(told.size()).fillna(0).astype("int64")
    hits["told"] = told.mean().reindex(hits["arm"]).to_numpy().tolist()
    return [reward_label(args), *names], hits.to_dict("records")
