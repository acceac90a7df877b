"""Kernel, noise and units of a bandit, given or fitted by maximum a posteriori."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, Self, TypeVar

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.transforms import ChainedOutcomeTransform, Normalize, Standardize
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import (
    get_gaussian_likelihood_with_lognormal_prior,
)
from gpytorch import Module
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor

from botorch_bkb.arms import ProductArms, StoredArms, TableArms
from botorch_bkb.arms.units import feature_units
from botorch_bkb.bandits.groups import CAMPAIGN, GROUP, GroupFit, NO_GROUPS, Sharing
from botorch_bkb.bandits.observations import NO_ARM, Results
from botorch_bkb.bandits.warping import LogWarp, LogWarpOutcome
from botorch_bkb.checks import (
    check_count,
    check_modules,
    check_noise_variance,
    check_number,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.kernels import TemporalDecayKernel
from botorch_bkb.models.kernels.grouped import GroupedKernel, WIDE
from botorch_bkb.models.kernels.learned import (
    anova_to_learn,
    composite_to_learn,
    fit_or_warn,
    kernel_form,
    log_likelihood,
    tanimoto_sum_to_learn,
    tanimoto_to_learn,
)
from botorch_bkb.models.kernels.product import check_kernel, ComponentKernel
from botorch_bkb.models.utils.prediction import PartlyKnownNoise
from botorch_bkb.models.utils.rows import as_dense, BitArms


# With fewer pulls the marginal likelihood is too flat to fit anything.
MIN_PULLS_TO_FIT = 4
# Up to this many pulls every update refits: a fit takes less time than a measurement.
FIT_ALWAYS_UNTIL = 128
# Search again from the first start when the pulls have grown by this factor.
SEARCH_GROWTH = 1.25
# From this many pulls on, a fit that explains nothing deserves a warning.
MIN_PULLS_TO_JUDGE = 16
# Rewards of pure noise get a fitted noise of 70 to 90 %, since the prior favors less.
NOISE_SHARE = 0.5
# The square of a smaller unit would be no number that divides.
MIN_UNIT = 1e-150
# A smaller known noise of standardized rewards has this variance in fits.
MIN_KNOWN_NOISE = 1e-6
# An entry of the ANOVA kernel takes an exponential per feature: of more it is too slow.
MAX_ANOVA_FEATURES = 64
# The likelihood is that of the observations of at most this many arms, in each group if
# there are groups. A sparse one of all observations takes for noise what its inducing
# points cannot explain.
MAX_FIT_ARMS = 512
# An earlier campaign tells nothing if the present results are less likely with it than
# without by so many nats. Of few results, all of promising arms, a helpful one has -5.
MUCH_LESS_LIKELY = 4.5

PriorMean = Literal["zero", "average", "fitted"]
AnyModule = TypeVar("AnyModule", bound=Module)


@dataclass(frozen=True)
class Units:
    """What standardizes rewards.

    Attributes:
        mean: The prior mean, which is subtracted from rewards.
        std: The number by which they are divided then.
        warp: The warp of rewards before both; None for rewards as they are.
        levels: What is subtracted from rewards before the warp, and added after it, by
            the numbers of campaign and group: estimates of offsets, which the warp
            would distort.
        bounds: The least and the largest possible reward. Answers stay inside.
    """

    mean: float = 0.0
    std: float = 1.0
    warp: LogWarp | None = None
    levels: Mapping[tuple[int, int], float] = field(default_factory=dict)
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def standardized(self, sums: Tensor, counts: Tensor | float = 1.0) -> Tensor:
        """Standardize sums of ``counts`` rewards each, which are warped already."""
        return (sums - self.mean * torch.as_tensor(counts).to(sums)) / self.std

    def standardized_value(self, reward: float) -> float:
        """Return what :meth:`original` takes to a reward.

        An infinity at the ends of what may be.
        """
        least, most = self.bounds
        if not least < reward < most:
            return math.inf if reward >= most else -math.inf
        value = torch.tensor([reward], dtype=torch.double)
        value = value if self.warp is None else self.warp.inverse(value)
        return self.standardized(value).item()

    def outcome_transform(self, sign: float, like: Tensor) -> OutcomeTransform:
        """Return BoTorch's transform of rewards to standardized ones times ``sign``."""
        std = like.new_tensor([[self.std]])
        numbers = {"means": like.new_tensor([[sign * self.mean]]), "stdvs": std}
        numbers |= {"_stdvs_sq": std.square(), "_is_trained": torch.tensor(True)}
        standardize = Standardize(m=1).to(like)
        standardize.load_state_dict(numbers)
        if self.warp is None:
            return standardize.eval()
        warp = LogWarpOutcome(self.warp, sign)
        return ChainedOutcomeTransform(warp=warp, standardize=standardize).eval()

    def original(self, values: Tensor) -> Tensor:
        """Return standardized values in the scale of the rewards."""
        values = values * self.std + self.mean
        values = values if self.warp is None else self.warp.undo(values)
        return values.clamp(*self.bounds)

    def original_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return standardized means and variances in the scale of the rewards."""
        mean, variance = mean * self.std + self.mean, variance * self.std**2
        if self.warp is not None:
            mean, variance = self.warp.undo_moments(mean, variance)
        return mean.clamp(*self.bounds), variance


@dataclass(frozen=True)
class Fit:
    """Kernel, noise and units of a posterior. Nothing changes them: a fit makes others.

    Attributes:
        new_kernel: The function that made the kernel, if the kernel is learned.
        covar_module: The kernel.
        likelihood: The likelihood of the learned noise, of rewards that are divided by
            ``reward_std``, on the CPU.
        known_noise: Lambda in squared units of the reward if it is given, or if the
            noise of all results is known; None if it is learned.
        units: The units of the kernel. A given kernel takes rewards as they come,
            without their mean.
        reward_std: The standard deviation of the rewards.
        criterion: The log likelihood per reward less the penalty of the BIC.
        next_fit: The number of observations from which another fit is due.
        next_search: The number from which it also starts from the initial values.
        is_warned: Whether there was a warning that the fit explains nothing.
        step: The length of a step, in units of time, if the objective drifts.
        step_rate: ``eps`` per step, in which filters count time; 0 without drift.
        temporal_kernel: The kernel over time of a learned ``eps``.
        groups: What is learned of groups and of earlier campaigns.
    """

    new_kernel: Callable[[Tensor], Kernel]
    covar_module: Kernel
    likelihood: GaussianLikelihood
    known_noise: float | None
    units: Units = Units()
    reward_std: float = 1.0
    criterion: float = -math.inf
    next_fit: int = 1
    next_search: int = 0
    is_warned: bool = False
    step: float = 1.0
    step_rate: float = 0.0
    temporal_kernel: TemporalDecayKernel | None = None
    groups: GroupFit = NO_GROUPS

    @property
    def unit(self) -> float:
        """A standard deviation of the rewards, in the units of the kernel."""
        return self.reward_std / self.units.std

    @property
    def noise_variance(self) -> float:
        """Lambda, in the units of the kernel, which is the noise of pulls to come."""
        if self.known_noise is not None:
            return self.known_noise / self.units.std**2
        return self.likelihood.noise.item() * self.unit**2

    def likelihood_of(self, like: Tensor) -> GaussianLikelihood:
        """Return the likelihood of lambda, which GPyTorch would round up if fixed."""
        likelihood = deepcopy(self.likelihood).to(like).requires_grad_(False)
        likelihood.noise_covar.raw_noise.fill_(self.noise_variance)
        return likelihood

    @property
    def original_noise_variance(self) -> float:
        """Lambda, in squared units of the reward, of good ones if poor are warped."""
        return self.noise_variance * self.units.std**2

    @property
    def forgetting_rate(self) -> float:
        """``eps``, per unit of time; 1 up to rounding if steps are small against it."""
        if self.step == 1:
            return self.step_rate
        return 1 - (1 - self.step_rate) ** (1 / self.step)

    def steps(self, time: float) -> float:
        """Return a time in steps."""
        return time / self.step


class Fitter:
    r"""Fits kernel, noise, prior mean and units of a bandit, unless they are given.

    A kernel that is learned works on features normalized to the unit cube and on
    standardized rewards. A given kernel takes features and rewards as they come. The
    units change from the first observation on. Everything else is fitted by maximum a
    posteriori from the fourth on: at every update up to 128 observations, then when
    their number reaches 256, 512, ... A fit starts from the optimum of the last one.
    Whenever the observations are a quarter more, it also starts from the initial
    values, and the larger likelihood counts, since it has several modes. The likelihood
    is that of the observations of 512 arms, if there are more. Fits run on the CPU in
    double precision: an accelerator is slow for many small operations. Rewards are
    warped, :class:`~botorch_bkb.bandits.LogWarp`, if that explains them better. Of
    several kernels that may be learned, the others are also fitted in such a search,
    and the one that explains the rewards best by the BIC is used.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel. A function of the features: the kernel that it returns
            is learned. None: a Tanimoto kernel is learned for ``BitArms``, times or
            plus a Matern kernel of numbers beside the fingerprints, for ``TableArms``
            and ``ProductArms`` the kernels of their columns, else
            :func:`~botorch_bkb.bandits.composite_to_learn`, or
            :func:`~botorch_bkb.bandits.anova_to_learn` for 2 to 64 features.
        noise_variance: lambda, in squared units of the reward. None: learned, with
            BoTorch's prior.
        prior_mean: ``"zero"``; ``"average"``, the mean of the observed rewards, which
            rises as the bandit improves, so that arms without observations stay
            attractive; or ``"fitted"``. Over a box the average leads from corner to
            corner, and with it the best of many Thompson draws is an arm far from all
            observations.
        bounds: The least and the largest possible signed reward.

    Attributes:
        features: The ``A x d`` arms in the units of the kernel.
        learns: Whether kernel, noise or forgetting rate are fitted.
        start: Kernel, noise and units before all observations.
    """

    compares = True  # warps and kernels, if the kernel is learned
    always_until: float = FIT_ALWAYS_UNTIL

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None,
        noise_variance: float | None,
        prior_mean: PriorMean = "zero",
        bounds: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        self.new_kernels = _kernels_to_learn(arms)
        given: Any = covar_module
        if callable(covar_module) and not isinstance(covar_module, Kernel | type):
            self.new_kernels, given = [covar_module], None
        check_modules(Kernel, covar_module=given)
        check_noise_variance(noise_variance)
        self.learns_kernel = given is None
        self.given_noise = noise_variance
        self.learns = given is None or noise_variance is None
        self.prior_mean = prior_mean
        if self.learns_kernel:
            self._low, self._width = feature_units(arms)
        self.features = self.to_features(arms)
        kernel = self._new(self.new_kernels[0] if given is None else lambda _: given)
        ends = torch.tensor([0, len(arms) - 1], device=arms.device)
        check_kernel(kernel, self.features[ends])
        likelihood = get_gaussian_likelihood_with_lognormal_prior().to(arms.dtype)
        units = Units(bounds=bounds)
        self.start = Fit(self.new_kernels[0], kernel, likelihood, noise_variance, units)

    @property
    def fits(self) -> bool:
        """Whether observations change a fit, be it the prior mean alone."""
        return self.learns or self.prior_mean != "zero"

    def to_features(self, points: Tensor) -> Tensor:
        """Return ``... x d`` points in the units of the kernel."""
        if not self.learns_kernel or isinstance(points, ProductArms):
            return points
        if isinstance(points, StoredArms):
            return points.scaled(self._low, self._width)
        if isinstance(points, BitArms):
            bits = points.num_bits
            scaled = (points.numbers - self._low[bits:]) / self._width[bits:]
            return points.with_numbers(scaled)
        if isinstance(points, TableArms):
            return points.with_numbers((points.numbers - self._low) / self._width)
        return (points - self._low) / self._width

    def input_transform(self) -> InputTransform | None:
        """Return :meth:`to_features` as BoTorch's transform; or None."""
        if not self.learns_kernel:
            return None
        low, width = self._low.double(), self._width.double()
        bounds = torch.stack([low, low + width])
        return Normalize(len(low), bounds=bounds).to(self._low)

    def to_points(self, features: Tensor) -> Tensor:
        """Undo :meth:`to_features`."""
        return features * self._width + self._low if self.learns_kernel else features

    def over(self, features: Tensor) -> Self:
        """Return a copy whose arms have these features."""
        other = copy(self)
        other.features = features
        return other

    def fit(self, before: Fit, results: Results) -> Fit:
        """Fit to observations, starting from the fit before.

        It keeps the hyperparameters, with a warning, if the optimizer fails.
        """
        num_pulls, is_own = len(results.rewards), results.labels[:, CAMPAIGN] < 0
        is_arm = results.indices != NO_ARM
        if Sharing.of(results.labels[is_own]) is None:  # then controls tell nothing
            results = results.rows(is_arm | ~is_own)
            is_own, is_arm = is_own[is_arm | ~is_own], is_arm[is_arm | ~is_own]
        if not is_arm.any():
            return before
        fit = self._best_fit(before, results)
        if not is_own.all() and (is_own & is_arm).sum() >= MIN_PULLS_TO_FIT:
            fit = self._judge_campaigns(fit, before, results)
        is_frequent = num_pulls < self.always_until
        next_fit = num_pulls + 1 if is_frequent else 2 ** num_pulls.bit_length()
        return self._judged(replace(fit, next_fit=next_fit), results.rows(is_own))

    def _judge_campaigns(self, fit: Fit, before: Fit, results: Results) -> Fit:
        """Return a fit without the earlier campaigns that do not fit the present one.

        Given their results, those of this campaign are much less likely than alone.
        """
        campaign = results.labels[:, CAMPAIGN]
        kept = is_own = campaign < 0
        alone, earlier = self._best_fit(before, results.rows(is_own)), campaign.unique()
        for each in earlier[earlier >= 0]:
            rows = is_own | (campaign == each)
            other = fit
            if not rows.all():
                other = self._best_fit(before, results.rows(rows))
            part = self._few_arms(results.rows(rows))
            own = part.labels[:, CAMPAIGN] < 0
            gain = self._evidence(other, part) - self._evidence(other, part.rows(~own))
            if gain > self._evidence(alone, part.rows(own)) - MUCH_LESS_LIKELY:
                kept = kept | rows
        if kept.all():
            return fit
        is_alone = torch.equal(kept, is_own)
        fit = alone if is_alone else self._best_fit(before, results.rows(kept))
        left_out = campaign[~kept].unique().tolist()
        return replace(fit, groups=fit.groups.without(left_out))

    def _best_fit(self, before: Fit, results: Results) -> Fit:
        """Return the fit to some observations with the best warp and kernel."""
        raw = self.start.units
        best = self._fit_to(results, before, raw)
        if not (self.learns_kernel and self.compares):
            return best
        criterion, levels = attrgetter("criterion"), self._levels(results, best)
        if (warp := LogWarp.of(results.less(levels).rewards)) is not None:
            units = replace(raw, warp=warp, levels=levels)
            best = max(best, self._fit_to(results, before, units), key=criterion)
        if len(results.rewards) < before.next_search:
            return best
        others = [new for new in self.new_kernels if new is not before.new_kernel]
        starts = [self._initial(before, new_kernel) for new_kernel in others]
        fits = [self._fit_to(results, start, best.units) for start in starts]
        return max([best, *fits], key=criterion)

    def _levels(self, results: Results, fit: Fit) -> dict[tuple[int, int], float]:
        """Return the offsets of campaigns and groups by a fit without warp."""
        part = self._few_arms(results)
        if (sharing := Sharing.of(part.labels)) is None or fit.criterion == -math.inf:
            return {}
        model = self._model(part, fit).train().requires_grad_(False)
        targets, (x,) = model.train_targets.requires_grad_(), model.train_inputs
        # The gradient is the covariance's inverse times minus the centered targets.
        value = model.likelihood(model(x), x).log_prob(targets)
        solved = -fit.reward_std * torch.autograd.grad(value, targets)[0]
        return sharing.levels(part.labels, solved.to(part.rewards), fit.groups)

    @torch.no_grad()
    def _evidence(self, fit: Fit, results: Results) -> float:
        """Return the log likelihood of observations, in the units of the rewards.

        The level of the present results is integrated out: their average is that of
        promising arms, if an earlier campaign has chosen them.
        """
        model = self._model(results, fit).train()
        (x,), own = model.train_inputs, (results.labels[:, CAMPAIGN] < 0).cpu().double()
        marginal = model.likelihood(model(x), x)
        gap = model.train_targets - marginal.mean
        # Quadratic forms of the level and the rewards; repeats would be dense at once.
        vectors = (0 * gap, own, gap, own + gap)
        logs = torch.stack([marginal.log_prob(marginal.mean + v) for v in vectors])
        level, alone, both = 2 * (logs[0] - logs[1:])
        scale = 1 + WIDE**2 * level
        gain = WIDE**2 * (both - level - alone).square() / (4 * scale) - scale.log()
        value = (logs[2] + gain / 2).item()
        rewards, warp = results.less(fit.units.levels).rewards, fit.units.warp
        slope = warp.log_slope(rewards) if warp else 0.0
        return value + len(results.rewards) * (slope - math.log(fit.reward_std))

    @torch.no_grad()
    def _log_likelihood(self, model: SingleTaskDTCGP) -> float:
        """Return the log likelihood of standardized observations."""
        (x,) = model.train().train_inputs
        return model.likelihood(model(x), x).log_prob(model.train_targets).item()

    def _fit_to(self, results: Results, before: Fit, units: Units) -> Fit:
        """Return a fit to warped rewards; of units alone if nothing else is learned."""
        num_pulls = len(results.rewards)
        # If all are known, nothing is learned about the noise of other pulls.
        is_known = bool((results.noise > 0).all())
        known_noise = self.given_noise
        if known_noise is None and is_known:
            known_noise = results.noise.median().item()
        log_slope = 0.0
        if units.warp is not None:
            # Its two numbers come from the rewards: the penalty of the BIC.
            log_slope = units.warp.log_slope(results.less(units.levels).rewards)
            log_slope -= math.log(num_pulls) / num_pulls
        average, std = _mean_and_std(results.warped(units))
        # Relative: rewards may be in units of any size.
        std = std if std > max(1e-12 * abs(average), MIN_UNIT) else 1.0
        mean = 0.0 if self.prior_mean == "zero" else average
        fit = replace(
            before,
            known_noise=known_noise,
            units=replace(units, mean=mean, std=std if self.learns_kernel else 1.0),
            reward_std=std,
            criterion=-math.inf,
        )
        fits_noise = self.learns and not is_known
        fits_any = self.learns_kernel or fits_noise or self.prior_mean == "fitted"
        fits_any |= Sharing.of(self._few_arms(results).labels) is not None
        if num_pulls < MIN_PULLS_TO_FIT or not fits_any:
            return fit
        fit = self._maximize(results, fit)
        value = fit.criterion - math.log(std) + log_slope
        num_parameters = sum(map(torch.numel, fit.covar_module.parameters()))
        value -= 0.5 * num_parameters * math.log(num_pulls) / num_pulls
        return replace(fit, criterion=value)

    def _maximize(self, results: Results, start: Fit) -> Fit:
        """Maximize the likelihood, with priors, of rewards in the units of a fit."""
        num_pulls, starts = len(results.rewards), [start]
        if num_pulls >= start.next_search:
            # Before any fit, the present values are the initial ones.
            if start.next_search > 0:
                starts.append(self._initial(start, start.new_kernel))
            search = math.ceil(SEARCH_GROWTH * num_pulls)
            start = replace(start, next_search=search)
        models = [self._model(results, each) for each in starts]
        fitted = [model for model in models if fit_or_warn(model, num_pulls)]
        if not fitted:
            return start
        best = max(fitted, key=log_likelihood)
        kernel, likelihood, units = start.covar_module, start.likelihood, start.units
        learned, groups = best.covar_module, start.groups
        if isinstance(learned, GroupedKernel):
            groups = GroupFit.from_weights(learned.weight, results.labels)
            learned = learned.base_kernel
        if self.learns_kernel:
            kernel = with_values_of(learned, kernel)
        if isinstance(best.likelihood, GaussianLikelihood):
            likelihood = with_values_of(best.likelihood, likelihood)
        if self.prior_mean == "fitted":
            gap = start.reward_std * best.mean_module.constant.item()
            units = replace(units, mean=units.mean + gap)
        return replace(
            start,
            covar_module=kernel,
            likelihood=likelihood,
            units=units,
            criterion=log_likelihood(best),
            groups=groups,
        )

    def _initial(self, fit: Fit, new_kernel: Callable[[Tensor], Kernel]) -> Fit:
        """Return initial values in place of those of a fit, of a kernel to learn."""
        kernel = fit.covar_module
        if self.learns_kernel:
            kernel = self._new(new_kernel)
        return replace(
            fit,
            new_kernel=new_kernel,
            covar_module=kernel,
            likelihood=self.start.likelihood,
            next_search=0,
            groups=NO_GROUPS,
        )

    def _new(self, new_kernel: Callable[[Tensor], Kernel]) -> Kernel:
        """Return a kernel of the features, with its initial values."""
        kernel = new_kernel(self.features)
        if not isinstance(kernel, Kernel):
            raise InputDataError(
                "Expected the function `covar_module` to return a GPyTorch kernel, but "
                f"got {kernel!r}."
            )
        check_modules(Kernel, covar_module=kernel)
        arms = self.features
        is_whole = isinstance(kernel, ComponentKernel)
        if isinstance(arms, ProductArms | TableArms) and not is_whole:
            kernel = arms.kernel_of(kernel)
        return deepcopy(kernel).to(arms).requires_grad_(False)

    @torch.no_grad()
    def median_noise(self, fit: Fit, results: Results) -> float:
        """Return the median of the learned noise, as a multiple of the fitted mode.

        The posterior of its logarithm, given the present campaign, is taken for normal,
        with the curvature at the mode: Laplace's approximation. Then this is the
        exponential of its variance, for which that of the prior is taken at most.
        """
        if fit.known_noise is not None:
            return 1.0
        results = results.rows(results.labels[:, CAMPAIGN] < 0)
        if Sharing.of(results.labels) is None:  # then controls tell nothing
            results = results.rows(results.indices != NO_ARM)
        model, step, logs = self._model(results, fit), 0.1, []
        for shift in (-step, 0.0, step):
            model.likelihood.noise = fit.likelihood.noise * math.exp(shift)
            logs.append(log_likelihood(model))
        num_fitted = len(model.train_targets)
        curvature = num_fitted * (2 * logs[1] - logs[0] - logs[2]) / step**2
        return math.exp(1 / max(curvature, 1.0))

    def _judged(self, fit: Fit, results: Results) -> Fit:
        """Warn once if the fit explains the rewards no better than noise alone."""
        noise = fit.likelihood.noise.item()
        is_noisy = fit.criterion > -math.inf and noise > NOISE_SHARE
        if fit.is_warned or len(results.rewards) < MIN_PULLS_TO_JUDGE or not is_noisy:
            return fit
        model = self._model(results, fit).train()
        num_pulls = len(model.train_targets)
        is_learned = isinstance(model.likelihood, GaussianLikelihood)
        if num_pulls < MIN_PULLS_TO_JUDGE or not is_learned:
            return fit
        gain = self._log_likelihood(model)
        gain += num_pulls * (1 + math.log(2 * math.pi)) / 2
        if gain > 0:
            return fit
        warnings.warn(
            f"The fit to {num_pulls} observations explains the rewards no better than "
            f"noise alone (its noise is {noise:.0%} of their variance). Early on this "
            "is normal: continue. If it stays so, check that features and rewards "
            "belong together, or pass a kernel.",
            BotorchWarning,
            stacklevel=2,
        )
        return replace(fit, is_warned=True)

    def targets(self, results: Results, fit: Fit) -> tuple[Tensor, Tensor]:
        """Return standardized rewards, ``n x 1``, and noise variances before that."""
        results = results.warped(fit.units)
        targets = (for_fits(results.rewards) - fit.units.mean) / fit.reward_std
        return targets.unsqueeze(-1), for_fits(results.noise)

    def kernel_to_fit(self, fit: Fit) -> Kernel:
        """Return the kernel of standardized rewards, in double on the CPU."""
        kernel = deepcopy(fit.covar_module).cpu().double()
        if self.learns_kernel:
            return kernel.requires_grad_(True)
        kernel = ScaleKernel(kernel).double()
        kernel.outputscale = 1 / fit.reward_std**2
        return kernel.requires_grad_(False)

    def noise_to_fit(
        self,
        noise: Tensor,
        fit: Fit,
        ratios: Callable[[], Tensor] | None = None,
    ) -> dict[str, Any]:
        """Return the noise of standardized rewards, as models take it.

        Args:
            noise: The known variances, not standardized, 0 if not known.
            fit: The likelihood of the others, and the unit.
            ratios: Returns the ratio of each variance to this, 1 for the known ones;
                None for 1.
        """
        is_known = noise > 0
        known = (noise / fit.reward_std**2).clamp_min(MIN_KNOWN_NOISE)
        if self.given_noise is not None:
            known = torch.where(is_known, known, self.given_noise / fit.reward_std**2)
            is_known = torch.ones_like(is_known)
        if is_known.all() and ratios is None:
            return {"train_Yvar": known.unsqueeze(-1)}
        learned = deepcopy(fit.likelihood).double()
        if is_known.any() or ratios is not None:
            learned = PartlyKnownNoise(learned, is_known, known, ratios)
        return {"likelihood": learned}

    def _few_arms(self, results: Results) -> Results:
        """Return the observations to fit to: those of few arms, if there are many."""
        sharing, campaign = Sharing.of(results.labels), results.labels[:, CAMPAIGN]
        codes = results.labels[:, :0] if sharing is None else sharing.codes
        inputs = torch.cat([results.indices.unsqueeze(-1), codes], dim=-1)
        pulled, place = inputs.unique(dim=0, return_inverse=True)
        if len(pulled) <= MAX_FIT_ARMS:
            return results
        kept, campaigns = campaign < -1, campaign.unique()
        for each in campaigns:
            own = place[campaign == each].unique()
            # Evenly spaced row numbers, so that no random number is drawn.
            size = min(len(own), MAX_FIT_ARMS // len(campaigns))
            places = torch.linspace(0, len(own) - 1, size)
            kept |= torch.isin(place, own[places.round().long()])
        if Sharing.of(results.labels[kept]) is None:  # then controls tell nothing
            kept &= results.indices != NO_ARM
        return results.rows(kept)

    def _model(self, results: Results, fit: Fit) -> SingleTaskDTCGP:
        results = self._few_arms(results)
        targets, noise = self.targets(results, fit)
        x = for_fits(self.features[results.indices.clamp_min(0)])
        kernel, ratios = self.kernel_to_fit(fit), None
        if (sharing := Sharing.of(results.labels)) is not None:
            codes = sharing.codes.cpu()
            x = torch.cat([x, codes.to(x)], dim=-1)
            of_groups = sharing.scaled_covariance.to(x), len(sharing.campaigns)
            grouped = GroupedKernel(kernel, *of_groups).double()
            kernel = grouped
            grouped.initialize(raw_weight=fit.groups.weights(sharing.campaigns))
            if sharing.campaigns:
                own = codes[:, 1].where(noise == 0, -1)
                ratios = partial(grouped.noise_ratios, own)
        is_fitted = self.prior_mean == "fitted"
        return SingleTaskDTCGP(
            x,
            targets,
            covar_module=kernel,
            mean_module=ConstantMean().double() if is_fitted else ZeroMean(),
            outcome_transform=None,
            **self.noise_to_fit(noise, fit, ratios),
        )

    def state_dict(self, fit: Fit) -> dict[str, Any]:
        """Return a fit as tensors and numbers."""
        return {
            "form": self._form(fit),
            "kernel": self.new_kernels.index(fit.new_kernel),
            "covar_module": fit.covar_module.state_dict(),
            "likelihood": fit.likelihood.state_dict(),
            "offset": fit.units.mean,
            "warp": fit.units.warp and tuple(fit.units.warp),
            "unit": fit.reward_std,
            "known_noise": fit.known_noise,
            "next_fit": fit.next_fit,
            "next_search": fit.next_search,
            "groups": (fit.groups.offset_std, dict(fit.groups.campaigns)),
            "levels": dict(fit.units.levels),
        }

    def loaded(self, state: dict[str, Any]) -> Fit:
        """Return the fit of which :meth:`state_dict` returned the state."""
        saved, fit = state["covar_module"], self.start
        number = check_count("kernel", state["kernel"], len(self.new_kernels) - 1)
        if self.new_kernels[number] is not fit.new_kernel:
            fit = self._initial(fit, self.new_kernels[number])
        is_same = state["form"] == self._form(fit)
        # Version 1.0 has no groups.
        is_same = is_same and {*state, "groups", "levels"} == {*self.state_dict(fit)}
        if is_same and not self.learns_kernel:
            is_same = all(
                value.shape == saved[name].shape
                and torch.allclose(saved[name].to(value), value, 1e-5, equal_nan=True)
                for name, value in fit.covar_module.state_dict().items()
            )
        if not is_same:
            raise InputDataError(
                "Expected the state of a bandit with the same kernel and noise, but "
                "those of the saved one differ. Construct the bandit with the options "
                "of the saved one."
            )
        kernel, likelihood = deepcopy((fit.covar_module, fit.likelihood))
        kernel.load_state_dict(saved)
        likelihood.load_state_dict(state["likelihood"])
        mean = check_number("offset", state["offset"])
        warp = state["warp"]
        warp = warp and LogWarp(*(check_number("warp", number) for number in warp))
        std = check_number("unit", state["unit"], least=MIN_UNIT)
        known = state["known_noise"]
        known = None if known is None else check_number("noise", known, 0.0)
        offset_std, campaigns = state.get("groups", (NO_GROUPS.offset_std, {}))
        levels = {
            (int(campaign), int(group)): check_number("levels", level)
            for (campaign, group), level in state.get("levels", {}).items()
        }
        return replace(
            fit,
            covar_module=kernel,
            likelihood=likelihood,
            known_noise=known if self.given_noise is None else self.given_noise,
            units=replace(
                self.start.units,
                mean=mean,
                std=std if self.learns_kernel else 1.0,
                warp=warp,
                levels=levels,
            ),
            reward_std=std,
            next_fit=check_count("next_fit", state["next_fit"]),
            next_search=check_count("next_search", state["next_search"]),
            groups=GroupFit(
                check_number("groups", offset_std, 0.0),
                {
                    check_count("groups", campaign): tuple(
                        check_number("groups", value, 0.0) for value in values
                    )
                    for campaign, values in campaigns.items()
                },
            ),
        )

    def _form(self, fit: Fit) -> list[Any]:
        """Return what is given: the kernel's parts, and the noise."""
        known = None if self.given_noise is None else float(self.given_noise)
        return [self.learns_kernel, known, kernel_form(fit.covar_module)]


# The name of 1.0.
Hyperparameters = Fitter


class PrintedFitter(Fitter):
    """Fits in every round, as section 2.3 of [basu2017]_; nothing is warped."""

    compares, always_until = False, math.inf


def _mean_and_std(results: Results) -> tuple[float, float]:
    """Return mean and standard deviation of the rewards of ``n`` results.

    The mean is that of the present campaign, and each campaign deviates from its own
    mean. Controls do not count. Of groups it is the plain average, as is that of their
    offsets.
    """
    if (results.labels < 0).all():
        return _weighted_mean_and_std(results.rewards, results.noise)
    results = results.rows(results.indices != NO_ARM)
    rewards, centered = results.rewards, results.rewards.clone()
    average = rewards.mean().item()  # if there is nothing of the present campaign
    for campaign in results.labels[:, 1].unique():
        own = results.labels[:, 1] == campaign
        mean, _ = _weighted_mean_and_std(rewards[own], results.noise[own])
        if (results.labels[own, GROUP] >= 0).any():
            mean = rewards[own].mean().item()
        centered[own] -= mean
        average = mean if campaign < 0 else average
    return average, _weighted_mean_and_std(centered, results.noise)[1]


def _weighted_mean_and_std(rewards: Tensor, noise: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of ``n`` rewards.

    Given known noise (0: unknown), noisy rewards count little: by ``w = 1 / (spread +
    noise)``, and in the variance by ``w^2``, with the variance of the more exact half
    as ``spread``.
    """
    if not noise.any():
        return rewards.mean().item(), rewards.std(correction=0).item()
    median = noise[noise > 0].median()
    spread = rewards[noise <= median].var(correction=0)
    weights = 1 / (spread + torch.where(noise > 0, noise, median))
    weights /= weights.max()
    average = (weights * rewards).sum() / weights.sum()
    weights = weights.square()
    variance = (weights * (rewards - average).square()).sum() / weights.sum()
    return average.item(), variance.sqrt().item()


def _kernels_to_learn(arms: Tensor) -> list[Callable[[Any], Kernel]]:
    """Return functions that make kernels to learn, the first without observations."""
    if isinstance(arms, BitArms):
        if arms.shape[-1] > arms.num_bits:
            return [tanimoto_to_learn, tanimoto_sum_to_learn]
        return [tanimoto_to_learn]
    if isinstance(arms, ProductArms):
        return [ProductArms.kernel_to_learn]
    if isinstance(arms, TableArms):
        return [TableArms.interactions_to_learn, TableArms.effects_to_learn]
    if 2 <= arms.shape[-1] <= MAX_ANOVA_FEATURES:
        return [composite_to_learn, anova_to_learn]
    return [composite_to_learn]


def for_fits(values: Tensor) -> Tensor:
    """Return data to fit to: the line search needs double precision."""
    return as_dense(values).cpu().double()


def with_values_of(fitted: Module, module: AnyModule) -> AnyModule:
    """Return a copy of a module with the values of a fitted one.

    The kernels of some models store active dimensions as well, which ours do not.
    """
    copied = deepcopy(module)
    copied.load_state_dict(fitted.state_dict(), strict=False)
    return copied
