"""``python -m benchmarks NAME [options]``: run one benchmark."""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.record import Record


NAMES = (
    "figures",
    "growth",
    "groups",
    "inducing",
    "outcomes",
    "practice",
    "practice_ax",
    "practice_box",
    "products",
    "progress",
    "regret",
    "scale",
    "soak",
    "speed",
)
OUTPUT = Path("botorch_bkb_output")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name in NAMES:
        # Only the benchmark that runs is imported: each needs other packages.
        source = Path(__file__).with_name(f"{name}.py").read_text()
        description = ast.get_docstring(ast.parse(source)) or ""
        command = commands.add_parser(
            name,
            help=description.split("\n")[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--threads", type=int, default=2)
        command.add_argument(
            "--output",
            type=Path,
            help=f"folder of tables and pictures; {OUTPUT / name} if omitted, or with "
            "--smoke a temporary one",
        )
        command.add_argument("--smoke", action="store_true", help="small sizes")
        command.set_defaults(device="cpu")
        if name in sys.argv[1:2]:
            import_module(f"benchmarks.{name}").add_arguments(command)
    args = parser.parse_args()
    if args.smoke and getattr(args, "seeds", 0) != 0:
        args.seeds = 1
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if args.output is None:
            args.output = Path(scratch) if args.smoke else OUTPUT / args.name
        record = Record(args.output, args.device)
        print("; ".join(f"{key} {value}" for key, value in record.origin.items()))
        import_module(f"benchmarks.{args.name}").run(args, record)


if __name__ == "__main__":
    main()
