import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel

from botorch_bkb.acquisition.confidence import (
    BBKBWidth,
    BKBWidth,
    ChowdhuryGopalanWidth,
    LogWidth,
    NormDoubling,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    SrinivasWidth,
)
from botorch_bkb.acquisition.model_state import confidence_state_from_model
from botorch_bkb.acquisition.schedules import (
    ArmObservations,
    as_schedule,
    ConfidenceState,
    ConstantWidth,
    DeviationWidth,
    RandomDeviationWidth,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.leverage_scores import bbkb_oversampling, bkb_oversampling
from tests.acquisition import (
    exact_moments,
    fixed_gp,
    NOISE,
    rbf_gram,
    standardized_data,
)


STATE = ConfidenceState(
    num_pulls=30,
    num_arms=500,
    noise_variance=0.25,
    max_prior_variance=2.0,
    effective_dimension=4.0,
    log_det=7.0,
    frozen_leverage_scores=torch.tensor([0.5, 2.0], dtype=torch.float64),
    log_det_start=1.5,
    ratio_threshold=2.0,
)
FROZEN_SUM_1 = 1.5 + math.log(1.5) + math.log(3.0)
BBKB_INFORMATION = 1.5 + math.log(2.5) + math.log(7.0) + math.log(10)
PRINTED = 3 * math.log(2.0 * 30) * 4.0 + math.log(10)  # with alpha = 3
F, DELTA = 3.0, 0.1
NORMED: dict[str, Any] = {"norm_bound": F, "failure_probability": DELTA}


def observe(counts, *columns):
    columns = [torch.tensor(column, dtype=torch.float64) for column in columns]
    return ArmObservations(torch.tensor(counts), *columns)


# ------------------------------ widths of the papers ------------------------------ #


@pytest.mark.parametrize(("noise_std", "accuracy"), [(None, 0.5), (0.2, 0.2)])
def test_bkb_width_is_theorem_2_with_the_log_factor_of_equation_6(noise_std, accuracy):
    xi = 0.5 if noise_std is None else noise_std
    alpha = (1 + accuracy) / (1 - accuracy)
    log_factor = 1 + math.log(1 + 2.0 * 30 / 0.25)
    bias = (1 + 1 / math.sqrt(1 - accuracy)) * 0.5 * F
    log_det = alpha * log_factor * 4.0  # its bound
    expected = xi * math.sqrt(2 * (log_det + math.log(10))) + bias
    schedule = BKBWidth(**NORMED, noise_std=noise_std, accuracy=accuracy)
    assert schedule(STATE) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("width", "bias", "squared"),
    [
        # With 2 xi and log(kappa^2 t), as the theorem is printed.
        (BKBWidth(**NORMED, printed=True), (1 + math.sqrt(2)) * F, 4 * PRINTED),
        # Theorem 2 with frozen variances, and C~ = 2 outside.
        (BBKBWidth(**NORMED), 2 * (1 + math.sqrt(2)) * F, 16 * BBKB_INFORMATION),
        (PracticalBKBWidth(**NORMED), F, math.log(30) * 4.0 + math.log(10)),
        (PracticalBBKBWidth(**NORMED), F, 2.0 * FROZEN_SUM_1 + math.log(10)),
        (ChowdhuryGopalanWidth(**NORMED), F, 2 * (7.0 + math.log(10))),  # equation (7)
        # Theorem 1 in the scaling of the papers; after 30 pulls the 31st is decided.
        (SrinivasWidth(DELTA), 0, 2 * math.log(500 * 31**2 * math.pi**2 / (6 * DELTA))),
    ],
)
def test_widths_are_their_formulas(width, bias, squared):
    assert width(STATE) == pytest.approx(0.5 * (bias + math.sqrt(squared)), rel=1e-12)


@pytest.mark.parametrize(
    ("c1", "c2", "num_pulls", "num_pending", "beta"),
    [
        (0.8, 4.0, 29, 0, 0.8 * math.log(120)),
        (0.8, 4.0, 20, 9, 0.8 * math.log(120)),
        (0.8, 0.4, 1, 0, 0.0),
    ],
)
def test_log_width_is_the_practical_schedule_and_never_negative(
    c1, c2, num_pulls, num_pending, beta
):
    state = dataclasses.replace(STATE, num_pulls=num_pulls, num_pending=num_pending)
    assert LogWidth(c1, c2)(state) == pytest.approx(math.sqrt(beta * 0.25), rel=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [
        BKBWidth(),
        BKBWidth(printed=True),
        BBKBWidth(),
        PracticalBKBWidth(),
        PracticalBBKBWidth(),
        ChowdhuryGopalanWidth(),
        SrinivasWidth(),
        LogWidth(0.8, 4.0),
        NormDoubling(PracticalBBKBWidth()),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_every_width_is_finite_before_the_first_pull(schedule):
    state = ConfidenceState(
        num_pulls=0,
        num_arms=1,
        noise_variance=1.0,
        max_prior_variance=1.0,
        effective_dimension=0.0,
        log_det=0.0,
        frozen_leverage_scores=torch.zeros(0),
        observations=observe([], [], [], []),
    )
    assert 0 < schedule(state) < math.inf


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PracticalBKBWidth(norm_bound=0.0), "`norm_bound` to be positive"),
        (lambda: LogWidth(1.0, math.nan), "`c2` to be positive"),
        (lambda: bkb_oversampling(0), "`horizon` to be positive"),
        (lambda: SrinivasWidth(1.0), "`failure_probability` to be strictly between"),
        (lambda: BKBWidth(accuracy=0.0), "`accuracy` to be strictly between"),
        (lambda: ConstantWidth(math.inf), "`width` to be finite and not negative"),
        (lambda: as_schedule(-1.0), "`num_deviations` to be finite and not negative"),
        (lambda: BBKBWidth(noise_std=-0.1), "`noise_std` to be finite and not"),
        (lambda: RandomDeviationWidth(seed=-1), "`seed` to be an integer from 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, match):
    with pytest.raises(InputDataError, match=match):
        make()


# -------------------------------- guess and double -------------------------------- #


def contradicted_state(sample_mean: float = 10.0) -> ConfidenceState:
    return dataclasses.replace(
        STATE,
        num_pulls=5,
        noise_variance=1.0,
        effective_dimension=0.0,
        observations=observe([4, 1], [sample_mean, 0.0], [0.0, 0.0], [0.25, 0.5]),
    )


def test_norm_doubling_doubles_until_the_band_explains_the_data():
    # Practical width with lambda = xi = 1 and no information: w = F + sqrt(log 10).
    noise_bound = math.sqrt(2 * math.log(math.pi**2 * 16 * 2 / (3 * DELTA)) / 4)
    bound = 1.0
    while (bound + math.sqrt(math.log(10))) * math.sqrt(0.25) + noise_bound < 10.0:
        bound *= 2
    schedule = NormDoubling(PracticalBKBWidth(failure_probability=DELTA))
    assert bound == 16.0
    assert schedule.doubled(contradicted_state()).norm_bound == bound
    width = schedule(contradicted_state())
    assert width == pytest.approx(bound + math.sqrt(math.log(10)), rel=1e-12)
    assert schedule.doubled(contradicted_state(sample_mean=1.0)).norm_bound == 1.0


def test_a_width_of_arms_needs_their_number():
    state = dataclasses.replace(STATE, num_arms=None)
    with pytest.raises(UnsupportedError, match="Pass `num_arms`, or use another"):
        SrinivasWidth()(state)


def test_norm_doubling_names_what_it_lacks():
    with pytest.raises(UnsupportedError, match=r"Expected `state\.observations`"):
        NormDoubling(BKBWidth())(STATE)
    with pytest.raises(UnsupportedError, match="got SrinivasWidth"):
        NormDoubling(SrinivasWidth())  # type: ignore[arg-type]


# -------------------------------- widths in deviations ---------------------------- #


def deviations(schedule, **state):
    """Return the width in posterior deviations."""
    state = dataclasses.replace(STATE, **state)
    return schedule(state) / math.sqrt(state.noise_variance)


def test_noise_adds_deviations_by_its_share_of_a_reward():
    schedule = DeviationWidth(0.5, noise_deviations=3.0)
    for prior, noise, share in ((1.0, 1e-12, 1e-6), (3.0, 1.0, 0.5), (1.0, 1e12, 1.0)):
        state = {"max_prior_variance": prior, "noise_variance": noise}
        assert deviations(schedule, **state) == pytest.approx(0.5 + 3 * share)
        assert deviations(DeviationWidth(0.5), **state) == pytest.approx(0.5)


def test_random_deviations_are_exponential_and_those_of_the_decision():
    widths = {
        (seed, number): RandomDeviationWidth(1.5, seed)(
            dataclasses.replace(STATE, num_pulls=number)
        )
        for seed in range(5)
        for number in range(200)
    }
    deviations = np.sort(list(widths.values())) / math.sqrt(STATE.noise_variance)
    assert len(set(deviations)) == 1000
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) has probability 1e-3.
    distribution = 1 - np.exp(-deviations / 1.5)
    empirical = np.arange(1, 1001) / 1000
    assert np.abs(distribution - empirical).max() < 1.95 / math.sqrt(1000)
    # Told or pending, a decision has its number.
    moved = dataclasses.replace(STATE, num_pulls=40, num_pending=7)
    assert RandomDeviationWidth(1.5, 3)(moved) == widths[3, 47]


def test_a_random_width_saves_and_restores_its_seed():
    schedule, other = RandomDeviationWidth(seed=4), RandomDeviationWidth(seed=5)
    assert schedule(STATE) != other(STATE)
    other.load_state_dict(schedule.state_dict())
    assert schedule(STATE) == other(STATE)


# -------------------------------- small functions --------------------------------- #


@pytest.mark.parametrize(
    ("schedule", "key", "bad"),
    [
        (BKBWidth(), None, None),
        (RandomDeviationWidth(), "seed", True),
        (NormDoubling(BKBWidth()), None, None),
    ],
)
def test_foreign_and_damaged_states_are_refused(schedule, key, bad):
    before = schedule.state_dict()
    assert set(before) == ({key} if key else set())
    schedule.load_state_dict(before)
    with pytest.raises(InputDataError, match=r"got \['other'\]"):
        schedule.load_state_dict({"other": 2})
    if key:
        with pytest.raises(InputDataError, match=f"`{key}` to be an integer from 0"):
            schedule.load_state_dict({key: bad})
    assert schedule.state_dict() == before


def test_a_number_counts_posterior_deviations():
    schedule = BKBWidth()
    assert as_schedule(schedule) is schedule
    assert as_schedule(2) == DeviationWidth(2.0)
    assert as_schedule(0.5)(STATE) == 0.5 * math.sqrt(STATE.noise_variance)
    with pytest.raises(UnsupportedError, match="number or a ConfidenceSchedule"):
        as_schedule("wide")  # type: ignore[arg-type]


def test_oversampling_is_that_of_the_theorems():
    log_union = math.log(4 * 1000 / 0.1)
    assert bkb_oversampling(1000, 0.1, 0.5) == pytest.approx(6 * 3 * log_union / 0.25)
    # At eps = 1/2, what BKB's theorem asks, by scores that may be a third.
    assert bbkb_oversampling(1000, 0.1) == bkb_oversampling(1000, 0.1, 0.5)
    assert bbkb_oversampling(1000, 0.1, ratio_threshold=1.5) == pytest.approx(
        72 * 1.5 * log_union
    )
    with pytest.raises(InputDataError, match="`ratio_threshold` to be a number from 1"):
        bbkb_oversampling(1000, 0.1, ratio_threshold=0.5)


# ------------------------------ the state of a model ------------------------------ #


def test_state_of_a_model_is_dense_algebra():
    X, Y = standardized_data(12)
    state = confidence_state_from_model(fixed_gp(X, Y), num_arms=7)
    n, K = len(X), rbf_gram(X.numpy(), X.numpy())
    assert (state.num_pulls, state.noise_variance) == (n, pytest.approx(NOISE))
    assert state.max_prior_variance == pytest.approx(1.0)
    effective_dimension = np.trace(K @ np.linalg.inv(K + NOISE * np.eye(n)))
    assert state.effective_dimension == pytest.approx(effective_dimension, rel=1e-6)
    log_det = np.linalg.slogdet(np.eye(n) + K / NOISE)[1]
    assert state.log_det == pytest.approx(log_det, rel=1e-6)
    assert state.frozen_log_det(3.0) == state.log_det
    assert (state.num_arms, state.ratio_threshold) == (7, 1.0)
    assert state.observations is not None
    mean, variance = exact_moments(X, Y, X[:-1])
    order = np.lexsort(X[:-1].numpy().T[::-1])  # lexicographic, as torch.unique sorts
    np.testing.assert_allclose(
        state.observations.posterior_means.detach(), mean[order], atol=1e-7
    )
    np.testing.assert_allclose(
        state.observations.leverage_scores.detach(), variance[order] / NOISE, atol=1e-6
    )
    sample_means = Y[:-1, 0].numpy().copy()
    sample_means[0] = (Y[0, 0] + Y[-1, 0]).item() / 2
    np.testing.assert_allclose(state.observations.sample_means, sample_means[order])


@pytest.mark.parametrize("reproject", [None, True, False])
@pytest.mark.parametrize("num_inducing", [1, 4, 12])
def test_frozen_sums_of_a_sparse_model_start_above_the_exact_log_det(
    num_inducing, reproject
):
    X, Y = standardized_data(12)
    start = 12 if reproject is None else 9
    options = {"inducing_points": X[: min(num_inducing, start)]}
    model = fixed_gp(X[:start], Y[:start], model_class=SingleTaskDTCGP, **options)
    if reproject is not None:
        new = X[start:], Y[start:]
        model = model.condition_on_observations(*new, reproject=reproject)
    state = confidence_state_from_model(model, ratio_threshold=2.0)
    assert state.ratio_threshold == 2.0
    K = rbf_gram(X.numpy(), X.numpy())
    log_det = np.linalg.slogdet(np.eye(12) + K / NOISE)[1]
    if num_inducing == 12 and reproject is None:
        assert state.frozen_log_det(3.0) == pytest.approx(log_det, rel=1e-6)
    # Of independent rewards: a looser bound.
    assert log_det - 1e-6 < state.frozen_log_det(3.0) < 12 * math.log(1 + 1 / NOISE)
    assert state.log_det < log_det + 1e-6  # Nystrom's


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, Y: SingleTaskGP(X, Y, 0.1 + Y.square()), "12 that differ"),
        (lambda X, Y: SingleTaskGP(X, torch.cat([Y, Y], -1)), "with one output"),
        (lambda X, Y: GenericDeterministicModel(lambda X: X), "GenericDeterministic"),
    ],
)
def test_models_without_one_noise_variance_are_refused(make, message):
    with pytest.raises(UnsupportedError, match=message):
        confidence_state_from_model(make(*standardized_data(12)))
    with pytest.raises(InputDataError, match="`ratio_threshold` to be a number from 1"):
        confidence_state_from_model(fixed_gp(*standardized_data(12)), ratio_threshold=0)
