"""Kernel, noise and units of a bandit, given or fitted by maximum a posteriori."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, replace
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
from botorch_bkb.bandits.observations import Results
from botorch_bkb.bandits.warping import LogWarp, LogWarpOutcome
from botorch_bkb.checks import (
    check_count,
    check_modules,
    check_noise_variance,
    check_number,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.kernels import TemporalDecayKernel
from botorch_bkb.models.kernels.learned import (
    anova_to_learn,
    composite_to_learn,
    fit_or_warn,
    kernel_form,
    log_likelihood,
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
# The likelihood is that of the observations of at most this many arms. A sparse one of
# all observations takes for noise what its inducing points cannot explain.
MAX_FIT_ARMS = 512

PriorMean = Literal["zero", "average", "fitted"]
AnyModule = TypeVar("AnyModule", bound=Module)


@dataclass(frozen=True)
class Units:
    """What standardizes rewards.

    Attributes:
        mean: The prior mean, which is subtracted from rewards.
        std: The number by which they are divided then.
        warp: The warp of rewards before both; None for rewards as they are.
    """

    mean: float = 0.0
    std: float = 1.0
    warp: LogWarp | None = None

    def standardized(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Standardize sums of ``counts`` rewards each, which are warped already."""
        return (sums - self.mean * counts.to(sums)) / self.std

    def standardized_value(self, reward: float) -> float:
        """Warp and standardize one reward."""
        value = torch.tensor([reward], dtype=torch.double)
        value = value if self.warp is None else self.warp(value)
        return self.standardized(value, torch.ones_like(value)).item()

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
        return values if self.warp is None else self.warp.undo(values)

    def original_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return standardized means and variances in the scale of the rewards."""
        mean, variance = mean * self.std + self.mean, variance * self.std**2
        return (
            (mean, variance)
            if self.warp is None
            else self.warp.undo_moments(mean, variance)
        )


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

    @property
    def noise_variance(self) -> float:
        """Lambda, in the units of the kernel, which is the noise of pulls to come."""
        if self.known_noise is not None:
            return self.known_noise / self.units.std**2
        return self.likelihood.noise.item() * (self.reward_std / self.units.std) ** 2

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
            is learned. None: a Tanimoto kernel is learned for packed fingerprints, else
            :func:`~botorch_bkb.bandits.composite_to_learn`, or
            :func:`~botorch_bkb.bandits.anova_to_learn` for 2 to 64 features.
        noise_variance: lambda, in squared units of the reward. None: learned, with
            BoTorch's prior.
        prior_mean: ``"zero"``; ``"average"``, the mean of the observed rewards, which
            rises as the bandit improves, so that arms without observations stay
            attractive; or ``"fitted"``. Over a box the average leads from corner to
            corner, and with it the best of many Thompson draws is an arm far from all
            observations.

    Attributes:
        features: The ``A x d`` arms in the units of the kernel.
        learns: Whether kernel, noise or forgetting rate are fitted.
        start: Kernel, noise and units before all observations.
    """

    compares = True  # warps and kernels, if the kernel is learned

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None,
        noise_variance: float | None,
        prior_mean: PriorMean = "zero",
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
        likelihood = _new_likelihood(arms)
        self.start = Fit(self.new_kernels[0], kernel, likelihood, noise_variance)

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

    def is_due(self, fit: Fit, num_pulls: int) -> bool:
        """Whether the schedule asks for another fit."""
        return (self.learns or self.prior_mean != "zero") and num_pulls >= fit.next_fit

    def fit(self, before: Fit, results: Results) -> Fit:
        """Fit to observations, starting from the fit before.

        It keeps the hyperparameters, with a warning, if the optimizer fails.
        """
        warps: list[LogWarp | None] = [None]
        others = []
        if self.learns_kernel and self.compares:
            warps.append(LogWarp.of(results.rewards))
            if len(results.rewards) >= before.next_search:
                others = [
                    new for new in self.new_kernels if new is not before.new_kernel
                ]
        criterion = attrgetter("criterion")
        fits = [self._fit_to(results, before, warp) for warp in dict.fromkeys(warps)]
        best = max(fits, key=criterion)
        starts = [self._initial(before, new_kernel) for new_kernel in others]
        fits = [self._fit_to(results, start, best.units.warp) for start in starts]
        return self._judged(max([best, *fits], key=criterion), results)

    def _fit_to(self, results: Results, before: Fit, warp: LogWarp | None) -> Fit:
        """Return a fit to warped rewards; of units alone if nothing else is learned."""
        num_pulls = len(results.rewards)
        # If all are known, nothing is learned about the noise of other pulls.
        is_known = bool((results.noise > 0).all())
        known_noise = self.given_noise
        if known_noise is None and is_known:
            known_noise = results.noise.median().item()
        log_slope = 0.0
        if warp is not None:
            # Its two numbers come from the rewards: the penalty of the BIC.
            log_slope = warp.log_slope(results.rewards)
            log_slope -= math.log(num_pulls) / num_pulls
        _, rewards, _, noise = results.warped(warp)
        average, std = _mean_and_std(rewards, noise)
        # Relative: rewards may be in units of any size.
        std = std if std > max(1e-12 * abs(average), MIN_UNIT) else 1.0
        mean = 0.0 if self.prior_mean == "zero" else average
        is_frequent = num_pulls < FIT_ALWAYS_UNTIL
        fit = replace(
            before,
            known_noise=known_noise,
            units=Units(mean, std if self.learns_kernel else 1.0, warp),
            reward_std=std,
            criterion=-math.inf,
            next_fit=num_pulls + 1 if is_frequent else 2 ** num_pulls.bit_length(),
        )
        fits_noise = self.learns and not is_known
        fits_any = self.learns_kernel or fits_noise or self.prior_mean == "fitted"
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
        if self.learns_kernel:
            kernel = with_values_of(best.covar_module, kernel)
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
            likelihood=_new_likelihood(self.features),
            next_search=0,
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
        with torch.no_grad():
            marginal = model.likelihood(model(*model.train_inputs), *model.train_inputs)
            gain = marginal.log_prob(model.train_targets).item()
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
        _, rewards, _, noise = results.warped(fit.units.warp)
        targets = (for_fits(rewards) - fit.units.mean) / fit.reward_std
        return targets.unsqueeze(-1), for_fits(noise)

    def kernel_to_fit(self, fit: Fit) -> Kernel:
        """Return the kernel of standardized rewards, in double on the CPU."""
        kernel = deepcopy(fit.covar_module).cpu().double()
        if self.learns_kernel:
            return kernel.requires_grad_(True)
        kernel = ScaleKernel(kernel).double()
        kernel.outputscale = 1 / fit.reward_std**2
        return kernel.requires_grad_(False)

    def noise_to_fit(self, noise: Tensor, fit: Fit) -> dict[str, Any]:
        """Return the noise of standardized rewards, as models take it.

        Args:
            noise: The known variances, not standardized, 0 if not known.
            fit: The likelihood of the others, and the unit.
        """
        is_known = noise > 0
        known = (noise / fit.reward_std**2).clamp_min(MIN_KNOWN_NOISE)
        if self.given_noise is not None:
            known = torch.where(is_known, known, self.given_noise / fit.reward_std**2)
        elif not is_known.all():
            learned = deepcopy(fit.likelihood).double()
            if is_known.any():
                learned = PartlyKnownNoise(learned, is_known, known)
            return {"likelihood": learned}
        return {"train_Yvar": known.unsqueeze(-1)}

    def _model(self, results: Results, fit: Fit) -> SingleTaskDTCGP:
        targets, noise = self.targets(results, fit)
        indices = results.indices
        pulled = indices.unique()
        if len(pulled) > MAX_FIT_ARMS:
            # Evenly spaced row numbers, so that no random number is drawn.
            places = torch.linspace(0, len(pulled) - 1, MAX_FIT_ARMS)
            kept = torch.isin(indices, pulled[places.round().long()])
            indices, targets, noise = indices[kept], targets[kept], noise[kept]
        is_fitted = self.prior_mean == "fitted"
        return SingleTaskDTCGP(
            for_fits(self.features[indices]),
            targets,
            covar_module=self.kernel_to_fit(fit),
            mean_module=ConstantMean().double() if is_fitted else ZeroMean(),
            outcome_transform=None,
            **self.noise_to_fit(noise, fit),
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
        }

    def loaded(self, state: dict[str, Any]) -> Fit:
        """Return the fit of which :meth:`state_dict` returned the state."""
        saved, fit = state["covar_module"], self.start
        number = check_count("kernel", state["kernel"], len(self.new_kernels) - 1)
        if self.new_kernels[number] is not fit.new_kernel:
            fit = self._initial(fit, self.new_kernels[number])
        is_same = state["form"] == self._form(fit)
        is_same = is_same and state.keys() == self.state_dict(fit).keys()
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
        return replace(
            fit,
            covar_module=kernel,
            likelihood=likelihood,
            known_noise=known if self.given_noise is None else self.given_noise,
            units=Units(mean, std if self.learns_kernel else 1.0, warp),
            reward_std=std,
            next_fit=check_count("next_fit", state["next_fit"]),
            next_search=check_count("next_search", state["next_search"]),
        )

    def _form(self, fit: Fit) -> list[Any]:
        """Return what is given: the kernel's parts, and the noise."""
        known = None if self.given_noise is None else float(self.given_noise)
        return [self.learns_kernel, known, kernel_form(fit.covar_module)]


# The name of 1.0.
Hyperparameters = Fitter


def _mean_and_std(rewards: Tensor, noise: Tensor) -> tuple[float, float]:
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
        return [tanimoto_to_learn]
    if isinstance(arms, ProductArms):
        return [ProductArms.kernel_to_learn]
    if isinstance(arms, TableArms):
        return [TableArms.interactions_to_learn, TableArms.effects_to_learn]
    if 2 <= arms.shape[-1] <= MAX_ANOVA_FEATURES:
        return [composite_to_learn, anova_to_learn]
    return [composite_to_learn]


def _new_likelihood(arms: Tensor) -> GaussianLikelihood:
    """Return the likelihood of the learned noise, on the CPU in the arms' dtype."""
    return get_gaussian_likelihood_with_lognormal_prior().to(arms.dtype)


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
