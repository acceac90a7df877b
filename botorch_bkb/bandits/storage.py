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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor


if sys.platform != "win32":
    import fcntl


FORMAT = "botorch_bkb bandit"
VERSION = 1
MAX_HEADER_BYTES = 1024
# A million pulls are some 50 MB.
MAX_BYTES = 2**28
DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "int64", "uint8", "bool")
}


def save_state(
    state: Mapping[str, Any],
    path: str | os.PathLike[str],
    expected: bytes | None = None,
) -> bytes:
    """Write a state, so that a crash leaves the file of before or the new one.

    Args:
        state: What ``state_dict`` of a bandit returned.
        path: The file; its folder must exist.
        expected: The first line of the file that may be replaced; empty if none may.
            None to replace whatever is there.

    Returns:
        The first line of the new file.

    Raises:
        InputDataError: If there is another file than the expected one. It stays.
        OSError: If the file cannot be written.
    """
    payload = json.dumps(to_json(state)).encode()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    line = json.dumps(header).encode() + b"\n"
    path = Path(path).resolve()
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
    return line


def _require_expected(path: Path, expected: bytes | None) -> None:
    if expected is None or not path.exists():
        return
    with path.open("rb") as file:
        found = file.readline(MAX_HEADER_BYTES)
    if found != expected or not expected:
        since = "another process has saved there since"
        raise InputDataError(
            f"Expected {path} to be new, or as this bandit last loaded or saved it, "
            f"but {since if expected else 'this bandit has done neither'}. `load` it "
            "first and tell what it lacks, save to another path, or pass "
            "`overwrite=True` to lose what it holds."
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


def load_state(
    path: str | os.PathLike[str], max_bytes: int = MAX_BYTES
) -> tuple[bytes, dict[str, Any]]:
    """Read what :func:`save_state` wrote: the first line of the file, and the state.

    Args:
        path: The file.
        max_bytes: The largest file that is read.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file is none of ours, of another version, too large,
            shorter or longer than it says, or damaged.
    """
    path = Path(path)
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
    try:
        state = json.loads(payload, object_hook=_decode)
    except Exception as error:
        raise InputDataError(f"{path} holds no state of a bandit: {error}") from error
    if not isinstance(state, dict):
        raise InputDataError(f"{path} holds no state of a bandit.")
    return line, state


def _read_header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputDataError(f"{path} is not a bandit state file.")
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
    return json.loads(json.dumps(value), object_hook=_decode)


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
