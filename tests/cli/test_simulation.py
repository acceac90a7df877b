import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from typing_extensions import override

from botorch_bkb.bandits import BBKB
from botorch_bkb.cli.simulation import (
    best_arms,
    comparison_table,
    outcome_table,
    peak_memory,
    report,
    run_bandit,
)
from botorch_bkb.test_functions import FiniteArmProblem


HORIZON = 40


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
    rounds = run_bandit(bandit, problem, HORIZON, generator=generator, quiet=True)
    return bandit, problem, rounds


def test_rounds_agree_with_the_problem(finished_run):
    bandit, problem, rounds = finished_run
    sizes = [len(pulled) for pulled in problem.rounds]
    assert rounds["batch_size"].tolist() == sizes
    assert rounds["num_pulls"].tolist() == pd.Series(sizes).cumsum().tolist()
    assert bandit.num_pulls == sum(sizes) == HORIZON
    means = problem.mean_rewards
    best = means.max() if problem.maximize else means.min()
    regrets = pd.Series([(best - means[i]).abs().sum().item() for i in problem.rounds])
    assert rounds["cumulative_regret"].tolist() == pytest.approx(
        regrets.cumsum().tolist()
    )
    uniform = (best - means).abs().mean().item()
    assert rounds["uniform_cumulative_regret"].tolist() == pytest.approx(
        (uniform * rounds["num_pulls"]).tolist()
    )


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
    assert rounds["uniform_num_best_found"].tolist() == pytest.approx(expected.tolist())


def test_the_best_one_percent_is_rounded_up_and_keeps_ties():
    arms = torch.arange(101.0).unsqueeze(-1)
    rewards = torch.arange(101.0)
    assert best_arms(FiniteArmProblem(arms, rewards, 0.1)).nonzero().tolist() == [
        [99],
        [100],
    ]
    low = FiniteArmProblem(arms, rewards.clamp(min=3.0), 0.1, maximize=False)
    assert best_arms(low).nonzero().squeeze(-1).tolist() == [0, 1, 2, 3]


def test_a_comparison_is_of_means_over_repetitions(finished_run):
    _, problem, rounds = finished_run
    other = rounds.assign(cumulative_regret=rounds["cumulative_regret"] + 10)
    text = comparison_table({"one": [rounds], "both": [rounds, other]}, problem)
    _, one, both, uniform = (line.split() for line in text.splitlines())
    assert [row[0] for row in (one, both, uniform)] == ["one", "both", "uniform"]
    assert float(both[3]) - float(one[3]) == pytest.approx(5, abs=0.11)
    assert one[4] == f"{rounds['num_distinct'].iloc[-1]:.1f}"
    assert uniform[-2:] == [
        f"{problem.uniform_cumulative_regret(HORIZON):,.1f}",
        f"{30 * (1 - (29 / 30) ** HORIZON):.1f}",
    ]


def test_the_last_round_describes_the_bandit(finished_run):
    bandit, problem, rounds = finished_run
    last = rounds.iloc[-1]
    found = problem.mean_rewards[bandit.best_arm()].item()
    assert last["simple_regret"] == pytest.approx(abs(problem.best_value - found))
    assert last["num_inducing_points"] == len(bandit.inducing_indices)
    assert rounds["seconds"].is_monotonic_increasing


def test_the_outcome_stands_beside_uniform_choice(finished_run):
    bandit, problem, rounds = finished_run
    text = outcome_table(bandit, problem, rounds, "BBKB", arm_name="no. {}".format)
    assert f"no. {bandit.best_arm()}" in text
    (line,) = [line for line in text.splitlines() if "cumulative regret" in line]
    assert line.split()[-2:] == [
        f"{rounds['cumulative_regret'].iloc[-1]:,.1f}",
        f"{problem.uniform_cumulative_regret(HORIZON):,.1f}",
    ]
    assert re.search(rf"batches +{len(rounds)}$", text, re.MULTILINE)
    assert re.search(r"peak memory.* [\d,]+ MiB$", text, re.MULTILINE)


def test_the_report_writes_rounds_and_picture(finished_run, tmp_path, capsys):
    bandit, problem, rounds = finished_run
    output = tmp_path / "new" / "folder"
    report(bandit, problem, rounds, output, name="BBKB", title="A run")
    written = pd.read_csv(output / "rounds.csv")
    pd.testing.assert_frame_equal(written, rounds)
    assert (output / "regret.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "A run" in printed
    assert str(output / "rounds.csv") in printed


def test_the_picture_shows_what_was_found_if_that_was_sought(finished_run, tmp_path):
    bandit, problem, rounds = finished_run
    sizes = set()
    for seeks_best in (False, True):
        options = {"name": "BBKB", "title": "A run", "seeks_best": seeks_best}
        report(bandit, problem, rounds, tmp_path, **options)
        sizes.add(plt.imread(tmp_path / "regret.png").shape[:2])
    assert sizes == {(840, 1050), (630, 1650)}


def test_peak_memory_is_that_of_this_process():
    psutil = pytest.importorskip("psutil")
    resident = psutil.Process().memory_info().rss / 2**20
    peak = float(peak_memory().removesuffix(" MiB").replace(",", ""))
    assert 0.9 * resident < peak < 100 * resident
