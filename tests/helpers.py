"""Tools that several test modules share."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class LargestTensor(TorchDispatchMode):
    """Records the largest storage, in bytes, that any torch operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.nbytes = max(self.nbytes, leaf.untyped_storage().nbytes())
        return out
