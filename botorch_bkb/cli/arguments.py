"""The command line's arguments. Imports nothing heavy, so that help is fast."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, Field, field, fields
from inspect import get_annotations
from itertools import chain
from pathlib import Path
from typing import Any, get_args, Literal

from typing_extensions import override

from botorch_bkb._version import __version__


PROGRAM = "botorch-bkb"
DEFAULT_COMMAND = "demo"
# The wells of a plate.
BATCH_SIZE = 96
DEFAULT_ID = "id"
SEPARATOR_NAMES = dict(comma=",", semicolon=";", tab="\t", bar="|", space=" ")

DESCRIPTION = """\
Gaussian process bandits over large finite sets of candidates.

  demo       run a campaign over 20,000 points of a function (default)
  simulate   run a campaign of suggest over candidates whose results are known
  suggest    choose the next batch to measure from a table of candidates
  app        do so on a page in the browser
"""
DEMO_DESCRIPTION = """\
Run a campaign of GPBandit over Sobol points of the Michalewicz function, which has
several peaks, with noisy results, beside a greedy policy, which chooses the best
predictions, and uniform choice. A table and a picture compare them.
"""
SIMULATE_DESCRIPTION = """\
Run a campaign of suggest over a table of candidates whose mean results are known. Noise
is added to the results. A table and a picture compare it with uniform choice.
"""
SUGGEST_DESCRIPTION = """\
Choose the next batch to measure. Two tables are the whole state: the candidates, and
one row per measurement so far. A measurement with an empty result is in flight.
"""
APP_DESCRIPTION = "Open a page in the browser that asks for tables, and runs suggest."
SUGGEST_EPILOG = """\
NEXT has a row per chosen candidate: how often to measure it (repeats), the predicted
mean of many measurements, the standard deviation of that mean (std), its 95 % interval
(low, high), and why it was chosen. The page "Tables for suggest" of the documentation
describes the tables.
"""


# What is predicted of a reward or an outcome.
MOMENTS = ("mean", "std", "low", "high")
KernelName = Literal["tanimoto", "matern", "rbf"]
Objective = tuple[str, tuple[str | float, ...]]


# How values are read ------------------------------------------------------------------


def _reader(
    kind: type[int] | type[float], expected: str, is_right: Callable[[Any], bool]
) -> Callable[[str], Any]:
    """Return a function that reads a number of a kind and refuses others."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, but got {text!r}")
        return value

    return read


positive_integer = _reader(int, "a whole number, 1 or more", lambda n: n >= 1)
seed = _reader(
    int, "a whole number from 0 to less than 2 to the 63rd", lambda n: 0 <= n < 2**63
)
number = _reader(float, "a number", math.isfinite)
non_negative_number = _reader(float, "0 or more", lambda x: 0 <= x < math.inf)


def separator(text: str) -> str:
    """Read the character between fields, or its name."""
    character = SEPARATOR_NAMES.get(text, "\t" if text == "\\t" else text)
    if len(character) != 1 or character.isalnum() or character in "\r\n\"'.+-":
        raise argparse.ArgumentTypeError(
            f"expected one character, or {', '.join(SEPARATOR_NAMES)}, but got {text!r}"
        )
    return character


def component(text: str) -> tuple[str, str]:
    """Return the name and the list of a component."""
    name, sign, values = (part.strip() for part in text.partition("="))
    if not (name and sign and values):
        raise argparse.ArgumentTypeError(
            f"expected NAME=FILE or NAME=VALUE,VALUE, but got {text!r}"
        )
    return name, values


def cyclic(text: str) -> tuple[str, float]:
    """Return the name of a column and its period."""
    name, _, period = map(str.strip, text.rpartition("="))
    try:
        if name and 0 < (value := float(period)) < math.inf:
            return name, value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        "expected COLUMN=PERIOD with a number above 0, such as hour=24, but got "
        f"{text!r}"
    )


def objective(text: str) -> Objective:
    """Return the column of an outcome, and its direction, range and weight."""
    found = re.fullmatch(r"(.+):(max|min):([^:]+):([^:]+)(?::([^:]+))?", text.strip())
    try:
        name, direction, *numbers = found.groups() if found else ()
        return name.strip(), (direction, *(float(n) for n in numbers if n))
    except ValueError:
        raise argparse.ArgumentTypeError(
            "expected COLUMN:max:LOW:HIGH or COLUMN:min:LOW:HIGH, perhaps with :WEIGHT "
            f"at the end, such as yield:max:0:100, but got {text!r}. For a target, "
            'pass --target "viscosity = 350"'
        ) from None


def limit(text: str) -> tuple[str, str, float]:
    """Return the column of an outcome, ``<=`` or ``>=``, and its limit."""
    found = re.fullmatch(r"(.+?)\s*(<=?|>=?|≤|≥)([^<>=≤≥]+)", text.strip())
    try:
        name, sign, end = found.groups() if found else ("", "", "")
        return name, "<=" if sign in "<=≤" else ">=", number(end)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            'expected COLUMN <= NUMBER or COLUMN >= NUMBER, such as "impurity <= 2.5", '
            f"but got {text!r}"
        ) from None


def bounds(text: str) -> tuple[str, float, float]:
    """Return the column of an outcome, "" for the only one, and its bounds."""
    found = re.fullmatch(r"(?:(.+)=)?([^:=]*):([^:=]*)", text.strip())
    try:
        name, *ends = found.groups() if found else ("", "", "no number")
        low, high = (number(end) if end.strip() else math.inf for end in ends)
        low = -math.inf if low == math.inf else low
        if low < high:
            return (name or "").strip(), low, high
    except argparse.ArgumentTypeError:
        pass
    raise argparse.ArgumentTypeError(
        "expected LOW:HIGH or COLUMN=LOW:HIGH, such as 0:100, yield=0:100, or 0: "
        f"without an upper bound, but got {text!r}"
    )


def target(text: str) -> tuple[str, float, float]:
    """Return the column of an outcome, its target, and a tolerance."""
    found = re.fullmatch(r"(.+?)\s*=([^=]+?)(?:(?:\+/?-|±)(.+))?", text.strip())
    try:
        name, value, tolerance = found.groups() if found else ("", "", "")
        return name, number(value), non_negative_number(tolerance or "0")
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            "expected COLUMN = NUMBER or COLUMN = NUMBER +- TOLERANCE, such as "
            f'"viscosity = 350 +- 10", but got {text!r}'
        ) from None


class _StoreOnce(argparse.Action):
    """Store a value; a second one is an error, since the first would be lost."""

    given: Any = None

    @override
    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: Any = None
    ) -> None:
        if self.given is not None:
            raise argparse.ArgumentError(
                self, f"expected once, but got both {self.given} and {values}"
            )
        self.given = values
        setattr(namespace, self.dest, values)


# The options --------------------------------------------------------------------------

FLAG: dict[str, Any] = {"action": "store_true", "default": False}
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
COLUMN: dict[str, Any] = {"type": str.strip, "metavar": "COLUMN"}
COUNT: dict[str, Any] = {"type": positive_integer, "metavar": "N"}
MARK: dict[str, Any] = {"type": separator, "metavar": "CHARACTER"}
DECIMAL: dict[str, Any] = {"choices": [".", ","], "metavar": "MARK"}
GOAL: dict[str, Any] = {
    "type": lambda word: word.replace("-", "_"),
    "choices": ("best_arm", "regret"),
    "default": "best_arm",
    "metavar": "GOAL",
}
REPEATED: dict[str, Any] = {"action": "append", "default": []}
TABLE_HELP = "a *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet file"


def option(
    kind: dict[str, Any], text: str, default: Any = None, flag: str | None = None
) -> Any:
    """Return a field of a class of options.

    Args:
        kind: The arguments of ``ArgumentParser.add_argument``.
        text: Its help.
        default: Its default, unless ``kind`` has one.
        flag: Its name, if it is not that of the field.
    """
    kind = {"default": default, **kind, "help": text}
    own, metadata = kind["default"], {"flag": flag, "kind": kind}
    if isinstance(own, list):
        return field(default_factory=own.copy, metadata=metadata)
    return field(default=own, metadata=metadata)


@dataclass
class RunOptions:
    """The options of every command, of which ``command`` is the name."""

    command: str = "suggest"
    seed: int = option({"type": seed, "metavar": "N"}, "default: 0", 0)
    quiet: bool = option(FLAG, "show no progress")


@dataclass
class AppOptions:
    """The options of ``app``, which asks for those of ``suggest`` on its page."""

    command: str = "app"


@dataclass
class FolderOptions(RunOptions):
    """The options of commands that write into a folder."""

    output: Path = option(
        FILE | {"metavar": "FOLDER"},
        "for rounds.csv and regret.png",
        Path("botorch_bkb_output"),
    )


@dataclass
class TableOptions:
    """The options of commands that read a table of candidates."""

    batch_size: int = option(COUNT, "measurements (default: 96)", BATCH_SIZE)
    minimize: bool = option(FLAG, "small results are best")
    max_repeats: int | None = option(
        COUNT, "the most measurements of one candidate in all"
    )
    goal: str = option(
        GOAL,
        "best-arm: find the best candidate; a batch has distinct candidates. regret: "
        "collect good results; good candidates are repeated (default: best-arm)",
    )
    drop: list[str] = option(
        COLUMN | REPEATED, "a column that is not a feature; repeatable"
    )
    drop_incomplete: bool = option(FLAG, "leave out all columns with missing values")
    category: list[str] = option(
        COLUMN | REPEATED, "a column, or component, of names; repeatable"
    )
    cyclic: list[tuple[str, float]] = option(
        REPEATED | {"type": cyclic, "metavar": "COLUMN=PERIOD"},
        "a column of numbers that start again after PERIOD, such as hour=24 or "
        "angle=360: 23 is next to 0; repeatable",
    )
    separator: str | None = option(
        MARK, "of CSV files, or its name, such as tab (default: detected)"
    )
    decimal: str | None = option(
        DECIMAL, "decimal mark of CSV files (default: detected)"
    )
    encoding: str | None = option(
        {"metavar": "NAME"}, "of CSV files not in UTF-8 (default: cp1252)"
    )
    sheet: list[str] = option(
        REPEATED | {"metavar": "NAME"},
        "of Excel files with several; once for each such table: candidates, results",
    )
    smiles: list[str] = option(
        COLUMN | {"action": "extend", "nargs": "+", "default": []},
        "columns of SMILES, which become Morgan fingerprints (extra chem), each with a "
        "kernel of its own; one column, alone or beside numbers, also becomes "
        "descriptors if there is no --kernel. With --component: the components that "
        "are molecules, whose lists have a column 'smiles'",
    )
    radius: int = option(COUNT, "of the fingerprints (default: 2, ECFP4)", 2)
    num_bits: int = option(COUNT, "of the fingerprints (default: 2048)", 2048)
    bits: bool = option(
        FLAG,
        "fingerprints of 0 and 1, not of how often a molecule has a fragment: an "
        "eighth of the memory",
    )
    skip_invalid: bool = option(FLAG, "leave out rows whose SMILES cannot be read")
    kernel: KernelName | None = option(
        {"choices": get_args(KernelName)},
        "tanimoto compares bits, times or plus a matern kernel of other columns; "
        "matern (nu 2.5) and rbf compare numbers, with a lengthscale each (default: "
        "tanimoto for molecules, and for 64 columns of 0 and 1 or more without others; "
        "for numbers a matern or ANOVA trend, by the likelihood, plus rough detail, or "
        "of several outcomes matern alone; for words a product or a sum over columns)",
    )
    max_inducing: int | None = option(
        COUNT,
        "use at most N measured candidates as inducing points, which bounds time and "
        "memory and makes the model less accurate (default: no limit)",
    )


@dataclass
class DemoOptions(FolderOptions):
    """The options of ``demo``."""

    horizon: int = option(COUNT, "measurements (default: 40)", 40)
    num_arms: int = option(COUNT, "candidates (default: 20000)", 20_000)


@dataclass
class SimulateOptions(TableOptions, FolderOptions):
    """The options of ``simulate``."""

    table: Path = option(FILE, TABLE_HELP, flag="table")
    reward: str = option(COLUMN | {"required": True}, "column of the mean results")
    id: str = option(COLUMN, "column of ids (default: id)", DEFAULT_ID)
    horizon: int = option(COUNT, "measurements in all (default: 1000)", 1_000)
    repetitions: int = option(COUNT, "campaigns at SEED, SEED + 1, ... (default: 1)", 1)
    noise_std: float = option(
        {"type": non_negative_number, "metavar": "X"},
        "standard deviation of the noise of a measurement, in standard deviations of "
        "the mean results (default: 0.1)",
        0.1,
    )


@dataclass
class SuggestOptions(TableOptions, RunOptions):
    """The options of ``suggest``, of which some change while tables are read.

    Attributes:
        arms: The table of candidates; with components, their names.
        arms_sheet: The sheet of that table, as soon as it was read.
        roles: The roles of several outcomes, by name; none of a reward or a score.
        words: The words of the command line, for the file of options.
    """

    arms: Path = option(
        FILE | {"metavar": "CANDIDATES", "nargs": "?"},
        f"the candidates, {TABLE_HELP}",
        flag="arms",
    )
    component: list[tuple[str, str]] = option(
        REPEATED | {"type": component, "metavar": "NAME=LIST"},
        "instead of CANDIDATES: every combination of one element of each component is "
        "a candidate. LIST is a table with ids and features (or SMILES, see --smiles), "
        'or values such as 20,40,60 or THF,"1,4-dioxane". RESULTS and NEXT have a '
        "column per component",
    )
    forbid: list[str] = option(
        REPEATED | {"metavar": "NAME=ELEMENT,..."},
        "a combination of components that is never chosen, such as "
        "solvent=ether,temperature=80; repeatable",
    )
    confidence: float | None = option(
        {"type": non_negative_number, "metavar": "X"},
        "posterior standard deviations that a candidate's upper bound has above its "
        "mean: larger explores more (default: chosen by the kernel and the noise)",
    )
    observations: list[Path] = option(
        FILE | {"metavar": "RESULTS", "action": "extend", "nargs": "+", "default": []},
        "the measurements; without any, the first batch is spread out. Several files, "
        "or results_*.csv: the rows of all tables count. Repeatable",
    )
    output: Path = option(
        FILE | {"metavar": "NEXT"},
        "the table to write (default: next.csv). A table that was filled in is kept",
        Path("next.csv"),
    )
    id: str = option(
        COLUMN,
        "id column of both tables, in any case (default: id). Results without ids, or "
        "with unknown ids, belong to the candidate with the same settings. If "
        "CANDIDATES has no ids, its rows are numbered, and NEXT has their settings",
        DEFAULT_ID,
    )
    results_id: str | None = option(
        COLUMN, "id column of RESULTS, if it differs from --id"
    )
    reward: str = option(COLUMN, "column of results (default: reward)")
    maximize: list[str] = option(
        COLUMN | REPEATED,
        "instead of --reward: an outcome of which large values are good. --maximize, "
        "--minimize, --target and --limit are repeatable and go together",
    )
    minimize: Any = option(
        COLUMN | REPEATED | {"nargs": "?", "const": ""},
        "an outcome of which small values are good; without COLUMN: that of --reward",
    )
    target: list[tuple[str, float, float]] = option(
        REPEATED | {"type": target, "metavar": '"COLUMN = X"'},
        'an outcome that is best at X, or near it, such as "viscosity = 350 +- 10"',
    )
    limit: list[tuple[str, str, float]] = option(
        REPEATED | {"type": limit, "metavar": '"COLUMN <= X"'},
        'a limit of an outcome, perhaps of an objective, such as "impurity <= 2"',
    )
    bounds: list[tuple[str, float, float]] = option(
        REPEATED | {"type": bounds, "metavar": "LOW:HIGH"},
        "the least and the largest possible result, such as 0:100 for a yield in "
        "percent: predictions and intervals stay inside. Of several outcomes "
        "COLUMN=LOW:HIGH, repeatable",
    )
    objective: list[Objective] = option(
        REPEATED | {"type": objective, "metavar": "COLUMN:DIRECTION:LOW:HIGH[:WEIGHT]"},
        "instead of --reward: an outcome. With max, LOW scores 0 and HIGH scores 1; "
        "with min, LOW scores 1 and HIGH scores 0. Repeatable: the score of a result "
        "is the weighted geometric mean",
    )
    noise_column: str | None = option(
        COLUMN | {"dest": "noise_column"},
        "column of RESULTS with the standard deviation of each result, where it is "
        "known: of n replicates' mean, that of the mean (default: one noise, learned)",
        flag="--noise-std",
    )
    replicates_are_real: bool = option(
        FLAG, "equal rows of RESULTS are separate measurements"
    )
    available: str | None = option(
        COLUMN,
        "column of CANDIDATES that says which of them can be measured now: yes or no, "
        "true or false, or an amount (0 is none)",
    )
    same: list[str] = option(
        COLUMN | REPEATED,
        "a column, or a component, of which the whole batch has the same value, such "
        "as the temperature of a plate. The value with the largest expected benefit is "
        "chosen. Repeatable",
    )
    ids_only: bool = option(FLAG, "leave the settings out of NEXT and predictions")
    with_columns: bool = option(
        FLAG,
        "write all the candidates' columns, also if there are more than 20, or, with "
        "--per-measurement, if RESULTS lacks them",
    )
    per_measurement: bool = option(
        FLAG,
        "write a row per measurement, in the columns of RESULTS and with an empty "
        "result, to be filled in and appended to RESULTS, without predictions",
    )
    report: Path | None = option(
        FILE | {"metavar": "HTML"},
        "also write a page: progress, predicted against measured results, the batch, "
        "and the assumptions",
    )
    predictions: Path | None = option(
        FILE,
        "also write a table with predictions of all candidates, in their order: the "
        "mean result, its 95 %% interval, the probability of being the best. With "
        "--component, of the 1,000 best means",
    )
    top: int | None = option(
        COUNT, "of --predictions only the N best means, the best first"
    )
    threshold: float | None = option(
        {"type": number, "metavar": "X"},
        "add to predictions and report the probability that the mean result of a "
        "candidate is better than X",
    )
    round: str | None = option(
        COLUMN,
        "column of RESULTS with the round or plate of a measurement. The command warns "
        "if rounds differ as a whole, and the report shows them in order",
    )
    group: str | None = option(
        COLUMN,
        "column of RESULTS with the plate, day or device of a measurement, empty if it "
        "has none. Offsets between these groups are learned",
    )
    control: list[str] = option(
        REPEATED | {"type": str.strip, "metavar": "ID"},
        "an id in RESULTS of a sample that is not a candidate, such as DMSO: its "
        "results tell how the groups of --group differ. Repeatable",
    )
    earlier: list[Path] = option(
        FILE | REPEATED,
        "results of an earlier campaign, in a table like RESULTS. How much they count "
        "is learned. Repeatable",
    )
    log_reward: bool = option(
        FLAG,
        "fit logarithms to base 10 of the results, for IC50s, counts and others over "
        "decades. mean, std, low and high of NEXT are those of the logarithms",
    )

    words: Sequence[str] = ()
    arms_sheet: str = field(init=False)
    roles: dict[str, Any] = field(init=False, default_factory=dict)

    @property
    def outcome_columns(self) -> list[str]:
        """The columns of results, that of the reward or those of the outcomes."""
        return [*self.roles] or [name for name, _ in self.objective] or [self.reward]

    @property
    def has_own_results(self) -> bool:
        """Whether the table of candidates is one of the results, too."""
        paths = *self.observations, *self.earlier
        return self.arms.resolve() in [path.resolve() for path in paths]

    @property
    def columns_of_next(self) -> list[str]:
        """The columns of a batch, beside the ids and empty ones for results."""
        of = [f"{name}_" for name in self.roles] or [""]
        columns = [f"{own}{kind}" for own in of for kind in MOMENTS]
        last = ["probability_feasible"] * bool(self.limit) if self.roles else ["why"]
        return ["repeats", *columns, *last]

    def columns_to_fill(self, own: Collection[str]) -> list[str]:
        """The empty columns of rows to fill in; candidates have the columns ``own``."""
        others = [self.group, self.noise_column]
        others += {self.round} - {self.group, *own}
        return [*filter(None, others), *self.outcome_columns]

    @property
    def bounds_of(self) -> dict[str, tuple[float, float]]:
        """The bounds of outcomes, by column; those of a score by the word score."""
        if self.objective:
            return {"score": (0.0, 1.0)}
        found = {}
        for name, low, high in self.bounds:
            if self.log_reward:
                low = math.log10(low) if low > 0 else -math.inf
                high = math.log10(high) if 0 < high < math.inf else math.inf
            found[name or self.outcome_columns[0]] = low, high
        return found

    @property
    def outcome_option(self) -> str:
        """The option that names the columns of results."""
        if self.roles:
            return "--maximize, --minimize, --target or --limit"
        return "--objective" if self.objective else "--reward, --maximize or --minimize"

    @property
    def results_name(self) -> str:
        """How messages name the tables of results."""
        return " and ".join(map(str, [*self.observations, *self.earlier]))

    @property
    def reward_label(self) -> str:
        """The name of the reward, which is the result, its logarithm, or the score."""
        if self.objective:
            return "score"
        if self.roles:
            return next(iter(self.roles))
        return f"log10({self.reward})" if self.log_reward else self.reward


# The options of each command, the function that runs it, and its description.
COMMANDS: dict[str, tuple[type, str, str, str | None]] = {
    "demo": (DemoOptions, "simulate.run_demo", DEMO_DESCRIPTION, None),
    "simulate": (SimulateOptions, "simulate.run", SIMULATE_DESCRIPTION, None),
    "suggest": (SuggestOptions, "suggest.run", SUGGEST_DESCRIPTION, SUGGEST_EPILOG),
    "app": (AppOptions, "app.run", APP_DESCRIPTION, None),
}


def flags_of(command: type) -> dict[str, Field[Any]]:
    """Return the fields of the options of a command by their flags, its own first."""
    known = {each.name: each for each in fields(command)}
    names = dict.fromkeys(chain.from_iterable(map(get_annotations, command.__mro__)))
    return {
        known[name].metadata["flag"] or f"--{name.replace('_', '-')}": known[name]
        for name in names
        if name in known and known[name].metadata
    }


def _kinds() -> dict[str, dict[str, Any]]:
    """Return what argparse knows of each option of all commands."""
    found = [flags_of(command) for command, *_ in COMMANDS.values()]
    return {flag: own.metadata["kind"] for each in found for flag, own in each.items()}


def by_option(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each option; any other word is a group of its own."""
    groups, kinds, most = list[list[str]](), _kinds(), 0.0
    for word in words:
        name, is_given, _ = word.partition("=")
        if word.startswith("--"):
            kind = kinds.get(name, {})
            most = math.inf if "nargs" in kind else 2
            most = 1 if is_given or kind.get("action") == "store_true" else most
            groups.append([word])
        elif groups and len(groups[-1]) < most:
            groups[-1].append(word)
        else:
            groups.append([word])
            most = 1
    return groups


def candidates_first(words: Sequence[str], option: str, path: Path) -> list[str]:
    """Return words with CANDIDATES first, which an option has taken for its own."""
    groups = by_option(words)
    for group in reversed(groups):
        if group[0] == option and Path(group[-1]) == path:
            return [group.pop(), *chain.from_iterable(groups)]
    return [*words]


def with_files(words: Sequence[str]) -> list[str]:
    """Replace each ``@FILE`` by the options in that file.

    Options that take one value, and stand beside the file too, are left out of it.
    """
    repeated = {
        name
        for name, kind in _kinds().items()
        if kind.get("action") in ("append", "extend")
    }
    taken = {word.partition("=")[0] for word in words} - repeated
    found = list[str]()
    for word in words:
        if not word.startswith("@"):
            found.append(word)
            continue
        text = Path(word[1:]).read_text("utf-8-sig")
        # A comment begins a word, outside of quotes.
        quoted_or_comment = r"""(?m)("[^"]*"|'[^']*')|(?<!\S)#.*"""
        text = re.sub(quoted_or_comment, r"\1", text)
        lexer = shlex.shlex(text, posix=True)
        # Paths of Windows have backslashes.
        lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
        for group in by_option(list(lexer)):
            if group[0].partition("=")[0] not in taken:
                found += group
    return found


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; ``command`` holds the chosen one."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [-h] [--version] [COMMAND] [OPTIONS]",
        description=DESCRIPTION,
        epilog=f"Each command has its own help: {PROGRAM} COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", prog=PROGRAM, required=True, help=argparse.SUPPRESS
    )

    for name, (options, _, description, epilog) in COMMANDS.items():
        command = commands.add_parser(
            name,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # files of options have whole names
        )
        # Values such as -100:100 and -1e-3, too.
        command._negative_number_matcher = re.compile(r"-\.?\d")
        # An option that takes one value is refused if it is given twice.
        command.register("action", None, _StoreOnce)
        for flag, each in flags_of(options).items():
            command.add_argument(flag, **each.metadata["kind"])
    return parser
