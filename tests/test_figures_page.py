"""The page "Figures" shows what the rows of the benchmarks give."""

import re
from pathlib import Path

import pandas as pd

from benchmarks import figures
from benchmarks.record import Record
from tests.test_benchmarks import options


PAGE = (Path(__file__).parent.parent / "docs" / "figures.rst").read_text()


def test_its_tables_and_pictures_are_made_of_the_rows(tmp_path, monkeypatch):
    kept = figures.PAGE
    monkeypatch.setattr(figures, "PAGE", tmp_path)
    figures.run(options(figures, "--page"), Record(tmp_path))
    shown = re.findall(r"(?:file|image):: figures/(\S+)", PAGE)
    shown += re.findall(r":file: figures/(\S+)", PAGE)
    assert sorted(shown) == sorted(path.name for path in tmp_path.iterdir())
    for name in shown:
        if name.endswith(".csv"):
            assert (kept / name).read_text() == (tmp_path / name).read_text(), name
    assert sorted(path.name for path in kept.iterdir()) == sorted(shown)


def test_rows_are_traced_and_small():
    files = list(figures.RESULTS.glob("*.csv.gz"))
    assert {path.name.removesuffix(".csv.gz") for path in files} == {*figures.FIGURES}
    assert sum(path.stat().st_size for path in files) < 5e6
    for path in files:
        table = pd.read_csv(path)
        traces = ["commit", "torch", "threads", "device", "seed", "load"]
        assert table[traces].notna().all(axis=None)
        assert not table["commit"].str.contains("dirty|unknown").any(), path
