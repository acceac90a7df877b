"""The command line's arguments. Imports nothing heavy, so that help is quick."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

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
but the mean also while all rewards are equal. The fit is a guess too, made from four
measurements on; read the line "Fit:" that is printed: the share of the rewards'
variance that it takes for noise, the columns that matter (lengthscale: a change by that
share of the column's range changes the reward; far above 1, it hardly matters), how
much of the variance is rough detail beside them, within shorter distances, and how well
candidates are predicted that are left out of the fit (correlation: 1 is perfect, 0 is
chance).
"""


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
    _add_demo(commands)
    _add_simulate(commands)
    _add_suggest(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        description="Run BBKB on the Hartmann-6 function, maximized over Sobol points "
        "of the unit cube, with noisy rewards.",
    )
    parser.add_argument(
        "--horizon",
        type=positive_integer,
        default=2_000,
        metavar="T",
        help="pulls (default: %(default)s)",
    )
    parser.add_argument(
        "--num-arms",
        type=positive_integer,
        default=20_000,
        metavar="A",
        help="arms (default: %(default)s)",
    )
    _add_run_options(parser)


def _add_simulate(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = commands.add_parser(
        "simulate",
        # The table first: after --bandit it would be taken for one more name.
        usage="%(prog)s TABLE --reward COLUMN [OPTIONS]",
        description="Treat every row of a table as an arm and run a bandit over it. "
        "Features are standardized. The reward column, standardized too, holds the "
        "mean rewards, to which noise is added. The bandit `suggest` rehearses the "
        "command suggest: it plays the batches which that would choose, of "
        "fingerprints too. Several bandits, or several repetitions, are compared in "
        "one table and one picture.",
    )
    parser.add_argument("table", type=Path, metavar="TABLE", help=TABLE_HELP)
    parser.add_argument(
        "--reward",
        type=str.strip,
        required=True,
        metavar="COLUMN",
        help="column of the mean rewards",
    )
    parser.add_argument(
        "--id",
        type=str.strip,
        metavar="COLUMN",
        help="column of ids, which is no feature; names the best arm found",
    )
    _add_column_options(parser)
    parser.add_argument(
        "--minimize", action="store_true", help="small rewards are best"
    )
    parser.add_argument(
        "--bandit",
        nargs="+",
        choices=BANDIT_NAMES,
        default=["bbkb"],
        metavar="NAME",
        help=f"one or more of {', '.join(BANDIT_NAMES)} (default: bbkb). suggest is "
        "the loop of the command suggest: kernel and noise learned, batches of "
        f"--batch-size (default there: {BATCH_SIZE}), goal best-arm",
    )
    parser.add_argument(
        "--learn",
        action="store_true",
        help="let all bandits learn kernel and noise, as suggest does, and use their "
        "own defaults for that, in place of the model below",
    )
    _add_purpose_options(
        parser,
        None,
        "best-arm of suggest and with --learn, otherwise, and of tvgpucb and rgpucb, "
        "regret",
    )
    parser.add_argument(
        "--horizon",
        type=positive_integer,
        default=1_000,
        metavar="T",
        help="pulls (default: %(default)s)",
    )
    parser.add_argument(
        "--repetitions",
        type=positive_integer,
        default=1,
        metavar="N",
        help="runs of each bandit, at the seeds SEED, SEED + 1, ... "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--noise-std",
        type=non_negative_number,
        default=0.1,
        metavar="X",
        help="standard deviation of the noise on a reward (default: %(default)s)",
    )
    _add_model_options(parser)
    _add_fingerprint_options(
        parser, "TABLE", ". Of suggest, and with --learn of all bandits"
    )
    _add_rule_options(parser)
    _add_run_options(parser)
    parser.add_argument(
        "--threads",
        type=positive_integer,
        metavar="N",
        help="torch threads (default: torch's choice)",
    )
    _add_workers(parser, ". Of all bandits but uniform and tvgpucb")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "model, in standardized units, of bandits that learn none"
    )
    group.add_argument(
        "--kernel",
        choices=KERNEL_NAMES,
        help="matern has nu = 2.5 (default: rbf). Of suggest what it learns: as its "
        "own --kernel, tanimoto too, and its own default",
    )
    group.add_argument(
        "--lengthscale",
        type=positive_number,
        metavar="X",
        help="of every feature (default: sqrt(number of features))",
    )
    group.add_argument(
        "--noise-variance",
        type=positive_number,
        metavar="X",
        help="the model's noise variance, which also absorbs misfit (default: "
        f"{NOISE_VARIANCE})",
    )


def _add_rule_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "confidence width, batches, inducing points, drift"
    )
    group.add_argument(
        "--confidence",
        type=confidence_rule,
        metavar="RULE",
        help="practical (without the theorem's constants), theorem, constant:W, or "
        "log:C1:C2 (default: practical; with --learn, 1.25 posterior deviations, one "
        "more where all is noise, but of tvgpucb and rgpucb, for which practical is "
        "the theorem's)",
    )
    group.add_argument(
        "--norm-bound",
        type=positive_number,
        metavar="F",
        help="bound on the norm of the reward function (default: 1)",
    )
    group.add_argument(
        "--failure-probability",
        type=probability,
        metavar="DELTA",
        help="of the confidence band (default: 1 / horizon)",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument(
        "--ratio-threshold",
        type=positive_number,
        metavar="C",
        help="bound that closes a batch of bbkb or gpbucb (default: 2)",
    )
    size.add_argument(
        "--batch-size",
        type=positive_integer,
        metavar="N",
        help="fixed batch size in place of the bandit's own rule",
    )
    group.add_argument(
        "--oversampling",
        type=positive_number,
        metavar="Q",
        help="of the inducing points of bkb, bbkb, thompson, epsilon-greedy "
        "(default: 2)",
    )
    group.add_argument(
        "--resampling",
        choices=RESAMPLING_NAMES,
        help="of the inducing points of bkb, bbkb, thompson, epsilon-greedy "
        "(default: independent)",
    )
    _add_ceiling(group, "of bkb, bbkb, thompson, epsilon-greedy: ")

    group.add_argument(
        "--forgetting-rate",
        type=share,
        metavar="EPS",
        help="share of the variance that tvgpucb forgets from batch to batch (default: "
        f"{FORGETTING_RATE}; learned with --learn)",
    )
    group.add_argument(
        "--block-size",
        type=positive_number,
        metavar="N",
        help="batches after which rgpucb starts afresh (default: the paper's formula "
        f"at the forgetting rate, or at {FORGETTING_RATE})",
    )


def _add_suggest(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = commands.add_parser(
        "suggest",
        description=SUGGEST_DESCRIPTION,
        epilog=SUGGEST_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "arms",
        type=Path,
        metavar="ARMS",
        help=f"the candidates, {TABLE_HELP}",
    )
    parser.add_argument(
        "--observations",
        type=Path,
        metavar="RESULTS",
        help="the measurements; if missing or empty, the first batch is spread out",
    )
    parser.add_argument(
        "--batch-size",
        type=positive_integer,
        default=BATCH_SIZE,
        metavar="N",
        help="measurements to choose (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("next.csv"),
        metavar="NEXT",
        help="the table to write (default: %(default)s)",
    )
    parser.add_argument(
        "--id",
        type=str.strip,
        default="id",
        metavar="COLUMN",
        help="id column of both tables (default: %(default)s)",
    )
    parser.add_argument(
        "--reward",
        type=str.strip,
        default="reward",
        metavar="COLUMN",
        help="reward column of RESULTS (default: %(default)s)",
    )
    parser.add_argument(
        "--available",
        type=str.strip,
        metavar="COLUMN",
        help="column of ARMS that says which candidates can be measured now: yes or "
        "no, true or false, or an amount (0 is none). The others still inform",
    )
    parser.add_argument(
        "--with-columns",
        action="store_true",
        help="let NEXT carry the candidates' other columns",
    )
    parser.add_argument(
        "--per-measurement",
        action="store_true",
        help="let NEXT have a row per measurement, in the columns of RESULTS and with "
        "an empty reward: to be filled in and appended to RESULTS as it is",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="HTML",
        help="write a page too, one file for any browser: progress, predicted against "
        "measured, the batch with what is known nearby, what was assumed",
    )
    parser.add_argument(
        "--round",
        type=str.strip,
        metavar="COLUMN",
        help="column of RESULTS with the round or plate of a measurement, a number, a "
        "date or a name; the report goes by it (default: --batch-size measurements "
        "are one, in the order of RESULTS)",
    )
    parser.add_argument(
        "--minimize", action="store_true", help="small rewards are best"
    )
    _add_purpose_options(parser, GOAL_NAMES[0], GOAL_NAMES[0])
    _add_column_options(parser)
    group = _add_fingerprint_options(
        parser,
        "ARMS",
        ". Results of molecules that ARMS lacks inform where RESULTS has the column "
        "too",
    )
    group.add_argument(
        "--kernel",
        choices=KERNEL_NAMES,
        help="what compares candidates: tanimoto the bits that both have, times a "
        "matern on other columns; matern (nu 2.5) and rbf the columns as numbers, each "
        "with its lengthscale. All are learned (default: tanimoto with --smiles, and "
        "where all columns are 0 or 1, at least 64 of them; otherwise a matern trend "
        "plus rough detail)",
    )
    _add_ceiling(parser)
    _add_workers(parser)
    _add_seed(parser)
    _add_quiet(parser)


def _add_ceiling(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, of: str = ""
) -> None:
    parser.add_argument(
        "--max-inducing",
        type=positive_integer,
        metavar="M",
        help=f"{of}base the choice on at most M of the measured candidates, those that "
        "say most, which bounds time and memory of thousands of measurements and makes "
        "it less accurate (default: no limit)",
    )


def _add_workers(parser: argparse.ArgumentParser, of: str = "") -> None:
    parser.add_argument(
        "--workers",
        type=positive_integer,
        metavar="N",
        help="let N workers of Ray on this machine compute what there is of every "
        "candidate (extra ray): the same picks. A worker takes one core, some 400 MB "
        "and seconds to start, and whole blocks of 65,536 candidates: worth it from "
        "about a million candidates on, and on more cores than two, where it is no "
        "faster than this process with two threads. Not for fingerprints"
        f"{of} (default: this process computes)",
    )


def _add_fingerprint_options(
    parser: argparse.ArgumentParser, table: str, more: str = ""
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("molecules and other fingerprints")
    group.add_argument(
        "--smiles",
        type=str.strip,
        metavar="COLUMN",
        help="column of molecules, of which Morgan fingerprints are made (extra chem) "
        f"and kept beside {table}{more}",
    )
    group.add_argument(
        "--radius",
        type=positive_integer,
        default=2,
        metavar="BONDS",
        help="of the fingerprints (default: %(default)s, ECFP4)",
    )
    group.add_argument(
        "--num-bits",
        type=number_of_bits,
        default=2048,
        metavar="N",
        help="length of the fingerprints, a multiple of 8 (default: %(default)s)",
    )
    group.add_argument(
        "--counts",
        action="store_true",
        help="count how often a molecule has a fragment",
    )
    group.add_argument(
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
        help="best-arm: find the best candidate; those of a batch are distinct, and a "
        "measured one comes again only if that tells more about which is best than a "
        "new one would. regret: collect reward; good candidates come again and again "
        f"(default: {default_words})",
    )
    parser.add_argument(
        "--max-repeats",
        type=positive_integer,
        metavar="N",
        help="measure no candidate more often than this in all, for whatever goal "
        "(default: no limit)",
    )


def _add_column_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drop",
        type=str.strip,
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column that is no feature; may be repeated",
    )
    parser.add_argument(
        "--code",
        action="append",
        type=value_codes,
        default=[],
        metavar="COLUMN:VALUE=NUMBER,...",
        help="numbers for a text column, such as sex:M=1,I=0,F=-1; may be repeated. "
        "Other text columns become one column of 0 and 1 per value",
    )
    parser.add_argument(
        "--category",
        type=str.strip,
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column whose values are names and right as they are, such as plate "
        "numbers, or words that differ in case only; may be repeated",
    )
    parser.add_argument(
        "--separator",
        type=separator,
        metavar="CHARACTER",
        help="between the fields of CSV files: one character, or "
        f"{', '.join(SEPARATOR_NAMES)}; for those whose header has it (default: found "
        "from each file)",
    )
    parser.add_argument(
        "--decimal",
        choices=[".", ","],
        metavar="MARK",
        help="before the decimals of CSV files, . or , (default: found from each file)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_seed(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("botorch_bkb_output"),
        metavar="FOLDER",
        help="for rounds.csv and regret.png (default: %(default)s)",
    )
    _add_quiet(parser)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="default: %(default)s"
    )


def positive_integer(text: str) -> int:
    """Read 1, 2, 3, ... These readers' names appear in argparse's messages."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, but got {text}")
    return value


def number_of_bits(text: str) -> int:
    """Read a multiple of 8."""
    value = int(text)
    if value < 8 or value % 8:
        raise argparse.ArgumentTypeError(f"expected a multiple of 8, but got {text}")
    return value


def seed(text: str) -> int:
    """Read an integer that a random generator takes."""
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(
            f"expected 0 or more, and less than 2 to the 63rd, but got {text}"
        )
    return value


def non_negative_number(text: str) -> float:
    """Read a finite number of at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected 0 or more, but got {text}")
    return value


def positive_number(text: str) -> float:
    """Read a finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected more than 0, but got {text}")
    return value


def probability(text: str) -> float:
    """Read a number above 0 and below 1."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected between 0 and 1, but got {text}")
    return value


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected from 0 to 1, but got {text}")
    return value


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
    try:
        numbers = {
            value: float(number)
            for value, number in (pair.rsplit("=", 1) for pair in pairs.split(","))
        }
    except ValueError:
        numbers = {}
    if not column.strip() or not numbers:
        raise argparse.ArgumentTypeError(
            f"expected COLUMN:VALUE=NUMBER,... but got {text!r}"
        )
    return column.strip(), numbers
