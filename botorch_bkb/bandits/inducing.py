"""Sampling of inducing points by ridge leverage scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.exceptions.warnings import BotorchWarning
from torch import Tensor

from botorch_bkb.bandits.fitting import Fit
from botorch_bkb.checks import check_choice, check_size
from botorch_bkb.models.utils.draws import (
    draw_uniforms,
    keyed_uniforms,
    seeded_generator,
    UPDATES,
)
from botorch_bkb.models.utils.leverage_scores import (
    check_oversampling,
    INCLUSION,
    Inclusion,
    inclusion_probabilities,
    leverage_pivots,
    RESAMPLING,
    Resampling,
    sample_inducing_indices,
)
from botorch_bkb.posteriors import ArmPosterior


# More new points than this in one update are sampled block by block.
BULK_SIZE = 256
# Where hyperparameters are learned, up to this many observed points are all inducing:
# the exact posterior costs less than a fit.
EXACT_UNTIL = 256


@dataclass(frozen=True)
class LeverageScoreSampling:
    r"""Draws inducing points among the observed ones by ridge leverage scores.

    Args:
        oversampling: q-bar: an observed point is kept with probability ``min(1,
            oversampling * n * var / lambda)``, with the variance before the update. See
            ``acquisition.bkb_oversampling`` for the theorems' value.
        resampling: ``"independent"``, fresh draws at every update as the theorems
            assume, or ``"coupled"``, one uniform number per arm: the same
            marginals, inducing arms that change little from batch to batch, and no
            theorem.
        inclusion: ``"merged"`` for the probability above, as in the authors' code, or
            ``"per_pull"`` for ``1 - (1 - min(1, oversampling * var / lambda))^n``, as
            the papers print it; see
            ``models.utils.leverage_scores.inclusion_probabilities`` for why not.
        max_inducing: A ceiling, None for none. It bounds time and memory of an ask. If
            more points are drawn, those of the largest leverage scores given the ones
            before are kept (``models.utils.leverage_scores.leverage_pivots``). Means
            are smoother then, variances mostly larger, the theorems' factor does not
            hold, and there is a ``BotorchWarning``. Inside an ask, the arms of pulls
            without reward join beside them.

    Raises:
        InputDataError: If an option is out of range.
    """

    oversampling: float = 2.0
    resampling: Resampling = "independent"
    inclusion: Inclusion = "merged"
    max_inducing: int | None = None

    def __post_init__(self) -> None:
        check_oversampling(self.oversampling)
        check_choice("resampling", self.resampling, RESAMPLING)
        check_choice("inclusion", self.inclusion, INCLUSION)
        if self.max_inducing is not None:
            check_size("max_inducing", self.max_inducing)

    def draw(
        self,
        hyperparameters: Fit,
        features: Tensor,
        counts: Tensor,
        keys: Tensor,
        scores: Callable[[], Tensor],
        num_new: int,
        seed: int,
        num_updates: int,
        max_feature_bytes: int = 2**31,
    ) -> Tensor:
        """Draw the inducing points of one update.

        Args:
            hyperparameters: Kernel and noise.
            features: The ``n x d`` observed points, in its units.
            counts: The ``n`` numbers of their pulls.
            keys: ``n`` integers that coupled numbers are a function of: the arms.
            scores: Returns the ``n`` leverage scores before the update.
            num_new: How many points had no pulls then. More than 256 are sampled in
                doubling blocks.
            seed: The bandit's seed.
            num_updates: How many updates there were before.
            max_feature_bytes: The byte budget of cached features.

        Returns:
            The rows that are inducing, ascending.
        """
        generator = seeded_generator(seed, UPDATES, num_updates)

        def sample(scores: Tensor) -> Tensor:
            """Return which of the first points are inducing, by their scores."""
            seen = slice(len(scores))
            probabilities = inclusion_probabilities(
                scores, counts[seen], self.oversampling, self.inclusion
            )
            if self.resampling == "independent":
                numbers = draw_uniforms(len(scores), generator)
            else:
                numbers = keyed_uniforms(seed, keys[seen])
            rows = sample_inducing_indices(probabilities, scores, numbers.to(scores))
            if self.max_inducing is None or len(rows) <= self.max_inducing:
                return rows
            # Without numbers, so that Python shows it once.
            warnings.warn(
                "`max_inducing` took effect: fewer points are inducing than leverage "
                "scores would keep, so variances may be further from the exact ones "
                "than the theorems allow. Raise it, or check that the noise variance "
                "is not too small.",
                BotorchWarning,
                stacklevel=2,
            )
            kernel, most = hyperparameters.covar_module, self.max_inducing
            best = leverage_pivots(kernel, features[rows], counts[rows], most)
            return rows[best.sort().values]

        if num_new <= BULK_SIZE:
            return sample(scores())
        # As if the new rewards had come in doubling blocks. At once, every new row
        # would have the score of the prior, and all would be kept: a table of 10,000
        # historical results would make 10,000 inducing points.
        kernel, noise = hyperparameters.covar_module, hyperparameters.noise_variance
        posterior = ArmPosterior(features, kernel, noise, max_feature_bytes)
        stop = BULK_SIZE
        while stop < len(features):
            inducing = sample(posterior.leverage_scores[:stop])
            weights = counts[:stop].to(posterior.like)
            seen = torch.arange(stop, device=features.device)
            posterior.update(inducing, seen, weights, torch.zeros_like(weights))
            stop *= 2
        return sample(posterior.leverage_scores)
