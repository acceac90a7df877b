"""Where a figure comes from: commit, versions, threads."""

from __future__ import annotations

import subprocess
from importlib.metadata import version

import torch


def provenance() -> str:
    """Return one line that traces a benchmark's rows."""
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "botorch", "gpytorch")
    )
    commit = result.stdout.strip() or "unknown"
    return f"commit {commit}; {versions}; {torch.get_num_threads()} threads"
