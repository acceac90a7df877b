"""Tools that several test modules share."""

from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from botorch_bkb.models.utils.covariance import dense_covariance


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


# What a BLAS or LAPACK library computes: other processors add in another order.
ROUNDED = {
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.Tensor.__rmatmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.mv,
    torch.Tensor.mv,
    torch.bmm,
    torch.Tensor.bmm,
    torch.addmm,
    torch.Tensor.addmm,
    torch.Tensor.addmm_,
    torch.cdist,
    torch.linalg.cholesky,
    torch.linalg.cholesky_ex,
    torch.linalg.solve_triangular,
    torch.linalg.vector_norm,
    torch.cholesky_solve,
    torch.cholesky_inverse,
    torch.sum,
    torch.Tensor.sum,
}
# Of whole numbers these have one answer whatever the order.
INEXACT_ON_INTEGERS = {
    torch.linalg.cholesky,
    torch.linalg.cholesky_ex,
    torch.linalg.solve_triangular,
    torch.linalg.vector_norm,
    torch.cholesky_solve,
    torch.cholesky_inverse,
}


class DisturbedRounding(TorchFunctionMode):
    """Multiplies what BLAS computes by ``1 +- a few 1e-16``, entry by entry.

    The factors are those of the operation and its shape: a computation that is done
    twice gives the same bits twice, as it does on a processor. Products and sums of
    whole numbers, as of the bits of fingerprints, are exact on every processor, and
    left alone. So is NumPy: it is the answer that tests compare with.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in ROUNDED:
            return out
        result = out[0] if isinstance(out, tuple) else out
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return out
        with torch._C.DisableTorchFunction():
            if func not in INEXACT_ON_INTEGERS and _are_integers((args, kwargs)):
                return out
            factors = _rounding_factors(self.seed, func.__name__, result.shape)
            eps = torch.finfo(result.dtype).eps
            factors = 1 + eps * factors.to(result)
            if not result.requires_grad:
                result.mul_(factors)  # where `out=` and in-place operations put it
                return out
            result = result * factors
        # A named tuple of torch's, which takes one sequence.
        return type(out)((result, *out[1:])) if isinstance(out, tuple) else result


def _are_integers(operands: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves(operands) if isinstance(leaf, Tensor)]
    return all(bool((tensor == tensor.round()).all()) for tensor in tensors)


@lru_cache(maxsize=256)
def _rounding_factors(seed: int, name: str, shape: torch.Size) -> Tensor:
    stream = torch.Generator().manual_seed(crc32(f"{seed} {name} {shape}".encode()))
    return torch.randn(shape, generator=stream)
