"""The command line's arguments. Imports nothing heavy, so that help is quick."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from botorch_bkb._version import __version__


PROGRAM = "botorch-bkb"
DEFAULT_COMMAND = "demo"
BANDIT_NAMES = (
    "suggest",
    "bbkb",
    "bkb",
    "gpucb",
    "gpbucb",
    "thompson",
    "epsilon-greedy",
    "uniform",
    "tvgpucb",
    "rgpucb",
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
RESAMPLING_NAMES = ("independent", "coupled")
# The number of parameters of each rule.
CONFIDENCE_RULES = {"practical": 0, "theorem": 0, "constant": 1, "log": 2}

TABLE_HELP = "a *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet file"
SEPARATOR_NAMES = {
    "comma": ",",
    "semicolon": ";",
    "tab": "\t",
    "bar": "|",
    "space": " ",
}

DESCRIPTION = """\
Gaussian process bandits over large finite sets of candidates.

  demo       run BBKB on 20,000 arms of the Hartmann-6 function (the default)
  simulate   run bandits over a table whose mean rewards are known
  suggest    choose the next batch to measure from a table of candidates
"""


SUGGEST_DESCRIPTION = """\
Choose the next batch to measure. Two tables are the whole state: the candidates, and
one row per measurement so far, of which those with an empty reward are in flight.
Kernel and noise are fitted to the measurements.
"""

SUGGEST_EPILOG = """\
NEXT has a row per chosen candidate:

  repeats    how often to measure it
  mean       what the fit expects of its reward on average over many measurements,
             in the reward's unit
  std        how uncertain that mean is, as a standard deviation; not how much single
             measurements scatter. It is small where similar candidates were measured
  low, high  where the mean lies with 95 % probability by the fit: mean -+ 1.96 std

A candidate is chosen for its promise, not for its mean alone: of two equal means the
more uncertain one comes first. While nothing is measured these columns are empty, all
but the mean also while all rewards are equal. From four measurements on the line "Fit:"
says what the fit found, and how well it predicts candidates that are left out of it.
"""


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
probability = _reader(float, "between 0 and 1", lambda x: 0 < x < 1)
share = _reader(float, "from 0 to 1", lambda x: 0 <= x <= 1)

# How an option's value is read, and what the help calls it.
COLUMN: dict[str, Any] = {"type": str.strip, "metavar": "COLUMN"}
COUNT: dict[str, Any] = {"type": positive_integer, "metavar": "N"}
POSITIVE: dict[str, Any] = {"type": positive_number, "metavar": "X"}
DEFAULT = "default: %(default)s"
SIMULATE_DESCRIPTION = """\
Treat every row of a table as an arm and run a bandit over it. Features are
standardized. The reward column, standardized too, holds the mean rewards, to which
noise is added. The bandit `suggest` rehearses the command suggest: it plays the batches
which that would choose, of fingerprints too. Several bandits, or several repetitions,
are compared in one table and one picture.
"""


def confidence_rule(text: str) -> tuple[str, list[float]]:
    """Read a rule's name and, after colons, its parameters."""
    name, *words = text.split(":")
    if CONFIDENCE_RULES.get(name) != len(words):
        raise argparse.ArgumentTypeError(
            f"expected practical, theorem, constant:W or log:C1:C2, but got {text!r}"
        )
    return name, [positive_number(word) for word in words]


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
    if not column.strip() or not numbers:
        raise argparse.ArgumentTypeError(
            f"expected COLUMN:VALUE=NUMBER,... but got {text!r}"
        )
    if len(numbers) < len(words):
        raise argparse.ArgumentTypeError(
            f"expected one number for each value, but got a value twice in {text!r}"
        )
    return column.strip(), numbers


class _Parser(argparse.ArgumentParser):
    """A parser that refuses an option given twice, if it takes one value."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.given: dict[str, Any] = {}
        self.register("action", None, _StoreOnce)

    @override
    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        self.given = {}
        return super().parse_known_args(*args, **options)


class _StoreOnce(argparse.Action):
    """Store a value, unless an earlier one would be lost."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = cast(_Parser, parser).given
        if option_string is not None and self.dest in given:
            raise argparse.ArgumentError(
                self,
                f"expected once, but got both {given[self.dest]!s} and {values!s}. "
                "Keep one of them",
            )
        given[self.dest] = values
        setattr(namespace, self.dest, values)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; ``command`` holds the chosen one."""
    parser = _Parser(
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
    _add_demo(
        commands.add_parser(
            "demo",
            description="Run BBKB on the Hartmann-6 function, maximized over Sobol "
            "points of the unit cube, with noisy rewards.",
        )
    )
    _add_simulate(
        commands.add_parser(
            "simulate",
            # The table first: after --bandit it would be taken for one more name.
            usage="%(prog)s TABLE --reward COLUMN [OPTIONS]",
            description=SIMULATE_DESCRIPTION,
        )
    )
    _add_suggest(
        commands.add_parser(
            "suggest",
            description=SUGGEST_DESCRIPTION,
            epilog=SUGGEST_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--horizon", **COUNT, default=2_000, help=f"pulls ({DEFAULT})")
    add("--num-arms", **COUNT, default=20_000, help=f"arms ({DEFAULT})")
    _add_run_options(parser)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("table", type=Path, metavar="TABLE", help=TABLE_HELP)
    add("--reward", **COLUMN, required=True, help="column of the mean rewards")
    add(
        "--id",
        **COLUMN,
        help="column of ids, which is no feature; names the best arm found",
    )
    _add_column_options(parser)
    add("--minimize", action="store_true", help="small rewards are best")
    add(
        "--bandit",
        nargs="+",
        choices=BANDIT_NAMES,
        default=["bbkb"],
        metavar="NAME",
        help=f"one or more of {', '.join(BANDIT_NAMES)} (default: bbkb). suggest is "
        f"the loop of that command (default batch size there: {BATCH_SIZE})",
    )
    _add_purpose_options(parser, None, "best-arm. Of suggest")
    add("--horizon", **COUNT, default=1_000, help=f"pulls ({DEFAULT})")
    add(
        "--repetitions",
        **COUNT,
        default=1,
        help=f"runs of each bandit, at the seeds SEED, SEED + 1, ... ({DEFAULT})",
    )
    add(
        "--noise-std",
        type=non_negative_number,
        default=0.1,
        metavar="X",
        help=f"standard deviation of the noise on a reward ({DEFAULT})",
    )
    _add_model_options(parser)
    _add_fingerprint_options(parser, "TABLE", ". Of suggest")
    _add_rule_options(parser)
    _add_run_options(parser)
    add("--threads", **COUNT, help="torch threads (default: torch's choice)")
    _add_workers(parser, ". Of all bandits but uniform and tvgpucb")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "model, in standardized units, of all bandits but suggest, which learns it"
    ).add_argument
    add(
        "--kernel",
        choices=KERNEL_NAMES,
        help="matern has nu = 2.5 (default: rbf). suggest learns it: see its own help",
    )
    add(
        "--lengthscale",
        **POSITIVE,
        help="of every feature (default: sqrt(number of features))",
    )
    add(
        "--noise-variance",
        **POSITIVE,
        help="the model's noise variance, which also absorbs misfit (default: "
        f"{NOISE_VARIANCE})",
    )


def _add_rule_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "confidence width, batches, inducing points, drift"
    )
    add, sparse = group.add_argument, "bkb, bbkb, thompson, epsilon-greedy"
    add(
        "--confidence",
        type=confidence_rule,
        metavar="RULE",
        help="practical (without the theorem's constants), theorem, constant:W, or "
        "log:C1:C2 (default: practical)",
    )
    add(
        "--norm-bound",
        **POSITIVE,
        help="bound on the norm of the reward function (default: 1)",
    )
    add(
        "--failure-probability",
        type=probability,
        metavar="DELTA",
        help="of the confidence band (default: 1 / horizon)",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument(
        "--ratio-threshold",
        **POSITIVE,
        help="bound that closes a batch of bbkb or gpbucb (default: 2)",
    )
    size.add_argument(
        "--batch-size",
        **COUNT,
        help="fixed batch size in place of the bandit's own rule",
    )
    add(
        "--oversampling",
        **POSITIVE,
        help=f"of the inducing points of {sparse} (default: 2)",
    )
    add(
        "--resampling",
        choices=RESAMPLING_NAMES,
        help=f"of the inducing points of {sparse} (default: independent)",
    )
    _add_ceiling(group, f"of {sparse}: ")
    add(
        "--forgetting-rate",
        type=share,
        metavar="EPS",
        help="share of the variance that tvgpucb forgets from batch to batch (default: "
        f"{FORGETTING_RATE})",
    )
    add(
        "--block-size",
        **POSITIVE,
        help="batches after which rgpucb starts afresh (default: the paper's formula "
        f"at the forgetting rate, or at {FORGETTING_RATE})",
    )


def _add_suggest(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("arms", type=Path, metavar="ARMS", help=f"the candidates, {TABLE_HELP}")
    add(
        "--observations",
        action="append",
        default=[],
        type=Path,
        metavar="RESULTS",
        help="the measurements; if missing or empty, the first batch is spread out. "
        "Repeatable: the rows of all tables count",
    )
    add(
        "--batch-size",
        **COUNT,
        default=BATCH_SIZE,
        help=f"measurements to choose ({DEFAULT}); of fewer candidates some come again",
    )
    add(
        "--output",
        type=Path,
        default=Path("next.csv"),
        metavar="NEXT",
        help=f"the table to write ({DEFAULT}). One that was filled in is kept",
    )
    add(
        "--id",
        **COLUMN,
        default=DEFAULT_ID,
        help=f"id column of both tables, in any case ({DEFAULT}). Results without ids, "
        "or under ids that ARMS lacks, belong to the candidate with their settings. If "
        "ARMS has no ids, its rows are numbered, and NEXT has their settings",
    )
    add("--results-id", **COLUMN, help="id column of RESULTS, if not that of --id")
    add(
        "--reward",
        **COLUMN,
        default="reward",
        help=f"reward column of RESULTS ({DEFAULT})",
    )
    add(
        "--replicates-are-real",
        action="store_true",
        help="rows of RESULTS that are equal in every column are separate "
        "measurements; without it they are refused if most rows are",
    )
    add(
        "--available",
        **COLUMN,
        help="column of ARMS that says which candidates can be measured now: yes or "
        "no, true or false, or an amount (0 is none). The others still inform",
    )
    add(
        "--with-columns",
        action="store_true",
        help="let NEXT carry the candidates' other columns",
    )
    add(
        "--per-measurement",
        action="store_true",
        help="let NEXT have a row per measurement, in the columns of RESULTS and with "
        "an empty reward: to be filled in and appended to RESULTS as it is",
    )
    add(
        "--report",
        type=Path,
        metavar="HTML",
        help="write a page too, one file for any browser: progress, predicted against "
        "measured, the batch with what is known nearby, what was assumed",
    )
    add(
        "--round",
        **COLUMN,
        help="column of RESULTS with the round or plate of a measurement: warns if "
        "rounds differ as a whole, and orders the report (default there: --batch-size "
        "measurements are one)",
    )
    add("--minimize", action="store_true", help="small rewards are best")
    add(
        "--log-reward",
        action="store_true",
        help="fit logarithms to base 10 of the rewards, which are all more than 0: for "
        "IC50s, counts and others over decades. NEXT has mean to high of these",
    )
    _add_purpose_options(parser, GOAL_NAMES[0], GOAL_NAMES[0])
    _add_column_options(parser)
    group = _add_fingerprint_options(
        parser, "ARMS", ". Results of molecules that ARMS lacks need this column too"
    )
    group.add_argument(
        "--kernel",
        choices=KERNEL_NAMES,
        help="tanimoto compares bits, times a matern on other columns; matern (nu 2.5) "
        "and rbf compare numbers, with a lengthscale per column (default: tanimoto of "
        "molecules and of 64 columns of 0 and 1 or more, without others; otherwise a "
        "matern trend plus rough detail)",
    )
    _add_ceiling(parser)
    _add_workers(parser)
    _add_seed_and_quiet(parser)


def _add_ceiling(parser: argparse._ActionsContainer, of: str = "") -> None:
    parser.add_argument(
        "--max-inducing",
        type=positive_integer,
        metavar="M",
        help=f"{of}base the choice on at most M of the measured candidates, which "
        "bounds time and memory and makes it less accurate (default: no limit)",
    )


def _add_workers(parser: argparse.ArgumentParser, of: str = "") -> None:
    parser.add_argument(
        "--workers",
        **COUNT,
        help="let N workers of Ray on this machine compute (extra ray), with the same "
        "picks. A worker takes one core and 400 MB: worth it from a million candidates "
        f"and more than two cores on. Not for fingerprints{of}",
    )


def _add_fingerprint_options(
    parser: argparse.ArgumentParser, table: str, more: str
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("molecules and other fingerprints")
    add = group.add_argument
    add(
        "--smiles",
        **COLUMN,
        action="append",
        default=[],
        help="column of molecules, of which Morgan fingerprints are made (extra chem) "
        f"and kept beside {table}{more}. Repeatable: the fingerprints of all columns "
        "are compared as one",
    )
    add(
        "--radius",
        type=positive_integer,
        default=2,
        metavar="BONDS",
        help="of the fingerprints (default: %(default)s, ECFP4)",
    )
    add(
        "--num-bits",
        type=number_of_bits,
        default=2048,
        metavar="N",
        help=f"length of the fingerprints, a multiple of 8 ({DEFAULT})",
    )
    add(
        "--counts",
        action="store_true",
        help="count how often a molecule has a fragment",
    )
    add(
        "--skip-invalid",
        action="store_true",
        help="leave rows out that are no molecule; without it they are an error",
    )
    return group


def _add_purpose_options(
    parser: argparse.ArgumentParser, default: str | None, default_words: str
) -> None:
    parser.add_argument(
        "--goal",
        choices=GOAL_NAMES,
        default=default,
        help="best-arm: find the best candidate; those of a batch are distinct. "
        "regret: collect reward; good candidates come again and again (default: "
        f"{default_words})",
    )
    parser.add_argument(
        "--max-repeats",
        **COUNT,
        help="measure no candidate more often than this in all (default: no limit)",
    )


def _add_column_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    repeated: dict[str, Any] = {"action": "append", "default": []}
    add("--drop", **COLUMN, **repeated, help="a column that is no feature; repeatable")
    add(
        "--drop-incomplete",
        action="store_true",
        help="leave out all columns with missing values as if by --drop",
    )
    add(
        "--code",
        **repeated,
        type=value_codes,
        metavar="COLUMN:VALUE=NUMBER,...",
        help="numbers for a text column, such as sex:M=1,I=0,F=-1; repeatable. "
        "Other text columns become one column of 0 and 1 per value",
    )
    add(
        "--category",
        **COLUMN,
        **repeated,
        help="a column whose values are names, such as plate numbers; repeatable",
    )
    add(
        "--separator",
        type=separator,
        metavar="CHARACTER",
        help=f"of CSV files, a character or {', '.join(SEPARATOR_NAMES)}, where the "
        "header has it (default: found from each file)",
    )
    add(
        "--decimal",
        choices=[".", ","],
        metavar="MARK",
        help="before the decimals of CSV files, . or , (default: found from each file)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("botorch_bkb_output"),
        metavar="FOLDER",
        help=f"for rounds.csv and regret.png ({DEFAULT})",
    )
    _add_seed_and_quiet(parser)


def _add_seed_and_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help=DEFAULT)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
