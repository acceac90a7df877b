"""What README shows runs, and its commands are the ones that CI runs."""

import re
from pathlib import Path

import torch


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_blocks_run_in_order(capsys):
    namespace = {}
    with torch.random.fork_rng():
        for block in blocks("python"):
            exec(compile(block, "README.md", "exec"), namespace)
    best, mean_reward = namespace["best"], namespace["mean_reward"]
    assert mean_reward[best] > mean_reward.max() - 0.1
    assert "the best is" in capsys.readouterr().out
    assert namespace["indices"].shape == (1,)


def test_ci_runs_the_test_command_of_readme():
    demo, tests = blocks("sh")[:2]
    assert tests.strip() in (ROOT / ".ci" / "run").read_text()
    assert tests.strip().endswith(".venv/bin/pytest")
    assert demo.strip().endswith(".venv/bin/python -m botorch_bkb")
