"""Ax's own Bayesian optimization, over all points of a discrete space."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import torch
from ax.adapter.registry import Generators
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.experiment import Experiment
from ax.core.parameter import ChoiceParameter, FixedParameter, ParameterType
from ax.core.search_space import SearchSpaceDigest
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials, PausingCriterion
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition import BatchUpperConfidenceBound
from botorch_bkb.checks import check_size
from botorch_bkb.integrations.ax.arms import (
    check_search_space,
    DISCRETE_REMEDY,
    outcome_roles,
    product_rows,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import optimize_acqf_finite


MAX_GRID_SIZE = 2_000_000


class FiniteArmAcquisition(Acquisition):
    """Ax's acquisition, maximized over all points of a discrete search space.

    The search is exact, in chunks, and allows repeats. The points must fit memory.
    Pending points reach the acquisition function as often as they are pending. It is
    part of :func:`modular_strategy`; in a strategy of your own, pass it as
    ``generator_kwargs={"acquisition_class": FiniteArmAcquisition, ...}``.

    Args:
        torch_opt_config: Holds the pending points with their multiplicity.
        **kwargs: Other arguments of Ax. ``botorch_acqf_class`` must take pending
            points, as :class:`~botorch_bkb.acquisition.BatchUpperConfidenceBound` does.

    Raises:
        UnsupportedError: If there are outcome constraints.
    """

    def __init__(self, *, torch_opt_config: Any, **kwargs: Any) -> None:
        if torch_opt_config.outcome_constraints is not None:
            raise UnsupportedError(
                "Expected an experiment without `outcome_constraints`, which the "
                "acquisition functions of this package do not support. Use a "
                "BanditNode, which supports them."
            )
        super().__init__(torch_opt_config=torch_opt_config, **kwargs)
        pending = torch_opt_config.pending_observations
        # Other metrics, which may lack results, are tracked.
        objective = int(torch_opt_config.objective_weights.nonzero()[0, -1])
        if pending is not None and pending[objective].numel():
            # Ax has removed repeats from them.
            self.acqf.set_X_pending(pending[objective].to(self.dtype))

    @override
    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: Any = None,
        equality_constraints: Any = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Any = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``n`` points, their values, and weights of one.

        Raises:
            UnsupportedError: If a feature is continuous, or there are constraints.
        """
        if inequality_constraints or equality_constraints or sampling_strategy:
            raise UnsupportedError(
                "Expected neither constraints nor a `sampling_strategy`, which "
                "FiniteArmAcquisition does not support. Leave them out."
            )
        choices = candidate_set
        if choices is None:
            choices = self._choices(search_space_digest, fixed_features or {})
        indices, values = optimize_acqf_finite(
            self.acqf, choices, q=n, unique=False, **(optimizer_options or {})
        )
        return choices[indices], values.reshape(-1), torch.ones(n, dtype=self.dtype)

    def _choices(
        self, digest: SearchSpaceDigest, fixed_features: dict[int, float]
    ) -> Tensor:
        """Return all points, in the space of the model."""
        # Ax encodes a choice without order as a group of columns.
        parameters = [
            name.partition(OH_PARAM_INFIX)[0] for name in digest.feature_names
        ]
        blocks = []
        for parameter, group in groupby(range(len(parameters)), parameters.__getitem__):
            columns = list(group)
            if parameter != digest.feature_names[columns[0]]:
                block = torch.eye(len(columns), dtype=self.dtype)
            elif columns[0] in digest.discrete_choices:
                values = digest.discrete_choices[columns[0]]
                block = torch.tensor(list(values), dtype=self.dtype).unsqueeze(-1)
            else:
                raise UnsupportedError(
                    f"Expected discrete parameters only, but {parameter!r} is "
                    f"continuous. {DISCRETE_REMEDY}"
                )
            for place, column in enumerate(columns):
                if column in fixed_features:
                    block = block[block[:, place] == fixed_features[column]]
            blocks.append(block)
        return product_rows(blocks)


class FiniteArmsOnly(PausingCriterion):
    """Checks the experiment before every trial by :func:`check_modular`.

    Ax 1.3.1 would keep the objective and the constraints of its first fit.
    """

    @override
    def is_met(self, experiment: Experiment, curr_node: GenerationNode) -> bool:
        """Check the experiment, and return False: there is nothing to wait for."""
        check_modular(experiment)
        for spec in curr_node.generator_specs:
            adapter = spec._fitted_adapter
            if (
                spec.generator_enum is Generators.BOTORCH_MODULAR
                and adapter is not None
                and adapter._optimization_config != experiment.optimization_config
            ):
                spec._fitted_adapter = None
        return False

    @override
    def block_continued_generation_error(
        self, node_name: str, experiment: Experiment, trials_from_node: set[int]
    ) -> None:
        """Do nothing."""


def check_modular(experiment: Experiment) -> None:
    """Raise an error if ``modular_strategy`` does not support an experiment.

    Raises:
        UnsupportedError: If the experiment has parameter or outcome constraints,
            several objectives, parameters that are continuous, derived, or have a role
            beyond their value, or more than two million points.
    """
    roles, _ = outcome_roles(experiment)
    if sum(map(len, roles.values())) > 1:
        raise UnsupportedError(
            "Expected one objective and no `outcome_constraints`, but got "
            f"{experiment.optimization_config}. Use a BanditNode, which supports them."
        )
    space = experiment.search_space
    check_search_space(space)
    if space.parameter_constraints:
        # Ax 1.3.1 applies them to the positions of choices instead of their values.
        raise UnsupportedError(
            "Expected an experiment without `parameter_constraints`, which Ax's "
            "Bayesian optimization does not support for choices, but got "
            f"{space.parameter_constraints}. Use a BanditNode, which supports them."
        )
    sizes = []
    for name, parameter in space.parameters.items():
        is_choice = isinstance(parameter, ChoiceParameter | FixedParameter)
        is_integer = hasattr(parameter, "lower") and (
            parameter.parameter_type == ParameterType.INT
        )
        if not is_choice and not is_integer:
            raise UnsupportedError(
                "Expected choices and integer ranges only, but "
                f"{name!r} is a {type(parameter).__name__} of type "
                f"{parameter.parameter_type.name}. {DISCRETE_REMEDY}"
            )
        sizes.append(parameter.cardinality())
    if math.prod(sizes) > MAX_GRID_SIZE:
        raise UnsupportedError(
            f"Expected at most {MAX_GRID_SIZE:,} points, but the parameters have "
            f"{math.prod(sizes):,}. Use a BanditNode."
        )


def modular_strategy(
    model_class: type[Model] = SingleTaskDTCGP,
    acqf_class: type[AcquisitionFunction] = BatchUpperConfidenceBound,
    num_initial: int = 6,
    seed: int | None = None,
    name: str = "BKB",
) -> GenerationStrategy:
    """Return Ax's own Bayesian optimization with a model and search of this package.

    ``Generators.BOTORCH_MODULAR`` over all points of a discrete space, after Ax's Sobol
    trials. Repeats are allowed. Ax scales numbers and ordered text, and encodes text
    without order as 0/1 columns.

    Args:
        model_class: The surrogate.
        acqf_class: The acquisition function, which must take pending points.
        num_initial: The number of trials with data before the model chooses, no more
            than the space has points: Ax's Sobol generator repeats none.
        seed: The seed of the Sobol points.
        name: The name of the strategy and of the node that follows Sobol's.

    Raises:
        InputDataError: If ``num_initial`` is not positive.

    Example:
        >>> client.set_generation_strategy(modular_strategy(seed=0))
    """
    check_size("num_initial", num_initial)
    surrogate = SurrogateSpec(
        model_configs=[ModelConfig(botorch_model_class=model_class)]
    )
    options = {
        "surrogate_spec": surrogate,
        "acquisition_class": FiniteArmAcquisition,
        "botorch_acqf_class": acqf_class,
    }
    spec = GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs=options)
    sobol = GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": seed})
    follows = MinTrials(
        threshold=num_initial,
        transition_to=name,
        use_all_trials_in_exp=True,
        count_only_trials_with_data=True,
    )
    nodes = [
        GenerationNode(
            name="Sobol",
            generator_specs=[sobol],
            transition_criteria=[follows],
            pausing_criteria=[FiniteArmsOnly()],
        ),
        GenerationNode(
            name=name,
            generator_specs=[spec],
            should_deduplicate=False,
            pausing_criteria=[FiniteArmsOnly()],
        ),
    ]
    return GenerationStrategy(name=name, nodes=nodes)
