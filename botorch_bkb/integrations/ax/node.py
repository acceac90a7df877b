"""A generation node that lets a bandit choose."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TYPE_CHECKING

import torch
from ax.core.base_trial import BaseTrial
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.trial_status import TrialStatus
from ax.generation_strategy.external_generation_node import ExternalGenerationNode
from ax.generation_strategy.transition_criterion import TransitionCriterion
from ax.storage.json_store.decoder import object_from_json
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits import FiniteArmBandit, GPBandit
from botorch_bkb.bandits.storage import from_json, to_json
from botorch_bkb.checks import check_rewards
from botorch_bkb.integrations.ax.arms import allowed_arms, ArmSource, Parameters
from botorch_bkb.integrations.ax.checks import check_objective, check_search_space


if TYPE_CHECKING:
    from ax.api.client import Client


BanditFactory = Callable[..., FiniteArmBandit]
_FACTORIES: dict[str, BanditFactory] = {"GPBandit": GPBandit}
LIVE = (TrialStatus.CANDIDATE, TrialStatus.STAGED, TrialStatus.RUNNING)
# Ax stores ten decimals.
_STORED_PRECISION = {"rel_tol": 1e-9, "abs_tol": 1e-9}
# Where the record of how Ax came by a trial says which pull it is.
_PULL = "botorch_bkb_pull"


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
        ...     kernel = RBFKernel()
        ...     return BBKB(
        ...         arms, kernel, 0.1, maximize=maximize, generator=generator
        ...     )
    """
    _FACTORIES[factory.__name__ if name is None else name] = factory
    return factory


class BanditNode(ExternalGenerationNode):
    """A generation node that lets a bandit choose.

    Before every choice, results that came in since are told to the bandit, and its
    pending pulls are made those of the experiment: trials that are candidates, staged
    or running, or completed without a result so far. Failed, abandoned and early
    stopped trials are released; what the latter have measured is no result. A
    ``GPBandit`` does not choose a failed arm again at once, and retires it after a
    second failure; the arm of an abandoned trial is retired at once. Trials of
    other nodes, or attached by hand, count like its own. A result that is attached anew
    replaces the one before. :meth:`update` does all this at any time, such as at the
    end.

    Every trial is one ask of one arm, with what is pending taken into account; so with
    the same rewards in the same order the arms are those of the bandit outside Ax,
    asked by ``ask(1)``. The objective says whether to maximize. Fixed
    parameters and parameter constraints say which arms are available; the page "What
    works in Ax" lists what is honoured. All else is an error at the first choice.

    A trial that is no arm, and a result that is not finite, do not stop the others: a
    warning names them once, and the bandit goes on without them.

    Args:
        arms: An :class:`~botorch_bkb.integrations.ax.ArmFile` or a
            :class:`~botorch_bkb.integrations.ax.ChoiceGrid`.
        factory: The name under which :func:`register_bandit` knows the bandit. By
            default a :class:`~botorch_bkb.GPBandit`, which learns kernel and noise.
        seed: The seed of the bandit's own stream; Ax resets the global one.
        name: The node's name.
        transition_criteria: As in Ax.
        state: What storage kept; None at the start.
        time_unit: For bandits on objectives that drift, how many seconds the unit of
            their time is. Trials are asked for now, and their results are of when Ax
            had them completed, or of the ``datetime`` (or its ISO text) that
            ``trial.run_metadata["time"]`` holds; time 0 is when the experiment was
            created. None: every trial is one unit later than the one before, and its
            result is of when it was asked for.

    Raises:
        InputDataError: If no such factory is registered, or ``time_unit`` is not
            positive.

    Example:
        >>> node = BanditNode(ArmFile("arms.npy"), seed=0)
        >>> strategy = GenerationStrategy(name="bandit", nodes=[node])
        >>> client.set_generation_strategy(strategy)
    """

    def __init__(
        self,
        arms: ArmSource,
        factory: str = "GPBandit",
        seed: int = 0,
        name: str = "Bandit",
        transition_criteria: Sequence[TransitionCriterion] | None = None,
        state: dict[str, Any] | None = None,
        time_unit: float | None = None,
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
        if time_unit is not None and not time_unit > 0:
            raise InputDataError(
                "Expected `time_unit` to be a positive number of seconds, but got "
                f"{time_unit!r}."
            )
        self.factory = factory
        self.arms = arms
        self.seed = seed
        self.time_unit = time_unit
        self._state = state
        # Of trials: the pull, -1 if not known, and the result.
        self._told: dict[int, tuple[int, float]] = {}
        self._pulls: dict[int, int] = {}  # of open trials that are in flight
        self._warned: set[int] = set()
        self._abandoned: set[int] = set()  # trials whose arms were retired
        self._bandit: FiniteArmBandit | None = None
        # Of the experiment: what it is, and what must not change.
        self._origin: dict[str, str] = {}
        self._metric = ""
        self._created = datetime.min
        self._available: Tensor | None = None

    @property
    def bandit(self) -> FiniteArmBandit:
        """The bandit, from the first choice on, as of the last choice.

        :meth:`update` tells it what was completed since, and returns it.

        Raises:
            UnsupportedError: If there was no choice yet.
        """
        if self._bandit is None:
            raise UnsupportedError(
                "Expected a trial before the bandit is looked at: the experiment says "
                "what its arms are and whether to maximize. Or call `update`."
            )
        return self._bandit

    def update(self) -> FiniteArmBandit:
        """Tell the bandit all that was completed, and return it.

        Every choice does so first; call it before looking at the bandit, and at the end
        of a campaign. Again does no harm.

        Returns:
            The bandit, whose ``pending`` pulls are those of the experiment.

        Raises:
            UnsupportedError: If the node is not part of a client's strategy, or as the
                next choice would.
        """
        strategy = self._generation_strategy
        experiment = None if strategy is None else strategy._experiment
        if experiment is None:
            raise UnsupportedError(
                "Expected the node to be part of an experiment. Call "
                "`client.set_generation_strategy` first."
            )
        self.update_generator_state(experiment, experiment.lookup_data())
        return self.bandit

    def best_parameterization(
        self,
    ) -> tuple[dict[str, Any], dict[str, tuple[float, float]], int, str]:
        """Return the measured arm of the best posterior mean, given all results.

        In the place of ``client.get_best_parameterization``, and in its form.

        Returns:
            Ax's parameters of the arm; posterior mean and variance of the objective;
            the last trial of that arm that brought a result; and Ax's name of the arm.

        Raises:
            UnsupportedError: If there is no result yet, or as :meth:`update`.
        """
        bandit = self.update()
        if bandit.num_pulls == 0:
            raise UnsupportedError(
                "Expected a result before the best arm is asked for, but no trial was "
                "completed with one."
            )
        number, mean, variance = self._best_trial(self.experiment)
        (arm,) = self.experiment.trials[number].arms
        return dict(arm.parameters), {self._metric: (mean, variance)}, number, arm.name

    def predict(
        self, points: Sequence[Parameters]
    ) -> list[dict[str, tuple[float, float]]]:
        """Return what the bandit knows of arms, given all results.

        In the place of ``client.predict``, and in its form.

        Args:
            points: Ax's parameters of arms.

        Returns:
            For each, posterior mean and standard deviation of the objective.

        Raises:
            InputDataError: If no arm has these parameters.
            UnsupportedError: As :meth:`update`.
        """
        bandit = self.update()
        mean, variance = bandit.predict([self.arms.index(point) for point in points])
        metric = self._metric
        moments = zip(mean.tolist(), variance.sqrt().tolist(), strict=True)
        return [{metric: pair} for pair in moments]

    @override
    def update_generator_state(self, experiment: Experiment, data: Data) -> None:
        """Tell the bandit what is new, and make its pending pulls the experiment's."""
        self._check_experiment(experiment)
        if self._bandit is None:
            self._start(experiment)
        trials = experiment.trials
        results = self._new_results(data, trials)
        for number in results.keys() & self._told.keys():
            self._withdraw(trials[number])
        arms = self._arms_in_flight(trials)
        self._reconcile(arms, trials)
        for number in sorted(results.keys() & arms.keys()):
            self._tell(trials[number], arms[number], results[number])

    @override
    def _gen(self, experiment: Experiment, *args: Any, **options: Any) -> GeneratorRun:
        """Generate one trial, whose record says which pull of the bandit it is."""
        if options.get("n") not in (None, 1):
            raise UnsupportedError(
                f"Expected trials of one arm, but got n={options['n']}. Ax merges "
                "repeats within a batch: ask for several trials instead."
            )
        features = options.get("fixed_features")
        fixed = {} if features is None else features.parameters
        constraints = experiment.search_space.parameter_constraints
        self._available = None
        if fixed or constraints:
            self._available = allowed_arms(
                self.arms, len(self.bandit.arms), fixed, constraints
            )
        run = super()._gen(experiment, *args, **options)
        run._gen_metadata = {_PULL: [self.name, max(self.bandit.pending)]}
        if self.bandit.num_pulls:
            # What `client.get_best_parameterization` returns.
            number, mean, variance = self._best_trial(experiment)
            moments = {self._metric: mean}, {self._metric: {self._metric: variance}}
            run._best_arm_predictions = (experiment.trials[number].arms[0], moments)
        return run

    @override
    def get_next_candidate(
        self, pending_parameters: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the parameters of the arm that the bandit asks for."""
        bandit = self.bandit
        if self.time_unit is None:
            (index,) = bandit.ask(1, available=self._available).tolist()
            return self.arms.parameters(index)
        # Clocks go back an hour in autumn.
        time = max(self._time_of(datetime.now()), bandit.decision_time - 1.0)
        (index,) = bandit.ask(1, available=self._available, time=time).tolist()
        return self.arms.parameters(index)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the bandit's state as plain JSON; None before the first choice."""
        if self._bandit is None:
            return self._state
        return {
            "told": [[number, *told] for number, told in sorted(self._told.items())],
            "pulls": sorted(self._pulls.items()),
            "origin": self._origin,
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
        """Decode the arguments that Ax stored."""
        return {
            key: object_from_json(value, decoder_registry, class_decoder_registry)
            for key, value in args.items()
        }

    def _start(self, experiment: Experiment) -> None:
        space = experiment.search_space
        check_search_space(space)
        arms = self.arms.load(space)
        objective = check_objective(experiment)
        bandit = _FACTORIES[self.factory](
            arms=arms,
            maximize=not objective.minimize,
            generator=torch.Generator().manual_seed(self.seed),
        )
        if self.time_unit is not None and not bandit.drifts:
            raise InputDataError(
                "Expected a bandit on an objective that drifts for `time_unit`, but "
                f"{self.factory!r} makes a {type(bandit).__name__}. Leave it out."
            )
        if self._state is not None:
            bandit.load_state_dict(from_json(self._state["bandit"]))
            for number, pull, result in self._state["told"]:
                self._told[number] = (pull, result)
            self._pulls = dict(self._state["pulls"])
        self._origin = _origin_of(experiment)
        self._metric = objective.metric_names[0]
        self._created = experiment.time_created
        self._bandit = bandit

    def _check_experiment(self, experiment: Experiment) -> None:
        """Raise unless this is the experiment as the bandit knows it."""
        known = self._origin or (self._state or {}).get("origin", {})
        for what, value in _origin_of(experiment).items():
            if not _is_same(known.get(what, value), value):
                raise UnsupportedError(
                    f"Expected the {what} that the bandit began with, {known[what]}, "
                    f"but got {value}. Make a new BanditNode for another one: it takes "
                    "in all trials."
                )

    def _new_results(
        self, data: Data, trials: Mapping[int, BaseTrial]
    ) -> dict[int, float]:
        """Return the finite results of completed trials that are new, or changed."""
        # Not `data.df`, which sums up the steps of all trials at every call.
        table = data.full_df
        if table.empty:
            return {}
        rows = table[table["metric_name"] == self._metric]
        rows = rows.dropna(subset="mean")
        if "step" in rows:
            rows = rows.sort_values("step", kind="stable")  # the last one counts
        columns = (rows[name].tolist() for name in ("trial_index", "mean", "sem"))
        last = {number: result for number, *result in zip(*columns, strict=True)}
        new = (trials.keys() - self._told.keys()) & last.keys()
        for number, (_, told) in self._told.items():
            mean, _ = last.get(number, (told, None))
            if mean != told and not math.isclose(mean, told, **_STORED_PRECISION):
                new.add(number)
        results = {}
        for number in sorted(new):
            mean, sem = last[number]
            status = trials[number].status
            if status.is_early_stopped:
                self._warn(
                    number,
                    f"was stopped early: {mean:g} is no result, and the bandit goes on "
                    "without it. Complete a trial whose result counts",
                )
            if not status.is_completed:
                continue
            if sem == sem:  # not NaN
                raise UnsupportedError(
                    "Expected results without a standard error, since the bandit has "
                    f"one variance of noise for all, but trial {number} has "
                    f"({mean:g}, {sem:g}). Attach it again without: "
                    f"`client.attach_data({number}, "
                    f"{{{self._origin['objective']!r}: {mean!r}}})`."
                )
            try:
                check_rewards([mean], 1, self.bandit.arms.dtype)
            except InputDataError as error:
                self._warn(
                    number,
                    "counts as pending until a result is attached that is usable. "
                    f"{error}",
                )
            else:
                results[number] = mean
        return results

    def _withdraw(self, trial: BaseTrial) -> None:
        """Take back what was told of a trial, which is open again."""
        pull, _ = self._told.pop(trial.index)
        self.bandit.withdraw([self._arm_of(trial)], [pull])
        self._pulls[trial.index] = pull

    def _arms_in_flight(self, trials: Mapping[int, BaseTrial]) -> dict[int, int]:
        """Return the arms of open trials that are pending, or have results."""
        arms = {}
        for number in sorted(trials.keys() - self._told.keys()):
            trial = trials[number]
            if trial.status in LIVE or trial.status.is_completed:
                try:
                    arms[number] = self._arm_of(trial)
                except InputDataError as error:
                    self._warn(number, f"is none of the arms, and left out. {error}")
        return arms

    def _reconcile(
        self, arms: Mapping[int, int], trials: Mapping[int, BaseTrial]
    ) -> None:
        """Give every trial in flight its pull, and fail the pulls of all others."""
        free = self.bandit.pending
        pulls = {}

        def take(number: int, pull: int | None) -> None:
            if pull is not None and free.get(pull) == arms[number]:
                del free[pull]
                pulls[number] = pull

        for number in arms:
            take(number, self._pulls.get(number, self._asked_for(trials[number])))
        for number in sorted(arms.keys() - pulls.keys()):
            self.bandit.add_pending([arms[number]])
            pulls[number] = max(self.bandit.pending)
        self.bandit.fail(list(free.values()), pull_ids=list(free))
        self._pulls = pulls
        self._retire_abandoned(trials)

    def _retire_abandoned(self, trials: Mapping[int, BaseTrial]) -> None:
        """Retire the arms of trials that were abandoned since the last update."""
        for number in sorted(trials.keys() - self._abandoned):
            if trials[number].status.is_abandoned:
                self._abandoned.add(number)
                with suppress(InputDataError):  # it is none of the arms
                    self.bandit.retire_arms([self._arm_of(trials[number])])

    def _asked_for(self, trial: BaseTrial) -> int | None:
        """Return the pull of a trial that this node has generated."""
        for run in trial.generator_runs:
            name, pull = (run.gen_metadata or {}).get(_PULL, (None, None))
            if name == self.name:
                return pull
        return None

    def _tell(self, trial: BaseTrial, arm: int, result: float) -> None:
        pull = self._pulls[trial.index]
        options: dict[str, Any] = {}
        if self.time_unit is not None:
            options["time"] = self._time_of_result(trial)
        self.bandit.tell([arm], [result], pull_ids=[pull], **options)
        del self._pulls[trial.index]
        self._told[trial.index] = (pull, result)

    def _time_of_result(self, trial: BaseTrial) -> float:
        stamp = trial.run_metadata.get("time", trial.time_completed)
        try:
            if isinstance(stamp, str):
                stamp = datetime.fromisoformat(stamp)
            return self._time_of(stamp)
        except (TypeError, ValueError) as error:
            raise InputDataError(
                f"Expected `run_metadata['time']` of trial {trial.index} to be a "
                f"datetime without time zone, or its ISO text, but got {stamp!r}."
            ) from error

    def _time_of(self, stamp: Any) -> float:
        """Return the bandit's time of a time stamp."""
        return (stamp - self._created).total_seconds() / (self.time_unit or 1.0)

    def _arm_of(self, trial: BaseTrial) -> int:
        """Return the arm of a trial, which has one unless it is a batch trial."""
        if len(trial.arms) != 1:
            raise UnsupportedError(
                f"Expected trials of one arm, but trial {trial.index} has "
                f"{len(trial.arms)}. Ax merges repeats within a batch: ask for several "
                "trials instead."
            )
        return self.arms.index(trial.arms[0].parameters)

    def _best_trial(self, experiment: Experiment) -> tuple[int, float, float]:
        """Return the last trial of the best arm, and its mean and variance."""
        index = self.bandit.best_arm()
        mean, variance = self.bandit.predict([index])
        trials = experiment.trials
        number = max(n for n in self._told if self._arm_of(trials[n]) == index)
        return number, mean.item(), variance.item()

    def _warn(self, number: int, message: str) -> None:
        """Warn of a trial, once."""
        if number not in self._warned:
            self._warned.add(number)
            warnings.warn(f"Trial {number} {message}", InputDataWarning, stacklevel=4)


def find_bandit_node(client: Client, name: str | None = None) -> BanditNode:
    """Return the node that drives a client's experiment, such as one just loaded.

    Args:
        client: A client with a generation strategy.
        name: The name of the node; None if there is one only.

    Raises:
        InputDataError: If there is no such node, or no one.

    Example:
        >>> client = Client.load_from_json_file("experiment.json")
        >>> best, *_ = find_bandit_node(client).best_parameterization()
    """
    strategy = client._maybe_generation_strategy
    nodes = [] if strategy is None else strategy._nodes
    found = [node for node in nodes if isinstance(node, BanditNode)]
    if name is not None:
        found = [node for node in found if node.name == name]
    if len(found) != 1:
        wanted = "one BanditNode" if name is None else f"a BanditNode {name!r}"
        raise InputDataError(
            f"Expected {wanted} in the client's generation strategy, but its nodes are "
            f"{[node.name for node in nodes]}."
        )
    return found[0]


def _origin_of(experiment: Experiment) -> dict[str, str]:
    """Return what tells an experiment from others and must not change."""
    created = experiment.time_created.isoformat(timespec="microseconds")
    objective = check_objective(experiment)
    sign = "-" if objective.minimize else ""
    return {
        "experiment": f"{experiment._name!r} of {created}",
        "objective": f"{sign}{objective.metric_names[0]}",
        "parameters": str(list(experiment.search_space.parameters.values())),
    }


def _is_same(known: str, found: str) -> bool:
    """Whether these are of one experiment; databases keep no fractions of a second."""
    known_second, _, known_fraction = known.rpartition(".")
    second, _, fraction = found.rpartition(".")
    from_database = "000000" in (known_fraction, fraction)
    return known == found or (from_database and known_second == second)
