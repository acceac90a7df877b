"""Which pulled arms are inducing: a ceiling of their number."""

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import BotorchWarning
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb import BBKB
from botorch_bkb.bandits import FiniteArmBandit, inducing, LeverageScoreSampling
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.bandits.surrogates import PosteriorSurrogate
from botorch_bkb.optim import FixedSize
from tests.bandits import (
    make_bandit,
    noisy_rewards,
    random_arms,
    rbf,
    SPARSE_BANDITS,
    true_rewards,
)
from tests.helpers import gram_matrix, seeded
from tests.models.utils.test_leverage_scores import assert_greedy
from tests.reference import Arms


ARMS = random_arms(80)
silently = pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
# So rough that nearly every pulled arm stays inducing.
ROUGH = {"noise_variance": 1e-4, "lengthscale": 0.15}


def told_bandit(told, bandit_class=BBKB, seed=0, **options):
    """Return a bandit that knows some results, repeats included."""
    bandit = make_bandit(bandit_class, ARMS, seed, **{**ROUGH, **options})
    bandit.add_observations(told, true_rewards(ARMS)[told])
    return bandit


@silently
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31 - 1),
    ceiling=st.integers(1, 60),
    num_told=st.integers(1, 120),
    resampling=st.sampled_from(["independent", "coupled"]),
    inclusion=st.sampled_from(["merged", "per_pull"]),
    oversampling=st.sampled_from([0.01, 2.0]),
)
def test_a_ceiling_keeps_those_that_say_most_of_those_that_are_drawn(
    seed, ceiling, num_told, resampling, inclusion, oversampling
):
    told = torch.randint(80, (num_told,), generator=seeded(seed))
    options = {"resampling": resampling, "inclusion": inclusion}
    options |= {"oversampling": oversampling, "seed": seed}
    bandits = [
        told_bandit(told, max_inducing=most, **options) for most in (None, ceiling)
    ]
    for bandit in bandits:
        bandit.ask(1)
    drawn, kept = (sorted(bandit.inducing_indices.tolist()) for bandit in bandits)
    assert len(kept) == min(ceiling, len(drawn))
    assert set(kept) <= set(drawn)
    if ceiling < len(drawn):
        counts = bandits[1].counts[drawn].numpy()
        K = gram_matrix(rbf(ROUGH["lengthscale"]), ARMS[drawn])
        places = inducing.leverage_pivots(
            bandits[1].covar_module, ARMS[drawn], torch.from_numpy(counts), ceiling
        )
        assert sorted(torch.tensor(drawn)[places].tolist()) == kept
        assert_greedy(K, counts, places.tolist())


@silently
@pytest.mark.parametrize(
    ("bandit_class", "resampling"),
    [*((each, "independent") for each in SPARSE_BANDITS), (BBKB, "coupled")],
)
def test_whole_runs_stay_under_the_ceiling(bandit_class, resampling):
    """With late results and batches of any size; numbers are those of the equations."""
    bandit = make_bandit(
        bandit_class,
        ARMS,
        max_inducing=12,
        resampling=resampling,
        batch_rule=FixedSize(5),
        max_repeats=2,
        **ROUGH,
    )
    measure = noisy_rewards(ARMS)
    for _ in range(12):
        bandit.ask()
        arms = torch.tensor(list(bandit.pending.values())[:-2])
        bandit.tell(arms, measure(arms))
        assert len(bandit.inducing_indices) <= 12
    bandit.ask(5)
    history, counts = bandit._observations.totals(), bandit.counts
    S, sums = bandit.inducing_indices, np.zeros(80)
    sums[history.arms] = history.sums
    assert len(S) == 12 < int((counts > 0).sum())
    K = gram_matrix(rbf(ROUGH["lengthscale"]), ARMS)
    dense = Arms(K, ROUGH["noise_variance"]).posterior(S, counts.numpy(), sums)
    found = bandit.predict()
    np.testing.assert_allclose(found[0], dense[0], atol=1e-6)
    np.testing.assert_allclose(found[1], dense[1], atol=1e-8)


def test_a_ceiling_says_that_it_took_effect():
    bandit = told_bandit(torch.arange(30), max_inducing=10)
    with pytest.warns(BotorchWarning, match="took effect.*noise variance is not too"):
        bandit.ask(1)


@silently
@pytest.mark.parametrize(
    ("resampling", "ceiling"), [("independent", None), ("coupled", 6)]
)
def test_few_pulled_arms_are_all_inducing(resampling, ceiling):
    sizes = []
    for least in (8, 0):
        sampling = LeverageScoreSampling(0.05, resampling, max_inducing=ceiling)
        surrogate = PosteriorSurrogate(
            Fitter(ARMS, rbf(), 0.1),
            2**31,
            sampling,
            exact_until=min(least, ceiling or least),
        )
        generator = seeded()
        bandit = FiniteArmBandit(ARMS, surrogate, generator=generator)
        sizes.append([])
        for number in range(12):
            bandit.add_observations([5 * number], [float(number)])
            bandit.ask(1)
            sizes[-1].append(len(bandit.inducing_indices))
    most = min(8, ceiling or 8)
    assert sizes[0][:most] == list(range(1, most + 1))
    assert sizes[1] != sizes[0]
    assert max(sizes[0]) < 12  # sampled again from then on
