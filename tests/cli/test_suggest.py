import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb.__main__ import main
from botorch_bkb.cli.suggest import SuggestLoop


NUM_ARMS = 40


@pytest.fixture
def arms():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"{number:03d}" for number in range(NUM_ARMS)],
            "temperature": rng.uniform(20, 90, size=NUM_ARMS),
            "solvent": rng.choice(["water", "ethanol"], size=NUM_ARMS),
        }
    )


@pytest.fixture
def folder(arms, tmp_path):
    arms.to_csv(tmp_path / "arms.csv", index=False)
    return tmp_path


def yields(arms):
    """Mean yields in percent, best at 60 degrees in water."""
    temperature = arms["temperature"]
    return 80 - 0.05 * (temperature - 60) ** 2 - 10 * (arms["solvent"] == "ethanol")


def measure(arms, rows, noise_std=0.5, seed=0):
    noise = np.random.default_rng(seed).normal(scale=noise_std, size=len(rows))
    table = arms.iloc[rows]
    return pd.DataFrame({"id": table["id"], "reward": yields(table) + noise})


def suggest(folder, results=None, *words, batch_size=6):
    if results is not None:
        results.to_csv(folder / "results.csv", index=False)
    output = folder / "next.csv"
    options = ["--observations", str(folder / "results.csv"), "--output", str(output)]
    options += ["--batch-size", str(batch_size), *words]
    assert main(["suggest", str(folder / "arms.csv"), *options]) == 0
    return pd.read_csv(output, dtype={"id": str})


def failed(folder, capsys, *words):
    output = str(folder / "next.csv")
    assert main(["suggest", str(folder / "arms.csv"), "--output", output, *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_first_batch_is_spread_out(folder, arms, capsys):
    batch = suggest(folder)
    assert list(batch) == ["id", "repeats", "mean", "std", "low", "high"]
    assert batch["repeats"].sum() == 6
    assert len(batch) == 6
    assert set(batch["id"]) <= set(arms["id"])
    assert batch[["mean", "std", "low", "high"]].isna().all(axis=None)
    picked = arms.set_index("id").loc[batch["id"]]
    assert set(picked["solvent"]) == {"water", "ethanol"}
    assert np.ptp(picked["temperature"]) > 0.6 * np.ptp(arms["temperature"])
    assert "nothing is measured yet" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "id,reward\n"])
def test_an_empty_table_of_results_is_a_start(folder, content):
    (folder / "results.csv").write_text(content)
    assert suggest(folder)["repeats"].sum() == 6


def test_results_need_not_be_named(folder):
    words = ["--batch-size", "3", "--output", str(folder / "next.csv")]
    assert main(["suggest", str(folder / "arms.csv"), *words]) == 0
    assert pd.read_csv(folder / "next.csv")["repeats"].sum() == 3


def test_a_few_rounds_find_the_best_candidate(folder, arms):
    results = pd.DataFrame({"id": pd.Series(dtype=str), "reward": []})
    for seed in range(3):
        batch = suggest(folder, results, "--seed", str(seed), batch_size=8)
        rows = [int(arm) for arm in batch["id"].repeat(batch["repeats"])]
        results = pd.concat([results, measure(arms, rows, seed=seed)])
    best_tried = yields(arms)[results["id"].astype(int)].max()
    assert best_tried > yields(arms).max() - 1.0


def test_predictions_are_in_the_rewards_unit(folder, arms, capsys):
    batch = suggest(folder, measure(arms, list(range(NUM_ARMS)) * 2))
    truth = yields(arms)[batch["id"].astype(int)].to_numpy()
    np.testing.assert_allclose(batch["mean"], truth, atol=1.5)
    assert batch["std"].between(0.01, 2.0).all()
    np.testing.assert_allclose(batch["low"], batch["mean"] - 1.96 * batch["std"])
    np.testing.assert_allclose(batch["high"], batch["mean"] + 1.96 * batch["std"])
    assert "40 of them measured, 80 measurements in all" in capsys.readouterr().out


def test_the_interval_covers_the_truth(folder, arms):
    results = measure(arms, list(range(0, NUM_ARMS, 2)), noise_std=2.0)
    batch = suggest(folder, results, "--max-repeats", "1", batch_size=20)
    truth = yields(arms)[batch["id"].astype(int)].to_numpy()
    # 19 of 20 in the mean; the fit is a guess too.
    assert ((batch["low"] <= truth) & (truth <= batch["high"])).sum() >= 16


def test_minimizing_chooses_small_rewards(folder, arms):
    results = measure(arms, list(range(NUM_ARMS)))
    batch = suggest(folder, results, "--minimize", "--goal", "regret")
    assert batch["mean"].iloc[0] < yields(arms).quantile(0.3)
    assert ((batch["low"] < batch["mean"]) & (batch["mean"] < batch["high"])).all()


def test_candidates_of_a_batch_are_distinct_unless_reward_is_collected(folder, arms):
    results = measure(arms, list(range(0, NUM_ARMS, 2)))
    assert (suggest(folder, results, batch_size=12)["repeats"] == 1).all()
    assert len(suggest(folder, results, "--goal", "best-arm", batch_size=12)) == 12
    collected = suggest(folder, results, "--goal", "regret", batch_size=12)
    assert collected["repeats"].max() > 1
    limited = suggest(
        folder, results, "--goal", "regret", "--max-repeats", "2", batch_size=12
    )
    measured = results["id"].value_counts().reindex(limited["id"], fill_value=0)
    assert (limited["repeats"].to_numpy() + measured.to_numpy()).max() == 2


def test_the_help_explains_the_columns(capsys):
    with pytest.raises(SystemExit):
        main(["suggest", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "standard deviation (std) and a 95 % interval (low to high)" in said


def test_an_unknown_goal_is_refused(folder, capsys):
    with pytest.raises(SystemExit):
        main(["suggest", str(folder / "arms.csv"), "--goal", "fun"])
    assert "invalid choice: 'fun' (choose from" in capsys.readouterr().err


def test_candidates_measured_or_in_flight_are_not_repeated(folder, arms, capsys):
    results = measure(arms, list(range(20)))
    results.loc[results.index[10:], "reward"] = np.nan
    batch = suggest(folder, results, "--max-repeats", "1", batch_size=20)
    assert sorted(batch["id"]) == sorted(arms["id"][20:])
    assert (batch["repeats"] == 1).all()
    assert "10 of them measured, 10 measurements in all, 10 in flight" in (
        capsys.readouterr().out
    )


def test_results_in_flight_change_the_choice(folder, arms):
    results = measure(arms, [0, 5, 10, 15])
    first = suggest(folder, results, batch_size=4)
    in_flight = pd.DataFrame({"id": first["id"].repeat(first["repeats"])})
    second = suggest(folder, pd.concat([results, in_flight]), batch_size=4)
    assert set(second["id"]) != set(first["id"])


def test_all_results_may_be_in_flight(folder, arms):
    results = pd.DataFrame({"id": ["000", "001"], "reward": [None, None]})
    assert suggest(folder, results)["repeats"].sum() == 6


def test_a_seed_repeats_the_batch(folder, arms):
    results = measure(arms, [1, 2, 3])
    pd.testing.assert_frame_equal(suggest(folder, results), suggest(folder, results))


def test_tables_may_be_parquet_with_other_column_names(arms, tmp_path):
    renamed = arms.rename(columns={"id": "name"})
    renamed.to_parquet(tmp_path / "arms.parquet")
    results = measure(arms, [0, 3, 3, 7]).rename(
        columns={"id": "name", "reward": "yield"}
    )
    results.to_parquet(tmp_path / "results.parquet")
    words = ["--observations", str(tmp_path / "results.parquet"), "--batch-size", "4"]
    words += ["--id", "name", "--reward", "yield"]
    words += ["--output", str(tmp_path / "next.parquet")]
    assert main(["suggest", str(tmp_path / "arms.parquet"), *words]) == 0
    batch = pd.read_parquet(tmp_path / "next.parquet")
    assert batch["repeats"].sum() == 4
    assert set(batch["name"]) <= set(arms["id"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("000,1\n999,2\n", "measures id '999' in row 2"),
        ("000,1\n,2\n", "has no id in row 2"),
        ("000,1\n001,good\n", "reward 'good' in row 2"),
        ("000,inf\n", "reward 'inf' in row 1"),
    ],
)
def test_bad_results_are_refused(folder, capsys, rows, message):
    (folder / "results.csv").write_text(f"id,reward\n{rows}")
    assert message in failed(
        folder, capsys, "--observations", str(folder / "results.csv")
    )
    assert not (folder / "next.csv").exists()


@pytest.mark.parametrize(
    ("header", "option"), [("name,reward", "--id"), ("id,gain", "--reward")]
)
def test_results_without_their_columns_are_refused(folder, capsys, header, option):
    (folder / "results.csv").write_text(f"{header}\n000,1\n")
    error = failed(folder, capsys, "--observations", str(folder / "results.csv"))
    assert f"Name it by {option}" in error


def test_bad_candidates_are_refused(folder, arms, capsys):
    pd.concat([arms, arms[:1]]).to_csv(folder / "arms.csv", index=False)
    assert "'000' more than once, again in row 41" in failed(folder, capsys)
    arms.assign(id=None).to_csv(folder / "arms.csv", index=False)
    assert "has no id in row 1" in failed(folder, capsys)
    arms.drop(columns="id").to_csv(folder / "arms.csv", index=False)
    assert "no column 'id'" in failed(folder, capsys)


def test_a_bad_output_name_is_refused_before_the_work(folder, capsys):
    assert "*.parquet" in failed(folder, capsys, "--output", str(folder / "next.xlsx"))


def test_fewer_come_where_fewer_are_left(folder, arms, capsys):
    results = measure(arms, range(30))
    batch = suggest(folder, results, "--max-repeats", "1", batch_size=12)
    assert batch["repeats"].sum() == len(batch) == 10
    assert "--max-repeats 1 leaves only 10 of 12 measurements" in (
        capsys.readouterr().out
    )


def test_a_choice_among_nothing_is_refused(folder, arms, capsys):
    measure(arms, range(NUM_ARMS)).to_csv(folder / "results.csv", index=False)
    words = ["--observations", str(folder / "results.csv"), "--max-repeats", "1"]
    assert "have had their repeats" in failed(folder, capsys, *words)


def test_the_loop_chooses_what_the_command_chooses(folder, arms):
    x = torch.tensor(arms["temperature"], dtype=torch.float64).unsqueeze(-1)
    loop = SuggestLoop(x, seed=3, batch_size=5)
    results = pd.DataFrame({"id": pd.Series(dtype=str), "reward": []})
    for seed in range(3):
        batch = suggest(
            folder, results, "--drop", "solvent", "--seed", "3", batch_size=5
        )
        indices = loop.ask()
        assert batch["id"].astype(int).tolist() == indices.tolist()
        measured = measure(arms, indices.tolist(), seed=seed)
        loop.tell(indices, torch.tensor(measured["reward"].to_numpy()))
        results = pd.concat([results, measured])
    assert loop.num_pulls == 15
    before = loop.best_arm()
    assert len(loop.ask(max_size=2)) == 2
    assert loop.best_arm() == before


def test_the_output_may_not_replace_a_table_that_was_read(folder, arms, capsys):
    before = (folder / "arms.csv").read_text()
    same = str(folder / "arms.csv")
    assert main(["suggest", same, "--output", same]) == 2
    assert "which it would replace" in capsys.readouterr().err
    assert (folder / "arms.csv").read_text() == before


def test_a_folder_is_no_table_of_results(folder, capsys):
    assert "is a folder" in failed(folder, capsys, "--observations", str(folder))


def test_whole_number_ids_may_have_become_decimal(folder, arms):
    numbered = arms.assign(id=range(len(arms)))
    numbered.to_csv(folder / "arms.csv", index=False)
    results = measure(numbered, [0, 7, 9]).assign(id=["0.0", "7.0", "9.0"])
    assert len(suggest(folder, results)) > 0


def test_candidates_of_the_same_features_are_named(folder, arms, capsys):
    copy = arms.iloc[[7]].assign(id="copy")
    pd.concat([arms, copy]).to_csv(folder / "arms.csv", index=False)
    batch = suggest(folder, batch_size=NUM_ARMS)
    assert "copy" not in set(batch["id"])
    assert (
        "1 candidates have the features of an earlier one, such as copy those of 007"
        in capsys.readouterr().out
    )
    everything = measure(arms, range(NUM_ARMS))
    batch = suggest(folder, everything, "--max-repeats", "1", batch_size=1)
    assert batch["id"].tolist() == ["copy"]
