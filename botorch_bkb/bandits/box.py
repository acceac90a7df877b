"""Ask and tell over a box: what bandits whose arms are points share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.sampling.pathwise import draw_kernel_feature_paths
from botorch.sampling.pathwise.prior_samplers import TPathwisePriorSampler
from botorch.utils.transforms import unnormalize
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule
from botorch_bkb.arms.table import match_rows
from botorch_bkb.bandits.box_policies import (
    BoxDecision,
    BoxPolicy,
    BoxUCBPolicy,
    draw_maximizers,
    draw_points,
)
from botorch_bkb.bandits.hyperparameters import Hyperparameters, MAX_FIT_POINTS
from botorch_bkb.bandits.inducing import (
    is_bulk,
    sample_in_blocks,
    warn_of_ceiling,
    within_ceiling,
)
from botorch_bkb.bandits.ledger import Pull, PullLedger
from botorch_bkb.bandits.storage import StoredBandit
from botorch_bkb.checks import (
    check_bounds,
    check_count,
    check_generator,
    check_indices,
    check_points,
    check_size,
)
from botorch_bkb.generation.maximizer import BoxMaximizerDistribution
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import as_generator, draw_seed, draw_uniforms
from botorch_bkb.models.utils.leverage_scores import (
    check_max_inducing,
    check_oversampling,
    sample_inducing_indices,
)


# What is learned from fewer points, which a bound chose, misleads for long.
DESIGN_POINTS_PER_DIMENSION = 2


class BoxBandit(StoredBandit):
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
        covar_module: Any GPyTorch kernel, used as it is. None: BoTorch's default,
            fitted as data arrive.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        policy: What is asked for, :mod:`botorch_bkb.bandits.box_policies`. None: the
            point of the largest upper confidence bound.
        oversampling: q-bar: a told point is inducing with probability ``min(1,
            oversampling * var / lambda)``. None: all are, the exact GP.
        max_inducing: A ceiling for points that are drawn so, None for none; see
            :class:`~botorch_bkb.bandits.SparseLearner`.
        batch_size: How many points ``ask`` returns if it is not told.
        maximize: Whether large rewards are good.
        generator: The source of all randomness. None: a new one with a random seed.
        num_restarts: How many points the gradient optimizer improves.
        raw_samples: The number of points among which these are the best.
        prior_sampler: The prior part of draws from the posterior, see
            :mod:`botorch_bkb.generation.paths`, in the units that the kernel works in.
            If omitted, random Fourier features (stationary kernels and products).

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
    ) -> None:
        check_bounds(bounds)
        check_size("batch_size", batch_size)
        check_size("num_restarts", num_restarts)
        check_size("raw_samples", raw_samples)
        check_generator(generator)
        if oversampling is not None:
            check_oversampling(oversampling)
        check_max_inducing(max_inducing)
        if max_inducing is not None and oversampling is None:
            raise InputDataError(
                "Expected `max_inducing` to be None where every told point is "
                f"inducing, but got {max_inducing}. Pass `oversampling`."
            )
        generator = as_generator(generator)
        # The optimizers need double precision; points come in the dtype of the box.
        self.bounds, self._dtype = bounds.double(), bounds.dtype
        self.batch_size = batch_size
        self.maximize = maximize
        self.generator = generator
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples
        self.prior_sampler = prior_sampler
        self._hyperparameters = Hyperparameters(
            self.bounds, covar_module, noise_variance, learns_mean=True
        )
        # The first design is not stored: the seed brings it back.
        self._design_seed = (
            draw_seed(generator) if self._hyperparameters.learns else None
        )
        learns = self._hyperparameters.learns
        policy = BoxUCBPolicy() if policy is None else policy
        self.policy = policy.begun(learns, generator)
        self.oversampling = oversampling
        self.max_inducing = max_inducing
        self._is_capped = False  # whether the ceiling has ever taken effect
        # The points that were asked for or told so far: a pull's arm is its row.
        self._points = self.bounds[:0]
        self._ledger = PullLedger(0, like=self.bounds)
        # What the last `ask` knew: the first told pulls, and the inducing ones of them.
        self._num_processed = 0
        self._inducing = torch.empty(0, dtype=torch.long, device=bounds.device)
        self._models: dict[int, tuple[Hyperparameters, SingleTaskDTCGP]] = {}

    def _rows_of(self, points: Tensor) -> Tensor:
        """Return the rows of points in those that are known, after adding new ones."""
        rows, new = match_rows(self._points, points)
        self._points = torch.cat([self._points, new])
        self._ledger.num_arms, self._ledger.points = len(self._points), self._points
        return rows

    @property
    def _told_points(self) -> Tensor:
        return self._points[self._ledger.history()[0]]

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return self._ledger.num_pulls

    @property
    def pending(self) -> dict[int, Tensor]:
        """The ``d``-dim points of pending pulls by pull id, in order of asking."""
        points = self._points.to(self._dtype)
        return {key: points[pull.arm] for key, pull in self._ledger.pending.items()}

    @property
    def pending_points(self) -> Tensor:
        """The ``n x d`` points of pending pulls, in order of asking."""
        return self._stacked_pending().to(self._dtype)

    @property
    def inducing_points(self) -> Tensor:
        """The ``m x d`` told points on which the posterior of the last ask stands."""
        return self._told_points[self._inducing].to(self._dtype)

    @property
    def noise_variance(self) -> float:
        """Lambda, in the user's units."""
        return self._hyperparameters.noise_variance * self._hyperparameters.scale**2

    @property
    def confidence(self) -> ConfidenceSchedule | None:
        """The schedule of the bounds' width; None of a policy that has none."""
        policy = self.policy
        return policy.confidence if isinstance(policy, BoxUCBPolicy) else None

    @property
    def covar_module(self) -> Kernel:
        """The kernel, given or fitted so far, in the units that it works in."""
        return self._hyperparameters.covar_module

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
            rows = self._rows_of(points.to(self.bounds))
            self._ledger.ask(rows.tolist(), [0.0] * size)
        return points

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
        points = check_points(points, self.bounds)
        rows = self._rows_of(points)
        scores = torch.zeros_like if external else None
        self._ledger.tell(rows, rewards, pull_ids, scores)
        known = self._num_processed
        self._models = {n: self._models[n] for n in self._models if n == known}

    def fail(
        self, points: Tensor, pull_ids: Tensor | Sequence[int] | None = None
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``."""
        points = check_points(points, self.bounds)
        self._ledger.fail(self._rows_of(points), pull_ids)

    def predict(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances at points, in the user's units.

        All told pulls count, pending ones do not; nothing is drawn.

        Args:
            points: A ``q x d`` tensor.
        """
        points = check_points(points, self.bounds)
        if self.num_pulls == 0:
            prior_variance = self._hyperparameters.covar_module(
                self._hyperparameters.to_features(points), diag=True
            )
            variance = prior_variance.detach().to(self._dtype)
            return torch.zeros_like(variance), variance
        prior, model = self._predictive()
        with torch.no_grad():
            posterior = model(prior.to_features(points).unsqueeze(-2))
        mean = posterior.mean.squeeze(-1) * prior.scale + prior.offset
        variance = posterior.variance.squeeze(-1) * prior.scale**2
        mean = mean if self.maximize else -mean
        return mean.to(self._dtype), variance.to(self._dtype)

    def best_point(self) -> Tensor:
        """Return the told point of the best posterior mean, a ``d``-dim tensor.

        Raises:
            InputDataError: If no reward has been told.
        """
        if self.num_pulls == 0:
            raise InputDataError(
                "Expected a reward before the best point is known, but none was told."
            )
        mean = self.predict(self._told_points)[0]
        best = mean.argmax() if self.maximize else mean.argmin()
        return self._told_points[best].to(self._dtype)

    def maximizer_distribution(
        self, num_draws: int = 256, generator: torch.Generator | None = None
    ) -> BoxMaximizerDistribution:
        """Return where the best point is, from draws of the posterior.

        Given all told pulls, as in ``predict``; uniform before the first.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness. None: a new one with a random seed;
                that of the bandit stays as it is.
        """
        check_size("num_draws", num_draws)
        generator = as_generator(generator)
        if self.num_pulls == 0:
            best = draw_points(num_draws, self.bounds, generator)
        else:
            prior, model = self._predictive()
            best = prior.to_points(
                draw_maximizers(
                    model,
                    num_draws,
                    prior.to_features(self.bounds),
                    generator,
                    prior_sampler=self.prior_sampler,
                    raw_samples=self.raw_samples,
                    num_restarts=self.num_restarts,
                )
            )
        return BoxMaximizerDistribution(best.to(self._dtype))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "bandit": type(self).__name__,
            "bounds": self.bounds.clone(),
            "maximize": self.maximize,
            "told_points": self._told_points.clone(),
            "told_rewards": list(self._ledger.told_rewards),
            "pending": {
                key: self._points[pull.arm].clone()
                for key, pull in self._ledger.pending.items()
            },
            "next_id": self._ledger.next_id,
            "design_seed": self._design_seed,
            "num_processed": self._num_processed,
            "inducing": self._inducing.clone(),
            "prior": deepcopy(self._hyperparameters.state_dict()),
            "generator": self.generator.get_state(),
            **self.policy.state_dict(),
        }

    @override
    def _undo(self) -> Callable[[], None]:
        before = vars(self).copy()
        generator_state = self.generator.get_state()
        policy_state = self.policy.state_dict()

        def undo() -> None:
            vars(self).update(before)
            self.generator.set_state(generator_state)
            self.policy.load_state_dict(policy_state)
            self._models = {}  # computed anew when they are needed

        return undo

    @override
    def _renew(self) -> None:
        """Forget the models, which are computed from all data when they are needed."""
        self._models.clear()

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
        if state["maximize"] is not self.maximize:
            raise InputDataError(
                f"Expected the state of a bandit with maximize={self.maximize}, but it "
                f"is that of one with maximize={state['maximize']}."
            )

    @override
    def _load(self, state: dict[str, Any]) -> None:
        told = check_points(state["told_points"], self.bounds)
        out = torch.stack([*state["pending"].values(), *self.bounds])[:-2]
        points = torch.cat([told, check_points(out, self.bounds)])
        rows, self._points = match_rows(self.bounds[:0], points)
        self._ledger = PullLedger(len(self._points), like=self.bounds)
        self._ledger.points = self._points
        pending = zip(state["pending"], rows[len(told) :].tolist(), strict=True)
        self._ledger.load_state_dict(
            {
                "told_indices": rows[: len(told)],
                "told_rewards": state["told_rewards"],
                "told_scores": [0.0] * len(told),
                "pending": {key: Pull(row, 0.0) for key, row in pending},
                "next_id": state["next_id"],
                "first_is_told": False,
            }
        )
        self._hyperparameters = deepcopy(self._hyperparameters)
        self._hyperparameters.load_state_dict(state["prior"])
        # States of older versions have none: the bandit's own will do.
        seed = state.get("design_seed", self._design_seed)
        self._design_seed = (
            None if seed is None else check_count("design_seed", seed, 2**31)
        )
        self._num_processed = check_count(
            "num_processed", state["num_processed"], len(told)
        )
        inducing = check_indices(state["inducing"], len(told))
        self._inducing = torch.tensor(
            inducing, dtype=torch.long, device=self.bounds.device
        )
        self.generator.set_state(state["generator"])
        self.policy.load_state_dict(state)
        self._models.clear()

    def _design(self, size: int) -> Tensor:
        """Return the next points of the first design, at most ``size``.

        Those of a scrambled Sobol sequence. Told points, whoever chose them, count, and
        so do pending ones; a point that failed is not asked for again.
        """
        num_points = self._num_design_points(size)
        if num_points == 0:
            return self.bounds[:0]
        dimension = self.bounds.shape[-1]
        engine = SobolEngine(dimension, scramble=True, seed=self._design_seed)
        engine.fast_forward(self._ledger.next_id)
        unit = engine.draw(num_points, dtype=self.bounds.dtype).to(self.bounds)
        return unnormalize(unit, self.bounds)

    def _num_design_points(self, size: int) -> int:
        """Return how many of ``size`` points belong to the first design."""
        if self._design_seed is None:
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
        self._refresh()
        if self.num_pulls == 0:
            return draw_points(size, self.bounds, self.generator)
        prior, model = self._posterior(self._num_processed)
        decision = BoxDecision(
            model=model,
            size=size,
            pending=prior.to_features(torch.cat([self._stacked_pending(), others])),
            box=prior.to_features(self.bounds),
            learns=prior.learns,
            generator=self.generator,
            num_restarts=self.num_restarts,
            raw_samples=self.raw_samples,
            prior_sampler=self.prior_sampler,
        )
        return prior.to_points(self.policy.choose(decision))

    def _refresh(self) -> None:
        """Refit and resample, if there are rewards not yet used."""
        if self._num_processed == self.num_pulls:
            return
        was_capped = self._is_capped
        self._hyperparameters, self._inducing = self._updated()
        self._num_processed = self.num_pulls
        self._models.clear()
        if self._is_capped and not was_capped:
            warn_of_ceiling(len(self._inducing), self.num_pulls)

    def _updated(self) -> tuple[Hyperparameters, Tensor]:
        """Return prior and inducing points given all told pulls; draws."""
        prior = self._hyperparameters
        if self._has_bulk and prior.is_due(self.num_pulls):
            # As over arms: by the scores of a prior that knows them.
            prior = self._refitted_prior(None)
            return prior, self._resample(prior)
        inducing = self._resample(prior)
        if prior.is_due(self.num_pulls):
            prior = self._refitted_prior(inducing)
        return prior, inducing

    @property
    def _has_bulk(self) -> bool:
        """Whether so many points are new that they are sampled block by block."""
        return is_bulk(self.num_pulls - self._num_processed)

    def _keeps_all(self, num_pulls: int) -> bool:
        """Whether the posterior is exact.

        Under fitted noise of next to nothing, a point that is left out may be the
        optimum lost.
        """
        if self.oversampling is None:
            return True
        most = MAX_FIT_POINTS
        if self.max_inducing is not None:
            most = min(most, self.max_inducing)
        return self._hyperparameters.learns and num_pulls <= most

    def _resample(self, prior: Hyperparameters) -> Tensor:
        """Choose inducing points among the told ones, by the posterior before them."""
        oversampling = self.oversampling
        if oversampling is None or self._keeps_all(self.num_pulls):
            return torch.arange(self.num_pulls, device=self.bounds.device)

        def sample(scores: Tensor) -> Tensor:
            uniforms = draw_uniforms(len(scores), self.generator).to(scores)
            probabilities = (oversampling * scores.detach()).clamp(max=1.0)
            rows = sample_inducing_indices(probabilities, scores, uniforms)
            seen, most = slice(len(scores)), self.max_inducing
            rows, is_capped = within_ceiling(rows, prior, x[seen], ones[seen], most)
            self._is_capped |= is_capped
            return rows

        x = prior.to_features(self._told_points)
        ones = torch.ones_like(x[:, 0])
        if self._has_bulk:
            return sample_in_blocks(prior, x, ones, sample)
        if self._num_processed:
            _, model = self._posterior(self._num_processed)
            scores = model.leverage_scores(x, x.new_tensor(prior.noise_variance))
        else:
            scores = prior.covar_module(x, diag=True) / prior.noise_variance
        return sample(scores)

    def _refitted_prior(self, inducing: Tensor | None) -> Hyperparameters:
        prior = deepcopy(self._hyperparameters)
        prior.features = prior.to_features(self._told_points)
        everything = torch.arange(self.num_pulls, device=self.bounds.device)
        # A few pulls are fitted exactly: a likelihood on inducing points that are drawn
        # anew jumps from fit to fit. Many gather around the optimum: evenly chosen ones
        # would be all but equal, unless many are new.
        is_empty = inducing is not None and not inducing.numel()
        if is_empty or self._keeps_all(self.num_pulls):
            inducing = None
        prior.fit(everything, self._signed_rewards(), inducing)
        return prior

    def _predictive(self) -> tuple[Hyperparameters, SingleTaskDTCGP]:
        """Return prior and model given all told pulls, without a draw."""
        return self._posterior(self.num_pulls)

    def _posterior(self, num_pulls: int) -> tuple[Hyperparameters, SingleTaskDTCGP]:
        """Return prior and model given the first told pulls."""
        if num_pulls not in self._models:
            prior, inducing = self._hyperparameters, self._inducing
            if num_pulls > self._num_processed:
                if self._has_bulk and not inducing.numel():
                    prior, inducing = self._next_update()
                elif prior.is_due(num_pulls):
                    prior = self._refitted_prior(inducing)
            x = prior.to_features(self._told_points[:num_pulls])
            targets = (self._signed_rewards()[:num_pulls] - prior.offset) / prior.scale
            targets = targets.unsqueeze(-1)
            # Before the first ask with rewards, and where nothing is left out: exact.
            sparse = inducing.numel() > 0 and not self._keeps_all(num_pulls)
            model = SingleTaskDTCGP(
                x,
                targets,
                torch.full_like(targets, prior.noise_variance),
                inducing_points=x[inducing] if sparse else None,
                covar_module=prior.covar_module,
                mean_module=ZeroMean(),
                outcome_transform=None,
            )
            self._models[num_pulls] = prior, model.eval()
        return self._models[num_pulls]

    def _next_update(self) -> tuple[Hyperparameters, Tensor]:
        """Return prior and inducing points of the next ask; the draw is undone."""
        generator_state, is_capped = self.generator.get_state(), self._is_capped
        try:
            return self._updated()
        finally:
            self.generator.set_state(generator_state)
            self._is_capped = is_capped

    def _signed_rewards(self) -> Tensor:
        rewards = self.bounds.new_tensor(list(self._ledger.told_rewards))
        return rewards if self.maximize else -rewards

    def _stacked_pending(self) -> Tensor:
        rows = [pull.arm for pull in self._ledger.pending.values()]
        return self._points[rows]
