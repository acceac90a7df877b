"""``python -m benchmarks NAME [options]``: run one benchmark."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks import (
    ax_overhead,
    breakdown,
    ceiling,
    cuda,
    drift_steps,
    figures,
    fitting,
    lookahead,
    million,
    neighbour,
    places,
    practice,
    practice_ax,
    practice_box,
    regret,
    roofline,
    scale,
    scoring,
    screening,
    soak,
    thompson_draws,
)


BENCHMARKS = {
    "ax_overhead": ax_overhead,
    "breakdown": breakdown,
    "ceiling": ceiling,
    "cuda": cuda,
    "drift_steps": drift_steps,
    "figures": figures,
    "fitting": fitting,
    "lookahead": lookahead,
    "million": million,
    "neighbour": neighbour,
    "places": places,
    "practice": practice,
    "practice_ax": practice_ax,
    "practice_box": practice_box,
    "regret": regret,
    "roofline": roofline,
    "scale": scale,
    "scoring": scoring,
    "screening": screening,
    "soak": soak,
    "thompson_draws": thompson_draws,
}
OUTPUT = Path("botorch_bkb_output")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, module in BENCHMARKS.items():
        description = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=description.split("\n")[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--device", default="cpu", help="cpu (default) or cuda")
        command.add_argument(
            "--output",
            type=Path,
            help=f"folder of tables and pictures; {OUTPUT / name} if omitted, or with "
            "--smoke a temporary one",
        )
        command.add_argument("--smoke", action="store_true", help="small sizes")
        module.add_arguments(command)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if args.output is None:
            args.output = Path(scratch) if args.smoke else OUTPUT / args.name
        BENCHMARKS[args.name].run(args)


if __name__ == "__main__":
    main()
