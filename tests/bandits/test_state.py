"""The state of a bandit: a round trip continues the run."""

import io
from copy import copy, deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import MaternKernel

from botorch_bkb import BBKB, BoxBandit, GPBandit, GPBUCB, RGPUCB
from botorch_bkb.acquisition.confidence import NormDoubling, PracticalBBKBWidth
from botorch_bkb.acquisition.schedules import RandomDeviationWidth
from botorch_bkb.bandits import (
    BoxUCBPolicy,
    ThompsonPolicy,
)
from botorch_bkb.optim import FixedSize
from tests.bandits import (
    ALL_BANDITS,
    assert_same,
    LEARNED,
    make_bandit,
    noisy_rewards,
    play,
    random_arms,
    unchanged,
)
from tests.bandits.contract import each


pytestmark = pytest.mark.usefixtures("short_fits")
# The features that a bandit keeps were computed in other company than those that a new
# one computes, and GPyTorch's distances depend on it by a rounding error.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


def doubling():
    return NormDoubling(PracticalBBKBWidth(norm_bound=0.01, noise_std=0.1))


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def start(bandit, num_rounds=6):
    """Leave pulls told and not yet used, failed and pending."""
    play(bandit, num_rounds)
    noise = 0.2 if bandit.takes_noise else None
    bandit.add_observations([3, 3, 8], [0.1, 1 / 3, -0.7], noise_variance=noise)
    bandit.ask(3)
    bandit.add_pending([11, 12])
    bandit.fail([11])
    first = next(iter(bandit.pending.values()))
    bandit.tell([first], [0.9])


def compare_runs(bandit, other, num_asks=6):
    """Ask and tell both, some pulls late; every answer must be the same."""
    measures = [noisy_rewards(bandit.arms, seed=5) for _ in range(2)]
    for number in range(num_asks):
        batches = [bandit.ask(), other.ask()]
        assert torch.equal(*batches)
        for one, measure in zip((bandit, other), measures, strict=True):
            told = list(one.pending.items())[: 1 + number % 3]
            arms = torch.tensor([arm for _, arm in told])
            one.tell(arms, measure(arms), pull_ids=[key for key, _ in told])
        for got, expected in zip(other.predict(), bandit.predict(), strict=True):
            assert torch.allclose(got, expected, atol=TOLERANCE[got.dtype])
        assert bandit.best_arm() == other.best_arm()
        assert bandit.pending == other.pending
        assert bandit.noise_variance == other.noise_variance
        assert torch.equal(bandit.inducing_indices, other.inducing_indices)
        assert bandit.num_batches == other.num_batches
    states = [one.state_dict() for one in (bandit, other)]
    rtol = TOLERANCE[bandit.arms.dtype]
    scores = [state["observations"].pop("told_scores") for state in states]
    assert scores[1] == pytest.approx(scores[0], rel=rtol, abs=rtol)
    pending = (state["observations"].pop("pending").values() for state in states)
    for pulls in zip(*pending, strict=True):
        assert pulls[0] == pytest.approx(pulls[1], rel=rtol, abs=rtol)
    assert_same(*states)


def reload(bandit_class, bandit, options):
    """Return a new bandit, of another seed, that has read the state from a file."""
    other = make_bandit(bandit_class, seed=99, **options)
    state = through_a_file(bandit.state_dict())
    assert_same(state, bandit.state_dict())
    other.load_state_dict(state)
    assert_same(other.state_dict(), bandit.state_dict())
    return other


RUNS = {
    **{bandit_class.__name__: (bandit_class, dict) for bandit_class in ALL_BANDITS},
    "minimize": (BBKB, lambda: {"maximize": False}),
    "limited": (BBKB, lambda: {"max_repeats": 2}),
    "plates": (BBKB, lambda: {"batch_rule": FixedSize(4)}),
    "doubling": (BBKB, lambda: {"confidence": doubling()}),
    "little memory": (BBKB, lambda: {"max_feature_bytes": 0}),
    "coupled": (BBKB, lambda: {"resampling": "coupled", "oversampling": 0.3}),
    "single precision": (BBKB, lambda: {"arms": random_arms(30, torch.float32)}),
    "learned": (GPBandit, lambda: LEARNED),
    "Thompson": (GPBandit, lambda: {**LEARNED, "policy": ThompsonPolicy()}),
    "drift": (GPBandit, lambda: {**LEARNED, "forgetting_rate": "learn"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_round_trip_continues_the_run(name):
    bandit_class, make_options = RUNS[name]
    options = make_options()
    bandit = make_bandit(bandit_class, **options)
    is_learned = "noise_variance" in options
    start(bandit, num_rounds=3 if is_learned else 6)
    other = reload(bandit_class, bandit, make_options())
    compare_runs(bandit, other, num_asks=2 if is_learned else 6)


def matern(nu=2.5, lengthscale=0.3):
    kernel = MaternKernel(nu=nu)
    kernel.lengthscale = lengthscale
    return kernel


def given(kernel, noise_variance=0.1, **options):
    return GPBandit(random_arms(30), kernel, noise_variance, **options)


STRANGERS = {
    "other arms": (
        lambda: [make_bandit(BBKB, random_arms(number)) for number in (30, 29)],
        "over these 30 arms.*that of 29",
    ),
    "another class": (
        lambda: (make_bandit(BBKB), make_bandit(GPBUCB)),
        "bandit=BBKB, but it has bandit=GPBUCB",
    ),
    "minimizing": (
        lambda: (given(matern()), given(matern(), maximize=False)),
        "maximize=True.*maximize=False",
    ),
    "other blocks": (
        lambda: [make_bandit(RGPUCB, block_size=size) for size in (5, 7)],
        r"block_size=5\.0, but it has block_size=7",
    ),
    "another noise": (lambda: (given(matern()), given(matern(), 0.7)), "kernel and no"),
    "a longer lengthscale": (
        lambda: (given(matern()), given(matern(lengthscale=0.31))),
        "kernel and noise",
    ),
    "another smoothness": (
        lambda: (given(matern()), given(matern(1.5))),
        "kernel and noise",
    ),
    "learned": (
        lambda: (given(matern()), given(lambda features: matern())),
        "kernel and noise",
    ),
    "a sum of the same parts": (
        lambda: (given(matern() * matern()), given(matern() + matern())),
        "kernel and noise",
    ),
}


def test_the_size_of_a_block_may_be_any_number(tmp_path):
    make_bandit(RGPUCB, block_size=np.int64(5)).save(tmp_path / "state")
    make_bandit(RGPUCB, block_size=5.0).load(tmp_path / "state")


@pytest.mark.parametrize(("make", "message"), STRANGERS.values(), ids=STRANGERS)
def test_the_state_of_another_bandit_is_refused(make, message):
    bandit, other = make()
    bandit.add_observations([3], [0.1])
    with unchanged(bandit), pytest.raises(InputDataError, match=message):
        bandit.load_state_dict(other.state_dict())


@each(ALL_BANDITS)
def test_a_state_does_not_change_with_its_bandit(bandit_class):
    """Nor does the bandit with a state that it has read."""
    bandit = make_bandit(bandit_class, random_arms(30), confidence=doubling())
    start(bandit)
    state = bandit.state_dict()
    kept = deepcopy(state)
    play(bandit, 4)
    assert_same(state, kept)
    bandit.load_state_dict(state)
    play(bandit, 4)
    assert_same(state, kept)


@pytest.mark.parametrize("bandit_class", [GPBandit, BoxBandit])
def test_a_state_that_a_copy_loads_changes_no_other_bandit(bandit_class):
    """Nor one with the same schedule; random widths have their seed in the state."""
    widths = [RandomDeviationWidth(seed=seed) for seed in (1, 7)]
    space, options = random_arms(20), [{"confidence": width} for width in widths]
    if bandit_class is BoxBandit:
        space = torch.tensor([[0.0], [1.0]]).double()
        options = [{"policy": BoxUCBPolicy(width)} for width in widths]
    first, other, source = (
        bandit_class(space, seed=1, **options[number]) for number in (0, 0, 1)
    )
    copied = copy(first)
    copied.load_state_dict(source.state_dict())
    assert copied.state_dict()["confidence"] == widths[1].state_dict()
    for one in (first, other):
        assert one.state_dict()["confidence"] == widths[0].state_dict()
    assert widths[0].state_dict() != widths[1].state_dict()


@pytest.mark.parametrize("rates", [(0.1, 0.6), ("learn", 0.1), (0.1, "learn")])
def test_a_state_of_another_forgetting_rate_is_refused(rates):
    bandit, other = (
        make_bandit(GPBandit, **LEARNED, forgetting_rate=rate) for rate in rates
    )
    with pytest.raises(InputDataError, match=r"`forgetting_rate` .*, but got "):
        other.load_state_dict(bandit.state_dict())
