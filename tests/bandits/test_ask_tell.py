"""The contract of ask and tell, for every bandit."""

import math
import warnings

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.exceptions.warnings import NumericsWarning
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPBUCB, GPUCB, UniformRandom
from botorch_bkb.acquisition.confidence import PracticalBBKBWidth
from botorch_bkb.acquisition.norm_doubling import NormDoubling
from botorch_bkb.bandits import base, inducing
from botorch_bkb.models.utils.leverage_scores import (
    inclusion_probabilities,
    sample_inducing_indices,
)
from botorch_bkb.optim import FixedSize, SumRule
from tests.reference import Arms


SPARSE = [BKB, BBKB, EpsilonGreedy, UniformRandom]
UCB = [BKB, BBKB, GPUCB, GPBUCB]
ALL = [*SPARSE, GPUCB, GPBUCB]
NUM_ARMS = 40
NOISE = 0.1


def rbf(lengthscale=0.3):
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def make_arms(num_arms=NUM_ARMS, dtype=torch.double):
    generator = torch.Generator().manual_seed(11)
    return torch.rand(num_arms, 2, generator=generator, dtype=torch.double).to(dtype)


def truth(arms):
    return torch.sin(5 * arms[:, 0]) + arms[:, 1]


def make(bandit_class, seed=0, **options):
    arms = options.pop("arms", make_arms())
    options.setdefault("covar_module", rbf())
    options.setdefault("noise_variance", NOISE)
    generator = torch.Generator().manual_seed(seed)
    return bandit_class(arms, generator=generator, **options)


def noise_free(bandit, indices):
    sign = 1.0 if bandit.maximize else -1.0
    return sign * truth(bandit.arms)[indices]


def play(bandit, num_pulls):
    picks = []
    while bandit.num_pulls < num_pulls:
        indices = bandit.ask()
        bandit.tell(indices, noise_free(bandit, indices))
        picks.append(indices.tolist())
    return picks


def unchanged(before, bandit):
    after = bandit.state_dict()
    assert torch.equal(before.pop("generator"), after.pop("generator"))
    assert str(before) == str(after)


@pytest.mark.parametrize("bandit_class", ALL)
def test_the_first_arm_is_uniform_by_the_generator(bandit_class):
    firsts = [int(make(bandit_class, seed).ask()[0]) for seed in range(60)]
    expected = [
        int(torch.randint(NUM_ARMS, (1,), generator=torch.Generator().manual_seed(s)))
        for s in range(60)
    ]
    assert firsts == expected
    assert len(set(firsts)) > 20


@pytest.mark.parametrize("bandit_class", UCB)
def test_afterwards_ties_go_to_the_lowest_index(bandit_class):
    arms = 100.0 * torch.arange(NUM_ARMS).double().unsqueeze(-1)
    bandit = make(bandit_class, arms=arms)
    first = bandit.ask()
    bandit.tell(first, [-50.0])
    assert bandit.ask()[0] == (1 if first[0] == 0 else 0)


@pytest.mark.parametrize("bandit_class", ALL)
def test_tell_settles_any_part_in_any_order(bandit_class):
    bandit = make(bandit_class, batch_rule=FixedSize(6))
    indices = bandit.ask().tolist()
    assert list(bandit.pending.values()) == indices
    bandit.tell(indices[:3][::-1], [3.0, 2.0, 1.0])
    assert bandit.num_pulls == 3
    assert sorted(bandit.pending.values()) == sorted(indices[3:])
    assert bandit.counts.sum() == 3
    bandit.fail(indices[3:5])
    assert list(bandit.pending.values()) == indices[5:]
    bandit.tell([], [])
    assert bandit.num_pulls == 3


def test_the_oldest_pull_of_an_arm_is_settled_first():
    bandit = make(BBKB)
    bandit.add_pending([4, 7, 4, 4])
    assert bandit.pending == {0: 4, 1: 7, 2: 4, 3: 4}
    bandit.tell([4], [1.0])
    assert bandit.pending == {1: 7, 2: 4, 3: 4}
    bandit.tell([4], [1.0], pull_ids=[3])
    assert bandit.pending == {1: 7, 2: 4}
    bandit.fail([4], pull_ids=[2])
    assert bandit.pending == {1: 7}


@pytest.mark.parametrize(
    ("indices", "rewards", "options", "message"),
    [
        ([5], [1.0], {}, "pending pull of arm 5"),
        ([0, 0], [1.0, 1.0], {}, "pending pull of arm 0"),
        ([0], [math.nan], {}, "finite `rewards`"),
        ([0], [math.inf], {}, "finite `rewards`"),
        ([0], [1e200], {}, "can square"),
        ([0], ["a"], {}, "real numbers"),
        ([0], [1j], {}, "real numbers"),
        ([NUM_ARMS], [1.0], {"external": True}, "between 0 and 39"),
        ([-1], [1.0], {"external": True}, "between 0 and 39"),
        ([0.0], [1.0], {}, "integers"),
        ([0], [1.0], {"pull_ids": [9]}, "no pull that was asked for"),
        ([0], [1.0], {"pull_ids": [1]}, "it is a pull of arm 3"),
        ([0], [1.0], {"pull_ids": [0, 0]}, "different ids"),
    ],
)
def test_bad_rewards_and_arms_change_nothing(indices, rewards, options, message):
    bandit = make(BBKB)
    bandit.add_pending([0, 3])
    before = bandit.state_dict()
    with pytest.raises(InputDataError, match=message):
        bandit.tell(indices, rewards, **options)
    unchanged(before, bandit)


@pytest.mark.parametrize("rewards", [[1.0], [[1.0, 2.0], [1.0, 2.0]], [1.0] * 3])
def test_rewards_of_the_wrong_shape_change_nothing(rewards):
    bandit = make(BBKB)
    bandit.add_pending([0, 3])
    before = bandit.state_dict()
    with pytest.raises(BotorchTensorDimensionError, match="one number per index"):
        bandit.tell([0, 3], rewards)
    unchanged(before, bandit)


def test_external_rewards_need_the_word_and_settle_pending_pulls_first():
    bandit = make(GPUCB)
    bandit.add_pending([2])
    bandit.tell([2, 2, 5], [[1.0], [1.2], [0.0]], external=True)
    assert bandit.pending == {}
    assert bandit.counts[[2, 5]].tolist() == [2, 1]


@pytest.mark.parametrize("bandit_class", ALL)
@pytest.mark.parametrize("maximize", [True, False])
def test_predictions_are_the_dense_posterior_of_all_told_pulls(bandit_class, maximize):
    """Also of those since the last ask; no pending pull counts; nothing is drawn."""
    bandit = make(bandit_class, maximize=maximize)
    play(bandit, 15)
    bandit.ask()
    bandit.tell([1, 1, 2], [0.3, 0.4, 0.5], external=True)
    before = bandit.state_dict()
    mean, variance = bandit.predict()
    best, bound = bandit.best_arm(), bandit.confidence_bound()
    unchanged(before, bandit)
    with torch.no_grad():
        gram = rbf()(bandit.arms, bandit.arms).to_dense().numpy()
    counts = bandit.counts.numpy().astype(float)
    sums = np.zeros(NUM_ARMS)
    np.add.at(sums, *(column.numpy() for column in bandit._ledger.history()))
    S = bandit.inducing_indices.tolist()
    if bandit_class in (GPUCB, GPBUCB):
        S = counts.nonzero()[0].tolist()
    expected_mean, expected_variance, _ = Arms(gram, NOISE).posterior(S, counts, sums)
    torch.testing.assert_close(mean, torch.as_tensor(expected_mean), atol=1e-8, rtol=0)
    torch.testing.assert_close(
        variance, torch.tensor(expected_variance), atol=1e-8, rtol=0
    )
    pulled = bandit.counts > 0
    sign = 1.0 if maximize else -1.0
    assert best == int((sign * mean).masked_fill(~pulled, -torch.inf).argmax())
    assert bandit.best_arm(among_pulled=False) == int((sign * mean).argmax())
    assert (sign * (bound - mean) >= 0).all()
    torch.testing.assert_close(bandit.predict([3, 3])[0], mean[[3, 3]])


@pytest.mark.parametrize("bandit_class", ALL)
def test_looking_does_not_change_what_comes_next(bandit_class):
    plain, watched = make(bandit_class), make(bandit_class)
    for _ in range(12):
        first, second = plain.ask(), watched.ask()
        assert torch.equal(first, second)
        plain.tell(first, noise_free(plain, first))
        watched.predict()
        watched.tell(second, noise_free(watched, second))
        watched.predict()
        watched.best_arm()
        watched.confidence_bound()


@pytest.mark.parametrize("bandit_class", ALL)
def test_minimizing_is_maximizing_the_negative(bandit_class):
    up, down = make(bandit_class), make(bandit_class, maximize=False)
    assert play(up, 25) == play(down, 25)
    torch.testing.assert_close(up.predict()[0], -down.predict()[0])
    torch.testing.assert_close(up.confidence_bound(), -down.confidence_bound())


@pytest.mark.parametrize("bandit_class", SPARSE)
def test_inducing_arms_are_drawn_once_and_only_with_new_rewards(bandit_class):
    bandit = make(bandit_class)
    play(bandit, 15)
    bandit.ask()
    inducing_indices = bandit.inducing_indices.clone()
    assert (bandit.counts[inducing_indices] > 0).all()
    bandit.ask()
    assert torch.equal(bandit.inducing_indices, inducing_indices)


@pytest.mark.parametrize("bandit_class", [GPUCB, GPBUCB])
def test_every_pulled_arm_is_inducing_on_the_exact_gp(bandit_class):
    bandit = make(bandit_class)
    play(bandit, 15)
    bandit.ask()
    pulled = bandit.counts.nonzero().squeeze(-1)
    assert torch.equal(bandit.inducing_indices.sort().values, pulled)


@pytest.mark.parametrize("bandit_class", UCB)
def test_pending_pulls_send_the_next_ask_elsewhere(bandit_class):
    """Without a reward in between, never the same isolated arm twice."""
    arms = 100.0 * torch.arange(NUM_ARMS).double().unsqueeze(-1)
    bandit = make(bandit_class, arms=arms)
    picks = [int(bandit.ask(max_size=1)[0]) for _ in range(10)]
    assert len(set(picks)) == 10
    assert list(bandit.pending.values()) == picks


def test_the_sum_rule_starts_from_what_is_pending():
    lengths = []
    for num_pending in (0, 3):
        bandit = make(BBKB, batch_rule=SumRule(4.0))
        bandit.tell(
            list(range(20)) * 3, truth(bandit.arms)[:20].repeat(3), external=True
        )
        bandit.ask(max_size=1)
        bandit.fail(list(bandit.pending.values()))
        bandit.add_pending([30, 35, 39][:num_pending])
        lengths.append(len(bandit.ask()))
    assert lengths[1] < lengths[0]
    assert lengths[1] >= 1


@pytest.mark.parametrize("bandit_class", ALL)
def test_caps_masks_and_repeats_are_kept(bandit_class):
    bandit = make(bandit_class, batch_rule=FixedSize(5), max_repeats=2)
    available = torch.zeros(NUM_ARMS, dtype=torch.bool)
    available[10:20] = True
    assert len(bandit.ask(max_size=3, available=available)) == 3
    for _ in range(3):
        indices = bandit.ask(available=available)
        assert ((indices >= 10) & (indices < 20)).all()
        bandit.tell(indices[:2], noise_free(bandit, indices[:2]))
    used = bandit.counts + torch.bincount(
        torch.tensor(list(bandit.pending.values())), minlength=NUM_ARMS
    )
    assert used.max() <= 2
    assert used.sum() == 18
    before = bandit.state_dict()
    with pytest.raises(InputDataError, match="2 are left"):
        bandit.ask(available=available)
    unchanged(before, bandit)
    assert len(bandit.ask(max_size=2, available=available)) == 2


@pytest.mark.parametrize(
    "available", [torch.ones(3, dtype=torch.bool), torch.ones(NUM_ARMS), [True]]
)
def test_a_bad_mask_is_refused(available):
    with pytest.raises(InputDataError, match="Expected `available`"):
        make(BBKB).ask(available=available)


@pytest.mark.parametrize("bandit_class", ALL)
@pytest.mark.parametrize("learned", [False, True])
def test_a_saved_bandit_goes_on_as_the_original(bandit_class, learned, tmp_path):
    options = {"batch_rule": FixedSize(2)}
    if learned:
        options |= {"covar_module": None, "noise_variance": None}
    elif bandit_class in SPARSE:
        options |= {"resampling": "coupled"}
    if bandit_class is BBKB:
        options |= {"confidence": NormDoubling(PracticalBBKBWidth(0.01))}
    bandit, other = make(bandit_class, **options), make(bandit_class, 99, **options)
    play(bandit, 13)
    bandit.ask()
    torch.save(bandit.state_dict(), tmp_path / "run.pt")
    other.load_state_dict(torch.load(tmp_path / "run.pt", weights_only=True))
    assert other.pending == bandit.pending
    for _ in range(6):
        first, second = bandit.ask(), other.ask()
        assert torch.equal(first, second)
        for one, indices in ((bandit, first), (other, second)):
            one.tell(indices[:1], noise_free(one, indices[:1]))


def test_a_state_that_does_not_fit_changes_nothing():
    bandit = make(BBKB)
    play(bandit, 5)
    before = bandit.state_dict()
    for other in (make(GPUCB), make(BBKB, arms=make_arms(7))):
        with pytest.raises(InputDataError, match="the state of a BBKB over 40"):
            bandit.load_state_dict(other.state_dict())
    unchanged(before, bandit)


class Indefinite(Kernel):
    """Minus the distance: no kernel, though its diagonal is one."""

    def forward(self, x1, x2, diag=False, **params):
        distance = self.covar_dist(x1, x2, diag=diag, **params)
        return torch.ones_like(distance) if diag else 1 - 40 * distance


@pytest.mark.parametrize("bandit_class", ALL)
def test_an_indefinite_kernel_is_refused_and_changes_nothing(bandit_class):
    bandit = make(bandit_class, covar_module=Indefinite())
    bandit.tell([1, 20], [1.0, 2.0], external=True)
    before = bandit.state_dict()
    with pytest.raises(InputDataError, match="positive semi-definite"):
        bandit.ask()
    unchanged(before, bandit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": torch.empty(0, 2)}, "A x d"),
        ({"arms": torch.rand(5)}, "A x d"),
        ({"arms": torch.ones(5, 2, dtype=torch.long)}, "float64 or float32"),
        ({"arms": torch.tensor([[0.0], [math.nan]])}, "first is row 1"),
        ({"arms": [[1.0]]}, "to be a tensor"),
        ({"noise_variance": 0.0}, "`noise_variance` to be a positive"),
        ({"max_repeats": 0}, "`max_repeats` to be an integer"),
        ({"oversampling": -1.0}, "`oversampling` to be positive"),
        ({"resampling": "fresh"}, "`resampling` to be"),
        ({"inclusion": "all"}, "`inclusion` to be"),
        ({"batch_rule": SumRule}, "`batch_rule` to be a rule"),
        ({"covar_module": RBFKernel}, "kernel object"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=message):
        make(BBKB, **options)


def test_a_bad_uniform_probability_is_refused():
    with pytest.raises(InputDataError, match="between 0 and 1"):
        make(EpsilonGreedy, uniform_probability=1.5)


@pytest.mark.parametrize("bandit_class", UCB)
def test_batches_end_on_arms_that_are_all_but_known(monkeypatch, bandit_class):
    monkeypatch.setattr(base, "MAX_BATCH_SIZE", 50)
    arms = torch.tensor([[1e-6], [1.0], [0.0]]).double()
    bandit = make(
        bandit_class,
        arms=arms,
        covar_module=LinearKernel().double(),
        batch_rule=SumRule(),
    )
    bandit.tell([1] * 5, [-1.0] * 5, external=True)
    assert len(bandit.ask()) <= 50


def test_features_of_very_different_size_are_all_learned():
    """A small prior variance beside a large one is not rounding."""
    arms = torch.tensor([[1e6, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
    bandit = make(GPUCB, arms=arms, covar_module=LinearKernel().double())
    bandit.tell([0] * 3 + [2] * 30, [-1e6] * 3 + [1.0] * 30, external=True)
    bandit.ask()
    mean, variance = bandit.predict()
    assert mean[2] == pytest.approx(1.0, abs=0.01)
    assert mean[1] == pytest.approx(-1.0, abs=0.01)
    assert variance[1] < 0.01


def test_tiny_noise_in_single_precision_does_not_hang():
    arms = make_arms(200, torch.float32)
    bandit = make(
        GPUCB, arms=arms, covar_module=MaternKernel(nu=2.5), noise_variance=1e-7
    )
    indices = torch.arange(60)
    bandit.tell(indices, truth(arms)[indices], external=True)
    with pytest.warns(NumericsWarning, match="Use float64 or a larger"):
        assert len(bandit.ask()) == 1


@pytest.mark.parametrize("bandit_class", ALL)
def test_single_precision_arms_work(bandit_class):
    bandit = make(bandit_class, arms=make_arms(dtype=torch.float32))
    play(bandit, 20)
    mean, variance = bandit.predict()
    assert mean.dtype == variance.dtype == torch.float32
    assert mean.isfinite().all()
    assert (variance >= 0).all()


@pytest.mark.parametrize("bandit_class", UCB)
def test_learned_answers_do_not_depend_on_units(bandit_class):
    arms = make_arms()
    units = torch.tensor([1000.0, 0.01]).double()
    bandits = [
        make(bandit_class, arms=a, covar_module=None, noise_variance=None)
        for a in (arms, arms * units + 5)
    ]
    values = truth(arms)
    for _ in range(10):
        first, second = (bandit.ask(max_size=3) for bandit in bandits)
        assert torch.equal(first, second)
        bandits[0].tell(first, values[first])
        bandits[1].tell(second, 300 - 70 * (-values[second]))
    mean, variance = bandits[0].predict()
    other_mean, other_variance = bandits[1].predict()
    torch.testing.assert_close(other_mean, 300 + 70 * mean, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(other_variance, 4900 * variance, rtol=1e-4, atol=1e-4)


def test_given_hyper_parameters_are_used_as_they_are():
    kernel = rbf(0.7)
    bandit = make(BBKB, covar_module=kernel, noise_variance=None)
    play(bandit, 20)
    assert bandit.covar_module.lengthscale.item() == kernel.lengthscale.item()
    assert kernel.raw_lengthscale.requires_grad
    fixed = make(BBKB, covar_module=None, noise_variance=0.3)
    play(fixed, 20)
    assert fixed.noise_variance == pytest.approx(0.3)


def test_learned_noise_is_near_the_truth():
    bandit = make(GPUCB, covar_module=None, noise_variance=None)
    generator = torch.Generator().manual_seed(0)
    indices = torch.arange(NUM_ARMS).repeat(8)
    noise = 0.5 * torch.randn(len(indices), generator=generator, dtype=torch.double)
    bandit.tell(indices, 10 + 3 * truth(bandit.arms)[indices] + noise, external=True)
    bandit.ask()
    assert 0.15 < bandit.noise_variance < 0.4
    error = bandit.predict()[0] - (10 + 3 * truth(bandit.arms))
    assert error.abs().max() < 0.8


def test_much_history_is_sampled_in_blocks(monkeypatch):
    """All at once, every new arm would have the prior's score and would be kept."""
    monkeypatch.setattr(inducing, "BULK_SIZE", 20)
    arms = make_arms(300)
    bandit = make(BBKB, arms=arms, noise_variance=1.0)
    bandit.tell(torch.arange(300), truth(arms), external=True)
    bandit.ask()
    assert bandit.inducing_indices.numel() < 100
    assert (bandit.predict()[0] - truth(arms)).abs().max() < 1.0


@pytest.mark.parametrize("inclusion", ["merged", "per_pull"])
def test_both_laws_have_the_stated_marginals(inclusion):
    """Five standard errors of 4,000 draws, 12 arms: a false alarm in 1e-5 of runs."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(12, generator=generator, dtype=torch.double)
    counts = torch.arange(1, 13)
    probabilities = inclusion_probabilities(scores / 6, counts, 1.0, inclusion)
    p = scores / 6
    expected = 1 - (1 - p) ** counts
    if inclusion == "merged":
        expected = (counts * p).clamp(max=1)
    torch.testing.assert_close(probabilities, expected)
    kept = torch.zeros(12)
    for _ in range(4000):
        uniforms = torch.rand(12, generator=generator, dtype=torch.double)
        kept[sample_inducing_indices(probabilities, scores, uniforms)] += 1
    error = (expected * (1 - expected) / 4000).sqrt() + 1e-9
    assert ((kept / 4000 - expected).abs() < 5 * error).all()


@pytest.mark.parametrize("bandit_class", UCB)
def test_regret_is_far_below_uniform_choice(bandit_class):
    bandit = make(bandit_class)
    generator = torch.Generator().manual_seed(4)
    values, regret = truth(bandit.arms), 0.0
    while bandit.num_pulls < 150:
        indices = bandit.ask(max_size=10)
        noise = 0.3 * torch.randn(len(indices), generator=generator)
        bandit.tell(indices, values[indices] + noise)
        regret += (values.max() - values[indices]).sum().item()
    assert regret < 0.5 * bandit.num_pulls * (values.max() - values.mean())
    assert values.max() - values[bandit.best_arm()] < 0.2


@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["ask", "tell", "fail", "outside"]), st.integers(0, 9)
        ),
        max_size=25,
    ),
    bandit_class=st.sampled_from(ALL),
)
@settings(max_examples=40, deadline=None)
def test_any_order_of_calls_keeps_the_books(actions, bandit_class):
    bandit = make(bandit_class)
    asked = told = failed = outside = 0
    for action, number in actions:
        pending = list(bandit.pending.items())
        if action == "ask":
            asked += len(bandit.ask(max_size=number + 1))
        elif action == "outside":
            before = len(pending)
            bandit.tell([number], [0.5], external=True)
            if len(bandit.pending) == before:
                outside += 1
            else:
                told += 1
        elif pending:
            pull_id, arm = pending[number % len(pending)]
            if action == "tell":
                bandit.tell([arm], [1.0], pull_ids=[pull_id])
                told += 1
            else:
                bandit.fail([arm], pull_ids=[pull_id])
                failed += 1
    assert bandit.num_pulls == told + outside == bandit.counts.sum()
    assert len(bandit.pending) == asked - told - failed


def test_a_failed_fit_keeps_the_hyper_parameters(monkeypatch):
    from botorch.exceptions.errors import ModelFittingError

    from botorch_bkb.bandits import hyperparameters

    def fail(mll):
        raise ModelFittingError("no")

    monkeypatch.setattr(hyperparameters, "fit_gpytorch_mll", fail)
    bandit = make(BBKB, covar_module=None, noise_variance=None)
    before = bandit.covar_module.lengthscale.clone()
    with pytest.warns(match="the previous ones stay"):
        play(bandit, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bandit.ask()
    assert torch.equal(bandit.covar_module.lengthscale, before)


def test_a_prediction_before_the_first_ask_does_not_stand_on_every_arm(monkeypatch):
    """On the inducing arms that the ask will draw; and it draws nothing itself."""
    monkeypatch.setattr(inducing, "BULK_SIZE", 16)
    arms = make_arms(300)
    bandits = [make(BBKB, arms=arms, resampling="coupled") for _ in range(2)]
    for bandit in bandits:
        bandit.tell(range(300), truth(arms), external=True)
    early = bandits[0].predict()
    assert len(bandits[0]._prediction[2].inducing_indices) < 150
    assert torch.equal(*(bandit.ask(max_size=1) for bandit in bandits))
    for before, after in zip(early, bandits[0].predict(), strict=True):
        torch.testing.assert_close(before, after)
