"""Arms that stay packed do what their dense copies do."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb import BBKB, GPBandit, RGPUCB
from botorch_bkb.arms import ArmTable, BitArms
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.models.utils.nystrom import dense_covariance
from tests.helpers import random_points, spy


NUM_ARMS, NUM_BITS = 60, 40


def counts_of(most, num_arms=NUM_ARMS, num_bits=NUM_BITS, seed=0):
    """Return sparse counts of one byte, the row 3 all zero and the row 5 twice."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most + 1, size=(num_arms, num_bits))
    counts *= rng.random((num_arms, num_bits)) < 0.2
    counts[3], counts[7] = 0, counts[5]
    return torch.from_numpy(counts.astype("uint8"))


def numbers_of(num_arms=NUM_ARMS, seed=1):
    numbers = random_points(num_arms, 2, seed=seed)
    numbers[7] = numbers[5]
    return 20 + 60 * numbers


def packed_and_dense(most, with_numbers, dtype=torch.double):
    counts = counts_of(most)
    packed, dense = BitArms.of(counts, dtype), counts.to(dtype)
    if not with_numbers:
        return packed, dense
    numbers = numbers_of().to(dtype)
    return packed.with_numbers(numbers), torch.cat([dense, numbers], dim=-1)


each_kind = pytest.mark.parametrize("most", [1, 9], ids=["bits", "counts"])
each_width = pytest.mark.parametrize("with_numbers", [False, True])


@pytest.mark.parametrize(
    ("most", "with_numbers", "dtype"),
    [(1, False, torch.float), (9, False, torch.double), (1, True, torch.double)],
    ids=str,
)
def test_they_are_the_tensor_of_their_rows(most, with_numbers, dtype):
    packed, dense = packed_and_dense(most, with_numbers, dtype)
    assert packed.is_packed == (most == 1)
    assert packed.codes.nbytes == NUM_ARMS * NUM_BITS // (8 if most == 1 else 1)
    assert (packed.shape, packed.dtype) == (dense.shape, dense.dtype)
    rows = torch.tensor([5, 0, 59])
    for question in (
        lambda x: x * 1,
        lambda x: x[rows],
        lambda x: x[4:31],
        lambda x: x[x[:, 0] > 0],
        lambda x: x[7],
        lambda x: x[:, -1],
        lambda x: x[:, :5],
        lambda x: x.index_select(1, torch.arange(NUM_BITS)),
        lambda x: x.index_select(1, torch.tensor([x.shape[1] - 1])),
        lambda x: x.index_select(1, torch.tensor([2, 1])),
        lambda x: torch.cat([x, x[:2], dense[3:5]]),
        lambda x: x.amax(dim=0),
        lambda x: x.double().mT @ x.double(),
        lambda x: x.new_zeros(3, 2),
    ):
        found, expected = question(packed), question(dense)
        assert found.dtype == expected.dtype
        assert torch.equal(found + 0, expected)
    for same in (deepcopy(packed), pickle.loads(pickle.dumps(packed)), packed.clone()):
        assert isinstance(same, BitArms)
        assert torch.equal(same + 0, dense)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: BitArms(torch.zeros(2, 3)), InputDataError, "dtype uint8"),
        (
            lambda: BitArms(np.zeros((3, 2), "uint8"), numbers=torch.zeros(2, 1)),
            BotorchTensorDimensionError,
            r"A x e, but got \(3, 2\) and \(2, 1\)",
        ),
        (lambda: BitArms.of(counts_of(1)).add_(1), InputDataError, "change in place"),
        (
            lambda: torch.cat([BitArms.of(counts_of(1)), torch.full((1, 40), 2.0)]),
            InputDataError,
            "rows of bits in the first 40 columns",
        ),
    ],
)
def test_what_is_no_bit_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


@each_kind
@pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
def test_packed_similarities_are_those_of_dense_rows(most, dtype):
    packed, dense = packed_and_dense(most, False, dtype)
    few = torch.tensor([3, 1, 7])
    kernel = ScaleKernel(TanimotoKernel()).to(dtype)
    for left, right in ((few, slice(None)), (slice(None), few), (few, few)):
        found = dense_covariance(kernel, packed[left], packed[right])
        expected = dense_covariance(kernel, dense[left], dense[right])
        np.testing.assert_allclose(
            found.detach(), expected.detach(), rtol=1e-6 if dtype == torch.float else 0
        )
    np.testing.assert_array_equal(
        kernel(packed, diag=True).detach(), kernel(dense, diag=True).detach()
    )


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 255), min_size=8, max_size=8), min_size=2),
    st.booleans(),
)
def test_what_rows_have_in_common_is_exact(rows, are_bits):
    counts = np.array(rows) % 2 if are_bits else np.array(rows)
    arms = BitArms.of(torch.from_numpy(counts.astype("uint8")))
    expected = np.minimum(counts[:, None], counts[None]).sum(axis=-1)
    np.testing.assert_array_equal(arms.in_common(arms), expected)
    np.testing.assert_array_equal(arms.totals(), counts.sum(axis=-1))


@given(
    num_bits=st.sampled_from([8, 24, 64, 72]),
    seed=st.integers(0, 99),
    with_numbers=st.booleans(),
)
@settings(max_examples=25)
@each_kind
def test_words_are_equal_where_the_arms_are(most, num_bits, seed, with_numbers):
    stream = np.random.default_rng(seed)
    counts = np.zeros((9, num_bits), "uint8")
    # Few rows that differ, in any one column.
    counts[np.arange(9), stream.integers(num_bits, size=9)] = most
    counts[6:] = counts[stream.integers(6, size=3)]
    arms = BitArms.of(torch.from_numpy(counts))
    if with_numbers:
        numbers = torch.from_numpy(stream.choice([-0.0, 0.0, 0.5], size=(9, 2)))
        arms = arms.with_numbers(numbers)
    words, dense = arms.words(), arms.dense()
    assert words.dtype == torch.int64
    same_words = (words.unsqueeze(1) == words).all(dim=-1)
    assert torch.equal(same_words, (dense.unsqueeze(1) == dense).all(dim=-1))


@each_width
def test_twins_and_known_rows_are_found(with_numbers):
    packed, dense = packed_and_dense(1, with_numbers)
    found, expected = ArmTable.of(packed), ArmTable.of(dense)
    assert torch.equal(found.duplicates.rows, expected.duplicates.rows)
    assert torch.equal(found.duplicates.first, expected.duplicates.first)
    new = dense[[5, 0, 7]].clone()
    new[1, :8] = 1
    for rows in (new, torch.cat([packed[:0], new])):
        indices, added = found.find(rows)
        assert indices.tolist() == [5, NUM_ARMS, 5]
        assert torch.equal(added + 0, new[1:2])


@pytest.mark.parametrize(
    ("bandit_class", "most", "options"), [(BBKB, 9, {}), (RGPUCB, 1, {"block_size": 3})]
)
def test_any_bandit_does_with_bytes_what_it_does_with_floats(
    bandit_class, most, options
):
    counts = counts_of(most)
    rewards = counts.double() @ torch.linspace(-1, 1, NUM_BITS, dtype=torch.double)
    bandits = []
    for arms in (counts, counts.double()):
        bandit = bandit_class(arms, TanimotoKernel(), 0.1, seed=0, **options)
        for _ in range(4):
            picks = bandit.ask(5)
            bandit.tell(picks, rewards[picks])
        indices = bandit.add_arms(1 - counts[:1].clamp(max=1).to(arms.dtype))
        assert indices.tolist() == [NUM_ARMS]
        bandits.append(bandit)
    packed, dense = bandits
    assert isinstance(packed.arms, BitArms)
    assert torch.equal(packed.counts, dense.counts)
    torch.testing.assert_close(packed.predict(), dense.predict(), rtol=1e-9, atol=1e-12)


def test_only_numbers_beside_the_bits_are_scaled():
    packed, dense = packed_and_dense(1, True)
    features = Fitter(packed, None, None).features
    assert isinstance(features, BitArms)
    numbers = dense[:, NUM_BITS:]
    low, high = numbers.amin(dim=0), numbers.amax(dim=0)
    expected = torch.cat([dense[:, :NUM_BITS], (numbers - low) / (high - low)], dim=-1)
    np.testing.assert_allclose(features + 0, expected, rtol=1e-14)


@pytest.mark.parametrize("kernel", [None, TanimotoKernel()], ids=["learned", "given"])
def test_no_dense_copy_of_the_arms_is_made(kernel, monkeypatch):
    num_arms, num_bits = 20_000, 512
    counts = counts_of(1, num_arms, num_bits)
    noise = None if kernel is None else 0.1
    made_dense = spy(monkeypatch, BitArms, "dense")
    bandit = GPBandit(counts, kernel, noise, seed=0)
    bandit.add_observations(torch.arange(8), torch.linspace(0, 1, 8))
    bandit.ask(3)
    bandit.state_dict()
    assert 0 < max(len(arms) for (arms,) in made_dense) <= num_arms / 4
