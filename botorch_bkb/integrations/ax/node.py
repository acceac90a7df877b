"""The generation node of Ax in which a bandit chooses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import torch
from ax.adapter.base import Adapter
from ax.adapter.data_utils import ExperimentData
from ax.api.client import Client
from ax.core.base_trial import BaseTrial
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationData
from ax.core.trial_status import TrialStatus
from ax.exceptions.analysis import AnalysisNotApplicableStateError
from ax.generation_strategy.external_generation_node import ExternalGenerationNode
from ax.generation_strategy.transition_criterion import TransitionCriterion
from ax.generators.torch_base import TorchGenerator
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import TableArms
from botorch_bkb.bandits import (
    FiniteArmBandit,
    GPBandit,
    Maximize,
    Minimize,
    OutcomesBandit,
    Recommendation,
)
from botorch_bkb.bandits.roles import objectives_of
from botorch_bkb.bandits.storage import from_json, to_json
from botorch_bkb.checks import check_positive, is_integer
from botorch_bkb.integrations.ax.arms import (
    ArmSource,
    check_search_space,
    outcome_roles,
    Parameters,
    without_words,
)


BanditFactory = Callable[..., FiniteArmBandit]
_FACTORIES: dict[str, BanditFactory] = {"GPBandit": GPBandit}
_TAKE_WORDS = {"GPBandit"}
Result = tuple[float, float]  # mean and standard error, 0 if that is not known
_LIVE = (TrialStatus.CANDIDATE, TrialStatus.STAGED, TrialStatus.RUNNING)


def register_bandit(
    factory: BanditFactory, name: str | None = None, takes_words: bool = False
) -> BanditFactory:
    """Register a factory of bandits by name, and return it; also a decorator.

    Args:
        factory: Takes ``arms``, ``maximize`` and ``generator``, and returns a bandit
            that was constructed with them.
        name: The name by which nodes refer to it, the function's name if None. A known
            name gets the new factory.
        takes_words: Whether its ``arms`` may be :class:`~botorch_bkb.arms.TableArms`,
            of which :class:`~botorch_bkb.GPBandit` learns a kernel. If not, each word
            has a 0/1 column.

    Example:
        >>> @register_bandit
        ... def my_bandit(arms, maximize, generator):
        ...     kernel = RBFKernel()
        ...     return BBKB(
        ...         arms, kernel, 0.1, maximize=maximize, generator=generator
        ...     )
    """
    name = factory.__name__ if name is None else name
    _FACTORIES[name] = factory
    (_TAKE_WORDS.add if takes_words else _TAKE_WORDS.discard)(name)
    return factory


class BanditAdapter(Adapter):
    """The results and the bandit's predictions, for the analyses of Ax."""

    node: Any = None

    def __init__(self, node: BanditNode, experiment: Experiment) -> None:
        config = experiment.optimization_config
        metrics = config.metric_names if config else None
        super().__init__(
            experiment=experiment,
            generator=TorchGenerator(),  # does nothing, but says that there is a model
            data=experiment.lookup_data().filter(metric_names=metrics),
            expand_model_space=False,
        )
        self.node = node

    @override
    def get_training_data(self, filter_in_design: bool = False) -> ExperimentData:
        data = super().get_training_data(filter_in_design)
        if self.node and filter_in_design:  # for cross-validation
            number = data.arm_data.index.unique("arm_name").size
            if number < 2 or self.node.update().drifts:
                raise AnalysisNotApplicableStateError(
                    "Cross-validation needs results of two or more arms (there are "
                    f"{number}), and an objective that does not drift."
                )
        return data

    @override
    def _predict(
        self, observation_features: Any, *_: Any, left_out: bool = False, **__: Any
    ) -> list[ObservationData]:
        """Return means and variances, NaN for points that are not arms."""
        self.node.update()
        bandits, arms = self.node._bandits, {}
        for place, point in enumerate(observation_features):
            with suppress(InputDataError):
                arms[place] = self.node.arms.index(point.parameters)
        found = np.full((len(observation_features), 2, len(bandits)), math.nan)
        for column, bandit in enumerate(bandits.values()):
            rows = bandit._rows(list(arms.values()))
            known, inverse = rows.unique(return_inverse=True)
            moments = bandit.predict(known)
            if left_out:
                moments = bandit._unscaled(*bandit._present()[1].left_out(known))
            found[list(arms), :, column] = torch.stack(moments, dim=-1)[inverse].cpu()
        return [ObservationData([*bandits], m, np.diag(v)) for m, v in found]

    @override
    def _cross_validate(  # type: ignore[override] # Ax names all arguments
        self, cv_test_points: Any, **_: Any
    ) -> list[ObservationData]:
        return self._predict(cv_test_points, left_out=True)


class BanditNode(ExternalGenerationNode):
    """A generation node in which a bandit chooses.

    Before every choice, the bandit receives new results, and its pending pulls become
    those of the experiment: trials that are candidates, staged or running, or completed
    without a result. Failed, abandoned and early stopped trials are released, without
    their results. A ``GPBandit`` does not repeat a failed arm at
    once, and retires it after a second failure. The arm of an abandoned trial is
    retired. Trials of other nodes, or attached by hand, count like its own. A new
    result of a trial replaces the one before. A standard error that is not 0 is the
    known noise of a result; a ``GPBandit`` without drift and an ``OutcomesBandit`` take
    it. :meth:`update` does all this at any time.

    With several objectives or with outcome constraints, the bandit is an
    :class:`~botorch_bkb.OutcomesBandit` of the metrics in alphabetical order. Objective
    thresholds are its reference point. Metrics that a trial lacks stay pending.

    Every trial is one ask of one arm. With the same rewards in the same order, the arms
    are those of the bandit outside Ax, asked by ``ask(1)``. The objective says whether
    to maximize. Fixed parameters and parameter constraints determine which arms are
    available; the page "Ax" lists what is supported. Everything else is an error at the
    first choice.

    A trial that is not an arm, a trial of several arms, and a result that is not finite
    give one warning each, and the bandit continues without them.

    Args:
        arms: An :class:`~botorch_bkb.integrations.ax.ArmFile` or a
            :class:`~botorch_bkb.integrations.ax.ChoiceGrid`.
        factory: The name of the bandit in :func:`register_bandit`. By default a
            :class:`~botorch_bkb.GPBandit`, which learns kernel and noise. Others have
            one objective without constraints.
        seed: The seed of the bandit's own stream; Ax resets the global one.
        name: The node's name.
        transition_criteria: As in Ax.
        state: The stored state; None at the start.
        time_unit: The unit of time in seconds, for bandits on objectives that drift. A
            choice has the present time. A result has the time at which Ax completed its
            trial, or the ``datetime`` (or its ISO text) in
            ``trial.run_metadata["time"]``; time 0 is the creation of the experiment.
            None: each trial is one unit later than the one before, and its result has
            the time of its choice.

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
        """Take the arguments that the class describes."""
        super().__init__(
            name=name,
            should_deduplicate=False,  # repeats are what bandits are about
            transition_criteria=transition_criteria,
        )
        if not isinstance(arms, ArmSource):
            raise InputDataError(
                "Expected `arms` to be an ArmFile or a `ChoiceGrid()`, but got a "
                f"{type(arms).__name__}. Write a table to a file, "
                '`pandas.DataFrame(arms).to_csv("arms.csv", index=False)`, and use '
                '`BanditNode(ArmFile("arms.csv"))`; `id=` is its column of names.'
            )
        if not isinstance(factory, str) or factory not in _FACTORIES:
            raise InputDataError(
                f"Expected `factory` to be a registered name, but {factory!r} is not "
                f"among {sorted(_FACTORIES)}. Call `register_bandit` first, in this "
                "process, and give its `name`."
            )
        if not is_integer(seed):
            raise InputDataError(f"Expected `seed` to be an integer, but got {seed!r}.")
        if time_unit is not None:
            check_positive("time_unit", time_unit, "It is a number of seconds.")
        self.factory = factory
        self.arms = arms
        self.seed = seed
        self.time_unit = time_unit
        self._state = state
        self._bandit: FiniteArmBandit | OutcomesBandit | None = None
        self._bandits: dict[str, FiniteArmBandit] = {}  # by metric
        self._pulls: dict[int, int] = {}  # by trial, pending or with a result
        self._told: dict[tuple[int, str], Result] = {}  # by trial and metric
        self._warned: set[int] = set()
        self._origin: dict[str, str] = {}
        self._available: Tensor | None = None
        if state is not None:
            self._pulls = dict(state["pulls"])
            self._origin = state["origin"]
            metric = self._origin["objective"].removeprefix("-")  # files of version 1.0
            for key, result in state["told"]:
                key = (key, metric) if is_integer(key) else tuple(key)
                self._told[key] = tuple(result)

    @property
    @override
    def _fitted_adapter(self) -> Any:
        experiment = getattr(self._generation_strategy, "_experiment", None)
        return None if experiment is None else BanditAdapter(self, experiment)

    @property
    def bandit(self) -> FiniteArmBandit | OutcomesBandit:
        """The bandit after the last choice; :meth:`update` adds later results.

        Raises:
            UnsupportedError: If there was no choice yet.
        """
        if self._bandit is None:
            raise UnsupportedError(
                "Expected a trial before `bandit` is used: the experiment defines its "
                "arms and its objective. Ask for a trial, or call `update`."
            )
        return self._bandit

    def update(self) -> FiniteArmBandit | OutcomesBandit:
        """Pass all new results to the bandit, as every choice does, and return it.

        Raises:
            UnsupportedError: If the node is not part of a client's strategy, or as the
                next choice would.
        """
        experiment = getattr(self._generation_strategy, "_experiment", None)
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
        """Return the measured arm with the best posterior mean, given all results.

        It replaces ``client.get_best_parameterization``, and returns the same: the
        parameters of the arm, posterior mean and variance of each metric, the last
        trial of that arm with a result, and the name of the arm. Without a result, or
        with several objectives, it raises an ``UnsupportedError``.
        """
        self.update()
        if {metric for _, metric in self._told} != self._bandits.keys():
            raise UnsupportedError(
                "Expected a completed trial with a result of each metric before the "
                "best arm is requested, but there is none. Complete a trial first."
            )
        number, moments = self._best_trial(self.experiment)
        (arm,) = self.experiment.trials[number].arms
        return arm.parameters, moments, number, arm.name

    def predict(
        self, points: Sequence[Parameters]
    ) -> list[dict[str, tuple[float, float]]]:
        """Return posterior mean and standard deviation of arms, given all results.

        ``client.predict`` returns the same. ``points`` are Ax's parameters of arms;
        others raise an ``InputDataError``.
        """
        self.update()
        found = self._moments([self.arms.index(point) for point in points])
        return [
            {metric: (mean, variance**0.5) for metric, (mean, variance) in each.items()}
            for each in found
        ]

    def _moments(self, arms: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        """Return each metric's posterior means and variances."""
        found = []
        for bandit in self._bandits.values():
            moments = (each.tolist() for each in bandit.predict(arms))
            found.append(zip(*moments, strict=True))
        points = zip(*found, strict=True)
        return [dict(zip(self._bandits, pairs, strict=True)) for pairs in points]

    @override
    def update_generator_state(self, experiment: Experiment, data: Data) -> None:
        """Pass new results to the bandit, and synchronize its pending pulls."""
        origin = self._origin_of(experiment)
        if self._bandit is None:
            self._start(experiment)
            self._origin = origin
        trials = experiment.trials
        results = self._new_results(data, trials)
        for number, metric in sorted(results.keys() & self._told.keys()):
            del self._told[number, metric]
            arm = self._arm_of(trials[number])
            self._bandits[metric].withdraw([arm], [self._pulls[number]])
        arms: dict[int, int] = {}  # of open trials that are pending, or have results
        for number in sorted(trials):
            if all((number, metric) in self._told for metric in self._bandits):
                continue
            status = trials[number].status
            if status in _LIVE or status.is_completed or status.is_abandoned:
                try:
                    arms[number] = self._arm_of(trials[number])
                except InputDataError as error:
                    self._warn(number, f"is not one of the arms, and not used. {error}")
        gone = {n for n in arms if trials[n].status.is_abandoned}
        self.bandit.retire_arms(sorted({arms.pop(number) for number in gone}))
        self._reconcile(arms)
        for (number, metric), result in sorted(results.items()):
            if number in arms:
                self._tell(trials[number], arms[number], metric, result)

    @override
    def _gen(self, experiment: Experiment, *args: Any, **options: Any) -> GeneratorRun:
        """Generate one trial, with the best arm so far."""
        if options.get("n") not in (None, 1):
            raise UnsupportedError(
                f"Expected trials of one arm, but got n={options['n']}. Ax merges "
                "repeats within a batch: ask for several trials instead."
            )
        features = options.get("fixed_features")
        fixed = {} if features is None else features.parameters
        constraints = experiment.search_space.parameter_constraints
        self._available = self.arms.allowed(fixed, constraints)
        run = super()._gen(experiment, *args, **options)
        run._fit_time = float(run._fit_time or 0.0)  # Ax's 0 is no float in a database
        has_results = all(bandit.num_pulls for bandit in self._bandits.values())
        if has_results and not experiment.is_moo_problem:
            # For `client.get_best_parameterization`.
            number, moments = self._best_trial(experiment)
            means = {metric: mean for metric, (mean, _) in moments.items()}
            variances = {name: {name: each} for name, (_, each) in moments.items()}
            arm = experiment.trials[number].arms[0]
            run._best_arm_predictions = (arm, (means, variances))
        return run

    @override
    def get_next_candidate(
        self, pending_parameters: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the parameters of the arm that the bandit asks for."""
        options: dict[str, Any] = {}
        if self.time_unit is not None:
            # Clocks may go back an hour.
            last = max(each.decision_time for each in self._bandits.values()) - 1.0
            options["time"] = max(self._time_of(datetime.now()), last)
        indices = self.bandit.ask(1, available=self._available, **options)
        return self.arms.parameters(int(indices))

    def state_dict(self) -> dict[str, Any] | None:
        """Return the bandit's state as plain JSON; None before the first choice."""
        if self._bandit is None:
            return self._state
        return {
            "told": list(self._told.items()),
            "pulls": list(self._pulls.items()),
            "origin": self._origin,
            "bandit": to_json(self.bandit.state_dict()),
        }

    def _origin_of(self, experiment: Experiment) -> dict[str, str]:
        """Return the parts that must not change; raise an error if they did."""
        # Databases keep no fractions of a second.
        created = experiment.time_created.isoformat(timespec="seconds")
        roles, thresholds = outcome_roles(experiment)
        signs: dict[Any, str] = {Maximize(): "", Minimize(): "-"}
        goals = [
            f"{signs.get(role, f'{role} for ')}{name}"
            for name, own in roles.items()
            for role in own
        ]
        if thresholds:
            goals.append(f"thresholds {thresholds}")
        found = {
            "experiment": f"{experiment._name!r} of {created}",
            "objective": ", ".join(goals),
            "parameters": str(list(experiment.search_space.parameters.values())),
        }
        if not {number for number, _ in self._told} <= experiment.trials.keys():
            found["experiment"] += " without its trials"
        for what, known in self._origin.items():
            if known != found[what]:
                raise UnsupportedError(
                    f"Expected the {what} of the first choice, {known}, but got "
                    f"{found[what]}. Make a new BanditNode for another one; it uses "
                    "all trials."
                )
        return found

    def _start(self, experiment: Experiment) -> None:
        check_search_space(experiment.search_space)
        roles, thresholds = outcome_roles(experiment)
        factory: Any = _FACTORIES[self.factory]
        are_several = sum(map(len, roles.values())) > 1
        if are_several and factory is not GPBandit:
            raise UnsupportedError(
                f"Expected one objective for the bandits of {self.factory!r}, but got "
                f"{roles}. Leave out `factory`, so that an OutcomesBandit chooses, or "
                "configure one objective without `outcome_constraints`."
            )
        state = None if self._state is None else from_json(self._state["bandit"])
        arms = self.arms.load(experiment.search_space)
        if isinstance(arms, TableArms) and (
            self.factory not in _TAKE_WORDS
            # Experiments of version 1.0, which saved no words, go on with 0/1 columns.
            or (state and not are_several and not state["table"].get("words"))
        ):
            arms = without_words(arms)
        metric, (role, *_) = next(iter(roles.items()))
        options: dict[str, Any] = {"maximize": role == Maximize()}
        if are_several:
            factory = OutcomesBandit
            options = {"outcomes": roles, "reference_point": thresholds}
        generator = torch.Generator().manual_seed(self.seed)
        bandit = factory(arms=arms, generator=generator, **options)
        if self.time_unit is not None and not bandit.drifts:
            raise InputDataError(
                "Expected a bandit on an objective that drifts for `time_unit`, but "
                f"{self.factory!r} makes a {type(bandit).__name__}. Leave out "
                "`time_unit`."
            )
        if state is not None:
            bandit.load_state_dict(state)
        self._bandit = bandit
        self._bandits = bandit.outcomes if are_several else {metric: bandit}

    def _new_results(
        self, data: Data, trials: Mapping[int, BaseTrial]
    ) -> dict[tuple[int, str], Result]:
        """Return the finite results of completed trials that are new, or changed."""
        # Not `data.df`, which sums up the steps of all trials at every call.
        rows = data.full_df
        rows = rows[rows["metric_name"].isin([*self._bandits])].dropna(subset="mean")
        if "step" in rows:
            rows = rows.sort_values("step", kind="stable")  # the last one counts
        names = ["trial_index", "metric_name", "mean", "sem"]
        last = rows.drop_duplicates(names[:2], keep="last").sort_values("trial_index")
        results: dict[tuple[int, str], Result] = {}
        columns = (last[name].tolist() for name in names)
        for number, metric, mean, sem in zip(*columns, strict=True):
            status, bandit = trials[number].status, self._bandits[metric]
            result = (mean, 0.0 if math.isnan(sem) else sem)
            told = self._told.get((number, metric), (math.nan, math.nan))
            pairs = zip(result, told, strict=True)
            if all(math.isclose(*pair, rel_tol=1e-9, abs_tol=1e-10) for pair in pairs):
                continue  # Ax stores ten decimals
            if status.is_early_stopped:
                self._warn(
                    number,
                    f"was stopped early: its value {mean:g} is not used. Complete a "
                    "trial if its result counts",
                )
            if status.is_completed and result[1] and not bandit.takes_noise:
                with suppress(InputDataError):  # if the trial is not used
                    self._arm_of(trials[number])
                    raise UnsupportedError(
                        "Expected results without a standard error, since all results "
                        f"of this {type(bandit).__name__} have the same noise "
                        f"variance, but trial {number} has ({mean:g}, {sem:g}). Attach "
                        "it again without: "
                        f"`client.attach_data({number}, {{{metric!r}: {mean!r}}})`."
                    )
            if status.is_completed:
                results[number, metric] = result
        return results

    def _reconcile(self, arms: Mapping[int, int]) -> None:
        """Give every pending trial its pull, and fail all other pending pulls."""
        free = self.bandit.pending
        pulls = {number: self._pulls[number] for number, _ in self._told}
        new = free.keys() - self._pulls.values()
        for number, arm in arms.items():
            pull = self._pulls.get(number, -1)
            if free.get(pull) != arm:
                # The first trial of an arm gets its first pull.
                asked = [pull for pull in new & free.keys() if free[pull] == arm]
                if not asked:
                    self.bandit.add_pending([arm])
                pull = min(asked or [max(self.bandit.pending)])
            free.pop(pull, None)
            pulls[number] = pull
        self.bandit.fail(list(free.values()), pull_ids=list(free))
        self._pulls = pulls

    def _tell(self, trial: BaseTrial, arm: int, metric: str, result: Result) -> None:
        mean, sem = result
        # A negative one stays negative, which the bandit refuses.
        options: dict[str, Any] = {"noise_variance": sem * abs(sem)} if sem else {}
        if self.time_unit is not None:
            stamp = trial.run_metadata.get("time", trial.time_completed)
            try:
                options["time"] = self._time_of(datetime.fromisoformat(str(stamp)))
            except (TypeError, ValueError) as error:
                raise InputDataError(
                    f"Expected `run_metadata['time']` of trial {trial.index} to be a "
                    f"datetime without time zone, or its ISO text, but got {stamp!r}."
                ) from error
        pull = self._pulls[trial.index]
        try:
            self._bandits[metric].tell([arm], [mean], pull_ids=[pull], **options)
        except InputDataError as error:
            self._warn(
                trial.index, f"stays pending until a usable result is attached. {error}"
            )
        else:
            self._told[trial.index, metric] = result

    def _time_of(self, stamp: datetime) -> float:
        """Return the bandit's time of a time stamp."""
        seconds = (stamp - self.experiment.time_created).total_seconds()
        return seconds / (self.time_unit or 1.0)

    def _arm_of(self, trial: BaseTrial) -> int:
        """Return the arm of a trial, which has one unless it is a batch trial."""
        if len(trial.arms) != 1:
            raise InputDataError(
                f"Expected trials of one arm, but trial {trial.index} has "
                f"{len(trial.arms)}. Ax merges repeats within a batch: ask for several "
                "trials instead."
            )
        return self.arms.index(trial.arms[0].parameters)

    def _best_trial(
        self, experiment: Experiment
    ) -> tuple[int, dict[str, tuple[float, float]]]:
        """Return the last trial of the best arm, and means and variances of metrics."""
        best = self.bandit.best_arm()
        index = best.arm if isinstance(best, Recommendation) else best
        trials = experiment.trials
        last = {self._arm_of(trials[n]): n for n, _ in sorted(self._told)}
        if index not in last:  # all measured arms are retired
            goal = self.bandit
            if isinstance(goal, OutcomesBandit):
                goal = goal.outcomes[objectives_of(goal.roles)[0][0]]
            means = goal.predict([*last])[0] * (1 if goal.maximize else -1)
            index = [*last][int(means.argmax())]
        return last[index], self._moments([index])[0]

    def _warn(self, number: int, message: str) -> None:
        """Warn of a trial, once."""
        if number not in self._warned:
            self._warned.add(number)
            warnings.warn(f"Trial {number} {message}", InputDataWarning, stacklevel=4)


def find_bandit_node(client: Client, name: str | None = None) -> BanditNode:
    """Return the node of a client's strategy, such as that of a loaded experiment.

    Args:
        client: A client with a generation strategy.
        name: The name of the node; None if there is only one.

    Raises:
        InputDataError: If there is no such node, or more than one.

    Example:
        >>> client = Client.load_from_json_file("experiment.json")
        >>> best, *_ = find_bandit_node(client).best_parameterization()
    """
    strategy = client._maybe_generation_strategy
    nodes = [] if strategy is None else strategy._nodes
    bandits = [node for node in nodes if isinstance(node, BanditNode)]
    found = [node for node in bandits if name in (None, node.name)]
    if len(found) != 1:
        raise InputDataError(
            f"Expected one BanditNode{'' if name is None else f' {name!r}'} in the "
            f"client's strategy, but its nodes are {[node.name for node in nodes]}."
        )
    return found[0]
