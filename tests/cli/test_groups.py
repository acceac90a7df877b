"""`suggest` with groups of results, controls, and results of earlier campaigns."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb import GPBandit, OutcomesBandit
from botorch_bkb.__main__ import main
from botorch_bkb.cli import diagnosis
from botorch_bkb.cli import suggest as command
from botorch_bkb.cli.results import labels
from tests.cli.tables import next_batch
from tests.cli.test_report import assert_self_contained


RNG = np.random.default_rng(0)
HEATS, SOLVENTS = [20.0, 40.0, 60.0, 80.0], ["DMF", "THF", "water"]
GRID = pd.MultiIndex.from_product(
    [HEATS, SOLVENTS, range(6)], names=["heat", "solvent", "base"]
).to_frame(index=False)
ARMS = GRID.assign(id=[f"C{n:02d}" for n in range(72)])
# Fits to numbers alone are fast.
NUMBERS = ARMS.drop(columns="solvent")
SHIFTS = {"P1": 0.0, "P2": -30.0, "P3": 25.0}


def yields(arms):
    best = arms["solvent"] == "THF"
    return 50 - (arms["heat"] - 55) ** 2 / 50 + 3 * arms["base"] + 5 * best


def plates(shifts=SHIFTS, size=10):
    """Return results of random candidates, and of a control twice on each plate."""
    rng, found = np.random.default_rng(0), []
    for plate, shift in shifts.items():
        rows = ARMS.sample(size, random_state=len(found))
        own = pd.DataFrame({"id": rows["id"], "reward": yields(rows)})
        own = pd.concat([own, pd.DataFrame({"id": ["DMSO"] * 2, "reward": 20.0})])
        noise = rng.normal(0, 0.3, len(own))
        own["reward"] = (own["reward"] + shift + noise).round(3)
        found.append(own.assign(plate=plate))
    return pd.concat(found, ignore_index=True)


RESULTS = plates()
OF_ARMS = RESULTS[RESULTS["id"] != "DMSO"]
# The ids are those of another notebook.
OLD = GRID.iloc[::7].assign(heat=lambda rows: rows["heat"] + 5, id=range(1, 12))
OLD = OLD.assign(reward=yields(OLD) + 7)
GROUPED = ["--group=plate", "--control=DMSO"]


def suggest(results, *words, arms=ARMS, code=0):
    return next_batch(arms, results, *words, size=4, code=code)


def told(state):
    """Return the observations of a bandit's state, with the names of their labels."""
    found = state["observations"]
    names = [*found["labels"], ""]
    columns = {name: found[f"told_{name}"] for name in ("indices", "rewards")}
    for name in ("group", "campaign", "control"):
        columns[name] = [names[place] for place in found[f"told_{name}"]]
    return pd.DataFrame(columns)


MESSY = pd.DataFrame(
    [
        ("C00", 1.0, 2),
        ("C01", 2.0, None),
        ("DMSO", 3.0, 1),
        ("C02", "failed", 1),
        ("C03", None, None),
        ("DMSO", "failed", 2),
        ("DMSO", None, None),
        ("C01", 4.0, 1),
    ],
    columns=["id", "reward", "plate"],
)


def test_results_have_groups_and_controls(bandits):
    suggest(MESSY, *GROUPED)
    expected = pd.DataFrame(
        {
            "indices": [0, 1, 1, -1],
            "rewards": [1.0, 2.0, 4.0, 3.0],
            "group": ["2", "", "1", "1"],
            "campaign": "",
            "control": ["", "", "", "DMSO"],
        }
    )
    pd.testing.assert_frame_equal(told(bandits[-1].state_dict()), expected)
    assert 3 in bandits[-1].pending.values()
    words = [*GROUPED, "--objective=reward:max:0:4", "--round=plate"]
    suggest(MESSY.drop(index=1), *words)
    scored = told(bandits[-1].state_dict())
    assert scored["rewards"].tolist() == [0.25, 1.0, 0.75]
    assert scored["group"].tolist() == ["2", "1", "1"]


def test_several_outcomes_have_groups_and_earlier_results(monkeypatch):
    made, make = [], command.outcomes_bandit
    monkeypatch.setattr(
        command, "outcomes_bandit", lambda *args: made.append(make(*args)) or made[-1]
    )
    results = MESSY.assign(cost=[5.0, None, 6.0, 7.0, None, 8.0, None, 9.0])
    OLD.assign(cost=None).to_csv("old.csv", index=False)
    words = ["--maximize=reward", "--minimize=cost", *GROUPED, "--earlier=old.csv"]
    suggest(results, *words)
    assert isinstance(made[0], OutcomesBandit)
    state = made[0].state_dict()["outcomes"]
    cost = told(state["cost"])
    assert cost["rewards"].tolist() == [5.0, 9.0, 6.0]
    assert cost["group"].tolist() == ["2", "1", "1"]
    assert cost["control"].tolist() == ["", "", "DMSO"]
    rewards = told(state["reward"])
    assert rewards["campaign"].tolist() == ["", "", *["old"] * 11, "", ""]
    assert rewards["rewards"].tolist()[-2:] == [3.0, 2.0]


def test_the_group_is_no_feature_and_empty_in_the_batch():
    """Its column may also be in the table of candidates, and so may the results."""
    batch = suggest(RESULTS, *GROUPED, arms=NUMBERS)
    both = NUMBERS.assign(plate=[f"P{n % 3}" for n in range(72)])
    pd.testing.assert_frame_equal(suggest(RESULTS, *GROUPED, arms=both), batch)
    batch = suggest(RESULTS, *GROUPED, "--with-columns", arms=both)
    assert list(batch)[:4] == ["id", "heat", "base", "repeats"]
    assert batch["plate"].isna().all()


def test_a_batch_that_is_filled_in_has_the_columns_of_groups_and_noise(capsys):
    words = ["--group=plate", "--noise-std=sd", "--round=day"]
    batch = suggest(None, *words)
    assert list(batch)[-4:] == ["plate", "sd", "day", "reward"]
    again = suggest(batch.assign(reward=range(4), plate="P1", day=1), *words)
    assert not set(again["id"]) & set(batch["id"])
    said = capsys.readouterr().out
    assert "4 measurements in all" in said
    assert "not used" not in said
    rows = suggest(None, *words, "--per-measurement")
    assert list(rows) == ["id", *GRID, "plate", "sd", "day", "reward"]
    rows = suggest(None, "--round=heat", "--per-measurement")
    assert rows["heat"].notna().all()
    assert list(suggest(None, "--round=reward")).count("reward") == 1


@pytest.mark.parametrize("has_ids", [True, False])
def test_results_of_an_earlier_campaign_are_no_measurements(has_ids, bandits, capsys):
    old = pd.DataFrame(
        {"id": ARMS["id"], "reward": [None, "failed", *range(70)], "plate": 1}
    )
    if not has_ids:
        old = GRID.assign(reward=old["reward"])
    old.to_csv("results_2024.csv.gz", index=False)
    words = ["--group=plate", "--max-repeats=1", "--earlier=results_2024.csv.gz"]
    batch = suggest(OF_ARMS[:6], *words)
    rows = told(bandits[-1].state_dict())
    assert rows["campaign"].tolist() == [""] * 6 + ["results_2024"] * 70
    assert rows["indices"].tolist()[6:] == [*range(2, 72)]
    assert rows["group"][71] == ("1" if has_ids else "")
    assert not {*batch["id"]} & {*OF_ARMS["id"][:6]}
    said = capsys.readouterr().out
    assert "72 candidates, 6 of them measured, 6 measurements in all, 0 in f" in said
    assert "results_2024: 70 results, worth " in said


def test_a_first_batch_needs_no_results_of_this_campaign(capsys):
    OLD.to_csv("old.csv", index=False)
    outputs = ["--report=r.html", "--predictions=p.csv"]
    batch = suggest(None, "--earlier=old.csv", "--id=id", *outputs)
    assert batch["mean"].notna().all()
    why = r"promising: .*, best prediction \d.*|uncertain: .*, could beat \d.*"
    assert batch["why"].str.fullmatch(why).all()
    whole = next_batch(ARMS, None, "--earlier=old.csv", "--id=id", size=72)
    assert sum("best prediction" in text for text in whole["why"]) == 1
    assert not whole["why"].str.contains("so far").any()
    said = capsys.readouterr().out
    assert "72 candidates, 0 of them measured, 0 measurements in all" in said
    assert "Best measured" not in said
    assert "no longer in arms.csv: 11 (1, 2, 3 and 8 more)" in said
    page = assert_self_contained(Path("r.html"), num_images=0)
    assert "old: 11 results, worth about" in page.text
    assert "too few" not in page.text
    OLD.assign(cost=OLD["heat"]).to_csv("old.csv", index=False)
    words = ["--maximize=reward", "--minimize=cost", "--earlier=old.csv", *outputs[:1]]
    Path("next.csv").unlink()
    batch = suggest(None, *words)
    assert batch["cost_mean"].notna().all()
    assert "No candidate has results of all outcomes yet" in capsys.readouterr().out


def test_the_table_of_candidates_may_have_the_earlier_results(capsys):
    arms = NUMBERS.assign(reward=yields(ARMS), cost=ARMS["heat"] + ARMS["base"])
    words = ["--maximize=reward", "--limit=cost <= 60", "--earlier=arms.csv"]
    suggest(None, *words, arms=arms)
    said = capsys.readouterr().out
    assert "arms: 72 results, worth about" in said
    assert "is ignored" not in said


@pytest.mark.parametrize(
    ("files", "labels"),
    [(("a/old.csv", "b/old.csv"), ("a/old", "b/old")), (2 * (("old.csv", "old.tsv"),))],
    ids=["folders", "formats"],
)
def test_the_same_ids_of_two_campaigns_are_of_different_candidates(
    files, labels, bandits
):
    for heat, name in enumerate(files):
        Path(name).parent.mkdir(exist_ok=True)
        table, tab = OLD.assign(heat=OLD["heat"] + heat), name.endswith(".tsv")
        table.to_csv(name, index=False, sep="\t" if tab else ",")
    suggest(OF_ARMS, *(f"--earlier={name}" for name in files), arms=NUMBERS)
    rows = told(bandits[-1].state_dict())[len(OF_ARMS) :]
    assert rows["campaign"].tolist() == [labels[0]] * 11 + [labels[1]] * 11
    assert rows["indices"].tolist() == [*range(72, 94)]


def test_combinations_have_groups_controls_and_earlier_results(bandits, capsys):
    lists = ["--component=heat=20,40,60,80", "--component=solvent=s.csv"]
    pd.DataFrame({"id": SOLVENTS, "boils": [153, 66, 100]}).to_csv("s.csv", index=False)
    results = GRID[["heat", "solvent"]][::9].assign(reward=range(8))
    results = results.assign(id=None, plate=[1, 2] * 4)
    control = {"id": "DMSO", "reward": 5.0, "plate": 1}
    pd.concat([results, pd.DataFrame([control])]).to_csv("results.csv", index=False)
    OLD.replace({"heat": {25.0: 20.0}})[:4].to_csv("old.csv", index=False)
    words = ["suggest", *lists, "--observations=results.csv", "--batch-size=3"]
    words += [*GROUPED, "--earlier=old.csv"]
    assert main(words) == 0
    rows = told(bandits[-1].state_dict())
    assert rows["group"].tolist() == ["1", "2"] * 4 + [""] * 4 + ["1"]
    assert rows["control"].tolist() == [""] * 12 + ["DMSO"]
    assert rows["campaign"].tolist() == [""] * 8 + ["old"] * 4 + [""]
    assert "12 combinations, 8 of them measured" in capsys.readouterr().out


# Controls that are refused: tests/cli/test_remedies.py.
REFUSED = {
    "no such column": (["--group=day"], r"results.csv has no column 'day'.* by --gr"),
    "no such file": (
        ["--earlier=2025.csv"],
        r"no table at 2025.csv\. Correct the name\. Without results, leave out",
    ),
    "another outcome": (
        ["--earlier=cost.csv"],
        r"cost.csv has no column 'reward', only \['id', 'cost'\]",
    ),
    "unknown candidates": (
        ["--earlier=ids.csv"],
        r"measures id 'K1' in row 3 of ids.csv .*which is not in the table of candid",
    ),
    "a table that would be replaced": (
        ["--earlier=ids.csv", "--output=ids.csv"],
        r"--output ids.csv is one of the tables",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, capsys):
    words, says = REFUSED[name]
    pd.DataFrame({"id": ["C00"], "cost": [1.0]}).to_csv("cost.csv", index=False)
    ids = pd.DataFrame({"id": ["C00", "K1"], "reward": [1.0, 2.0]})
    ids.to_csv("ids.csv", index=False)
    suggest(OF_ARMS, *words, code=2)
    error = capsys.readouterr().err
    assert re.search(says, error), error


@pytest.mark.parametrize("name", ["DMSO", 1])
def test_a_control_needs_a_column_of_ids_and_may_be_a_number(name, capsys):
    results = OF_ARMS.merge(ARMS, on="id").drop(columns="id")
    words = ["--group=plate", f"--control={name}"]
    suggest(results, *words, arms=GRID, code=2)
    said = f"'{name}' of --control in a column 'id', but there"
    assert said in capsys.readouterr().err
    control = pd.DataFrame({"id": [name] * 2, "plate": ["P1", "P2"], "reward": 1.0})
    suggest(pd.concat([results, control]).convert_dtypes(), *words, arms=GRID)
    assert "30 measurements in all" in capsys.readouterr().out


def test_controls_of_candidates_without_ids_may_have_a_file(bandits, capsys):
    """A batch of these candidates, filled in, names them in a column of its own."""
    words = ["--group=plate", "--control=DMSO"]
    batch = suggest(None, "--group=plate", arms=GRID)
    assert batch["candidate"].str.startswith("row ").all()
    filled = batch.assign(reward=range(4), plate=[1, 1, 2, 2])
    controls = pd.DataFrame({"id": "DMSO", "plate": [1, 2], "reward": [1.0, 2.0]})
    controls.to_csv("controls.csv", index=False)
    suggest(filled, *words, "--observations=controls.csv", arms=GRID)
    suggest(pd.concat([filled, controls]), *words, arms=GRID)
    for bandit in bandits[1:]:
        rows = told(bandit.state_dict())
        assert rows["control"].tolist() == [""] * 4 + ["DMSO"] * 2
    assert "not used" not in capsys.readouterr().out


def test_groups_are_whole_numbers_days_and_other_texts():
    """1.10 is not 1.1, and 2026-03-01 has a time if another day has one."""
    same = {"1": ["01"], "2": ["2.0", 2.0], "1.10": ["1.10"], "1.1": ["1.1"]}
    same |= {"3A": ["3A"], "": [np.nan], "2026-03-02 14:30:00": ["2026-03-02 14:30:00"]}
    same |= {"2026-03-01": ["2026-03-01", "2026-03-01 00:00:00"]}
    for name, cells in same.items():
        assert {*labels(pd.DataFrame({"plate": cells}), "plate")} == {name}


@pytest.mark.parametrize(
    ("results", "old"),
    [(None, OLD.drop(columns="id")), (OF_ARMS, OLD.rename(columns={"id": "ID"}))],
    ids=["no ids", "other name"],
)
def test_an_earlier_table_does_not_name_the_ids_of_rows_to_fill_in(results, old):
    old.to_csv("old.csv", index=False)
    batch = suggest(results, "--earlier=old.csv", "--per-measurement")
    assert batch["id"].isin(ARMS["id"]).all()


def test_earlier_results_alone_need_no_standard_deviations():
    OLD.to_csv("old.csv", index=False)
    assert len(suggest(None, "--earlier=old.csv", "--noise-std=sd")) == 4


def test_controls_of_several_groups_are_no_copies(capsys):
    OLD.to_csv("old.csv", index=False)
    controls = pd.DataFrame({"id": "DMSO", "reward": 20.0, "plate": [*"abcdefgh"]})
    results = pd.concat([OF_ARMS[:4], controls])
    suggest(results, *GROUPED, "--earlier=old.csv")
    assert "equal to another row" not in capsys.readouterr().out
    results.drop(columns="plate").to_csv("again.csv", index=False)
    suggest(results, *GROUPED, "--earlier=again.csv", code=2)
    assert "24 of 24 measurements are equal" in capsys.readouterr().err


def test_fractions_in_an_earlier_file_are_named(capsys):
    OLD.assign(reward=OLD["reward"] / 100).to_csv("old.csv", index=False)
    suggest(OF_ARMS, "--earlier=old.csv")
    said = capsys.readouterr().out
    assert "column 'reward' in old.csv are about a hundredth of those in resul" in said


@pytest.mark.usefixtures("full_fits")
def test_groups_that_differ_are_described(capsys):
    OLD.assign(plate="P2").to_csv("old.csv", index=False)
    words = [*GROUPED, "--earlier=old.csv", "--report=r.html", "--round=plate"]
    suggest(RESULTS, *words, arms=NUMBERS)
    said = capsys.readouterr().out
    found = re.search(
        r"Groups of column 'plate': offsets of reward from (-\d+) \(P2\) to \+(\d+) "
        r"\(P3\)\.\nold: 11 results, worth about (\d+) of this campaign's results\.\n",
        said,
    )
    low, high, worth = map(float, found.groups())
    assert 50 < high - low < 60
    assert worth < 30
    assert "rounds differ" not in said
    assert "Rounds of column" not in said
    page = assert_self_contained(Path("r.html"), num_images=2)
    for line in found[0].splitlines():
        assert line in page.text
    rows = page.text.partition("of the average group")[2].partition("The batch")[0]
    assert re.findall("P[1-9]|old: P2", rows) == ["P1", "P2", "P3"]


@pytest.mark.usefixtures("full_fits")
@pytest.mark.parametrize(
    ("shifts", "said"),
    [
        (dict.fromkeys("AB", 0.0), "No difference between groups of column 'plate' fo"),
        ({"A": 0.0}, "'plate': offsets of this campaign do not act yet. They need two"),
    ],
    ids=["equal", "one"],
)
def test_groups_without_a_difference_are_described(shifts, said, capsys):
    suggest(plates(shifts, 14), *GROUPED, arms=NUMBERS)
    assert said in capsys.readouterr().out


def test_before_the_first_result_there_are_neither_groups_nor_controls(capsys):
    assert len(suggest(None, *GROUPED)) == 4
    assert "Groups" not in capsys.readouterr().out


@pytest.mark.usefixtures("full_fits")
@pytest.mark.parametrize(("most", "minimize"), [(0, True), (256, False)])
def test_cross_validation_knows_offsets(minimize, most, monkeypatch, capsys):
    """Results are compared with the prediction and the offset of their group."""
    monkeypatch.setattr(diagnosis, "MAX_REFITTED", most)
    results = RESULTS.assign(reward=RESULTS["reward"] * (-1 if minimize else 1))
    correlations = []
    direction = ["--minimize"] if minimize else []
    for table, words in ((results, GROUPED), (results[results["id"] != "DMSO"], [])):
        suggest(table, *words, *direction, arms=NUMBERS)
        said = capsys.readouterr().out
        found = re.search(r"predicted and measured results: (-?\d\.\d+)", said)
        correlations.append(float(found[1]))
    assert correlations[0] > 0.9
    assert correlations[1] < 0.85


def test_a_plate_is_one_group_in_all_files():
    """Alone, the plates of the first file would be numbers."""
    names = OF_ARMS["plate"].map({"P1": "01", "P2": "02", "P3": "3A"})
    both = OF_ARMS.assign(plate=names)
    expected = suggest(both, "--group=plate")
    both[15:].to_csv("rest.csv", index=False)
    batch = suggest(both[:15], "--observations=rest.csv", "--group=plate")
    pd.testing.assert_frame_equal(batch, expected)


def test_a_failure_counts_although_an_earlier_campaign_measured_the_candidate(capsys):
    results = OF_ARMS[["id", "reward"]].astype("object")
    failed = results["id"].iloc[-1]
    results.iloc[-1, 1] = "failed"
    earlier = pd.DataFrame({"id": [failed, "C00"], "reward": [9.0, 8.0]})
    earlier.to_csv("e.csv", index=False)
    batch = suggest(results, "--earlier=e.csv")
    said = capsys.readouterr().out
    assert f"whose last measurement failed: 1 ({failed})" in said
    assert failed not in batch["id"].to_numpy()


def test_an_interval_contains_what_is_not_known_of_an_offset():
    rows = OF_ARMS.merge(ARMS, on="id")
    arms = torch.tensor(rows[["heat", "base"]].to_numpy(dtype="float64"))
    bandit = GPBandit(arms, seed=0)
    bandit.add_observations(range(len(rows)), rows["reward"], group=rows["plate"])
    table = pd.DataFrame(bandit.groups()).set_index("group")
    fit = bandit._present()[0].fit
    prior = fit.groups.offset_std * fit.reward_std
    offsets, variances = diagnosis._offsets(bandit, ["P2", "another", "P1"])
    assert offsets.tolist() == [table.offset["P2"], 0.0, table.offset["P1"]]
    expected = [table["std"]["P2"], prior, table["std"]["P1"]]
    assert variances.sqrt().tolist() == pytest.approx(expected)
    assert prior > 2 * table["std"].max()
