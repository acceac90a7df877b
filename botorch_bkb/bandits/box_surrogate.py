"""Surrogate model of the rewards over a box, and the record of its points."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms.table import match_rows
from botorch_bkb.bandits.fitting import Fit, Fitter
from botorch_bkb.bandits.inducing import EXACT_UNTIL, LeverageScoreSampling
from botorch_bkb.bandits.observations import Observations
from botorch_bkb.bandits.surrogates import Surrogate
from botorch_bkb.checks import check_points
from botorch_bkb.models import SingleTaskDTCGP


class PointObservations(Observations):
    """The pulls of a bandit on a box, whose arms are the points of its pulls.

    Args:
        bounds: The ``2 x d`` corners of the box, in double.
        dtype: That of points, to which they are rounded.
        sign: As for arms.

    Attributes:
        points: The ``A x d`` points that were asked for or told, each once.
    """

    def __init__(self, bounds: Tensor, dtype: torch.dtype, sign: float = 1.0) -> None:
        super().__init__(0, bounds, sign)
        self.bounds, self.dtype = bounds, dtype
        self.points = bounds[:0]

    @property
    def told_points(self) -> Tensor:
        """The ``n x d`` points of observations, in order of telling."""
        return self.points[self.history()[0]]

    @property
    def pending_points(self) -> Tensor:
        """The ``n x d`` points of pending pulls, in order of asking."""
        return self.points[self.pending_arms()]

    def ask_points(self, points: Tensor) -> None:
        """Make pulls of ``q x d`` points pending; rounding may put one off the box."""
        self.ask(self._add(points), [0.0] * len(points))

    def _add(self, points: Tensor) -> list[int]:
        """Return the arms of points; new ones are added."""
        indices, new = match_rows(self.points, points)
        self.points = torch.cat([self.points, new])
        self.num_arms = len(self.points)
        arms: list[int] = indices.tolist()
        return arms

    @override
    def _checked_arms(self, indices: Any) -> list[int]:
        return self._add(check_points(indices, self.bounds, self.dtype))

    @override
    def _name(self, arm: int) -> str:
        return str(self.points[arm].tolist())

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the points as well."""
        return {**super().state_dict(), "points": self.points}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Not rounded: version 1.0 kept points as they were told, each with a number.
        self._add(check_points(state["points"], self.bounds, self.bounds.dtype))
        super().load_state_dict(state)


class BoxSurrogate(Surrogate):
    """The posterior of a function on a box, exact or sparse.

    Inducing indices of its state are rows of the told points, in order of telling.

    Args:
        hyperparameters: Fits kernel, noise and units.
        sampling: How inducing points are drawn, beyond 256 told points. None: the exact
            GP.
    """

    def __init__(
        self, hyperparameters: Fitter, sampling: LeverageScoreSampling | None
    ) -> None:
        super().__init__(hyperparameters)
        self.sampling = sampling
        self.exact_until = math.inf
        if sampling is not None:
            self.exact_until = min(EXACT_UNTIL, sampling.max_inducing or EXACT_UNTIL)

    @override
    def update(
        self, observations: PointObservations, time: float, in_place: bool = True
    ) -> None:
        if self.is_current(observations, time):
            return
        state, fit = self.state, self.latest_fit(observations)
        state = replace(
            state,
            fit=fit,
            inducing_indices=self._choose_inducing(fit, observations),
            num_told=observations.num_pulls,
            num_updates=state.num_updates + 1,
        )
        self.restore(state)

    @override
    def latest_fit(self, observations: PointObservations) -> Fit:
        features = self.fitter.to_features(observations.points)
        self.fitter = self.fitter.over(features)
        return super().latest_fit(observations)

    @override
    def _compute(self, observations: PointObservations) -> SingleTaskDTCGP | None:
        """Compute the model, in the units of the kernel; None without observations."""
        fit, num_told = self.fit, self.state.num_told
        if num_told == 0:
            return None
        x = self.fitter.to_features(observations.told_points[:num_told])
        rewards = observations.history(units=fit.units).rewards[:num_told]
        targets = fit.units.standardized(rewards).unsqueeze(-1)
        inducing = self.state.inducing_indices
        # Before the first ask with rewards all told points are inducing.
        is_exact = not inducing.numel() or num_told <= self.exact_until
        model = SingleTaskDTCGP(
            x,
            targets,
            likelihood=fit.likelihood_of(x),
            inducing_points=None if is_exact else x[inducing],
            covar_module=fit.covar_module,
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        return model.eval()

    def _choose_inducing(self, fit: Fit, observations: PointObservations) -> Tensor:
        """Return the inducing rows of told points, by the posterior before them."""
        points, sampling = observations.told_points, self.sampling
        everything = torch.arange(len(points), device=points.device)
        if sampling is None or len(points) <= self.exact_until:
            return everything
        before, x = self.fit, self.fitter.to_features(points)

        def scores() -> Tensor:
            model = self.posterior(observations)
            if model is None:
                return (
                    before.covar_module(x, diag=True).detach() / before.noise_variance
                )
            noise = x.new_tensor(before.noise_variance)
            return model.leverage_scores(x, noise).detach()

        return sampling.draw(
            fit,
            x,
            torch.ones_like(x[:, 0]),
            everything,
            scores,
            len(points) - self.state.num_told,
            self.seed,
            self.state.num_updates,
        )
