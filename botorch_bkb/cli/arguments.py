"""The command line's arguments. Imports nothing heavy, so that help is fast."""

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
    "uniform",
)
KERNEL_NAMES = ("tanimoto", "matern", "rbf")
GOAL_NAMES = ("best-arm", "regret")
# The wells of a plate.
BATCH_SIZE = 96
DEFAULT_ID = "id"
# The noise variance of the papers' bandits in `simulate`.
NOISE_VARIANCE = 0.2
SEPARATOR_NAMES = dict(comma=",", semicolon=";", tab="\t", bar="|", space=" ")

DESCRIPTION = """\
Gaussian process bandits over large finite sets of candidates.

  demo       run a campaign over 20,000 points of the Hartmann-6 function (default)
  simulate   run bandits over a table of candidates whose mean results are known
  suggest    choose the next batch to measure from a table of candidates
"""
DEMO_DESCRIPTION = """\
Run a campaign of GPBandit over Sobol points of the Hartmann-6 function with noisy
results, beside a greedy policy and uniform choice. A table and a picture compare them.
"""
SIMULATE_DESCRIPTION = """\
Run bandits over a table of candidates whose mean results are known. Noise is added to
the results. The bandit `suggest` chooses the batches that the command suggest would
choose. The other bandits are the algorithms of the papers, with standardized features.
One table and one picture compare all bandits and repetitions.
"""
SUGGEST_DESCRIPTION = """\
Choose the next batch to measure. Two tables are the whole state: the candidates, and
one row per measurement so far. A measurement with an empty result is in flight. Kernel
and noise are fitted to the measurements.
"""
SUGGEST_EPILOG = """\
NEXT has a row per chosen candidate: how often to measure it (repeats), the predicted
mean of many measurements, the standard deviation of that mean (std), its 95 % interval
(low, high), and why it was chosen. The page "Tables for suggest" of the documentation
describes the tables.
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
REPEATED: dict[str, Any] = {"action": "append", "default": []}
GOAL: dict[str, Any] = {"choices": GOAL_NAMES}
NAMES: dict[str, Any] = {"nargs": "+", "choices": BANDIT_NAMES, "metavar": "NAME"}
FOLDER: dict[str, Any] = {"default": Path("botorch_bkb_output"), "metavar": "FOLDER"}
TABLE_HELP = "a *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet file"
GOAL_HELP = (
    "best-arm: find the best candidate; a batch has distinct candidates. regret: "
    "collect good results; good candidates are measured repeatedly (default: best-arm)"
)

RUN: list[Option] = [
    ("--seed", {"type": seed, "default": 0, "metavar": "N"}, "default: 0"),
    ("--quiet", FLAG, "show no progress"),
]
OF_TABLES: list[Option] = [
    ("--minimize", FLAG, "small results are best"),
    ("--max-repeats", COUNT, "the most measurements of one candidate in all"),
    ("--drop", COLUMN | REPEATED, "a column that is not a feature; repeatable"),
    ("--drop-incomplete", FLAG, "leave out all columns with missing values"),
    ("--code", CODES | REPEATED, "numbers for text: sex:M=1,I=0,F=-1; repeatable"),
    ("--category", COLUMN | REPEATED, "a column whose values are names; repeatable"),
    ("--separator", MARK, "of CSV files, or its name, such as tab (default: detected)"),
    ("--decimal", DECIMAL, "decimal mark of CSV files (default: detected)"),
    (
        "--smiles",
        COLUMN | REPEATED,
        "column of molecules as SMILES, which become Morgan fingerprints (extra chem); "
        "repeatable: the fingerprints of all columns are put side by side. In "
        "simulate, only --bandit suggest takes it",
    ),
    ("--radius", COUNT | {"default": 2}, "of the fingerprints (default: 2, ECFP4)"),
    ("--num-bits", BITS, "length of the fingerprints (default: 2048)"),
    ("--counts", FLAG, "count how often a molecule has a fragment"),
    ("--skip-invalid", FLAG, "leave out rows whose SMILES cannot be read"),
    (
        "--kernel",
        {"choices": KERNEL_NAMES},
        "tanimoto compares bits, times a matern kernel of other columns; matern (nu "
        "2.5) and rbf compare numbers, with a lengthscale per column (default: "
        "tanimoto for molecules, and for 64 columns of 0 and 1 or more without others; "
        "otherwise a matern trend plus rough detail. Of the papers' bandits: rbf)",
    ),
    (
        "--max-inducing",
        COUNT,
        "use at most N measured candidates as inducing points, which bounds time and "
        "memory and makes the model less accurate (default: no limit)",
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
    ("--reward", COLUMN | {"required": True}, "column of the mean results"),
    ("--id", COLUMN, "column of ids, which is not a feature; names the best candidate"),
    (
        "--bandit",
        NAMES | {"default": ["bbkb"]},
        f"one or more of {', '.join(BANDIT_NAMES)} (default: bbkb). suggest is the "
        f"loop of that command (default batch size there: {BATCH_SIZE})",
    ),
    ("--goal", GOAL, f"of suggest. {GOAL_HELP}"),
    ("--horizon", COUNT | {"default": 1_000}, "measurements (default: 1000)"),
    (
        "--repetitions",
        COUNT | {"default": 1},
        "runs at SEED, SEED + 1, ... (default: 1)",
    ),
    (
        "--noise-std",
        NOISE,
        "standard deviation of the noise of a measurement, in standard deviations of "
        "the mean results (default: 0.1)",
    ),
    *OF_TABLES,
    ("--output", FILE | FOLDER, "for rounds.csv and regret.png"),
    *RUN,
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
    ("--batch-size", COUNT, "fixed batch size in place of the bandit's own rule"),
]
SUGGEST: list[Option] = [
    ("arms", FILE | {"metavar": "CANDIDATES"}, f"the candidates, {TABLE_HELP}"),
    (
        "--observations",
        FILE | REPEATED | {"metavar": "RESULTS"},
        "the measurements; without any, the first batch is spread out. Repeatable: the "
        "rows of all tables count",
    ),
    ("--batch-size", COUNT | {"default": BATCH_SIZE}, "measurements (default: 96)"),
    (
        "--output",
        FILE | {"default": Path("next.csv"), "metavar": "NEXT"},
        "the table to write (default: next.csv). A table that was filled in is kept",
    ),
    (
        "--id",
        COLUMN | {"default": DEFAULT_ID},
        "id column of both tables, in any case (default: id). Results without ids, or "
        "with unknown ids, belong to the candidate with the same settings. If "
        "CANDIDATES has no ids, its rows are numbered, and NEXT has their settings",
    ),
    ("--results-id", COLUMN, "id column of RESULTS, if it differs from --id"),
    ("--reward", COLUMN | {"default": "reward"}, "column of results (default: reward)"),
    ("--replicates-are-real", FLAG, "equal rows of RESULTS are separate measurements"),
    (
        "--available",
        COLUMN,
        "column of CANDIDATES that says which of them can be measured now: yes or no, "
        "true or false, or an amount (0 is none). The results of the others still "
        "train the model",
    ),
    ("--with-columns", FLAG, "add the candidates' other columns to NEXT"),
    (
        "--per-measurement",
        FLAG,
        "write a row per measurement, in the columns of RESULTS and with an empty "
        "result, to be filled in and appended to RESULTS",
    ),
    (
        "--report",
        FILE | {"metavar": "HTML"},
        "also write a page: progress, predicted against measured results, the batch, "
        "and the assumptions",
    ),
    (
        "--round",
        COLUMN,
        "column of RESULTS with the round or plate of a measurement. The command warns "
        "if rounds differ as a whole, and the report shows them in order",
    ),
    (
        "--log-reward",
        FLAG,
        "fit logarithms to base 10 of the results, for IC50s, counts and others over "
        "decades. mean, std, low and high of NEXT are those of the logarithms",
    ),
    ("--goal", GOAL | {"default": GOAL_NAMES[0]}, GOAL_HELP),
    *OF_TABLES,
    (
        "--workers",
        COUNT,
        "let N workers of Ray on this machine compute (extra ray), with the same "
        "batch. A worker takes one core and 400 MB: worth it from a million "
        "candidates and three cores on. Not for fingerprints",
    ),
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
        # An option that takes one value is refused if it is given twice.
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
        "model and algorithm of the papers' bandits, in standardized units"
    )
    _add(model, ALGORITHM)
    texts = {"description": SUGGEST_DESCRIPTION, "epilog": SUGGEST_EPILOG}
    add_command("suggest", SUGGEST, **texts)
    return parser


def _add(parser: argparse._ActionsContainer, options: list[Option]) -> None:
    for name, kind, text in options:
        parser.add_argument(name, **kind, help=text)
