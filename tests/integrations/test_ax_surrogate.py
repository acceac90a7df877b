"""The sparse model as the surrogate of Ax's own strategy: one line, as SingleTaskGP."""

import math
import random

import pytest
from ax.analysis.plotly.arm_effects import ArmEffectsPlot
from ax.analysis.plotly.cross_validation import CrossValidationPlot
from ax.analysis.plotly.sensitivity import SensitivityAnalysisPlot
from ax.analysis.plotly.surface.slice import SlicePlot
from ax.api.configs import RangeParameterConfig
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.models import SingleTaskGP

from botorch_bkb.models import SingleTaskDTCGP
from tests.integrations.ax_clients import choices, new_client, OF_AX, reload


pytestmark = OF_AX


def client_of(model_class, goal="y", **options):
    """Return a client with nine results of a mixed space; objective > constraint."""
    config = ModelConfig(botorch_model_class=model_class, **options)
    struct = GenerationStrategyDispatchStruct(method="custom", initialization_budget=1)
    strategy = choose_generation_strategy(struct, model_config=config)
    parameters = [
        RangeParameterConfig(name="x", bounds=(0.0, 1.0), parameter_type="float"),
        RangeParameterConfig(name="n", bounds=(1, 9), parameter_type="int"),
        choices("solvent", ["A", "B", "C"], "str", is_ordered=False),
    ]
    objective, *constraints = goal.split(" > ")
    more = {"outcome_constraints": constraints}
    client = new_client(strategy, parameters, objective, more)
    stream = random.Random(0)
    for _ in range(9):
        x, n, solvent = stream.random(), stream.randint(1, 9), stream.choice("ABC")
        y = math.sin(5 * x) + 0.1 * n + stream.gauss(0, 0.1)
        data = {"y": y, "cost": x + (solvent == "B")}
        number = client.attach_trial({"x": x, "n": n, "solvent": solvent})
        used = {name: data[name] for name in data if name in goal}
        client.complete_trial(number, raw_data=used)
    return client


def analyse(client, *more):
    """Fit the model, and return what it predicts, and the kinds of the cards."""
    analyses = [ArmEffectsPlot("y", use_model_predictions=True), *more]
    cards = client.compute_analyses(analyses, display=False)
    points = [{"x": 0.3, "n": 4, "solvent": "B"}, {"x": 0.9, "n": 1, "solvent": "A"}]
    found = client.predict(points)
    return found, [type(card).__name__ for card in cards]


@pytest.mark.parametrize("goal", ["y", "y, -cost", "y > cost <= 1.0"])
def test_with_every_input_inducing_it_is_the_single_task_gp(goal):
    found, kinds = analyse(client_of(SingleTaskDTCGP, goal))
    assert kinds == ["PlotlyAnalysisCard"]
    expected, _ = analyse(client_of(SingleTaskGP))
    assert [len(one) for one in found] == [1 + ("cost" in goal)] * 2
    for one, other in zip(found, expected, strict=True):
        assert one["y"] == pytest.approx(other["y"], rel=1e-3)


def test_a_sparse_one_is_stored_and_analysed(tmp_path):
    options = {"model_options": {"inducing_points": 4}}
    client = client_of(SingleTaskDTCGP, **options)
    more = CrossValidationPlot(), SensitivityAnalysisPlot("y"), SlicePlot("x")
    _, kinds = analyse(client, *more)
    assert sorted(set(kinds)) == ["AnalysisCardGroup", "PlotlyAnalysisCard"]
    for each in (client, reload(client, tmp_path)):
        analyse(each)
        model = each._generation_strategy.adapter.generator.surrogate.model
        assert len(model.inducing_points) == 4
    assert client.get_next_trials(1)
