"""`GPBandit.main_effects`, against partial dependence by dense NumPy."""

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import MaternKernel, ProductKernel, RBFKernel, ScaleKernel

from botorch_bkb import GPBandit
from botorch_bkb.arms import ArrayArms, ProductArms
from botorch_bkb.bandits import effects
from botorch_bkb.models.kernels import TanimotoKernel
from tests.bandits.test_predictions import campaign, dense_posterior, tables
from tests.bandits.test_warping import failing
from tests.helpers import seeded
from tests.posteriors.test_product_posterior import matern, tanimoto
from tests.reference import Arms, log_warp


pytestmark = pytest.mark.usefixtures("short_fits")


def dense_effects(bandit, values, weights):
    """Means and standard deviations of main effects, and shares, column by column.

    On the scale of the model, of small tables, all of whose rows are averaged over.
    """
    arms, found = bandit.arms, []
    total = dense_posterior(bandit, arms)[0].var()
    for column, (some, share) in enumerate(zip(values, weights, strict=True)):
        grid = arms.repeat(len(some), 1, 1)
        grid[:, :, column] = torch.tensor(some).unsqueeze(-1)
        mean, covariance = dense_posterior(bandit, grid.flatten(0, 1))
        mean = mean.reshape(len(some), len(arms))
        blocks = covariance.reshape(len(some), len(arms), len(some), len(arms))
        std = np.sqrt([blocks[n, :, n].mean() for n in range(len(some))])
        center = mean.mean(axis=1)
        first = share @ (center - share @ center) ** 2
        among = [share @ (each - share @ each) ** 2 for each in mean.T]
        found.append((center, std, first / total, np.mean(among) / total))
    return found


def check(found, name, center, std, first, total, rtol=1e-6):
    table = pd.DataFrame(found.effects[name])
    np.testing.assert_allclose(table["mean"], center, rtol=rtol)
    np.testing.assert_allclose(table["std"], std, rtol=rtol)
    shares = pd.DataFrame(found.importance)[name]
    assert shares["first_order"] == pytest.approx(first, rel=rtol)
    assert shares["total"] == pytest.approx(total, rel=rtol)
    assert first <= total


@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
@pytest.mark.parametrize("options", [{"max_inducing": 9}, {"maximize": False}])
def test_effects_are_those_of_the_dense_posterior(options):
    arms, _ = tables()
    arms[:, 1] = (arms[:, 1] / 15).round()  # 0, 1, 2, 3, not equally often
    bandit = campaign(arms, **options)
    bandit.ask(1)
    found = bandit.main_effects()
    levels = (np.arange(20) + 0.5) / 20
    quantiles = np.quantile(arms[:, 0].numpy(), levels, method="nearest")
    values, counts = np.unique(arms[:, 1].numpy(), return_counts=True)
    assert found.effects[0]["value"] == quantiles.tolist()
    assert found.effects[1]["value"] == [0, 1, 2, 3]
    weights = np.full(20, 1 / 20), counts / len(arms)
    for column, expected in enumerate(
        dense_effects(bandit, [quantiles, values], weights)
    ):
        check(found, column, *expected)
    assert found.confounded == []


def test_effects_change_no_pick_and_are_those_of_a_memory_map():
    arms, _ = tables()
    plain, silent, mapped = map(campaign, (arms, arms, ArrayArms(arms.numpy())))
    state = torch.get_rng_state()
    plain.retire_arms([0, 1])
    found = plain.main_effects()
    assert torch.equal(torch.get_rng_state(), state)
    for again in (plain.main_effects(), mapped.main_effects()):
        assert again.importance == found.importance
    silent.retire_arms([0, 1])
    assert torch.equal(plain.ask(6), silent.ask(6))


def test_words_that_no_row_has_have_no_effects():
    frame = pd.DataFrame({"ligand": ["a", "b", "c"] * 6, "heat": range(18)})
    bandit = GPBandit(frame, seed=0)
    bandit.add_observations(range(12), [n % 3 + n / 9 for n in range(12)])
    bandit.predict(rows=pd.DataFrame({"ligand": ["other"], "heat": [3]}))
    assert bandit.main_effects().effects["ligand"]["value"] == ["a", "b", "c"]


def test_warped_rewards_have_effects_on_the_warped_scale():
    bandit = failing()
    told = bandit._observations.told.rewards.numpy()
    warp, undo = log_warp(told)
    levels = (np.arange(20) + 0.5) / 20
    rows = bandit.arms.numpy()
    values = [np.quantile(column, levels, method="nearest") for column in rows.T]
    expected = dense_effects(bandit, values, [np.full(20, 1 / 20)] * len(values))
    for column, (center, std, *shares) in enumerate(expected):
        around = np.maximum(center, warp(np.array([told.min()])))
        width = undo(around + 1.96 * std) - undo(around - 1.96 * std)
        moments = undo(center), width / 3.92
        check(bandit.main_effects(), column, *moments, *shares, rtol=1e-4)


def test_effects_in_a_product_space_are_those_of_dense_algebra():
    numbers = np.random.default_rng(0)
    x, bits = numbers.random((5, 2)), numbers.random((6, 16)) < 0.5
    arms = ProductArms({"x": x, "bits": bits, "word": [*"abcd"]})
    parts = [
        MaternKernel(active_dims=(0, 1)),
        TanimotoKernel(active_dims=range(2, 18)),
        CategoricalKernel(active_dims=(18,)),
    ]
    for part in (parts[0], parts[2]):
        part.lengthscale = 0.5
    word = np.where(np.eye(4, dtype=bool), 1.0, np.exp(-2))
    gram = np.kron(np.kron(matern(x / 0.5), tanimoto(bits.astype(int))), word)
    bandit = GPBandit(arms, ProductKernel(*parts), 0.1)
    told = np.sort(numbers.choice(120, 30, replace=False))
    rewards = numbers.normal(size=30)
    bandit.add_observations(told, rewards)
    counts, sums = np.zeros((2, 120))
    counts[told], sums[told] = 1, rewards - rewards.mean()
    dense = Arms(gram, 0.1)
    mean = dense.posterior(told, counts, sums)[0].reshape(5, 6, 4)
    covariance = dense.parts(told, counts, sums)[1].reshape(5, 6, 4, 5, 6, 4)
    found = bandit.main_effects()
    for axis, (name, values) in enumerate(
        [("x", [*range(5)]), ("bits", [*range(6)]), ("word", [*"abcd"])]
    ):
        assert found.effects[name]["value"] == values
        others = tuple({0, 1, 2} - {axis})
        center = mean.mean(axis=others)
        among = covariance.mean(axis=(*others, *(other + 3 for other in others)))
        total = mean.var(axis=axis).mean() / mean.var()
        std, first = np.sqrt(np.diag(among)), center.var() / mean.var()
        check(found, name, rewards.mean() + center, std, first, total)
    assert found.confounded == []


def test_a_product_space_has_the_effects_of_its_table(monkeypatch):
    monkeypatch.setattr(effects, "NUM_DESCRIBED", 400)
    x, y = torch.rand(2, 30, generator=seeded()).double()
    arms = ProductArms({"x": x[:12], "y": y[:15], "word": [*"abc"]})
    names = CategoricalKernel(active_dims=(2,))
    kernel = ScaleKernel(RBFKernel(active_dims=(0,)) * RBFKernel(active_dims=(1,)))
    kernel = ScaleKernel(kernel * names + names)
    rows = torch.cartesian_prod(x[:12], y[:15], torch.arange(3).double())
    frame = pd.DataFrame(rows.numpy(), columns=arms.names)
    frame["word"] = frame["word"].map(dict(enumerate("abc")))
    found = []
    for each in (arms, frame):  # of 540 rows
        bandit = GPBandit(each, kernel, 0.01)
        some = torch.arange(0, 540, 7)
        bandit.add_observations(some, (rows[some] ** 2).sum(dim=-1))
        found.append(bandit.main_effects())
    space, table = found
    for name in arms.names:
        left, right = (pd.DataFrame(each.effects[name]) for each in found)
        order = left["value"].argsort() if name != "word" else slice(None)
        for key in ("mean", "std"):
            left_values = left[key].to_numpy()[order]
            np.testing.assert_allclose(left_values, right[key], rtol=1e-6)
        assert space.importance[name] == pytest.approx(table.importance[name])
    assert table.effects["word"]["value"] == [*"abc"]
    assert table.effects["x"]["value"] == sorted(x[:12].tolist())


def test_the_components_of_a_product_space_are_crossed():
    acids = torch.randn(8_000, 2, generator=seeded()).double()
    arms = ProductArms({"acid": acids, "heat": [20.0, 40.0], "salt": [*"abc"]})
    bandit = GPBandit(arms, seed=0)
    batch = bandit.ask(4)
    bandit.tell(batch, arms.components(batch)[:, 1].double())
    assert bandit.main_effects().confounded == []


def test_confounded_columns_are_named():
    numbers = np.random.default_rng(0)
    ligand = numbers.integers(12, size=300)
    weight = numbers.normal(size=12)[ligand] + 0.01 * numbers.normal(size=300)
    heat = numbers.random(300)
    columns = {"ligand": ligand, "kind": ligand // 4, "weight": weight, "heat": heat}
    columns |= {"square": (heat - 0.5) ** 2, "base": numbers.integers(4, size=300)}
    columns |= {"time": heat + 0.4 * numbers.random(300), "volume": np.full(300, 0.1)}
    frame = pd.DataFrame(columns)
    words = frame.assign(
        ligand=frame["ligand"].map("L{}".format), base=[*map(str, ligand)]
    )
    pairs = [("ligand", "kind"), ("ligand", "weight"), ("heat", "square")]
    more = [("ligand", "base"), ("kind", "base"), ("weight", "base")]
    for each, expected in ((frame, pairs), (words, sorted(pairs + more))):
        bandit = GPBandit(each, seed=0)
        bandit.add_observations(range(30), heat[:30])
        found = bandit.main_effects()
        assert sorted(found.confounded) == sorted(expected)
        assert found.importance["volume"] == {"first_order": 0.0, "total": 0.0}


def test_what_has_no_effects():
    arms, _ = tables()
    bandit = GPBandit(arms)
    with pytest.raises(InputDataError, match="Call `tell` first"):
        bandit.main_effects()
    for each in (arms, arms[:1].float()):
        bandit = GPBandit(each)
        bandit.add_observations([0, 0], [1.0, 1.0])
        assert [*bandit.main_effects().importance[1].values()] == [0.0, 0.0]
    with pytest.raises(UnsupportedError, match="drifts"):
        GPBandit(arms, forgetting_rate=0.1).main_effects()
    bits = (torch.rand(20, 16, generator=seeded()) < 0.5).to(torch.uint8)
    bandit = GPBandit(bits)
    bandit.add_observations([0, 1], [1.0, 2.0])
    with pytest.raises(UnsupportedError, match="Use `ProductArms"):
        bandit.main_effects()
    bandit = GPBandit(ProductArms({"molecule": bits}))  # as the message says
    bandit.add_observations([0, 1], [1.0, 2.0])
    found = bandit.main_effects()
    assert found.effects["molecule"]["mean"][:2].tolist() == pytest.approx([1, 2], 0.3)


@pytest.mark.parametrize("arms", [[5, 5], [0, 1, 2, 3, 4, 5]])
def test_results_that_tell_nothing_make_no_column_important(arms):
    """Posterior means then differ by rounding, which is no effect of a column."""
    bandit = GPBandit(torch.rand(15, 2, generator=seeded(), dtype=torch.double), seed=0)
    bandit.add_observations(arms, [-0.9157, -0.8107] if arms == [5, 5] else [0.1] * 6)
    for shares in bandit.main_effects().importance.values():
        assert shares == {"first_order": 0.0, "total": 0.0}
