"""Checks that an Ax experiment has nothing that a bandit does not support."""

from __future__ import annotations

from ax.core.experiment import Experiment
from ax.core.objective import Objective
from ax.core.search_space import SearchSpace
from ax.utils.common.sympy import parse_objective_expression
from botorch.exceptions.errors import UnsupportedError


def check_objective(experiment: Experiment) -> Objective:
    """Return the one objective of an experiment.

    Raises:
        UnsupportedError: If there is none, it is not one metric times a number, or
            there is an outcome constraint or a target of pruning.
    """
    config = experiment.optimization_config
    if config is None or len(config.objective.metric_names) != 1:
        raise UnsupportedError(
            "Expected an experiment with one objective of one metric, but got "
            f"{config}. Use `client.configure_optimization`."
        )
    if not _is_linear(config.objective):
        # Ax 1.3.1 would use the metric itself.
        raise UnsupportedError(
            "Expected an objective that is a metric, with a minus to minimize it, but "
            f"got {config.objective.expression!r}, which is not linear. Complete "
            "trials with that value, as a metric of its own."
        )
    extras = {
        "outcome_constraints": config.all_constraints,
        "pruning_target_parameterization": config.pruning_target_parameterization,
    }
    for name, value in extras.items():
        if value:
            raise UnsupportedError(
                f"Expected an experiment without `{name}`, which bandits do not "
                f"support, but got {value}. Leave it out of `configure_optimization`, "
                "and put the cost of a violation into the objective."
            )
    return config.objective


def _is_linear(objective: Objective) -> bool:
    """Whether an objective of one metric is the metric times a number."""
    (name,) = objective.metric_names
    if objective.expression in (name, f"-{name}"):
        return True  # also for names that sympy cannot parse
    parsed = parse_objective_expression(objective.expression)
    (expression,) = parsed if isinstance(parsed, tuple) else (parsed,)
    return all(term.is_Symbol for term in expression.as_coefficients_dict())


def check_search_space(search_space: SearchSpace) -> None:
    """Raise an ``UnsupportedError`` if a parameter has a role beyond its value."""
    for name, parameter in search_space.parameters.items():
        is_task = getattr(parameter, "is_task", False)
        is_plain = not (parameter.is_fidelity or is_task or parameter.is_hierarchical)
        if not is_plain or parameter.is_disabled:
            raise UnsupportedError(
                f"Expected parameters without a role, but {name!r} is a fidelity, a "
                "task or disabled, or has `dependent_parameters`, which bandits do not "
                "support. Leave it out."
            )
