"""Surrogate of a function that drifts: hyperparameters, and a filter over time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import ProductArms, StoredArms
from botorch_bkb.bandits.fitting import (
    Fit,
    Fitter,
    for_fits,
    PriorMean,
    with_values_of,
)
from botorch_bkb.bandits.observations import Observations, Pull, Results
from botorch_bkb.bandits.policies import Decision
from botorch_bkb.bandits.surrogates import ArmSurrogate
from botorch_bkb.checks import check_number, check_truth
from botorch_bkb.models.kernels import TemporalDecayKernel
from botorch_bkb.models.kernels.learned import fit_or_warn
from botorch_bkb.models.time_varying_gp import default_temporal_kernel, TimeVaryingGP
from botorch_bkb.posteriors import (
    DrawCovariance,
    ReplayedFilter,
    SparseArmKalmanFilter,
)
from botorch_bkb.posteriors.replay import FilterSampler, Observation


# A rate is fitted to at most this many of the latest pulls.
MAX_FIT_PULLS = 512


class DriftFitter(Fitter):
    r"""Fits kernel, noise, prior mean, units and forgetting rate, unless given.

    What is not given is fitted by the marginal likelihood over space and time, equation
    (24) of [bogunovic2016tvgpucb]_. A rate that is learned is one per step, about
    the gap between the times of pulls.

    Args:
        arms, covar_module, noise_variance, bounds: Those of
            :class:`~botorch_bkb.bandits.fitting.Fitter`; the kernel is over space.
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
        bounds: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        if forgetting_rate is not None:
            check_number("forgetting_rate", forgetting_rate, 0.0, 1.0)
        super().__init__(arms, covar_module, noise_variance, prior_mean, bounds)
        self.given_rate = forgetting_rate
        self.learns |= forgetting_rate is None
        self.start = self._at_rate(self.start, default_temporal_kernel().double(), 1.0)

    def _at_rate(
        self, fit: Fit, temporal_kernel: TemporalDecayKernel, step: float
    ) -> Fit:
        """Return a fit with the rate of a kernel over time, unless one is given."""
        rate = self.given_rate
        if rate is None:
            rate = temporal_kernel.forgetting_rate.item()
        return replace(fit, temporal_kernel=temporal_kernel, step=step, step_rate=rate)

    @override
    def _maximize(self, results: Results, start: Fit) -> Fit:
        targets, _ = self.targets(results, start)
        latest = results.times.argsort(stable=True)[-MAX_FIT_PULLS:]
        times = for_fits(results.times[latest])
        step = 1.0 if self.given_rate is not None else typical_step(times)
        # From the start: few pulls may give a rate of 0 or 1, whose gradient is 0.
        temporal_kernel = default_temporal_kernel().double()
        if self.given_rate is not None:
            # The ends of the interval have no finite raw value.
            temporal_kernel.forgetting_rate = min(max(self.given_rate, 1e-9), 1 - 1e-9)
        features = for_fits(self.features[results.indices[latest]])
        with warnings.catch_warnings():
            # Times are not scaled by design, nor are features of a given kernel.
            warnings.simplefilter("ignore", InputDataWarning)
            model = TimeVaryingGP(
                torch.cat([features, (times / step).unsqueeze(-1)], dim=-1),
                targets[latest.cpu()],
                covar_module=self.kernel_to_fit(start),
                temporal_kernel=temporal_kernel.requires_grad_(self.given_rate is None),
                mean_module=ZeroMean(),
                outcome_transform=None,
                **self.noise_to_fit(torch.zeros_like(times), start),
            )
        if not fit_or_warn(model, len(targets)):
            return start
        kernel, likelihood = start.covar_module, start.likelihood
        if self.learns_kernel:
            kernel = with_values_of(model.spatial_kernel, kernel)
        if self.given_noise is None:
            likelihood = with_values_of(model.likelihood, likelihood)
        temporal_kernel = default_temporal_kernel().double()
        if self.given_rate is None:
            temporal_kernel = with_values_of(model.temporal_kernel, temporal_kernel)
        fit = replace(start, covar_module=kernel, likelihood=likelihood)
        return self._at_rate(fit, temporal_kernel, step)

    @override
    def state_dict(self, fit: Fit) -> dict[str, Any]:
        kernel = fit.temporal_kernel or default_temporal_kernel()
        temporal = {"temporal_kernel": kernel.state_dict(), "step": fit.step}
        return {**super().state_dict(fit), **temporal, "given_rate": self.given_rate}

    @override
    def loaded(self, state: dict[str, Any]) -> Fit:
        temporal_kernel = default_temporal_kernel().double()
        state = {"given_rate": self.given_rate, **state}  # version 1.0 lacks it
        if state["given_rate"] != self.given_rate:
            rates = (
                "a learned one" if rate is None else rate
                for rate in (self.given_rate, state["given_rate"])
            )
            raise InputDataError(
                "Expected the state of a bandit with the `forgetting_rate` {}, but got "
                "{}. Construct the bandit with that of the saved one.".format(*rates)
            )
        fit = super().loaded(state)
        temporal_kernel.load_state_dict(state["temporal_kernel"])
        step = check_number("step", state["step"], least=1e-150)
        return self._at_rate(fit, temporal_kernel, step)


# The name of 1.0.
DriftHyperparameters = DriftFitter


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
        hyperparameters: Fits kernel, noise, units and forgetting rate.
        max_feature_bytes: The byte budget of what is cached for all arms.
        sparse, tolerance, max_inducing: Those of :class:`~botorch_bkb.TVGPUCB`.

    Raises:
        InputDataError: If ``max_feature_bytes`` does not hold the covariances of an
            exact filter.
        UnsupportedError: If the arms are on Ray's workers: this process filters.
    """

    drifts = True

    def __init__(
        self,
        hyperparameters: DriftFitter,
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
        fit = self.latest_fit(observations)
        is_refitted = fit is not before.fit
        self.state = replace(before, fit=fit, num_told=num_told)
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
    def withdraw(self, observations: Observations, places: list[int]) -> None:
        super().withdraw(observations, places)
        # A pull may be pending again that is older than what is settled.
        self.restore(self.state)

    @override
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> Decision:
        known: ReplayedFilter = self.posterior(observations)
        steps, retained = self.fit.steps, 1 - self.fit.step_rate
        now, timed = steps(time), [(steps(pull.time), pull.arm) for pull in pending]
        moments_at = partial(
            known.at,
            now,
            pulled_indices=observations.totals().arms,
            effective_dimension=sum(observations.told.scores.tolist()),
            like=self.fitter.features.new_empty(0),
        )
        moments = moments_at()
        given = moments_at(pending=timed) if timed else moments

        def make_sampler(covariance: DrawCovariance, scale: float) -> FilterSampler:
            if covariance != "full":
                raise UnsupportedError(
                    "Expected `covariance` to be 'full' where the objective drifts by "
                    f"a filter, whose draws have one law, but got {covariance!r}."
                )
            return FilterSampler(given, scale)

        return Decision(
            moments=moments,
            given=given,
            num_told=observations.num_pulls,
            time=time,
            # A pending pull informs about its own time, and now by what is retained.
            given_scores=[
                pull.score * retained ** (now - steps(pull.time)) for pull in pending
            ],
            make_sampler=make_sampler,
            surrogate=self,
        )

    @override
    def extended(self, rows: Tensor, observations: Observations) -> Self:
        """Return a copy of more arms; nothing is replayed."""
        new = self.fitter.to_features(rows)
        features = torch.cat([self.fitter.features, new])
        if not self.sparse:
            self._check_room(features)
        other = copy(self)
        other.fitter = self.fitter.over(features)
        other._posterior = self.posterior(observations).extended(new)
        return other

    def _empty(self) -> SparseArmKalmanFilter:
        """Return a filter that has observed nothing."""
        features, kernel = self.fitter.features, self.fit.covar_module
        noise, rate = self.fit.noise_variance, self.fit.step_rate
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
        """Return the known pulls from one on, in the units of the kernel."""
        results = observations.history(start, self.state.num_told)
        rewards = self.fit.units.standardized(results.rewards)
        columns = (x.tolist() for x in (results.times, results.indices, rewards))
        return [
            Observation(self.fit.steps(time), arm, reward)
            for time, arm, reward in zip(*columns, strict=True)
        ]

    def _oldest_pending(self, observations: Observations) -> float:
        times = [pull.time for pull in observations.pending.values()]
        return self.fit.steps(min(times, default=math.inf))


def exact_filter_bytes(num_arms: int) -> int:
    """Return the most bytes of a filter on which every pulled arm is inducing."""
    return 8 * num_arms**2
