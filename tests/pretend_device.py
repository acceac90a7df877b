"""A pretend accelerator: device errors show on a machine without one.

Tensors on the device ``pretend`` report that device, are computed on the CPU, and may
not be mixed with CPU tensors, under the rules of CUDA: zero-dimensional tensors,
copies, and CPU indices into device tensors are allowed, and NumPy sees only CPU
tensors.

    register()  # before the process's first backward pass
    with pretend_device() as device:
        bandit = BBKB(arms.to(device), generator=torch.Generator().manual_seed(0))

What bypasses PyTorch's dispatcher has an entry in ``_Functions``. In-place operations
return their first argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)
from typing_extensions import override

from botorch_bkb.models.utils.rows import LazyRows


NAME = "pretend"
COPIES = {"aten::_to_copy", "aten::copy_"}
# Their second argument is a list of indices, which may be on the CPU.
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}
INDEXING |= {"aten::_index_put_impl_"}


class PretendTensor(torch.Tensor):
    """A CPU tensor that reports the pretend device."""

    cpu_tensor: torch.Tensor

    @staticmethod
    def __new__(cls, cpu: torch.Tensor) -> PretendTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            cpu.size(),
            strides=cpu.stride(),
            storage_offset=cpu.storage_offset(),
            dtype=cpu.dtype,
            layout=cpu.layout,
            device=torch.device(NAME, 0),
            requires_grad=cpu.requires_grad,
        )

    def __init__(self, cpu: torch.Tensor) -> None:
        self.cpu_tensor = cpu

    @override
    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.cpu_tensor})"

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _check_devices(name: str, args: Any, kwargs: Any) -> None:
    """Raise where CUDA would: tensors of both devices in one operation."""
    operands = args[:1] + args[2:] if name in INDEXING else args
    leaves = tree_leaves((operands, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_device = any(map(_is_on_device, tensors))
    on_cpu = any(t.dim() > 0 for t in tensors if not _is_on_device(t))
    if on_device and on_cpu and name not in COPIES:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found some on "
            f"{NAME}:0 and some on cpu in {name}"
        )
    if name in INDEXING and not on_device and any(map(_is_on_device, args[1])):
        raise RuntimeError(f"Indices on {NAME}:0 into a tensor on cpu in {name}")


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    _check_devices(name, args, kwargs)
    device = kwargs.get("device")
    on_device = any(map(_is_on_device, tree_leaves((args, kwargs))))
    if device is not None:
        on_device = torch.device(device).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}

    def unwrap(value: Any) -> Any:
        return value.cpu_tensor if isinstance(value, PretendTensor) else value

    def wrap(value: Any) -> Any:
        is_plain = isinstance(value, torch.Tensor) and not isinstance(
            value, PretendTensor
        )
        return PretendTensor(value) if is_plain else value

    result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
    if name.endswith("_") and args and isinstance(args[0], torch.Tensor):
        return args[0]
    return tree_map(wrap, result) if on_device else result


class _Dispatch(TorchDispatchMode):
    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, LazyRows) for kind in types):
            return NotImplemented  # packed rows compute on their own parts
        if not types and (kwargs or {}).get("device") is None:
            return func(*args, **(kwargs or {}))  # on the CPU alone
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Functions that do not reach the dispatcher."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        first = args[0] if args else None
        if func in (torch.tensor, torch.as_tensor):
            if isinstance(first, PretendTensor):
                dtype = kwargs.get("dtype") or first.dtype
                return first.to(device=device or first.device, dtype=dtype)
            if device is not None and torch.device(device).type == NAME:
                return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        if isinstance(first, PretendTensor):
            if func is torch.Tensor.tolist:
                return first.cpu_tensor.tolist()
            if func is torch.Tensor.numpy and not kwargs.get("force"):
                raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy")
            if func is torch.Tensor.new_tensor and device is None:
                dtype = kwargs.get("dtype", first.dtype)
                return torch.tensor(args[1], dtype=dtype).to(NAME)
        return func(*args, **kwargs)


class _Module(_DummyBackendModule):
    """What ``torch.random.fork_rng`` asks of every accelerator."""

    def get_rng_state(self, device: int) -> torch.Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: torch.Tensor, device: int) -> None:
        pass


@cache
def register() -> torch.library.Library:
    """Register the device, and what C++ calls past Python modes: ``x[[1, 2]]``.

    At the first backward pass of a process PyTorch makes a queue for each device that
    it knows then, so this comes before.
    """
    _setup_privateuseone_for_python_backend(NAME, _Module())
    library = torch.library.Library("aten", "IMPL")

    def empty(size: Any, *_: Any, dtype: Any = None, **__: Any) -> PretendTensor:
        return PretendTensor(torch.empty(size, dtype=dtype))

    def empty_strided(
        size: Any, stride: Any, dtype: Any = None, **_: Any
    ) -> PretendTensor:
        return PretendTensor(torch.empty_strided(size, stride, dtype=dtype))

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        plain = [
            tensor.cpu_tensor if isinstance(tensor, PretendTensor) else tensor
            for tensor in (source, target)
        ]
        plain[1].copy_(plain[0])
        return target

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return library


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Pretend that there is an accelerator; tensors move to it with ``.to(device)``."""
    with _Functions(), _Dispatch():
        yield torch.device(NAME, 0)
