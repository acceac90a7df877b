"""Remedies that `suggest` prints work: they are read from the message and followed."""

import contextlib
import io
import re
import shlex
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
    words = ["suggest", *given.words]
    if not any("--batch-size" in word for word in words):
        words.append("--batch-size=3")
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


def candidates_by(change):
    return lambda found, given: given._replace(arms=change(given.arms, found))


def results_by(change):
    return lambda found, given: given._replace(results=change(given.results, found))


def words_by(change):
    return lambda found, given: given._replace(words=change(found))


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
    r"Column '(?P<column>[^']*)' has an empty cell.*does not apply there, write "
    r"(?P<by>the column's median) \(or a word such as (?P<word>\w+), and "
    r"(?P<option>--category .*?)\), and add a column of yes and no"
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
SPANS = {
    "above zero": [POWERS],
    "with zeros": [row(POWERS, 2, reward=0.0).infer_objects()],
    "below zero": [column(POWERS, "reward", lambda cells: -cells)],
    "small is good": [column(POWERS, "reward", lambda cells: -cells), "--minimize"],
}


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
    r"logarithms(?:\. Logarithms need positive results: write them without the minus "
    r"and (?P<sign>pass|leave out) --minimize)?(?P<zeros>\. Logarithms need positive "
    r"results: replace 0 by the detection limit)?\."
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
PERCENTAGES = {
    "one file of results": (ARMS, PERCENT),
    "the candidates": (fractions(ARMS), WITH_SETTINGS),
    "settings without ids": (ARMS, fractions(WITH_SETTINGS.drop(columns="id"))),
}
ROUNDS = RESULTS.assign(
    **{"plate no.": np.arange(24) % 3 + 1},
    reward=RESULTS["reward"] + 300 * (np.arange(24) % 3),
    day=np.arange(24) % 2,
)
CONTROLS = pd.concat([FEW, pd.DataFrame({"id": ["DMSO"] * 2, "reward": [1.0, 1.5]})])
CONTROLS["plate"] = [1, 2, 1, 1, 2]


def other_group(found, given):
    """Replace an option by the one that the message has."""
    words = [word for word in given.words if word != found["before"].replace(" ", "=")]
    return option(found, given._replace(words=words))


NOTED = r"Note: column '{}' is a feature \((?P<drop>.*) leaves it out"
DROPS = NOTED.replace("drop", "option") + r"\)"
AVAILABLE = NOTED + r"; (?P<option>--available .*) if it says what is available\)"
STOCKS: dict[str, Any] = {
    "to buy": ["no"] + ["Yes"] * 35,
    "available": [True, False] * 18,
    "stock": [0, 5, 12] * 12,
}
NAMES = ARMS.assign(**{"name (IUPAC)": [f"acid {'x' * n}" for n in range(36)]})
COMMENTS = [
    f"see page {n} of book {'ABC'[n % 3]}" if n > 3 else "ok" for n in range(20)
]

LIGANDS = ARMS.assign(**{"ligand (eq)": LIGAND})
MY_NAMES = ARMS.rename(columns={"id": "my name"})
TWICE = pd.concat([RESULTS, RESULTS])


Remedies = dict[str, tuple[Any, ...]]

# The option that the message has is added: the candidates, what it says, the results.
ADDED: Remedies = {
    "words that differ in nearly every row": (
        ARMS.head(20).assign(comment=COMMENTS),
        DROPS.format("comment"),
        FEW[FEW["id"] < "C20"],
    ),
    **{
        f"availability in column {name}": (
            ARMS.assign(**{name: cells}),
            AVAILABLE.format(name),
        )
        for name, cells in STOCKS.items()
    },
    "a few suppliers": (
        ARMS.assign(supplier=["TCI", "ABCR", "Merck"] * 12),
        DROPS.format("supplier"),
    ),
    "many words": (
        NAMES,
        r"'name \(IUPAC\)' .*Pass --id \S+ \S+ if it names the rows.*or (?P<option>"
        r"--drop .*?)\.( |$)",
    ),
    "many categories": (
        NAMES,
        r"Pass (?P<option>--category .*?) if its values are names",
    ),
    "names that are ids": (
        MY_NAMES,
        r"pass (?P<option>--id .*?) or --drop",
        FEW.rename(columns={"id": "my name"}),
    ),
    "no ids": (
        MY_NAMES,
        r"pass --id .*? or (?P<option>--drop .*?)\. If it is a setting",
        WITH_SETTINGS.drop(columns="id"),
    ),
    "gaps": (LIGANDS, r"is a comment, pass (?P<option>--drop .*?), or --drop-incompl"),
    "gaps of several columns": (
        LIGANDS.assign(ligand=KIND),
        r"or (?P<option>--drop-incomplete) for all columns with such cells",
    ),
    "a name of a column that has blanks": (
        ARMS.assign(**{"load mol": ["1 %", "2.5 %", "x"] * 12}),
        r"or (?P<option>--drop .*?)\.( |$)",
    ),
    "a large result": (
        ARMS,
        FAR.format(1, "pass (?P<option>--log-reward)"),
        with_marks(2e4),
    ),
    "rounds that differ": (
        ARMS,
        r"Rounds of column 'plate no.': .* between .*rounds differ as a whole.* Pass "
        r"(?P<option>--group .*?)\.( |$)(?=\d+ candidates)",
        ROUNDS,
        "--round=plate no.",
    ),
    "copies that are real": (ARMS, r"Pass (?P<option>--replicates-are-real) if", TWICE),
}

# The candidates are corrected: what it says, and how, options that are given.
CANDIDATES: Remedies = {
    "units": (
        column(ARMS, "heat", lambda cells: cells.astype("str") + " C"),
        r"'heat' has '20.0 C' in row 2 .*Write bare numbers: no unit",
        lambda arms, found: arms.assign(heat=arms["heat"].str.removesuffix(" C")),
    ),
    "a slip in a word": (
        row(ARMS, 5, solvent="thf"),
        r"has '(?P<wrong>\w+)' in row .* differs from '(?P<right>\w+)' in case",
        lambda arms, found: arms.replace(found["wrong"], found["right"]),
    ),
    "a far value": (
        row(ARMS.assign(load=np.arange(36)), 4, load=1e6),
        r"scaled by its range.*Correct (?P<value>\S+) in row (?P<row>\d+)",
        lambda arms, found: row(arms, int(found["row"]), load=3.0).infer_objects(),
    ),
    "a column of the batch": (
        ARMS.assign(repeats=ARMS["load"]),
        r"has a column '(?P<name>repeats)', and .* Rename that of the candidates",
        lambda arms, found: arms.rename(columns={found["name"]: "stirs"}),
    ),
    "dates": (
        ARMS.assign(day=["03.02.2026", "04.02.2026", "05.02.2026"] * 12),
        r"Write dates as (?P<form>\d{4}-\d\d-\d\d)",
        lambda arms, found: arms.assign(
            day=["2026-02-03", "2026-02-04", found[1]] * 12
        ),
    ),
    "an id twice": (
        pd.concat([ARMS, ARMS.head(1)], ignore_index=True),
        r"has the id 'C00' more than once, again in row (?P<row>38) .*remove the row",
        lambda arms, found: arms.drop(index=int(found["row"]) - 2),
    ),
    "no id": (
        row(ARMS, 4, id=None),
        r"has no id in row (?P<row>\d+) .*Correct it",
        lambda arms, found: row(arms, int(found["row"]), id="C02"),
    ),
    "no candidate is left": (
        ARMS.assign(stock=0),
        r"Add or restock candidates",
        lambda arms, found: arms.assign(stock=1),
        "--available=stock",
    ),
}

# So are results of these candidates.
CORRECTED: Remedies = {
    "saturated readings": (
        row(row(FEW, 3, reward=">100"), 4, reward=">100"),
        r"has '>100' in row 3 of results.csv .* not a number\. More such rows: 1\. "
        r"Write (?P<limit>\d+), or failed for a failed measurement, or leave the cell",
        lambda table, found: table.replace(">100", float(found["limit"])),
    ),
    "a word in the results": (
        row(FEW, 2, reward="exploded"),
        r"has 'exploded' in row (?P<row>\d+) of .*Write a number, or (?P<word>\w+) for",
        lambda table, found: row(table, int(found["row"]), reward=found["word"]),
    ),
    "three marks": (
        with_marks(1e12, 1e12, 1e12),
        FAR.format(3, r"(?P<option>--log-reward|pass)"),
        failed,
    ),
    "penalties": (
        with_marks(-1e12, -2e12, -4e12, -3e12, -1.5e12),
        FAR.format(5, "continue"),
        worst,
    ),
    "a group in two spellings": (
        ROUNDS.assign(plate=["Plate 1", "Plate\u00a01", "P2"] * 8),
        r"Column 'plate' of --group has '(?P<wrong>.*?)' in row .* differs from "
        r"'(?P<right>.*?)' in case or spaces only\. Write it alike",
        lambda table, found: table.assign(plate=["Plate 1", found["right"], "P2"] * 8),
        "--group=plate",
    ),
    "results in percent and standard deviations without": (
        FEW.assign(reward=FEW["reward"].astype("str") + " %", sd=0.5),
        r"has % in one of the columns \['reward', 'sd'\].* Write both with %, or both",
        lambda table, found: table.assign(sd="0.5%"),
        "--noise-std=sd",
    ),
    **{
        f"the standard deviation {cell}": (
            FEW.assign(sd=[1.0, cell, 1.5]),
            f"'sd' of --noise-std has '{cell}' in row 3 .*or leave the cell empty if "
            "it is not known",
            lambda table, found: table.assign(sd=[1.0, np.nan, 1.5]),
            "--noise-std=sd",
        )
        for cell in (0.0, "low")
    },
    "copies": (
        TWICE,
        r"Remove the copies if results were entered twice",
        lambda table, found: table.drop_duplicates(),
    ),
    "a copy": (
        pd.concat([FEW, FEW.head(1)]),
        r"Note: 2 of 4 measurements are equal .* Remove them",
        lambda table, found: table.drop_duplicates(),
    ),
    "a failed measurement": (
        row(FEW, 2, reward="failed"),
        r"Note: candidates whose last measurement failed: 1 .*Remove the rows",
        lambda table, found: table[table["reward"] != "failed"],
    ),
    "a result without a logarithm": (
        row(FEW, 2, reward=0.0).infer_objects(),
        r"has the result 0 in row 2 .*Write the detection limit",
        lambda table, found: table.replace(0.0, 0.1),
        "--log-reward",
    ),
    "a result without its round": (
        FEW.assign(plate=["P1", np.nan, "P2"]),
        r"has no round in row 3 .*Fill it, or leave out --round",
        lambda table, found: table.fillna("P1"),
        "--round=plate",
    ),
}

# An option is left out, or replaced by those of the function: what is given, and says.
OPTIONS: Remedies = {
    "the plate's column is of one value": (
        state(ARMS, FEW, "--same=solvant"),
        r"features, such as \S+, (?P<name>\w+), \w+, but got 'solvant'",
        lambda found: [f"--same={found['name']}"],
    ),
    "no bits": (
        state(ARMS, FEW, "--kernel=tanimoto"),
        r"or leave out (?P<option>--kernel)",
        lambda _: [],
    ),
    "words": (
        state(ARMS, FEW, "--kernel=rbf"),
        r"Leave out (?P<option>--kernel), or pass",
        lambda _: [],
    ),
    "another name for ids": (
        state(ARMS, FEW.rename(columns={"id": "sample"})),
        r"Name one of its columns \['(?P<name>\w+)', 'reward'\] by --id or (?P<option>"
        r"--results-id)",
        lambda found: [found["option"], found["name"]],
    ),
    "another name for the result": (
        state(ARMS, FEW.rename(columns={"reward": "yield"})),
        r"only \['id', '(?P<name>\w+)'\]. Name it by (?P<option>--reward), "
        r"--maximize or --minimize\.",
        lambda found: [found["option"], found["name"]],
    ),
    "standard deviations": (
        state(ARMS, FEW.assign(sd=[1.0, 2.0, 1.5])),
        r"not used: (?P<name>sd)\. Standard deviations of results need (?P<option>"
        r"--noise-std)",
        lambda found: [found["option"], found["name"]],
    ),
    "bounds in another unit": (
        state(ARMS, RESULTS, "--bounds=0:1"),
        r"Warning: 24 of 24 results are outside of (?P<option>--bounds), and no predic"
        r"tion is\. Write both in the same unit",
        lambda found: [f"{found['option']}=0:100"],
    ),
    "a range in another unit": (
        state(
            *(ARMS, RESULTS.assign(ee=RESULTS["reward"].rank())),
            *("--objective=reward:max:0:1", "--objective=ee:max:0:24"),
        ),
        r"Warning: no result of '(?P<name>reward)' is within 0:1, its range in "
        r"--objective, .* Write both in the same unit",
        lambda found: [f"--objective={found['name']}:max:0:100"],
    ),
    "what is forbidden of a table": (
        state(ARMS.assign(safe=["yes", "no"] * 18), FEW, "--forbid=heat=80"),
        r"--forbid needs lists of components.*or pass (?P<option>--available) COLUMN",
        lambda found: [f"{found['option']}=safe"],
    ),
    "a result below zero": (
        state(ARMS, row(FEW, 2, reward=-3.0).infer_objects(), "--log-reward"),
        r"leave out --log-reward",
        lambda found: [],
    ),
    "a name twice": (
        state(ARMS, FEW, "--earlier=results.csv"),
        r"is named twice: results.csv and results.csv\. Name each once",
        lambda found: [],
    ),
    "two ways to say what is good": (
        state(
            ARMS, FEW.assign(y=FEW["reward"]), "--objective=y:max:0:100", "--minimize"
        ),
        r"--minimize does not go with --objective.*Leave it out",
        lambda found: ["--objective=y:max:0:100"],
    ),
    "an option of tables with components": (
        state(None, WITH_SETTINGS, *LISTS, "--available=stock"),
        r"--available needs a table of candidates.*Leave it out",
        lambda found: LISTS,
    ),
    "predictions of the best": (
        state(ARMS, FEW, "--top=3"),
        r"--top and --threshold need --predictions FILE",
        lambda found: ["--top=3", "--predictions=p.csv"],
    ),
    "the batch in place of a table": (
        state(ARMS, FEW, "--output=arms.csv"),
        r"is one of the tables, which it would replace\. Name another file",
        lambda found: [],
    ),
    "each candidate comes once": (
        state(ARMS.head(3), RESULTS[:0], "--batch-size=7"),
        r"comes once in a batch \(but with (?P<option>--goal (?P<goal>\w+))\)",
        lambda found: ["--batch-size=7", *found["option"].split()],
    ),
    "no repeat is left": (
        state(ARMS.head(3), RESULTS[:0], *ONCE, "--batch-size=7"),
        r"--max-repeats 1 leaves only 3 of 7",
        lambda found: ["--goal=regret", "--batch-size=7"],
    ),
    "more measurements than candidates": (
        state(ARMS.head(3), RESULTS[:0], "--goal=regret", "--batch-size=7"),
        r"Pass --batch-size for fewer",
        lambda found: ["--goal=regret", "--batch-size=3"],
    ),
}

# Any other way: what is given, what is said, and a function of both.
CASES: Remedies = {
    "a setting that does not apply": (state(LIGANDS), GAP, median_and_yes_no),
    "a word that does not apply": (
        state(ARMS.assign(ligand=KIND)),
        GAP.replace("(?P<by>the column's median)", "(?P<by>)the column's median"),
        median_and_yes_no,
    ),
    "wells that repeat on every plate": (
        state(PLATES, JOINED, "--id=well"),
        r"has the id 'C00' more than once, again in row 38 .*\(rows: (?P<rows>\d+)\)"
        r".*join plate and well in all tables, such as (?P<example>\S+)\.",
        plates_joined,
    ),
    "ids without their zeros": (
        state(ARMS.assign(id="0" + ARMS["id"]), FEW),
        r"has ids such as '(?P<zero>0)C00'. Write ids alike in both tables",
        lambda found, given: given._replace(results=FEW.assign(id="0" + FEW["id"])),
    ),
    "a candidate that was removed": (
        state(ARMS[~ARMS["id"].isin(FEW["id"])]),
        r"If the candidate was removed.* write its settings, the same in all rows",
        lambda found, given: given._replace(results=WITH_SETTINGS),
    ),
    "rounds that differ within groups": (
        state(ARMS, ROUNDS, "--round=plate no.", "--group=day"),
        r"rounds differ as a whole.* Pass (?P<option>--group .*?) in place of "
        r"(?P<before>--group day)\.",
        other_group,
    ),
    "a control": (
        state(ARMS, CONTROLS),
        r"measures id 'DMSO' .*If it is a control, pass (?P<option>--control DMSO and "
        r"--group COLUMN)\.",
        lambda found, given: option(
            {"option": found["option"].replace("and ", "").replace("COLUMN", "plate")},
            given,
        ),
    ),
    "a control without groups": (
        state(ARMS, CONTROLS, "--control=DMSO"),
        r"--control needs (?P<option>--group COLUMN).* Pass it, or leave out --control",
        lambda found, given: option(
            {"option": found["option"].replace("COLUMN", "plate")}, given
        ),
    ),
    "a control under another name": (
        state(ARMS, CONTROLS, "--control=dmso", "--group=plate"),
        r"Expected results with the id 'dmso' of --control in a column 'id', but there "
        r"are none. Correct the",
        lambda found, given: given._replace(words=["--control=DMSO", "--group=plate"]),
    ),
    "a candidate as control": (
        state(ARMS, CONTROLS.replace("DMSO", "C35"), "--control=C35", "--group=plate"),
        r"samples that are not candidates, but arms.csv has 'C35'\. Leave it out",
        lambda found, given: given._replace(words=["--group=plate"]),
    ),
    "candidates and components": (
        state(ARMS, WITH_SETTINGS, *LISTS),
        r"either a table CANDIDATES or lists of components",
        lambda found, given: given._replace(arms=None),
    ),
    "a report in no folder": (
        state(ARMS, FEW, "--report=new/r.html"),
        r"There is no folder (?P<folder>\w+) for --report\. Make it first",
        lambda found, given: make_folder(found["folder"], given),
    ),
    **{
        f"decades: {name}": (state(ARMS, table, *words), DECADES, logs)
        for name, (table, *words) in SPANS.items()
    },
    **{
        f"{name} in hundredths": (state(arms, results), HUNDREDTH, times_100)
        for name, (arms, results) in PERCENTAGES.items()
    },
    "standard deviations in hundredths": (
        state(
            ARMS,
            {
                "one.csv": RESULTS.head(12).assign(sd=2.0),
                "two.csv": RESULTS.tail(12).assign(sd=0.02),
            },
            "--noise-std=sd",
        ),
        HUNDREDTH,
        times_100,
    ),
}


CASES |= {
    name: (state(arms, *results), says, option)
    for name, (arms, says, *results) in ADDED.items()
}
CASES |= {
    name: (state(arms, FEW, *words), says, candidates_by(change))
    for name, (arms, says, change, *words) in CANDIDATES.items()
}
CASES |= {
    name: (state(ARMS, results, *words), says, results_by(change))
    for name, (results, says, change, *words) in CORRECTED.items()
}
CASES |= {
    name: (given, says, words_by(change))
    for name, (given, says, change) in OPTIONS.items()
}


@pytest.mark.parametrize("name", CASES)
def test_the_remedy_works(name):
    given, says, follow = CASES[name]
    _, said = run(given)
    found = re.search(says, said)
    assert found is not None, said
    Path("next.csv").unlink(missing_ok=True)
    code, said = run(follow(found, given))
    assert code == 0, said
    assert re.search(says, said) is None, said
