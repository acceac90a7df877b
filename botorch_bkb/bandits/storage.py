"""A bandit's state in a file: no half files, no code, no silent damage.

A file is one line of JSON, the header with the version, the size and the SHA-256 of
what follows, and the state as JSON. Reading it runs nothing: there is no pickle.
Numbers keep all their digits; tensors come back with their dtype, on the processor.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import RLock
from types import FunctionType, MappingProxyType
from typing import Any, ParamSpec, Self, TypeVar

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override


if sys.platform != "win32":
    import fcntl


FORMAT = "botorch_bkb bandit"
VERSION = 1
MAX_HEADER_BYTES = 1024
# A million pulls are some 50 MB.
MAX_BYTES = 2**28
# Reading may take `MIN_MEMORY + MEMORY_FACTOR * max_bytes`. An upper bound is computed
# before parsing: so many bytes for each of these signs, and three for every byte of the
# text, or nine where escapes make strings wide.
MIN_MEMORY = 2**24
MEMORY_FACTOR = 8
P = ParamSpec("P")
R = TypeVar("R")
MEMORY_OF_SIGNS = {b"[": 160, b"{": 64, b",": 48, b'"': 80}
DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "int64", "uint8", "bool")
}


def _locked(method: Callable[P, R]) -> Callable[P, R]:
    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        bandit: Any = args[0]
        with bandit.lock:
            return method(*args, **options)

    return call


class StoredBandit(ABC):
    """A bandit whose state can be taken out, put back, and kept in a file.

    In its public methods and properties is one thread at a time. Subclasses write no
    lock: it is put around their public methods and properties where they are defined. A
    method may call another, whose lock is the same. A copy has a lock of its own, and
    so has what a pickle brings back.

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

    # The first lines of files as this bandit last read or wrote them.
    _known_files: Mapping[Path, bytes] = MappingProxyType({})

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next ``ask`` depends on, ``O(pulls)`` numbers.

        Load it into a bandit constructed with the same arms or box, and options; arms
        that were added later are part of it.
        """

    @abstractmethod
    def _renew(self) -> None:
        """Rebuild from scratch, bit for bit as a load does."""

    @abstractmethod
    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise an ``InputDataError`` unless this is the state of such a bandit."""

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> None:
        """Restore a state; may fail half way."""

    @abstractmethod
    def _undo(self) -> Callable[[], None]:
        """Return what brings back all that is known now."""

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undo what an error, or an interrupt, would leave half done."""
        undo = self._undo()
        try:
            yield
        except BaseException:
            undo()
            raise

    @_locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; picks go on up to rounding.

        Raises:
            InputDataError: If the state is that of another kind of bandit, of other
                arms or another box, or does not fit its options. Nothing has changed
                then.
        """
        try:
            self._check_state(state)
            with self._all_or_nothing():
                self._load(state)
        except Exception as error:  # a strange state may raise anything
            raise InputDataError(
                f"The state does not fit this {type(self).__name__} and its options: "
                f"{error}"
            ) from error

    @_locked
    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the state to a file; a crash leaves the old one or the new one.

        The posterior is computed anew, as :meth:`load` does, so that this bandit and
        one that loads the file go on alike to the last bit. What a process that was
        killed left unfinished beside the file, the next save to it removes.

        Args:
            path: The file; its folder must exist.
            overwrite: Whether to replace a file that somebody else has saved since this
                bandit loaded or saved it.

        Raises:
            InputDataError: If somebody has and ``overwrite`` is False. The file stays
                as it is.
            OSError: If the file cannot be written.
        """
        path = Path(path).resolve()
        self._renew()
        line, payload = _to_text(self.state_dict())
        expected = None if overwrite else self._known_files.get(path)
        _write(line, payload, path, expected)
        self._known_files = {**self._known_files, path: line}

    @_locked
    def load(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        """Restore what :meth:`save` wrote, in a bandit of the same arms and options.

        Args:
            path: The file.
            max_bytes: The largest file that is read. Reading takes at most eight times
                as much memory and 16 MiB.

        Raises:
            FileNotFoundError: If there is no such file.
            InputDataError: If the file is damaged or none of ours, or its state does
                not fit. Nothing has changed then.
        """
        line, state = _read(Path(path), max_bytes)
        self.load_state_dict(state)
        self._known_files = {**self._known_files, Path(path).resolve(): line}


def save_state(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state, so that a crash leaves the file of before or the new one.

    Args:
        state: What ``state_dict`` of a bandit returned.
        path: The file, which is replaced if it exists; its folder must exist.

    Raises:
        OSError: If the file cannot be written.
    """
    _write(*_to_text(state), Path(path).resolve(), None)


def load_state(
    path: str | os.PathLike[str], max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Read a state that :func:`save_state` wrote.

    Args:
        path: The file.
        max_bytes: The largest file that is read. Reading takes at most eight times as
            much memory and 16 MiB.

    Returns:
        The state.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file is none of ours, of another version, too large,
            shorter or longer than it says, or damaged.
    """
    return _read(Path(path), max_bytes)[1]


def _to_text(state: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the first line of a file and the rest."""
    payload = json.dumps(to_json(state)).encode()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(header).encode() + b"\n", payload


def _write(line: bytes, payload: bytes, path: Path, expected: bytes | None) -> None:
    """Put a new file in the place of the expected one.

    Args:
        line: Its first line.
        payload: The rest.
        path: Where; no link.
        expected: The first line of the file as the writer knows it. None to replace
            whatever is there.
    """
    with _one_writer(path.parent) as is_alone:
        _require_expected(path, expected)
        if is_alone:
            # Left behind by a process that was killed.
            for left in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"):
                with suppress(OSError):
                    left.unlink()
        # In the same folder: a rename is atomic within one file system only.
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with unfinished.open("xb") as file:
                file.write(line)
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, unfinished)
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _require_expected(path: Path, expected: bytes | None) -> None:
    if expected is None or not path.exists():
        return
    with path.open("rb") as file:
        found = file.readline(MAX_HEADER_BYTES)
    if found != expected:
        raise InputDataError(
            f"Expected {path} to be as this bandit last loaded or saved it, but "
            "somebody else has saved there since. Load it and tell anew what it lacks, "
            "save to another path, or pass `overwrite=True` to lose what it holds."
        )


@contextmanager
def _one_writer(folder: Path) -> Iterator[bool]:
    """Let one process at a time write files of a folder, and make them durable.

    Yields:
        Whether that is certain: Windows and some network file systems lock no folders.
    """
    if sys.platform == "win32":
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        is_alone = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            is_alone = False
        yield is_alone
        os.fsync(handle)  # the new name survives a power failure
    finally:
        os.close(handle)  # which unlocks it


def _read(path: Path, max_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """Return the first line of a file, and its state."""
    with path.open("rb") as file:
        # The size of the opened file: a save may replace the path meanwhile.
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise InputDataError(
                f"Expected {path} to hold at most {max_bytes:,} bytes, but it holds "
                f"{size:,}. Raise `max_bytes` if it is yours."
            )
        line = file.readline(MAX_HEADER_BYTES)
        header = _read_header(line, path)
        if header["bytes"] != size - len(line):
            raise InputDataError(
                f"Expected {path} to hold a state of {header['bytes']:,} bytes, but it "
                f"holds {size - len(line):,}: it was cut off, or something was added."
            )
        payload = file.read(header["bytes"])
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise InputDataError(
            f"Expected {path} to be as it was written, but its checksum differs: it is "
            "damaged. Use an older copy."
        )
    _check_memory(payload, path, MIN_MEMORY + MEMORY_FACTOR * max_bytes)
    try:
        state = json.loads(payload, object_hook=_decode)
    except Exception as error:
        raise InputDataError(f"{path} holds no state of a bandit: {error}") from error
    if not isinstance(state, dict):
        raise InputDataError(f"{path} holds no state of a bandit.")
    return line, state


def _check_memory(payload: bytes, path: Path, most: int) -> None:
    """Raise before parsing if the parsed text might take too much memory."""
    if not payload.isascii():
        raise InputDataError(f"{path} holds no state of a bandit: it is not ASCII.")
    memory = (9 if b"\\" in payload else 3) * len(payload)
    memory += sum(payload.count(sign) * size for sign, size in MEMORY_OF_SIGNS.items())
    if memory > most:
        raise InputDataError(
            f"Expected {path} to need at most {most:,} bytes of memory, but a state "
            f"with so many lists may need {memory:,}. Raise `max_bytes` if it is yours."
        )


def _read_header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputDataError(f"{path} is no file of a bandit's state.")
    if header.get("version") != VERSION:
        raise InputDataError(
            f"Expected {path} to have version {VERSION}, but it has "
            f"{header.get('version')!r}. Use the botorch_bkb that wrote it."
        )
    if not isinstance(header.get("bytes"), int) or "sha256" not in header:
        raise InputDataError(f"The first line of {path} is damaged: {header}.")
    return header


def to_json(value: Any) -> Any:
    """Return plain JSON of nested states; floats keep all their digits."""
    if isinstance(value, Tensor):
        return {
            "tensor": value.flatten().tolist(),
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
        }
    if isinstance(value, Mapping):
        pairs = [[to_json(key), to_json(item)] for key, item in value.items()]
        return {"pairs": pairs}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [to_json(item) for item in value]}
    return value


def from_json(value: Any) -> Any:
    """Undo :func:`to_json`.

    Raises:
        KeyError: If it is none of its values.
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, Mapping):
        return _decode({name: from_json(item) for name, item in value.items()})
    return value


def _decode(value: Mapping[str, Any]) -> Any:
    """Undo the outermost step of :func:`to_json`."""
    if "tensor" in value:
        flat = torch.tensor(value["tensor"], dtype=DTYPES[value["dtype"]])
        return flat.reshape(value["shape"])
    if "pairs" in value:
        return dict(value["pairs"])
    if "tuple" in value:
        return tuple(value["tuple"])
    return value["list"]
