"""What the model predicts: of the batch, of all candidates, and of the best ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli.arguments import SuggestOptions
from botorch_bkb.cli.candidates import Candidates
from botorch_bkb.tables.columns import listing, to_numbers


# Draws for the probabilities of being the best: a standard error below 0.01.
NUM_DRAWS = 4096
NUM_HITS = 10
NUM_BEST_SHOWN = 3
# Combinations in the table of predictions, unless --top names another number.
NUM_PRODUCTS = 1000
# Two means are equal if they differ by so many standard deviations.
EQUAL = 1e-6


def describe_batch(
    bandit: GPBandit, picks: Tensor, ids: Any, id_column: str, is_fitted: bool
) -> pd.DataFrame:
    """Return one row per distinct pick, in the order of the choice, by its arm.

    ``mean``, ``std`` and the 95 % interval from ``low`` to ``high`` are those of the
    mean reward given the measurements, in the reward's unit. They are empty before
    kernel and noise are fitted.
    """
    repeats = pd.Series(picks.cpu().numpy()).value_counts(sort=False)
    arms = torch.tensor(repeats.index.to_numpy())
    batch = repeats.to_frame("repeats")
    batch.insert(0, id_column, ids[repeats.index.to_numpy()])
    if not is_fitted:
        batch = batch.assign(mean=np.nan, std=np.nan, low=np.nan, high=np.nan)
        return batch.assign(why="explore: no model yet")
    (mean, variance), (low, high) = bandit.predict(arms), bandit._interval(arms)
    std = variance.sqrt()
    columns = {"mean": mean, "std": std, "low": low, "high": high}
    batch = batch.assign(**{name: column.numpy() for name, column in columns.items()})
    return batch.assign(why=_reasons(bandit, arms, mean, std))


def _reasons(bandit: GPBandit, arms: Tensor, mean: Tensor, std: Tensor) -> list[str]:
    """Return why each arm was chosen: for its mean, or for its uncertainty."""
    best = bandit.predict(torch.tensor([bandit.best_arm()]))[0]
    ahead = mean - best if bandit.maximize else best - mean
    # The standard deviation of tiny rewards may underflow to zero.
    ahead /= std.clamp_min(torch.finfo(std.dtype).tiny)
    measured = {*bandit.observed_arms.tolist()}
    reasons = []
    for arm, gap in zip(arms.tolist(), ahead.tolist(), strict=True):
        if arm in measured:
            reasons.append("repeat: measured before, and may still be the best")
        elif gap >= -EQUAL:
            reasons.append(f"exploit: mean {gap:.1f} std better than the best so far")
        else:
            reasons.append(f"explore: mean {-gap:.1f} std worse than the best so far")
    return reasons


def predict(
    args: SuggestOptions,
    bandit: GPBandit,
    campaign: Candidates,
    top: int | None,
) -> pd.DataFrame:
    """Return predictions of the candidates, all or the best means, in columns."""
    threshold = args.threshold
    if args.log_reward and threshold is not None:
        threshold = math.log10(threshold)
    columns = bandit.predictions(
        None if args.component else torch.arange(campaign.num_candidates),
        top=top,
        threshold=threshold,
        num_draws=NUM_DRAWS,
        generator=torch.Generator().manual_seed(args.seed),
    )
    return pd.DataFrame(columns)


def predictions_table(
    args: SuggestOptions,
    bandit: GPBandit,
    campaign: Candidates,
    is_fitted: bool,
) -> pd.DataFrame:
    """Return predictions of the candidates, named as in the batch.

    As in the batch, they are empty before the model is fitted.
    """
    most = NUM_PRODUCTS if args.component else None
    table = predict(args, bandit, campaign, args.top or most)
    names = campaign.names_of(table.pop("arm").to_numpy(), args)
    table = table if is_fitted else table * np.nan
    return pd.concat([names, table], axis="columns")


def when_to_stop(
    bandit: GPBandit, batch: pd.DataFrame, campaign: Candidates, reward: str
) -> list[str]:
    """Return what the batch may bring, in three sentences.

    The model knows no limit, such as 100 %: the expected rise is left out if it goes
    beyond all results and the 95 % interval of the best one.
    """
    picks = torch.tensor(batch.index.repeat(batch["repeats"]).to_numpy())
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
    args: SuggestOptions, bandit: GPBandit, campaign: Candidates
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
    return [args.reward_label, *names], hits.to_dict("records")
