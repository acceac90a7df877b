"""Kernel, noise, prior mean and units of a bandit, given or fitted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import copy, deepcopy
from operator import itemgetter
from typing import Any, Literal, Self

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import SingleTaskGP
from botorch.models.utils.gpytorch_modules import (
    get_gaussian_likelihood_with_lognormal_prior,
)
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_bkb.arms import ProductArms, StoredArms
from botorch_bkb.arms.units import feature_units
from botorch_bkb.bandits.map_fit import fit_or_warn
from botorch_bkb.bandits.warping import LogWarp
from botorch_bkb.checks import (
    check_count,
    check_modules,
    check_noise_variance,
    check_number,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.kernels.learned import (
    anova_to_learn,
    composite_to_learn,
    kernel_form,
    tanimoto_to_learn,
)
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.bits import BitArms
from botorch_bkb.models.utils.likelihoods import PartlyKnownNoise
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import as_dense


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


class Hyperparameters:
    r"""Kernel, noise, prior mean and units of a bandit.

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
        covar_module: The kernel.
        learns: Whether kernel, noise or forgetting rate are fitted.
        offset: The prior mean, which is subtracted from rewards.
        warp: What is done to rewards before that; None for nothing.
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
        self.new_kernel = self.new_kernels[0]
        check_modules(Kernel, covar_module=given)
        check_noise_variance(noise_variance)
        self.learns_kernel = given is None
        self.given_noise = noise_variance
        self.learns = given is None or noise_variance is None
        self.prior_mean = prior_mean
        self.offset, self._unit = 0.0, 1.0
        self.warp: LogWarp | None = None
        self._known_noise: float | None = None
        self.next_fit, self._next_search = 1, 0
        self._is_warned = False
        if self.learns_kernel:
            self._low, self._width = feature_units(arms)
        self.features = self.to_features(arms)
        if isinstance(arms, ProductArms) and given is not None:
            given = arms.kernel_of(given)
        if given is None:
            given = self.new_kernel(self.features)
            if not isinstance(given, Kernel):
                raise InputDataError(
                    "Expected the function `covar_module` to return a GPyTorch kernel, "
                    f"but got {given!r}."
                )
            check_modules(Kernel, covar_module=given)
        self.covar_module = deepcopy(given).to(arms).requires_grad_(False)
        ends = torch.tensor([0, len(arms) - 1], device=arms.device)
        check_kernel(self.covar_module, self.features[ends])
        self.likelihood = _new_likelihood(arms)

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
        return (points - self._low) / self._width

    def to_points(self, features: Tensor) -> Tensor:
        """Undo :meth:`to_features`."""
        return features * self._width + self._low if self.learns_kernel else features

    @property
    def scale(self) -> float:
        """The unit of the rewards in the kernel's scale."""
        return self._unit if self.learns_kernel else 1.0

    def standardized(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return sums of so many rewards each, warped ones, as the posterior takes."""
        return (sums - self.offset * counts.to(sums)) / self.scale

    def standardized_value(self, reward: float) -> float:
        """Return one reward as the posterior takes it."""
        value = torch.tensor([reward], dtype=torch.double)
        value = value if self.warp is None else self.warp(value)
        return self.standardized(value, torch.ones_like(value)).item()

    def original(self, values: Tensor) -> Tensor:
        """Return values of the posterior in the scale of the rewards."""
        values = values * self.scale + self.offset
        return values if self.warp is None else self.warp.undo(values)

    def original_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances of the posterior in the scale of the rewards."""
        mean, variance = mean * self.scale + self.offset, variance * self.scale**2
        if self.warp is None:
            return mean, variance
        return self.warp.undo_moments(mean, variance)

    @property
    def noise_variance(self) -> float:
        """Lambda, in the units of the kernel, which is the noise of pulls to come."""
        known = self._known_noise if self.given_noise is None else self.given_noise
        if known is not None:
            return known / self.scale**2
        return self.likelihood.noise.item() * (self._unit / self.scale) ** 2

    @property
    def original_noise_variance(self) -> float:
        """Lambda, in squared units of the reward, of good ones if poor are warped."""
        return self.noise_variance * self.scale**2

    def is_due(self, num_pulls: int) -> bool:
        """Whether the schedule asks for a fit."""
        return (self.learns or self.prior_mean != "zero") and num_pulls >= self.next_fit

    def extended(self, arms: Tensor) -> Self:
        """Return a copy with more arms."""
        other = copy(self)
        other.features = torch.cat([self.features, self.to_features(arms)])
        return other

    def refitted(
        self, indices: Tensor, rewards: Tensor, times: Tensor, noise: Tensor
    ) -> Self:
        """Return a copy that is fitted to ``n`` observations.

        It keeps the hyperparameters, with a warning, if the optimizer fails.

        Args:
            indices: The arms, rows of ``features``.
            rewards: Their rewards.
            times: When they were measured.
            noise: Their noise variances in the original scale, 0 if not known.
        """
        data = indices, rewards, times, noise
        warps: list[LogWarp | None] = [None]
        others = []
        if self.learns_kernel and self.compares:
            warps.append(LogWarp.of(rewards))
            if len(rewards) >= self._next_search:
                others = [new for new in self.new_kernels if new is not self.new_kernel]
        fits = [self._refitted(*data, warp) for warp in dict.fromkeys(warps)]
        best = max(fits, key=itemgetter(2))
        fits = [self._initial(new)._refitted(*data, best[0].warp) for new in others]
        best = max([best, *fits], key=itemgetter(2))
        other, model, _ = best
        if model is not None:
            other._judge(model)
        return other

    def _refitted(
        self,
        indices: Tensor,
        rewards: Tensor,
        times: Tensor,
        noise: Tensor,
        warp: LogWarp | None,
    ) -> tuple[Self, SingleTaskDTCGP | None, float]:
        """Return a fit to warped rewards, its model, and its criterion per reward."""
        other = deepcopy(self, {id(self.features): self.features})
        # If all are known, nothing is learned about the noise of other pulls.
        is_known = bool((noise > 0).all())
        other._known_noise = noise.median().item() if is_known else None
        log_slope = 0.0
        if warp is not None:
            # Its two numbers come from the rewards: the penalty of the BIC.
            log_slope = warp.log_slope(rewards) - math.log(len(rewards)) / len(rewards)
            rewards, noise = warp.measured(rewards, noise)
        other.warp = warp
        num_pulls = len(rewards)
        other.next_fit = num_pulls + 1
        if num_pulls >= FIT_ALWAYS_UNTIL:
            other.next_fit = 2 ** num_pulls.bit_length()
        average, std = _mean_and_std(rewards, noise)
        # Relative: rewards may be in units of any size.
        other._unit = std if std > max(1e-12 * abs(average), MIN_UNIT) else 1.0
        other.offset = 0.0 if other.prior_mean == "zero" else average
        fits_noise = other.learns and not is_known
        fits_any = other.learns_kernel or fits_noise or other.prior_mean == "fitted"
        if num_pulls >= MIN_PULLS_TO_FIT and fits_any:
            targets = (for_fits(rewards) - other.offset) / other._unit
            model = other._fit(indices, targets.unsqueeze(-1), times, for_fits(noise))
            if model is not None:
                value = _log_likelihood(model) - math.log(other._unit) + log_slope
                num_parameters = sum(map(torch.numel, other.covar_module.parameters()))
                value -= 0.5 * num_parameters * math.log(num_pulls) / num_pulls
                return other, model, value
        return other, None, -math.inf

    def _fit(
        self, indices: Tensor, targets: Tensor, times: Tensor, noise: Tensor
    ) -> SingleTaskDTCGP | None:
        """Fit to standardized rewards, ``n x 1``; return the model, or None."""
        num_pulls = len(targets)
        starts = [self]
        if num_pulls >= self._next_search:
            # Before any fit, the present values are the initial ones.
            starts += [self._initial()] if self._next_search > 0 else []
            self._next_search = math.ceil(SEARCH_GROWTH * num_pulls)
        models = [start._model(indices, targets, noise) for start in starts]
        fitted = [model for model in models if fit_or_warn(model, num_pulls)]
        if not fitted:
            return None
        best = max(fitted, key=_log_likelihood)
        if self.learns_kernel:
            self.covar_module.load_state_dict(best.covar_module.state_dict())
        if isinstance(best.likelihood, GaussianLikelihood):
            self.likelihood.load_state_dict(best.likelihood.state_dict())
        if self.prior_mean == "fitted":
            self.offset += self._unit * best.mean_module.constant.item()
        return best

    def _initial(self, new_kernel: Callable[[Tensor], Kernel] | None = None) -> Self:
        """Return a copy with the hyperparameters before any fit, maybe of a kernel."""
        other = copy(self)
        other.likelihood = _new_likelihood(self.features)
        if self.learns_kernel:
            other.new_kernel = new_kernel or self.new_kernel
            kernel = other.new_kernel(self.features)
            other.covar_module = kernel.to(self.features).requires_grad_(False)
            other._next_search = 0
        return other

    def due(self, num_pulls: int) -> Self:
        """Return a copy that is fitted, and searches again, from so many pulls on."""
        other = copy(self)
        other.next_fit = min(self.next_fit, num_pulls)
        other._next_search = min(self._next_search, num_pulls)
        return other

    def unfitted(self) -> Self:
        """Return a copy as it was before any observation."""
        other = self._initial(self.new_kernels[0])
        other.offset, other._unit, other.warp = 0.0, 1.0, None
        other._known_noise = None
        other.next_fit, other._next_search = 1, 0
        return other

    def _judge(self, model: SingleTaskDTCGP) -> None:
        """Warn once if the fit explains the rewards no better than noise alone."""
        num_pulls, noise = len(model.train_targets), self.likelihood.noise.item()
        is_learned = isinstance(model.likelihood, GaussianLikelihood)
        is_noisy = is_learned and noise > NOISE_SHARE
        if self._is_warned or num_pulls < MIN_PULLS_TO_JUDGE or not is_noisy:
            return
        with torch.no_grad():
            model.train()
            marginal = model.likelihood(model(*model.train_inputs), *model.train_inputs)
            gain = marginal.log_prob(model.train_targets).item()
        gain += num_pulls * (1 + math.log(2 * math.pi)) / 2
        if gain <= 0:
            self._is_warned = True
            warnings.warn(
                f"The fit to {num_pulls} observations explains the rewards no better "
                f"than noise alone (its noise is {noise:.0%} of their variance). Early "
                "on this is normal: continue. If it stays so, check that features and "
                "rewards belong together, or pass a kernel.",
                BotorchWarning,
                stacklevel=2,
            )

    def kernel_to_fit(self) -> Kernel:
        """Return the kernel of standardized rewards, in double on the CPU."""
        kernel = deepcopy(self.covar_module).cpu().double()
        if self.learns_kernel:
            return kernel.requires_grad_(True)
        kernel = ScaleKernel(kernel).double()
        kernel.outputscale = 1 / self._unit**2
        return kernel.requires_grad_(False)

    def noise_to_fit(self, noise: Tensor) -> dict[str, Any]:
        """Return the noise of standardized rewards, as models take it.

        Args:
            noise: The known variances in the original scale, 0 if not known.
        """
        is_known = noise > 0
        known = (noise / self._unit**2).clamp_min(MIN_KNOWN_NOISE)
        if self.given_noise is not None:
            known = torch.where(is_known, known, self.given_noise / self._unit**2)
        elif not is_known.all():
            learned = deepcopy(self.likelihood).double()
            if is_known.any():
                learned = PartlyKnownNoise(learned, is_known, known)
            return {"likelihood": learned}
        return {"train_Yvar": known.unsqueeze(-1)}

    def _model(
        self, indices: Tensor, targets: Tensor, noise: Tensor
    ) -> SingleTaskDTCGP:
        pulled = indices.unique()
        if len(pulled) > MAX_FIT_ARMS:
            # Evenly spaced row numbers, so that no random number is drawn.
            places = torch.linspace(0, len(pulled) - 1, MAX_FIT_ARMS)
            kept = torch.isin(indices, pulled[places.round().long()])
            indices, targets, noise = indices[kept], targets[kept], noise[kept]
        return SingleTaskDTCGP(
            for_fits(self.features[indices]),
            targets,
            covar_module=self.kernel_to_fit(),
            mean_module=(
                ConstantMean().double() if self.prior_mean == "fitted" else ZeroMean()
            ),
            outcome_transform=None,
            **self.noise_to_fit(noise),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return hyperparameters and units."""
        return {
            "form": self._form(),
            "kernel": self.new_kernels.index(self.new_kernel),
            "covar_module": self.covar_module.state_dict(),
            "likelihood": self.likelihood.state_dict(),
            "offset": self.offset,
            "warp": self.warp and tuple(self.warp),
            "unit": self._unit,
            "known_noise": self._known_noise,
            "next_fit": self.next_fit,
            "next_search": self._next_search,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        saved = state["covar_module"]
        number = check_count("kernel", state["kernel"], len(self.new_kernels) - 1)
        if self.learns_kernel and self.new_kernels[number] is not self.new_kernel:
            other = self._initial(self.new_kernels[number])
            self.new_kernel, self.covar_module = other.new_kernel, other.covar_module
        is_same = state["form"] == self._form()
        is_same = is_same and state.keys() == self.state_dict().keys()
        if is_same and not self.learns_kernel:
            is_same = all(
                value.shape == saved[name].shape
                and torch.allclose(saved[name].to(value), value, 1e-5, equal_nan=True)
                for name, value in self.covar_module.state_dict().items()
            )
        if not is_same:
            raise InputDataError(
                "Expected the state of a bandit with the same kernel and noise, but "
                "those of the saved one differ. Construct the bandit with the options "
                "of the saved one."
            )
        self.covar_module.load_state_dict(saved)
        self.likelihood.load_state_dict(state["likelihood"])
        self.offset = check_number("offset", state["offset"])
        warp = state["warp"]
        self.warp = warp and LogWarp(*(check_number("warp", number) for number in warp))
        self._unit = check_number("unit", state["unit"], least=MIN_UNIT)
        known = state["known_noise"]
        self._known_noise = None if known is None else check_number("noise", known, 0.0)
        self.next_fit = check_count("next_fit", state["next_fit"])
        self._next_search = check_count("next_search", state["next_search"])

    def _form(self) -> list[Any]:
        """Return what is given: the kernel's parts, and the noise."""
        known = None if self.given_noise is None else float(self.given_noise)
        return [self.learns_kernel, known, kernel_form(self.covar_module)]


@torch.no_grad()
def check_kernel(kernel: Kernel, rows: Tensor) -> None:
    """Raise unless a kernel can be evaluated on a few rows."""
    parts = [] if isinstance(kernel, ComponentKernel) else kernel.modules()
    try:
        shape = tuple(dense_covariance(kernel, rows, rows).shape)
        found = "" if shape == 2 * (len(rows),) else f"covariances of shape {shape}"
        for part in parts:
            columns = getattr(part, "active_dims", None)
            size = rows.shape[-1] if columns is None else len(columns)
            if size == 1 < (getattr(part, "ard_num_dims", None) or 1):
                found = f"{part.ard_num_dims} lengthscales of one feature"
    except Exception as error:  # a kernel may raise anything
        found = f"the error {error!r}"
    if found:
        raise InputDataError(
            f"Expected `covar_module` to fit arms of {rows.shape[-1]} features, but "
            f"got {found}. Check its `ard_num_dims` and `active_dims`."
        )


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
    if 2 <= arms.shape[-1] <= MAX_ANOVA_FEATURES:
        return [composite_to_learn, anova_to_learn]
    return [composite_to_learn]


def _new_likelihood(arms: Tensor) -> GaussianLikelihood:
    """Return the likelihood of the learned noise, on the CPU in the arms' dtype."""
    return get_gaussian_likelihood_with_lognormal_prior().to(arms.dtype)


def for_fits(values: Tensor) -> Tensor:
    """Return data to fit to: the line search needs double precision."""
    return as_dense(values).cpu().double()


@torch.no_grad()
def _log_likelihood(model: SingleTaskGP) -> float:
    """Return the log likelihood per pull, with the priors: the objective of a fit."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets).item()
