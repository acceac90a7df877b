"""Remedies that `suggest` prints work: they are read from the message and followed."""

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


RNG = np.random.default_rng(0)
HEATS, SOLVENTS = [20.0, 40.0, 60.0, 80.0], ["DMF", "THF", "water"]
ARMS = pd.MultiIndex.from_product(
    [HEATS, SOLVENTS, [1.0, 2.5, 5.0]], names=["heat", "solvent", "load"]
).to_frame(index=False)
ARMS.insert(0, "id", [f"C{n:02d}" for n in range(len(ARMS))])
YIELDS = 60 - (ARMS["heat"] - 50) ** 2 / 30 + 4 * ARMS["load"] + RNG.normal(size=36)
MEASURED = RNG.permutation(36)[:24]
RESULTS = pd.DataFrame({"id": ARMS["id"], "reward": YIELDS.round(2)}).loc[MEASURED]
# Before a model is fitted: faults of tables need none.
FEW = RESULTS.head(3)
LISTS = ["--component=heat=20,40,60,80", "--component=solvent=DMF,THF,water"]
BATCH = ["--batch-size=3"]
ONCE = ["--goal=regret", "--max-repeats=1"]


class Inputs(NamedTuple):
    """Two tables, or several of results by their names, and the options."""

    arms: pd.DataFrame | None
    results: Any
    words: list[str]


def state(arms=ARMS, results=FEW, *words):
    return Inputs(arms, results, [*words])


def run(given: Inputs) -> tuple[int, str]:
    """Return the exit code, and what the command printed, in one line."""
    words = ["suggest", *BATCH, *given.words]
    if given.arms is not None:
        given.arms.to_csv("arms.csv", index=False)
        words.insert(1, "arms.csv")
    tables = given.results
    if isinstance(tables, pd.DataFrame):
        tables = {"results.csv": tables}
    for name, table in tables.items():
        table.to_csv(name, index=False)
        words.append(f"--observations={name}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    return code, " ".join(printed.getvalue().split())


def option(found, given):
    """Add the option that the message has in the group of this name."""
    return given._replace(words=[*given.words, *shlex.split(found["option"])])


def without(*options):
    """Return a remedy that leaves options out."""
    return lambda found, given: given._replace(
        words=[word for word in given.words if not word.startswith(options)]
    )


def arms_with(change):
    return lambda found, given: given._replace(arms=change(given.arms, found))


def results_with(change):
    return lambda found, given: given._replace(results=change(given.results, found))


def column(table, name, change):
    return table.assign(**{name: change(table[name])})


def make_folder(name, given):
    Path(name).mkdir()
    return given


def row(table, number, **cells):
    """Return a table with other cells in a row, as a spreadsheet counts them."""
    table = table.astype("object").reset_index(drop=True)
    for name, value in cells.items():
        table.loc[number - 2, name] = value
    return table


def drop_rows(table, is_wrong):
    return table[~np.asarray(is_wrong)]


PLATES = pd.concat(
    [
        ARMS.assign(plate=f"P{n}", well=ARMS["id"], heat=ARMS["heat"] + n)
        for n in (1, 2, 3)
    ]
).drop(columns="id")
JOINED = FEW.assign(plate="P2").rename(columns={"id": "well"})


def join(table):
    return table.assign(well=table["plate"] + "-" + table["well"]).drop(columns="plate")


def plates_joined(found, given):
    assert found["example"] == "P1-A1"
    assert int(found["rows"]) == 72
    return given._replace(arms=join(given.arms), results=join(given.results))


# A ligand that some reactions do not have.
LIGAND = np.where(ARMS["solvent"] == "THF", np.nan, ARMS["load"] * 1.5)
KIND = pd.Series(["PPh3", "XPhos"] * 18).mask(ARMS["solvent"] == "THF")


def median_and_yes_no(found, given):
    name = found["column"]
    values, has_it = given.arms[name], given.arms[name].notna()
    filler = values.median() if found["by"] == "the column's median" else found["word"]
    arms = given.arms.assign(
        **{
            name: values.fillna(filler),
            "applies": has_it.map({True: "yes", False: "no"}),
        }
    )
    words = given.words
    if filler == found["word"]:
        words = [*words, *shlex.split(found["option"])]
    return given._replace(arms=arms, words=words)


GAP = (
    r"Column '(?P<column>[^']*)' has a missing.*does not apply there, write (?P<by>the "
    r"column's median) \(or a word such as (?P<word>\w+), and (?P<option>--category "
    r".*?)\), and add a column of yes and no"
)


def with_marks(*marks, results=RESULTS):
    """Return results with marks in random rows, and the rewards as objects."""
    changed = results.reset_index(drop=True)
    changed.loc[np.arange(len(marks)) * 2, "reward"] = marks
    return changed


def is_mark(table):
    return pd.to_numeric(table["reward"]).abs() > 900


def failed(table, found):
    return table.assign(
        reward=table["reward"].astype("object").mask(is_mark(table), found["word"])
    )


def worst(table, found):
    rest = table["reward"][~is_mark(table)]
    return table.assign(reward=table["reward"].mask(is_mark(table), rest.min()))


FAR = r"Warning: {} of \d+ results .* are far beyond all others\. Correct slips\. "
FAR += r"Write (?P<word>\w+) for a failed measurement, and the worst real result for a "
FAR += r"penalty\. If they are right, {}"
POWERS = RESULTS.assign(reward=10 ** (RESULTS["reward"] / 18 - 2))


def logs(found, given):
    """Follow the steps before --log-reward, and pass it."""
    results, words = given.results, given.words
    if found["sign"]:
        results = column(results, "reward", abs)
        words = [word for word in words if word != "--minimize"]
        words = [*words, *(["--minimize"] if found["sign"] == "pass" else [])]
    if found["zeros"]:
        limit = results["reward"][results["reward"] > 0].min()
        results = column(results, "reward", lambda cells: cells.replace(0, limit))
    return given._replace(
        results=results, words=[*words, *shlex.split(found["option"])]
    )


DECADES = (
    r"results span .* decades.*Pass (?P<option>--log-reward), which fits their "
    r"logarithms(?:\. Before, write results without the minus and (?P<sign>pass|leave "
    r"out) --minimize)?(?P<zeros>\. Before, write the detection limit in place of 0)?\."
)
PERCENT = {
    "one.csv": RESULTS.head(12),
    "two.csv": column(RESULTS.tail(12), "reward", lambda cells: cells / 100),
}
HUNDREDTH = (
    r"values of column '(?P<column>\w+)' in (?P<file>.+?) are about a hundredth of "
    r"those in (?P<other>.+?)\. Write both as percentages"
)


def times_100(found, given):
    name, file = found["column"], found["file"]
    tables = given.results
    if isinstance(tables, dict):
        fixed = column(tables[file], name, lambda cells: 100 * cells)
        return given._replace(results={**tables, file: fixed})
    if file == "arms.csv":
        return given._replace(arms=column(given.arms, name, lambda cells: 100 * cells))
    return given._replace(results=column(tables, name, lambda cells: 100 * cells))


def fractions(table, name="load"):
    return column(table, name, lambda cells: cells / 100)


WITH_SETTINGS = FEW.merge(ARMS, on="id")
ROUNDS = RESULTS.assign(
    plate=np.arange(24) % 3 + 1,
    reward=RESULTS["reward"] + 300 * (np.arange(24) % 3),
)


def relative_to_round(table, found):
    means = table.groupby("plate")["reward"].transform("mean")
    return table.assign(reward=table["reward"] / means)


class Case(NamedTuple):
    """A situation, what the message says, and how its remedy is followed."""

    given: Inputs
    says: str
    follow: Callable[..., Any]


NOTED = r"Note: column '{}' is a feature \((?P<drop>.*) leaves it out"
DROPS = NOTED.replace("drop", "option") + r"\)"
AVAILABLE = NOTED + r"; (?P<option>--available .*) if it says what is available\)"
IN_STOCK = ["yes", "no", "yes"] * 12
COMMENTS = [
    f"see page {n} of book {'ABC'[n % 3]}" if n > 3 else "ok" for n in range(20)
]

CASES = {
    # Columns of candidates -----------------------------------------------------------
    "words that differ in nearly every row": Case(
        state(ARMS.head(20).assign(comment=COMMENTS), RESULTS[RESULTS["id"] < "C20"]),
        DROPS.format("comment"),
        option,
    ),
    "a column of yes and no": Case(
        state(ARMS.assign(**{"to buy": IN_STOCK})), AVAILABLE.format("to buy"), option
    ),
    "one no": Case(
        state(ARMS.assign(ready=["no"] + ["Yes"] * 35)),
        AVAILABLE.format("ready"),
        option,
    ),
    "true and false about stock": Case(
        state(ARMS.assign(available=[True, False] * 18)),
        AVAILABLE.format("available"),
        option,
    ),
    "amounts in stock": Case(
        state(ARMS.assign(stock=[0, 5, 12] * 12)), AVAILABLE.format("stock"), option
    ),
    "a few suppliers": Case(
        state(ARMS.assign(supplier=["TCI", "ABCR", "Merck"] * 12)),
        DROPS.format("supplier"),
        option,
    ),
    "many words": Case(
        state(ARMS.assign(**{"name (IUPAC)": [f"acid {'x' * n}" for n in range(36)]})),
        r"'name \(IUPAC\)' .*Pass --id \S+ \S+ if it names the rows.*or (?P<option>"
        r"--drop .*?)\.( |$)",
        option,
    ),
    "many categories": Case(
        state(ARMS.assign(**{"name (IUPAC)": [f"acid {'x' * n}" for n in range(36)]})),
        r"pass (?P<option>--category .*?) if its values are names",
        option,
    ),
    "names that are ids": Case(
        state(
            ARMS.rename(columns={"id": "my name"}),
            FEW.rename(columns={"id": "my name"}),
        ),
        r"pass (?P<option>--id .*?) or --drop",
        option,
    ),
    "no ids": Case(
        state(ARMS.rename(columns={"id": "my name"}), WITH_SETTINGS.drop(columns="id")),
        r"pass --id .*? or (?P<option>--drop .*?)\. If it is a setting",
        option,
    ),
    "a setting that does not apply": Case(
        state(ARMS.assign(**{"ligand (eq)": LIGAND})), GAP, median_and_yes_no
    ),
    "a word that does not apply": Case(
        state(ARMS.assign(ligand=KIND)),
        GAP.replace("(?P<by>the column's median)", "(?P<by>)the column's median"),
        median_and_yes_no,
    ),
    "a setting that does not apply in one row": Case(
        state(row(ARMS, 4, load=np.nan)), GAP, median_and_yes_no
    ),
    "gaps": Case(
        state(ARMS.assign(**{"ligand (eq)": LIGAND})),
        r"leave columns out by (?P<option>--drop .*?), all of them by",
        option,
    ),
    "gaps of several columns": Case(
        state(ARMS.assign(ligand=KIND, **{"ligand (eq)": LIGAND})),
        r"all of them by (?P<option>--drop-incomplete)",
        option,
    ),
    "units": Case(
        state(column(ARMS, "heat", lambda cells: cells.astype("str") + " C")),
        r"'heat' has '20.0 C' in row 2 .*Write bare numbers: no unit",
        arms_with(
            lambda arms, found: column(
                arms, "heat", lambda cells: cells.str.removesuffix(" C")
            )
        ),
    ),
    "a slip in a word": Case(
        state(row(ARMS, 5, solvent="thf")),
        r"has '(?P<wrong>\w+)' in row .* differs from '(?P<right>\w+)' in case",
        arms_with(lambda arms, found: arms.replace(found["wrong"], found["right"])),
    ),
    "a far value": Case(
        state(row(ARMS.assign(load=np.arange(36)), 4, load=1e6)),
        r"scaled by its range.*Correct (?P<value>\S+) in row (?P<row>\d+)",
        arms_with(
            lambda arms, found: row(arms, int(found["row"]), load=3.0).infer_objects()
        ),
    ),
    "the plate's column is of one value": Case(
        state(ARMS, FEW, "--same=solvant"),
        r"features, such as \S+, (?P<name>\w+), \w+, but got 'solvant'",
        lambda found, given: given._replace(words=[f"--same={found['name']}"]),
    ),
    "no bits": Case(
        state(ARMS, FEW, "--kernel=tanimoto"),
        r"another (?P<option>--kernel)",
        lambda found, given: given._replace(words=["--kernel=rbf"]),
    ),
    "a column of the batch": Case(
        state(ARMS.assign(mean=ARMS["load"]), FEW, "--with-columns"),
        r"Rename the candidates' column",
        arms_with(lambda arms, found: arms.rename(columns={"mean": "mean load"})),
    ),
    "dates": Case(
        state(ARMS.assign(day=["03.02.2026", "04.02.2026", "05.02.2026"] * 12)),
        r"Write dates as (?P<form>\d{4}-\d\d-\d\d)",
        arms_with(
            lambda arms, found: column(
                arms,
                "day",
                lambda day: pd.to_datetime(pd.Series(day), dayfirst=True).astype("str"),
            )
        ),
    ),
    # Ids -----------------------------------------------------------------------------
    "wells that repeat on every plate": Case(
        state(PLATES, JOINED, "--id=well"),
        r"has the id 'C00' more than once, again in row 38 .*\(rows: (?P<rows>\d+)\)"
        r".*join plate and well in all tables, such as (?P<example>\S+)\.",
        plates_joined,
    ),
    "an id twice": Case(
        state(pd.concat([ARMS, ARMS.head(1)], ignore_index=True)),
        r"has the id 'C00' more than once, again in row (?P<row>38) .*remove the row",
        arms_with(lambda arms, found: arms.drop(index=int(found["row"]) - 2)),
    ),
    "no id": Case(
        state(row(ARMS, 4, id=None)),
        r"has no id in row (?P<row>\d+) .*Correct it",
        arms_with(lambda arms, found: row(arms, int(found["row"]), id="C02")),
    ),
    "ids without their zeros": Case(
        state(
            ARMS.assign(id=[f"{n:03d}" for n in range(36)]),
            FEW.assign(id=["1", "2", "3"]),
        ),
        r"has ids such as '(?P<like>\d+)'. Write ids alike in both tables",
        results_with(
            lambda table, found: column(
                table, "id", lambda ids: ids.str.zfill(len(found["like"]))
            )
        ),
    ),
    "a candidate that was removed": Case(
        state(ARMS[~ARMS["id"].isin(FEW["id"])]),
        r"If the candidate was removed.* write its settings, the same in all rows",
        results_with(lambda table, found: WITH_SETTINGS),
    ),
    "another name for ids": Case(
        state(ARMS, FEW.rename(columns={"id": "sample"})),
        r"Name one of its columns \['(?P<name>\w+)', 'reward'\] by --id or (?P<option>"
        r"--results-id)",
        lambda found, given: given._replace(words=[found["option"], found["name"]]),
    ),
    # Results -------------------------------------------------------------------------
    "saturated readings": Case(
        state(ARMS, row(row(RESULTS, 3, reward=">100"), 7, reward=">100")),
        r"has '>100' in row 3 of results.csv .*beyond a limit, such as >100: the limit",
        results_with(
            lambda table, found: column(
                table,
                "reward",
                lambda cells: cells.astype("str").str.removeprefix(">").astype("float"),
            )
        ),
    ),
    "a word in the results": Case(
        state(ARMS, row(FEW, 2, reward="exploded")),
        r"has 'exploded' in row (?P<row>\d+) of .*failed: the word (?P<word>\w+)",
        results_with(
            lambda table, found: row(table, int(found["row"]), reward=found["word"])
        ),
    ),
    "three marks": Case(
        state(ARMS, with_marks(1e12, 1e12, 1e12)),
        FAR.format(3, r"(?P<option>--log-reward|pass)"),
        results_with(failed),
    ),
    "six marks of 24": Case(
        state(ARMS, with_marks(*[-1e20] * 6)),
        FAR.format(6, "continue"),
        results_with(failed),
    ),
    "a mark": Case(
        state(ARMS, with_marks(-9999)), FAR.format(1, "continue"), results_with(failed)
    ),
    "marks of most": Case(
        state(ARMS, pd.concat([with_marks(*[999] * 12), RESULTS.assign(reward=999)])),
        FAR.format(36, "pass --log-reward"),
        results_with(lambda table, found: table[table["reward"] < 900]),
    ),
    "penalties": Case(
        state(ARMS, with_marks(-1e12, -2e12, -4e12, -3e12, -1.5e12)),
        FAR.format(5, "continue"),
        results_with(worst),
    ),
    "a large result": Case(
        state(ARMS, with_marks(2e4)),
        FAR.format(1, "pass (?P<option>--log-reward)"),
        option,
    ),
    "decades": Case(state(ARMS, POWERS), DECADES, logs),
    "decades with zeros": Case(
        state(ARMS, row(POWERS, 2, reward=0.0).infer_objects()), DECADES, logs
    ),
    "decades below zero": Case(
        state(ARMS, column(POWERS, "reward", lambda cells: -cells)), DECADES, logs
    ),
    "decades below zero, and small is good": Case(
        state(ARMS, column(POWERS, "reward", lambda cells: -cells), "--minimize"),
        DECADES,
        logs,
    ),
    "percentages in one file of results": Case(
        state(ARMS, PERCENT), HUNDREDTH, times_100
    ),
    "percentages of settings in the results": Case(
        state(fractions(ARMS), WITH_SETTINGS), HUNDREDTH, times_100
    ),
    "fractions of settings in the results": Case(
        state(ARMS, fractions(WITH_SETTINGS)), HUNDREDTH, times_100
    ),
    "fractions of settings without ids": Case(
        state(ARMS, fractions(WITH_SETTINGS.drop(columns="id"))), HUNDREDTH, times_100
    ),
    "rounds that differ": Case(
        state(ARMS, ROUNDS, "--round=plate"),
        r"rounds differ as a whole.* write it relative to the mean of its round",
        results_with(relative_to_round),
    ),
    "standard deviations": Case(
        state(ARMS, FEW.assign(sd=[1.0, 2.0, 1.5])),
        r"not used: (?P<name>sd)\. Standard deviations of results need (?P<option>"
        r"--noise-std)",
        lambda found, given: given._replace(words=[found["option"], found["name"]]),
    ),
    "no standard deviation": Case(
        state(ARMS, FEW.assign(sd=[1.0, 0.0, 1.5]), "--noise-std=sd"),
        r"has '0.0' in row 3 .*or leave the cell empty",
        results_with(lambda table, found: table.replace(0.0, np.nan)),
    ),
    "copies": Case(
        state(ARMS, pd.concat([RESULTS, RESULTS])),
        r"Remove the copies if results were entered twice",
        results_with(lambda table, found: table.drop_duplicates()),
    ),
    "copies that are real": Case(
        state(ARMS, pd.concat([RESULTS, RESULTS])),
        r"Pass (?P<option>--replicates-are-real) if",
        option,
    ),
    "a copy": Case(
        state(ARMS, pd.concat([FEW, FEW.head(1)])),
        r"Note: 2 of 4 measurements are equal .* Remove them",
        results_with(lambda table, found: table.drop_duplicates()),
    ),
    "a failed measurement": Case(
        state(ARMS, row(FEW, 2, reward="failed")),
        r"Note: candidates whose last measurement failed: 1 .*Remove the rows",
        results_with(lambda table, found: table[table["reward"] != "failed"]),
    ),
    "another name for the result": Case(
        state(ARMS, FEW.rename(columns={"reward": "yield"})),
        r"only \['id', '(?P<name>\w+)'\]. Name it by (?P<option>--reward)",
        lambda found, given: given._replace(words=[found["option"], found["name"]]),
    ),
    "a result without a logarithm": Case(
        state(ARMS, row(FEW, 2, reward=0.0).infer_objects(), "--log-reward"),
        r"has the result 0 in row 2 .*Write the detection limit",
        results_with(lambda table, found: table.replace(0.0, 0.1)),
    ),
    "a result below zero": Case(
        state(ARMS, row(FEW, 2, reward=-3.0).infer_objects(), "--log-reward"),
        r"leave out (?P<option>--log-reward)",
        without("--log-reward"),
    ),
    "a result without its round": Case(
        state(ARMS, FEW.assign(plate=["P1", np.nan, "P2"]), "--round=plate"),
        r"has no round in row 3 .*Fill it, or leave out --round",
        results_with(lambda table, found: table.fillna("P1")),
    ),
    # Options -------------------------------------------------------------------------
    "a name of a column that has blanks": Case(
        state(ARMS.assign(**{"load mol": ["1 %", "2.5 %", "x"] * 12})),
        r"or (?P<option>--drop .*?)\.( |$)",
        option,
    ),
    "a name twice": Case(
        state(ARMS, FEW, "--observations=results.csv"),
        r"names a table twice: .* Name each once",
        without("--observations"),
    ),
    "two ways to say what is good": Case(
        state(
            ARMS, FEW.assign(y=FEW["reward"]), "--objective=y:max:0:100", "--minimize"
        ),
        r"(?P<option>--minimize) does not go with --objective.*Leave it out",
        without("--minimize"),
    ),
    "candidates and components": Case(
        state(ARMS, WITH_SETTINGS, *LISTS),
        r"either a table CANDIDATES or lists of components",
        lambda found, given: given._replace(arms=None),
    ),
    "an option of tables with components": Case(
        state(None, WITH_SETTINGS, *LISTS, "--available=stock"),
        r"--available needs a table of candidates.*Leave it out",
        without("--available"),
    ),
    "predictions of the best": Case(
        state(ARMS, FEW, "--top=3"),
        r"--top and --threshold need (?P<option>--predictions) FILE",
        lambda found, given: given._replace(words=["--top=3", "--predictions=p.csv"]),
    ),
    "a report in no folder": Case(
        state(ARMS, FEW, "--report=new/r.html"),
        r"There is no folder (?P<folder>\w+) for --report\. Make it first",
        lambda found, given: make_folder(found["folder"], given),
    ),
    "the batch in place of a table": Case(
        state(ARMS, FEW, "--output=arms.csv"),
        r"is one of the tables, which it would replace\. Name another file",
        without("--output"),
    ),
    "no candidate is left": Case(
        state(ARMS.assign(stock=0), FEW, "--available=stock"),
        r"Add or restock candidates",
        arms_with(lambda arms, found: arms.assign(stock=1)),
    ),
    "each candidate comes once": Case(
        state(ARMS.head(3), RESULTS[:0], "--batch-size=7"),
        r"comes once in a batch \(but with (?P<option>--goal) (?P<goal>\w+)\)",
        lambda found, given: given._replace(
            words=[*given.words, f"{found['option']}={found['goal']}"]
        ),
    ),
    "no repeat is left": Case(
        state(ARMS.head(3), RESULTS[:0], *ONCE, "--batch-size=7"),
        r"(?P<option>--max-repeats) 1 leaves only 3 of 7",
        without("--max-repeats"),
    ),
    "more measurements than candidates": Case(
        state(ARMS.head(3), RESULTS[:0], "--goal=regret", "--batch-size=7"),
        r"Pass (?P<option>--batch-size) for fewer",
        without("--batch-size"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_remedy_works(name, monkeypatch):
    given, says, follow = CASES[name]
    if any(word.startswith("--batch-size") for word in given.words):
        monkeypatch.setitem(globals(), "BATCH", [])
    code, said = run(given)
    found = re.search(says, said)
    assert found is not None, said
    given = follow(found, given)
    Path("next.csv").unlink(missing_ok=True)
    if given.words == ["--goal=regret"] and name == "more measurements than candidates":
        given.words.append("--batch-size=3")
    code, said = run(given)
    assert code == 0, said
    assert re.search(says, said) is None, said
