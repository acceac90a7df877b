"""A bandit's state in a file: no half files, no code, no silent damage.

A file is one line of JSON, the header with the version, the size and the SHA-256 of
what follows, and the state as JSON. Reading it runs nothing: there is no pickle.
Numbers keep all their digits; tensors come back with their dtype, on the processor.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.bandits.locking import Locked


FORMAT = "botorch_bkb bandit"
VERSION = 1
MAX_HEADER_BYTES = 1024
# A million pulls are some 50 MB. What is read takes up to forty times as much memory.
MAX_BYTES = 2**28
DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "int64", "uint8", "bool")
}


class StoredBandit(Locked, ABC):
    """A bandit whose state can be taken out, put back, and kept in a file."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next ``ask`` depends on, ``O(pulls)`` numbers.

        Load it into a bandit constructed with the same arms or box, and options; arms
        that were added later are part of it.
        """

    @abstractmethod
    def _renew(self) -> None:
        """Compute anew what loading does, where rounding tells it from that."""

    @abstractmethod
    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise an ``InputDataError`` unless this is the state of such a bandit."""

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> None:
        """Restore a state; may fail half way."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; picks go on up to rounding.

        Raises:
            InputDataError: If the state is that of another kind of bandit, of other
                arms or another box, or does not fit its options. Nothing has changed
                then.
        """
        before = None
        try:
            self._check_state(state)
            before = self.state_dict()
            self._load(state)
        # Whatever it is that a strange state brings about, or who loses patience.
        except BaseException as error:
            if before is not None:
                self._load(before)
            if not isinstance(error, Exception):
                raise
            raise InputDataError(
                f"The state does not fit this {type(self).__name__} and its options: "
                f"{error}"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file; a crash leaves the old one or the new one.

        The posterior is computed anew, as :meth:`load` does, so that this bandit and
        one that loads the file go on alike to the last bit. Of two processes that save
        to one path the later wins. A process that is killed may leave its unfinished
        ``.NAME.*`` beside it.

        Raises:
            OSError: If the file cannot be written.
        """
        self._renew()
        save_state(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        """Restore what :meth:`save` wrote, in a bandit of the same arms and options.

        Args:
            path: The file.
            max_bytes: The largest file that is read.

        Raises:
            FileNotFoundError: If there is no such file.
            InputDataError: If the file is damaged or none of ours, or its state does
                not fit. Nothing has changed then.
        """
        self.load_state_dict(load_state(path, max_bytes))


def save_state(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state, so that a crash leaves the file of before or the new one.

    Args:
        state: What ``state_dict`` of a bandit returned.
        path: The file; its folder must exist.

    Raises:
        OSError: If the file cannot be written.
    """
    payload = json.dumps(to_json(state)).encode()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    path = Path(path).resolve()  # a link stays one
    # In the same folder: a file moves into place at once within one file system only.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            file.write(json.dumps(header).encode() + b"\n" + payload)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def load_state(
    path: str | os.PathLike[str], max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Read a state that :func:`save_state` wrote.

    Args:
        path: The file.
        max_bytes: The largest file that is read.

    Returns:
        The state.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file is none of ours, of another version, too large,
            shorter or longer than it says, or damaged.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > max_bytes:
        raise InputDataError(
            f"Expected {path} to hold at most {max_bytes:,} bytes, but it holds "
            f"{size:,}. Raise `max_bytes` if it is yours."
        )
    with path.open("rb") as file:
        header = _read_header(file.readline(MAX_HEADER_BYTES), path)
        if header["bytes"] != size - file.tell():
            raise InputDataError(
                f"Expected {path} to hold a state of {header['bytes']:,} bytes, but it "
                f"holds {size - file.tell():,}: it was cut off, or something was added."
            )
        payload = file.read()
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise InputDataError(
            f"Expected {path} to be as it was written, but its checksum differs: it is "
            "damaged. Use an older copy."
        )
    try:
        state = from_json(json.loads(payload))
    except Exception as error:
        raise InputDataError(f"{path} holds no state of a bandit: {error}") from error
    if not isinstance(state, dict):
        raise InputDataError(f"{path} holds no state of a bandit.")
    return state


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


def _sync_folder(folder: Path) -> None:
    """Make sure that the new name survives a power failure, where that is possible."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    if not isinstance(value, Mapping):
        return value
    if "tensor" in value:
        flat = torch.tensor(value["tensor"], dtype=DTYPES[value["dtype"]])
        return flat.reshape(value["shape"])
    if "pairs" in value:
        return {from_json(key): from_json(item) for key, item in value["pairs"]}
    if "tuple" in value:
        return tuple(from_json(item) for item in value["tuple"])
    return [from_json(item) for item in value["list"]]
