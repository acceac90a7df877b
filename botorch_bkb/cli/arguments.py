"""The command line's arguments. Imports nothing heavy, so that help is quick."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

from botorch_bkb._version import __version__


PROGRAM = "botorch-bkb"
DEFAULT_COMMAND = "demo"
BANDIT_NAMES = (
    *("suggest", "bbkb", "bkb", "gpucb", "gpbucb", "thompson", "epsilon-greedy"),
    *("uniform", "tvgpucb", "rgpucb"),
)
KERNEL_NAMES = ("tanimoto", "matern", "rbf")
GOAL_NAMES = ("best-arm", "regret")
# How many are suggested at once: a plate's wells.
BATCH_SIZE = 96
DEFAULT_ID = "id"
# Of the model of `simulate`, where it learns none.
NOISE_VARIANCE = 0.2
# Of the bandits that expect a drift, where they learn none.
FORGETTING_RATE = 0.01
SEPARATOR_NAMES = dict(comma=",", semicolon=";", tab="\t", bar="|", space=" ")

DESCRIPTION = """\
Gaussian process bandits over large finite sets of candidates.

  demo       run a campaign over 20,000 points of the Hartmann-6 function (default)
  simulate   run bandits over a table whose mean rewards are known
  suggest    choose the next batch to measure from a table of candidates
"""
DEMO_DESCRIPTION = """\
Run a campaign of GPBandit over Sobol points of the Hartmann-6 function with noisy
rewards, beside a greedy choice and chance. The table and the picture compare them.
"""
SIMULATE_DESCRIPTION = """\
Treat every row of a table as an arm and run a bandit over it. Features are
standardized. The reward column, standardized too, holds the mean rewards, to which
noise is added. The bandit `suggest` rehearses the command suggest: it plays the batches
which that would choose, of fingerprints too. Several bandits, or several repetitions,
are compared in one table and one picture.
"""
SUGGEST_DESCRIPTION = """\
Choose the next batch to measure. Two tables are the whole state: the candidates, and
one row per measurement so far, of which those with an empty reward are in flight.
Kernel and noise are fitted to the measurements.
"""
SUGGEST_EPILOG = """\
NEXT has a row per chosen candidate: how often to measure it (repeats), the mean reward
that the fit expects of many measurements, how uncertain that mean is (std), and where
it lies with 95 % probability (low, high). The page "Tables for suggest" of the
documentation says what tables may look like.
"""


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
number_of_bits = _reader(int, "a multiple of 8", lambda n: n >= 8 and n % 8 == 0)
seed = _reader(
    int, "a whole number from 0 to less than 2 to the 63rd", lambda n: 0 <= n < 2**63
)
non_negative_number = _reader(float, "0 or more", lambda x: 0 <= x < math.inf)
positive_number = _reader(float, "more than 0", lambda x: 0 < x < math.inf)
share = _reader(float, "from 0 to 1", lambda x: 0 <= x <= 1)


def separator(text: str) -> str:
    """Read the character between fields, or its name."""
    character = SEPARATOR_NAMES.get(text, "\t" if text == "\\t" else text)
    if len(character) != 1 or character.isalnum() or character in "\r\n\"'.+-":
        raise argparse.ArgumentTypeError(
            f"expected one character, or {', '.join(SEPARATOR_NAMES)}, but got {text!r}"
        )
    return character


def value_codes(text: str) -> tuple[str, dict[str, float]]:
    """Read a column and the number of each of its values."""
    column, _, pairs = text.rpartition(":")
    words = [pair.rsplit("=", 1) for pair in pairs.split(",")]
    try:
        numbers = {value: float(number) for value, number in words}
    except ValueError:
        numbers = {}
    if not column.strip() or not numbers or len(numbers) < len(words):
        raise argparse.ArgumentTypeError(
            "expected COLUMN:VALUE=NUMBER,... with one number for each value, but got "
            f"{text!r}"
        )
    return column.strip(), numbers


class _StoreOnce(argparse.Action):
    """Store a value, unless an earlier one would be lost."""

    given: Any = None

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.given is not None:
            raise argparse.ArgumentError(
                self, f"expected once, but got both {self.given} and {values}"
            )
        self.given = values
        setattr(namespace, self.dest, values)


# The options --------------------------------------------------------------------------

Option = tuple[str, dict[str, Any], str]

FLAG: dict[str, Any] = {"action": "store_true"}
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
COLUMN: dict[str, Any] = {"type": str.strip, "metavar": "COLUMN"}
COUNT: dict[str, Any] = {"type": positive_integer, "metavar": "N"}
POSITIVE: dict[str, Any] = {"type": positive_number, "metavar": "X"}
MARK: dict[str, Any] = {"type": separator, "metavar": "CHARACTER"}
DECIMAL: dict[str, Any] = {"choices": [".", ","], "metavar": "MARK"}
BITS: dict[str, Any] = {"type": number_of_bits, "default": 2048, "metavar": "N"}
CODES: dict[str, Any] = {"type": value_codes, "metavar": "COLUMN:VALUE=NUMBER,..."}
NOISE: dict[str, Any] = {"type": non_negative_number, "default": 0.1, "metavar": "X"}
RATE: dict[str, Any] = {"type": share, "metavar": "EPS"}
REPEATED: dict[str, Any] = {"action": "append", "default": []}
GOAL: dict[str, Any] = {"choices": GOAL_NAMES}
NAMES: dict[str, Any] = {"nargs": "+", "choices": BANDIT_NAMES, "metavar": "NAME"}
FOLDER: dict[str, Any] = {"default": Path("botorch_bkb_output"), "metavar": "FOLDER"}
TABLE_HELP = "a *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet file"
GOAL_HELP = (
    "best-arm: find the best candidate; those of a batch are distinct. regret: collect "
    "reward; good candidates come again and again (default: best-arm)"
)

RUN: list[Option] = [
    ("--seed", {"type": seed, "default": 0, "metavar": "N"}, "default: 0"),
    ("--quiet", FLAG, "show no progress"),
]
OF_TABLES: list[Option] = [
    ("--minimize", FLAG, "small rewards are best"),
    ("--max-repeats", COUNT, "measure no candidate more often than this in all"),
    ("--drop", COLUMN | REPEATED, "a column that is no feature; repeatable"),
    ("--drop-incomplete", FLAG, "leave out all columns with missing values"),
    ("--code", CODES | REPEATED, "numbers for text: sex:M=1,I=0,F=-1; repeatable"),
    ("--category", COLUMN | REPEATED, "a column whose values are names; repeatable"),
    ("--separator", MARK, "of CSV files, or its name, such as tab (default: found)"),
    ("--decimal", DECIMAL, "decimal mark of CSV files (default: found from each)"),
    (
        "--workers",
        COUNT,
        "let N workers of Ray on this machine compute (extra ray), with the same "
        "picks. A worker takes one core and 400 MB: worth it from a million candidates "
        "and more than two cores on. Not for fingerprints",
    ),
]
MOLECULES: list[Option] = [
    (
        "--smiles",
        COLUMN | REPEATED,
        "column of molecules, of which Morgan fingerprints are made (extra chem); in "
        "simulate of suggest. Repeatable: all columns are compared as one",
    ),
    ("--radius", COUNT | {"default": 2}, "of the fingerprints (default: 2, ECFP4)"),
    ("--num-bits", BITS, "length of the fingerprints (default: 2048)"),
    ("--counts", FLAG, "count how often a molecule has a fragment"),
    ("--skip-invalid", FLAG, "leave rows out that are no molecule"),
    (
        "--kernel",
        {"choices": KERNEL_NAMES},
        "tanimoto compares bits, times a matern on other columns; matern (nu 2.5) and "
        "rbf compare numbers, with a lengthscale per column (default: tanimoto of "
        "molecules and of 64 columns of 0 and 1 or more, without others; otherwise a "
        "matern trend plus rough detail. Of the papers' bandits: rbf)",
    ),
    (
        "--max-inducing",
        COUNT,
        "base the choice on at most N of the measured candidates, which bounds time "
        "and memory and makes it less accurate (default: no limit)",
    ),
]
DEMO: list[Option] = [
    ("--horizon", COUNT | {"default": 100}, "measurements (default: 100)"),
    ("--num-arms", COUNT | {"default": 20_000}, "candidates (default: 20000)"),
    ("--output", FILE | FOLDER, "for rounds.csv and regret.png"),
    *RUN,
]
SIMULATE: list[Option] = [
    ("table", FILE, TABLE_HELP),
    ("--reward", COLUMN | {"required": True}, "column of the mean rewards"),
    ("--id", COLUMN, "column of ids, which is no feature; names the best arm found"),
    (
        "--bandit",
        NAMES | {"default": ["bbkb"]},
        f"one or more of {', '.join(BANDIT_NAMES)} (default: bbkb). suggest is the "
        f"loop of that command (default batch size there: {BATCH_SIZE})",
    ),
    ("--goal", GOAL, f"of suggest. {GOAL_HELP}"),
    ("--horizon", COUNT | {"default": 1_000}, "pulls (default: 1000)"),
    (
        "--repetitions",
        COUNT | {"default": 1},
        "runs at SEED, SEED + 1, ... (default: 1)",
    ),
    ("--noise-std", NOISE, "standard deviation of a reward's noise (default: 0.1)"),
    *OF_TABLES,
    *MOLECULES,
    ("--output", FILE | FOLDER, "for rounds.csv and regret.png"),
    *RUN,
    ("--threads", COUNT, "torch threads (default: torch's choice)"),
]
ALGORITHM: list[Option] = [
    ("--lengthscale", POSITIVE, "of every feature (default: sqrt(number of features))"),
    ("--noise-variance", POSITIVE, f"of the model (default: {NOISE_VARIANCE})"),
    (
        "--confidence",
        POSITIVE,
        "width of the bounds in posterior standard deviations (default: that of the "
        "paper, without the theorem's constants)",
    ),
    (
        "--forgetting-rate",
        RATE,
        "share of the variance that is forgotten from batch to batch, of tvgpucb and "
        f"rgpucb (default: {FORGETTING_RATE})",
    ),
    ("--batch-size", COUNT, "fixed batch size in place of the bandit's own rule"),
]
SUGGEST: list[Option] = [
    ("arms", FILE | {"metavar": "ARMS"}, f"the candidates, {TABLE_HELP}"),
    (
        "--observations",
        FILE | REPEATED | {"metavar": "RESULTS"},
        "the measurements; if missing or empty, the first batch is spread out. "
        "Repeatable: the rows of all tables count",
    ),
    ("--batch-size", COUNT | {"default": BATCH_SIZE}, "measurements (default: 96)"),
    (
        "--output",
        FILE | {"default": Path("next.csv"), "metavar": "NEXT"},
        "the table to write (default: next.csv). One that was filled in is kept",
    ),
    (
        "--id",
        COLUMN | {"default": DEFAULT_ID},
        "id column of both tables, in any case (default: id). Results without ids, or "
        "under ids that ARMS lacks, belong to the candidate with their settings. If "
        "ARMS has no ids, its rows are numbered, and NEXT has their settings",
    ),
    ("--results-id", COLUMN, "id column of RESULTS, if not that of --id"),
    ("--reward", COLUMN | {"default": "reward"}, "column of RESULTS (default: reward)"),
    ("--replicates-are-real", FLAG, "equal rows of RESULTS are separate measurements"),
    (
        "--available",
        COLUMN,
        "column of ARMS that says which candidates can be measured now: yes or no, "
        "true or false, or an amount (0 is none). The others still inform",
    ),
    ("--with-columns", FLAG, "let NEXT carry the candidates' other columns"),
    (
        "--per-measurement",
        FLAG,
        "let NEXT have a row per measurement, in the columns of RESULTS and with an "
        "empty reward: to be filled in and appended to RESULTS as it is",
    ),
    (
        "--report",
        FILE | {"metavar": "HTML"},
        "write a page too: progress, predicted against measured, the batch, what was "
        "assumed",
    ),
    (
        "--round",
        COLUMN,
        "column of RESULTS with the round or plate of a measurement: warns if rounds "
        "differ as a whole, and orders the report",
    ),
    (
        "--log-reward",
        FLAG,
        "fit logarithms to base 10 of the rewards: for IC50s, counts and others over "
        "decades. NEXT has mean to high of these",
    ),
    ("--goal", GOAL | {"default": GOAL_NAMES[0]}, GOAL_HELP),
    *OF_TABLES,
    *MOLECULES,
    *RUN,
]


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

    def add_command(name: str, options: list[Option], **texts: Any) -> Any:
        command = commands.add_parser(
            name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts
        )
        # What takes one value is refused if it is given twice.
        command.register("action", None, _StoreOnce)
        _add(command, options)
        return command

    add_command("demo", DEMO, description=DEMO_DESCRIPTION)
    simulate = add_command(
        "simulate",
        SIMULATE,
        # The table first: after --bandit it would be taken for one more name.
        usage="%(prog)s TABLE --reward COLUMN [OPTIONS]",
        description=SIMULATE_DESCRIPTION,
    )
    model = simulate.add_argument_group(
        "model and algorithm, in standardized units, of all bandits but suggest"
    )
    _add(model, ALGORITHM)
    texts = {"description": SUGGEST_DESCRIPTION, "epilog": SUGGEST_EPILOG}
    add_command("suggest", SUGGEST, **texts)
    return parser


def _add(parser: argparse._ActionsContainer, options: list[Option]) -> None:
    for name, kind, text in options:
        parser.add_argument(name, **kind, help=text)
