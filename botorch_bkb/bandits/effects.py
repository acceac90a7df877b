"""Main effects of the columns of a table, and the importance of each column."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from botorch_bkb.arms import ArmTable, ProductArms
from botorch_bkb.arms.product import scattered_step
from botorch_bkb.arms.product_table import ProductTable
from botorch_bkb.bandits.surrogates import ArmSurrogate
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import as_dense, BitArms


# Candidates over which effects are averaged, and those that stand for the table.
NUM_AVERAGED, NUM_DESCRIBED = 256, 2**14
# Quantiles of a column of numbers with more values.
MOST_VALUES = 20
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
    surrogate: ArmSurrogate, posterior: Any, table: ArmTable | ProductTable, sign: float
) -> MainEffects:
    """Return the main effects of all columns, see :meth:`GPBandit.main_effects`."""
    arms = table.rows
    if isinstance(arms, BitArms):
        raise UnsupportedError(
            "Expected columns, but the arms are fingerprints, whose bits mean little "
            'one by one. Use `ProductArms({"molecule": fingerprints, ...})`.'
        )
    names: list[Any] = [*range(arms.shape[-1])]
    # What the codes in a column stand for; None for numbers.
    labels: list[list[Any] | None] = [None] * len(names)
    if isinstance(arms, ProductArms):
        names = arms.names
        for column, each in enumerate(arms.tables):
            numbers = each[:, 0].tolist() if each.shape[-1] == 1 else range(len(each))
            labels[column] = arms.categories[column] or [*numbers]
    elif isinstance(table, ArmTable) and table.columns is not None:
        names = table.columns
    drawn = torch.arange(min(len(arms), NUM_DESCRIBED), device=arms.device)
    drawn = drawn * scattered_step(len(arms)) % len(arms)
    rows, variance = as_dense(arms[drawn]), posterior.means(drawn).var(correction=0)
    found = MainEffects({}, {}, _confounded(rows, names, labels))
    for column, name in enumerate(names):
        codes, weights = _codes(rows[:, column], labels[column])
        answers = []
        for code in codes:
            points = rows[:NUM_AVERAGED].clone()
            points[:, column] = code
            points = surrogate.fitter.to_features(torch.cat([arms[:0], points]))
            answers.append(_response(posterior, points))
        responses, variances = map(torch.stack, zip(*answers, strict=True))
        means = responses.mean(dim=1)
        first = weights @ (means - weights @ means).square()
        total = weights @ (responses - weights @ responses).square().mean(dim=1)
        first, total = torch.stack([first, total]).div(variance).nan_to_num(0.0)
        found.importance[name] = {"first_order": first.item(), "total": total.item()}
        means, variances = surrogate.fit.units.original_moments(means, variances)
        values = {"value": labels[column] or codes.tolist()}
        found.effects[name] = values | {"mean": sign * means, "std": variances.sqrt()}
    return found


def _codes(column: Tensor, labels: list[Any] | None) -> tuple[Tensor, Tensor]:
    """Return the codes of all labels, or up to 20 numbers, and their shares of rows."""
    if labels is not None:
        counts = column.long().bincount(minlength=len(labels))
        return torch.arange(len(labels)).to(column), counts.to(column) / len(column)
    if len(column.unique()) > MOST_VALUES:
        levels = (torch.arange(MOST_VALUES) + 0.5) / MOST_VALUES
        column = column.quantile(levels.to(column), interpolation="nearest")
    codes, counts = column.unique(return_counts=True)
    return codes, counts.to(column) / len(column)


def _response(posterior: Any, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the posterior means of points, and the variance of the points' average."""
    basis, kernel, like = posterior.basis, posterior.covar_module, posterior.like
    K = dense_covariance(kernel, posterior.arms[basis.indices], points).to(like)
    prior = dense_covariance(kernel, points).to(like).mean()
    Z = basis.project(torch.linalg.solve_triangular(basis.L, K, upper=False))
    z = Z.mean(dim=1, keepdim=True)
    root = torch.linalg.solve_triangular(basis.L_v, z, upper=False)
    residual = (prior - z.square().sum()).clamp_min(0.0)
    return Z.mT @ basis.weights, residual + root.square().sum()


def _confounded(
    rows: Tensor, names: list[Any], labels: list[list[Any] | None]
) -> list[tuple[Any, Any]]:
    """Return pairs of columns, one of which leaves little variance of the other.

    Numbers are grouped between quantiles; codes of labels count as numbers.
    """
    num_rows = len(rows)
    levels = torch.linspace(0, 1, min(MOST_VALUES, math.isqrt(num_rows)) + 1)[1:-1]
    varies = (rows != rows[0]).any(dim=0)
    is_known = varies.new_zeros(len(names), len(names))
    total = (rows - rows.mean(dim=0)).square().sum(dim=0) / (num_rows - 1)
    for given in varies.nonzero()[:, 0].tolist():
        codes = rows[:, given].contiguous()
        if labels[given] is None:
            ends = codes.quantile(levels.to(codes), interpolation="nearest")
            codes = torch.bucketize(codes, ends, right=True)
        _, group, counts = codes.unique(return_inverse=True, return_counts=True)
        sums = rows.new_zeros(len(counts), rows.shape[1]).index_add(0, group, rows)
        left = (rows - (sums / counts.unsqueeze(-1))[group]).square().sum(dim=0)
        left /= max(1, num_rows - len(counts))
        is_known[given] = varies & (left < MOST_LEFT * total)
    pairs = (is_known | is_known.mT).triu(1).nonzero().tolist()
    return [(names[left], names[right]) for left, right in pairs]
