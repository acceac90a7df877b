"""What README links to exists, and its commands are the ones that CI runs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CI = ROOT / ".ci" / "run"

# Stands in for `python3 -m venv .venv`: an environment whose programs only say that
# they ran, the one named by $BROKEN unsuccessfully.
FAKE_PYTHON = """#!/bin/sh
mkdir -p .venv/bin
for name in pip pytest python ruff mypy; do
    {
        echo '#!/bin/sh'
        echo "echo ran $name"
        [ "$name" != "$BROKEN" ] || echo exit 1
    } > ".venv/bin/$name"
    chmod +x ".venv/bin/$name"
done
"""


def test_what_it_links_to_is_there():
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", README)
    links += re.findall(r'src="([^"]+)"', README)
    assert len(links) > 20
    assert not [link for link in links if not (ROOT / link).exists()]


def test_ci_runs_the_test_command_of_readme():
    demo, tests = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)[:2]
    assert tests.strip() in CI.read_text()
    assert tests.strip().endswith(".venv/bin/pytest")
    assert demo.strip().endswith(".venv/bin/python -m botorch_bkb")


@pytest.fixture
def run_ci(tmp_path):
    """Run a copy of .ci/run on an empty checkout, with a fake python3."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copytree(CI.parent, tmp_path / ".ci")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "mine").touch()
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python3"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)

    def run(broken):
        path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [tmp_path / ".ci" / "run"],
            env=os.environ | {"PATH": path, "BROKEN": broken},
            capture_output=True,
            text=True,
            check=False,
        )

    run.checkout = tmp_path
    return run


@pytest.mark.parametrize("broken", ["pip", "pytest", "python"])
def test_ci_stops_at_the_first_failure(run_ci, broken):
    result = run_ci(broken)
    assert result.returncode != 0
    assert result.stdout.splitlines()[-1] == f"ran {broken}"
    assert (run_ci.checkout / ".venv" / "mine").exists()
