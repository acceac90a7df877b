"""Shards that Ray's workers hold. The only file that imports Ray, when it is needed.

A shard's state is a function of its arms and of the changes in their order. The
coordinator keeps these: how the shard was made, the last rebuild and what came after
it. Every message goes to all workers. It holds the changes since the last answered one,
and names their numbers; a worker skips what it has. So a message may come twice, and a
worker that was replaced answers that it is behind, gets all changes, and has the same
bits again.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms.stored import (
    RowSource,
    ShardDataError,
    ShardLostError,
    ShardTimeoutError,
    StoredArms,
    Workers,
)
from botorch_bkb.posteriors.shards import Args, ArmShard, plan_shards, Shards, T


logger = logging.getLogger(__name__)
# Larger messages are put where all workers of a machine read them.
MAX_INLINE_BYTES = 100_000
# Of a Ray that is started here: listen to this machine only, report nothing, and do not
# yield to every other program. Read when Ray is imported.
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


# Changes of a shard that a worker holds: its key, the number of the last change that
# the worker has had (-1 for none), and numbers and encoded calls of those after it.
Patch = tuple[str, int, list[tuple[int, Any]]]


class ShardHost:
    """A worker: one shard of every posterior.

    Args:
        start: The first arm of the shard.
        stop: The first arm after it.
    """

    def __init__(self, start: int, stop: int) -> None:
        torch.set_num_threads(1)
        self.limits = start, stop
        self.source: Any = None
        self.held: dict[str, tuple[Any, int]] = {}

    def answer(
        self, forgotten: list[str], source: list[Any], patch: Patch, call: Any
    ) -> bytes | None:
        """Return an encoded answer; None if changes are missing.

        Args:
            forgotten: What need not be held any longer.
            source: The encoded rows of the arms, if they may be needed.
            patch: The changes that the question needs, in order.
            call: The question and its arguments, encoded.
        """
        for key in forgotten:
            self.held.pop(key, None)
        if self.source is None and source:
            try:
                found = decode(_fetched(source[0]))
            except OSError as error:
                raise ShardDataError(f"The arms cannot be read: {error}") from error
            found.verify()
            self.source = found
        key, known, changes = patch
        part, number = self.held.get(key, (None, -1))
        if number < known:
            return None
        for new, change in changes:
            if new <= number:
                continue
            self.held.pop(key, None)  # no half of a change remains
            method, args = decode(_fetched(change))
            if part is None:
                part = method(self, *args)
            else:
                method(part, *args)
            self.held[key] = part, new
        method, args = decode(_fetched(call))
        return encode(method(part, *args))


def shard_of(
    host: ShardHost,
    kind: type[StoredArms],
    dtype: torch.dtype,
    units: Any,
    covar_module: Kernel,
    block_size: int,
) -> ArmShard:
    """Return the shard of a worker, over the rows that it reads."""
    none = torch.empty(0, host.source.num_columns, dtype=dtype)
    arms = kind.over(host.source, none, units)
    return ArmShard(arms, *host.limits, covar_module, block_size)


class RayShards(Shards):
    """Shards that are held by Ray's workers, one each.

    Args:
        pool: The workers.
        *options: What :func:`shard_of` makes them with.
    """

    def __init__(self, pool: Pool, *options: Any) -> None:
        self.pool = pool
        self.limits = pool.limits
        self.key = uuid.uuid4().hex
        # The numbers and the encoded calls of changes.
        self.changes = [(0, _sent((shard_of, options)))]
        self.known = -1  # the last change that all workers have had
        weakref.finalize(self, pool.forget, self.key)

    @override
    def change(self, method: Callable[[ArmShard, *Args], None], *args: *Args) -> None:
        number = self.changes[-1][0] + 1
        called: object = method
        if called is ArmShard.rebuild:
            del self.changes[1:]  # nothing is left of them
        self.changes.append((number, _sent((method, args))))

    @override
    def ask(self, method: Callable[[ArmShard, *Args], T], *args: *Args) -> list[T]:
        call, everyone = _sent((method, args)), range(len(self.limits) - 1)
        answers = self.pool.answers(everyone, self._patch(self.known), call)
        behind = [shard for shard in everyone if answers[shard] is None]
        if behind:
            answers |= self.pool.answers(behind, self._patch(-1), call)
        self.known = self.changes[-1][0]
        return [decode(answers[shard]) for shard in everyone]

    def _patch(self, known: int) -> Patch:
        return self.key, known, [one for one in self.changes if one[0] > known]


def shards_on_ray(
    arms: StoredArms,
    workers: Workers,
    covar_module: Kernel,
    block_size: int,
) -> RayShards:
    """Return the shards of arms, and start the workers if they do not run.

    Raises:
        UnsupportedError: If arms were added to those that are stored, or Ray is not
            there or cannot be kept to this machine.
    """
    if len(arms.added):
        raise UnsupportedError(
            "Expected Ray's arms to be those that are stored, but got "
            f"{len(arms.added)} more. Store them beside the others, or leave out "
            "`on_ray`."
        )
    if workers.pool is None:
        limits = plan_shards(len(arms), workers.num_workers, block_size)
        pool = Pool(workers, arms.source, limits)
        workers.pool, workers.end = pool, weakref.finalize(workers, pool.close)
    options = type(arms), arms.dtype, arms.units, covar_module, block_size
    return RayShards(workers.pool, *options)


class Pool:
    """Workers, each with a shard.

    Args:
        workers: How many, and how long to wait for them.
        source: The rows of the arms.
        limits: Where shards start, and the number of arms.
    """

    def __init__(self, workers: Workers, source: RowSource, limits: list[int]) -> None:
        self.limits = limits
        self.timeout = workers.timeout
        is_own = _join(self)
        ray = _imported()
        host = ray.remote(
            num_cpus=0 if is_own else 1,
            max_restarts=workers.max_restarts,
            max_task_retries=-1,  # Ray notices after many of them that a node is lost
        )(ShardHost)
        self.source = _sent(source)
        self.actors = [host.remote(*ends) for ends in pairwise(limits)]
        self.forgotten: list[str] = []

    def answers(self, shards: Sequence[int], patch: Patch, call: Any) -> dict[int, Any]:
        """Return encoded answers of some shards.

        Raises:
            ShardLostError: If a worker is lost for good.
            ShardTimeoutError: If one gives no answer in time.
        """
        ray = _imported()
        source = [self.source] if patch[1] < 0 else []
        forgotten, self.forgotten = self.forgotten, []
        sent = {
            shard: self.actors[shard].answer.remote(forgotten, source, patch, call)
            for shard in shards
        }
        stop = time.monotonic() + self.timeout
        found = {}
        for shard, reference in sent.items():
            try:
                left = max(stop - time.monotonic(), 0.0)
                found[shard] = ray.get(reference, timeout=left)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.GetTimeoutError:
                raise ShardTimeoutError(
                    f"Expected an answer within {self.timeout:g} seconds, but got none "
                    f"of {self._named(shard)}. Allow more time by `on_ray(..., "
                    "timeout=...)`."
                ) from None
            except ray.exceptions.RayActorError as error:
                raise ShardLostError(
                    f"Expected workers that are replaced, but {self._named(shard)} is "
                    f"lost: {error}"
                ) from None
        return found

    def forget(self, key: str) -> None:
        """Let workers hold something no longer, when they are asked next."""
        self.forgotten.append(key)

    def close(self) -> None:
        """End the workers, and Ray if it was started for these and no others."""
        if _is_running():
            for actor in self.actors:
                _imported().kill(actor)
        self.actors = []
        _leave(self)

    def _named(self, shard: int) -> str:
        start, stop = self.limits[shard : shard + 2]
        return f"the worker of shard {shard} (arms {start} to {stop - 1})"


# The pools that use a Ray that was started here; empty if it does not run.
_users: set[Pool] = set()


@cache
def _private_home() -> Path:
    """Return a folder that serves Ray as home, as long as this process lives.

    Ray's token is there and not in the user's home, and a file that keeps Ray from
    looking for a cloud. A process knows one token only.
    """
    home = Path(tempfile.mkdtemp(prefix="botorch_bkb_ray_"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "ray_bootstrap_config.yaml").write_text("{}\n")
    return home


def _join(pool: Pool) -> bool:
    """Join Ray, or start one; return whether it was started here.

    Raises:
        UnsupportedError: If there is no Ray, or it was imported before the settings
            with which it listens to this machine only.
    """
    if _is_running():
        if _users:
            _users.add(pool)
        return bool(_users)
    if "ray" in sys.modules and any(
        os.environ.get(name) != value for name, value in SETTINGS.items()
    ):
        raise UnsupportedError(
            "Expected Ray to be initialised (`ray.init()`), or not to be imported yet: "
            "one that is started now would listen to other machines."
        )
    ray = _imported()
    home, private = os.environ.get("HOME"), str(_private_home())
    os.environ["HOME"] = private
    try:
        ray.init(
            address="local",
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
        )
    finally:
        del os.environ["HOME"]
        os.environ.update({} if home is None else {"HOME": home})
    _users.add(pool)
    address = ray.nodes()[0]["NodeManagerAddress"]
    if address != "127.0.0.1":
        _leave(pool)
        raise UnsupportedError(
            f"Expected Ray to listen to this machine only, but it is at {address}. "
            f"Import it after setting {SETTINGS} in the environment."
        )
    logger.warning("Started Ray on this machine, for this process alone.")
    return True


def _leave(pool: Pool) -> None:
    """End a Ray that was started here, if no other pool uses it."""
    if pool in _users:
        _users.remove(pool)
        if not _users and _is_running():
            _imported().shutdown()


def _is_running() -> bool:
    return "ray" in sys.modules and _imported().is_initialized()


def _imported() -> Any:
    if "ray" not in sys.modules:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError(
            "Expected Ray to be installed. Use `pip install botorch_bkb[ray]`."
        ) from error
    return ray


def _sent(value: Any) -> Any:
    """Return an encoded value, or where workers find it."""
    data = encode(value)
    return data if len(data) <= MAX_INLINE_BYTES else _imported().put(data)


def _fetched(value: Any) -> Any:
    ray = _imported()
    return ray.get(value) if isinstance(value, ray.ObjectRef) else value


def encode(value: Any) -> bytes:
    """Return bytes that keep how tensors lie in memory."""
    buffer = io.BytesIO()
    _pickler()(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def decode(data: bytes) -> Any:
    """Undo :func:`encode`."""
    return _imported().cloudpickle.loads(data)


@cache
def _pickler() -> Any:
    class Pickler(_imported().cloudpickle.CloudPickler):  # type: ignore[misc]
        """Ray's own, but for tensors, of which torch makes archives."""

        def reducer_override(self, value: Any) -> Any:
            if type(value) is Tensor and value.device.type == "cpu":
                return _tensor, (value.detach().numpy(),)
            return super().reducer_override(value)

    return Pickler


def _tensor(array: Any) -> Tensor:
    # Where torch puts its own tensors, and not at any byte: bits may depend on it.
    return torch.from_numpy(array).clone()
