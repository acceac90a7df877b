"""Random numbers of bandits over arms: functions of a seed and of counts."""

from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb import (
    AtLeast,
    BBKB,
    GPBandit,
    GPThompsonSampling,
    GPUCB,
    Maximize,
    Minimize,
    OutcomesBandit,
    RGPUCB,
    TVGPUCB,
)
from botorch_bkb.bandits import BoxBandit
from botorch_bkb.bandits.observations import Observations
from tests.bandits import (
    ALL_BANDITS,
    assert_same,
    LEARNED,
    make_bandit,
    noisy_rewards,
    play,
    random_arms,
    rbf,
)
from tests.bandits.contract import each


pytestmark = pytest.mark.usefixtures("short_fits")


@pytest.mark.parametrize(
    ("bandit_class", "options"),
    [*((kind, {}) for kind in ALL_BANDITS), (GPBandit, LEARNED)],
)
def test_a_generator_gives_the_seed_and_stays_in_its_state(bandit_class, options):
    """Nor does a bandit draw from the global generator."""
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    before, everywhere = generator.get_state(), torch.get_rng_state()
    runs = []
    for _ in range(2):
        bandit = make_bandit(bandit_class, generator=generator, **options)
        runs.append(play(bandit, 5))
        bandit.maximizer_distribution(4)
    assert runs[0] == runs[1]
    assert torch.equal(generator.get_state(), before)
    torch.rand(1, generator=generator)
    seed = make_bandit(bandit_class, generator=generator).state_dict()["seed"]
    assert seed != make_bandit(bandit_class, seed=3).state_dict()["seed"]
    play(make_bandit(bandit_class, generator=None), 2)
    assert torch.equal(torch.get_rng_state(), everywhere)


@pytest.mark.parametrize("purity", [Maximize(), AtLeast(0.3)])
def test_outcomes_do_not_depend_on_the_global_generator(purity):
    """Pruning the measured arms draws samples: they have the seed of the bandit."""
    arms = random_arms(60)
    told = torch.arange(0, 60, 3)
    cost = noisy_rewards(arms, noise_std=0.3)(told)
    pure = arms[told].prod(dim=1)
    asked = []
    for number in range(3):
        bandit = OutcomesBandit(arms, {"purity": purity, "cost": Minimize()}, seed=3)
        bandit.add_observations(told, {"purity": pure, "cost": cost})
        torch.manual_seed(number)
        before = torch.get_rng_state()
        asked.append(bandit.ask(6).tolist())
        assert torch.equal(torch.get_rng_state(), before)
    assert asked == [asked[0]] * 3


@each([GPBandit, GPUCB, BBKB, BoxBandit])
def test_an_integer_is_a_seed_as_well(bandit_class):
    arguments = torch.tensor([[0.0], [1.0]]).double(), rbf(), 0.1
    generator = torch.Generator().manual_seed(3)
    seeds = [
        bandit_class(*arguments, **options).state_dict()["seed"]
        for options in ({"seed": 3}, {"generator": generator}, {"seed": 4})
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    with pytest.raises(InputDataError, match="`generator` or `seed`, but got both"):
        bandit_class(*arguments, generator=generator, seed=3)
    with pytest.raises(InputDataError, match=r"`seed` to be an integer .* got 0.5"):
        bandit_class(*arguments, seed=0.5)


def test_a_bandit_prints_what_it_is():
    bandit = GPBandit(random_arms(30), seed=0)
    play(bandit, 2, size=3)
    bandit.ask(4)
    assert repr(bandit) == (
        "GPBandit(30 arms, 6 results, 4 pending, maximize=True, goal='best_arm', "
        "learns kernel and noise)"
    )
    box = BoxBandit(torch.tensor([[0.0], [1.0]]).double(), rbf(), maximize=False)
    box.ask(2)
    assert repr(box) == (
        "BoxBandit(2 points, 0 results, 2 pending, maximize=False, learns noise)"
    )
    assert repr(make_bandit(TVGPUCB)).endswith("maximize=True, learns nothing)")
    drifting = make_bandit(GPBandit, forgetting_rate="learn")
    assert repr(drifting).endswith("goal='regret', learns drift)")


@each(ALL_BANDITS)
def test_a_first_pull_that_fails_is_followed_by_one_of_another_arm(bandit_class):
    bandit = make_bandit(bandit_class)
    first = []
    for _ in range(8):
        indices = bandit.ask(1)
        bandit.fail(indices)
        first += indices.tolist()
    assert len(set(first)) > 4


@pytest.mark.parametrize(
    ("bandit_class", "options"),
    [
        *((kind, {}) for kind in (GPUCB, GPThompsonSampling, TVGPUCB, RGPUCB)),
        (GPBandit, LEARNED),
        (BBKB, {"resampling": "coupled"}),
    ],
)
@pytest.mark.parametrize("part", ["surrogate", "policy", "observations", 5])
def test_an_ask_that_fails_changes_no_later_pick(
    bandit_class, options, part, monkeypatch
):
    """Control-C in some method, or in a call of ``torch.linalg`` of that number."""
    quiet, other = (make_bandit(bandit_class, **options) for _ in range(2))
    places = {
        "surrogate": [(type(other._surrogate), "update")],
        "policy": [(type(other.policy), "choices")],
        "observations": [(Observations, "ask")],
    }
    names = ("solve_triangular", "vector_norm", "cholesky")
    calls = []

    def interrupted(function):
        def call(*args, **named):
            calls.append(function)
            result = function(*args, **named)  # draws
            if isinstance(part, str) or len(calls) == part:
                raise KeyboardInterrupt
            return result

        return call

    measure = noisy_rewards(quiet.arms)
    for _ in range(3):
        before, was_interrupted = deepcopy(other.state_dict()), False
        calls.clear()
        with monkeypatch.context() as patch:
            for owner, name in places.get(part, [(torch.linalg, x) for x in names]):
                patch.setattr(owner, name, interrupted(getattr(owner, name)))
            try:
                other.ask(2)
            except KeyboardInterrupt:
                was_interrupted = True
        if was_interrupted:
            assert_same(other.state_dict(), before)
        else:
            assert len(calls) < part
            quiet.ask(2)
        expected, indices = quiet.ask(2), other.ask(2)
        assert indices.tolist() == expected.tolist()
        rewards = measure(indices)
        quiet.tell(indices, rewards)
        other.tell(indices, rewards)
