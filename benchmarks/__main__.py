"""``python -m benchmarks NAME [options]``: run one benchmark."""

from __future__ import annotations

import argparse

import torch

from benchmarks import abalone, argmax, fitting


BENCHMARKS = {"abalone": abalone, "argmax": argmax, "fitting": fitting}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(name, help=(module.__doc__ or "").split("\n")[0])
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--smoke", action="store_true", help="small sizes")
        module.add_arguments(command)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    BENCHMARKS[args.name].run(args)


if __name__ == "__main__":
    main()
