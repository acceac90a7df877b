"""Bandits on a box: contract, law of the picks, and what they find."""

import io
from copy import deepcopy
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.exceptions.warnings import BotorchWarning
from gpytorch.kernels import ScaleKernel

from botorch_bkb.acquisition.confidence import ChowdhuryGopalanWidth
from botorch_bkb.acquisition.schedules import RandomDeviationWidth
from botorch_bkb.bandits import (
    box_surrogate,
    BoxBandit,
    BoxThompsonPolicy,
    BoxThompsonSampling,
    BoxUCBPolicy,
    composite_to_learn,
    rbf_to_learn,
)
from botorch_bkb.bandits.box_surrogate import PointObservations
from botorch_bkb.generation import VarianceStoppingRule
from tests.bandits import assert_same, LEARNED, rbf
from tests.helpers import gram_matrix, random_points, seeded
from tests.reference import dtc_posterior, exact_posterior


NOISE = 0.01
BOUNDS = torch.tensor([[-1.0, 0.0], [3.0, 2.0]], dtype=torch.double)
KINDS = {
    "thompson": {"policy": BoxThompsonPolicy(0.05, 1.0), "oversampling": 2.0},
    "sparse": {"oversampling": 2.0},
    "exact": {"policy": BoxUCBPolicy(ChowdhuryGopalanWidth())},
}
# Few points are all inducing: "exact" differs from "sparse" by its width alone.
each = pytest.mark.parametrize("kind", ["thompson", "sparse"])


def make_bandit(kind, seed=0, bounds=BOUNDS, **options):
    options = {
        "covar_module": rbf(1.0),
        "noise_variance": NOISE,
        "batch_size": 2,
        "raw_samples": 64,
        "num_restarts": 2,
        "generator": seeded(seed),
        **KINDS[kind],
        **options,
    }
    return BoxBandit(bounds, **options)


def truth(points):
    """A bump at (1, 1.2)."""
    center = torch.tensor([1.0, 1.2]).to(points)
    return (-(points - center).square().sum(dim=-1)).exp()


def measurement(seed=0, sign=1):
    stream = seeded(seed)

    def measure(points):
        noises = torch.randn(len(points), generator=stream, dtype=torch.double)
        return sign * truth(points.double()) + NOISE**0.5 * noises

    return measure


def play(bandit, num_rounds, measure=None):
    measure = measurement() if measure is None else measure
    batches = []
    for _ in range(num_rounds):
        points = bandit.ask()
        bandit.tell(points, measure(points))
        batches.append(points)
    return batches


# The contract -------------------------------------------------------------------------


def test_the_first_points_are_uniform():
    points = make_bandit("exact", batch_size=4000).ask()
    cell = ((points - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0]) * 3).long()
    counts = np.bincount(cell[:, 0] * 3 + cell[:, 1], minlength=9)
    expected = 4000 / 9
    # Chi-square with 8 degrees of freedom: 31.8 has probability 1e-4.
    assert ((counts - expected) ** 2 / expected).sum() < 31.8


@pytest.mark.parametrize(
    ("kind", "learned", "maximize", "dtype"),
    [
        ("exact", False, True, torch.float64),
        ("thompson", True, False, torch.float32),
    ],
)
def test_points_lie_in_the_box_and_gather_at_the_optimum(
    kind, learned, maximize, dtype
):
    options = {**LEARNED, "batch_size": 4} if learned else {}
    bounds = BOUNDS.to(dtype)
    bandit = make_bandit(kind, bounds=bounds, maximize=maximize, **options)
    measure = measurement(sign=1 if maximize else -1)
    offset, unit = (50, 10) if learned else (0, 1)
    batches = play(bandit, 8, lambda points: offset + unit * measure(points))
    points = torch.cat(batches)
    assert points.dtype == dtype
    assert ((points >= bounds[0]) & (points <= bounds[1])).all()
    assert truth(torch.cat(batches[-4:])).mean() > truth(torch.cat(batches[:4])).mean()
    best = bandit.best_point().unsqueeze(0)
    assert truth(best) > 0.85
    expected = offset + (unit if maximize else -unit)
    assert bandit.predict(best)[0].item() == pytest.approx(expected, abs=0.2 * unit)


@pytest.mark.parametrize(("kind", "maximize"), [("sparse", True), ("exact", False)])
def test_predictions_are_the_dense_posterior(kind, maximize, monkeypatch):
    monkeypatch.setattr(box_surrogate, "EXACT_UNTIL", 0)
    bandit = make_bandit(kind, maximize=maximize)
    X = torch.cat(play(bandit, 12))
    y = bandit.state_dict()["observations"]["told_rewards"]
    bandit.ask()  # pending points do not count
    S = bandit.inducing_points
    assert (len(S) < 24) == (kind == "sparse")
    test_X = torch.tensor([[0.0, 0.5], [2.5, 1.9], [1.0, 1.0]], dtype=torch.double)
    pairs = ((S, S), (S, X), (S, test_X), (test_X, test_X))
    K = [gram_matrix(rbf(1.0), *pair) for pair in pairs]
    mean, covariance = dtc_posterior(*K, np.full(24, 1 / NOISE), np.array(y))
    for _ in range(2):
        got = bandit.predict(test_X)
        np.testing.assert_allclose(got[0], mean, atol=1e-8)
        np.testing.assert_allclose(got[1], np.diag(covariance), atol=1e-8)
    assert bandit.noise_variance == pytest.approx(NOISE)


@pytest.mark.parametrize("unit", [1e-3, 1e-6])
def test_a_small_unit_of_rewards_changes_no_prediction(unit):
    found = []
    for scale in (1.0, unit):
        kernel = ScaleKernel(rbf(1.0)).double()
        kernel.outputscale = torch.tensor(scale**2).double()
        bandit = make_bandit(
            "exact", covar_module=kernel, noise_variance=NOISE * scale**2
        )
        X = random_points(6, 2)
        bandit.add_observations(X, scale * truth(X))
        mean, variance = bandit.predict(random_points(9, 2))
        found.append((mean / scale, variance / scale**2))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)


def test_rewards_come_late_in_any_order_or_never():
    bandit = make_bandit("exact", batch_size=3)
    first = bandit.ask()
    second = bandit.ask(2)
    assert torch.equal(bandit.pending_points, torch.cat([first, second]))
    bandit.tell(second.flip(0), torch.tensor([0.1, 0.2]))
    told = bandit.state_dict()["observations"]
    assert torch.equal(told["points"][told["told_indices"]], second.flip(0))
    assert told["told_rewards"] == pytest.approx([0.1, 0.2])
    bandit.fail(first[1:2])
    bandit.tell(first[2:], [0.3])
    assert torch.equal(bandit.pending_points, first[:1])
    assert bandit.num_pulls == 3
    third = bandit.ask()
    assert third.shape == (3, 2)
    with pytest.raises(InputDataError, match="it has none left to settle"):
        bandit.tell(first[1:2], [0.0])
    bandit.add_observations(first[1:2], [0.0])
    bandit.add_observations(torch.ones(1, 2), [[5.0]])
    assert bandit.num_pulls == 5
    assert torch.equal(bandit.pending_points, torch.cat([first[:1], third]))


@each
def test_pending_points_push_the_next_ones_away(kind):
    """Pulls pending at 1 leave nothing to learn there."""
    box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    options = {"covar_module": rbf(0.3), "bounds": box}
    if kind == "thompson":
        options.update(policy=BoxThompsonPolicy(0.0, 1.0), batch_size=300)
    else:  # all width, no mean
        options.update(policy=BoxUCBPolicy(100.0), batch_size=1)
    shares = []
    for is_pending in (False, True):
        bandit = make_bandit(kind, **options)
        bandit.add_observations([[0.45]], [0.0])
        if is_pending:
            bandit._observations.ask_points(box.new_ones(40, 1))
        shares.append((bandit.ask() > 0.85).double().mean().item())
    # Of the two ends 1 is the farther one from the data.
    assert shares[0] > 0.2
    assert shares[1] < 0.35 * shares[0]


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize(("kind", "options"), [("thompson", LEARNED), ("sparse", {})])
def test_a_saved_state_goes_on(kind, options):
    bandit = make_bandit(kind, **options)
    play(bandit, 3)
    pending = bandit.ask()
    bandit.tell(pending[:1], [0.4])
    file = io.BytesIO()
    torch.save(bandit.state_dict(), file)
    file.seek(0)
    other = make_bandit(kind, seed=9, **options)
    other.load_state_dict(torch.load(file))
    assert_same(other.state_dict(), bandit.state_dict())
    measures = measurement(3), measurement(3)
    for _ in range(2):
        batches = [
            play(one, 1, measure)[0]
            for one, measure in zip((bandit, other), measures, strict=True)
        ]
        torch.testing.assert_close(batches[0], batches[1])
    with pytest.raises(InputDataError, match="over the box"):
        make_bandit(kind, bounds=BOUNDS + 1).load_state_dict(other.state_dict())


@each
@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
def test_predictions_and_failed_asks_change_no_later_point(kind, learned, monkeypatch):
    """Nor do bandits change the generators that they know."""
    generator = seeded(2)
    before, everywhere = generator.get_state(), torch.get_rng_state()
    options = {"generator": generator, **(LEARNED if learned else {})}
    quiet, other = (make_bandit(kind, **options) for _ in range(2))
    for _ in range(3):
        interrupt = Mock(side_effect=KeyboardInterrupt)
        with monkeypatch.context() as patch:
            patch.setattr(PointObservations, "ask_points", interrupt)
            with pytest.raises(KeyboardInterrupt):
                other.ask(3)
        points = quiet.ask(3)
        assert torch.equal(other.ask(3), points)
        other.predict(points)
        for bandit in (quiet, other):
            bandit.tell(points, truth(points))
        other.predict(points)
        other.best_point()
        other.maximizer_distribution(4)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), everywhere)


def test_points_in_single_precision_may_come_back_from_a_file():
    bandit = BoxBandit(torch.tensor([[0.1, 0.1], [0.7, 0.9]]), seed=0)
    bandit.add_observations([[0.7, 0.1]], [1.0])
    points = bandit.ask(2)
    as_text = [[float(str(value)) for value in row] for row in points.numpy()]
    bandit.tell(as_text, [0.5, 0.25])
    assert not len(bandit.pending_points)
    mean, _ = bandit.predict([[0.7, 0.1], *as_text])
    assert mean.dtype == torch.float32
    # Version 1.0 did not round: two of its points may be equal in single precision.
    state = bandit.state_dict()
    saved = state["observations"]["points"].clone()
    saved[1] = saved[0] + torch.tensor([-1e-9, 1e-9])
    state["observations"]["points"] = saved
    bandit.load_state_dict(state)
    assert torch.equal(bandit._observations.points, saved)


def test_starts_at_one_corner_are_no_trouble():
    """The best of all points again and again: their values have no spread."""
    box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    bandit = make_bandit("thompson", bounds=box, num_restarts=4, oversampling=1e9)
    points = torch.tensor([[0.0], [0.5]] + 8 * [[1.0]])
    bandit.add_observations(points, 5 * points.squeeze(-1))
    assert bandit.ask(1).item() > 0.9


@pytest.mark.parametrize(
    ("kind", "options", "num_points"),
    [("sparse", {"covar_module": rbf(0.2)}, 300), ("thompson", LEARNED, 40)],
)
def test_a_ceiling_holds_on_a_box(kind, options, num_points):
    bandit = make_bandit(kind, max_inducing=15, oversampling=1e6, **options)
    points = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * random_points(num_points, 2, seed=3)
    bandit.add_observations(points, truth(points))
    for _ in range(2):
        with pytest.warns(BotorchWarning, match="took effect: fewer"):
            asked = bandit.ask(1)
        assert len(bandit.inducing_points) == 15
        bandit.tell(asked, truth(asked))


# The two regimes ----------------------------------------------------------------------


NUM_DESIGN = 4


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("thompson", LEARNED),
        ("sparse", {"covar_module": None}),
        ("exact", {"noise_variance": None}),
    ],
)
def test_where_something_is_learned_the_first_points_fill_the_box(kind, options):
    design = make_bandit(kind, **options).ask(NUM_DESIGN)
    assert ((design >= BOUNDS[0]) & (design <= BOUNDS[1])).all()
    # Four points of a Sobol sequence: one in each quarter of every side.
    unit = (design - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0])
    for side in (unit * NUM_DESIGN).long().mT:
        assert sorted(side.tolist()) == [0, 1, 2, 3]
    # However they are asked for.
    others = play(make_bandit(kind, batch_size=1, **options), NUM_DESIGN)
    assert torch.equal(torch.cat(others), design)
    another = make_bandit(kind, seed=1, **options).ask(NUM_DESIGN)
    assert not torch.isclose(another, design).any()


def test_pending_and_told_points_count_in_the_first_design():
    bandit, whole = (make_bandit("sparse", **LEARNED) for _ in range(2))
    design = whole.ask(NUM_DESIGN)
    first = bandit.ask(2)
    bandit.tell(first[:1], [0.3])
    # One is told, one pending: two are left, and the third is the model's.
    second = bandit.ask(3)
    assert torch.equal(torch.cat([first, second[:2]]), design)
    assert (second[2] != design).any(dim=-1).all()
    assert ((second[2] >= BOUNDS[0]) & (second[2] <= BOUNDS[1])).all()


@pytest.mark.parametrize("options", [LEARNED, {}], ids=["learned", "given"])
def test_the_default_width_is_drawn_with_the_seed(options):
    widths = [
        make_bandit("sparse", seed, **options).policy.confidence for seed in (0, 1)
    ]
    assert all(isinstance(width, RandomDeviationWidth) for width in widths)
    assert [width.mean_deviations for width in widths] == [1.0, 1.0]
    assert widths[0].seed != widths[1].seed
    given = make_bandit("exact", **options).policy
    assert given.confidence == ChowdhuryGopalanWidth()


def test_what_is_learned_over_a_box_where_no_kernel_is_given():
    unit = torch.zeros(2, 2, dtype=torch.double)
    for covar_module, expected in (
        (None, composite_to_learn(unit)),
        (rbf_to_learn, rbf_to_learn(unit)),
    ):
        learned = {"covar_module": covar_module, "noise_variance": None}
        bandit = make_bandit("thompson", **learned)
        found = bandit.covar_module
        assert list(map(type, found.modules())) == list(map(type, expected.modules()))
        assert_same(found.state_dict(), expected.double().state_dict())


# Thompson sampling --------------------------------------------------------------------


def test_points_follow_the_distribution_of_the_maximizer():
    """Against the argmax of dense draws on a fine grid, by quantiles."""
    box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    bandit = make_bandit(
        "thompson",
        bounds=box,
        covar_module=rbf(0.3),
        policy=BoxThompsonPolicy(0.0, 1.0),
        batch_size=600,
    )
    X = torch.tensor([[0.1], [0.45], [0.8]], dtype=torch.double)
    y = torch.tensor([0.0, 0.6, 0.4])
    bandit.add_observations(X, y)
    points = np.sort(bandit.ask().squeeze(-1))
    grid = torch.linspace(0, 1, 201, dtype=torch.double).unsqueeze(-1)
    K = [gram_matrix(rbf(0.3), *pair) for pair in ((X, X), (X, grid), (grid, grid))]
    mean, covariance = exact_posterior(*K, np.full(3, NOISE), y.double().numpy())
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, 20_000)
    best = np.sort(grid.squeeze(-1).numpy()[draws.argmax(axis=1)])
    # Kolmogorov and Smirnov: 1.95 sqrt(1 / 600 + 1 / 20,000) has probability 1e-3;
    # half a cell of the grid and the Fourier features come on top.
    ends = np.linspace(0, 1, 50)
    gap = np.abs(
        np.searchsorted(points, ends + 0.0026) / 600
        - np.searchsorted(best, ends + 0.0026) / 20_000
    ).max()
    assert gap < 1.95 * np.sqrt(1 / 600 + 1 / 20_000) + 0.02


# The distribution of the maximizer ----------------------------------------------------


def test_the_distribution_of_the_maximizer_closes_in():
    bandit = make_bandit("thompson", batch_size=4)
    generator = seeded()
    rule = VarianceStoppingRule(0.5)
    before = bandit.maximizer_distribution(300, generator)
    width = BOUNDS[1] - BOUNDS[0]
    np.testing.assert_allclose(before.variance, width**2 / 12, rtol=0.25)
    play(bandit, 10)
    state = deepcopy(bandit.state_dict())
    after = bandit.maximizer_distribution(60, generator)
    assert_same(bandit.state_dict(), state)
    assert not rule(before)
    assert rule(after)
    assert truth(after.mode.unsqueeze(0)) > 0.9


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        (torch.zeros(3, 2), BotorchTensorDimensionError, "shape 2 x d"),
        (torch.zeros(2, 1), InputDataError, "every upper one above"),
        (torch.tensor([[0.0], [torch.inf]]), InputDataError, "finite `bounds`"),
        (torch.tensor([[0], [1]]), InputDataError, "dtype float64 or float32"),
    ],
)
def test_bad_boxes_are_refused(bounds, error, message):
    with pytest.raises(error, match=message):
        make_bandit("sparse", bounds=bounds)


def test_bad_arguments_are_refused():
    with pytest.raises(InputDataError, match=r"`max_inducing` to be None.*but got 5"):
        make_bandit("exact", max_inducing=5)
    bandit = make_bandit("exact")
    with pytest.raises(InputDataError, match="`size` to be an integer"):
        bandit.ask(0)
    points = bandit.ask()
    before = deepcopy(bandit.state_dict())
    with pytest.raises(BotorchTensorDimensionError, match="`points` of shape q x 2"):
        bandit.tell(points[0], [0.0])
    with pytest.raises(InputDataError, match="inside `bounds`, but row 1"):
        bandit.add_observations([[0.0, 0.0], [9.0, 0.0]], [0.0, 0.0])
    with pytest.raises(UnsupportedError, match="points in place of `arms`"):
        bandit.add_observations(None, [0.0], arms=torch.zeros(1, 2))
    assert_same(bandit.state_dict(), before)


def test_thompson_sampling_as_printed_begins_uniformly_and_finds_the_optimum():
    box = torch.tensor([[0.0], [7.0]], dtype=torch.double)
    given = BoxThompsonPolicy(0.05, scale=1.0)
    given = BoxBandit(box, rbf(), 0.1, policy=given, batch_size=30, seed=0)
    bandit = BoxThompsonSampling(box, seed=0)
    assert torch.equal(bandit.ask(), given.ask())
    for _ in range(3):
        points = bandit.pending_points
        bandit.tell(points, torch.exp(-((points.squeeze(-1) - 5) ** 2) / 2))
        points = bandit.ask()
    fit = bandit._surrogate.fit
    assert fit.units.mean == 0
    assert fit.next_fit == bandit.num_pulls + 1
    assert (bandit.best_point() - 5).abs() < 0.1
    assert ((points - 5).abs() < 0.5).float().mean() > 0.6
