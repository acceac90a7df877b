"""`GPBandit.ask(n, same=...)` against an exhaustive search with a dense benefit."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_bkb import GPBandit
from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.bandits import ThompsonPolicy
from tests.bandits.test_predictions import dense_posterior, seeded
from tests.bandits.test_progress import dense_rise


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
    bandit = GPBandit(arms, generator=seeded(1), **options)
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
    return batches, [dense_rise(*args, batch.numpy(), 50_000) for batch in batches]


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
    mean, variance = deepcopy(bandit).predict()
    order = (mean + 2 * variance.sqrt()).argsort(descending=True)
    listed = [*dict.fromkeys(arms[order, 0].tolist())][:20]
    batches, benefits = choices(bandit, arms, [0], 3)
    is_listed = [float(arms[batch[0], 0]) in listed for batch in batches]
    assert sum(is_listed) == 20
    chosen = bandit.ask(3, same=[0])
    most = max(np.array(benefits)[is_listed])
    found = [b for k, b in enumerate(benefits) if torch.equal(batches[k], chosen)]
    assert found[0] >= 0.95 * most


@pytest.mark.parametrize("same", [["heat"], ["word", 0], [1]])
def test_products_share_elements(same):
    """The batch is that of a space where the other elements are forbidden."""
    lists = {
        "heat": torch.linspace(0, 1, 7).double(),
        "word": ["a", "b", "c"],
        "z": torch.linspace(-1, 1, 30).double(),
    }
    arms = ProductArms(lists, forbidden=[{"heat": 6}])
    columns = [
        arms.names.index(each) if isinstance(each, str) else each for each in same
    ]
    told = torch.randperm(len(arms), generator=seeded())[:30]
    positions = arms.components(told).double()
    rewards = (positions / 5).sin().sum(dim=-1)

    def bandit_of(arms):
        bandit = GPBandit(arms, max_repeats=2, generator=seeded())
        bandit.add_observations(told, rewards)
        bandit.add_pending(told[:2])
        return bandit

    bandit = bandit_of(arms)
    chosen = bandit.ask(6, same=same)
    shared = arms.components(chosen)[:, columns]
    assert (shared == shared[0]).all()
    everything = torch.arange(len(arms))
    scale = bandit._surrogate.fit.units.std**2
    posterior = bandit._surrogate.posterior(bandit._observations)
    covariance = scale * posterior.covariance(everything, everything, False).numpy()
    mean, noise = bandit.predict()[0].numpy(), bandit.noise_variance
    mean = np.where(arms.is_allowed(everything), mean, -1e9)
    values = arms.components(everything)[:, columns].unique(dim=0)
    batches, benefits = [], []
    for value in values.tolist():
        if (0, 6) in zip(columns, value, strict=True):
            continue
        others = [
            {arms.names[column]: position}
            for column, own in zip(columns, value, strict=True)
            for position in range(arms.sizes[column])
            if position != own
        ]
        other = bandit_of(ProductArms(lists, forbidden=[{"heat": 6}, *others]))
        batches.append(other.ask(6))
        args = mean, covariance, noise, told[:2].numpy(), batches[-1].numpy()
        benefits.append(dense_rise(*args, 20_000))
    found = [b for k, b in enumerate(benefits) if torch.equal(batches[k], chosen)]
    assert found[0] >= 0.95 * max(benefits)


def test_many_elements_and_no_results():
    """The first batch, of one of 3,000 elements; and fewer if fewer are left."""
    x = torch.rand(3000, generator=seeded()).double()
    arms = ProductArms({"x": x, "y": x[:15], "z": x[:2]})
    bandit = GPBandit(arms, max_repeats=1, generator=seeded())
    chosen = bandit.ask(50, same=["x"])
    assert len(chosen) == len(chosen.unique()) == 30
    assert len(arms.components(chosen)[:, 0].unique()) == 1
    bandit.tell(chosen, arms.components(chosen)[:, 1].double())
    chosen = bandit.ask(9, same=["x", "z"])
    assert len(chosen) == len(chosen.unique()) == 9
    assert len(arms.components(chosen)[:, [0, 2]].unique(dim=0)) == 1
    bandit = GPBandit(table(30, 10), max_repeats=1, generator=seeded())
    chosen = bandit.ask(30, same=[0])
    assert 1 <= len(chosen) < 10
    assert len(bandit.arms[chosen, 0].unique()) == 1


def test_columns_of_bits_are_columns():
    bits = torch.rand(80, 16, generator=seeded()) < 0.5
    packed = torch.from_numpy(np.packbits(bits.numpy(), axis=-1))
    numbers = torch.randint(3, (80, 1), generator=seeded()).double()
    bandit = GPBandit(BitArms(packed, True, numbers), generator=seeded())
    for _ in range(2):
        chosen = bandit.ask(5, same=[2, 3, 16])
        rows = torch.cat([bits[chosen][:, [2, 3]].double(), numbers[chosen]], dim=-1)
        assert len(rows.unique(dim=0)) == 1
        bandit.tell(chosen, rows.sum(dim=-1) + bits[chosen].double().mean(dim=-1))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"same": [4]}, InputDataError, "numbers from 0 to 3"),
        ({"same": [-1]}, InputDataError, "got -1"),
        ({"same": ["heat"]}, InputDataError, "got 'heat'"),
        ({"same": [0], "arms": torch.zeros(1, 4)}, UnsupportedError, "without `arms`"),
        (
            {"same": [0], "available": torch.zeros(60, dtype=torch.bool)},
            InputDataError,
            "available arm",
        ),
    ],
)
def test_junk_is_refused_and_nothing_is_lost(options, error, match):
    bandit = played(table(60, 3, 3))
    twin = deepcopy(bandit)
    with pytest.raises(error, match=match):
        bandit.ask(4, **options)
    assert not bandit.pending
    assert torch.equal(bandit.ask(4, same=[1]), twin.ask(4, same=[1]))


def test_a_drifting_objective_has_no_plates():
    bandit = GPBandit(table(20, 2), forgetting_rate=0.1, generator=seeded())
    with pytest.raises(UnsupportedError, match="does not drift"):
        bandit.ask(2, same=[0])
