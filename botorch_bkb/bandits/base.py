"""Ask and tell over a finite set of arms: what all bandits share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.acquisition.confidence import (
    ArmObservations,
    as_schedule,
    ConfidenceSchedule,
    ConfidenceState,
)
from botorch_bkb.bandits.checks import check_arms
from botorch_bkb.bandits.hyperparameters import Prior
from botorch_bkb.bandits.ledger import PullLedger
from botorch_bkb.bandits.storage import load_state, save_state
from botorch_bkb.generation.maximizer import MaximizerDistribution
from botorch_bkb.generation.thompson import ArmSampler
from botorch_bkb.optim.arm_posterior import ArmPosterior
from botorch_bkb.optim.batch_rules import BatchRule, Capped, check_size, UNLIMITED
from botorch_bkb.optim.batch_ucb import optimize_batch_ucb
from botorch_bkb.optim.threads import threads_for


# The default cap of a batch whose rule sets no size.
MAX_BATCH_SIZE = 10_000


class FiniteArmBandit(ABC):
    r"""A GP bandit over ``A`` arms with delayed, repeated and failed pulls.

    ``ask`` returns arms to pull; ``tell`` brings rewards, in any order and any part of
    what was asked; what is neither told nor failed stays pending and keeps shrinking
    the variance. The posterior is updated once, in the first ``ask`` after new rewards.
    A subclass names its inducing arms, its confidence schedule and its batch rule.

    Memory is that of :class:`~botorch_bkb.optim.arm_posterior.ArmPosterior`:
    ``O(A)`` and the ``m x A`` features within a byte budget.

    Args:
        arms: An ``A x d`` tensor of features, one row per arm. Merge identical rows
            yourself: twins tie up to rounding only.
        covar_module: Any GPyTorch kernel, used as it is. None: BoTorch's default,
            fitted as data arrive.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        confidence: A schedule of ``botorch_bkb.acquisition.confidence``, or a number
            (a constant width ``w``). None: the bandit's default.
        batch_rule: A rule of ``botorch_bkb.optim.batch_rules``. None: the default.
        maximize: Whether large rewards are good.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: The source of all randomness. None: a new one with a random seed.
        max_feature_bytes: The byte budget of the cached features.

    If ``covar_module`` or ``noise_variance`` is None, features are scaled to the unit
    cube and rewards standardized inside, and what is None is fitted by marginal
    likelihood when the number of told pulls reaches 4, 8, 16, ...; every answer is in
    the user's units. **Fitted hyper-parameters void the regret guarantees.**

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If ``arms`` holds NaN or infinity, or an option is out of range.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        confidence: ConfidenceSchedule | float | None = None,
        batch_rule: BatchRule | None = None,
        maximize: bool = True,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
        max_feature_bytes: int = 2**31,
    ) -> None:
        check_arms(arms)
        if max_repeats is not None:
            check_size("max_repeats", max_repeats)
        if batch_rule is not None and not isinstance(batch_rule, BatchRule):
            raise InputDataError(
                "Expected `batch_rule` to be a rule of `botorch_bkb.optim`, such as "
                f"`FixedSize(96)`, but got {batch_rule!r}."
            )
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        self.arms = arms
        self.confidence = (
            self.default_confidence() if confidence is None else as_schedule(confidence)
        )
        self.batch_rule = (
            self.default_batch_rule() if batch_rule is None else batch_rule
        )
        self.maximize = maximize
        self.max_repeats = max_repeats
        self.generator = generator
        self.max_feature_bytes = max_feature_bytes
        self.num_batches = 0
        self.inducing_indices = torch.empty(0, dtype=torch.long, device=arms.device)
        self._prior = self._new_prior(arms, covar_module, noise_variance)
        self._ledger = PullLedger(arms.shape[0], like=arms)
        # What the posterior of the last `ask` knew: the first told pulls, and where the
        # frozen sums of the confidence schedules restarted.
        self._num_processed = 0
        self._restart = (0, 0.0)
        self._opening_score = 0.0
        self._posterior = self._new_posterior(self._prior)
        self._prediction: tuple[Prior, ArmPosterior] | None = None

    @abstractmethod
    def default_confidence(self) -> ConfidenceSchedule:
        """Return the schedule used if none is given."""

    @abstractmethod
    def default_batch_rule(self) -> BatchRule:
        """Return the batch rule used if none is given."""

    @abstractmethod
    def _resample(self, prior: Prior, pulled: Tensor) -> Tensor:
        """Choose inducing arms among the pulled ones, before the posterior changes."""

    def _new_prior(
        self, arms: Tensor, covar_module: Kernel | None, noise_variance: float | None
    ) -> Prior:
        return Prior(arms, covar_module, noise_variance)

    def _totals(self, num_pulls: int) -> tuple[Tensor, Tensor]:
        """Return counts and sums of the first told pulls, those that still count."""
        return self._ledger.totals(num_pulls)

    def _present_inducing_indices(self, pulled: Tensor) -> Tensor:
        """Return the inducing arms for a prediction between two asks: no draw."""
        return self.inducing_indices if self.inducing_indices.numel() else pulled

    # Whether chosen arms join the inducing arms inside a batch whatever the rule says.
    _always_grows = False

    @property
    def counts(self) -> Tensor:
        """The ``A`` numbers of told pulls."""
        return self._ledger.counts.clone()

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return self._ledger.num_pulls

    @property
    def pending_pulls(self) -> dict[int, int]:
        """The arms of pending pulls by pull id, in order of asking."""
        return {key: pull.arm for key, pull in self._ledger.pending.items()}

    @property
    def noise_variance(self) -> float:
        """Lambda, in the user's units."""
        return self._prior.noise_variance * self._prior.scale**2

    @property
    def covar_module(self) -> Kernel:
        """The kernel, given or fitted so far."""
        return self._prior.covar_module

    def ask(
        self, max_size: int | None = None, available: Tensor | None = None
    ) -> Tensor:
        r"""Choose the next batch; its pulls become pending.

        The very first arm is drawn uniformly; afterwards ties go to the lowest index.
        The first ask after new rewards fits hyper-parameters (if they are learned and
        it is time), resamples the inducing arms and refactorizes. With pulls pending,
        the batch rule starts from what they have used up; at least one arm is returned.

        Args:
            max_size: A cap on the size of this batch. If omitted, 10,000 for rules that
                close by themselves: on an arm that is all but known they may take more
                pulls than anybody can use.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.

        Returns:
            A long tensor of arm indices in order of choice, repeats included.

        Raises:
            InputDataError: If ``max_size`` or ``available`` does not fit, or no arm may
                be pulled; or if the kernel turns out not to be positive semi-definite.
        """
        capacity = self._capacity(available)
        if max_size is None:
            max_size = max(MAX_BATCH_SIZE, self.batch_rule.min_size)
        rule = Capped(self.batch_rule, max_size)
        self._check_left(rule, capacity)
        with threads_for(self._posterior.feature_bytes):
            return self._ask(rule, capacity)

    def _ask(self, rule: BatchRule, capacity: Tensor | None) -> Tensor:
        self._refresh()
        is_first = self.num_pulls == 0 and not self._ledger.pending
        generator_state = self.generator.get_state()
        try:
            first = self._draw_arm(capacity) if is_first else None
            indices = self._choose(rule, capacity, first)
        except Exception:
            self.generator.set_state(generator_state)
            raise
        if is_first:
            self._opening_score = self._posterior.leverage_scores[indices[0]].item()
        self._add_pending(indices)
        self.num_batches += 1
        return indices

    def tell(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        pull_ids: Sequence[int] | None = None,
        external: bool = False,
    ) -> None:
        """Bring rewards, in any order and any part of what was asked.

        Args:
            indices: The ``q`` arms.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending_pulls``. If None, the oldest
                pending pulls of those arms.
            external: Whether rewards of arms without a pending pull are welcome:
                historical or outside data. Pending pulls are settled first.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, or a pull is
                not pending. Nothing has changed then.
        """
        scores = self._posterior.leverage_scores if external else None
        self._ledger.tell(indices, rewards, pull_ids, scores)
        self._prediction = None

    def fail(
        self, indices: Tensor | Sequence[int], pull_ids: Sequence[int] | None = None
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``."""
        self._ledger.fail(indices, pull_ids)

    def add_pending(self, indices: Tensor | Sequence[int]) -> None:
        """Count pulls that somebody else has started as pending, repeats included.

        Raises:
            InputDataError: If an arm is unknown.
        """
        arms = self._ledger.check_indices(indices)
        self._add_pending(torch.tensor(arms, dtype=torch.long))

    def predict(
        self, indices: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances of the arms, in the user's units.

        All told pulls count, with the inducing arms of the last ``ask``; nothing is
        drawn, and pending pulls do not count.

        Args:
            indices: The arms; all if None.
        """
        rows = self._rows(indices)
        prior, posterior = self._predictive()
        mean = posterior.mean[rows] * prior.scale + prior.offset
        variance = posterior.variance[rows] * prior.scale**2
        return (mean if self.maximize else -mean), variance

    def confidence_bound(self, indices: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the optimistic confidence bounds of the arms, in the user's units.

        The upper bound if ``maximize``, else the lower one, of what ``predict`` says.

        Args:
            indices: The arms; all if None.
        """
        prior, posterior = self._predictive()
        # A copy: asking for a bound must not advance a schedule that remembers.
        width = deepcopy(self.confidence)(self._confidence_state(prior, posterior))
        mean, variance = self.predict(indices)
        noise = prior.noise_variance * prior.scale**2
        # `width` is in the kernel's units, the score w sqrt(var / lambda) times scale.
        bonus = width * prior.scale * (variance / noise).sqrt()
        return mean + bonus if self.maximize else mean - bonus

    def best_arm(self, among_pulled: bool = True) -> int:
        """Return the arm of the best posterior mean, the lowest index among ties.

        Args:
            among_pulled: Whether only arms with told pulls count (all arms count before
                the first).
        """
        mean = self._predictive()[1].mean
        pulled = self._ledger.counts > 0
        if among_pulled and pulled.any():
            mean = mean.masked_fill(~pulled, -torch.inf)
        return int(mean.argmax())

    def maximizer_distribution(
        self, num_draws: int = 256, generator: torch.Generator | None = None
    ) -> MaximizerDistribution:
        """Return how likely each arm is the best, from draws of the posterior.

        Given all told pulls, as in ``predict``; uniform before the first. The draws
        omit what the inducing arms do not explain, see
        :mod:`botorch_bkb.generation.thompson`.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness. None: a new one with a random seed;
                that of the bandit stays as it is.
        """
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        if self.num_pulls == 0:
            size, device = (num_draws,), generator.device
            best = torch.randint(
                self.arms.shape[0], size, generator=generator, device=device
            )
        else:
            best = self._draw_best_arms(num_draws, generator)
        return MaximizerDistribution(self.arms, best.to(self.arms.device))

    def _draw_best_arms(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draw the best arms of draws from the posterior."""
        sampler = ArmSampler(self._predictive()[1])
        return sampler.draw_best_arms(num_draws, generator)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next ``ask`` depends on, ``O(pulls)`` numbers.

        Load it into a bandit constructed with the same arms and options.
        """
        return {
            "bandit": type(self).__name__,
            "num_arms": self.arms.shape[0],
            "ledger": self._ledger.state_dict(),
            "prior": deepcopy(self._prior.state_dict()),
            "confidence": self.confidence.state_dict(),
            "generator": self.generator.get_state(),
            "inducing_indices": self.inducing_indices.clone(),
            "num_processed": self._num_processed,
            "restart": self._restart,
            "opening_score": self._opening_score,
            "num_batches": self.num_batches,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file; a crash leaves the old one or the new one."""
        save_state(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restore what :meth:`save` wrote, in a bandit of the same arms and options.

        Raises:
            FileNotFoundError: If there is no such file.
            InputDataError: If the file is damaged or none of ours, or its state does
                not fit. Nothing has changed then.
        """
        self.load_state_dict(load_state(path))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; picks go on up to rounding.

        Raises:
            InputDataError: If the state is that of another kind of bandit or of another
                number of arms. Nothing has changed then.
        """
        expected = (type(self).__name__, self.arms.shape[0])
        found = (state.get("bandit"), state.get("num_arms"))
        if found != expected:
            raise InputDataError(
                f"Expected the state of a {expected[0]} over {expected[1]} arms, but "
                f"got that of a {found[0]} over {found[1]}. Construct the bandit with "
                "the arms and options of the saved one."
            )
        before = self.state_dict()
        try:
            self._load(state)
        except (RuntimeError, KeyError, InputDataError) as error:
            self._load(before)
            raise InputDataError(
                "Expected the state of a bandit with this kernel and a schedule of the "
                f"kind of {type(self.confidence).__name__}, but it does not fit: "
                f"{error} Construct the bandit with the arms and options of the saved "
                "one."
            ) from error

    def _load(self, state: dict[str, Any]) -> None:
        self._ledger.load_state_dict(state["ledger"])
        self._prior.load_state_dict(state["prior"])
        self.confidence.load_state_dict(state["confidence"])
        self.generator.set_state(state["generator"])
        self.inducing_indices = state["inducing_indices"].to(self.arms.device)
        self._num_processed = state["num_processed"]
        self._restart = tuple(state["restart"])
        self._opening_score = state["opening_score"]
        self.num_batches = state["num_batches"]
        self._rebuild_posterior()

    def _choose(
        self, rule: BatchRule, capacity: Tensor | None, first: int | None
    ) -> Tensor:
        """Choose a batch by upper confidence bounds; ``first`` is already chosen."""
        state = self._confidence_state(self._prior, self._posterior)
        pending = self._ledger.pending.values()
        return optimize_batch_ucb(
            self._posterior,
            self.confidence(state),
            rule,
            grow=self._always_grows or not rule.keeps_inducing_points,
            pending_indices=self._indices([pull.arm for pull in pending]),
            pending_scores=self.arms.new_tensor([pull.score for pull in pending]),
            capacity=capacity,
            first=first,
        )

    def _refresh(self) -> None:
        """Refit, resample and refactorize, if there are rewards not yet used."""
        if self._num_processed == self.num_pulls:
            return
        generator_state = self.generator.get_state()
        prior, posterior = self._prior, self._posterior
        refit = prior.is_due(self.num_pulls)
        if refit:
            prior = self._refitted_prior()
            posterior = self._new_posterior(prior)
        try:
            inducing_indices = self._resample(prior, self._pulled(self.num_pulls))
            self._update(posterior, prior, inducing_indices, self.num_pulls)
        except Exception:
            self.generator.set_state(generator_state)
            self._rebuild_posterior()
            raise
        self._prior, self._posterior = prior, posterior
        self.inducing_indices = inducing_indices
        self._num_processed = self.num_pulls
        self._prediction = None
        if refit:
            self._restart = (self.num_pulls, posterior.log_det)

    def _predictive(self) -> tuple[Prior, ArmPosterior]:
        """Return prior and posterior given all told pulls, without a draw."""
        if self._num_processed == self.num_pulls:
            return self._prior, self._posterior
        if self._prediction is None:
            prior = self._prior
            if prior.is_due(self.num_pulls):
                prior = self._refitted_prior()
            posterior = self._new_posterior(prior, max_feature_bytes=0)
            pulled = self._pulled(self.num_pulls)
            inducing_indices = self._present_inducing_indices(pulled)
            self._update(posterior, prior, inducing_indices, self.num_pulls)
            self._prediction = (prior, posterior)
        return self._prediction

    def _refitted_prior(self) -> Prior:
        prior = deepcopy(self._prior)
        rewards = self.arms.new_tensor(self._ledger.told_rewards)
        prior.fit(self._indices(self._ledger.told_indices), self._sign * rewards)
        return prior

    def _new_posterior(
        self, prior: Prior, max_feature_bytes: int | None = None
    ) -> ArmPosterior:
        if max_feature_bytes is None:
            max_feature_bytes = self.max_feature_bytes
        return ArmPosterior(
            prior.features, prior.covar_module, prior.noise_variance, max_feature_bytes
        )

    def _update(
        self,
        posterior: ArmPosterior,
        prior: Prior,
        inducing_indices: Tensor,
        num_pulls: int,
    ) -> None:
        counts, sums = self._totals(num_pulls)
        pulled = self._pulled(num_pulls)
        counts, sums = counts[pulled].to(sums), self._sign * sums[pulled]
        centered = (sums - prior.offset * counts) / prior.scale
        posterior.update(inducing_indices, pulled, counts, centered)

    def _rebuild_posterior(self) -> None:
        self._prediction = None
        self._posterior = self._new_posterior(self._prior)
        if self._num_processed:
            self._update(
                self._posterior,
                self._prior,
                self.inducing_indices,
                self._num_processed,
            )

    def _confidence_state(
        self, prior: Prior, posterior: ArmPosterior
    ) -> ConfidenceState:
        pulled = posterior.pulled_indices
        counts, sums = self._totals(self.num_pulls)
        counts = counts[pulled].to(sums)
        sample_means = self._sign * sums[pulled] / counts
        start, log_det_start = self._restart
        if prior is not self._prior:
            # A fit is due, and will restart the frozen sums.
            start, log_det_start = self.num_pulls, posterior.log_det
        frozen = self._ledger.told_scores[start:]
        in_sum = self._ledger.first_is_told and start == 0
        return ConfidenceState(
            num_pulls=self.num_pulls,
            num_arms=self.arms.shape[0],
            noise_variance=posterior.noise_variance,
            max_prior_variance=posterior.prior_variance.max().item(),
            effective_dimension=posterior.effective_dimension,
            log_det=posterior.log_det,
            frozen_leverage_scores=torch.tensor(frozen, dtype=torch.float64),
            log_det_start=log_det_start,
            opening_score=self._opening_score if in_sum else 0.0,
            ratio_threshold=self.batch_rule.ratio_threshold,
            observations=ArmObservations(
                counts=counts,
                sample_means=(sample_means - prior.offset) / prior.scale,
                posterior_means=posterior.mean[pulled],
                leverage_scores=posterior.leverage_scores[pulled],
            ),
        )

    def _capacity(self, available: Tensor | None) -> Tensor | None:
        """Return how many more pulls each arm allows; None for no limit."""
        if available is not None:
            num_arms = self.arms.shape[0]
            available = torch.as_tensor(available)
            if available.shape != (num_arms,) or available.dtype != torch.bool:
                raise InputDataError(
                    f"Expected `available` to be a boolean tensor of shape ({num_arms},"
                    f"), but got {available.dtype} of shape {tuple(available.shape)}."
                )
        if self.max_repeats is None and available is None:
            return None
        capacity = torch.full_like(self._ledger.counts, UNLIMITED)
        if self.max_repeats is not None:
            used = self._ledger.counts + self._ledger.pending_counts()
            capacity = (self.max_repeats - used).clamp_min(0)
        if available is not None:
            capacity = capacity * available.to(self.arms.device)
        return capacity

    def _check_left(self, rule: BatchRule, capacity: Tensor | None) -> None:
        if capacity is None:
            return
        left = int(capacity.clamp(max=rule.min_size).sum())
        if left < rule.min_size:
            raise InputDataError(
                f"Expected at least {rule.min_size} more pulls to be allowed, the size "
                f"of the batch, but {left} are left: all other arms are unavailable or "
                "have had their repeats. Ask for a smaller batch or allow more repeats."
            )

    def _draw_arm(self, capacity: Tensor | None) -> int:
        """Draw one of the arms that may be pulled, uniformly."""
        if capacity is None:
            return self._draw_index(self.arms.shape[0])
        allowed = (capacity > 0).nonzero().squeeze(-1)
        return int(allowed[self._draw_index(len(allowed))])

    def _draw_index(self, size: int) -> int:
        generator = self.generator
        draw = torch.randint(size, (1,), generator=generator, device=generator.device)
        return int(draw)

    def _add_pending(self, indices: Tensor) -> None:
        scores = self._posterior.leverage_scores[indices.to(self.arms.device)]
        self._ledger.ask(indices.tolist(), scores.tolist())

    @property
    def _sign(self) -> float:
        return 1.0 if self.maximize else -1.0

    def _pulled(self, num_pulls: int) -> Tensor:
        return self._totals(num_pulls)[0].nonzero().squeeze(-1)

    def _rows(self, indices: Tensor | Sequence[int] | None) -> Tensor:
        if indices is None:
            return torch.arange(self.arms.shape[0], device=self.arms.device)
        return self._indices(self._ledger.check_indices(indices))

    def _indices(self, arms: Sequence[int]) -> Tensor:
        return torch.tensor(arms, dtype=torch.long, device=self.arms.device)
