from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
)
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.optim.optimize import optimize_acqf_discrete
from gpytorch.kernels import MaternKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    ScheduledUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim.optimize_finite import (
    optimize_acqf_finite,
    top_k_choices,
    VarianceBound,
)
from tests.acquisition import exact_moments, fixed_gp, standardized_data
from tests.helpers import LargestTensor, random_points, seeded


def first_feature() -> PosteriorMean:
    """Return an acquisition function whose value is the first feature."""
    return PosteriorMean(GenericDeterministicModel(lambda X: X[..., :1]))


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def random_choices(num_choices: int, num_features: int = 2, seed: int = 11) -> Tensor:
    return random_points(num_choices, num_features, seed=seed)


def greedy_gp_bucb(X, Y, choices, num_deviations, q, unique):
    """Choose greedily by GP-BUCB, recomputing everything by dense algebra."""
    mean, _ = exact_moments(X, Y, choices)
    hallucinated = X
    picks: list[int] = []
    values: list[float] = []
    for _ in range(q):
        targets = torch.zeros(len(hallucinated), 1)
        _, variance = exact_moments(hallucinated, targets, choices)
        bound = mean + num_deviations * np.sqrt(variance)
        if unique:
            bound[picks] = -np.inf
        picks.append(int(bound.argmax()))
        values.append(bound.max())
        hallucinated = torch.cat([hallucinated, choices[picks[-1:]]])
    return picks, values


def jittered() -> PosteriorMean:
    """Return one whose values have an error of rounding that differs by place."""

    def first_feature(X: Tensor) -> Tensor:
        place = torch.arange(len(X)).flip(0).reshape(-1, *[1] * (X.dim() - 1))
        return X[..., :1] * (1 + 1e-15 * place)

    return PosteriorMean(GenericDeterministicModel(first_feature))


@given(seed=st.integers(0, 2**31), chunk_size=st.integers(1, 30))
@settings(max_examples=30)
def test_identical_rows_tie_whatever_rounding_does(seed, chunk_size):
    generator = seeded(seed)
    distinct = random_choices(8, seed=seed)
    rows = torch.randint(8, (24,), generator=generator)
    available = torch.rand(24, generator=generator) < 0.8
    available[:2] = True
    options = {"available": available, "chunk_size": chunk_size}
    choices = distinct[rows]
    order = sorted(
        available.nonzero().squeeze(-1).tolist(), key=lambda i: (-choices[i, 0], i)
    )
    index, _ = optimize_acqf_finite(jittered(), choices, **options)
    assert index.tolist() == order[:1]
    indices, values = top_k_choices(jittered(), choices, k=len(order), **options)
    assert indices.tolist() == order
    assert (values.diff() <= 0).all()


# ------------------------------------ one pick ------------------------------------ #


def test_only_available_choices_are_picked_and_evaluated():
    choices = column([9.0, 3.0, float("nan"), 4.0, 4.0])
    available = torch.tensor([False, True, False, True, True])
    indices, values = optimize_acqf_finite(
        first_feature(), choices, available=available
    )
    assert (indices.tolist(), values.tolist()) == ([3], [4.0])


def bounded_functions(model):
    """Return analytic functions that rise with the variance, either direction."""
    for maximize in (True, False):
        yield UpperConfidenceBound(model, beta=2.0, maximize=maximize)
        yield LogExpectedImprovement(model, best_f=0.3, maximize=maximize)
    yield ScheduledUpperConfidenceBound(model, 1.5)


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
@given(
    seed=st.integers(0, 2**31),
    num_inducing=st.sampled_from([None, 3]),
    scale=st.sampled_from([2.0, 1e6]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
@settings(max_examples=15)
def test_bounds_exclude_no_choice_that_is_best(seed, num_inducing, scale, dtype):
    """Nor the lowest index of equal ones, with transforms of inputs and outcomes."""
    X, Y = (values.to(dtype) for values in standardized_data(12, seed=seed))
    transforms = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}
    S = X[:num_inducing]
    model = SingleTaskDTCGP(X, 3 + scale * Y, inducing_points=S, **transforms)
    choices = random_choices(60, seed=seed).to(dtype).repeat(2, 1)
    digits = 1e-9 if dtype == torch.float64 else 1e-3
    near = {"rtol": digits, "atol": digits * scale}  # rounding depends on the chunk
    for function in bounded_functions(model):
        with torch.no_grad():
            values = function(choices.unsqueeze(-2))
        index, value = optimize_acqf_finite(function, choices, chunk_size=7)
        torch.testing.assert_close(value, values.max().unsqueeze(0), **near)
        assert index.item() < 60
        torch.testing.assert_close(values[index.item()], values.max(), **near)


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_choices_may_have_another_precision_than_the_model():
    """Which BoTorch converts when it evaluates."""
    X, Y = (values.float() for values in standardized_data(12))
    for function in bounded_functions(SingleTaskDTCGP(X, Y)):
        for choices in (random_choices(60), random_choices(60).float()):
            _, value = optimize_acqf_finite(function, choices, chunk_size=7)
            with torch.no_grad():
                expected = function(choices.unsqueeze(-2)).max()
            torch.testing.assert_close(value, expected.unsqueeze(0))


def test_bounds_leave_few_choices_to_evaluate(monkeypatch):
    X, Y = standardized_data(40)
    function = UpperConfidenceBound(SingleTaskDTCGP(X, Y), beta=2.0)
    evaluated = []
    forward = UpperConfidenceBound.forward

    def counted(self, X):
        if not isinstance(self.model.prediction_strategy, VarianceBound):
            evaluated.append(len(X))
        return forward(self, X)

    monkeypatch.setattr(UpperConfidenceBound, "forward", counted)
    optimize_acqf_finite(function, random_choices(4_000), chunk_size=100)
    assert sum(evaluated) < 500


def test_choices_are_available_by_indices_avoided_and_constrained():
    choices = column([5.0, 4.0, 3.0, 2.0, 1.0])
    first = torch.tensor([0])
    at_most_3 = (first, torch.tensor([-1.0], dtype=torch.double), -3.0)
    for options, expected in (
        ({"available": torch.tensor([4, 2])}, 2),
        ({"X_avoid": column([5.0, 4.0, 7.0])}, 2),
        ({"inequality_constraints": [at_most_3]}, 2),
        ({"inequality_constraints": [at_most_3], "X_avoid": choices[2:3]}, 3),
    ):
        index, _ = optimize_acqf_finite(first_feature(), choices, **options)
        assert index.item() == expected
        stock = {"inequality_constraints": None, "X_avoid": None} | options
        if "available" not in stock:
            point, _ = optimize_acqf_discrete(first_feature(), 1, choices, **stock)
            torch.testing.assert_close(point, choices[index])
    with pytest.raises(InputDataError, match="loosen `X_avoid`"):
        optimize_acqf_finite(first_feature(), choices, X_avoid=choices)


# ----------------------------------- many picks ----------------------------------- #


@pytest.mark.parametrize(
    ("num_deviations", "num_pending", "unique", "chunk_size"),
    [(0.5, 0, True, 1), (0.5, 0, False, 17), (2.0, 3, False, 2048)],
)
def test_batch_is_that_of_plain_greedy_gp_bucb(
    num_deviations, num_pending, unique, chunk_size
):
    """And adds to the points that are already pending, which stay as they were."""
    X, Y = standardized_data(6)
    choices = random_choices(40)
    picks, bounds = greedy_gp_bucb(X, Y, choices, num_deviations, 12, unique)
    pending = choices[picks[:num_pending]]
    acqf = BatchUpperConfidenceBound(fixed_gp(X, Y), num_deviations, X_pending=pending)
    indices, values = optimize_acqf_finite(
        acqf, choices, q=12 - num_pending, unique=unique, chunk_size=chunk_size
    )
    assert indices.tolist() == picks[num_pending:]
    np.testing.assert_allclose(values, bounds[num_pending:], atol=1e-6)
    assert (len(set(picks)) == 12) == unique
    assert num_pending == 0 or torch.equal(acqf.X_pending, pending)


class FailingBound(BatchUpperConfidenceBound):
    """Fails once three points are pending."""

    def forward(self, X: Tensor) -> Tensor:  # type: ignore[explicit-override]
        if self.X_pending is not None and len(self.X_pending) == 3:
            raise RuntimeError("no memory left")
        return super().forward(X)


def test_pending_points_are_restored_after_an_error():
    choices = random_choices(10)
    acqf = FailingBound(fixed_gp(*standardized_data(6)), 2.0, X_pending=choices[:1])
    with pytest.raises(RuntimeError, match="no memory left"):
        optimize_acqf_finite(acqf, choices, q=4)
    torch.testing.assert_close(acqf.X_pending, choices[:1])


# ------------------------------------- memory -------------------------------------- #


@pytest.mark.parametrize("optimize", [optimize_acqf_finite, top_k_choices])
def test_memory_is_one_number_per_choice_beside_one_chunk(optimize):
    acqf = BatchUpperConfidenceBound(fixed_gp(*standardized_data(20, 1)), 2.0)
    num_choices, chunk_size = 6_000, 50
    choices = random_choices(num_choices, 1)
    chunk = choices[:chunk_size].clone().unsqueeze(-2)
    with LargestTensor() as recorder:
        acqf(chunk)
    assert recorder.nbytes <= 8 * num_choices
    with LargestTensor() as recorder:
        optimize(acqf, choices, 1, chunk_size=chunk_size)
    assert recorder.nbytes == 8 * num_choices


# ------------------------------------ bad input ------------------------------------ #


def test_bad_choices_are_refused():
    X, nan = torch.rand(5, 2), float("nan")
    few, none = torch.ones(4, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)
    for choices, options, message in (
        (X.unsqueeze(1), {}, r"A x d, but got \(5, 1, 2\)"),
        (X, {"X_avoid": X[0]}, r"shape n x 2, but got \(2,\)"),
        (X, {"X_avoid": X.repeat(1, 2)}, r"shape n x 2, but got \(5, 4\)"),
        (X.long(), {}, "`choices` to be a de"),
        (X, {"chunk_size": 0}, "`chunk_size` to be an"),
        (4, {"q": X}, r"`\(acq_function, choices, q=4\)`"),
        (X, {"available": few}, r"`available` to be a boolean tensor of shape \(5,\)"),
        (X, {"available": none}, "got none of 5"),
        (column([0.0, nan, nan]), {}, "NaN for 2, the first of them choice 1"),
    ):
        shape = r"but got \(" in message
        error = BotorchTensorDimensionError if shape else InputDataError
        with pytest.raises(error, match=message):
            optimize_acqf_finite(first_feature(), choices, **{"q": 1, **options})


@pytest.mark.parametrize(
    ("optimize", "name"), [(optimize_acqf_finite, "q"), (top_k_choices, "k")]
)
def test_numbers_of_picks_that_cannot_be_met_are_refused(optimize, name):
    acqf = BatchUpperConfidenceBound(fixed_gp(*standardized_data(6)), 2.0)
    choices, available = random_choices(3), torch.tensor([True, False, True])
    with pytest.raises(InputDataError, match=f"`{name}` to be an integer.*but got 0"):
        optimize(acqf, choices, 0)
    with pytest.raises(InputDataError, match=f"`{name}` to be at most .* 2, but got 3"):
        optimize(acqf, choices, 3, available=available)
    assert acqf.X_pending is None


def test_acquisition_functions_that_ignore_pending_points_are_refused_for_batches():
    with pytest.raises(UnsupportedError, match="PosteriorMean does not"):
        optimize_acqf_finite(first_feature(), random_choices(5), q=2)


@pytest.mark.parametrize("optimize", [optimize_acqf_finite, top_k_choices])
def test_one_shot_acquisition_functions_are_refused(optimize):
    model = fixed_gp(*standardized_data(6))
    acqf = qKnowledgeGradient(model, num_fantasies=2)
    with pytest.raises(UnsupportedError, match="one-shot qKnowledgeGradient"):
        optimize(acqf, random_choices(5), 1)


class WholeTensorSum(AcquisitionFunction):
    def forward(self, X: Tensor) -> Tensor:  # type: ignore[explicit-override]
        return X.sum()


def test_features_may_be_fixed():
    X, Y = standardized_data(12, 3)
    model = SingleTaskDTCGP(X, Y, outcome_transform=None)
    choices = random_choices(40)
    full = torch.cat([choices, torch.full((40, 1), 0.5).double()], dim=-1)
    for function, q in (
        (UpperConfidenceBound(model, 4.0), 1),
        (qLogExpectedImprovement(model, 0.1, X_pending=X[:2]), 3),
    ):
        fixed = FixedFeatureAcquisitionFunction(function, 3, [2], [0.5])
        torch.manual_seed(0)
        found, values = optimize_acqf_finite(fixed, choices, q)
        torch.manual_seed(0)
        expected, others = optimize_acqf_finite(function, full, q)
        assert torch.equal(found, expected)
        torch.testing.assert_close(values, others)
    assert torch.equal(function.X_pending, X[:2])


@pytest.mark.parametrize("q", [1, 3])
def test_the_inputs_of_the_model_may_have_a_time_beside_the_choices(q):
    X, Y = standardized_data(20, 3)
    kernel = MaternKernel(active_dims=(0, 1)) * RBFKernel(active_dims=(2,))
    found = []
    for kind in (SingleTaskDTCGP, SingleTaskGP):
        model = kind(X, Y, covar_module=deepcopy(kernel), outcome_transform=None)
        model.likelihood.noise = 0.1
        acqf = TimeVaryingUpperConfidenceBound(model, 2.0, 1.0, ratio_threshold=1.0)
        found.append(optimize_acqf_finite(acqf, random_choices(50), q))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-4)


def test_values_of_a_wrong_shape_are_refused():
    acqf = WholeTensorSum(fixed_gp(*standardized_data(6)))
    with pytest.raises(
        BotorchTensorDimensionError, match=r"shape \(5,\) for as many choices"
    ):
        optimize_acqf_finite(acqf, random_choices(5))


def test_a_mean_that_rises_with_the_variance_is_not_bounded() -> None:
    """That of a log-normal posterior; minimized, a bound of it is too low."""
    X = random_choices(60)
    Y = (9 * X).sin().sum(dim=-1, keepdim=True)
    Y = ((Y - Y.mean()) / Y.std()).exp()
    model = SingleTaskDTCGP(X, Y, outcome_transform=Log())
    model.covar_module.lengthscale, model.likelihood.noise = 0.1, 0.5
    function = UpperConfidenceBound(model.eval(), beta=0.01, maximize=False)
    choices = random_choices(500, seed=5)
    with torch.no_grad():
        values = function(choices.unsqueeze(1))
    found, value = optimize_acqf_finite(function, choices, chunk_size=32)
    assert found.item() == int(values.argmax())
    torch.testing.assert_close(value[0], values.max())


def test_choices_of_value_minus_infinity_are_picked_once_too():
    class OnlyOne(AcquisitionFunction):
        X_pending = None

        def set_X_pending(  # type: ignore[explicit-override]
            self, X_pending=None
        ):
            self.X_pending = X_pending

        def forward(self, X):  # type: ignore[explicit-override]
            return torch.where(X[..., 0, 0] > 0.5, 0.0, -torch.inf).to(X)

    function = OnlyOne(GenericDeterministicModel(lambda X: X))
    choices = column([0.1, 0.9, 0.2, 0.3])
    indices, values = optimize_acqf_finite(function, choices, q=3)
    assert indices.tolist() == [1, 0, 2]
    assert values.tolist() == [0.0, -torch.inf, -torch.inf]
    indices, _ = optimize_acqf_finite(function, choices, q=3, unique=False)
    assert indices.tolist() == [1, 1, 1]
