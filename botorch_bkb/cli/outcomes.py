"""Several outcomes: what the options say, their bandit, and its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits import matern_to_learn, rbf_to_learn
from botorch_bkb.bandits.fitting import MIN_PULLS_TO_FIT
from botorch_bkb.bandits.outcome_choice import MOST_PRODUCTS
from botorch_bkb.bandits.outcomes import CONFIDENT, OutcomesBandit
from botorch_bkb.bandits.roles import (
    AtLeast,
    AtMost,
    checked_roles,
    Maximize,
    Minimize,
    Objective,
    objectives_of,
    Role,
    Target,
)
from botorch_bkb.cli.arguments import MOMENTS, SuggestOptions
from botorch_bkb.cli.components import Candidates
from botorch_bkb.cli.predictions import moments, NUM_PRODUCTS
from botorch_bkb.cli.report import outcome_cells, Part
from botorch_bkb.cli.results import add_results
from botorch_bkb.cli.tables import quoted
from botorch_bkb.tables.columns import listing, to_numbers


KERNELS = {"matern": matern_to_learn, "rbf": rbf_to_learn}
FEASIBLE = "probability_feasible"
ARM, GROUP = 0, 1  # columns beside outcomes, whose names are text
# Members of a Pareto front that are printed.
NUM_FRONT_SHOWN = 5


def outcome_words(args: SuggestOptions) -> str:
    """Return the options of several outcomes that are nearest to the given ones."""
    words, seen = list[str](), set[str]()
    for name, (direction, *ends) in args.objective:
        sign, end = (">=", ends[0]) if direction == "max" else ("<=", ends[1])
        again = f'--limit "{name} {sign} {end:.12g}"'
        words.append(again if name in seen else f"--{direction}imize {quoted(name)}")
        seen.add(name)
    for kind in ("maximize", "minimize"):
        words += [f"--{kind} {quoted(name)}" for name in getattr(args, kind) if name]
    if args.reward is not None or "" in args.minimize:
        kind = "minimize" if "" in args.minimize else "maximize"
        words.append(f"--{kind} {quoted(args.reward or 'reward')}")
    for name, value, tolerance in args.target:
        near = f" +- {tolerance:.12g}" if tolerance else ""
        words.append(f'--target "{name} = {value:.12g}{near}"')
    words += [f'--limit "{name} {sign} {end:.12g}"' for name, sign, end in args.limit]
    return " ".join(words)


def read_roles(args: SuggestOptions) -> None:
    """Set ``args.roles`` by the options; raise an error if these do not fit.

    A single outcome that is maximized or minimized becomes ``args.reward``.
    """
    given: list[tuple[str, Role]] = [(name, Maximize()) for name in args.maximize]
    given += [(name, Minimize()) for name in args.minimize or () if name]
    given += [(name, Target(*numbers)) for name, *numbers in args.target]
    limits = {"<=": AtMost, ">=": AtLeast}
    given += [(name, limits[sign](end)) for name, sign, end in args.limit]
    roles: dict[str, list[Role]] = {}
    for name, role in given:
        roles.setdefault(name, []).append(role)
    if not roles:
        args.minimize = bool(args.minimize)
        return
    words = outcome_words(args)
    if args.objective or args.reward is not None or "" in args.minimize:
        raise InputDataError(
            "Expected --objective, or --reward and perhaps --minimize, or outcomes "
            "(--maximize COLUMN, --minimize COLUMN, --target, --limit), but got both. "
            f"For outcomes, pass {words} instead."
        )
    if len(given) == len(args.limit):
        raise InputDataError(
            "Expected an objective beside --limit. Add --maximize COLUMN, --minimize "
            f"COLUMN or --target, such as --maximize reward {words}."
        )
    (name, (role, *others)), *more = roles.items()
    if not more and not others and isinstance(role, Maximize | Minimize):
        args.reward, args.minimize = name, isinstance(role, Minimize)
        return
    args.roles = checked_roles(roles)
    refused = {
        "log-reward": args.log_reward,
        "noise-std": args.noise_column is not None,
        "threshold": args.threshold is not None,
        "confidence": args.confidence is not None,
        "goal regret": args.goal == "regret",
    }
    for option in filter(refused.get, refused):
        raise InputDataError(
            f"--{option} does not go with outcomes (--maximize, --minimize COLUMN, "
            "--target, --limit). Leave it out. In place of --threshold, pass --limit "
            '"COLUMN >= X". In place of --log-reward, write logarithms into the column '
            "and its limits."
        )


def outcome_parts(campaign: Candidates) -> list[Part]:
    """Return each outcome as if it were the only result."""
    parts = []
    for name, roles in campaign.args.roles.items():
        own, own.args = copy(campaign), copy(campaign.args)
        leading = next((r for r in roles if isinstance(r, Objective)), roles[0])
        own.args.roles, own.args.minimize = {name: roles}, leading.best < np.inf
        own.rewards = to_numbers(campaign.results[name]).to_numpy(copy=True)
        own.others = [
            rows._replace(rewards=to_numbers(rows.results[name]).to_numpy(copy=True))
            for rows in campaign.others
        ]
        parts.append(Part(own))
    return parts or [Part(campaign)]


def outcomes_bandit(campaign: Candidates, parts: Sequence[Part]) -> OutcomesBandit:
    """Return the bandit of several outcomes, with all measurements."""
    args, features = campaign.args, campaign.features
    if args.predictions and campaign.num_candidates > MOST_PRODUCTS and args.component:
        raise InputDataError(
            f"--predictions of several outcomes needs at most {MOST_PRODUCTS:,} "
            f"combinations, but there are {campaign.num_candidates:,}. Leave it out."
        )
    names, kernel = [*args.roles], KERNELS.get(features.kernel or "")
    bounds = args.bounds_of
    for name, sign, end in args.limit:  # which results that are all there meet
        if next(part.constant for part in parts if part.name == name) == end:
            bounds.setdefault(name, (-np.inf, end) if sign == "<=" else (end, np.inf))
    bandit = OutcomesBandit(
        features.arms,
        args.roles,
        covar_module=None if kernel is None else dict.fromkeys(names, kernel),
        bounds=bounds,
        max_inducing=args.max_inducing,
        max_repeats=args.max_repeats,
        generator=torch.Generator().manual_seed(args.seed),
    )
    results, indices = campaign.results[names].apply(to_numbers), campaign.indices
    results[ARM], results[GROUP] = indices, parts[0].own["group"].to_numpy()
    is_told = results[names].notna()
    is_open = ~is_told.all(axis="columns")
    # Empty cells of the candidates' own table are no measurements in flight.
    own = [path for path in args.observations if path.resolve() == args.arms.resolve()]
    own_names = [name for path in own for name in (path.name, f"{path}")]
    is_other = ~results.index.isin(own_names, level=0)
    is_open &= results[ARM].isin(results[ARM][is_open & is_other])
    is_open &= ~np.isin(indices, campaign.failed)  # nothing more will come
    told, some = results[~is_open], results[is_open]
    bandit.add_observations(told[ARM], told[names], group=told[GROUP])
    for part in parts:
        add_results(bandit.outcomes[part.name], part.others)
    # Rows of a candidate complete each other: each outcome may have a file. An empty
    # row is of the outcomes of its file.
    is_empty = ~is_told[is_open].any(axis="columns")
    has = campaign.failures.loc[some.index, names].notna().mul(is_empty, axis="index")
    of_arm = (is_told[is_open] | has).groupby(some[ARM], sort=False)
    counts = of_arm.sum().max(axis="columns")
    bandit.add_pending(counts.index.repeat(counts))
    bandit.tell(some[ARM], some[names], group=some[GROUP])
    return bandit


def predict_outcomes(
    args: SuggestOptions, bandit: OutcomesBandit, arms: Tensor, fitted: Sequence[str]
) -> pd.DataFrame:
    """Return predictions by arm, empty for outcomes whose model is not fitted yet."""
    table = pd.DataFrame(np.nan, arms.numpy(), args.columns_of_next[1:])
    for name in fitted:
        own = [f"{name}_{kind}" for kind in MOMENTS]
        table[own] = moments(bandit.outcomes[name], arms.numpy()).to_numpy()
    choice, limited = bandit._choice(), {name for name, *_ in args.limit}
    if choice is not None and limited and limited <= {*fitted}:
        table[FEASIBLE] = choice.log_probability_feasible(arms).exp().numpy()
    return table


def best_outcomes(
    bandit: OutcomesBandit, campaign: Candidates, fitted: Sequence[str]
) -> pd.DataFrame:
    """Return predictions of all candidates, or of the best ones, with their names.

    The best ones are those of the predicted Pareto front, then those that hold the
    limits, in order of the first objective, then the others by that probability. While
    an outcome has no model, its limits and its objective do not count.
    """
    args = campaign.args
    top = args.top or (NUM_PRODUCTS if args.component else None)
    arms = torch.arange(campaign.num_candidates)
    if isinstance(bandit.arms, ProductArms):
        arms = torch.arange(len(bandit.arms))
        arms = arms[bandit.arms.is_allowed(arms)]
    arms = arms[~bandit.is_retired[arms]] if top else arms
    table = predict_outcomes(args, bandit, arms, fitted)
    goals = [each for each in objectives_of(args.roles) if each[0] in fitted]
    if top and goals:
        name, role = goals[0]
        worth = role.utility(torch.tensor(table[f"{name}_mean"].to_numpy()))
        choice: Any = bandit._choice()
        models = [bandit.outcomes[each] for each in fitted]
        choice.models = [own for own in choice.models if own.bandit in models]
        holds = choice.log_probability_feasible(arms).exp().numpy().clip(max=CONFIDENT)
        front = []
        if len(fitted) == len(args.roles):
            front = bandit.pareto_front(among_pulled=False).tolist()
        is_front = table.index.isin(front)
        table = table.iloc[np.lexsort((-worth, -holds, ~is_front))]
    table = table[:top]
    names = campaign.names_of(table.index.to_numpy())
    return pd.concat([names, table.reset_index(drop=True)], axis="columns")


def recommended(
    bandit: OutcomesBandit,
    campaign: Candidates,
    fitted: Sequence[str],
    has_measured: bool,
) -> list[str]:
    """Return lines about the best measured candidate, or the Pareto front of these."""
    args = campaign.args
    unfitted = [name for name in args.roles if name not in fitted]
    if unfitted:
        return [
            f"There is no model of {listing(unfitted)} yet: it needs "
            f"{MIN_PULLS_TO_FIT} results."
        ]
    if not has_measured:
        return ["No candidate has results of all outcomes yet, so none is the best."]
    front = bandit.pareto_front()  # the best one if there is one objective
    table = predict_outcomes(args, bandit, front, fitted)
    if args.limit and (table[FEASIBLE] < CONFIDENT).any():
        lines = [
            "No measured candidate meets the limits with a probability of 95 %. The "
            "most probable:"
        ]
    elif len(objectives_of(args.roles)) > 1:
        lines = [
            f"Pareto front of the measured candidates, {len(front):,} by the model:"
        ]
    else:
        lines = ["Best measured so far:"]
    shown = table[:NUM_FRONT_SHOWN]
    ids = campaign.ids_of(shown.index)
    for own, cells in zip(ids, outcome_cells(args, shown)[1], strict=True):
        pairs = zip(args.roles, cells[::2], cells[1::2], strict=False)
        said = [f"{name} {mean} ({ends})" for name, mean, ends in pairs]
        if args.limit:
            said.append(f"meets the limits with a probability of {cells[-1]}")
        lines.append(f"{own}: {', '.join(said)}")
    more = len(front) - NUM_FRONT_SHOWN
    return [*lines, f"and {more:,} more"] if more > 0 else lines
