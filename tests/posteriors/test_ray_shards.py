"""Ray's workers give the bits of this process, whatever happens to them."""

import ast
import os
import signal
import subprocess
import sys
import threading
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb import GPBandit, RGPUCB, TVGPUCB
from botorch_bkb.arms import (
    ArrayArms,
    ParquetArms,
    ShardDataError,
    ShardLostError,
    ShardTimeoutError,
)
from botorch_bkb.posteriors import ArmPosterior, ray_shards, shards
from botorch_bkb.posteriors.ray_shards import decode, encode, shard_of, ShardHost
from botorch_bkb.posteriors.shards import ArmShard
from tests.arms.test_stored import write_parquet
from tests.bandits import unchanged
from tests.posteriors.test_shards import (
    assert_same,
    BANDITS,
    BLOCK_SIZE,
    campaign,
    kernel,
    NUM_ARMS,
    table,
)


# Seconds for what must come: slow machines take minutes to start a worker, and only a
# test that fails waits as long as this.
PATIENCE = 600


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_SIZE", BLOCK_SIZE)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("arms") / "arms.npy"
    np.save(path, table().numpy())
    return path


@pytest.fixture(scope="module")
def two(path):
    """Arms of two workers, for all tests that leave them as they are."""
    arms = ArrayArms(path).on_ray(2)
    yield arms
    arms.workers.close()


def pid_of(arms, shard):
    import ray

    actor = arms.workers.pool.actors[shard]
    return ray.get(
        actor.__ray_call__.remote(lambda self: os.getpid()), timeout=PATIENCE
    )


@pytest.mark.parametrize("bandit", ["bbkb", "ts-weights", "learned units"])
@pytest.mark.usefixtures("short_fits")
def test_runs_have_the_choices_of_this_process(two, path, bandit):
    make = BANDITS.get(bandit, lambda arms: GPBandit(arms, seed=1))
    assert_same(*(campaign(make(arms), 3) for arms in (two, ArrayArms(path))))


def test_parquet_files_are_read_by_the_workers(tmp_path):
    options = {"is_list": False, "row_group_size": 50, "num_files": 2}
    write_parquet(table().numpy(), tmp_path, **options)
    arms = ParquetArms(tmp_path / "*.parquet", ["x0", "x1"])
    expected = campaign(BANDITS["bbkb"](arms), num_asks=2)
    there = arms.on_ray(1)
    assert_same(campaign(BANDITS["bbkb"](there), num_asks=2), expected)
    there.workers.close()


class Killer:
    """A bandit's stand-in that kills workers, an entry of each list per ask.

    ``delays`` are seconds after the ask has begun, None for before it.
    """

    def __init__(self, bandit, arms, delays, victims):
        self.bandit, self.workers, self.pids = bandit, arms, set()
        self.delays, self.victims = cycle(delays), cycle(victims)

    def __getattr__(self, name):
        return getattr(self.bandit, name)

    def ask(self, *sizes, **options):
        delay = next(self.delays)
        pids = [pid_of(self.workers, shard) for shard in next(self.victims)]
        self.pids.update(pids)
        timers = [
            threading.Timer(delay or 0, os.kill, (pid, signal.SIGKILL)) for pid in pids
        ]
        for timer in timers:
            timer.start()
            if delay is None:
                timer.join()
        asked = self.bandit.ask(*sizes, **options)
        for timer in timers:
            timer.join()
        return asked


def test_workers_that_are_killed_are_replaced_and_have_the_same_bits(two, path):
    """Before an ask and in the midst of one."""
    expected = campaign(BANDITS["gpbucb"](ArrayArms(path)), num_asks=3)
    delays, victims = [None, None, 0.02], [[], [1], [0]]
    killer = Killer(BANDITS["gpbucb"](two), two, delays, victims)
    assert_same(campaign(killer, num_asks=3), expected)
    assert len(killer.pids) == 2


def test_a_worker_that_says_nothing_is_an_error_that_names_its_arms(two):
    bandit = BANDITS["bbkb"](two)
    bandit.tell(bandit.ask(), torch.ones(1).double())
    pid, pool = pid_of(two, 1), two.workers.pool
    patience, pool.timeout = pool.timeout, 1.0
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ShardTimeoutError, match=r"within 1 seconds.* 80 to 149"):
            bandit.ask()
    finally:
        os.kill(pid, signal.SIGCONT)
        pool.timeout = patience


def test_rows_that_cannot_be_used_and_workers_that_are_lost_are_errors(tmp_path):
    rows = table().numpy()
    rows[120, 1] = np.nan
    np.save(tmp_path / "bad.npy", rows)
    arms = ArrayArms(tmp_path / "bad.npy").on_ray(1, max_restarts=0)
    with pytest.raises(ShardDataError, match=r"arm 120, row 120 of .*bad\.npy"):
        ArmPosterior(arms, kernel(), 0.1)
    os.kill(pid_of(arms, 0), signal.SIGKILL)
    with pytest.raises(ShardLostError, match=r"shard 0 \(arms 0 to 149\) is lost"):
        ArmPosterior(arms, kernel(), 0.1)
    arms.workers.close()


def test_a_file_that_is_gone_or_changed_is_an_error_when_a_worker_is_replaced(tmp_path):
    path, other = tmp_path / "arms.npy", tmp_path / "other.npy"
    np.save(path, table().numpy())
    arms = ArrayArms(path).on_ray(1)
    bandit = BANDITS["bbkb"](arms)
    bandit.tell(bandit.ask(), torch.ones(1).double())
    path.rename(other)
    os.kill(pid_of(arms, 0), signal.SIGKILL)
    with pytest.raises(ShardDataError, match=r"arms cannot be read: .*arms\.npy"):
        bandit.ask()
    other.rename(path)
    bandit.tell(bandit.ask(), torch.ones(1).double())
    np.save(other, table().numpy() + 1)
    os.replace(other, path)
    os.kill(pid_of(arms, 0), signal.SIGKILL)
    with pytest.raises(ShardDataError, match=r"arms\.npy to stay as it was"):
        bandit.ask()
    arms.workers.close()


def test_arms_cannot_be_added_and_nothing_has_changed(two, path):
    """Rows that are there are those arms, as everywhere."""
    bandit, expected = BANDITS["bbkb"](two), BANDITS["bbkb"](ArrayArms(path))
    new = torch.rand(3, 2).double()
    for call in (bandit.add_arms, lambda new: bandit.ask(arms=new)):
        with (
            unchanged(bandit),
            pytest.raises(UnsupportedError, match=r"Ray's arms .* Store them beside"),
        ):
            call(new)
    assert bandit.add_arms(two[3:6]).tolist() == [3, 4, 5]
    some = two[20:100]
    for one in (bandit, expected):
        one.add_observations(torch.arange(5), torch.arange(5).double())
        one.retire_arms([21])
    assert bandit.ask(3, arms=some).tolist() == (expected.ask(3, arms=some).tolist())


def test_a_filter_over_time_is_refused_and_blocks_are_not(two, path):
    for options in ({"sparse": True}, {"sparse": False}):
        with pytest.raises(UnsupportedError, match=r"a filter over time .*`on_ray`"):
            TVGPUCB(two, kernel(), 0.1, forgetting_rate=0.1, **options)
    runs = []
    for arms in (ArrayArms(path), two):
        bandit = RGPUCB(arms, kernel(), 0.1, block_size=2, seed=1)
        for _ in range(4):
            asked = bandit.ask(3)
            bandit.tell(asked, table()[asked].sum(dim=-1))
            runs.append(asked.tolist())
    assert runs[:4] == runs[4:]


@given(
    order=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    lost=st.sets(st.integers(0, 11)),
)
@settings(max_examples=12)
def test_late_repeated_and_lost_messages_change_nothing(order, lost):
    """A host answers as one that got every change once and in its order."""
    arms = ArrayArms(table().numpy())
    posterior = ArmPosterior(table(), kernel(), 0.1)
    changes = [(0, _made(arms))]
    pulled = torch.arange(0, 140, 20)
    ones = torch.ones(len(pulled)).double()
    change = posterior.shards.change

    def noted(method, *args):
        changes.append((len(changes), encode((method, args))))
        change(method, *args)

    posterior.shards.change = noted
    for size in range(3, 7):
        posterior.update(pulled[:size], pulled[:size], ones[:size], ones[:size])
    everything = encode((ArmShard.moments_of, (torch.arange(NUM_ARMS),)))

    def ask(host, known, number):
        patch = "key", known, changes[known + 1 : number + 1]
        return host.answer([], [encoded_source], patch, everything)

    encoded_source = encode(arms.source)
    expected = []
    for number in range(len(changes)):
        expected.append(decode(ask(ShardHost(0, NUM_ARMS), -1, number)))
    host, newest = ShardHost(0, NUM_ARMS), -1
    for step, number in enumerate(order):
        number = min(number, len(changes) - 1)
        if step in lost:
            host, newest = ShardHost(0, NUM_ARMS), -1
            assert number == 0 or ask(host, number - 1, number) is None
        newest = max(newest, number)
        found = decode(ask(host, -1, number))
        assert torch.equal(found, expected[newest])


def _made(arms):
    options = type(arms), arms.dtype, (), kernel(), BLOCK_SIZE
    return encode((shard_of, options))


OWN = """
import os, pathlib, sys
import psutil, torch
from gpytorch.kernels import RBFKernel
from botorch_bkb import BBKB
from botorch_bkb.arms import ArrayArms
me = psutil.Process()
if __name__ == "__main__":
    {before}
    home = pathlib.Path.home()
    arms = ArrayArms(sys.argv[1]).on_ray(1)
    bandit = BBKB(arms, RBFKernel(), 0.1, generator=torch.Generator().manual_seed(0))
    bandit.ask()
    children = me.children(recursive=True)
    print("children", len(children))
    listeners = [
        connection.laddr.ip
        for process in [me, *children]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    print("listeners", len(listeners), sorted(set(listeners)))
    arms.workers.close()
    import ray
    print("runs", ray.is_initialized())
    ray.shutdown()
    gone, left = psutil.wait_procs(children, timeout=600)
    print("left", len(left), sorted(path.name for path in home.iterdir()))
"""


def run_python(*arguments, **environment):
    """Run a program to its end, without the settings that Ray has in this process."""
    own = {name: os.environ[name] for name in os.environ if name[:4] != "RAY_"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env=own | environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def run_own(path, folder, before="pass", **environment):
    """Run the script, with a new folder as its home."""
    home, script = folder / "home", folder / "script.py"
    home.mkdir()
    script.write_text(OWN.format(before=before))
    return run_python(script, path, HOME=str(home), **environment)


def test_ray_listens_to_this_machine_only_and_leaves_nothing_behind(path, tmp_path):
    done = run_own(path, tmp_path)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert int(said["children"]) > 1
    addresses = said["listeners"].split(" ", 1)[1]
    assert set(ast.literal_eval(addresses)) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert "Started Ray on this machine" in done.stderr
    assert (said["runs"], said["left"]) == ("False", "0 []")


def test_a_ray_that_runs_is_joined_and_goes_on(path, tmp_path):
    start = "import ray; ray.init(address='local', num_cpus=1, "
    start += "include_dashboard=False, _node_ip_address='127.0.0.1')"
    done = run_own(path, tmp_path, start, **ray_shards.SETTINGS)
    assert done.returncode == 0, done.stderr
    assert "runs True" in done.stdout
    assert "Started Ray" not in done.stderr


def test_one_that_would_listen_to_others_is_not_started(path, monkeypatch):
    """It was imported without the settings."""
    monkeypatch.setitem(sys.modules, "ray", object())
    monkeypatch.setattr(ray_shards, "_is_running", lambda: False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with pytest.raises(UnsupportedError, match="Expected Ray to be initialised"):
        ArmPosterior(ArrayArms(path).on_ray(1), kernel(), 0.1)


def test_without_ray_the_package_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"pip install botorch_bkb\[ray\]"):
        ArmPosterior(ArrayArms(path).on_ray(1), kernel(), 0.1)
