"""Tables of results with too much in them, or too little."""

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from botorch_bkb.cli import suggest as command


RNG = np.random.default_rng(6)
ARMS = pd.DataFrame(
    {
        "id": [f"L-{n:02d}" for n in range(24)],
        "acid": RNG.uniform(1, 9, 24).round(2),
        "ligand": RNG.permutation(["A", "B", "C"] * 8),
    }
)
RESULTS = pd.DataFrame(
    {"id": ARMS["id"][:14:2], "reward": RNG.normal(40, 5, 7).round(2)}
).reset_index(drop=True)


def suggest(folder, results, *words, arms=ARMS, code=0):
    """Run the command; return its batch, or None if it is refused."""
    arms.to_csv(folder / "arms.csv", index=False)
    results.to_csv(folder / "results.csv", index=False)
    output = folder / "next.csv"
    options = ["--observations", folder / "results.csv", "--output", output, *words]
    command = ["suggest", folder / "arms.csv", "--batch-size", 3, *options]
    assert main([str(word) for word in command]) == code
    return pd.read_csv(output) if code == 0 else None


def test_columns_that_are_not_used_are_named(tmp_path, capsys):
    expected = suggest(tmp_path, RESULTS.merge(ARMS))
    assert "not used" not in capsys.readouterr().out
    results = RESULTS.assign(SEM=2.0, operator="JK")
    batch = suggest(tmp_path, results, "--quiet")
    said = " ".join(capsys.readouterr().out.split())
    assert "columns of the results that are not used: SEM, operator." in said
    assert "Standard deviations of results need --noise-std" in said
    pd.testing.assert_frame_equal(batch, expected)
    suggest(tmp_path, results, "--noise-std", "SEM")
    assert "that are not used: operator." in capsys.readouterr().out


@pytest.fixture
def told(monkeypatch):
    """Return a function that gives the results and noise of the last bandit."""
    bandits = []

    def kept(*args, **options):
        bandits.append(suggestion_bandit(*args, **options))
        return bandits[-1]

    suggestion_bandit = command.suggestion_bandit
    monkeypatch.setattr(command, "suggestion_bandit", kept)

    def told(name):
        return bandits[-1].state_dict()["observations"][f"told_{name}"]

    return told


def test_standard_deviations_of_results_are_known_noise(tmp_path, told, capsys):
    stds = [0.5, 3, None, 0.25, 1, 2, 1]
    cells = [*RESULTS["reward"][:5], None, "failed"]
    results = RESULTS.assign(reward=cells, sd=stds)
    report = tmp_path / "r.html"
    suggest(tmp_path, results, "--noise-std", "sd", "--report", report)
    assert told("noise") == [0.25, 9.0, 0.0, 0.0625, 1.0]
    assert "the same for all without one in column sd" in report.read_text()
    suggest(tmp_path, results, "--noise-std", "sd", "--log-reward")
    # Of log10(y + e) for a small error e, by a difference.
    steps = np.log10(np.array(cells[:5], dtype=float) + 1e-6) - told("rewards")
    expected = (1e6 * steps * np.array([0.5, 3, 0, 0.25, 1])) ** 2
    np.testing.assert_allclose(told("noise"), expected, 1e-4)
    # A table of candidates with their results: the column is not a feature.
    both = ARMS.merge(results, how="left")
    path = tmp_path / "arms.csv"
    batch = suggest(tmp_path, results, "--noise-std", "sd", "--with-columns")
    words = ["--observations", path, "--noise-std", "sd", "--with-columns"]
    both.to_csv(path, index=False)
    words = ["suggest", path, "--batch-size", 3, "--output", tmp_path / "n.csv", *words]
    assert main([str(word) for word in words]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "n.csv"), batch)


@pytest.mark.parametrize(
    ("stds", "said"),
    [
        ([1, 2, -0.5, 1, 1, 1, 1], "'sd' of --noise-std has '-0.5' in row 3 "),
        ([1, 0, 1, 1, 1, 1, 1], "has '0' in row 2 "),
        ([1, "low", 1, 1, 1, 1, 1], "'low' in row 2 "),
        (None, "has no column 'sd'"),
    ],
)
def test_what_is_no_standard_deviation_is_refused(stds, said, tmp_path, capsys):
    results = RESULTS if stds is None else RESULTS.assign(sd=stds)
    suggest(tmp_path, results, "--noise-std", "sd", code=2)
    error = capsys.readouterr().err
    assert said in error
    assert "--noise-std" in error
    assert stds is None or "leave the cell empty if it is not known" in error
    assert not (tmp_path / "next.csv").exists()
    words = ["--noise-std", "sd", "--objective", "reward:max:0:99"]
    suggest(tmp_path, results, *words, code=2)
    assert "--noise-std does not go with --objective" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["sorted", "partly", "with NA"])
def test_results_that_were_pasted_twice_are_refused(order, tmp_path, capsys):
    twice = pd.concat([RESULTS, RESULTS[:4] if order == "partly" else RESULTS])
    if order == "sorted":
        twice = twice.sort_values("id")
    if order == "with NA":
        twice = twice.assign(remark=["a", None, *["b"] * 5] * 2)
    suggest(tmp_path, twice, code=2)
    error = capsys.readouterr().err
    number = 8 if order == "partly" else 14
    assert f"{number} of {len(twice)} measurements are equal to another row" in error
    assert "Remove the copies" in error
    batch = suggest(tmp_path, twice, "--replicates-are-real")
    assert f"{len(twice)} measurements in all" in capsys.readouterr().out
    assert len(batch) == 3


def test_replicates_are_no_copies(tmp_path, capsys):
    again = RESULTS.assign(reward=RESULTS["reward"] + RNG.normal(0, 1, 7).round(2))
    suggest(tmp_path, pd.concat([RESULTS, again]))
    assert "equal to" not in capsys.readouterr().out
    wells = pd.concat([RESULTS, RESULTS]).assign(well=range(14))
    suggest(tmp_path, wells)
    assert "equal to" not in capsys.readouterr().out
    suggest(tmp_path, pd.concat([RESULTS, RESULTS[3:5]]))
    said = "4 of 9 measurements are equal to another row in every column, such as row"
    assert f"{said} 8 " in capsys.readouterr().out
    one = pd.DataFrame({"id": ["L-00"] * 6 + ["L-01"], "reward": [0.0] * 6 + [1.0]})
    suggest(tmp_path, one)
    assert "6 of 7 measurements are equal to" in capsys.readouterr().out


def next_of(folder, form):
    path = folder / "next.csv"
    return path, pd.read_csv(path, dtype=str, **form)


@pytest.mark.parametrize("form", [{}, {"sep": ";", "decimal": ","}], ids=["US", "DE"])
def test_a_batch_that_was_filled_in_is_kept(form, tmp_path, capsys):
    """It is replaced once its rows are among the results."""
    ARMS.to_csv(tmp_path / "arms.csv", index=False, **form)
    results = RESULTS.assign(plate=1.5)
    paths = [str(tmp_path / f"{name}.csv") for name in ("arms", "results", "next")]
    command = ["suggest", paths[0], "--observations", paths[1], "--output", paths[2]]
    command += ["--per-measurement", "--batch-size", "3"]
    results.to_csv(paths[1], index=False, **form)
    assert main(command) == 0
    assert main(command) == 0  # nothing was filled in
    path, batch = next_of(tmp_path, {"sep": form.get("sep", ",")})
    filled = batch.assign(reward=["41,5" if form else "41.5", None, "failed"])
    filled.to_csv(path, index=False, sep=form.get("sep", ","))
    before = path.read_text()
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "2 of its rows have entries that the results lack, first in row 1 " in (
        error
    )
    assert path.read_text() == before
    lines = before.splitlines(keepends=True)[1:]
    with (tmp_path / "results.csv").open("a") as file:
        file.writelines(lines)
    assert main(command) == 0
    assert path.read_text() != before


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda text: text.replace(",why", ",why,remark", 1), ""),
        (lambda text: text.replace("id,", "name,"), "no column 'id'"),
        (lambda text: text + "L-02,1,2,3,4,5,6,7,8,9\n", "is not a batch of suggest"),
        (lambda text: "a story", "no column 'id'"),
    ],
)
def test_another_table_is_not_overwritten(change, part, tmp_path, capsys):
    batch = suggest(tmp_path, RESULTS)
    path = tmp_path / "next.csv"
    path.write_text(change(path.read_text()))
    if not part:
        assert suggest(tmp_path, RESULTS).equals(batch)
        return
    suggest(tmp_path, RESULTS, code=2)
    error = capsys.readouterr().err
    assert "next.csv exists, and" in error
    assert part in error
    assert "Move that file away, or name another --output." in error


def test_rewards_in_a_column_of_their_own_are_kept(tmp_path, capsys):
    batch = suggest(tmp_path, RESULTS)
    batch.assign(reward=[None, 44, None]).to_csv(tmp_path / "next.csv", index=False)
    suggest(tmp_path, RESULTS, code=2)
    assert "1 of its rows have entries" in capsys.readouterr().err
    told = pd.DataFrame({"id": batch["id"][1:2], "reward": 44.0})
    suggest(tmp_path, pd.concat([RESULTS, told]))


def test_words_for_missing_values_are_in_flight_and_named(tmp_path, capsys):
    words = ["NULL", "n.d.", "-", "Pending", "", "IN PROGRESS"]
    rewards = [*words, *(f"{41.25 + number}" for number in range(6))]
    german = pd.DataFrame({"id": ARMS["id"][:12], "reward": rewards})
    batch = suggest(tmp_path, german)
    said = capsys.readouterr().out
    assert "6 of them measured, 6 measurements in all, 6 in flight" in said
    words = "'NULL', 'n.d.', '-', 'Pending', 'IN PROGRESS'."
    assert f"results.csv: these cells count as empty: {words}" in said
    german["reward"] = [word.replace(".", ",") for word in rewards]
    german = german.replace({"reward": {"n,d,": "n.d."}})
    pd.testing.assert_frame_equal(suggest(tmp_path, german), batch)


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_candidates_whose_last_measurement_failed_are_not_chosen(
    kind, tmp_path, capsys
):
    first = suggest(tmp_path, RESULTS)["id"].tolist()
    failed = pd.DataFrame({"id": first, "reward": ["failed", "Failed ", "FAILED"]})
    table = pd.concat([RESULTS.astype(object), failed])
    path = tmp_path / f"told.{kind}"
    write = table.to_csv if kind == "csv" else table.to_excel
    write(path, index=False)
    capsys.readouterr()
    (tmp_path / "next.csv").unlink()
    command = ["suggest", f"{tmp_path}/arms.csv", "--observations", str(path)]
    command += ["--batch-size", "3", "--output", f"{tmp_path}/next.csv"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"measurement failed: 3 ({', '.join(first)}). They are not" in said
    assert "7 measurements in all, 0 in flight" in said
    assert set(pd.read_csv(tmp_path / "next.csv")["id"]).isdisjoint(first)
    # A later result, and one of a candidate that is unknown.
    later = pd.concat([table, pd.DataFrame({"id": first[:1], "reward": [41.0]})])
    suggest(tmp_path, later, "--goal", "regret")
    assert f"failed: 2 ({', '.join(first[1:])})" in capsys.readouterr().out
    unknown = pd.DataFrame({"id": ["L-99"], "reward": ["failed"]})
    suggest(tmp_path, pd.concat([table, unknown]), code=2)
    assert "measures id 'L-99' in row 11" in capsys.readouterr().err


def test_a_molecule_that_failed_is_not_chosen_from_another_row(tmp_path, capsys):
    pytest.importorskip("rdkit")
    arms = pd.DataFrame(
        {
            "id": [f"M{n}" for n in range(6)],
            "smiles": ["CCO", "OCC", "CCN", "CCC", "CCCl", "CCBr"],
        }
    )
    results = pd.DataFrame(
        {"id": ["M1", "M2", "M3", "M4"], "reward": ["failed", "2", "3", "5"]}
    )
    words = "--smiles", "smiles", "--max-repeats", "1"
    batch = suggest(tmp_path, results, *words, arms=arms)
    assert batch["id"].tolist() == ["M5"]


@pytest.mark.parametrize(
    "arms",
    [
        ARMS,
        ARMS.drop(columns="acid"),
        ARMS.drop(columns="ligand").assign(b=range(24), c=range(5, 29)),
    ],
    ids=["mixed", "text", "numbers"],
)
@pytest.mark.parametrize("sep", [",", ";"])
def test_a_table_without_a_header_is_refused(arms, sep, tmp_path, capsys):
    path = tmp_path / "arms.csv"
    arms.to_csv(path, index=False, header=False, sep=sep)
    command = ["suggest", str(path), "--output", f"{tmp_path}/next.csv"]
    assert main(command) == 2
    assert "Write a header above the rows if there is none" in capsys.readouterr().err
    lines = path.read_text()
    path.write_text(sep.join(["name", *"xyz"[: arms.shape[1] - 1]]) + "\n" + lines)
    assert main([*command, "--id", "name"]) == 0


def test_results_without_a_header_or_with_two_are_refused(tmp_path, capsys):
    path = tmp_path / "told.csv"
    ARMS.to_csv(tmp_path / "arms.csv", index=False)
    command = ["suggest", f"{tmp_path}/arms.csv", "--observations", str(path)]
    command += ["--output", f"{tmp_path}/next.csv"]
    RESULTS.to_csv(path, index=False, header=False)
    assert main(command) == 2
    assert "The first line has to be the header" in capsys.readouterr().err
    path.write_text(f"id,reward\n{path.read_text()}id,reward\nL-01,3.5\n")
    assert main(command) == 2
    assert "has 'reward' in row 8 of told.csv" in capsys.readouterr().err


def test_numbers_may_be_names_of_columns(tmp_path):
    names = [str(n) for n in np.arange(400.5, 440, 5)]
    spectra = pd.DataFrame(RNG.uniform(size=(24, 8)), columns=names)
    suggest(tmp_path, RESULTS, arms=spectra.assign(id=ARMS["id"]))


def test_all_incomplete_columns_are_named_and_can_be_left_out(tmp_path, capsys):
    arms = ARMS.assign(**{f"d{n}": RNG.uniform(size=24) for n in range(40)})
    expected = suggest(tmp_path, RESULTS, arms=arms)
    gaps = arms.assign(**{f"g{n}": [1.0, None, *range(22)] for n in range(30)})
    gaps["word"] = ["x", *["n.d."] * 23]
    capsys.readouterr()
    suggest(tmp_path, RESULTS, arms=gaps, code=2)
    error = capsys.readouterr().err
    assert "Column 'g0' has a missing, infinite or huge value in row 2 " in error
    assert "columns with such values are g0, g1, " in error
    assert "g19 and 11 more" in error
    batch = suggest(tmp_path, RESULTS, "--drop-incomplete", arms=gaps)
    pd.testing.assert_frame_equal(batch, expected)
    said = capsys.readouterr().out
    assert "--drop-incomplete: 31 columns with missing values are left out: g0" in said
    table = gaps.assign(gain=RNG.normal(size=24), id=ARMS["id"])
    table.to_csv(tmp_path / "t.csv", index=False)
    command = ["simulate", f"{tmp_path}/t.csv", "--reward", "gain", "--id", "id"]
    command += ["--horizon", "3", "--output", str(tmp_path), "--drop-incomplete"]
    assert main(command) == 0


def test_faults_of_several_columns_are_said_at_once(tmp_path, capsys):
    arms = ARMS.assign(heat="20 C", name=ARMS["id"], plate=["1", "x"] * 12)
    suggest(tmp_path, RESULTS, arms=arms, code=2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in ("'heat' has '20 C'", "one of 24 different", "'plate' has 'x'"):
        assert part in error


def test_when_no_candidate_is_left_it_is_said_why(tmp_path, capsys):
    results = pd.concat([RESULTS, RESULTS.assign(reward=1.0)]).astype(object)
    results.loc[results["id"] == "L-02", "reward"] = ["3", "failed"]
    stock = ARMS.assign(stock=ARMS["id"].isin(RESULTS["id"]))
    words = "--max-repeats", "2", "--available", "stock"
    suggest(tmp_path, results, *words, arms=stock, code=2)
    error = capsys.readouterr().err
    assert "Expected candidates to be left for 3 measurements, but of 24 cand" in error
    assert "6 have had their repeats (--max-repeats 2, those in flight incl" in error
    assert "1 failed, and 17 are not available. Add or restock candidates" in error
    failed = pd.DataFrame({"id": ARMS["id"], "reward": "failed"})
    suggest(tmp_path, failed, code=2)
    assert "24 failed, and 0 are not available" in capsys.readouterr().err
