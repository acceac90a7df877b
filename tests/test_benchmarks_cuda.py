import os
import subprocess
import sys
from pathlib import Path

import pandas as pd


ROOT = Path(__file__).parent.parent
# What a machine with a GPU may lack: what neither the package nor BoTorch requires.
# Every process that the benchmark starts reads it.
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

MISSING = "ax psutil pyarrow ray rdkit sklearn tqdm".split()

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_cuda(tmp_path, *words, data=None):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "BOTORCH_BKB_DATA": str(data or tmp_path / "none"),
    }
    words = ("--smoke", "--device", "cpu", "--threads", "1", *words)
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "cuda", "--output", tmp_path, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )


def test_steps_run_without_optional_packages(tmp_path):
    done = run_cuda(tmp_path, "--steps", "million", "learned ask")
    assert done.returncode == 0, done.stdout + done.stderr
    table = pd.read_csv(tmp_path / "cuda.csv")
    assert table["step"].tolist() == ["million", "learned ask", "learned ask"]
    assert (table["seconds"] > 0).all()


def test_a_step_that_fails_is_a_row_and_the_others_go_on(tmp_path):
    (tmp_path / "abalone.csv").write_text("no,table\nof,molluscs\n")
    done = run_cuda(tmp_path, "--steps", "abalone", "draws ours", data=tmp_path)
    assert done.returncode == 1
    table = pd.read_csv(tmp_path / "cuda.csv").set_index("step")
    assert table["failed"].to_dict() == {"abalone": True, "draws ours": False}
    assert "KeyError: 'sex'" in table["reached"]["abalone"]
    assert table["seconds"]["draws ours"] > 0
