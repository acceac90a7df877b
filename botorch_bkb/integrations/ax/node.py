"""A generation node that lets a bandit choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.trial_status import TrialStatus
from ax.generation_strategy.external_generation_node import ExternalGenerationNode
from ax.generation_strategy.transition_criterion import TransitionCriterion
from ax.storage.json_store.decoder import object_from_json
from botorch.exceptions.errors import InputDataError, UnsupportedError
from typing_extensions import override

from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.bandits.storage import from_json, to_json
from botorch_bkb.integrations.ax.arms import ArmSource


BanditFactory = Callable[..., FiniteArmBandit]
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
