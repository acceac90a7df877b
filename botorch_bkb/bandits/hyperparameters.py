"""Kernel, noise and units of a bandit, given or learned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any, Self

import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.utils.gpytorch_modules import (
    get_gaussian_likelihood_with_lognormal_prior,
)
from botorch.utils.constraints import LogTransformedInterval
from botorch.utils.sampling import manual_seed
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_bkb.arms import StoredArms
from botorch_bkb.bandits.learned_kernels import (
    composite_to_learn,
    fingerprint_columns,
    kernel_form,
    lengthscales,
    tanimoto_to_learn,
    variance_shares,
)
from botorch_bkb.checks import (
    check_count,
    check_covar_module,
    check_noise_variance,
    check_number,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.bits import BitArms
from botorch_bkb.models.utils.lazy_rows import as_dense, row_blocks


# With fewer pulls the marginal likelihood is too flat to fit anything.
MIN_PULLS_TO_FIT = 4
# Up to this many pulls every update refits: a fit takes less time than a measurement,
# and a poor one would be used until the next.
FIT_ALWAYS_UNTIL = 128
# Search again from the first start when the pulls have grown by this factor.
SEARCH_GROWTH = 1.25
# From this many pulls on, a fit that explains nothing deserves a warning.
MIN_PULLS_TO_JUDGE = 16
# Rewards of pure noise get a fitted noise of 70 to 90 %, since the prior favours less;
# a fit below this share is not taken for pure noise.
NOISE_SHARE = 0.5
# Lengthscales below this tell no arm from another.
SHORT_LENGTHSCALE = 0.026
# The square of a smaller unit would be no number that divides.
MIN_SCALE = 1e-150
# What stands for no upper bound of a hyper-parameter while it is fitted.
LARGEST_PARAMETER = 1e10
# The likelihood is fitted on at most this many inducing points.
MAX_FIT_POINTS = 256


class Hyperparameters:
    r"""Kernel, noise and units in which a bandit works.

    With ``covar_module`` and ``noise_variance`` given, features and rewards are used as
    they come and the prior mean is zero. Where either is None, features are scaled to
    the unit cube (but for the columns of a given ``TanimotoKernel``), rewards are
    standardized, and what is None is fitted by marginal likelihood
    (:func:`~botorch_bkb.bandits.composite_to_learn`, BoTorch's prior of the noise): the
    units from the first told pull on, the hyper-parameters from the fourth, at every
    update up to 128 pulls and whenever their number reaches 256, 512, ... after that. A
    fit starts from the last one's optimum and, whenever the pulls are a quarter more
    than when it last did, once more from where the first one did: the likelihood has
    several modes, and the better one counts. Fits run on the CPU in double precision,
    wherever the arms are: their many small operations would wait for an accelerator.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel. None to learn the default, a function of the features
            to learn the kernel that it returns before any fit. The default is
            :func:`~botorch_bkb.bandits.composite_to_learn`, or a Tanimoto kernel of
            packed fingerprints.
        noise_variance: lambda; None to learn it.
        learns_mean: Whether a constant prior mean is fitted with what is learned. If
            not, it is the rewards' average, which rises as the bandit gets better, so
            that what was never measured stays attractive: welcome where arms of the
            largest bounds are measured once each. On a box it leads from corner to
            corner, and the best of many Thompson draws is an arm of which nothing is
            known.

    Attributes:
        features: The ``A x d`` arms in the units of the kernel.
        covar_module: The kernel.
        noise_variance: lambda, in the units of the kernel.
        offset: What is subtracted from rewards.
        scale: What they are divided by after that.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None,
        noise_variance: float | None,
        learns_mean: bool = False,
    ) -> None:
        default: Callable[[Any], Kernel] = composite_to_learn
        if isinstance(arms, BitArms):
            default = tanimoto_to_learn
        self.new_kernel = default
        given: Kernel | None = None
        if isinstance(covar_module, Kernel) or not callable(covar_module):
            given = covar_module
        else:
            self.new_kernel = covar_module
        check_covar_module(given)
        check_noise_variance(noise_variance)
        self.learns_kernel = given is None
        self.given_noise = noise_variance
        self.learns_mean = learns_mean
        self.offset, self.scale = 0.0, 1.0
        self.next_fit = 1
        self._next_search = 0
        self._is_warned = False
        self._low, self._width = feature_units(arms)
        for column in fingerprint_columns(given, arms.shape[-1]):
            self._low[column], self._width[column] = 0.0, 1.0
        self.features = self.to_features(arms)
        if given is None:
            given = self.new_kernel(self.features)
            _check_new_kernel(given)
        self.covar_module = deepcopy(given).to(arms).requires_grad_(False)
        self._kernel_form = kernel_form(self.covar_module)
        self.likelihood = _new_likelihood(arms)

    def to_features(self, points: Tensor) -> Tensor:
        """Return ``... x d`` points in the units of the kernel."""
        if not self.learns:
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
        return features * self._width + self._low if self.learns else features

    @property
    def learns(self) -> bool:
        """Whether anything is fitted."""
        return self.learns_kernel or self.given_noise is None

    @property
    def has_detail(self) -> bool:
        """Whether the kernel is learned, and is a trend with rough detail."""
        return self.learns_kernel and self.new_kernel is composite_to_learn

    @property
    def noise_variance(self) -> float:
        """Lambda, in the units of the kernel."""
        if self.given_noise is not None:
            return self.given_noise / self.scale**2
        return self.likelihood.noise.item()

    def is_due(self, num_pulls: int) -> bool:
        """Whether the schedule asks for a fit."""
        return self.learns and num_pulls >= self.next_fit

    def extended(self, arms: Tensor) -> Self:
        """Return a copy with more arms."""
        other = copy(self)
        other.features = torch.cat([self.features, self.to_features(arms)])
        return other

    def refitted(self, indices: Tensor, rewards: Tensor, times: Tensor) -> Self:
        """Return a copy that is fitted to all told pulls; see ``fit``.

        Args:
            indices: The arms, rows of ``features``.
            rewards: Their rewards.
            times: When they were measured, which means nothing here.
        """
        other = deepcopy(self)
        other.fit(indices, rewards)
        return other

    def fit(
        self, indices: Tensor, rewards: Tensor, inducing: Tensor | None = None
    ) -> None:
        """Fit units and hyper-parameters to all told pulls, ``n`` of them.

        Keeps the hyper-parameters, with a warning, if the optimizer fails.

        Args:
            indices: The arms, rows of ``features``.
            rewards: Their rewards.
            inducing: The arms on which the likelihood stands. If omitted, all, or
                evenly chosen ones where they are too many.
        """
        num_pulls = indices.shape[0]
        self._set_units(rewards)
        if num_pulls < MIN_PULLS_TO_FIT:
            return
        starts = [self]
        if num_pulls >= self._next_search:
            # Before any fit, the present values are the first start already.
            starts += [self._afresh()] if self._next_search > 0 else []
            self._next_search = math.ceil(SEARCH_GROWTH * num_pulls)
        best = -math.inf
        for start in starts:
            model = start._model(indices, self._targets(rewards), inducing)
            if not fit_or_warn(model, num_pulls):
                continue
            value = marginal_likelihood(model)
            if value > best:
                best, fitted = value, model
        if best > -math.inf:
            self._take_over(fitted)
            self._judge(fitted)

    def _afresh(self) -> Self:
        """Return a copy with the hyper-parameters before any fit."""
        other = copy(self)
        other.likelihood = _new_likelihood(self.features)
        if self.learns_kernel:
            kernel = self.new_kernel(self.features)
            other.covar_module = kernel.to(self.features).requires_grad_(False)
        return other

    def unfitted(self) -> Self:
        """Return a copy as it was before any pull."""
        other = self._afresh()
        other.offset, other.scale = 0.0, 1.0
        other.next_fit, other._next_search = 1, 0
        return other

    def _take_over(self, model: SingleTaskDTCGP) -> None:
        self.covar_module.load_state_dict(model.covar_module.state_dict())
        if self.given_noise is None:
            self.likelihood.load_state_dict(model.likelihood.state_dict())
        if self.learns_mean:
            self.offset += self.scale * model.mean_module.constant.item()

    def _judge(self, model: SingleTaskDTCGP) -> None:
        """Warn once if the fit cannot distinguish arms that were not pulled."""
        num_pulls = model.train_targets.shape[0]
        if num_pulls < MIN_PULLS_TO_JUDGE or self._is_warned:
            return
        found = self._trouble(model)
        if found is not None:
            self._is_warned = True
            warnings.warn(
                f"The fit to {num_pulls} pulls {found}: it cannot tell arms that were "
                "not pulled apart, and choosing among them is hardly better than "
                "chance. Check that features and rewards belong together, or pass a "
                "kernel.",
                BotorchWarning,
                stacklevel=2,
            )

    def _trouble(self, model: SingleTaskDTCGP) -> str | None:
        noise = self.likelihood.noise.item()
        is_noisy = self.given_noise is None and noise > NOISE_SHARE
        if is_noisy and gain_over_noise(model) <= 0:
            return (
                "explains the rewards no better than noise alone would (its noise is "
                f"{noise:.0%} of their variance)"
            )
        if self.learns_kernel:
            points = as_dense(model.train_inputs[0])
            share = sum(
                share
                for part, share in variance_shares(model.covar_module, points)
                if max(lengthscales(part).values(), default=math.inf)
                < SHORT_LENGTHSCALE
            )
            if share > 0.5:
                return (
                    f"has {share:.0%} of its variance at lengthscales of at most "
                    f"{SHORT_LENGTHSCALE} of a feature's range"
                )
        return None

    def _set_units(self, rewards: Tensor) -> None:
        num_pulls = rewards.shape[0]
        self.next_fit = num_pulls + 1
        if num_pulls >= FIT_ALWAYS_UNTIL:
            self.next_fit = 2 ** num_pulls.bit_length()
        if not self.learns:
            return
        self.offset = rewards.mean().item()
        spread = rewards.std(correction=0).item()
        # Relative: rewards may be in units of any size.
        least = max(1e-12 * abs(self.offset), MIN_SCALE)
        self.scale = spread if spread > least else 1.0

    def _targets(self, rewards: Tensor) -> Tensor:
        targets = (for_fits(rewards) - self.offset) / self.scale
        return targets.unsqueeze(-1)

    def _model(
        self, indices: Tensor, targets: Tensor, inducing: Tensor | None
    ) -> SingleTaskDTCGP:
        pulled = indices.unique()
        if inducing is None and pulled.shape[0] > MAX_FIT_POINTS:
            # Evenly spaced row numbers, so that no random number is drawn.
            spread = torch.linspace(0, pulled.shape[0] - 1, MAX_FIT_POINTS)
            inducing = pulled[spread.round().long()]
        if inducing is None:
            inducing_points = None
        else:
            inducing_points = for_fits(self.features[inducing])
        covar_module = deepcopy(self.covar_module).cpu().double()
        known = self.given_noise is not None
        return SingleTaskDTCGP(
            for_fits(self.features[indices]),
            targets,
            train_Yvar=torch.full_like(targets, self.noise_variance) if known else None,
            inducing_points=inducing_points,
            likelihood=None if known else deepcopy(self.likelihood).double(),
            covar_module=covar_module.requires_grad_(self.learns_kernel),
            mean_module=ConstantMean().double() if self.learns_mean else ZeroMean(),
            outcome_transform=None,
        )

    def _given(self) -> list[Any]:
        """Return the kinds of the kernel's parts, and the noise that was given."""
        kinds = [type(part).__name__ for part in self.covar_module.modules()]
        noise = self.given_noise
        return [kinds, None if noise is None else float(noise)]

    def _check_kernel_of(self, state: dict[str, Any]) -> None:
        """Refuse a state whose kernel is of these classes, and another."""
        form = state["kernel_form"]
        if form != self._kernel_form:
            raise InputDataError(
                "Expected the state of a bandit with a kernel whose parts have the "
                f"numbers {self._kernel_form}, but it is that of one with {form}."
            )
        learns = state["learns_kernel"]
        if learns != self.learns_kernel:
            words = {True: "learned", False: "given"}
            raise InputDataError(
                "Expected the state of a bandit whose kernel was "
                f"{words[self.learns_kernel]}, but it was {words[learns]}. Construct "
                "the bandit with the options of the saved one."
            )
        if self.learns_kernel:
            return
        saved = state["covar_module"]
        for name, own in self.covar_module.state_dict().items():
            found = saved.get(name)
            if not (
                isinstance(found, Tensor)
                and found.shape == own.shape
                and torch.allclose(found.to(own), own, rtol=1e-5, equal_nan=True)
            ):
                raise InputDataError(
                    "Expected the state of a bandit with this kernel, but the saved "
                    f"one has another {name}. Construct the bandit with the kernel of "
                    "the saved one."
                )

    def state_dict(self) -> dict[str, Any]:
        """Return hyper-parameters and units."""
        return {
            "given": self._given(),
            "learns_kernel": self.learns_kernel,
            "kernel_form": deepcopy(self._kernel_form),
            "covar_module": self.covar_module.state_dict(),
            "likelihood": self.likelihood.state_dict(),
            "offset": self.offset,
            "scale": self.scale,
            "next_fit": self.next_fit,
            "next_search": self._next_search,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if state["given"] != self._given():
            raise InputDataError(
                "Expected the state of a bandit with kernel and noise "
                f"{self._given()}, but it is that of one with {state['given']}."
            )
        self._check_kernel_of(state)
        self.covar_module.load_state_dict(state["covar_module"])
        self.likelihood.load_state_dict(state["likelihood"])
        self.offset = check_number("offset", state["offset"])
        self.scale = check_number("scale", state["scale"], least=MIN_SCALE)
        self.next_fit = check_count("next_fit", state["next_fit"])
        self._next_search = check_count("next_search", state["next_search"])


def _new_likelihood(arms: Tensor) -> GaussianLikelihood:
    """Return the likelihood of the learned noise, on the CPU in the arms' dtype."""
    return get_gaussian_likelihood_with_lognormal_prior().to(arms.dtype)


def for_fits(values: Tensor) -> Tensor:
    """Return data to fit to: the line search needs double precision."""
    return as_dense(values).cpu().double()


def _check_new_kernel(covar_module: Kernel | None) -> None:
    if covar_module is None:
        raise InputDataError(
            "Expected the function `covar_module` to return a GPyTorch kernel, but got "
            "None."
        )
    check_covar_module(covar_module)


@torch.no_grad()
def marginal_likelihood(model: SingleTaskGP) -> float:
    """Return what a fit maximizes: the log likelihood per pull, with the priors."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets).item()


@torch.no_grad()
def gain_over_noise(model: SingleTaskGP) -> float:
    """Return by how much standardized rewards are likelier than under noise alone."""
    model.train()
    marginal = model.likelihood(model(*model.train_inputs), *model.train_inputs)
    noise_alone = -model.train_targets.shape[0] * (1 + math.log(2 * math.pi)) / 2
    return marginal.log_prob(model.train_targets).item() - noise_alone


def feature_units(arms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ``d`` lowest numbers and ranges of features, where they are learned.

    Packed fingerprints have no units to take out: 0 and 1. A constant feature becomes
    0.
    """
    numbers = arms.numbers if isinstance(arms, BitArms) else arms
    limits = [(rows.amin(dim=0), rows.amax(dim=0)) for _, rows in row_blocks(numbers)]
    low, high = (torch.stack(ends) for ends in zip(*limits, strict=True))
    low, high = low.amin(dim=0), high.amax(dim=0)
    width = torch.where(high > low, high - low, 1.0).to(low)
    num_bits = arms.shape[-1] - numbers.shape[-1]
    zeros = low.new_zeros(num_bits)
    return torch.cat([zeros, low]), torch.cat([zeros + 1, width])


def extreme_arms(arms: Tensor) -> Tensor:
    """Return few arms, ascending, that have the :func:`feature_units` of all."""
    numbers = arms.numbers if isinstance(arms, BitArms) else arms
    if numbers.shape[-1] == 0:
        return torch.empty(0, dtype=torch.long)
    found = []
    for rows, block in row_blocks(numbers):
        ends = torch.stack([block.argmin(dim=0), block.argmax(dim=0)]).unique()
        found.append((rows.start + ends, block[ends]))
    indices, extremes = (torch.cat(parts) for parts in zip(*found, strict=True))
    ends = torch.stack([extremes.argmin(dim=0), extremes.argmax(dim=0)]).unique()
    return indices[ends]


@contextmanager
def logarithms(model: SingleTaskGP) -> Iterator[None]:
    """Let a fit search over logarithms where BoTorch's modules have plain numbers.

    Of lengthscales, variances and noise only ratios matter. In thirty dimensions L-BFGS
    takes a tenth to a fiftieth of the steps that it takes over the numbers themselves.
    """
    plain = [
        (*name.rpartition("."), constraint)
        for name, parameter, constraint in Module.named_parameters_and_constraints(
            model
        )
        if parameter.requires_grad and constraint is not None
        if not constraint.enforced and (constraint.lower_bound > 0).all()
    ]
    for owner, _, name, constraint in plain:
        upper = constraint.upper_bound.clamp_max(LARGEST_PARAMETER)
        logarithm = LogTransformedInterval(constraint.lower_bound, upper)
        _replace_constraint(model.get_submodule(owner), name, logarithm)
    try:
        yield
    finally:
        for owner, _, name, constraint in plain:
            _replace_constraint(model.get_submodule(owner), name, constraint)


@torch.no_grad()
def _replace_constraint(module: Module, name: str, constraint: Interval) -> None:
    """Give a parameter another constraint, and the same value."""
    parameter: Tensor = getattr(module, name)
    constraint = constraint.to(parameter)
    # The logarithm of a bound and back may miss it by the last bit.
    value = getattr(module, f"{name}_constraint").transform(parameter)
    value = value.clamp(constraint.lower_bound, constraint.upper_bound)
    module.register_constraint(name, constraint)  # may set an initial value
    parameter.copy_(constraint.inverse_transform(value))


def fit_or_warn(model: SingleTaskGP, num_pulls: int) -> bool:
    """Fit a model; return whether that worked, and warn if not."""
    try:
        # Retries start from draws of the global generator, which is seeded here.
        with manual_seed(num_pulls), logarithms(model):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError as error:
        warnings.warn(
            f"Fitting the hyper-parameters to {num_pulls} pulls failed; the "
            f"previous ones stay. {error}",
            BotorchWarning,
            stacklevel=2,
        )
        return False
    return True
