"""Maximum a posteriori fits of the hyperparameters of one model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.constraints import LogTransformedInterval
from botorch.utils.sampling import manual_seed
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor


# Stands for no upper bound of a hyperparameter while it is fitted.
LARGEST_PARAMETER = 1e10


@contextmanager
def _logarithms(model: SingleTaskGP) -> Iterator[None]:
    """Search over logarithms of hyperparameters during a fit.

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
        with manual_seed(num_pulls), _logarithms(model):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError as error:
        warnings.warn(
            f"Fitting the hyperparameters to {num_pulls} pulls failed; the "
            f"previous ones stay. {error}",
            BotorchWarning,
            stacklevel=2,
        )
        return False
    return True
