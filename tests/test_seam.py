"""Arms are asked, not read: who makes tensors with a number for every arm."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

import botorch_bkb
from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPBUCB, GPThompsonSampling, TVGPUCB
from botorch_bkb.optim import LocalRule


PACKAGE = Path(botorch_bkb.__file__).parent
NUM_ARMS = 1511  # no other size of anything
ALLOWED = ("arms/", "posteriors/", "models/")


class Makers(TorchDispatchMode):
    """Counts which files of the package make tensors of so many numbers or more."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.files = Counter()

    @override
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if any(self.size in tensor.shape for tensor in tensors):
            frame = sys._getframe(1)
            while frame is not None:
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(PACKAGE):
                    name = path.relative_to(PACKAGE).as_posix()
                    self.files[f"{name}:{frame.f_code.co_name}"] += 1
                    break
                frame = frame.f_back
        return out


BANDITS = {
    "bkb": (BKB, {}),
    "bbkb": (BBKB, {}),
    "coupled": (BBKB, {"resampling": "coupled"}),
    "local": (BBKB, {"batch_rule": LocalRule()}),
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
