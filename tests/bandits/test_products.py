"""A bandit over a product space chooses as one over the table of all products."""

import warnings

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import MaternKernel, ProductKernel, ScaleKernel

from botorch_bkb import BBKB, GPBandit, GPBUCB, GPThompsonSampling
from botorch_bkb.arms import ProductArms
from botorch_bkb.arms.product import as_numbers
from botorch_bkb.arms.table import checksum
from botorch_bkb.bandits import ThompsonPolicy, UCBPolicy
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.posteriors import product_posterior
from tests.helpers import seeded


pytestmark = pytest.mark.usefixtures("short_fits")
GENERATOR = seeded(1)
NUMBERS = torch.rand(8, 2, generator=GENERATOR).double()
BITS = torch.rand(9, 16, generator=GENERATOR) < 0.4
TEMPERATURES = [20.0, 40.0, 60.0, 80.0]
FORBIDDEN = [{"bits": 2, "temperature": 3}, {"x": 5}]
NOISE = 0.05


def space(**options):
    lists = {"x": NUMBERS, "bits": BITS, "temperature": TEMPERATURES}
    return ProductArms(lists, **options)


def kernel():
    """Return a sum whose second part is of one component only."""
    rest = MaternKernel(nu=2.5, active_dims=(18,))
    rest.lengthscale = 30.0
    x = MaternKernel(nu=2.5, active_dims=(0, 1))
    bits = TanimotoKernel(active_dims=range(2, 18))
    effect = ScaleKernel(MaternKernel(nu=2.5, active_dims=(0, 1)))
    effect.outputscale = 0.3
    return (ScaleKernel(ProductKernel(x, bits, rest)) + effect).double()


def table(arms):
    """Return the features of all products, side by side."""
    at = arms.components(torch.arange(len(arms)))
    columns = [
        NUMBERS,
        BITS.double(),
        torch.tensor(TEMPERATURES).double().unsqueeze(-1),
    ]
    return torch.cat([rows[i] for rows, i in zip(columns, at.mT, strict=True)], dim=-1)


def reward(arms, indices):
    x = table(arms)[indices]
    return torch.sin(4 * x[:, 0]) + x[:, 2:8].sum(dim=-1) / 4 + x[:, -1] / 80


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for name, value in {
        "BLOCK_SIZE": 32,
        "LAST_SIZE": 3,
        "NUM_SCATTERED": 16,
        "MIN_KEPT": 8,
    }.items():
        monkeypatch.setattr(product_posterior, name, value)


OPTIONS = {
    "UCB": lambda arms, **options: GPBandit(
        arms, kernel(), NOISE, policy=UCBPolicy(), max_repeats=1, **options
    ),
    "Thompson": lambda arms, **options: GPBandit(
        arms, kernel(), NOISE, policy=ThompsonPolicy(), max_repeats=1, **options
    ),
    "regret": lambda arms, **options: GPBandit(
        arms, kernel(), NOISE, goal="regret", **options
    ),
    "BBKB": lambda arms, **options: BBKB(arms, kernel(), NOISE, **options),
    "GPBUCB": lambda arms, **options: GPBUCB(arms, kernel(), NOISE, **options),
    "GPThompsonSampling": lambda arms, **options: GPThompsonSampling(
        arms,
        kernel(),
        NOISE,
        covariance=None if isinstance(arms, ProductArms) else "full",
        **options,
    ),
}


@pytest.mark.parametrize(("seed", "name"), list(enumerate(OPTIONS)))
def test_picks_are_those_of_the_table(seed, name):
    """Late results, forbidden and retired products, pending pulls and repeats."""
    arms = space(forbidden=FORBIDDEN)
    start = torch.arange(seed, len(arms), 41)
    start = start[arms.is_allowed(start)]
    bandits = [OPTIONS[name](each, seed=seed) for each in (arms, table(arms))]
    bandits[1].retire_arms((~arms.is_allowed(torch.arange(len(arms)))).nonzero()[:, 0])
    for bandit in bandits:
        bandit.add_observations(start, reward(arms, start))
    late = torch.tensor([], dtype=torch.long)
    for number in range(3):
        picks = [bandit.ask(6) for bandit in bandits]
        assert torch.equal(*picks)
        assert arms.is_allowed(picks[0]).all()
        told, waiting = picks[0][::2], picks[0][1::2]
        for bandit in bandits:
            bandit.tell(told, reward(arms, told))
            bandit.tell(late, reward(arms, late))
            if number == 1:
                bandit.retire_arms([start[0].item(), 100])
        late = waiting
        torch.testing.assert_close(
            bandits[0].predict([3, 200]), bandits[1].predict([3, 200])
        )
        for among in (True, False):
            assert bandits[0].best_arm(among) == bandits[1].best_arm(among)
    if name in ("UCB", "Thompson", "regret"):
        for same, columns in ((["temperature"], [18]), ([0, 2], [0, 1, 18])):
            plates = bandits[0].ask(4, same=same), bandits[1].ask(4, same=columns)
            assert torch.equal(*plates)


def test_a_batch_has_all_new_products_before_repeats():
    lists = {"a": range(12), "b": range(12), "c": range(20)}
    lists = {name: [str(each) for each in words] for name, words in lists.items()}

    def forbidden(positions):
        return (positions[:, 0] != 7) | (positions[:, 1] != 9)

    bandit = GPBandit(ProductArms(lists, forbidden))
    first = bandit.ask(5)
    bandit.tell(first, torch.rand(5))
    indices = bandit.ask(30)  # 20 are allowed, and 15 of them are new
    allowed = torch.arange(7 * 240 + 9 * 20, 7 * 240 + 10 * 20)
    assert torch.equal(indices.sort().values, allowed)
    assert torch.isin(indices[15:], first).all()
    assert len(bandit.ask(2).unique()) == 2  # repeats, since nothing new is left


def learned(seed=0):
    return GPBandit(space(), seed=seed)


def test_a_bandit_learns_and_continues_after_a_load(tmp_path):
    bandit, arms = learned(), space()
    for _ in range(3):
        indices = bandit.ask(8)
        assert len(indices.unique()) == 8
        bandit.tell(indices, reward(arms, indices))
    bandit.save(tmp_path / "state")
    other = learned(seed=1)
    other.load(tmp_path / "state")
    assert torch.equal(bandit.ask(8), other.ask(8))
    everything = torch.arange(len(arms))
    found = bandit.predict(everything)[0]
    truth = reward(arms, everything)
    assert torch.corrcoef(torch.stack([found, truth]))[0, 1] > 0.9
    assert 0 < bandit.evaluated_share <= 1
    distribution = bandit.maximizer_distribution(64, seeded())
    assert truth[distribution.mode] > truth.quantile(0.9)


def test_counts_are_fingerprints_from_the_first_ask_on():
    counts = torch.randint(3, (6, 12), generator=seeded())
    bandit = GPBandit(ProductArms({"a": counts, "b": counts}))
    assert len(bandit.ask(4).unique()) == 4


@pytest.mark.parametrize(
    "lists",
    [
        {"base": ["K", "Na"], "x": [1e-9, 2e-9]},
        {"base": ["Na", "K"], "x": [2e-9, 1e-9]},
        {"acid": ["Na", "K"], "x": [1e-9, 2e-9]},
        {"x": [1e-9, 2e-9], "base": ["Na", "K"]},
    ],
    ids=["categories", "numbers", "names", "components"],
)
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_the_state_of_a_space_in_another_order_is_refused(lists, dtype, tmp_path):
    saved = GPBandit(ProductArms({"base": ["Na", "K"], "x": [1e-9, 2e-9]}))
    saved.add_observations([1], [0.3])
    saved.save(tmp_path / "state")
    with pytest.raises(InputDataError, match="over this product space"):
        GPBandit(ProductArms(lists, dtype=dtype)).load(tmp_path / "state")
    same = ProductArms({"base": ["Na", "K"], "x": [1e-9, 2e-9]}, dtype=dtype)
    other = GPBandit(same)
    other.load(tmp_path / "state")
    assert other.observed_arms.tolist() == [1]


@pytest.mark.parametrize("bit", [0, 7, 63, 64, 79])
def test_the_state_of_a_space_of_other_fingerprints_is_refused(bit):
    """Also where they differ in one bit; a state of version 1.0 has sums of words."""
    bits = (torch.arange(240).reshape(3, 80) * 7 % 5 < 2).to(torch.uint8)
    changed = bits.clone()
    changed[1, bit] = 1 - changed[1, bit]
    state = GPBandit(ProductArms({"a": bits, "b": bits})).state_dict()
    for dtype in (torch.double, torch.float):
        GPBandit(ProductArms({"a": bits, "b": bits}, dtype=dtype)).load_state_dict(
            state
        )
        other = GPBandit(ProductArms({"a": bits, "b": changed}, dtype=dtype))
        with pytest.raises(InputDataError, match="over this product space"):
            other.load_state_dict(state)
    rows = ProductArms({"a": bits, "b": bits}).tables
    sums = [checksum(as_numbers(table))[:2] for table in rows]
    state["table"] = {**state["table"], "checksums": sums}
    GPBandit(ProductArms({"a": bits, "b": bits})).load_state_dict(state)


def test_positions_in_a_frame_are_matched_by_name():
    arms = space()
    bandit = GPBandit(arms)
    positions = {"x": [5, 1], "bits": [2, 0], "temperature": [3, 2]}
    expected = arms.numbers(torch.tensor(list(positions.values())).mT)
    frame = pd.DataFrame(positions)[["temperature", "x", "bits"]]
    assert GPBandit(arms).add_arms(torch.ones(1, 3) > 0) == arms.numbers(
        torch.ones(1, 3)
    )
    assert torch.equal(bandit.add_arms(frame), expected)
    for junk in (frame[["x", "bits"]], frame.assign(x="A"), None, [1], "x"):
        with pytest.raises(
            (InputDataError, BotorchTensorDimensionError), match="Expected"
        ):
            bandit.add_arms(junk)


def test_a_space_of_which_nothing_is_left():
    bandit = GPBandit(space())
    bandit.tell(bandit.ask(5), range(5))
    best = bandit.best_arm()
    bandit.retire_arms(range(len(bandit.arms)))
    assert bandit.best_arm() == best
    nothing = ProductArms({"a": ["x", "y"]}, [{"a": 0}, {"a": 1}])
    for each in (bandit, GPBandit(nothing)):
        with pytest.raises(InputDataError, match="forbidden, retired"):
            each.ask(1)


def test_uniform_first_picks_are_allowed_and_scattered():
    lists = {name: torch.arange(1000.0) for name in "abc"}
    arms = ProductArms(lists, forbidden=lambda at: at[:, 0] != 7)
    seen = {int(GPBandit(arms, seed=seed).ask()) for seed in range(20)}
    assert len(seen) == 20
    assert all(arms.components([index])[0, 0] == 7 for index in seen)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b: b.predict(), UnsupportedError, "Name the products"),
        (lambda b: b.is_retired, UnsupportedError, "Name the products"),
        (lambda b: b.arms.dense(), UnsupportedError, "by product number"),
        (lambda b: b.ask(available=torch.ones(3)), UnsupportedError, "forbidden"),
        (lambda b: b.add_arms([[0, 0, 1000]]), InputDataError, "lists of components"),
        (lambda b: b.tell([10**9], [0.0]), InputDataError, "10"),
    ],
)
def test_what_needs_all_products_is_refused(call, error, message):
    bandit = GPBandit(ProductArms({name: torch.arange(1000.0) for name in "abc"}))
    with pytest.raises(error, match=message):
        call(bandit)


@pytest.mark.parametrize(
    "make",
    [
        lambda arms: GPBandit(arms, policy=ThompsonPolicy(covariance="projected")),
        lambda arms: GPThompsonSampling(arms, kernel(), NOISE, covariance="projected"),
    ],
)
def test_projected_draws_over_a_space_are_refused_at_once(make):
    with pytest.raises(UnsupportedError, match="`covariance` to be 'full' over a prod"):
        make(space())
    assert len(GPBandit(space(), policy=ThompsonPolicy(covariance="full")).ask(3)) == 3


def test_a_diagonal_of_two_lists_of_products_pairs_them():
    arms = space()
    x, z = arms[torch.arange(0, 60)], arms[torch.arange(100, 160)]
    for covar_module in (arms.kernel_of(kernel()), arms.kernel_to_learn()):
        expected = covar_module(x, z).to_dense().diagonal()
        assert not torch.allclose(expected, covar_module(x, diag=True))
        torch.testing.assert_close(covar_module(x, z, diag=True), expected)
        found = covar_module(x.reshape(3, 20, 3), z.reshape(3, 20, 3), diag=True)
        torch.testing.assert_close(found, expected.reshape(3, 20))


def test_an_interrupted_search_changes_nothing(monkeypatch):
    bandit, arms = learned(), space()
    start = torch.arange(0, len(arms), 9)
    bandit.add_observations(start, reward(arms, start))
    untouched = learned()
    untouched.add_observations(start, reward(arms, start))

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(product_posterior, "tqdm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bandit.ask(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(bandit.ask(4), untouched.ask(4))
