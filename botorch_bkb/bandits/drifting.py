"""Surrogate of a function that drifts: hyperparameters, and a filter over time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast, Self

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import ProductArms, StoredArms
from botorch_bkb.bandits.fitting import (
    for_fits,
    Hyperparameters,
    PriorMean,
)
from botorch_bkb.bandits.map_fit import fit_or_warn
from botorch_bkb.bandits.observations import Observations, Pull
from botorch_bkb.bandits.policies import Decision
from botorch_bkb.bandits.surrogates import ArmSurrogate
from botorch_bkb.checks import check_number, check_truth
from botorch_bkb.models.time_varying_gp import default_temporal_kernel, TimeVaryingGP
from botorch_bkb.posteriors import (
    DrawCovariance,
    ReplayedFilter,
    SparseArmKalmanFilter,
)
from botorch_bkb.posteriors.replay import FilterSampler, Observation


# A rate is fitted to at most this many of the latest pulls.
MAX_FIT_PULLS = 512


class DriftHyperparameters(Hyperparameters):
    r"""Kernel, noise, prior mean, units and forgetting rate of a drifting bandit.

    What is not given is fitted by the marginal likelihood over space and time, equation
    (24) of [bogunovic2016tvgpucb]_. A rate that is learned is one per step, about
    the gap between the times of pulls.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel over space, as in :class:`Hyperparameters`.
        noise_variance: lambda; None to learn it.
        forgetting_rate: ``eps``; None to learn it.
        prior_mean: ``"zero"`` or ``"average"``.
    """

    compares = False  # the median of all times may be far from that of now

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None,
        noise_variance: float | None,
        forgetting_rate: float | None,
        prior_mean: PriorMean = "zero",
    ) -> None:
        if forgetting_rate is not None:
            check_number("forgetting_rate", forgetting_rate, 0.0, 1.0)
        super().__init__(arms, covar_module, noise_variance, prior_mean)
        self.given_rate = forgetting_rate
        self.learns |= forgetting_rate is None
        self.temporal_kernel = default_temporal_kernel().double()
        self.step = 1.0  # in units of time

    @property
    def forgetting_rate(self) -> float:
        """``eps``, per unit of time; 1 up to rounding if steps are small against it."""
        if self.step == 1:
            return self.step_rate
        return 1 - (1 - self.step_rate) ** (1 / self.step)

    @property
    def step_rate(self) -> float:
        """``eps``, per step, in which filters count time."""
        if self.given_rate is not None:
            return self.given_rate
        return self.temporal_kernel.forgetting_rate.item()

    def steps(self, time: float) -> float:
        """Return a time in steps."""
        return time / self.step

    @override
    def unfitted(self) -> Self:
        other = super().unfitted()
        other.temporal_kernel, other.step = default_temporal_kernel().double(), 1.0
        return other

    @override
    def _fit(
        self, indices: Tensor, targets: Tensor, times: Tensor, noise: Tensor
    ) -> None:  # no model to compare: rewards are never warped
        latest = times.argsort(stable=True)[-MAX_FIT_PULLS:]
        times = for_fits(times[latest])
        step = 1.0 if self.given_rate is not None else typical_step(times)
        model = self._model_over_time(
            indices[latest], targets[latest.cpu()], times / step
        )
        if not fit_or_warn(model, len(targets)):
            return
        self.step = step
        # Not strict: the model's kernels store active dimensions, ours do not.
        if self.learns_kernel:
            self.covar_module.load_state_dict(
                model.spatial_kernel.state_dict(), strict=False
            )
        if self.given_noise is None:
            self.likelihood.load_state_dict(model.likelihood.state_dict())
        if self.given_rate is None:
            self.temporal_kernel.load_state_dict(
                model.temporal_kernel.state_dict(), strict=False
            )

    def _model_over_time(
        self, indices: Tensor, targets: Tensor, times: Tensor
    ) -> TimeVaryingGP:
        # From the start: few pulls may give a rate of 0 or 1, whose gradient is 0.
        temporal_kernel = default_temporal_kernel().double()
        if self.given_rate is not None:
            # The ends of the interval have no finite raw value.
            temporal_kernel.forgetting_rate = min(max(self.given_rate, 1e-9), 1 - 1e-9)
        X = torch.cat([for_fits(self.features[indices]), times.unsqueeze(-1)], dim=-1)
        with warnings.catch_warnings():
            # Times are not scaled by design, nor are features of a given kernel.
            warnings.simplefilter("ignore", InputDataWarning)
            return TimeVaryingGP(
                X,
                targets,
                covar_module=self.kernel_to_fit(),
                temporal_kernel=temporal_kernel.requires_grad_(self.given_rate is None),
                mean_module=ZeroMean(),
                outcome_transform=None,
                **self.noise_to_fit(torch.zeros_like(times)),
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "temporal_kernel": self.temporal_kernel.state_dict(),
            "step": self.step,
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.temporal_kernel.load_state_dict(state["temporal_kernel"])
        self.step = check_number("step", state["step"], least=1e-150)


def typical_step(times: Tensor) -> float:
    """Return the mean gap between distinct times, of the middle half of them.

    Bursts and single times far off hardly change it. To a power of two: dividing by it
    rounds nothing, and asks one unit apart, some without a result, have a step of 1.
    """
    times = times.unique()
    if len(times) < 2:
        return 1.0
    low, high = times.quantile(0.25).item(), times.quantile(0.75).item()
    return 2.0 ** round(math.log2((high - low) / (0.5 * (len(times) - 1))))


class FilterSurrogate(ArmSurrogate):
    r"""The surrogate of ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``.

    Equations (7) and (8) of [bogunovic2016tvgpucb]_, filtered from step to step.

    Args:
        hyperparameters: Kernel, noise, units and forgetting rate.
        max_feature_bytes: The byte budget of what is cached for all arms.
        sparse: Whether arms of little leverage are inducing no longer.
        tolerance: The leverage under which an inducing arm leaves, if ``sparse``.
        max_inducing: The most inducing arms, if ``sparse``; fewer, two at least, where
            ``max_feature_bytes`` does not hold their features.

    Raises:
        InputDataError: If ``max_feature_bytes`` does not hold the covariances of an
            exact filter.
        UnsupportedError: If the arms are on Ray's workers: this process filters.
    """

    drifts = True

    def __init__(
        self,
        hyperparameters: DriftHyperparameters,
        max_feature_bytes: int = 2**31,
        sparse: bool = False,
        tolerance: float = 1e-3,
        max_inducing: int = 512,
    ) -> None:
        features = hyperparameters.features
        if isinstance(features, ProductArms):
            raise UnsupportedError(
                "Expected a table of arms, since a filter over time holds all arms, "
                "but got a product space. Use `RGPUCB`, which restarts, or leave out "
                "the `forgetting_rate` of a GPBandit."
            )
        if isinstance(features, StoredArms) and features.workers is not None:
            raise UnsupportedError(
                "Expected arms of this process, since a filter over time computes in "
                "it, but got arms on Ray's workers. Leave out `on_ray`, or use "
                "`RGPUCB`, which computes there."
            )
        super().__init__(hyperparameters, max_feature_bytes)
        self.sparse = check_truth("sparse", sparse)
        self.tolerance = tolerance
        self.max_inducing = max_inducing
        self._posterior = ReplayedFilter(self._empty())

    @property
    @override
    def hyperparameters(self) -> DriftHyperparameters:
        hyperparameters = self.state.hyperparameters
        return cast(DriftHyperparameters, hyperparameters)

    @override
    def _compute(self, observations: Observations) -> ReplayedFilter:
        replayed = ReplayedFilter(self._empty())
        told = self._observed(observations, 0)
        replayed.observe(told, self._oldest_pending(observations))
        return replayed

    @override
    def update(
        self, observations: Observations, time: float, in_place: bool = True
    ) -> None:
        known, before = self.posterior(observations), self.state
        num_told = observations.num_pulls
        if before.num_told == num_told:
            return
        hyperparameters = self.fitted(observations)
        is_refitted = hyperparameters is not before.hyperparameters
        self.state = replace(before, hyperparameters=hyperparameters, num_told=num_told)
        new = self._observed(observations, before.num_told)
        if is_refitted or not known.reaches(new):
            self._posterior = None
        elif in_place:
            known.observe(new, self._oldest_pending(observations))
        else:
            self._posterior = ReplayedFilter(known.with_observations(new))
        drifting = self.posterior(observations).filter
        self.state = replace(
            self.state,
            num_updates=before.num_updates + 1,
            restart=(num_told, drifting.log_det) if is_refitted else before.restart,
            inducing_indices=drifting.inducing_indices,
        )

    @override
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> Decision:
        known: ReplayedFilter = self.posterior(observations)
        hyperparameters = self.hyperparameters
        steps, retained = hyperparameters.steps, 1 - hyperparameters.step_rate
        now, timed = steps(time), [(steps(pull.time), pull.arm) for pull in pending]
        moments_at = partial(
            known.at,
            now,
            pulled_indices=observations.totals().arms,
            effective_dimension=sum(observations.told["scores"].tolist()),
            like=hyperparameters.features.new_empty(0),
        )

        given = moments_at(pending=timed)

        def make_sampler(covariance: DrawCovariance, scale: float) -> FilterSampler:
            if covariance != "full":
                raise UnsupportedError(
                    "Expected `covariance` to be 'full' where the objective drifts by "
                    f"a filter, whose draws have one law, but got {covariance!r}."
                )
            return FilterSampler(given, scale)

        return Decision(
            moments=moments_at(),
            given=given,
            num_told=observations.num_pulls,
            time=time,
            # A pending pull informs about its own time, and now by what is retained.
            given_scores=[
                pull.score * retained ** (now - steps(pull.time)) for pull in pending
            ],
            make_sampler=make_sampler,
        )

    @override
    def extended(self, rows: Tensor, observations: Observations) -> Self:
        """Return a copy of more arms; nothing is replayed."""
        hyperparameters = self.hyperparameters.extended(rows)
        if not self.sparse:
            self._check_room(hyperparameters.features)
        features = hyperparameters.features[len(self.hyperparameters.features) :]
        other = copy(self)
        other.state = replace(self.state, hyperparameters=hyperparameters)
        other._posterior = self.posterior(observations).extended(features)
        return other

    def _empty(self) -> SparseArmKalmanFilter:
        """Return a filter that has observed nothing."""
        hyperparameters = self.hyperparameters
        features, kernel = hyperparameters.features, hyperparameters.covar_module
        noise, rate = hyperparameters.noise_variance, hyperparameters.step_rate
        if not self.sparse:
            self._check_room(features)
            # In double: of similar arms, single precision would leave some out.
            kernel = deepcopy(kernel).double()
            most = max(len(features), 2)
            return SparseArmKalmanFilter(
                features.double(), kernel, noise, rate, 0.0, most
            )
        room = self.max_feature_bytes // (len(features) * features.element_size())
        sparse = SparseArmKalmanFilter(
            features, kernel, noise, rate, self.tolerance, self.max_inducing
        )
        sparse.max_inducing = max(2, min(sparse.max_inducing, room))
        return sparse

    def _check_room(self, features: Tensor) -> None:
        """Raise unless the features of all arms fit the byte budget."""
        num_bytes = exact_filter_bytes(len(features))
        if num_bytes > self.max_feature_bytes:
            raise InputDataError(
                "Expected `max_feature_bytes` to hold an exact filter over "
                f"{len(features):,} arms, whose features take up to {num_bytes:,} "
                f"bytes, but got {self.max_feature_bytes:,}. Pass `sparse=True`, or "
                "allow more."
            )

    def _observed(self, observations: Observations, start: int) -> list[Observation]:
        """Return the known pulls from one on, in the units of the hyperparameters."""
        prior = self.hyperparameters
        indices, rewards, times, _ = observations.history(start)
        rewards = (rewards - prior.offset) / prior.scale
        columns = (column.tolist() for column in (times, indices, rewards))
        return [
            Observation(prior.steps(time), arm, reward)
            for time, arm, reward in zip(*columns, strict=True)
        ][: self.state.num_told - start]

    def _oldest_pending(self, observations: Observations) -> float:
        times = [pull.time for pull in observations.pending.values()]
        return self.hyperparameters.steps(min(times, default=math.inf))


def exact_filter_bytes(num_arms: int) -> int:
    """Return the most bytes of a filter on which every pulled arm is inducing."""
    return 8 * num_arms**2
