"""One thread at a time in an object: a lock around every public method."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from types import FunctionType
from typing import Any, Self

from typing_extensions import override


class Locked:
    """An object in whose public methods and properties is one thread at a time.

    Subclasses write no lock: it is put around their public methods and properties where
    they are defined. A method may call another, whose lock is the same. A copy has a
    lock of its own, and so has what a pickle brings back.

    Attributes:
        lock: Hold it (``with bandit.lock:``) where several calls belong together, or
            while the object is copied.
    """

    lock: RLock

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make the lock before any constructor runs: it may call public methods."""
        self = super().__new__(cls)
        self.lock = RLock()
        return self

    @classmethod
    @override
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name.startswith("_"):
                continue
            if isinstance(member, FunctionType):
                setattr(cls, name, _locked(member))
            elif isinstance(member, property) and member.fget is not None:
                setattr(cls, name, member.getter(_locked(member.fget)))

    @override
    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        del state["lock"]
        return state


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Locked, *args: Any, **options: Any) -> Any:
        with self.lock:
            return method(self, *args, **options)

    return call
