"""`suggest` with several outcomes: objectives, targets and limits."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from botorch_bkb import AtLeast, AtMost, Maximize, Minimize, OutcomesBandit, Target
from botorch_bkb.__main__ import main
from botorch_bkb.bandits import rbf_to_learn
from tests.cli.test_report import assert_self_contained


RNG = np.random.default_rng(0)
ARMS = pd.DataFrame(
    {
        "id": [f"R{n:02d}" for n in range(40)],
        "heat": RNG.uniform(20, 90, 40).round(1),
        "load": RNG.uniform(0, 5, 40).round(2),
    }
)
LIMITED = ["--maximize=yield", "--limit", "impurity <= 2"]
FRONT = ["--maximize=yield", "--minimize=cost", "--limit", "yield>=50"]


def measured(arms):
    heat, load = arms["heat"], arms["load"]
    return pd.DataFrame(
        {
            "yield": 80 - 0.03 * (heat - 60) ** 2 + 2 * load,
            "cost": 2 + 3 * load + heat / 30,
            "impurity": heat / 30 + load / 10,
            "viscosity": 10 ** (1.5 + heat / 60 + load / 10),
        }
    )


RESULTS = ARMS[["id"]].join(measured(ARMS))[::2].reset_index(drop=True)


def run(*words, results=RESULTS, code=0):
    """Return NEXT, if the command ends with this code, and 0."""
    ARMS.to_csv("arms.csv", index=False)
    results.to_csv("results.csv", index=False)
    words = ["suggest", *words, "--observations=results.csv", "--batch-size=4"]
    assert main([*words, *["arms.csv"] * ("arms.csv" not in words)]) == code
    return pd.read_csv("next.csv") if code == 0 else None


def partial():
    """Return noisy results: one is in flight, and two have open outcomes."""
    results = RESULTS.copy()
    noise = np.random.default_rng(1).normal(1.0, 0.2, (20, 4))
    results.iloc[:, 1:] *= noise
    results.loc[3, ["yield", "cost", "impurity", "viscosity"]] = np.nan
    results.loc[5, "yield"] = results.loc[8, "impurity"] = np.nan
    return results


ROLES = {
    "a limit": (LIMITED, {"yield": Maximize(), "impurity": AtMost(2.0)}),
    "a front": (FRONT, {"yield": [Maximize(), AtLeast(50.0)], "cost": Minimize()}),
    "a target": (
        ["--target", "viscosity = 275 +- 5", "--limit=impurity < 2", "--kernel=rbf"],
        {"viscosity": Target(275.0, 5.0), "impurity": AtMost(2.0)},
    ),
}


@pytest.mark.usefixtures("full_fits")
@pytest.mark.parametrize("name", ROLES)
def test_the_batch_is_that_of_the_bandit(name, capsys):
    words, roles = ROLES[name]
    results = partial()
    batch = run(*words, results=results)
    kernels = dict.fromkeys(roles, rbf_to_learn) if "--kernel=rbf" in words else None
    arms = ARMS[["heat", "load"]].to_numpy()
    bandit = OutcomesBandit(arms, roles, covar_module=kernels, seed=0)
    places = ARMS.index[ARMS["id"].isin(results["id"])].to_numpy()
    told = results[[*roles]]
    is_open = told.isna().any(axis="columns").to_numpy()
    bandit.add_observations(places[~is_open], told[~is_open])
    bandit.add_pending(places[is_open])
    bandit.tell(places[is_open], told[is_open])
    picks = bandit.ask(4)
    assert list(batch["id"]) == list(ARMS["id"][picks.numpy()])
    expected = pd.DataFrame(bandit.predictions(picks)).drop(columns="arm")
    assert list(batch) == [*ARMS, "repeats", *expected, *roles]
    pd.testing.assert_frame_equal(batch[[*expected]], expected, rtol=1e-4)
    assert batch[[*roles]].isna().all(axis=None)
    said = f"{(~is_open).sum()} measurements in all, {is_open.sum()} with open"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--maximize", "yield"], ["--reward", "yield"]),
        (["--minimize", "cost"], ["--reward", "cost", "--minimize"]),
        (["--reward=cost", "--minimize", "arms.csv"], ["--reward=cost", "--minimize"]),
        (["--minimize", "arms.csv"], ["arms.csv", "--minimize"]),
        (["arms.csv", "--minimize"], ["arms.csv", "--minimize", "reward"]),
        (["--minimize", "cost", "arms.csv"], ["arms.csv", "--minimize", "cost"]),
    ],
)
def test_one_outcome_is_a_reward(words, same):
    results = RESULTS.assign(reward=RESULTS["impurity"])
    pd.testing.assert_frame_equal(
        run(*words, results=results), run(*same, results=results)
    )


@pytest.mark.usefixtures("full_fits")
def test_the_best_predictions_hold_the_limits(capsys):
    run(*LIMITED, "--predictions=all.csv")
    run(*LIMITED, "--predictions=top.csv", "--top=7")
    table, top = pd.read_csv("all.csv"), pd.read_csv("top.csv")
    assert list(table["id"]) == list(ARMS["id"])
    holds = table[table["probability_feasible"] >= 0.95]
    holds = holds.sort_values("yield_mean", ascending=False, ignore_index=True)
    pd.testing.assert_frame_equal(top, holds[:7])
    # The printed candidate is the best measured one of these.
    best = holds["id"][holds["id"].isin(RESULTS["id"])].iloc[0]
    said = capsys.readouterr().out
    assert re.search(rf"Best measured so far:\n{best}: yield .* of \d+ %\n", said)


@pytest.mark.usefixtures("full_fits")
def test_the_front_comes_first(capsys):
    run(*FRONT, "--predictions=all.csv")
    run(*FRONT, "--predictions=top.csv", "--top=12")
    table = pd.read_csv("all.csv").set_index("id")
    holds = table[table["probability_feasible"] >= 0.95]

    def front(rows):
        gain, cost = rows["yield_mean"].to_numpy(), rows["cost_mean"].to_numpy()
        better = (gain >= gain[:, None]) & (cost <= cost[:, None])
        found = rows[better.sum(axis=-1) == 1]  # a row is as good as itself
        return list(found.sort_values("yield_mean", ascending=False).index)

    expected = front(holds)[:12]
    top = pd.read_csv("top.csv")["id"]
    assert list(top[: len(expected)]) == expected
    own = front(holds[holds.index.isin(RESULTS["id"])])
    said = f"front of the measured candidates, {len(own)} by the model:\n{own[0]}"
    assert said in capsys.readouterr().out


def test_a_report_of_several_outcomes():
    words = ["--target=viscosity = 350", "--limit=impurity <= 2", "--report=r.html"]
    run(*FRONT, *words, results=partial())
    # Three pairs of objectives, and two pictures of each of four outcomes.
    parsed = assert_self_contained(Path("r.html"), num_images=3 + 2 * 4)
    alts = [image["alt"] for image in parsed.all("img")]
    for pair in ("yield and cost", "yield and viscosity", "cost and viscosity"):
        assert sum(alt.startswith(f"Scatter chart of {pair}: ") for alt in alts) == 1
    for name in ("yield", "cost", "impurity", "viscosity"):
        assert f"{name}: Progress" in parsed.text
        assert f"{name}: lengthscale" in parsed.text


@pytest.mark.parametrize("limit", [0.9, 0.1])
def test_no_candidate_holds_the_limits(limit, capsys):
    """The most probable one is shown, also if its probability underflows."""
    run("--maximize=yield", "--limit", f"impurity <= {limit}")
    best = RESULTS["id"][RESULTS["impurity"].argmin()]
    assert (
        "No measured candidate meets the limits with a probability of 95 %. The most "
        f"probable:\n{best}: yield "
    ) in capsys.readouterr().out


@pytest.mark.usefixtures("full_fits")
def test_results_that_are_all_at_a_limit_meet_it(capsys):
    words = ["--limit=solid<=0", "--limit=pH>=7", "--predictions=p.csv", "--top=5"]
    results = RESULTS.assign(solid=0, pH=7)
    run("--maximize=yield", *words, results=results)
    said = capsys.readouterr().out
    assert re.search(r"so far:\n(R00|R36): yield 85.*, solid 0.0000 ", said)
    assert (pd.read_csv("p.csv")["probability_feasible"] == 1).all()
    assert pd.read_csv("p.csv")["yield_mean"].is_monotonic_decreasing
    assert (pd.read_csv("p.csv")["pH_low"] == 7).all()  # not rounded
    run("--maximize=yield", *words, "--bounds=pH=8:9", results=results)
    assert "20 of 20 results are outside of --bounds" in capsys.readouterr().out


def test_too_few_results_of_an_outcome(capsys):
    """Others are predicted, and the limits only if all of their outcomes are."""
    results = RESULTS.copy()
    results.loc[3:, "impurity"] = np.nan
    batch = run(*LIMITED, "--report=r.html", "--predictions=p.csv", results=results)
    assert batch["yield_mean"].notna().all()
    hidden = ["impurity_mean", "impurity_low", "probability_feasible"]
    assert batch[hidden].isna().all(axis=None)
    assert "no model of impurity yet: it needs 4 results" in capsys.readouterr().out
    assert "nan" not in Path("r.html").read_text().lower()
    # No result is fewer still. The best predictions are those of the others.
    words = [*LIMITED, "--predictions=p.csv", "--top=7", "--report=r.html"]
    batch = run(*words, results=RESULTS.assign(impurity=np.nan))
    assert batch["yield_mean"].notna().all()
    assert "nan" not in Path("r.html").read_text().lower()
    means = pd.read_csv("p.csv")["yield_mean"]
    assert len(means) == 7
    assert means.notna().all()
    assert means.is_monotonic_decreasing
    # Limits of the others order them, too.
    run(*words, "--limit=cost<=9", results=RESULTS.assign(impurity=np.nan))
    assert (pd.read_csv("p.csv")["cost_mean"] < 9).all()
    batch = run(*LIMITED, "--report=r.html", results=RESULTS[:0])
    assert batch["yield_mean"].isna().all()
    assert "nan" not in Path("r.html").read_text().lower()


def test_a_campaign_of_combinations(capsys):
    """The files of two rounds are the results of the third, with an open outcome."""
    arms = ["--component=heat=20,30,40,50,60,70,80,90", "--component=load=0,1,2,3,4,5"]
    told = []
    for number in range(3):
        path = f"{number}.csv"
        words = [*arms, *FRONT, *LIMITED[1:], *told, "--batch-size=5"]
        assert main(["suggest", *words, f"--output={path}", "--predictions=p.csv"]) == 0
        batch = pd.read_csv(path)
        outcomes = ["yield", "cost", "impurity"]
        batch[outcomes] = measured(batch)[outcomes]
        batch.loc[1, "impurity"] = np.nan
        batch.to_csv(path, index=False)
        told += [f"--observations={path}"]
    assert "8 measurements in all, 2 with open outcomes" in capsys.readouterr().out
    assert len(pd.read_csv("p.csv")) == 48
    # The predictions of other outcomes are no entries; a filled-in batch is kept.
    empty = batch.assign(**dict.fromkeys(outcomes))
    empty.to_csv("o.csv", index=False)
    one = [*arms, "--reward=yield", *told, "--batch-size=2", "--output=o.csv"]
    assert main(["suggest", *one]) == 0
    assert main(["suggest", *words, f"--output={path}"]) == 2
    assert "exists, and 5 of its rows have entries" in capsys.readouterr().err


def test_a_failed_outcome_is_a_failed_measurement(capsys):
    results = RESULTS.astype({"impurity": object})
    results.loc[1, "impurity"] = "failed"
    run(*LIMITED, "--per-measurement", results=results)
    assert "last measurement failed: 1 (R02)" in capsys.readouterr().out
    assert list(pd.read_csv("next.csv")) == list(RESULTS)


def test_a_failure_counts_whichever_file_comes_last(capsys):
    told = RESULTS.astype(object)
    told.loc[1, "impurity"] = "failed"
    told[["id", "impurity"]].to_csv("impurity.csv", index=False)
    words = [*LIMITED, "--observations=impurity.csv"]
    run(*words, results=told[["id", "yield"]])
    said = capsys.readouterr().out
    assert "last measurement failed: 1 (R02)" in said
    assert "19 measurements in all, 0 with open outcomes" in said
    # A later result of that outcome decides.
    told[["id", "yield"]].to_csv("yield.csv", index=False)
    words += ["--observations=yield.csv"]
    run(*words, results=RESULTS[1:2][["id", "impurity"]])
    assert "failed" not in capsys.readouterr().out


def test_files_of_one_outcome_are_not_entered_twice(capsys):
    for name in ("yield", "impurity"):
        RESULTS[["id", name]].to_csv(f"{name}.csv", index=False)
    words = [*LIMITED, "--observations=yield.csv", "--observations=impurity.csv"]
    run(*words, results=RESULTS[["id", "yield"]], code=2)
    assert "40 of 60 measurements are equal to another row" in capsys.readouterr().err
    run(*words, "--replicates-are-real", results=RESULTS[["id", "yield"]])
    assert "20 measurements in all, 20 with open outcomes" in capsys.readouterr().out


def test_a_row_that_is_entered_again_when_complete_counts_once(capsys):
    first = RESULTS.assign(impurity=np.nan, day="Monday")
    again = RESULTS[:5].assign(day="Friday")
    again.loc[4, "yield"] += 1  # another measurement of that candidate
    results = pd.concat([first, again])
    picks = run(*LIMITED, results=results)
    said = capsys.readouterr().out
    assert "4 results with open outcomes were entered again" in said
    assert "such as row 2" in said
    assert "5 measurements in all, 16 with open outcomes or in flight" in said
    # Without those rows all is the same.
    pd.testing.assert_frame_equal(picks, run(*LIMITED, results=results[4:]))
    assert "entered again" not in capsys.readouterr().out
    # A row that failed does not count in place of another one.
    failed = again.astype(object)
    failed["cost"] = "failed"
    words = ["--maximize=yield", "--limit", "impurity <= 2", "--minimize=cost"]
    open_ones = RESULTS.assign(impurity=np.nan, cost=np.nan)
    run(*words, results=pd.concat([open_ones, failed]))
    assert "entered again" not in capsys.readouterr().out
    # The remedy.
    run(*LIMITED, "--replicates-are-real", results=results)
    assert "5 measurements in all, 20 with open" in capsys.readouterr().out


def test_outcomes_of_a_candidate_may_be_measured_on_different_days(capsys):
    yields = RESULTS[["id", "yield"]].assign(day="Monday")
    RESULTS[["id", "impurity"]].assign(day="Friday").to_csv("i.csv", index=False)
    run(*LIMITED, "--observations=i.csv", "--group=day", results=yields)
    said = "20 measurements in all, 0 with open outcomes or in flight"
    assert said in capsys.readouterr().out


def test_an_outcome_of_all_candidates_in_one_table_leaves_the_others_to_measure(
    capsys,
):
    own = ARMS.join(measured(ARMS)[["yield", "impurity"]])
    own["yield"] = own["yield"].where(own.index < 36)
    own.to_csv("own.csv", index=False)
    words = ["suggest", "own.csv", "--observations=./own.csv", *LIMITED]
    assert main([*words, "--batch-size=4", "--max-repeats=1"]) == 0
    assert {*pd.read_csv("next.csv")["id"]} == {*own["id"][36:]}
    said = "36 measurements in all, 0 with open outcomes or in flight"
    assert said in capsys.readouterr().out
    # Later rows have both outcomes.
    ARMS[["id"]].join(measured(ARMS))[36:38].to_csv("later.csv", index=False)
    words += ["--observations=later.csv", "--output=n.csv", "--batch-size=2"]
    assert main([*words, "--max-repeats=2"]) == 0
    said = "38 measurements in all, 0 with open outcomes or in flight"
    assert said in capsys.readouterr().out


def test_repeats_of_outcomes_with_files_of_their_own():
    whole = ARMS[["id"]].join(measured(ARMS))
    whole[["id", "impurity"]].to_csv("i.csv", index=False)
    words = [*LIMITED, "--observations=i.csv", "--max-repeats=2"]
    assert len(run(*words, results=whole[["id", "yield"]])) == 4


@pytest.mark.parametrize("words", [["--minimize=heat"], ["--target", "heat = 50"]])
def test_a_setting_is_no_outcome(words, capsys):
    results = RESULTS.merge(ARMS, on="id")
    run("--maximize=yield", *words, results=results, code=2)
    assert "names 'heat', a column that all candidates" in capsys.readouterr().err
    # The remedy: the result has another name.
    words = [word.replace("heat", "final heat") for word in words]
    run(
        "--maximize=yield",
        *words,
        results=results.rename(columns={"heat": "final heat"}),
    )


def test_predictions_of_an_outcome_with_a_comma_can_be_replaced():
    results = RESULTS.rename(columns={"impurity": "impurity, %"})
    words = ["--maximize=yield", "--limit", "impurity, % <= 2", "--predictions=p.csv"]
    for _ in range(2):
        run(*words, results=results)
    assert "impurity, %_mean" in pd.read_csv("p.csv")


def test_a_batch_of_other_outcomes_can_be_replaced():
    run(*LIMITED)
    assert {"yield_mean", "cost_mean"} < {*run("--maximize=yield", "--minimize=cost")}


def test_each_outcome_may_have_a_file(capsys):
    expected = run(*LIMITED)
    said = capsys.readouterr().out
    for name in ("yield", "impurity"):
        RESULTS[["id", name]].to_csv(f"{name}.csv", index=False)
    words = [*LIMITED, "--observations=impurity.csv"]
    found = run(*words, results=RESULTS[["id", "yield"]])
    pd.testing.assert_frame_equal(found, expected)
    assert "0 with open outcomes or in flight" in said
    assert "0 with open outcomes or in flight" in capsys.readouterr().out
    # Empty cells of one file are open outcomes of the rows of the other.
    known = RESULTS["impurity"].where(RESULTS.index < 15)
    RESULTS[["id"]].assign(impurity=known).to_csv("open.csv", index=False)
    run(*LIMITED, "--observations=open.csv", results=RESULTS[["id", "yield"]])
    assert "15 measurements in all, 5 with open outcomes" in capsys.readouterr().out
    said = "40 candidates, 0 of them measured, 0 measurements in all, 20 with open"
    run(*LIMITED, results=RESULTS.assign(impurity=np.nan))
    assert said in capsys.readouterr().out
    apart = RESULTS.assign(impurity=RESULTS["impurity"].where(RESULTS.index < 9))
    apart["yield"] = apart["yield"].where(apart.index >= 9)
    run(*LIMITED, results=apart)
    told = capsys.readouterr().out
    assert said in told
    assert "No candidate has results of all outcomes yet, so none is the best." in told
    # Of two results of the yield, one has no impurity yet.
    again = pd.concat([RESULTS, RESULTS[:1]])[["id", "yield"]]
    run(*words, results=again.assign(other=range(21)))
    assert "1 with open outcomes or in flight" in capsys.readouterr().out
    run("--maximize=yield", "--minimize=cost", results=RESULTS[["id", "yield"]], code=2)
    assert "results.csv has no column 'cost'" in capsys.readouterr().err
    slip = RESULTS.rename(columns={"impurity": "Impurty"})
    run(*words, results=slip, code=2)
    error = capsys.readouterr().err
    assert "results.csv has no column 'impurity', but one with a name like it" in error
    assert "'Impurty'. Correct that name, or add an empty column 'impurity'." in error
    run(*words, results=slip.assign(impurity=np.nan))
    # An earlier campaign, too. Outcomes may have any name.
    run(*LIMITED, "--earlier=yield.csv")
    run(
        "--maximize=group",
        "--minimize=arm",
        results=partial().rename(columns={"yield": "group", "cost": "arm"}),
    )


def test_an_outcome_of_controls_alone_has_no_model_yet(capsys):
    results = RESULTS.assign(plate=["a", "b"] * 10, impurity=np.nan)
    controls = results[:2].assign(id="std", impurity=1.0)
    words = [*LIMITED, "--group=plate", "--control=std"]
    assert len(run(*words, results=pd.concat([results, controls]))) > 0
    assert "There is no model of impurity yet" in capsys.readouterr().out


BOTH = "but got both. For outcomes, pass (?P<words>.*) instead"
REFUSED = {
    "a limit of a reward": (["--reward=yield", *LIMITED[1:]], BOTH),
    "a limit of a score": (
        ["--objective=yield:max:0:100", "--limit", "yield >= 50"],
        BOTH,
    ),
    "a target beside a score": (
        ["--objective=cost:min:0:9", "--target=viscosity = 350 +- 10"],
        BOTH,
    ),
    "two scores of a column": (
        ["--objective=yield:max:0:100", "--objective=yield:max:50:100"],
        "a column of its own.* For a limit, pass (?P<words>.*) instead",
    ),
    "a limit alone": (
        ["--limit=impurity <= 2"],
        "such as (?P<words>.*)[.]$",
    ),
    "a limit of small rewards": (["--minimize", *LIMITED[1:]], BOTH),
    "a threshold": (
        [*LIMITED, "--threshold=50"],
        "--threshold does not go with .* In place of --threshold, pass "
        '(?P<more>--limit "COLUMN >= X")[.]',
    ),
    "a logarithm": ([*LIMITED, "--log-reward"], "--log-reward does not go with outco"),
    "a width": ([*LIMITED, "--confidence=1"], "--confidence .* Leave it out"),
    "a goal": ([*LIMITED, "--goal=regret"], "--goal regret .* Leave it out"),
    "noise": ([*LIMITED, "--noise-std=sd"], "--noise-std .* Leave it out"),
    "two directions": (["--maximize=cost", "--minimize=cost"], "Keep one of them"),
    "a setting": (["--maximize=yield", "--limit=heat <= 60"], "'heat'.* is a setting"),
    "no such column": ([*LIMITED, "--minimize=price"], "no column 'price'"),
    "a column of the batch": ([*LIMITED, "--maximize=repeats"], "repeats.*Rename it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_remedy_that_works(name, capsys):
    words, says = REFUSED[name]
    results = RESULTS.assign(reward=RESULTS["yield"])
    run(*words, results=results, code=2)
    error = capsys.readouterr().err.strip()
    found = re.search(says, error)
    assert found is not None, error
    remedy = found.groupdict()
    if remedy.get("words"):
        run(*shlex.split(remedy["words"]), results=results)
    elif remedy.get("more"):
        more = remedy["more"].replace("COLUMN", "yield").replace("X", "50")
        run(*LIMITED, *shlex.split(more), results=results)
