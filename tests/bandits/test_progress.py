"""`GPBandit.progress` and `ask(n, same=...)`: the rise of a batch, by dense NumPy."""

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from scipy.special import expit, logit

from botorch_bkb import GPBandit
from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.bandits import ThompsonPolicy
from botorch_bkb.bandits.progress import BEST, BETTER, calibrated_best, HELD, Platt
from botorch_bkb.posteriors import batch_rise
from tests.bandits.test_predictions import campaign, dense_posterior, tables
from tests.helpers import seeded
from tests.posteriors.test_product_posterior import NOISE, Space


pytestmark = pytest.mark.usefixtures("short_fits")


def dense_rise(mean, covariance, noise, pending, batch, num_draws=100_000, offset=0.0):
    """E[max mean after the batch] - max mean, by draws over all arms."""
    if len(pending):
        K = covariance[np.ix_(pending, pending)] + noise * np.eye(len(pending))
        lost = np.linalg.solve(K, covariance[pending])
        covariance = covariance - covariance[:, pending] @ lost
    K = covariance[np.ix_(batch, batch)] + noise * np.eye(len(batch)) + offset
    y = np.linalg.cholesky(K) @ np.random.default_rng(0).normal(
        size=(len(batch), num_draws)
    )
    after = mean[:, None] + covariance[:, batch] @ np.linalg.solve(K, y)
    best = mean.argmax()  # its mean does not change in expectation
    return (after.max(axis=0) - after[best]).mean()


@pytest.fixture
def many_draws(monkeypatch):
    monkeypatch.setattr(batch_rise, "NUM_DRAWS", 2**16)
    monkeypatch.setattr(batch_rise, "NUM_NORMALS", 2**22)


@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
@pytest.mark.parametrize("options", [{"max_inducing": 9}, {"maximize": False}])
@pytest.mark.usefixtures("many_draws")
def test_the_rise_is_that_of_dense_draws_over_all_arms(options):
    arms, _ = tables()
    bandit = campaign(arms, 3, noise_std=1.0, **options)
    bandit.ask(2)
    bandit.add_pending([5, 5])
    state = torch.get_rng_state()
    found = bandit.progress(4)
    assert torch.equal(torch.get_rng_state(), state)
    pending = [*bandit.pending.values()]
    batch = bandit.ask(4)
    mean, covariance = dense_posterior(bandit, arms)
    mean = mean if bandit.maximize else -mean
    args = mean, covariance, bandit.noise_variance, pending
    expected = dense_rise(*args, batch.tolist())
    assert expected > 0.01
    assert found.expected_rise == pytest.approx(expected, rel=0.02)
    # The batch of the last ask, in any order, and one that was never asked.
    again = bandit.progress(indices=batch.flip(0)).expected_rise
    assert again == pytest.approx(expected, rel=0.02)
    args = *args[:3], [*pending, *batch.tolist()]
    one = bandit.progress(indices=[3, 3, 8]).expected_rise
    assert one == pytest.approx(dense_rise(*args, [3, 3, 8]), rel=0.05, abs=1e-4)


@pytest.mark.usefixtures("many_draws")
def test_the_rise_in_a_product_space():
    space = Space(0)
    pending, batch = torch.tensor([17, 60]), torch.tensor([3, 90, 91, 17])
    given = space.posterior.given(Counter(pending.tolist()))
    (rise,) = batch_rise.expected_rises(given, [batch], None, seeded())
    args = space.mean, space.covariance, NOISE, pending.numpy(), batch.numpy()
    assert rise == pytest.approx(dense_rise(*args), rel=0.02, abs=4e-4)


def test_the_best_arm_is_that_of_joint_draws():
    arms, _ = tables()
    bandit = campaign(arms, 3, noise_std=2.0, maximize=False)
    bandit.ask(1)  # pending pulls do not count
    found = bandit.progress()
    columns = bandit.predictions(num_draws=20_000, generator=seeded())
    mean, covariance = dense_posterior(bandit, arms)
    draws = np.random.default_rng(0).multivariate_normal(
        -mean, covariance, 20_000, method="eigh"
    )
    is_measured = np.isin(range(len(arms)), bandit.observed_arms)
    better = draws[:, ~is_measured].max(axis=1) > draws[:, is_measured].max(axis=1)
    assert 0.05 < better.mean() < 0.95
    size = is_measured.sum(), len(arms)
    expected = BETTER(better.mean(), *size)
    assert found.probability_unmeasured == pytest.approx(expected, abs=0.03)
    share = np.bincount(draws.argmax(axis=1), minlength=len(arms)) / len(draws)
    factor = min(1, BEST(share.max()) / share.max())
    np.testing.assert_allclose(columns["probability_best"], factor * share, atol=0.02)
    assert found.probability_best == pytest.approx(factor * share.max(), abs=0.03)
    expected = HELD(share.max(), *size)
    assert found.probability_held == pytest.approx(expected, abs=0.03)
    share = share[found.best_arms.numpy()]
    assert 0.93 < share.sum() < 0.99
    assert share[:-1].sum() < 0.97
    assert (np.diff(share) < 0.03).all()


def test_shares_of_draws_are_calibrated_by_platt_scaling():
    share, measured = np.linspace(0.02, 0.98, 40), np.arange(15, 55)
    arms, platt = np.arange(60, 2060, 50), Platt(0.1, 0.3, -0.4, 0.2)
    z = 0.1 + 0.3 * logit(share) - 0.4 * np.log(measured) + 0.2 * np.log(arms)
    found = [platt(*each) for each in zip(share, measured, arms, strict=True)]
    np.testing.assert_allclose(found, expit(z))
    # Of shares and sizes that were never seen, the next that was.
    assert platt(0.0, 1, 5) == platt(0.02, 10, 50)
    assert platt(1.0, 500, 10**9) == platt(0.98, 55, 3000)
    # The most likely of many arms does not get more than its draws.
    assert calibrated_best(0.01) == 0.01
    assert 0.6 < calibrated_best(0.95) == BEST(0.95) < 0.8


@pytest.mark.parametrize("left", ["nothing", "equal arms", "a retired arm"])
def test_of_measured_arms_alone_none_is_better(left):
    arms = torch.rand(8, 2, generator=seeded()).double()
    if left == "equal arms":  # the first of equal arms are not those with results
        arms = torch.cat([arms, arms])
    told = torch.arange(len(arms))[-8:]
    if left == "a retired arm":
        arms = torch.cat([arms, arms[:1] + 0.1])
    bandit = GPBandit(arms, seed=0)
    bandit.add_observations(told, torch.rand(8, generator=seeded()).double())
    if left == "a retired arm":
        bandit.retire_arms([8])
    said = bandit.progress()
    assert said.probability_unmeasured == 0
    assert said.probability_held < 1 or len(said.best_arms) == 8


@pytest.mark.parametrize("is_new", [True, False])
def test_chances_do_not_contradict_each_other(is_new):
    """If arms without results hold the best one, one of them is better."""
    arms = torch.rand(60, 2, generator=seeded()).double()
    values = arms.sum(dim=-1)
    order = values.argsort(descending=not is_new)
    bandit = GPBandit(arms, seed=0)
    bandit.add_observations(order[:50], values[order[:50]])
    said = bandit.progress()
    new = ~torch.isin(said.best_arms, bandit.observed_arms)
    if is_new:
        assert new.all()
        assert said.probability_unmeasured >= said.probability_held > 0.5
    else:
        assert not new.any()
        assert said.probability_unmeasured <= 1 - said.probability_held < 0.5


def test_the_only_arm_is_surely_the_best():
    bandit = GPBandit(torch.ones(1, 2).double(), seed=0)
    bandit.add_observations([0, 0], [1.0, 2.0])
    said = bandit.progress()
    assert said.probability_held == said.probability_best == 1
    assert bandit.predictions()["probability_best"].tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "policy"), [("table", ThompsonPolicy()), ("products", None)]
)
def test_no_later_pick_changes(kind, policy):
    arms, _ = tables()
    if kind == "products":
        x = torch.linspace(0, 1, 9).double()
        arms = ProductArms({"x": x, "y": x, "word": ["a", "b", "c"]})

    def play(asks_progress):
        bandit = GPBandit(arms, policy=policy, seed=3)
        picks = []
        for number in range(3):
            if asks_progress and number:
                first = bandit.progress(6)
                assert first.expected_rise == bandit.progress(6).expected_rise
            picks += [bandit.ask(6)]
            if asks_progress and number:
                again = bandit.progress(indices=picks[-1])
                expected = pytest.approx(first.expected_rise, rel=1e-6)
                assert again.expected_rise == expected
            rewards = arms[picks[-1]].double().sin().sum(dim=-1)
            bandit.tell(picks[-1][:5], rewards[:5])
        return torch.cat(picks)

    assert torch.equal(play(True), play(False))


def test_what_has_no_progress_is_refused():
    arms, _ = tables()
    bandit = GPBandit(arms, seed=0)
    with pytest.raises(InputDataError, match="there are none yet"):
        bandit.progress()
    bandit.add_observations([0, 1], [1.0, 2.0])
    with pytest.raises(InputDataError, match="`n`"):
        bandit.progress(0)
    with pytest.raises(InputDataError, match="60"):
        bandit.progress(indices=[60])
    drifting = GPBandit(arms, forgetting_rate=0.1, seed=0)
    drifting.add_observations([0, 1], [1.0, 2.0])
    with pytest.raises(UnsupportedError, match="drifts"):
        drifting.progress()
    with pytest.raises(UnsupportedError, match="does not drift"):
        drifting.ask(2, same=[0])


# Plates: `GPBandit.ask(n, same=...)` --------------------------------------------------


def table(num_arms, *num_values, seed=0):
    """Arms with columns of some numbers of values, and two of arbitrary numbers."""
    numbers = np.random.default_rng(seed)
    columns = [numbers.integers(0, n, num_arms) * 10.0 for n in num_values]
    columns += [*numbers.random((2, num_arms))]
    return torch.from_numpy(np.stack(columns, axis=-1))


def rewards_of(arms):
    unit = arms / arms.amax(dim=0)
    return 5 * torch.cos(4 * unit).sum(dim=-1) + unit[:, 0] * unit[:, -1]


def played(arms, num_results=24, **options):
    bandit = GPBandit(arms, seed=1, **options)
    picks = torch.randperm(len(arms), generator=seeded(2))[:num_results]
    noise = torch.randn(num_results, generator=seeded(3)).double()
    bandit.add_observations(picks, rewards_of(arms)[picks] + noise)
    return bandit


def choices(bandit, arms, columns, n):
    """The batch of every value with the usual ask, and its benefit by dense NumPy."""
    values = arms[:, columns].unique(dim=0)
    twins = [deepcopy(bandit) for _ in values]
    batches = []
    for value, twin in zip(values, twins, strict=True):
        mask = (arms[:, columns] == value).all(dim=-1)
        batches.append(twin.ask(n, available=mask))
    mean, covariance = dense_posterior(twins[0], arms)
    pending = [*bandit.pending.values()]
    args = mean, covariance, twins[0].noise_variance, pending
    return batches, [dense_rise(*args, batch.numpy(), 5000) for batch in batches]


@pytest.mark.parametrize(
    ("num_values", "same", "options"),
    [
        ([2], [0], {}),
        ([5], 0, {"max_repeats": 1}),
        ([3, 4], [0, 1], {"goal": "regret"}),
        ([20], [0], {"policy": ThompsonPolicy()}),
    ],
)
def test_the_value_of_the_largest_benefit_is_chosen(num_values, same, options):
    arms = table(120, *num_values)
    bandit = played(arms, **options)
    bandit.ask(3)
    retired = bandit.best_arm(among_pulled=False)
    bandit.retire_arms([retired])
    columns = [*range(len(num_values))]
    batches, benefits = choices(bandit, arms, columns, 8)
    chosen = bandit.ask(8, same=same)
    found = [k for k, batch in enumerate(batches) if torch.equal(batch, chosen)]
    assert len(found) == 1
    assert retired not in chosen
    assert benefits[found[0]] >= 0.95 * max(benefits)
    assert min(benefits) < 0.95 * max(benefits)
    assert [*bandit.pending.values()][3:] == chosen.tolist()


def test_many_values_have_a_shortlist():
    arms = table(150, 30)
    bandit = played(arms)
    mean, variance = bandit.predict()  # and all copies have its fit
    order = (mean + 2 * variance.sqrt()).argsort(descending=True)
    listed = [*dict.fromkeys(arms[order, 0].tolist())][:20]
    batches, benefits = choices(bandit, arms, [0], 3)
    is_listed = [float(arms[batch[0], 0]) in listed for batch in batches]
    assert sum(is_listed) == 20
    chosen = bandit.ask(3, same=[0])
    most = max(np.array(benefits)[is_listed])
    found = [b for k, b in enumerate(benefits) if torch.equal(batches[k], chosen)]
    assert found[0] >= 0.95 * most


@pytest.mark.filterwarnings("ignore:The fit to 16 observations explains")
def test_many_elements_and_no_results():
    """The first batch, of one of 600 elements; and fewer if fewer are left."""
    x = torch.rand(600, generator=seeded()).double()
    arms = ProductArms({"x": x, "y": x[:8], "z": x[:2]})
    bandit = GPBandit(arms, max_repeats=1, seed=0)
    chosen = bandit.ask(50, same=["x"])
    assert len(chosen) == len(chosen.unique()) == 16
    assert len(arms.components(chosen)[:, 0].unique()) == 1
    bandit.tell(chosen, arms.components(chosen)[:, 1].double())
    chosen = bandit.ask(5, same=["x", "z"])
    assert len(chosen) == len(chosen.unique()) == 5
    assert len(arms.components(chosen)[:, [0, 2]].unique(dim=0)) == 1
    bandit = GPBandit(table(30, 10), max_repeats=1, seed=0)
    chosen = bandit.ask(30, same=[0])
    assert 1 <= len(chosen) < 10
    assert len(bandit.arms[chosen, 0].unique()) == 1


def test_a_value_has_new_products_while_some_value_has():
    """25 better values have none left, another one two, and then nobody has."""
    arms = ProductArms({"x": torch.arange(27.0), "y": torch.arange(12.0)})
    x, y = arms.components(torch.arange(324)).mT
    bandit = GPBandit(arms, seed=0)
    told = torch.arange(324)[(x != 1) | (y < 10)]
    bandit.add_observations(told, (5 * x + y)[told].double())
    chosen = bandit.ask(6, same=["x"])
    assert {22, 23} <= {*chosen.tolist()}  # and repeats fill the batch
    assert len(chosen.unique()) == 6
    assert (x[chosen] == 1).all()
    bandit.tell(chosen, (5 * x + y)[chosen].double())
    again = bandit.ask(6, same=["x"])
    assert len(again.unique()) == 6
    assert len(x[again].unique()) == 1


def test_a_value_of_a_table_is_compared_if_one_of_its_arms_may_come_next():
    """All arms of the best value are pending twice."""
    x, y = torch.cartesian_prod(torch.arange(5.0), torch.arange(4.0)).mT.double()
    bandit = GPBandit(torch.stack([x, y], dim=-1), seed=0)
    told = ((x == 4) | (y < 2)).nonzero().squeeze(-1)
    bandit.add_observations(told, (5 * torch.sin(1.5 * x) + y)[told])
    bandit.add_pending([4, 5, 6, 7] * 2)
    assert not {4, 5, 6, 7} & {*bandit.ask(4, same=[0]).tolist()}


def test_columns_of_bits_are_columns():
    bits = torch.rand(80, 16, generator=seeded()) < 0.5
    packed = torch.from_numpy(np.packbits(bits.numpy(), axis=-1))
    numbers = torch.randint(3, (80, 1), generator=seeded()).double()
    bandit = GPBandit(BitArms(packed, True, numbers), seed=0)
    for _ in range(2):
        chosen = bandit.ask(5, same=[2, 3, 16])
        rows = torch.cat([bits[chosen][:, [2, 3]].double(), numbers[chosen]], dim=-1)
        assert len(rows.unique(dim=0)) == 1
        bandit.tell(chosen, rows.sum(dim=-1) + bits[chosen].double().mean(dim=-1))


def test_junk_columns_are_refused_and_nothing_is_lost():
    bandit = played(table(60, 3, 3))
    twin, nothing = deepcopy(bandit), torch.zeros(60, dtype=torch.bool)
    for options, error, match in (
        ({"same": [4]}, InputDataError, "numbers from 0 to 3"),
        ({"same": [-1]}, InputDataError, "got -1"),
        ({"same": ["heat"]}, InputDataError, "got 'heat'"),
        ({"same": [0], "arms": bandit.arms[:1]}, UnsupportedError, "without `arms`"),
        ({"same": [0], "available": nothing}, InputDataError, "available arm"),
    ):
        with pytest.raises(error, match=match):
            bandit.ask(4, **options)
    assert not bandit.pending
    assert torch.equal(bandit.ask(4, same=[1]), twin.ask(4, same=[1]))
