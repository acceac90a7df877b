"""Recorded campaigns are deterministic, and a difference is found and judged."""

import json

import pytest
import torch

from tests import recorded_runs
from tests.recorded_runs import ARMS, main, RUNS


QUICK = ["GPUCB, late", "TVGPUCB, timed", "BBKB, coupled"]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_runs, "RUNS", {name: RUNS[name] for name in QUICK})
    path = tmp_path / "picks.json"
    assert main(["record", str(path)]) == 0
    return path


def test_a_campaign_that_is_played_again_has_the_same_picks(recorded, capsys):
    torch.rand(3)  # of the global generator, which no campaign knows
    assert main(["compare", str(recorded)]) == 0
    assert capsys.readouterr().out == "3 of 3 campaigns have the same picks\n"
    picks = json.loads(recorded.read_text())
    assert list(picks) == QUICK
    assert all(len(batches) >= 6 for batches in picks.values())


def test_the_first_difference_is_shown_with_the_gap_of_the_bounds(recorded, capsys):
    picks = json.loads(recorded.read_text())
    now = picks["GPUCB, late"][5][1]
    other = (now + 1) % len(ARMS)
    picks["GPUCB, late"][5][1:] = [other, other]
    picks["TVGPUCB, timed"][4].pop()
    del picks["BBKB, coupled"]
    recorded.write_text(json.dumps(picks))
    assert main(["compare", str(recorded)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"GPUCB, late: batch 5, pick 1: {other}, now {now}; ")
    assert lines[0].endswith(" apart, no tie")
    assert lines[1] == "TVGPUCB, timed: batch 4 has 1 picks, now 2"
    assert lines[2] == "BBKB, coupled: not recorded"
    assert lines[3] == "0 of 3 campaigns have the same picks"
