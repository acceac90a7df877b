"""Main effects of the columns of a table, and the importance of each column."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from botorch_bkb.arms import ArmTable, ProductArms, TableArms
from botorch_bkb.arms.product import scattered_step
from botorch_bkb.arms.product_table import ProductTable
from botorch_bkb.bandits.fitting import Units
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.rows import as_dense, BitArms
from botorch_bkb.posteriors import Posterior


# Candidates over which effects are averaged, and those that stand for the table.
NUM_AVERAGED, NUM_DESCRIBED = 256, 2**14
# Values for which the model is evaluated together.
NUM_TOGETHER = 32
# Quantiles of a column of numbers with more values, and words of one with more words.
MOST_VALUES, MOST_WORDS = 20, 256
# Columns are confounded if one leaves less than this share of the other's variance.
MOST_LEFT = 0.1


class MainEffects(NamedTuple):
    """What the model has learned of each column.

    Attributes:
        effects: For each column a table for ``pandas.DataFrame``: its ``value``, and
            ``mean`` and ``std`` of their main effects, in units of the reward.
        importance: For each column its shares of the variance of the posterior mean,
            ``first_order`` and ``total``; also a table for ``pandas.DataFrame``.
        confounded: Pairs of columns, one of which is nearly a function of the other in
            the table: results hardly tell their effects apart.
    """

    effects: dict[Any, dict[str, Any]]
    importance: dict[Any, dict[str, float]]
    confounded: list[tuple[Any, Any]]


@torch.no_grad()
def main_effects(
    model: SingleTaskDTCGP,
    posterior: Posterior,
    table: ArmTable | ProductTable,
    units: Units,
    sign: float,
) -> MainEffects:
    """Return main effects, see :meth:`botorch_bkb.bandits.GPBandit.main_effects`."""
    arms = table.rows
    if isinstance(arms, BitArms):
        raise UnsupportedError(
            "Expected columns, but the arms are fingerprints, whose bits mean little "
            'one by one. Use `ProductArms({"molecule": fingerprints, ...})`.'
        )
    # What the codes in each column stand for; None for numbers.
    if isinstance(arms, ProductArms):
        lists = zip(arms.names, arms.tables, arms.categories, strict=True)
        labels: dict[Any, list[Any] | None] = {
            name: words
            or (each[:, 0].tolist() if each.shape[1] == 1 else [*range(len(each))])
            for name, each, words in lists
        }
    else:
        columns: Any = isinstance(table, ArmTable) and table.columns
        labels = dict.fromkeys(columns or range(arms.shape[-1]))
        labels |= arms.words if isinstance(arms, TableArms) else {}
    drawn = torch.arange(min(len(arms), NUM_DESCRIBED), device=arms.device)
    drawn = drawn * scattered_step(len(arms)) % len(arms)
    rows, variance = as_dense(arms[drawn]), posterior.means(drawn).var(correction=0)
    # If results do not distinguish arms, means differ by rounding alone.
    rounding = (10 * torch.finfo(rows.dtype).eps) ** 2 * posterior.max_prior_variance
    variance = variance.where(variance > rounding, torch.inf)
    # The components of a product space are crossed.
    is_product = isinstance(arms, ProductArms)
    found = MainEffects({}, {}, [] if is_product else _confounded(rows, labels))
    for column, (name, words) in enumerate(labels.items()):
        codes, weights = _codes(rows[:, column], words)
        answers = []
        for own in codes.split(NUM_TOGETHER):
            points = rows[:NUM_AVERAGED].repeat(len(own), 1, 1)
            points[..., column] = own.unsqueeze(-1)
            response = model(model.transform_inputs(points))
            covariances = response.covariance_matrix
            answers.append((sign * response.mean, covariances.mean(dim=(-2, -1))))
        responses, variances = map(torch.cat, zip(*answers, strict=True))
        means = responses.mean(dim=1)
        first = weights @ (means - weights @ means).square()
        total = weights @ (responses - weights @ responses).square().mean(dim=1)
        first, total = torch.stack([first, total]) / variance
        found.importance[name] = {"first_order": first.item(), "total": total.item()}
        means, variances = units.original_moments(means, variances)
        shown = codes.tolist()
        values = {"value": [words[int(c)] for c in shown] if words else shown}
        found.effects[name] = values | {"mean": sign * means, "std": variances.sqrt()}
    return found


def _codes(column: Tensor, labels: list[Any] | None) -> tuple[Tensor, Tensor]:
    """Return codes of labels, or up to 20 numbers, and their shares of the rows."""
    if labels is not None:
        counts = column.long().bincount(minlength=len(labels))
        # The most frequent ones, the first of equals.
        order = counts.argsort(descending=True, stable=True)[:MOST_WORDS]
        codes = order[counts[order] > 0].sort().values  # others are of no row
        return codes.to(column), counts[codes].to(column) / counts[codes].sum()
    if len(column.unique()) > MOST_VALUES:
        levels = (torch.arange(MOST_VALUES) + 0.5) / MOST_VALUES
        column = column.quantile(levels.to(column), interpolation="nearest")
    codes, counts = column.unique(return_counts=True)
    return codes, counts.to(column) / len(column)


def _confounded(
    rows: Tensor, labels: dict[Any, list[Any] | None]
) -> list[tuple[Any, Any]]:
    """Return pairs of columns, one of which leaves little variance of the other.

    Numbers are grouped between quantiles; codes of labels count as numbers.
    """
    rows, known = rows - rows[0], []  # what is constant has no variance at all
    levels = torch.linspace(0, 1, min(MOST_VALUES, math.isqrt(len(rows))) + 1)[1:-1]
    for codes, words in zip(rows.mT.contiguous(), labels.values(), strict=True):
        if words is None:
            ends = codes.quantile(levels.to(codes))
            codes = torch.bucketize(codes, ends, right=True)
        _, group, counts = codes.unique(return_inverse=True, return_counts=True)
        sums = rows.new_zeros(len(counts), len(labels)).index_add(0, group, rows)
        left = (rows - (sums / counts.unsqueeze(-1))[group]).square().sum(dim=0)
        left /= max(1, len(rows) - len(counts))
        known.append(left < MOST_LEFT * rows.var(dim=0, correction=0))
    either = torch.stack(known) | torch.stack(known).mT
    names = [*labels]
    return [(names[a], names[b]) for a, b in either.triu(1).nonzero().tolist()]
