"""Files of a bandit's state: the same picks, never half a file, no damage unseen."""

import hashlib
import json
import os
import pickle
import stat
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from typing_extensions import override

from botorch_bkb import BBKB, GPBUCB, TVGPUCB
from botorch_bkb.bandits import storage
from botorch_bkb.bandits.storage import from_json, load_state, save_state, to_json
from tests.bandits import (
    assert_same,
    make_bandit,
    noisy_rewards,
    play,
    random_arms,
    unchanged,
)


TIED_ARMS = {
    "duplicates": torch.cat([random_arms(15)] * 2),
    "factorial": torch.cartesian_prod(*[torch.linspace(0, 1, 3).double()] * 3),
}


@pytest.mark.parametrize("bandit_class", [BBKB, GPBUCB, TVGPUCB])
@pytest.mark.parametrize("arms", TIED_ARMS.values(), ids=TIED_ARMS)
def test_ties_that_rounding_breaks_are_broken_alike(bandit_class, arms, tmp_path):
    """Arms of one score: who saves goes on from the numbers that a load computes."""
    bandit = make_bandit(bandit_class, arms)
    play(bandit, 10, size=4)
    bandit.save(tmp_path / "state")
    restored = make_bandit(bandit_class, arms, seed=9)
    restored.load(tmp_path / "state")
    runs = []
    for one in (bandit, restored):
        measure = noisy_rewards(arms, seed=3)
        runs.append([play(one, 1, measure, size=4) for _ in range(30)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("resampling", ["independent", "coupled"])
def test_a_file_does_not_grow_with_the_arms(resampling, tmp_path):
    sizes = []
    for num_arms in (100, 10_000):
        bandit = make_bandit(BBKB, random_arms(num_arms), resampling=resampling)
        play(bandit, 5, size=4)
        bandit.save(tmp_path / f"{num_arms}")
        sizes.append((tmp_path / f"{num_arms}").stat().st_size)
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "x"], 3: (1, (2,)), "inf": [float("inf"), -0.0]},
        {"t": torch.tensor([[0.1, 1 / 3]]), "e": torch.empty(0, 2, dtype=torch.long)},
        {"f": torch.tensor(0.1, dtype=torch.float32), "b": torch.tensor([True, False])},
    ],
)
def test_plain_json_keeps_every_digit(value):
    assert_same(from_json(json.loads(json.dumps(to_json(value)))), value)


# Crashes ------------------------------------------------------------------------------


class Crash(BaseException):
    pass


@pytest.mark.skipif(os.name != "posix", reason="folders have no handles elsewhere")
def test_file_and_folder_are_on_the_disk_before_save_returns(tmp_path, monkeypatch):
    """A new name that only the cache knows does not survive a power failure."""
    synced, fsync = [], os.fsync

    def noted(handle):
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        fsync(handle)

    monkeypatch.setattr(storage.os, "fsync", noted)
    save_state({"new": 2}, tmp_path / "state")
    assert synced == [False, True]


def test_a_crash_at_any_step_leaves_a_whole_file(tmp_path, monkeypatch):
    """Before and after every call by which a file is written."""
    path = tmp_path / "state"
    save_state({"old": 1}, path)
    for module, name in ((os, "fsync"), (os, "replace")):
        for happens in (False, True):
            original = getattr(module, name)

            def crash(*args, original=original, happens=happens, **kwargs):
                if happens:
                    original(*args, **kwargs)
                raise Crash

            with monkeypatch.context() as patch:
                patch.setattr(storage.os, name, crash)
                with pytest.raises(Crash):
                    save_state({"new": 2}, path)
            assert load_state(path)[1] in ({"old": 1}, {"new": 2})
            assert [file.name for file in tmp_path.iterdir()] == ["state"]
            save_state({"old": 1}, path)


@pytest.mark.skipif(os.name != "posix", reason="folders have no locks elsewhere")
def test_where_folders_have_no_locks_a_file_is_written_still(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError

    (tmp_path / ".state.deadbeef").write_text("")  # perhaps somebody is writing it
    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    save_state({"number": 1}, tmp_path / "state")
    assert load_state(tmp_path / "state")[1] == {"number": 1}
    assert (tmp_path / ".state.deadbeef").exists()


@pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    path, link = tmp_path / "state", tmp_path / "link"
    save_state({"number": 1}, path)
    path.chmod(0o664)
    link.symlink_to(path)
    save_state({"number": 2}, link)
    assert link.is_symlink()
    assert load_state(path)[1] == {"number": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


# Two at one path ----------------------------------------------------------------------


def two_bandits(path):
    """Return one that saved, and one that loaded."""
    bandits = [make_bandit(BBKB, seed=seed) for seed in range(2)]
    play(bandits[0], 2)
    bandits[0].save(path)
    bandits[1].load(path)
    return bandits


def test_a_save_of_another_is_not_lost_in_silence(tmp_path):
    path = tmp_path / "state"
    first, second = two_bandits(path)
    first.add_observations([3], [0.5])
    first.save(path)
    written = path.read_bytes()
    second.add_observations([4], [0.7])
    with pytest.raises(InputDataError, match="has saved there since"):
        second.save(path)
    assert path.read_bytes() == written
    second.save(tmp_path / "elsewhere")
    second.load(path)
    assert second.num_pulls == 3
    second.add_observations([4], [0.7])
    second.save(path)
    with pytest.raises(InputDataError, match="has saved there since"):
        first.save(path)
    first.save(path, overwrite=True)
    assert load_state(path)[1]["observations"]["told_indices"][2:] == [3]


@pytest.mark.parametrize("content", [b"", b"candidate,yield\nA,0.4\n", "state"])
def test_a_file_that_this_bandit_has_neither_loaded_nor_saved_stays(content, tmp_path):
    path, bandit = tmp_path / "there", make_bandit(BBKB)
    if content == "state":
        make_bandit(BBKB).save(path)
        content = path.read_bytes()
    path.write_bytes(content)
    bandit.save(tmp_path / "elsewhere")
    bandit.load(tmp_path / "elsewhere")  # knowing one path is not knowing another
    for one in (bandit, deepcopy(bandit), pickle.loads(pickle.dumps(bandit))):
        with (
            unchanged(one),
            pytest.raises(InputDataError, match=r"neither\. `load` it"),
        ):
            one.save(path)
        with pytest.raises(InputDataError, match="`overwrite` to be True or False"):
            one.save(path, overwrite="no")
    assert path.read_bytes() == content
    if content.startswith(b"{"):
        bandit.load(path)
        bandit.save(path)
    bandit.save(path, overwrite=True)
    bandit.save(path)
    other = make_bandit(BBKB)
    other.load(path)
    assert_same(other.state_dict(), bandit.state_dict())


def test_a_copy_knows_what_was_loaded_and_a_file_that_is_gone_is_made_anew(tmp_path):
    path = tmp_path / "state"
    first, second = two_bandits(path)
    other = pickle.loads(pickle.dumps(first))
    other.add_observations([3], [0.5])
    other.save(path)
    with pytest.raises(InputDataError, match="has saved there since"):
        deepcopy(second).save(path)
    path.unlink()
    second.save(path)
    assert load_state(path)


WRITERS = """
import os, sys, torch
from botorch.exceptions.errors import InputDataError
from botorch_bkb import UniformRandom

path, bandit, children = sys.argv[1], UniformRandom(torch.eye(4)), []
bandit.save(path)
for writer in range(4):
    child = os.fork()
    if child == 0:
        for number in range(4):
            while True:
                bandit.load(path)
                bandit.add_observations([writer], [1.0])
                try:
                    bandit.save(path)
                except InputDataError:
                    continue
                break
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
bandit.load(path)
print(bandit.counts.tolist())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_of_four_processes_at_one_path_none_loses_what_another_saved(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[4, 4, 4, 4]\n"


# Damage -------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path):
    bandit = make_bandit(BBKB)
    play(bandit, 5)
    bandit.save(tmp_path / "state")
    return (tmp_path / "state").read_bytes()


def refused(tmp_path, content, match):
    path, bandit = tmp_path / "damaged", make_bandit(BBKB)
    path.write_bytes(content)
    with unchanged(bandit), pytest.raises(InputDataError, match=match):
        bandit.load(path)


def test_every_cut_and_every_flipped_bit_is_seen(whole, tmp_path):
    rng = np.random.default_rng(0)
    cuts = {0, 1, len(whole) - 1, *rng.integers(len(whole), size=12).tolist()}
    for cut in sorted(cuts):
        refused(tmp_path, whole[:cut], "damaged")
    refused(tmp_path, whole + b" ", "cut off, or something was added")
    start = whole.index(b"\n") + 1
    for place in rng.integers(start, len(whole), size=20).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        refused(tmp_path, bytes(flipped), "checksum differs")


def with_header(whole, **changes):
    line, payload = whole.split(b"\n", 1)
    return json.dumps({**json.loads(line), **changes}).encode() + b"\n" + payload


def test_other_files_are_refused(whole, tmp_path):
    class Bomb:
        @override
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    refused(tmp_path, pickle.dumps(Bomb()), "not a bandit state file")
    assert not (tmp_path / "exploded").exists()
    refused(tmp_path, b"[" * 100_000, "not a bandit state file")
    refused(tmp_path, b"\x00" * 5000, "not a bandit state file")
    refused(tmp_path, with_header(whole, version=2), "version 1, but it has 2")
    refused(tmp_path, with_header(whole, bytes=2**60), "cut off")
    refused(tmp_path, with_header(whole, bytes="many"), "first line of .* is damaged")
    refused(
        tmp_path, with_header(whole, padding="x" * 10**6), "not a bandit state file"
    )
    other = make_bandit(BBKB, random_arms(7))
    other.save(tmp_path / "other")
    refused(tmp_path, (tmp_path / "other").read_bytes(), r"30 arms, but .* 7 arms")


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[" * 100_000,
        b'{"pairs": [["a", {"tensor": [1], "shape": [2], "dtype": "float64"}]]}',
        b'{"pairs": [["a", {"tensor": [1], "shape": [1], "dtype": "load"}]]}',
        b'{"pairs": [["a", {"tensor": [1], "shape": [1e12], "dtype": "float64"}]]}',
        b'{"pairs": [["a", {"tensor": [], "shape": [99999999999], "dtype": "bool"}]]}',
        b"1" * 5000,
        b'{"pairs": 7}',
        b"\xff\xfe",
    ],
)
def test_states_that_are_none_are_refused(payload, whole, tmp_path):
    file = whole.split(b"\n", 1)[0] + b"\n" + payload
    sums = {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    refused(tmp_path, with_header(file, **sums), "holds no state of a bandit")


def test_a_file_that_is_too_large_is_not_read(whole, tmp_path):
    (tmp_path / "large").write_bytes(whole)
    with pytest.raises(InputDataError, match="at most 100 bytes"):
        load_state(tmp_path / "large", max_bytes=100)
