"""Bandits on the posterior of a function that does not drift."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.base import FiniteArmBandit
from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.bandits.ledger import Pull
from botorch_bkb.optim.batch_rules import BatchRule
from botorch_bkb.optim.batch_ucb import optimize_batch_ucb
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_sampler import ArmSampler


class PosteriorBandit(FiniteArmBandit):
    """Upper confidence bounds on :class:`~botorch_bkb.posteriors.ArmPosterior`.

    A subclass names its inducing arms.
    """

    # Whether chosen arms join the inducing arms inside a batch whatever the rule says.
    _always_grows = False

    _posterior: ArmPosterior
    # The number of told pulls it is for, hyper-parameters and posterior.
    _prediction: tuple[int, Hyperparameters, ArmPosterior] | None

    @abstractmethod
    def _resample(self, hyperparameters: Hyperparameters, pulled: Tensor) -> Tensor:
        """Choose inducing arms among the pulled ones, before the posterior changes."""

    def _present_inducing_indices(self, pulled: Tensor) -> Tensor:
        """Return the inducing arms for a prediction between two asks; draws nothing."""
        return self.inducing_indices if self.inducing_indices.numel() else pulled

    @override
    def _choose(
        self,
        rule: BatchRule,
        capacity: Capacity,
        first: int | None,
        pending: Sequence[Pull],
    ) -> Tensor:
        num_pending = len(self._ledger.pending)
        state = self._confidence_state(
            self._hyperparameters, self._posterior, num_pending
        )
        return optimize_batch_ucb(
            self._posterior,
            self.confidence(state),
            rule,
            grow=self._always_grows or not rule.keeps_inducing_points,
            pending_indices=self._indices([pull.arm for pull in pending]),
            pending_scores=self.arms.new_tensor([pull.score for pull in pending]),
            capacity=capacity.pulls,
            first=first,
        )

    @override
    def _draw_best_arms(self, num_draws: int, generator: torch.Generator) -> Tensor:
        sampler = ArmSampler(self._predictive()[1], residual="correlated")
        competes = self._table.competing()
        return sampler.draw_best_arms(num_draws, generator, competes)

    @override
    def _refresh(self) -> None:
        if self._num_processed == self.num_pulls:
            return
        generator_state = self.generator.get_state()
        hyperparameters, posterior = self._hyperparameters, self._posterior
        refit = hyperparameters.is_due(self.num_pulls)
        if refit:
            hyperparameters = self._refitted_hyperparameters()
            posterior = self._new_posterior(hyperparameters)
        try:
            inducing_indices = self._resample(
                hyperparameters, self._pulled(self.num_pulls)
            )
            self._update(posterior, hyperparameters, inducing_indices, self.num_pulls)
        except BaseException:  # an interrupt too must leave no half of it
            self.generator.set_state(generator_state)
            self._rebuild_posterior()
            raise
        self._hyperparameters, self._posterior = hyperparameters, posterior
        self.inducing_indices = inducing_indices
        self._num_processed = self.num_pulls
        self._prediction = None
        if refit:
            self._restart = (self.num_pulls, posterior.log_det)

    @override
    def _predictive(self) -> tuple[Hyperparameters, ArmPosterior]:
        if self._num_processed == self.num_pulls:
            return self._hyperparameters, self._posterior
        if self._prediction is None or self._prediction[0] != self.num_pulls:
            hyperparameters = self._hyperparameters
            if hyperparameters.is_due(self.num_pulls):
                hyperparameters = self._refitted_hyperparameters()
            posterior = self._new_posterior(hyperparameters, max_feature_bytes=0)
            pulled = self._pulled(self.num_pulls)
            inducing_indices = self._present_inducing_indices(pulled)
            self._update(posterior, hyperparameters, inducing_indices, self.num_pulls)
            self._prediction = (self.num_pulls, hyperparameters, posterior)
        return self._prediction[1:]

    def _refitted_hyperparameters(self) -> Hyperparameters:
        hyperparameters = deepcopy(self._hyperparameters)
        indices, rewards = self._ledger.history()
        hyperparameters.fit(indices, self._sign * rewards)
        return hyperparameters

    def _new_posterior(
        self, hyperparameters: Hyperparameters, max_feature_bytes: int | None = None
    ) -> ArmPosterior:
        if max_feature_bytes is None:
            max_feature_bytes = self.max_feature_bytes
        return ArmPosterior(
            hyperparameters.features,
            hyperparameters.covar_module,
            hyperparameters.noise_variance,
            max_feature_bytes,
        )

    def _update(
        self,
        posterior: ArmPosterior,
        hyperparameters: Hyperparameters,
        inducing_indices: Tensor,
        num_pulls: int,
    ) -> None:
        pulled, counts, sums = self._totals(num_pulls)
        counts, sums = counts.to(sums), self._sign * sums
        centered = (sums - hyperparameters.offset * counts) / hyperparameters.scale
        posterior.update(inducing_indices, pulled, counts, centered)

    @override
    def _extended_posterior(self, features: Tensor) -> ArmPosterior:
        return self._posterior.extended(features)

    @override
    def _rebuild_posterior(self) -> None:
        self._prediction = None
        self._posterior = self._new_posterior(self._hyperparameters)
        if self._num_processed:
            self._update(
                self._posterior,
                self._hyperparameters,
                self.inducing_indices,
                self._num_processed,
            )

    @override
    def _renew(self) -> None:
        if not self._is_fresh:
            self._rebuild_posterior()
            self._is_fresh = True

    def _pulled(self, num_pulls: int) -> Tensor:
        return self._totals(num_pulls).arms
