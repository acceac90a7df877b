r"""Bandits in Ax experiments; needs the extra ``ax`` (Ax 1.3.1).

Two routes. :class:`BanditNode` is a generation node that lets any bandit of this
package choose, over a table of arms that is stored by reference (:class:`ArmFile`) or
over the product of an experiment's choice parameters (:class:`ChoiceGrid`). The other
route is Ax's own Bayesian optimization, ``Generators.BOTORCH_MODULAR``, with
:class:`~botorch_bkb.models.SingleTaskDTCGP`, the acquisition functions of this package
and :class:`FiniteArmAcquisition`, which searches all discrete points exactly, allows
repeats, and counts pending points as often as they are pending.

Call :func:`register_all` before an experiment is saved and before it is loaded. A node
refers to its bandit by the name of a factory, which :func:`register_bandit` takes, in
both processes: a stored experiment names code, it does not hold any.

Use one-arm trials: Ax merges repeats within a batch trial. On the node's route, failed
and abandoned trials are released; on the other, Ax reports abandoned ones as pending
for ever, so mark them failed instead.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    BudgetedUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.bandits.storage import from_json, to_json
from botorch_bkb.models import SingleTaskDTCGP, TimeVaryingGP
from botorch_bkb.optim import optimize_acqf_finite


try:
    from ax.core.data import Data
    from ax.core.experiment import Experiment
    from ax.core.parameter import ChoiceParameter, FixedParameter
    from ax.core.search_space import SearchSpace, SearchSpaceDigest
    from ax.core.trial_status import TrialStatus
    from ax.generation_strategy.external_generation_node import (
        ExternalGenerationNode,
    )
    from ax.generation_strategy.transition_criterion import TransitionCriterion
    from ax.generators.torch.botorch_modular.acquisition import Acquisition
    from ax.storage.botorch_modular_registry import (
        register_acquisition,
        register_acquisition_function,
        register_model,
    )
    from ax.storage.json_store.decoder import object_from_json
    from ax.storage.json_store.registry import (
        CORE_DECODER_REGISTRY,
        CORE_ENCODER_REGISTRY,
    )
except ImportError as error:
    raise ImportError(
        "Ax experiments need ax-platform, which is not installed. Install it with "
        'pip install "botorch_bkb[ax]".'
    ) from error


Parameters = Mapping[str, Any]
BanditFactory = Callable[..., FiniteArmBandit]
MAX_GRID_SIZE = 2_000_000
_FACTORIES: dict[str, BanditFactory] = {}


def register_bandit(factory: BanditFactory, name: str | None = None) -> BanditFactory:
    """Make a factory known by name, as a function call or as a decorator.

    Args:
        factory: Takes ``arms``, ``maximize`` and ``generator``, and returns a bandit
            that was constructed with them.
        name: How nodes refer to it; the function's name if None. A name that is known
            gets the new factory.

    Returns:
        The factory.

    Example:
        >>> @register_bandit
        ... def my_bandit(arms, maximize, generator):
        ...     return BBKB(arms, maximize=maximize, generator=generator)
    """
    _FACTORIES[factory.__name__ if name is None else name] = factory
    return factory


class ArmSource(ABC):
    """Which arms there are, and how Ax's parameters name them."""

    @abstractmethod
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the ``A x d`` arms."""

    @abstractmethod
    def parameters(self, index: int) -> dict[str, Any]:
        """Return Ax's parameters of an arm."""

    @abstractmethod
    def index(self, parameters: Parameters) -> int:
        """Return the arm of Ax's parameters."""


@dataclass
class ArmFile(ArmSource):
    """A table of arms in a file, named by an integer parameter: the row number.

    The experiment needs ``RangeParameterConfig(name="arm", bounds=(0, A - 1),
    parameter_type="int")``. What is stored is the path and a checksum.

    Args:
        path: A ``*.npy`` file with an ``A x d`` array, or a ``*.csv``, ``*.csv.gz`` or
            ``*.parquet`` table of numbers.
        parameter: The name of the parameter.
        checksum: The SHA-256 of the file; None to take it from the file as it is now.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file has another checksum, or is none of these.
    """

    path: str
    parameter: str = "arm"
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Take the checksum, or check it."""
        self.path = str(self.path)
        found = hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        if self.checksum is not None and self.checksum != found:
            raise InputDataError(
                f"Expected {self.path} to be the table that the experiment began with "
                f"(SHA-256 {self.checksum[:12]}...), but it has changed to "
                f"{found[:12]}.... Indices of arms would mean other rows."
            )
        self.checksum = found
        self._num_arms = 0

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms.

        Raises:
            InputDataError: If the file is no table of numbers, or the parameter does
                not range over its rows.
        """
        if self.path.endswith(".npy"):
            values = np.load(self.path, allow_pickle=False)
        else:
            read = pd.read_parquet if self.path.endswith(".parquet") else pd.read_csv
            try:
                values = read(self.path).to_numpy(dtype="float64")
            except (TypeError, ValueError) as error:
                raise InputDataError(
                    f"Expected {self.path} to be a table of numbers only: {error}"
                ) from error
        arms = torch.tensor(values, dtype=torch.float64)
        parameter = search_space.parameters.get(self.parameter)
        bounds = (getattr(parameter, "lower", None), getattr(parameter, "upper", None))
        if bounds != (0, len(arms) - 1):
            raise InputDataError(
                f"Expected an integer parameter {self.parameter!r} from 0 to "
                f"{len(arms) - 1}, the rows of {self.path}, but got {parameter}."
            )
        self._num_arms = len(arms)
        return arms

    @override
    def parameters(self, index: int) -> dict[str, Any]:
        return {self.parameter: index}

    @override
    def index(self, parameters: Parameters) -> int:
        return int(parameters[self.parameter])


@dataclass
class ChoiceGrid(ArmSource):
    """The product of all choice parameters of an experiment, at most two million.

    Numbers are features as they are, other values one 0/1 column each.
    """

    def __post_init__(self) -> None:
        """Start without a search space."""
        self._values: dict[str, list[Any]] = {}
        self._fixed: dict[str, Any] = {}

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms, the last parameter fastest.

        Raises:
            UnsupportedError: If a parameter is neither a choice nor fixed.
            InputDataError: If there are too many combinations.
        """
        columns: list[Tensor] = []
        for name, parameter in search_space.parameters.items():
            if isinstance(parameter, FixedParameter):
                self._fixed[name] = parameter.value
            elif isinstance(parameter, ChoiceParameter):
                self._values[name] = list(parameter.values)
                columns.append(_features(parameter))
            else:
                raise UnsupportedError(
                    f"Expected choice parameters only, but {name!r} is a "
                    f"{type(parameter).__name__}. Use an ArmFile for a table of arms."
                )
        size = math.prod(len(values) for values in self._values.values())
        if not columns or size > MAX_GRID_SIZE:
            raise InputDataError(
                f"Expected 1 to {MAX_GRID_SIZE:,} combinations of choices, but got "
                f"{size if columns else 0:,}. Use an ArmFile for a part of them."
            )
        rows = [torch.arange(len(column)) for column in columns]
        grid = torch.cartesian_prod(*rows).reshape(size, len(columns))
        return torch.cat(
            [column[grid[:, i]] for i, column in enumerate(columns)], dim=-1
        )

    @override
    def parameters(self, index: int) -> dict[str, Any]:
        chosen = {}
        for name, values in reversed(self._values.items()):
            index, position = divmod(index, len(values))
            chosen[name] = values[position]
        return {**self._fixed, **dict(reversed(chosen.items()))}

    @override
    def index(self, parameters: Parameters) -> int:
        index = 0
        for name, values in self._values.items():
            index = index * len(values) + values.index(parameters[name])
        return index


def _features(parameter: ChoiceParameter) -> Tensor:
    """Return a row of features for each value of a choice parameter."""
    values = list(parameter.values)
    if all(isinstance(value, int | float) for value in values):
        return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    return torch.eye(len(values), dtype=torch.float64)


class BanditNode(ExternalGenerationNode):
    """A generation node that lets a bandit choose.

    Before every choice, results that came in since are told to the bandit, and its
    pending pulls are made those of the experiment: trials that are candidates, staged
    or running, or completed without a result so far. Failed and abandoned trials are
    released. Trials of other nodes, or attached by hand, count like its own. Results
    are told once: a trial that has been told stays so, whatever becomes of it.

    Every trial is one ask of one arm, with what is pending taken into account; so with
    the same rewards in the same order the arms are those of the bandit outside Ax,
    asked by ``ask(max_size=1)``. The objective says whether to maximize.

    Args:
        factory: The name under which :func:`register_bandit` knows the bandit.
        arms: An :class:`ArmFile` or a :class:`ChoiceGrid`.
        seed: The seed of the bandit's own stream; Ax resets the global one.
        name: The node's name.
        transition_criteria: As in Ax.
        state: What storage kept; None at the start.

    Raises:
        InputDataError: If no such factory is registered.

    Example:
        >>> node = BanditNode("my_bandit", ArmFile("arms.npy"), seed=0)
        >>> strategy = GenerationStrategy(name="bandit", nodes=[node])
        >>> client.set_generation_strategy(strategy)
    """

    def __init__(
        self,
        factory: str,
        arms: ArmSource,
        seed: int = 0,
        name: str = "Bandit",
        transition_criteria: Sequence[TransitionCriterion] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            name=name,
            should_deduplicate=False,  # repeats are what bandits are about
            transition_criteria=transition_criteria,
        )
        if factory not in _FACTORIES:
            raise InputDataError(
                f"Expected `factory` to be registered, but {factory!r} is not among "
                f"{sorted(_FACTORIES)}. Call `register_bandit` first, in this process."
            )
        self.factory = factory
        self.arms = arms
        self.seed = seed
        self._state = state
        self._told: set[int] = set()
        self._open: set[int] = set()  # those seen but not told
        self._bandit: FiniteArmBandit | None = None

    @property
    def bandit(self) -> FiniteArmBandit:
        """The bandit, from the first choice on.

        Raises:
            UnsupportedError: If there was no choice yet.
        """
        if self._bandit is None:
            raise UnsupportedError(
                "Expected a trial before the bandit is looked at: the experiment says "
                "what its arms are and whether to maximize."
            )
        return self._bandit

    @override
    def update_generator_state(self, experiment: Experiment, data: Data) -> None:
        """Tell the bandit what is new, and make its pending pulls the experiment's."""
        if self._bandit is None:
            self._start(experiment)
        trials = experiment.trials
        self._open |= trials.keys() - self._told
        results = self._new_results(data, _objective(experiment).metric_names[0])
        live: Counter[int] = Counter()
        for number in sorted(self._open):
            trial = trials[number]
            if trial.status.is_completed and number in results:
                (arm,) = self._arms_of(trial)
                self.bandit.tell([arm], [results[number]], external=True)
                self._told.add(number)
            elif trial.status in LIVE or trial.status.is_completed:
                live.update(self._arms_of(trial))
        self._open -= self._told
        self._reconcile(live)

    @override
    def get_next_candidate(
        self, pending_parameters: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the parameters of the arm that the bandit asks for."""
        (index,) = self.bandit.ask(max_size=1).tolist()
        return self.arms.parameters(index)

    def _new_results(self, data: Data, metric: str) -> dict[int, float]:
        """Return the results of trials that have not been told."""
        # Not `data.df`, which sums up the steps of all trials at every call.
        table = data.full_df
        if table.empty:
            return {}
        rows = table[np.isin(table["trial_index"].to_numpy(), list(self._open))]
        rows = rows[rows["metric_name"] == metric].dropna(subset="mean")
        if "step" in rows:
            rows = rows.sort_values("step", kind="stable")  # the last one counts
        return {
            int(number): float(mean)
            for number, mean in zip(rows["trial_index"], rows["mean"], strict=True)
        }

    def state_dict(self) -> dict[str, Any] | None:
        """Return the bandit's state as plain JSON; None before the first choice."""
        if self._bandit is None:
            return self._state
        return {
            "told": sorted(self._told),
            "bandit": to_json(self.bandit.state_dict()),
        }

    @classmethod
    @override
    def deserialize_init_args(
        cls,
        args: dict[str, Any],
        decoder_registry: Any = None,
        class_decoder_registry: Any = None,
    ) -> dict[str, Any]:
        """Decode the arguments that :func:`register_all`'s encoder wrote."""
        return {
            key: object_from_json(value, decoder_registry, class_decoder_registry)
            for key, value in args.items()
        }

    def _start(self, experiment: Experiment) -> None:
        arms = self.arms.load(experiment.search_space)
        bandit = _FACTORIES[self.factory](
            arms=arms,
            maximize=not _objective(experiment).minimize,
            generator=torch.Generator().manual_seed(self.seed),
        )
        if self._state is not None:
            bandit.load_state_dict(from_json(self._state["bandit"]))
            self._told = set(self._state["told"])
        self._bandit = bandit

    def _arms_of(self, trial: Any) -> list[int]:
        """Return the arms of a trial, which has one unless it is a batch trial."""
        if len(trial.arms) != 1:
            raise UnsupportedError(
                f"Expected trials of one arm, but trial {trial.index} has "
                f"{len(trial.arms)}. Ax merges repeats within a batch: ask for several "
                "trials instead."
            )
        return [self.arms.index(arm.parameters) for arm in trial.arms]

    def _reconcile(self, live: Counter[int]) -> None:
        """Make the bandit's pending pulls these, arm by arm."""
        pending = Counter(self.bandit.pending.values())
        self.bandit.fail(list((pending - live).elements()))
        self.bandit.add_pending(list((live - pending).elements()))


def _objective(experiment: Experiment) -> Any:
    """Return the one objective of an experiment."""
    config = experiment.optimization_config
    if config is None or len(config.objective.metric_names) != 1:
        raise UnsupportedError(
            "Expected an experiment with one objective of one metric, but got "
            f"{config}. Use `client.configure_optimization`."
        )
    return config.objective


LIVE = (TrialStatus.CANDIDATE, TrialStatus.STAGED, TrialStatus.RUNNING)


class FiniteArmAcquisition(Acquisition):
    """Ax's acquisition, maximized over all points of a discrete search space.

    Exact, in chunks, with repeats, for any number of points that fits memory; pending
    points reach the acquisition function as often as they are pending. Pass it as
    ``generator_kwargs={"acquisition_class": FiniteArmAcquisition, ...}``.

    Args:
        surrogate: As Ax passes it, like all others.
        search_space_digest: The transformed search space.
        torch_opt_config: Holds the pending points with their multiplicity.
        botorch_acqf_class: A class that takes pending points, such as
            :class:`~botorch_bkb.acquisition.BatchUpperConfidenceBound`.
        **kwargs: The others.
    """

    def __init__(
        self,
        surrogate: Any,
        search_space_digest: SearchSpaceDigest,
        torch_opt_config: Any,
        botorch_acqf_class: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            surrogate=surrogate,
            search_space_digest=search_space_digest,
            torch_opt_config=torch_opt_config,
            botorch_acqf_class=botorch_acqf_class,
            **kwargs,
        )
        pending = torch_opt_config.pending_observations
        if pending is not None and pending[0].numel():
            # Ax has made a set of them.
            self.acqf.set_X_pending(pending[0].to(self.dtype))

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
                "FiniteArmAcquisition does not support."
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
        columns = []
        for i, name in enumerate(digest.feature_names):
            if i in fixed_features:
                values: Sequence[float] = [fixed_features[i]]
            elif i in digest.discrete_choices:
                values = digest.discrete_choices[i]
            else:
                raise UnsupportedError(
                    f"Expected discrete parameters only, but {name!r} is continuous."
                )
            columns.append(torch.tensor(list(values), dtype=self.dtype))
        return torch.cartesian_prod(*columns).reshape(-1, len(columns))


def register_all() -> None:
    """Let Ax store and load what this package brings; again does no harm."""
    register_acquisition(FiniteArmAcquisition)
    for model_class in (SingleTaskDTCGP, TimeVaryingGP):
        register_model(model_class)
    for acqf_class in (
        BudgetedUpperConfidenceBound,
        BatchUpperConfidenceBound,
        TimeVaryingUpperConfidenceBound,
    ):
        register_acquisition_function(acqf_class)
    CORE_ENCODER_REGISTRY[BanditNode] = _encode_node
    CORE_DECODER_REGISTRY["BanditNode"] = BanditNode
    CORE_ENCODER_REGISTRY[ArmFile] = _encode_file
    CORE_DECODER_REGISTRY["ArmFile"] = ArmFile
    CORE_ENCODER_REGISTRY[ChoiceGrid] = _encode_grid
    CORE_DECODER_REGISTRY["ChoiceGrid"] = ChoiceGrid


def _encode_node(node: BanditNode) -> dict[str, Any]:
    return {
        "__type": "BanditNode",
        "factory": node.factory,
        "arms": node.arms,
        "seed": node.seed,
        "name": node.name,
        "transition_criteria": node.transition_criteria,
        "state": node.state_dict(),
    }


def _encode_file(arms: ArmFile) -> dict[str, Any]:
    return {
        "__type": "ArmFile",
        "path": arms.path,
        "parameter": arms.parameter,
        "checksum": arms.checksum,
    }


def _encode_grid(arms: ChoiceGrid) -> dict[str, Any]:
    return {"__type": "ChoiceGrid"}
