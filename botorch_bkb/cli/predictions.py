"""What the model predicts: of the batch, of all candidates, and of the best ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from botorch_bkb.bandits import GPBandit
from botorch_bkb.bandits.progress import DEVIATIONS_OF_95_PERCENT
from botorch_bkb.cli.arguments import MOMENTS, SuggestOptions
from botorch_bkb.cli.components import Candidates
from botorch_bkb.cli.tables import in_digits_of
from botorch_bkb.tables.columns import listing, to_numbers


# Draws for the probabilities of being the best: a standard error below 0.01.
NUM_DRAWS = 4096
NUM_HITS = 10
NUM_BEST_SHOWN = 3
# Combinations in the table of predictions, unless --top names another number.
NUM_PRODUCTS = 1000
# An offset of fewer standard deviations may be chance.
CERTAIN = 2.0
# Two means are equal if they differ by so many standard deviations.
EQUAL = 1e-6


def moments(bandit: GPBandit, arms: Any) -> pd.DataFrame:
    """Return ``MOMENTS`` of the mean rewards of ``n`` arms, by arm."""
    rows = torch.tensor(arms)
    (mean, variance), ends = bandit.predict(rows), bandit._interval(rows)
    columns = zip(MOMENTS, (mean, variance.sqrt(), *ends), strict=True)
    return pd.DataFrame({name: each.numpy() for name, each in columns}, rows.numpy())


def best_measured(bandit: GPBandit, campaign: Candidates) -> dict[str, Any]:
    """Return the ``id`` and the ``MOMENTS`` of the best measured candidate."""
    found = moments(bandit, [bandit.best_arm()])
    return {"id": campaign.ids_of(found.index)[0], **found.iloc[0]}


def describe_batch(
    bandit: GPBandit, picks: Tensor, campaign: Candidates, is_fitted: bool
) -> pd.DataFrame:
    """Return one row per distinct pick, in the order of the choice, by its arm.

    ``mean``, ``std`` and the 95 % interval from ``low`` to ``high`` are those of the
    mean reward given the measurements, in the reward's unit. They are empty before
    kernel and noise are fitted.
    """
    repeats = pd.Series(picks.cpu().numpy()).value_counts(sort=False)
    batch = repeats.to_frame("repeats")
    batch.insert(0, campaign.args.id, campaign.ids_of(repeats.index))
    if not is_fitted:
        batch = batch.assign(**dict.fromkeys(MOMENTS, np.nan))
        return batch.assign(why="spread out: no model yet")
    found = moments(bandit, repeats.index.to_numpy())
    return batch.join(found).assign(why=_reasons(bandit, found))


def _reasons(bandit: GPBandit, found: pd.DataFrame) -> list[str]:
    """Return why each arm was chosen: for its mean, or for its uncertainty."""
    best = moments(bandit, [bandit.best_arm()])["mean"].item()
    sign = 1 if bandit.maximize else -1
    measured = {*bandit.observed_arms.tolist()}
    of = "so far" if measured else "prediction"
    reasons = []
    for arm, mean, std, low, high in found.itertuples(name=None):
        half, goal = DEVIATIONS_OF_95_PERCENT * std, in_digits_of(best, std)
        seen = f"{in_digits_of(mean, std)} ± {in_digits_of(half, std)}"
        is_as_good = sign * (mean - best) >= -EQUAL * std
        # The interval may be narrower than ±, by the warp or bounds of results.
        could_beat = high > best if bandit.maximize else low < best
        if arm in measured:
            may_win = could_beat or is_as_good
            why = "and may still be the best" if may_win else "improves the model"
            reasons.append(f"repeat: measured before, {why}")
        elif is_as_good:
            reasons.append(f"promising: {seen}, best {of} {goal}")
        elif could_beat:
            reasons.append(f"uncertain: {seen}, could beat {goal}")
        else:
            reasons.append(f"to learn: {seen}, improves the model")
    return reasons


def predict(bandit: GPBandit, campaign: Candidates, top: int | None) -> pd.DataFrame:
    """Return predictions of the candidates, all or the best means, in columns."""
    args, threshold = campaign.args, campaign.args.threshold
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
    bandit: GPBandit, campaign: Candidates, is_fitted: bool
) -> pd.DataFrame:
    """Return predictions of the candidates, named as in the batch.

    As in the batch, they are empty before the model is fitted.
    """
    most = NUM_PRODUCTS if campaign.args.component else None
    table = predict(bandit, campaign, campaign.args.top or most)
    names = campaign.names_of(table.pop("arm").to_numpy())
    table = table if is_fitted else table * np.nan
    return pd.concat([names, table], axis="columns")


def settings_shown(campaign: Candidates, indices: Any) -> pd.DataFrame:
    """Return settings as text; none of combinations, whose names have them."""
    args, table = campaign.args, campaign.names_of(indices).astype("object")
    own = table.drop(columns=list(table) if args.component else args.id)
    texts = own.map(lambda x: f"{x:.15g}" if isinstance(x, float) else f"{x}")
    return texts.where(own.notna(), "")


def when_to_stop(
    bandit: GPBandit, batch: pd.DataFrame, campaign: Candidates
) -> list[str]:
    """Return what the batch may bring, in three sentences.

    The expected rise is left out if it goes beyond all results, and beyond the best
    mean by 2.78 standard deviations, unless the best possible result is known.
    """
    reward = campaign.args.reward_label
    picks = torch.tensor(batch.index.repeat(batch["repeats"]).to_numpy())
    said = bandit.progress(indices=picks)
    rise, best = said.expected_rise, said.best_arms
    names = listing(campaign.ids_of(best.numpy()), NUM_BEST_SHOWN)
    if len(best) > 1:
        names = f"one of these {len(best):,} of {campaign.num_candidates:,}: {names}"
    leader, sign = best_measured(bandit, campaign), 1 if bandit.maximize else -1
    means, std = np.append(batch["mean"], leader["mean"]), leader["std"]
    most = sign * leader["mean"] + DEVIATIONS_OF_95_PERCENT * std
    seen = np.append(sign * campaign.rewards, most)
    best_mean, better = (sign * means).max(), "raise" if bandit.maximize else "lower"
    digits = max(rise, std / 10)
    now, then = (
        in_digits_of(sign * each, digits) for each in (best_mean, best_mean + rise)
    )
    brings = (
        f"After this batch, the best predicted mean {reward} is expected to be {then} "
        f"(now {now})"
    )
    is_known = math.isfinite(bandit.bounds[bandit.maximize])
    if not is_known and best_mean + rise > np.nanmax(seen):
        brings = f"This batch may {better} the best {reward}, by how much is unknown: "
        brings += "predictions go beyond all results so far"
    return [
        f"{brings}.",
        "Chance that something better is still unmeasured: "
        f"{100 * said.probability_unmeasured:.0f} %.",
        f"With a chance of {100 * said.probability_held:.0f} %, the best candidate is "
        f"{names}.",
    ]


def best_hits(
    bandit: GPBandit, campaign: Candidates
) -> tuple[list[str], list[dict[Any, Any]]]:
    """Return the best predicted candidates, and names of what was measured.

    Each candidate has its ``id``, the predictions, the number of its ``results`` and
    their means, ``told``: of the reward and of each outcome of a score.
    """
    args, observed = campaign.args, ~np.isnan(campaign.rewards)
    names = [name for name, _ in args.objective]
    outcomes = [to_numbers(campaign.results[name][observed]) for name in names]
    columns = np.column_stack([campaign.rewards[observed], *outcomes])
    told = pd.DataFrame(columns).groupby(campaign.indices[observed])
    hits = predict(bandit, campaign, NUM_HITS)
    hits["id"] = campaign.ids_of(hits["arm"])
    hits["results"] = hits["arm"].map(told.size()).fillna(0).astype("int64")
    shown = settings_shown(campaign, hits["arm"].to_numpy())
    hits["settings"] = shown.to_numpy().tolist()
    hits["told"] = told.mean().reindex(hits["arm"]).to_numpy().tolist()
    return [args.reward_label, *names], hits.to_dict("records")


def describe_groups(bandit: Any, args: SuggestOptions) -> list[str]:
    """Return a sentence on the groups of --group, and one on each earlier campaign."""
    table = pd.DataFrame(bandit.groups())
    is_own, lines = table["campaign"] == "", list[str]()
    if args.group is not None:
        own, of = table[is_own].set_index("group"), f"roups of column {args.group!r}"
        own = own.rename({"": "without a group"})
        offsets = own["offset"]
        if offsets.isna().all():
            lines.append(
                f"G{of}: offsets of this campaign do not act yet. They need two groups "
                "with two results each."
            )
        elif (offsets.abs() < CERTAIN * own["std"]).all():
            lines.append(
                f"No difference between g{of} found (a small one cannot be excluded)."
            )
        else:
            lines.append(
                f"G{of}: offsets of {args.reward_label} from {offsets.min():+.2g} "
                f"({offsets.idxmin()}) to {offsets.max():+.2g} ({offsets.idxmax()})."
            )
    for row in table[~is_own & (table["group"] == "")].to_dict("records"):
        worth = f"about {row['worth']:,.0f}" if row["worth"] >= 1 else "less than one"
        lines.append(
            f"{row['campaign']}: {row['num_results']:,} results, worth {worth} of this "
            "campaign's results."
        )
    return lines
