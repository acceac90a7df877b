import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from typing_extensions import override

from botorch_bkb.bandits import BBKB
from botorch_bkb.cli.simulate import best_arms, outcome_table, report, run_bandit
from botorch_bkb.test_functions import FiniteArmProblem


HORIZON = 20


class RecordingProblem(FiniteArmProblem):
    """Remembers which arms were pulled, round by round."""

    @override
    def sample(self, indices, generator=None):
        self.__dict__.setdefault("rounds", []).append(indices.tolist())
        return super().sample(indices, generator)


@pytest.fixture(scope="module", params=[True, False], ids=["maximize", "minimize"])
def finished_run(request):
    generator = torch.Generator().manual_seed(0)
    arms = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
    problem = RecordingProblem(
        arms, torch.sin(6 * arms).squeeze(-1), 0.1, maximize=request.param
    )
    kernel = RBFKernel()
    kernel.lengthscale = 0.2
    bandit = BBKB(arms, kernel, 0.01, maximize=problem.maximize, generator=generator)
    options = {"name": "one", "seed": 3, "generator": generator, "quiet": True}
    return bandit, problem, run_bandit(bandit, problem, HORIZON, **options)


def test_rounds_agree_with_the_problem(finished_run):
    bandit, problem, rounds = finished_run
    sizes = [len(pulled) for pulled in problem.rounds]
    assert rounds["batch_size"].tolist() == sizes
    assert rounds["num_pulls"].tolist() == pd.Series(sizes).cumsum().tolist()
    assert bandit.num_pulls == sum(sizes) == HORIZON
    means = problem.mean_rewards
    best = means.max() if problem.maximize else means.min()
    regrets = pd.Series([(best - means[i]).abs().sum().item() for i in problem.rounds])
    np.testing.assert_allclose(rounds["cumulative_regret"], regrets.cumsum())
    uniform = (best - means).abs().mean().item() * rounds["num_pulls"]
    np.testing.assert_allclose(rounds["uniform_cumulative_regret"], uniform)
    last = rounds.iloc[-1]
    found = problem.mean_rewards[bandit.best_arm()].item()
    assert last["simple_regret"] == pytest.approx(abs(problem.best_value - found))
    assert rounds["seconds"].is_monotonic_increasing


def test_rounds_count_distinct_arms_and_the_best_one_percent(finished_run):
    _, problem, rounds = finished_run
    seen, distinct, found = set(), [], []
    for pulled in problem.rounds:
        seen |= set(pulled)
        distinct.append(len(seen))
        found.append(int(problem.best_arm in seen))
    assert rounds["num_distinct"].tolist() == distinct
    assert rounds["num_best_found"].tolist() == found
    # An arm escapes every one of n uniform draws from 30 with (29 / 30)^n.
    expected = 1 - (29 / 30) ** rounds["num_pulls"]
    np.testing.assert_allclose(rounds["uniform_num_best_found"], expected)


def test_the_best_one_percent_is_rounded_up_and_keeps_ties():
    arms, rewards = torch.arange(101.0).unsqueeze(-1), torch.arange(101.0)
    best = best_arms(FiniteArmProblem(arms, rewards, 0.1))
    assert best.nonzero().squeeze(-1).tolist() == [99, 100]
    low = FiniteArmProblem(arms, rewards.clamp(min=3.0), 0.1, maximize=False)
    assert best_arms(low).nonzero().squeeze(-1).tolist() == [0, 1, 2, 3]


def test_the_outcome_is_of_means_over_repetitions(finished_run, tmp_path, capsys):
    _, problem, rounds = finished_run
    both = rounds.assign(bandit="both")
    other = both.assign(seed=4, cumulative_regret=rounds["cumulative_regret"] + 10)
    runs = pd.concat([rounds, both, other])
    text = outcome_table(runs, problem)
    head, one, two, uniform = (line.split() for line in text.splitlines())
    assert [row[0] for row in (one, two, uniform)] == ["one", "both", "uniform"]
    assert " ".join(head).startswith("simple regret best 1 % cumulative regret")
    assert float(two[3]) - float(one[3]) == pytest.approx(5, abs=0.11)
    last = rounds.iloc[-1]
    assert one[4:6] == [f"{last['num_distinct']:.1f}", f"{len(rounds):.1f}"]
    assert uniform[2:] == [
        f"{problem.uniform_simple_regret(HORIZON):.4g}",
        f"{last['uniform_num_best_found']:,.1f}",
        f"{problem.uniform_cumulative_regret(HORIZON):,.1f}",
    ]
    output = tmp_path / "new" / "folder"
    report(runs, problem, output, title="A run")
    pd.testing.assert_frame_equal(
        pd.read_csv(output / "rounds.csv"), runs.reset_index(drop=True)
    )
    assert (output / "regret.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"A run, repetitions 2\n\n{text}" in printed
    assert str(output / "rounds.csv") in printed
