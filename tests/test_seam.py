"""Arms are asked, not read: who makes tensors with a number for every arm."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

import botorch_bkb
from botorch_bkb import (
    BBKB,
    EpsilonGreedy,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    TVGPUCB,
)
from botorch_bkb.arms import ArrayArms
from botorch_bkb.models.utils import rows as table_rows
from botorch_bkb.models.utils.rows import LazyRows
from botorch_bkb.posteriors.shards import ArmShard
from tests.bandits import rbf


PACKAGE = Path(botorch_bkb.__file__).parent
NUM_ARMS = 1511  # no other size of anything
ALLOWED = ("arms/", "posteriors/", "models/")


class Makers(TorchDispatchMode):
    """Which files make tensors with an entry per arm, and which of them no shard's."""

    def __init__(self):
        super().__init__()
        self.files = set()
        self.beside_shards = set()

    @override
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        large = [
            leaf
            for leaf in tree_leaves(out)
            if isinstance(leaf, Tensor) and NUM_ARMS in leaf.shape
        ]
        # A table that is not read, or a byte for every arm.
        is_small = all(
            isinstance(leaf, LazyRows) or leaf.element_size() == 1 for leaf in large
        )
        frame, name = sys._getframe(1) if large else None, None
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if name is None and path.is_relative_to(PACKAGE):
                name = path.relative_to(PACKAGE).as_posix()
                self.files.add(name)
            if is_small and name is not None:
                break
            if not is_small and isinstance(frame.f_locals.get("self"), ArmShard):
                break
            frame = frame.f_back
        else:
            if not is_small and name is not None:
                self.beside_shards.add(name)
        return out


def learning(arms, *given, **options):
    """Return a bandit of no kernel and noise: it learns them."""
    return GPBandit(arms, **options)


BANDITS: dict[str, Any] = {
    "bbkb": (BBKB, {}),
    "coupled": (BBKB, {"resampling": "coupled"}),
    "best_arm": (GPBandit, {}),
    "repeats": (GPBUCB, {"max_repeats": 2}),
    "thompson": (GPThompsonSampling, {}),
    "joint": (GPThompsonSampling, {"covariance": "full"}),
    "greedy": (EpsilonGreedy, {}),
    "drifting": (TVGPUCB, {"forgetting_rate": 0.1, "sparse": True}),
    "learning": (learning, {}),
    "masked": (BBKB, {}),
}


@pytest.mark.parametrize("name", BANDITS)
@pytest.mark.usefixtures("short_fits")
def test_only_posteriors_and_tables_hold_a_number_per_arm(name, monkeypatch):
    """Beside the shards at most a byte, and four for limits on pulls in an ask."""
    bandit_class, options = BANDITS[name]
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(NUM_ARMS, 2, generator=generator, dtype=torch.double)
    rows[-20:] = rows[:20]
    available = None
    if name == "masked":
        available = torch.rand(NUM_ARMS, generator=generator) < 0.5
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 8000)
    arms = ArrayArms(rows.numpy())
    with Makers() as whole:
        bandit = bandit_class(arms, rbf(0.3), 0.1, generator=generator, **options)
        with Makers() as asking:
            for _ in range(4):
                picks = bandit.ask(8, available=available)
                told = picks[: (len(picks) + 1) // 2]  # the others stay pending
                bandit.tell(told, rows[told].sum(dim=-1))
                bandit.best_arm()
            bandit.maximizer_distribution(4, generator)
        bandit.retire_arms(picks[:2])
        bandit.tell(picks := bandit.ask(4), torch.ones(len(picks)))
        bandit.load_state_dict(bandit.state_dict())
    assert asking.files  # it sees them
    if name != "masked":  # a mask has an entry per arm
        assert not [file for file in asking.files if not file.startswith(ALLOWED)]
    if name != "drifting":  # a filter over time is no worker's
        # While the table is made, the hashes of its rows; in an ask, limits on pulls.
        assert whole.beside_shards <= {
            "models/utils/rows.py",
            "arms/table.py",
            "posteriors/upper_bounds.py",
        }
