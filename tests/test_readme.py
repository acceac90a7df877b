"""What README links to exists, and its commands are the ones that CI runs."""

import re
from pathlib import Path


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CI = ROOT / ".ci" / "run"


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
