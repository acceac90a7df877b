"""Ask and tell over a box: what bandits whose arms are points share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
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

from botorch_bkb.acquisition.confidence import ConfidenceSchedule
from botorch_bkb.bandits.bandit import Bandit, locked
from botorch_bkb.bandits.box_learner import BoxBelief, BoxLearner, ToldPoints
from botorch_bkb.bandits.box_policies import (
    BoxDecision,
    BoxPolicy,
    BoxUCBPolicy,
    draw_points,
)
from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.bandits.ledger import PointLedger
from botorch_bkb.checks import (
    check_bounds,
    check_count,
    check_generator,
    check_indices,
    check_points,
    check_size,
)
from botorch_bkb.generation.maximizer import BoxMaximizerDistribution
from botorch_bkb.models.utils.draws import (
    as_generator,
    ASKS,
    seed_of,
    seeded_generator,
)


# What is learned from fewer points, which a bound chose, misleads for long.
DESIGN_POINTS_PER_DIMENSION = 2


class BoxBandit(Bandit):
    r"""A GP bandit over the points of a box, with delayed and failed pulls.

    The contract is that of the bandits over arms: ``ask`` returns points, ``tell``
    brings rewards of any of them in any order, and what is neither told nor failed
    stays pending and keeps shrinking the variance. The posterior is updated once, in
    the first ``ask`` after new rewards. A pull is settled once, by its id (``pending``
    lists them) or its point. Several threads may ask and tell, as there.

    With ``covar_module`` and ``noise_variance`` given, points are uniform until the
    first reward. Where either is learned, the first ``2 d`` points fill the box, a
    scrambled Sobol sequence, in batches too; told and pending ones count, and until the
    first reward all points are of it.

    Args:
        bounds: A ``2 x d`` tensor, the lower and the upper corner.
        covar_module: Any GPyTorch kernel, used as it is. None: a kernel that is fitted
            as data arrive, see ``new_kernel``.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        policy: What is asked for, :mod:`botorch_bkb.bandits.box_policies`. None: the
            point of the largest upper confidence bound.
        oversampling: q-bar: a told point is inducing with probability ``min(1,
            oversampling * var / lambda)``. None: all are, the exact GP.
        max_inducing: A ceiling for points that are drawn so, None for none; see
            :class:`~botorch_bkb.bandits.SparseLearner`.
        batch_size: How many points ``ask`` returns if it is not told.
        maximize: Whether large rewards are good.
        generator: Gives the seed of all random numbers, and stays in its state. None: a
            random seed.
        num_restarts: How many points the gradient optimizer improves.
        raw_samples: The number of points among which these are the best.
        prior_sampler: The prior part of draws from the posterior, see
            :mod:`botorch_bkb.generation.paths`, in the units that the kernel works in.
            If omitted, random Fourier features (stationary kernels, products and sums).
        new_kernel: From points of the unit cube to the kernel that is learned where
            ``covar_module`` is None. None: a Matern-5/2 trend with rough detail,
            :func:`~botorch_bkb.bandits.composite_to_learn`.

    If ``covar_module`` or ``noise_variance`` is None, the box is scaled to the unit
    cube and rewards are standardized inside, and what is None is fitted by maximum a
    posteriori: from four told pulls on, at every update up to 128 of them, and when
    their number reaches 256, 512, ... after that. Every answer is in the user's units.
    **Fitted hyper-parameters void the regret guarantees.**

    Raises:
        BotorchTensorDimensionError: If ``bounds`` is not ``2 x d``.
        InputDataError: If the box is empty or not finite, or an option out of range.
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        policy: BoxPolicy | None = None,
        oversampling: float | None = None,
        max_inducing: int | None = None,
        batch_size: int = 1,
        maximize: bool = True,
        generator: torch.Generator | None = None,
        num_restarts: int = 4,
        raw_samples: int = 512,
        prior_sampler: TPathwisePriorSampler = draw_kernel_feature_paths,
        new_kernel: Callable[[Tensor], Kernel] | None = None,
    ) -> None:
        check_bounds(bounds)
        check_size("batch_size", batch_size)
        check_size("num_restarts", num_restarts)
        check_size("raw_samples", raw_samples)
        check_generator(generator)
        self.learner: BoxLearner = BoxLearner(oversampling, max_inducing)
        # The optimizers need double precision; points come in the dtype of the box.
        self.bounds, self._dtype = bounds.double(), bounds.dtype
        self.batch_size = batch_size
        self.maximize = maximize
        self.num_batches = 0
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples
        self.prior_sampler = prior_sampler
        self._ledger: PointLedger = PointLedger(self.bounds)
        hyperparameters = Hyperparameters(
            self.bounds,
            covar_module,
            noise_variance,
            learns_mean=True,
            new_kernel=new_kernel,
        )
        seed = seed_of(as_generator(generator))
        policy = BoxUCBPolicy() if policy is None else policy
        self.policy = policy.begun(hyperparameters.learns, seed)
        none = torch.empty(0, dtype=torch.long, device=bounds.device)
        belief = self.learner.believe(hyperparameters, self._pulls(), none)
        self._belief: BoxBelief = replace(belief, seed=seed)

    @override
    def _pulls(self) -> ToldPoints:
        rewards = self._sign * self._ledger.history()[1]
        return ToldPoints(self._ledger.told_points, rewards)

    @property
    @locked
    def pending(self) -> dict[int, Tensor]:
        """The ``d``-dim points of pending pulls by pull id, in order of asking."""
        return dict(zip(self._ledger.pending, self.pending_points, strict=True))

    @property
    @locked
    def pending_points(self) -> Tensor:
        """The ``n x d`` points of pending pulls, in order of asking."""
        return self._ledger.pending_points.to(self._dtype)

    @property
    @locked
    def inducing_points(self) -> Tensor:
        """The ``m x d`` told points on which the posterior of the last ask stands."""
        return self._belief.told.points[self._belief.inducing].to(self._dtype)

    @property
    def confidence(self) -> ConfidenceSchedule | None:
        """The schedule of the bounds' width; None of a policy that has none."""
        policy = self.policy
        return policy.confidence if isinstance(policy, BoxUCBPolicy) else None

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
        with self._all_or_nothing():
            first = self._design(size)
            rest = self._ask_model(size - len(first), first)
            points = torch.cat([first, rest])
            # Rounding may leave the box by a bit.
            points = points.clamp(*self.bounds).detach().to(self._dtype)
            self._ledger.ask_points(points.to(self.bounds))
            self.num_batches += 1
        return points

    @locked
    def tell(
        self,
        points: Tensor,
        rewards: Tensor | Sequence[float],
        pull_ids: Tensor | Sequence[int] | None = None,
        external: bool = False,
    ) -> None:
        """Bring rewards, in any order and any part of what was asked.

        Args:
            points: The ``q x d`` points, exactly as they were asked.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending``. If None, the oldest
                pending pulls of those points.
            external: Whether rewards of points that are not pending are welcome:
                historical or outside data. Pending pulls are settled first.

        Raises:
            BotorchTensorDimensionError: If ``points`` is not ``q x d``, or ``rewards``
                does not fit it.
            InputDataError: If a number is not finite, or a point or pull is not
                pending. Nothing has changed then.
        """
        scores = torch.zeros_like if external else None
        self._ledger.tell(self._ledger.find(points), rewards, pull_ids, scores)

    @locked
    def fail(
        self, points: Tensor, pull_ids: Tensor | Sequence[int] | None = None
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``."""
        self._ledger.fail(self._ledger.find(points), pull_ids)

    @locked
    def predict(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances at points, in the user's units.

        All told pulls count, pending ones do not; nothing is drawn.

        Args:
            points: A ``q x d`` tensor.
        """
        points = check_points(points, self.bounds)
        belief: BoxBelief = self._believed_now()
        hyperparameters = belief.hyperparameters
        features = hyperparameters.to_features(points)
        if belief.num_told == 0:
            prior_variance = hyperparameters.covar_module(features, diag=True)
            variance = prior_variance.detach().to(self._dtype)
            return torch.zeros_like(variance), variance
        with torch.no_grad():
            posterior = belief.model(features.unsqueeze(-2))
        mean = posterior.mean.squeeze(-1) * hyperparameters.scale
        mean = self._sign * (mean + hyperparameters.offset)
        variance = posterior.variance.squeeze(-1) * hyperparameters.scale**2
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
        points = self._ledger.told_points
        best = (self._sign * self.predict(points)[0]).argmax()
        return points[best].to(self._dtype)

    @locked
    def maximizer_distribution(
        self, num_draws: int = 256, generator: torch.Generator | None = None
    ) -> BoxMaximizerDistribution:
        """Return where the best point is, from draws of the posterior.

        Given all told pulls, as in ``predict``; uniform before the first.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness. None: a new one with a random seed.
        """
        check_size("num_draws", num_draws)
        generator = as_generator(generator)
        belief: BoxBelief = self._believed_now()
        if belief.num_told == 0:
            best = draw_points(num_draws, self.bounds, generator)
        else:
            draws = self._decision(belief, generator).draw_maximizers(num_draws)
            best = belief.hyperparameters.to_points(draws)
        return BoxMaximizerDistribution(best.to(self._dtype))

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        return {
            "bandit": type(self).__name__,
            "bounds": self.bounds.clone(),
            "maximize": self.maximize,
            **self._ledger.state_dict(),
            "seed": self._belief.seed,
            "num_updates": self._belief.num_updates,
            "num_batches": self.num_batches,
            "num_processed": self._belief.num_told,
            "inducing": self._belief.inducing.clone(),
            "prior": deepcopy(self._belief.hyperparameters.state_dict()),
            **self.policy.state_dict(),
        }

    @override
    def _undo(self) -> Callable[[], None]:
        restore, policy_state = super()._undo(), self.policy.state_dict()

        def undo() -> None:
            restore()
            self.policy.load_state_dict(policy_state)

        return undo

    @override
    def _check_state(self, state: dict[str, Any]) -> None:
        expected, found = type(self).__name__, state.get("bandit")
        if found != expected or not torch.equal(
            self.bounds, state["bounds"].to(self.bounds)
        ):
            raise InputDataError(
                f"Expected the state of a {expected} over the same box, but got that "
                f"of a {found}, or its `bounds` differ. Construct the bandit with the "
                "box and options of the saved one."
            )
        super()._check_state(state)

    @override
    def _load(self, state: dict[str, Any]) -> None:
        ledger = PointLedger(self.bounds)
        ledger.load_state_dict(state)
        hyperparameters = deepcopy(self._belief.hyperparameters)
        hyperparameters.load_state_dict(state["prior"])
        seed = check_count("seed", state["seed"], 2**64 - 1)
        num_updates = check_count("num_updates", state["num_updates"])
        num_batches = check_count("num_batches", state["num_batches"])
        num_told = check_count(
            "num_processed", state["num_processed"], ledger.num_pulls
        )
        inducing = torch.tensor(
            check_indices(state["inducing"], ledger.num_pulls),
            dtype=torch.long,
            device=self.bounds.device,
        )
        self.policy.load_state_dict(state)
        self._ledger, self.num_batches, self._preview = ledger, num_batches, None
        points, rewards = self._pulls()
        told = ToldPoints(points[:num_told], rewards[:num_told])
        belief = self.learner.believe(hyperparameters, told, inducing)
        self._belief = replace(
            belief,
            is_capped=self._belief.is_capped,
            seed=seed,
            num_updates=num_updates,
        )

    def _design(self, size: int) -> Tensor:
        """Return the next points of the first design, at most ``size``.

        Those of a scrambled Sobol sequence. Told points, whoever chose them, count, and
        so do pending ones; a point that failed is not asked for again.
        """
        num_points = self._num_design_points(size)
        if num_points == 0:
            return self.bounds[:0]
        dimension = self.bounds.shape[-1]
        engine = SobolEngine(dimension, scramble=True, seed=self._belief.seed)
        engine.fast_forward(self._ledger.next_id)
        unit = engine.draw(num_points, dtype=self.bounds.dtype).to(self.bounds)
        return unnormalize(unit, self.bounds)

    def _num_design_points(self, size: int) -> int:
        """Return how many of ``size`` points belong to the first design."""
        if not self._belief.hyperparameters.learns:
            return 0
        if self.num_pulls == 0:
            # With nothing told there is no model to go on by.
            return size
        known = self.num_pulls + len(self._ledger.pending)
        design_size = DESIGN_POINTS_PER_DIMENSION * self.bounds.shape[-1]
        return min(size, max(0, design_size - known))

    def _ask_model(self, size: int, others: Tensor) -> Tensor:
        """Return ``size`` points chosen by the posterior, given others asked now."""
        if size == 0:
            return others[:0]
        told = self._pulls()
        if not self.learner.is_current(self._belief, told):
            self._belief = self.learner.learn(self._belief, told)
        generator = seeded_generator(self._belief.seed, ASKS, self.num_batches)
        if self.num_pulls == 0:
            return draw_points(size, self.bounds, generator)
        decision = self._decision(self._belief, generator, size, others)
        chosen = self.policy.choose(decision)
        return self._belief.hyperparameters.to_points(chosen)

    def _decision(
        self,
        belief: BoxBelief,
        generator: torch.Generator,
        size: int = 0,
        others: Tensor | None = None,
    ) -> BoxDecision:
        """Return what a policy sees, given points that are asked for now."""
        hyperparameters, pending = belief.hyperparameters, self._ledger.pending_points
        if others is not None:
            pending = torch.cat([pending, others])
        return BoxDecision(
            model=belief.model,
            size=size,
            pending=hyperparameters.to_features(pending),
            box=hyperparameters.to_features(self.bounds),
            learns=hyperparameters.learns,
            generator=generator,
            num_restarts=self.num_restarts,
            raw_samples=self.raw_samples,
            prior_sampler=self.prior_sampler,
        )
