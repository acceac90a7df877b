"""What the papers plot of a run."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Diagnostics(NamedTuple):
    r"""What the papers plot after each ask: the posterior in numbers, and the results.

    Attributes:
        effective_dimension: ``d_eff``, the sum of the leverage scores of all results;
            if the objective drifts, of each at its ask.
        log_det: ``log det(I + K / lambda)`` of all results, twice the information gain;
            of a sparse posterior, with its covariances in the place of ``K``.
        inducing_indices: The ``m`` inducing arms.
        observed_arms: The ``P`` arms with results, ascending.
        leverage_scores: The ``P`` variances of these arms over lambda.
        confidence_width: The width of confidence bounds, see ``confidence_width`` of
            the bandit.
        batch_size: The number of pulls of the last ask, without those that failed.
        arms: The ``n`` arms of the results, in order of telling.
        rewards: Their ``n`` rewards.
        times: When each was measured. If the objective does not drift, which ask asked
            for it, counted from 1; of a result from outside, the last ask before it,
            and 0 before the first.
    """

    effective_dimension: float
    log_det: float
    inducing_indices: Tensor
    observed_arms: Tensor
    leverage_scores: Tensor
    confidence_width: float
    batch_size: int
    arms: Tensor
    rewards: Tensor
    times: Tensor
