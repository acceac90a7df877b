"""Arms are asked, not read: who makes tensors with a number for every arm."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

import botorch_bkb
from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPBUCB, GPThompsonSampling, TVGPUCB
from botorch_bkb.arms import ArrayArms
from botorch_bkb.models.utils import lazy_rows
from botorch_bkb.models.utils.lazy_rows import LazyRows
from botorch_bkb.posteriors.arm_shard import ArmShard
from botorch_bkb.posteriors.hallucination import TrackedShard
from botorch_bkb.posteriors.kernel_rows import KernelRows


PACKAGE = Path(botorch_bkb.__file__).parent
NUM_ARMS = 1511  # no other size of anything
ALLOWED = ("arms/", "posteriors/", "models/")
# What workers hold.
SHARDS = (ArmShard, KernelRows, TrackedShard)


class Makers(TorchDispatchMode):
    """Counts which files of the package make tensors of so many numbers or more."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.files = Counter()

    def counts(self, tensor, frame):
        return self.size in tensor.shape

    @override
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        frame = sys._getframe(1)
        if any(self.counts(tensor, frame) for tensor in tensors):
            while frame is not None:
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(PACKAGE):
                    name = path.relative_to(PACKAGE).as_posix()
                    self.files[f"{name}:{frame.f_code.co_name}"] += 1
                    break
                frame = frame.f_back
        return out


class Coordinators(Makers):
    """Counts makers of more than a byte for every arm that would be no worker's."""

    @override
    def counts(self, tensor, frame):
        if isinstance(tensor, LazyRows) or tensor.element_size() == 1:
            return False
        if self.size not in tensor.shape:
            return False
        while frame is not None:
            if isinstance(frame.f_locals.get("self"), SHARDS):
                return False
            frame = frame.f_back
        return True


BANDITS = {
    "bkb": (BKB, {}),
    "bbkb": (BBKB, {}),
    "coupled": (BBKB, {"resampling": "coupled"}),
    "best_arm": (BBKB, {"goal": "best_arm"}),
    "repeats": (GPBUCB, {"max_repeats": 2}),
    "thompson": (GPThompsonSampling, {}),
    "correlated": (GPThompsonSampling, {"residual": "correlated"}),
    "greedy": (EpsilonGreedy, {}),
    "drifting": (TVGPUCB, {"forgetting_rate": 0.1, "sparse": True}),
}


@pytest.mark.parametrize("name", BANDITS)
def test_only_posteriors_and_tables_hold_a_number_per_arm(name):
    bandit_class, options = BANDITS[name]
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(NUM_ARMS, 2, generator=generator, dtype=torch.double)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    bandit = bandit_class(arms, kernel, 0.1, generator=generator, **options)
    makers = Makers(NUM_ARMS)
    with makers:
        for _ in range(6):
            picks = bandit.ask(max_size=8)
            told = picks[: (len(picks) + 1) // 2]  # the others stay pending
            bandit.tell(told, arms[told].sum(dim=-1))
            bandit.best_arm()
        assert bandit.num_pulls >= 6
        bandit.maximizer_distribution(4, generator)
    assert makers.files  # it sees them
    assert {name for name in makers.files if not name.startswith(ALLOWED)} == set()


def learning(arms, *given, **options):
    """Return a bandit of no kernel and noise: it learns them."""
    return BBKB(arms, **options)


# A filter over time is no worker's.
ON_WORKERS: dict[str, Any] = {
    **BANDITS,
    "learning": (learning, {}),
    "masked": (BBKB, {}),
}
del ON_WORKERS["drifting"]


@pytest.mark.parametrize("name", ON_WORKERS)
def test_beside_the_shards_there_is_no_more_than_a_byte_for_every_arm(
    name, monkeypatch
):
    """What a coordinator holds of arms on workers does not grow with their number."""
    bandit_class, options = ON_WORKERS[name]
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(NUM_ARMS, 2, generator=generator, dtype=torch.double)
    rows[-20:] = rows[:20]
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    available = None
    if name == "masked":
        available = torch.rand(NUM_ARMS, generator=generator) < 0.5
    monkeypatch.setattr(lazy_rows, "BLOCK_BYTES", 1000)
    arms = ArrayArms(rows.numpy())
    makers = Coordinators(NUM_ARMS)
    with makers:
        bandit = bandit_class(arms, kernel, 0.1, generator=generator, **options)
        for number in range(4):
            picks = bandit.ask(size=8, available=available)
            told = picks[: (len(picks) + 1) // 2]  # the others stay pending
            bandit.tell(told, rows[told].sum(dim=-1))
            bandit.best_arm()
            if number == 2:
                bandit.retire_arms(picks[:2])
        bandit.maximizer_distribution(4, generator)
        bandit.load_state_dict(bandit.state_dict())
    # While the table is made, the hashes of its rows, sorted in their place.
    files = {name.split(":")[0] for name in makers.files}
    assert files == {"models/utils/replicates.py"}
