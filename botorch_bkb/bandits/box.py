"""Ask and tell over a box."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.sampling.pathwise import draw_kernel_feature_paths
from botorch.sampling.pathwise.prior_samplers import TPathwisePriorSampler
from botorch.utils.transforms import unnormalize
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import override

from botorch_bkb.acquisition.schedules import RandomDeviationWidth
from botorch_bkb.bandits.base import Bandit, locked, Values
from botorch_bkb.bandits.box_policies import (
    BoxPolicy,
    BoxSearch,
    BoxUCBPolicy,
    draw_points,
)
from botorch_bkb.bandits.box_surrogate import BoxSurrogate, PointObservations
from botorch_bkb.bandits.fitting import Fitter, PrintedFitter
from botorch_bkb.bandits.inducing import LeverageScoreSampling
from botorch_bkb.checks import (
    check_bounds,
    check_count,
    check_modules,
    check_points,
    check_size,
    check_truth,
)
from botorch_bkb.generation.maximizer import BoxMaximizerDistribution
from botorch_bkb.models.kernels.learned import composite_to_learn
from botorch_bkb.models.utils.draws import as_generator, ASKS, seed_of, seeded_generator


# Hyperparameters fitted to fewer points, chosen by a bound, mislead many later asks.
DESIGN_POINTS_PER_DIMENSION = 2


class BoxBandit(Bandit):
    r"""Ask and tell over the points of a box, with late and failed pulls.

    ``ask`` returns points, ``tell`` brings their rewards in any order. A pull without
    reward stays pending, and lowers the variance, until it is told or fails. A pull is
    settled once, by its id (see ``pending``) or its point.

    With ``covar_module`` and ``noise_variance`` given, points are uniform until the
    first reward. Where either is learned, the first ``2 d`` points, told and pending
    ones included, and all points before the first reward are of a scrambled Sobol
    sequence.

    Args:
        bounds: A ``2 x d`` tensor, the lower and the upper corner.
        covar_module: Any GPyTorch kernel, used as it is. None: a Matern-5/2 trend with
            rough detail, :func:`~botorch_bkb.bandits.composite_to_learn`, learned. A
            function from points of the unit cube to a kernel: that kernel, learned.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        policy: How points are chosen, :mod:`botorch_bkb.bandits.box_policies`. None:
            the point of the largest upper confidence bound, whose random widths are
            drawn with the seed.
        oversampling: q-bar: a told point is inducing with probability ``min(1,
            oversampling * var / lambda)`` once more than 256 points are told, or
            ``max_inducing`` if that is less. None: all are, the exact GP.
        max_inducing: A ceiling for points that are drawn so, None for none; see
            :class:`~botorch_bkb.bandits.LeverageScoreSampling`.
        batch_size: The default of ``ask``.
        maximize: Whether large rewards are good.
        generator: Gives the seed of all random numbers, and stays in its state. None: a
            random seed.
        seed: An integer in place of ``generator``.
        num_restarts: The number of points that the gradient optimizer improves.
        raw_samples: The number of points among which these are the best.
        prior_sampler: The prior part of draws from the posterior, see
            :mod:`botorch_bkb.generation.paths`, in the units of the kernel. The default
            is random Fourier features (stationary kernels, products and sums).

    Kernel or noise that is None is fitted by maximum a posteriori, as in
    :class:`~botorch_bkb.GPBandit`, with a constant prior mean. A kernel that is learned
    works on the unit cube and on standardized rewards. Every answer is in the original
    scale. **Fitted hyperparameters void the regret guarantees.**

    Raises:
        BotorchTensorDimensionError: If ``bounds`` is not ``2 x d``.
        InputDataError: If the box is empty or not finite, or an option out of range.
    """

    _observations: PointObservations
    _surrogate: BoxSurrogate
    _pulled = "points"
    # Whether to begin, fit and center as algorithm 1 of [basu2017]_ is printed.
    _as_printed = False

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None = None,
        noise_variance: float | None = None,
        *,
        policy: BoxPolicy | None = None,
        oversampling: float | None = None,
        max_inducing: int | None = None,
        batch_size: int = 1,
        maximize: bool = True,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        num_restarts: int = 4,
        raw_samples: int = 512,
        prior_sampler: TPathwisePriorSampler = draw_kernel_feature_paths,
    ) -> None:
        check_bounds(bounds)
        check_size("batch_size", batch_size)
        sampling = None
        if oversampling is not None:
            sampling = LeverageScoreSampling(oversampling, max_inducing=max_inducing)
        elif max_inducing is not None:
            raise InputDataError(
                "Expected `max_inducing` to be None where every told point is "
                f"inducing, but got {max_inducing}. Pass `oversampling`."
            )
        # The optimizers need double precision; points come in the dtype of the box.
        self.bounds, self._dtype = bounds.double(), bounds.dtype
        self.batch_size = batch_size
        self.maximize = check_truth("maximize", maximize)
        self.num_batches = 0
        sign = 1.0 if maximize else -1.0
        self._observations = PointObservations(self.bounds, bounds.dtype, sign)
        # Draws need kernels whose features BoTorch knows.
        kernel = composite_to_learn if covar_module is None else covar_module
        fitter_class = PrintedFitter if self._as_printed else Fitter
        fitter = fitter_class(self.bounds, kernel, noise_variance)
        if fitter.learns and not self._as_printed:
            fitter.prior_mean = "fitted"
        self.search = BoxSearch(num_restarts, raw_samples, prior_sampler, fitter.learns)
        self._surrogate = BoxSurrogate(fitter, sampling)
        self._surrogate.seed = seed_of(as_generator(generator, seed))
        if policy is None:
            policy = BoxUCBPolicy(RandomDeviationWidth(seed=self._surrogate.seed))
        check_modules(BoxPolicy, policy=policy)
        self.policy = policy

    @property
    @locked
    def pending(self) -> dict[int, Tensor]:
        """The ``d``-dim points of pending pulls by pull id, in order of asking."""
        return dict(zip(self._observations.pending, self.pending_points, strict=True))

    @property
    @locked
    def pending_points(self) -> Tensor:
        """The ``n x d`` points of pending pulls, in order of asking."""
        return self._observations.pending_points.to(self._dtype)

    @property
    @locked
    def inducing_points(self) -> Tensor:
        """The ``m x d`` inducing points of the last ask."""
        inducing = self._surrogate.state.inducing_indices
        return self._observations.told_points[inducing].to(self._dtype)

    @locked
    def ask(self, size: int | None = None) -> Tensor:
        """Choose the next points; they become pending.

        Args:
            size: How many; ``batch_size`` if omitted.

        Returns:
            A ``size x d`` tensor of points in the box.

        Raises:
            InputDataError: If ``size`` is not an integer of at least 1.
        """
        size = self.batch_size if size is None else size
        check_size("size", size)
        self._surrogate = self._surrogate.taken_over()
        first = self._design(size)
        rest = self._ask_model(size - len(first), first)
        points = torch.cat([first, rest])
        # Rounding may leave the box by a bit.
        points = points.clamp(*self.bounds).detach().to(self._dtype)
        self._observations.ask_points(points.to(self.bounds))
        self.num_batches += 1
        return points

    @locked
    def predict(self, points: Values) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances at points, in the original scale.

        All observations count, pending ones do not; nothing is drawn.

        Args:
            points: A ``q x d`` tensor.
        """
        points = check_points(points, self.bounds, self._dtype)
        surrogate = self._predictor()
        features, fit = surrogate.fitter.to_features(points), surrogate.fit
        if self.num_pulls == 0:
            prior_variance = fit.covar_module(features, diag=True)
            variance = prior_variance.detach().to(self._dtype)
            return torch.zeros_like(variance), variance
        model = surrogate.posterior(self._observations)
        with torch.no_grad():
            posterior = model(features.unsqueeze(-2))
        # Its `variance` would be at least 1e-10, which is much for small rewards.
        moments = posterior.mean, posterior.covariance_matrix.clamp_min(0.0)
        mean, variance = fit.units.original_moments(*(x.flatten() for x in moments))
        mean = self._observations.sign * mean
        return mean.to(self._dtype), variance.to(self._dtype)

    @locked
    def best_point(self) -> Tensor:
        """Return the told point of the best posterior mean, a ``d``-dim tensor.

        Raises:
            InputDataError: If no reward has been told.
        """
        if self.num_pulls == 0:
            raise InputDataError(
                "Expected a reward before the best point is known, but none was told."
            )
        points = self._observations.told_points
        best = (self._observations.sign * self.predict(points)[0]).argmax()
        return points[best].to(self._dtype)

    @locked
    def maximizer_distribution(
        self, num_draws: int = 256, generator: torch.Generator | None = None
    ) -> BoxMaximizerDistribution:
        """Return where the best point is, from draws of the posterior.

        Given all observations, as in ``predict``; uniform before the first.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness. None: a new one with a random seed.
        """
        check_size("num_draws", num_draws)
        generator = as_generator(generator)
        if self.num_pulls == 0:
            best = draw_points(num_draws, self.bounds, generator)
        else:
            surrogate = self._predictor()
            box = surrogate.fitter.to_features(self.bounds)
            model = surrogate.posterior(self._observations)
            draws = self.search.maximizers_of_draws(model, num_draws, box, generator)
            best = surrogate.fitter.to_points(draws)
        return BoxMaximizerDistribution(best.to(self._dtype))

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        confidence = self.policy.confidence.state_dict()
        own = {"bounds": self.bounds.clone(), "confidence": confidence}
        return super().state_dict() | own

    @override
    def _load(self, state: dict[str, Any]) -> None:
        if not torch.equal(self.bounds, state["bounds"].to(self.bounds)):
            raise InputDataError(
                f"Expected the state of a bandit over the box {self.bounds.tolist()}, "
                f"but it is that of one over {state['bounds'].tolist()}. Construct the "
                "bandit with the box of the saved one."
            )
        sign = self._observations.sign
        observations = PointObservations(self.bounds, self._dtype, sign)
        observations.load_state_dict(state["observations"])
        points = observations.told_points
        self._surrogate = self._surrogate.loaded(state, observations, points)
        self._observations = observations
        self.num_batches = check_count("num_batches", state["num_batches"])
        self.policy = copy(self.policy)  # which other bandits may have
        self.policy.confidence = copy(self.policy.confidence)
        self.policy.confidence.load_state_dict(state["confidence"])

    def _design(self, size: int) -> Tensor:
        """Return the next points of the first design, at most ``size``.

        They are of a scrambled Sobol sequence. Told and pending points count, whoever
        chose them; a point that failed is not asked for again.
        """
        dimension, num_points = self.bounds.shape[-1], 0
        if self._surrogate.fitter.learns and not self._as_printed:
            used = self._observations.num_used
            missing = DESIGN_POINTS_PER_DIMENSION * dimension - used
            # Without a result, all points are of the design.
            num_points = size if self.num_pulls == 0 else min(size, max(0, missing))
        if num_points == 0:
            return self.bounds[:0]
        engine = SobolEngine(dimension, scramble=True, seed=self._surrogate.seed)
        engine.fast_forward(self._observations.next_id)
        unit = engine.draw(num_points, dtype=self.bounds.dtype).to(self.bounds)
        return unnormalize(unit, self.bounds)

    def _ask_model(self, size: int, others: Tensor) -> Tensor:
        """Return ``size`` points chosen by the posterior, given others asked now."""
        if size == 0:
            return others[:0]
        observations, surrogate = self._observations, self._surrogate
        surrogate.update(observations, self.decision_time)
        generator = seeded_generator(surrogate.seed, ASKS, self.num_batches)
        if self.num_pulls == 0:
            return draw_points(size, self.bounds, generator)
        fitter = surrogate.fitter
        pending = torch.cat([observations.pending_points, others])
        chosen = self.policy.select(
            surrogate.posterior(observations),
            size,
            fitter.to_features(pending),
            fitter.to_features(self.bounds),
            self.search,
            generator,
        )
        return fitter.to_points(chosen)
