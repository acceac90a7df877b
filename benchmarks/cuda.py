"""The tests, and the benchmarks that take `--device cuda`, on a GPU: one report.

Runs the test suite (`tests/test_devices.py` takes the GPU along where there is one),
then `roofline` in either precision, `scoring` on 10^6 and 10^7 arms, `regret` on
Abalone and Cadata, `thompson_draws` and `million`, each in a process of its own.
`report.md` has, for each, the command, how it ended, its seconds and what it printed;
their tables and pictures are in folders beside it. Abalone and Cadata are read from the
folder that BOTORCH_BKB_DATA names.

`--plan` prints the commands and runs nothing. Ends with the exit code 1 if a step
failed, and 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.record import caption, provenance


ROOT = Path(__file__).parent.parent
BENCHMARKS = {
    "roofline": "roofline",
    "roofline, single precision": "roofline --dtype float32",
    "scoring": "scoring --num-arms 1000000 10000000",
    "regret, Abalone": "regret --data abalone --bandits BBKB --repetitions 3",
    "regret, Cadata": "regret --data cadata --bandits BBKB --repetitions 3",
    "thompson_draws": "thompson_draws",
    "million": "million",
}
NO_GPU = 2
NUM_LINES = 60  # of what a step printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--plan", action="store_true", help="only print the commands")
    parser.add_argument(
        "--minutes-per-step", type=float, default=60.0, metavar="MINUTES"
    )


def steps(output: Path, device: str, threads: int, smoke: bool) -> dict[str, list[str]]:
    """Return all commands by name."""
    python = [sys.executable, "-m"]
    tests = [*python, "pytest", "-q"]
    if smoke:
        tests.append("tests/test_devices.py")
    commands = {"tests": tests}
    for name, words in BENCHMARKS.items():
        folder = output / name.replace(", ", "_").replace(" ", "_")
        options = ["--device", device, "--threads", str(threads)]
        options += ["--output", str(folder)] + ["--smoke"] * smoke
        commands[name] = [*python, "benchmarks", *words.split(), *options]
    return commands


def run(args: argparse.Namespace) -> None:
    """Run every step and write the report; or say that there is no GPU."""
    device = "cuda" if args.device == "cpu" else args.device
    commands = steps(args.output.resolve(), device, args.threads, args.smoke)
    if args.plan:
        for command in commands.values():
            print(shlex.join(command))
        return
    if not torch.cuda.is_available():
        print("There is no GPU that torch can use. --plan prints what would run.")
        raise SystemExit(NO_GPU)
    args.output.mkdir(parents=True, exist_ok=True)
    properties = torch.cuda.get_device_properties(device)
    about = (
        f"{caption(provenance(device))}; {properties.total_memory / 2**30:.0f} GiB, "
        f"CUDA {torch.version.cuda}"
    )
    path = args.output / "report.md"
    failed = run_steps(commands, path, about, 60 * args.minutes_per_step)
    print(f"\nWrote {path}")
    if failed:
        raise SystemExit("These failed: " + ", ".join(failed))


def run_steps(
    commands: dict[str, list[str]], path: Path, about: str, max_seconds: float
) -> list[str]:
    """Run commands, add each to the report as it ends, return which failed."""
    path.write_text(f"# On a GPU\n\n{about}\n")
    failed = []
    for name, command in commands.items():
        print(f"{name} ...", flush=True)
        start = time.perf_counter()
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                cwd=ROOT,
                timeout=max_seconds,
            )
            printed, ended = done.stdout, f"exit code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            # The output so far comes as bytes, whatever was asked for.
            printed = (error.stdout or b"").decode(errors="replace")
            ended = f"stopped after {max_seconds:g} s"
        seconds = time.perf_counter() - start
        if ended != "exit code 0":
            failed.append(name)
        print(f"{name}: {ended}, {seconds:.0f} s", flush=True)
        tail = "\n".join(printed.splitlines()[-NUM_LINES:])
        with path.open("a") as report:
            report.write(
                f"\n## {name}\n\n`{shlex.join(command)}`\n\n{ended}, "
                f"{seconds:.0f} s\n\n```text\n{tail}\n```\n"
            )
    return failed
