"""Tools that several test modules share."""

from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from botorch_bkb.models.utils.nystrom import dense_covariance


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_points(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return uniform numbers from 0 to 1."""
    return torch.rand(*shape, generator=seeded(seed), dtype=dtype)


def spy(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Return a list that gets the positional arguments of each call from now on."""
    function, calls = getattr(owner, name), list[Any]()

    def noted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return function(*args, **options)

    monkeypatch.setattr(owner, name, noted)
    return calls


class LargestTensor(TorchDispatchMode):
    """Records the largest storage, in bytes, that any torch operation makes.

    That is what it returns, and the copies of a factor that a triangular solve makes
    where it broadcasts it over a batch, which nobody sees.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.linalg_solve_triangular.default:
            L, rhs = args[:2]
            batch = torch.broadcast_shapes(L.shape[:-2], rhs.shape[:-2])
            copied = batch.numel() * L.shape[-2] * L.shape[-1] * L.element_size()
            self.nbytes = max(self.nbytes, copied)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.nbytes = max(self.nbytes, leaf.untyped_storage().nbytes())
        return out


def learned_parts(kernel: Kernel) -> list[tuple[np.ndarray, float]]:
    """Return the lengthscales and the variance of each part of a learned kernel."""
    return [
        (part.base_kernel.lengthscale.numpy(force=True)[0], part.outputscale.item())
        for part in kernel.kernels
    ]


@torch.no_grad()
def gram_matrix(
    kernel: Kernel, left: Tensor, right: Tensor | None = None
) -> np.ndarray:
    """Return prior covariances.

    Of a sum or product part by part: GPyTorch would add a jitter to a sum with a linear
    kernel. ``tests/models/utils/test_covariance.py`` holds it to NumPy's formulas.
    """
    return dense_covariance(kernel, left, right).numpy()
