"""Bandits on arms that are stored do what they do on a tensor of them."""

import pickle
from copy import deepcopy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel

from botorch_bkb import BBKB, GPBandit, GPBUCB, GPThompsonSampling
from botorch_bkb.arms import (
    ArmTable,
    ArrayArms,
    parquet,
    ParquetArms,
    ShardDataError,
    stored,
    StoredArms,
)
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.models.utils import rows as table_rows
from botorch_bkb.optim import optimize_acqf_finite
from botorch_bkb.posteriors import shards, upper_bounds
from tests.bandits import rbf


NUM_ARMS, DIM = 203, 3


def table_of(dtype="float64", seed=0):
    """Return arms, the rows 5, 77 and the last of them equal, and 40 and 41."""
    table = np.random.default_rng(seed).random((NUM_ARMS, DIM))
    if np.dtype(dtype).kind == "u":
        table = (8 * table).round()
    table = table.astype(dtype)
    table[[77, -1]], table[41] = table[5], table[40]
    return table


def array_arms(table, folder, **options):
    path = folder / "arms.npy"
    np.save(path, table)
    return ArrayArms(path, **options)


def write_parquet(table, folder, *, is_list, row_group_size=37, num_files=3):
    """Write a table to several files, the ids of rows beside it."""
    for number, rows in enumerate(np.array_split(np.arange(len(table)), num_files)):
        part = np.ascontiguousarray(table[rows])
        if is_list:
            values = pa.array(part.reshape(-1))
            columns = {"x": pa.FixedSizeListArray.from_arrays(values, part.shape[1])}
        else:
            columns = {f"x{n}": pa.array(part[:, n]) for n in range(part.shape[1])}
        columns = {"name": [f"m{row}" for row in rows], **columns}
        path = folder / f"arms-{number}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=row_group_size)


def scalar_arms(table, folder, **options):
    write_parquet(table, folder, is_list=False)
    return ParquetArms(folder / "*.parquet", ids="name", **options)


def list_arms(table, folder, **options):
    write_parquet(table, folder, is_list=True)
    return ParquetArms(str(folder / "*.parquet"), "x", **options)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Let whole tables be too large to be dense, and blocks smaller than a table."""
    num_bytes = 8 * DIM * (NUM_ARMS - 2)
    monkeypatch.setattr(stored, "MAX_DENSE_BYTES", num_bytes)
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", num_bytes // 4)
    monkeypatch.setattr(parquet, "CACHE_BYTES", num_bytes // 4)
    monkeypatch.setattr(parquet, "KEPT_BYTES", num_bytes // 4)
    monkeypatch.setattr(shards, "CHUNK_BYTES", num_bytes // 4)
    monkeypatch.setattr(upper_bounds, "POOL_SIZE", 8)
    monkeypatch.setattr(upper_bounds, "MAX_POOL_SIZE", 16)
    monkeypatch.setattr(shards, "PASS_CHUNK_BYTES", num_bytes // 4)


def dense_of(table, dtype=torch.double):
    return torch.from_numpy(table.astype("float64")).to(dtype)


@pytest.mark.parametrize(
    ("place", "dtype", "computed"),
    [
        (array_arms, "float32", None),
        (array_arms, "uint8", None),
        (scalar_arms, "float64", torch.float),
        (scalar_arms, "uint8", None),
        (list_arms, "float16", torch.double),
    ],
)
def test_they_are_the_tensor_of_their_rows(place, dtype, computed, tmp_path):
    table = table_of(dtype)
    arms = place(table, tmp_path, dtype=computed)
    if computed is None:
        computed = torch.float if dtype == "float32" else torch.double
    dense = dense_of(table, computed)
    assert (arms.shape, arms.dtype) == (dense.shape, dense.dtype)
    mask = torch.arange(NUM_ARMS) % 3 == 0
    for question in (
        lambda x: x[torch.tensor([5, 0, NUM_ARMS - 1, 5])],
        lambda x: x[torch.tensor([-1, -NUM_ARMS])],
        lambda x: x[mask],
        lambda x: x[4:31],
        lambda x: x[150:],
        lambda x: x[3:90:4],
        lambda x: x[9:3],
        lambda x: x[-1],
        lambda x: x[torch.tensor(3)],
        lambda x: x.index_select(0, torch.tensor([8, 9, 10])),
        lambda x: x.new_zeros(3, 2),
        lambda x: torch.cat([x[:3], x[5:6]]),
        lambda x: torch.cat([x, x[:2]])[NUM_ARMS - 2 :],
        lambda x: torch.cat([x, x[:2]])[torch.tensor([NUM_ARMS, 0, NUM_ARMS + 1])],
    ):
        found, expected = question(arms), question(dense)
        assert type(found) is torch.Tensor
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    more = torch.cat([arms, dense[:3]])
    for same in (arms, deepcopy(arms), pickle.loads(pickle.dumps(arms)), more[:-3]):
        assert isinstance(same, type(arms))
        assert same.shape == dense.shape
        assert torch.equal(same[60:90], dense[60:90])
    assert "203 rows, and 3 in memory, 3 features" in repr(more)


@pytest.mark.parametrize("place", [array_arms, list_arms])
def test_twins_known_rows_and_units_are_found_in_blocks(place, tmp_path):
    table = table_of()
    arms, dense = place(table, tmp_path), dense_of(table)
    found, expected = ArmTable.of(arms), ArmTable.of(dense)
    assert found.duplicates.rows.tolist() == [5, 40, 41, 77, NUM_ARMS - 1]
    assert torch.equal(found.duplicates.rows, expected.duplicates.rows)
    assert torch.equal(found.duplicates.first, expected.duplicates.first)
    new = torch.cat([dense[[77, 0, 5]], -dense[:1]])
    indices, added = found.find(new)
    assert indices.tolist() == [5, 0, 5, NUM_ARMS]
    assert torch.equal(added, -dense[:1])
    features = Fitter(arms, None, None).features
    assert isinstance(features, StoredArms)
    low, high = dense.amin(dim=0), dense.amax(dim=0)
    expected = (dense - low) / (high - low)
    assert torch.equal(features[:80], expected[:80])
    again = features.scaled(low, high)
    assert torch.equal(again[:80], ((expected - low) / high)[:80])


RUNS = {
    "given": {"covar_module": rbf(), "noise_variance": 0.1},
    "recomputed": {
        "covar_module": rbf(),
        "noise_variance": 0.1,
        "max_feature_bytes": 0,
    },
    "learned": {},
}


def make(run, arms, bandit_class=BBKB):
    """Return a bandit, which learns what the run does not give."""
    bandit_class = bandit_class if RUNS[run] else GPBandit
    return bandit_class(arms, seed=0, **RUNS[run])


def campaign(bandit, dense):
    """Ask with masks and pulls pending, and for arms that come and go."""
    rewards = (5 * dense).sin().sum(dim=-1)
    picks = []
    available = torch.arange(NUM_ARMS) % 4 > 0
    for step in range(4):
        indices = bandit.ask(4, available=None if step % 2 else available)
        told = indices[indices < NUM_ARMS][1:]
        bandit.tell(told, rewards[told])
        picks.append(indices)
    picks.append(bandit.add_arms(torch.cat([dense[3:5], 1.5 - dense[:2]])))
    bandit.retire_arms([0, NUM_ARMS])
    picks.append(bandit.ask(3, arms=torch.cat([dense[7:9], dense[:4] / 2])))
    picks.append(bandit.ask(2))
    return torch.cat(picks)


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize(
    ("place", "run", "bandit_class"),
    [
        (array_arms, "given", BBKB),
        (scalar_arms, "recomputed", BBKB),
        (list_arms, "learned", BBKB),
        (scalar_arms, "given", GPBUCB),
        (list_arms, "given", GPThompsonSampling),
    ],
)
def test_runs_are_those_of_the_tensor(place, run, bandit_class, tmp_path):
    table = table_of("float32" if run == "recomputed" else "float64")
    dense = torch.from_numpy(table)
    bandits = [
        make(run, arms, bandit_class) for arms in (place(table, tmp_path), dense)
    ]
    found, expected = (campaign(bandit, dense) for bandit in bandits)
    assert torch.equal(found, expected)
    assert isinstance(bandits[0].arms, StoredArms)
    torch.testing.assert_close(bandits[0].predict(), bandits[1].predict())
    assert bandits[0].best_arm() == bandits[1].best_arm()


@pytest.mark.parametrize(
    ("place", "run"), [(array_arms, "given"), (scalar_arms, "recomputed")]
)
def test_a_state_has_no_stored_arms_and_loads_with_them(place, run, tmp_path):
    table = table_of()
    dense = dense_of(table)
    arms = place(table, tmp_path)
    bandit = make(run, arms)
    campaign(bandit, dense)
    state = bandit.state_dict()
    assert len(state["table"]["added"]) == len(bandit.arms) - NUM_ARMS > 0
    bandit.save(tmp_path / "state.bkb")
    (tmp_path / "copy").mkdir()
    other = make(run, place(table, tmp_path / "copy"))
    other.load(tmp_path / "state.bkb")
    assert isinstance(other.arms, StoredArms)
    assert torch.equal(other.ask(4), bandit.ask(4))
    # The state is that of a bandit on the tensor as well.
    make(run, dense).load(tmp_path / "state.bkb")
    changed = table.copy()
    changed[100, 1] += 1e-6
    (tmp_path / "other").mkdir()
    with pytest.raises(InputDataError, match="of others, or in another order"):
        make(run, place(changed, tmp_path / "other")).load(tmp_path / "state.bkb")


def test_any_acquisition_function_has_its_best_choices(tmp_path):
    table = table_of()
    dense, arms = dense_of(table), scalar_arms(table, tmp_path)
    X = dense[:9]
    model = SingleTaskGP(X, X.sum(dim=-1, keepdim=True), covar_module=RBFKernel())
    available = torch.arange(NUM_ARMS) % 3 > 0
    options = {"q": 2, "available": available, "chunk_size": 50}
    sampler = SobolQMCNormalSampler(torch.Size([64]), 0)
    function = qUpperConfidenceBound(model, 2.0, sampler)
    found, expected = (
        optimize_acqf_finite(function, choices, **options) for choices in (arms, dense)
    )
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize(
    ("place", "value", "run"),
    [(array_arms, np.nan, "given"), (scalar_arms, np.inf, "learned")],
)
def test_a_row_that_is_not_finite_is_named(place, value, run, tmp_path):
    table = table_of()
    table[131, 1] = value
    with pytest.raises(
        ShardDataError, match=r"features.* of arm 131, .*row .* of .*ar"
    ):
        make(run, place(table, tmp_path))


def test_all_rows_at_once_are_refused(tmp_path):
    arms = array_arms(table_of(), tmp_path)
    for question in (lambda: arms * 2, lambda: arms[1:]):
        with pytest.raises(UnsupportedError, match=r"rows are [\d,]+ bytes. Take a p"):
            question()
    with pytest.raises(InputDataError, match="got a change in place"):
        arms.add_(1)
    with pytest.raises(IndexError, match="rows of 203 arms"):
        arms[torch.tensor([NUM_ARMS])]


@pytest.mark.parametrize("dtype", ["float16", ">f8"])
def test_an_array_is_taken_as_it_is(dtype, tmp_path):
    table = table_of(dtype)
    arms = ArrayArms(table, dtype=torch.float)
    assert arms.source.array is table
    copy = pickle.loads(pickle.dumps(arms))
    assert torch.equal(copy[3:9], dense_of(table, torch.float)[3:9])
    mapped = array_arms(table, tmp_path)
    assert len(pickle.dumps(mapped)) < table.nbytes  # its path


@pytest.mark.parametrize(
    ("array", "options", "error", "match"),
    [
        (np.zeros(3), {}, BotorchTensorDimensionError, r"A x d, but got \(3,\)"),
        (np.zeros((0, 3)), {}, BotorchTensorDimensionError, "got 0 x 3"),
        (np.zeros((3, 2), "complex64"), {}, InputDataError, "got complex64"),
        (np.zeros((3, 2)), {"dtype": torch.half}, InputDataError, "got torch.float16"),
    ],
)
def test_other_arrays_are_refused(array, options, error, match):
    with pytest.raises(error, match=match):
        ArrayArms(array, **options)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputDataError, match=r"table.csv to be an array .* cannot"):
        ArrayArms(path)
    with pytest.raises(FileNotFoundError):
        ArrayArms(tmp_path / "missing.npy")


def test_a_pass_over_wide_rows_takes_few_at_once(monkeypatch):
    table = np.random.default_rng(0).random((300, 64))
    monkeypatch.setattr(shards, "PASS_CHUNK_BYTES", 2**14)
    monkeypatch.setattr(stored, "MAX_DENSE_BYTES", 2**14)
    arms = ArrayArms(table)
    bandit = GPBUCB(arms, covar_module=rbf(), noise_variance=0.1, seed=0)
    bandit.add_observations([0, 1], [1.0, 2.0])
    assert len(bandit.ask()) == 1
