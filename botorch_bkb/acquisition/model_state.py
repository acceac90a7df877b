"""The state of confidence schedules, from a BoTorch model."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_bkb.acquisition.schedules import ArmObservations, ConfidenceState
from botorch_bkb.checks import check_number
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.prediction import (
    DTCPredictionStrategy,
    ExactPosterior,
    Observations,
    SparsePosterior,
)
from botorch_bkb.models.utils.rows import find_replicates, sum_replicates


@torch.no_grad()
def confidence_state_from_model(
    model: Model,
    num_arms: int | None = None,
    num_pending: int = 0,
    ratio_threshold: float = 1.0,
) -> ConfidenceState:
    r"""Describe a fitted model to the confidence schedules.

    Units are those of the model, after any outcome transform; so are those of
    ``norm_bound`` and ``noise_std`` of a schedule. A model does not know its batches,
    so an upper bound of ``log det(I + K / lambda)`` takes the place of the frozen sums.
    ``kappa^2`` is the largest prior variance over the training inputs. Costs ``O(n^3)``
    time and ``O(n^2)`` memory for any other model than ``SingleTaskDTCGP``.

    Args:
        model: A single-output, unbatched GPyTorch ``ExactGP`` with one noise variance,
            such as ``SingleTaskGP`` or ``SingleTaskDTCGP``. It is put in eval mode.
        num_arms: The number of arms, if there is one.
        num_pending: The number of pulls that were chosen and have no reward yet.
        ratio_threshold: ``C~`` of the batch rule, at least 1.

    Raises:
        UnsupportedError: If the model is of another kind, or its noise varies.
    """
    check_number("ratio_threshold", ratio_threshold, least=1.0)
    if (
        not isinstance(model, ExactGP)
        or model.num_outputs != 1
        or len(model.batch_shape) > 0
    ):
        raise UnsupportedError(
            "Expected `model` to be an unbatched exact or DTC GP with one output, but "
            f"got a {type(model).__name__}. Use SingleTaskDTCGP or SingleTaskGP."
        )
    noise = noise_variance_of(model)
    model.eval()
    X, targets, kernel = model.train_inputs[0], model.train_targets, model.covar_module
    prior_mean = model.mean_module(X)
    factors: DTCPredictionStrategy
    if isinstance(model, SingleTaskDTCGP):
        factors, log_det_bound = model.factors(), _log_det_bound(model)
    else:
        variances = torch.full_like(targets, noise)
        data = Observations.merged(X, targets - prior_mean, variances)
        factors = ExactPosterior.from_observations(kernel, data)
        log_det_bound = factors.log_det.item()
    centered = factors(X.unsqueeze(-2))
    means = prior_mean + centered.mean.squeeze(-1)
    leverage_scores = centered.variance.squeeze(-1) / noise
    inverse = find_replicates(X).inverse
    counts = inverse.bincount()
    averages = [
        sum_replicates(values, inverse, len(counts)) / counts
        for values in (targets, means, leverage_scores)
    ]
    return ConfidenceState(
        num_pulls=targets.shape[-1],
        num_arms=num_arms,
        noise_variance=noise,
        max_prior_variance=kernel(X, diag=True).max().item(),
        effective_dimension=leverage_scores.sum().item(),
        log_det=factors.log_det.item(),
        frozen_leverage_scores=leverage_scores.new_zeros(0),
        log_det_start=log_det_bound,
        ratio_threshold=ratio_threshold,
        observations=ArmObservations(counts, *averages),
        num_pending=num_pending,
    )


def _log_det_bound(model: SingleTaskDTCGP) -> float:
    """Return ``log det V + sum_i log(1 + W_i r_i)``, ``r`` the unexplained variance."""
    if (S := model.sparse_inducing_inputs()) is None:
        return model.log_det()
    # Offsets of groups only lower it.
    data, kernel = SingleTaskDTCGP.merged_observations(model), model.covar_module
    factors = SparsePosterior.from_observations(kernel, data, S)
    z = factors.features(data.inputs)
    r = (kernel(data.inputs, diag=True) - z.square().sum(dim=-2)).clamp_min(0.0)
    return (factors.log_det + torch.log1p(data.precisions * r).sum()).item()


def noise_variance_of(model: Model) -> float:
    """Return ``lambda``, the one noise variance of the likelihood."""
    likelihood = getattr(model, "likelihood", None)
    noise: Tensor | None = getattr(likelihood, "noise", None)
    # Equal up to the rounding of an outcome transform.
    if noise is None or noise.max() - noise.min() > 1e-6 * noise.max():
        found = "none" if noise is None else f"{noise.numel()} that differ"
        raise UnsupportedError(
            "Expected `model` to have one noise variance, which the confidence widths "
            f"need, but got {found} from its {type(likelihood).__name__}. Fit the "
            "model without `train_Yvar`, or pass a number of posterior standard "
            "deviations as `confidence`."
        )
    return noise.mean().item()
