"""Files that version 1.0.0 wrote are loaded, and campaigns go on."""

import json

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning

from tests.saved_files import answers, MAKERS, rewards_of, trained_model, VERSION_1_0_0


ANSWERS = json.loads((VERSION_1_0_0 / "answers.json").read_text())


@pytest.mark.parametrize("name", MAKERS)
def test_files_of_bandits_load_and_campaigns_go_on(name, tmp_path):
    bandit = MAKERS[name]()
    bandit.load(VERSION_1_0_0 / f"{name}.bkb")
    found, expected = answers(bandit), ANSWERS[name]
    assert found["pending"] == expected["pending"]
    assert expected["pending"]
    # Intervals of 1.0 ended at the worst result where poor ones are warped.
    is_warped = getattr(bandit, "warp", None) is not None
    for key in ["mean"] if is_warped else ["mean", "std"]:
        ours, theirs = map(torch.tensor, (found[key], expected[key]))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    picks = bandit.ask(2) if name.startswith(("GPBandit", "Box")) else bandit.ask()
    bandit.tell(picks, rewards_of(bandit, picks))
    bandit.save(tmp_path / "state")
    again = MAKERS[name]()
    again.load(tmp_path / "state")
    assert again.pending.keys() == bandit.pending.keys()


@pytest.mark.filterwarnings("ignore")  # of Ax
@pytest.mark.parametrize("name", ["", "_learned"])
def test_an_experiment_of_ax_loads_and_goes_on(name, tmp_path):
    """With the picks of 1.0.0, also after it is saved again."""
    from botorch_bkb.integrations.ax import find_bandit_node
    from tests.integrations.ax_clients import Client, play, reload

    file = VERSION_1_0_0 / f"ax_experiment{name}.json"
    client = Client.load_from_json_file(str(file))
    trials = client._experiment.trials
    assert [trial.status.name for trial in trials.values()] == [
        *["COMPLETED"] * 5,
        "RUNNING",
    ]
    before = [trial.arm.parameters for trial in trials.values()]
    assert before[:2] == [{"T": 80.0, "solvent": "E"}, {"T": 20.0, "solvent": "A"}]
    chosen = play(client, 2)
    chosen += play(reload(client, tmp_path), 1)
    assert find_bandit_node(client).bandit.arms.shape == (25, 6)  # 0/1 columns
    if name:
        assert chosen == [{"T": T, "solvent": "C"} for T in (60.0, 40.0, 80.0)]


def test_the_state_dict_of_a_model_loads():
    state = torch.load(VERSION_1_0_0 / "model.pt", weights_only=True)
    model = trained_model()
    with torch.no_grad():
        expected = model.posterior(model.train_inputs[0]).mean
    with torch.no_grad():
        model.covar_module.raw_lengthscale.add_(1.0)
        model.likelihood.noise_covar.raw_noise.add_(1.0)
    with pytest.warns(InputDataWarning, match="has no inducing points"):
        model.load_state_dict(state)
    with torch.no_grad():
        found = model.posterior(model.train_inputs[0]).mean
    torch.testing.assert_close(found, expected)
