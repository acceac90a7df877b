"""Tables with columns of numbers, words and molecules."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import MaternKernel, ProductKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb import BKB, GPBandit
from botorch_bkb.arms import BitArms, TableArms
from botorch_bkb.bandits import rbf_to_learn
from botorch_bkb.models.kernels.learned import CyclicKernel
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import as_dense
from tests.reference import composite_covariance, matern_covariance


WORDS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=12)
BITS = np.eye(5, 16, dtype="uint8") + np.eye(5, 16, 3, dtype="uint8")
COUNTS = np.arange(16, dtype="uint8")
FINGERPRINTS = dict(zip("abcde", BITS, strict=True))
FINGERPRINTS |= {"more than bits": COUNTS, "short": np.arange(8)}


def mixed_frame() -> pd.DataFrame:
    """Return 24 rows of two words, a number and the word of a molecule."""
    rows = product(("THF", "DMF", "MeCN"), ("yes", "no"), (20.0, 60.0), "ab")
    return pd.DataFrame(rows, columns=["solvent", "dry", "heat", "ligand"])


def given_kernel() -> ScaleKernel:
    """Return a kernel of the first three columns of that frame."""
    parts = [CategoricalKernel(active_dims=[0]), CategoricalKernel(active_dims=[1])]
    kernel = ProductKernel(*parts, MaternKernel(active_dims=[2]))
    parts[0].lengthscale, parts[1].lengthscale = 0.7, 2.0
    kernel.kernels[2].lengthscale = 30.0
    return ScaleKernel(kernel)


def dense_given(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return the covariances of that kernel, from the words."""

    def gap(name: str) -> Any:
        return left[name].to_numpy()[:, None], right[name].to_numpy()[None]

    (a, b), (c, d), (x, z) = map(gap, ("solvent", "dry", "heat"))
    matern = matern_covariance(((x - z) / 30.0) ** 2)
    return np.log(2) * np.exp((a == b) / 0.7 - 1 / 0.7 + (c == d) / 2 - 1 / 2) * matern


def test_cells_become_numbers_and_codes() -> None:
    frame = pd.DataFrame(
        {
            "whole": [3, 1, 2],
            "flag": pd.array([True, False, True], dtype="boolean"),
            "text": ["b", "a", "b"],
            "new text": pd.array(["b", "c", "a"], dtype="string"),
            "category": pd.Categorical([7, 5, 7]),
            "level": pd.Categorical(["hot", "cold", "hot"], ["cold", "hot"], True),
            "object": np.array([1, 2.5, True], dtype=object),
        }
    )
    arms = TableArms(frame)
    expected = [[3, 1, 2], [1, 0, 1], [0, 1, 0], [0, 1, 2], [0, 1, 0], [1, 0, 1]]
    assert arms.dense().T.tolist() == [*expected, [1, 2.5, 1]]
    numbers, words = ["numbers"], ["categories"]
    assert arms.kinds == 2 * numbers + 3 * words + 2 * numbers
    assert arms.words["category"] == ["7", "5"]
    assert arms.words["level"] == ["cold", "hot"]


@given(first=WORDS, second=WORDS)
def test_codes_stay_and_new_words_get_the_next(
    first: list[str], second: list[str]
) -> None:
    arms = TableArms(pd.DataFrame({"x": 1.0, "word": first}))
    before = arms.dense().clone()
    more = arms.encoded(pd.DataFrame({"word": second, "x": 2.0}))
    assert torch.equal(arms.dense(), before)
    both = torch.cat([arms, more])[:, 1].long().tolist()
    assert [arms.words["word"][code] for code in both] == first + second
    assert arms.words["word"] == list(dict.fromkeys(first + second))
    recoded = TableArms(pd.DataFrame({"x": 0.0, "word": [*"gfedcba"]}))
    codes = recoded.recoded(more.dense(), arms.words)[:, 1].long().tolist()
    assert [recoded.words["word"][code] for code in codes] == second


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        (["a", None], "'x' to have no missing cell, but row 1"),
        ([1.0, np.nan], "'x' to have no missing cell, but row 1"),
        ([1.0, np.inf], "'x' to have finite numbers"),
        (["a", 1.0], r"'x' to hold numbers or words, but got \['float', 'str'\]"),
        (pd.to_datetime(["2026-01-31"] * 2), "'x' to hold numbers or words"),
        (pd.to_timedelta([1, 2], unit="s"), r"or words, but got \['timedelta64'\]"),
        ([1j, 2j], r"or words, but got \['complex128'\]"),
    ],
)
def test_cells_that_are_refused(cells: Any, match: str) -> None:
    with pytest.raises(InputDataError, match=match):
        GPBandit(pd.DataFrame({"word": ["p", "q"], "x": cells}))


def test_rows_that_do_not_fit_are_refused() -> None:
    frame = mixed_frame()
    level = pd.Categorical(frame.pop("dry"), ["no", "yes"], ordered=True)
    bandit = GPBandit(frame.assign(level=level))
    good = frame.assign(level=level)[:1]
    for change, match in (
        ({"solvent": 1.0}, "'solvent' to have words such as .'THF'"),
        ({"heat": "hot"}, "'heat' to have numbers, but got 'hot'"),
        ({"level": "maybe"}, "'level' to have words such as .'no', 'yes'"),
        ({"other": 1.0}, "has .'other'. beside them"),
    ):
        with pytest.raises(InputDataError, match=match):
            bandit.add_arms(good.assign(**change))
    for codes in ([9.0, 20.0, 0.0, 0.0], [0.5, 20.0, 0.0, 0.0]):
        with pytest.raises(InputDataError, match=r"'solvent' to have codes of .*'THF'"):
            bandit.add_arms(torch.tensor([codes], dtype=torch.double))
    assert len(bandit.arms) == len(frame)
    assert bandit.add_arms(good.assign(level="yes")).tolist() == [0]
    with pytest.raises(InputDataError, match=r"the columns .*'level'.*are .*'dry'"):
        bandit.load_state_dict(GPBandit(mixed_frame()).state_dict())
    with pytest.raises(BotorchTensorDimensionError, match="at least one arm"):
        GPBandit(frame[:0])
    with pytest.raises(UnsupportedError, match="one component each"):
        GPBandit(frame, rbf_to_learn)


def test_rows_of_another_table_keep_their_words() -> None:
    frame = mixed_frame()
    bandit = GPBandit(frame, given_kernel(), 0.1, seed=0)
    bandit.add_observations([0, 9, 17], [0.1, 0.9, 0.4])
    others = TableArms(frame.iloc[[21, 3]].replace("no", "maybe"))
    assert bandit.add_arms(others).tolist() == [24, 3]
    assert bandit.arms.words["dry"] == ["yes", "no", "maybe"]  # type: ignore[attr-defined]
    torch.testing.assert_close(
        bandit.predict(rows=others)[0], bandit.predict([24, 3])[0]
    )
    with pytest.raises(InputDataError, match="'dry' to have codes of the words"):
        bandit.add_arms(TableArms(frame.rename(columns={"dry": "wet"})))
    with pytest.raises(InputDataError, match="to hold numbers, but got TableArms"):
        GPBandit(frame[["heat"]]).add_arms(others)


def test_predictions_are_those_of_a_dense_gp_and_need_no_known_word() -> None:
    frame = mixed_frame()
    bandit = GPBandit(frame, given_kernel(), 0.1, seed=0)
    rewards = torch.randn(8, generator=torch.Generator().manual_seed(0)).double()
    indices = torch.arange(0, 24, 3)
    bandit.add_observations(indices, rewards)
    new = frame.iloc[:3, ::-1].assign(solvent=["DMSO", "THF", "toluene"], heat=45.0)
    mean, variance = bandit.predict(rows=new)
    seen = frame.iloc[indices.numpy()]
    K = dense_given(seen, seen) + 0.1 * np.eye(8)
    cross = dense_given(new, seen)
    average = rewards.mean().item()
    expected = average + cross @ np.linalg.solve(K, rewards.numpy() - average)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    lower = (cross.T * np.linalg.solve(K, cross.T)).sum(axis=0)
    np.testing.assert_allclose(variance, np.log(2) - lower, rtol=1e-6)
    added = bandit.add_arms(new)
    assert added.tolist() == [24, 25, 26]
    np.testing.assert_allclose(bandit.predict(added)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_molecules_are_stored_once_and_compared_by_fingerprints(
    dtype: torch.dtype,
) -> None:
    frame = mixed_frame()[["solvent", "ligand"]]
    arms = TableArms(frame, molecules={"ligand": FINGERPRINTS}, dtype=dtype)
    assert [len(rows) for rows in arms.rows] == [3, 2]
    bandit = GPBandit(arms, noise_variance=0.1, seed=0)
    kernel = bandit.covar_module
    assert isinstance(kernel, ComponentKernel)
    bandit.add_arms(frame[:3].assign(ligand=[*"cde"]))
    assert [len(rows) for rows in arms.rows] == [3, 5]
    bandit.tell(bandit.ask(2), [0.3, 0.1])
    K = dense_covariance(kernel, bandit.arms)
    codes = as_dense(bandit.arms).numpy().astype(int)
    bits = BITS[codes[:, 1]].astype(float)
    common = bits @ bits.T
    tanimoto = common / (bits.sum(1)[:, None] + bits.sum(1) - common)
    # Whatever scales were set, equal solvents leave a function of the similarity.
    same = codes[:, :1] == codes[:, 0]
    for value in np.unique(tanimoto):
        for is_same in (same, ~same):
            entries = K.numpy()[(tanimoto == value) & is_same]
            assert np.ptp(entries) < 1e-6 if len(entries) else True
    with pytest.raises(InputDataError, match="a fingerprint of every molecule"):
        bandit.add_arms(frame[:1].assign(solvent="water", ligand="z"))
    assert arms.words["solvent"] == ["THF", "DMF", "MeCN"]
    bandit.add_arms(frame[:1].assign(ligand="more than bits"))
    assert torch.equal(arms.rows[1].bits(), torch.tensor(np.vstack([BITS, COUNTS])))
    for word, match in (("short", r"int64 of shape \(1, 8\)"), ("x" * 9, "not of")):
        with pytest.raises(InputDataError, match=match):
            bandit.add_arms(frame[:1].assign(ligand=word))
    ragged = {"ligand": lambda words: [[1] * (n + 1) for n in range(len(words))]}
    with pytest.raises(InputDataError, match="fingerprints of one length, but "):
        TableArms(frame, ragged)
    by_function = TableArms(
        frame, {"ligand": lambda words: BitArms.of(torch.tensor(BITS[: len(words)]))}
    )
    assert torch.equal(by_function.rows[1].bits(), torch.tensor(BITS[:2]))


def test_cyclic_numbers_are_points_on_a_circle() -> None:
    hours = torch.rand(7, 1, dtype=torch.double) * 48
    kernel = CyclicKernel(24.0).double()
    pairs = torch.cat([f(hours * torch.pi / 12) for f in (torch.cos, torch.sin)], -1)
    matern = MaternKernel(nu=2.5).double()
    matern.lengthscale = kernel.lengthscale.detach()
    expected = matern(pairs / 2).to_dense()
    torch.testing.assert_close(kernel(hours).to_dense(), expected)
    torch.testing.assert_close(kernel(hours + 24).to_dense(), expected)
    bandit = GPBandit(TableArms(pd.DataFrame(range(24)), cyclic={0: 24}), seed=0)
    bandit.add_observations([11, 12, 13, 23, 0], [0.0, 0.0, 0.1, 1.0, 0.9])
    mean = bandit.predict()[0]
    assert mean[1] > mean[4]
    assert mean[22] > mean[19]
    frame = pd.DataFrame({"hour": range(24)})
    with pytest.raises(InputDataError, match="to be positive and finite"):
        TableArms(frame, cyclic={"hour": 0})
    with pytest.raises(InputDataError, match="to name some of them"):
        TableArms(frame, cyclic={"day": 7})


def test_a_saved_table_goes_on_although_its_new_words_came_in_another_order() -> None:
    frame = mixed_frame()
    more = frame[:2].assign(solvent=["DMSO", "water"])
    bandit = GPBandit(frame, given_kernel(), 0.1, seed=3)
    bandit.tell(bandit.ask(4), [0.1, 0.4, 0.2, 0.3])
    bandit.add_arms(more)
    state = deepcopy(bandit.state_dict())
    other = GPBandit(frame, given_kernel(), 0.1, seed=3)
    other.predict(rows=more[::-1])
    other.load_state_dict(state)
    assert other.arms.words["solvent"][3:] == ["water", "DMSO"]  # type: ignore[attr-defined]
    assert torch.equal(bandit.ask(5), other.ask(5))
    means = [each.predict(rows=more)[0] for each in (bandit, other)]
    np.testing.assert_allclose(means[0], means[1])
    renamed = GPBandit(frame.replace("THF", "dioxane"), given_kernel(), 0.1)
    with pytest.raises(InputDataError, match="over these 24 arms"):
        renamed.load_state_dict(state)


def test_a_copy_on_another_device_or_of_another_dtype_keeps_its_words() -> None:
    arms = TableArms(mixed_frame(), {"ligand": FINGERPRINTS})
    single = arms.float()
    assert isinstance(single, TableArms)
    assert (single.words, single.dtype) == (arms.words, torch.float32)
    for kernel in (arms.interactions_to_learn(), arms.effects_to_learn()):
        K = [dense_covariance(kernel, each) for each in (arms, single)]
        torch.testing.assert_close(K[1].double(), K[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(arms.long(), arms.dense().long())


def test_a_column_that_names_the_rows_is_named_and_the_remedies_work() -> None:
    frame = pd.DataFrame({"id": [f"r{n}" for n in range(30)], "x": range(30)})
    with pytest.warns(InputDataWarning, match=r"'id' has another word in each of 30"):
        GPBandit(frame)
    GPBandit(frame.drop(columns="id"))
    molecules = {"id": dict.fromkeys(frame["id"], BITS[0])}
    GPBandit(TableArms(frame, molecules=molecules))


def test_plates_and_rounds_by_name() -> None:
    frame = mixed_frame()
    bandit = GPBandit(frame, given_kernel(), 0.1, seed=3)
    bandit.tell(bandit.ask(3), [0.1, 0.4, 0.2])
    batch = bandit.ask(3, same=["solvent", "dry"])
    assert len(frame.iloc[batch.numpy()][["solvent", "dry"]].drop_duplicates()) == 1
    offered = frame.iloc[[5, 17]].assign(solvent="water")
    asked = bandit.ask(2, arms=offered[offered.columns[::-1]])
    assert sorted(asked.tolist()) == [24, 25]
    with pytest.raises(InputDataError, match=r"names among .'solvent'"):
        bandit.ask(3, same=["colour"])


def test_the_papers_algorithms_refuse_words_and_take_the_remedy() -> None:
    frame = mixed_frame()
    for arms in (frame, TableArms(frame)):
        with pytest.raises(InputDataError, match=r"Use a GPBandit, .*get_dummies"):
            BKB(arms, MaternKernel(), 0.1)
    numbers = pd.get_dummies(frame).astype(float)
    assert len(BKB(numbers, MaternKernel(), 0.1).ask()) == 1


@pytest.mark.parametrize("form", ["interactions_to_learn", "effects_to_learn"])
def test_learned_kernels_are_sums_of_products_over_columns(form: str) -> None:
    frame = mixed_frame().assign(hour=[h % 9 * 3.0 for h in range(24)])
    arms = TableArms(frame, {"ligand": FINGERPRINTS}, {"hour": 24})
    kernel = getattr(arms, form)().requires_grad_(False)
    for parameter in kernel.parameters():
        parameter.fill_(0.3 + parameter.numel() * 0.2)

    def equal(name: str) -> np.ndarray:
        cells = frame[name].to_numpy()
        return (cells[:, None] == cells).astype(float)

    def mixed(k: np.ndarray) -> np.ndarray:  # of the weight 0.5
        return (1 + 0.5 * k) / 1.5

    angle = frame["hour"].to_numpy()[:, None] * np.pi / 12
    circle, heat = (
        composite_covariance(x, x, [(0.5, 1.0)])
        for x in (np.hstack([np.cos(angle), np.sin(angle)]) / 2, frame[["heat"]].values)
    )
    tanimoto = np.where(equal("ligand") > 0, 1.0, 0.0)  # 2 bits each, none in common
    share = 1 - (equal("solvent") + equal("dry")) / 2  # of columns that differ
    words = np.exp(-share / np.log1p(np.exp(0.5)))
    factors = [words, mixed(tanimoto), mixed(circle), mixed(heat)]
    expected = 0.5 * np.prod(factors, axis=0)
    same = [equal(name) for name in ("solvent", "dry")]
    if form == "effects_to_learn":
        expected += 0.5 * sum([*same, tanimoto, circle, heat])
    else:
        expected += 0.5 * np.prod([*same, equal("ligand"), equal("hour"), heat], axis=0)
    for K in (dense_covariance(kernel, arms), kernel(arms.dense()).to_dense()):
        np.testing.assert_allclose(K, expected, rtol=1e-6)
    np.testing.assert_allclose(kernel(arms, diag=True), expected.diagonal(), rtol=1e-6)


def test_categories_of_numbers_have_the_same_names_as_floats() -> None:
    """Pandas has floats where one cell was empty once."""
    sizes = pd.Categorical([20, 40, 60, 20])
    table = TableArms(pd.DataFrame({"size": sizes, "x": range(4)}))
    floats = pd.DataFrame({"size": pd.Categorical([60.0, 20.0]), "x": [2, 3]})
    assert list(table.words["size"]) == ["20", "40", "60"]
    assert table.encoded(floats)[:].equal(table[2:])
    twice = pd.Categorical([0.1 * 3, 0.3, 0.5])
    table = TableArms(pd.DataFrame({"size": twice, "x": range(3)}))
    assert table[:, 0].tolist() == [0, 0, 1]
