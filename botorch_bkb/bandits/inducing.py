"""Which arms are inducing: all pulled ones, or a draw by ridge leverage scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.bandits.posterior import PosteriorBandit
from botorch_bkb.models.utils.draws import draw_uniforms
from botorch_bkb.models.utils.leverage_scores import (
    check_inclusion,
    check_oversampling,
    check_resampling,
    Inclusion,
    inclusion_probabilities,
    Resampling,
    sample_inducing_indices,
)
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


# More new arms than this in one update are sampled block by block.
BULK_SIZE = 256


class ExactBandit(PosteriorBandit):
    """A bandit on the exact GP: every pulled arm is inducing.

    Cost ``O(A P^2)`` an ask for ``P`` distinct pulled arms.
    """

    _always_grows = True

    @override
    def _resample(self, hyperparameters: Hyperparameters, pulled: Tensor) -> Tensor:
        return in_stable_order(self.inducing_indices, pulled)

    @override
    def _present_inducing_indices(self, pulled: Tensor) -> Tensor:
        return pulled


class SparseBandit(PosteriorBandit):
    r"""A bandit on the DTC posterior, its inducing arms drawn by leverage scores.

    Args:
        oversampling: q-bar: a pulled arm is kept with probability ``min(1, oversampling
            * n * var / lambda)``, with the variance before the update. See
            ``acquisition.bkb_oversampling`` for the theorems' value.
        resampling: ``"independent"``, fresh draws at every update as the theorems
            assume, or ``"coupled"``, one uniform number per arm for good: the same
            marginals, inducing arms that change little from batch to batch, and no
            theorem.
        inclusion: ``"merged"`` for the probability above, as in the authors' code, or
            ``"per_pull"`` for ``1 - (1 - min(1, oversampling * var / lambda))^n``, as
            the papers print it; see
            ``models.utils.leverage_scores.inclusion_probabilities`` for why not.

    All other arguments are those of :class:`~botorch_bkb.bandits.FiniteArmBandit`.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        oversampling: float = 2.0,
        resampling: Resampling = "independent",
        inclusion: Inclusion = "merged",
        **options: Any,
    ) -> None:
        check_oversampling(oversampling)
        check_resampling(resampling)
        check_inclusion(inclusion)
        super().__init__(arms, covar_module, noise_variance, **options)
        self.oversampling = oversampling
        self.resampling = resampling
        self.inclusion = inclusion
        # One per arm, for the coupled law; drawn when they are first needed.
        self._uniforms = self._draw(0)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "uniforms": self._uniforms}

    @override
    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        uniforms = state["uniforms"]
        num_arms = self.arms.shape[0]
        if uniforms.dim() != 1 or len(uniforms) not in range(num_arms + 1):
            raise InputDataError(
                f"Expected `uniforms` of at most {num_arms} numbers, but got shape "
                f"{tuple(uniforms.shape)}."
            )
        self._uniforms = uniforms.to(self._uniforms)

    @override
    def _refresh(self) -> None:
        uniforms = self._uniforms
        try:
            super()._refresh()
        except BaseException:
            self._uniforms = uniforms
            raise

    @override
    def _present_inducing_indices(self, pulled: Tensor) -> Tensor:
        if self.inducing_indices.numel() or len(pulled) <= BULK_SIZE:
            return super()._present_inducing_indices(pulled)
        # What the next ask will draw: not all arms of a large table can be inducing.
        # The generator is put back afterwards.
        generator_state, uniforms = self.generator.get_state(), self._uniforms
        try:
            return self._resample(self._hyperparameters, pulled)
        finally:
            self.generator.set_state(generator_state)
            self._uniforms = uniforms

    @override
    def _resample(self, hyperparameters: Hyperparameters, pulled: Tensor) -> Tensor:
        fresh = ~torch.isin(pulled, self._posterior.pulled_indices)
        if int(fresh.sum()) > BULK_SIZE:
            rows = sample_in_blocks(
                hyperparameters,
                hyperparameters.features[pulled],
                self._ledger.counts_of(pulled),
                lambda scores: self._sample_rows(pulled[: len(scores)], scores),
                self.max_feature_bytes,
            )
            kept = pulled[rows]
        else:
            kept = self._sample(pulled, self._posterior.leverage_scores_of(pulled))
        return in_stable_order(self.inducing_indices, kept)

    def _sample(self, pulled: Tensor, scores: Tensor) -> Tensor:
        return pulled[self._sample_rows(pulled, scores)]

    def _sample_rows(self, pulled: Tensor, scores: Tensor) -> Tensor:
        probabilities = inclusion_probabilities(
            scores, self._ledger.counts_of(pulled), self.oversampling, self.inclusion
        )
        uniforms = self._draw_uniforms(pulled).to(scores)
        return sample_inducing_indices(probabilities, scores, uniforms)

    def _draw_uniforms(self, pulled: Tensor) -> Tensor:
        """Return one uniform number per pulled arm, by the law of ``resampling``."""
        if self.resampling == "independent":
            return self._draw(pulled.shape[0])
        missing = self.arms.shape[0] - self._uniforms.shape[0]
        if missing:
            self._uniforms = torch.cat([self._uniforms, self._draw(missing)])
        return self._uniforms[pulled.to(self._uniforms.device)]

    def _draw(self, size: int) -> Tensor:
        return draw_uniforms(size, self.generator)


def sample_in_blocks(
    hyperparameters: Hyperparameters,
    features: Tensor,  # n x d
    counts: Tensor,  # n
    sample: Callable[[Tensor], Tensor],
    max_feature_bytes: int = 2**31,
) -> Tensor:  # m, long
    """Sample inducing rows as if many new rewards had come in doubling blocks.

    At once, every new row would have the score of the prior, and all would be kept: a
    table of 10,000 historical results would make 10,000 inducing points.

    Args:
        hyperparameters: Kernel and noise.
        features: The pulled points, in its units.
        counts: The numbers of their pulls.
        sample: The law: which rows are kept, given the leverage scores of the first.
        max_feature_bytes: The byte budget of cached features.

    Returns:
        The rows that are kept.
    """
    posterior = ArmPosterior(
        features,
        hyperparameters.covar_module,
        hyperparameters.noise_variance,
        max_feature_bytes,
    )
    stop = BULK_SIZE
    while stop < len(features):
        inducing = sample(posterior.leverage_scores[:stop])
        weights = counts[:stop].to(posterior.mean)
        seen = torch.arange(stop, device=features.device)
        posterior.update(inducing, seen, weights, torch.zeros_like(weights))
        stop *= 2
    return sample(posterior.leverage_scores)


def in_stable_order(before: Tensor, after: Tensor) -> Tensor:
    """Return ``after`` in the order of ``before``, new entries at the end."""
    kept = before[torch.isin(before, after)]
    return torch.cat([kept, after[~torch.isin(after, before)]])
