"""Greedy batches of Monte Carlo functions, whose picks share their samples."""

from functools import partial

import numpy as np
import pytest
import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.acquisition.logei import (
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.max_value_entropy_search import qMaxValueEntropy
from botorch.acquisition.monte_carlo import (
    MCAcquisitionFunction,
    qNoisyExpectedImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.multi_objective.logei import (
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    LinearMCObjective,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.risk_measures import CVaR
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.transforms import Log, Normalize
from botorch.models.transforms.input import InputPerturbation
from botorch.optim.optimize import optimize_acqf_discrete
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from typing_extensions import override

from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import optimize_acqf_finite, shared_samples
from botorch_bkb.optim.shared_samples import can_share
from tests.acquisition import exact_joint, fixed_gp, standardized_data
from tests.helpers import random_points


NUM_SAMPLES = 16
X, Y = standardized_data(8)
TASKS = torch.cat([X, torch.arange(8).remainder(2).to(X).unsqueeze(-1)], dim=-1)
CHOICES = random_points(25, 2, seed=3)


def sampler(seed=5, kind=SobolQMCNormalSampler, size=NUM_SAMPLES):
    return kind(torch.Size([size]), seed=seed)


def normal_numbers(size, kind):
    unit = MultivariateNormal(torch.zeros(size).double(), torch.eye(size).double())
    return sampler(kind=kind)(GPyTorchPosterior(unit)).squeeze(-1).numpy()


def reference(new_function, q, pending, baseline, unique, kind):
    """Draw the baseline, the chosen points and the candidate, in this order."""
    size = len(baseline) + len(pending) + q
    normals = normal_numbers(size, kind)[:, len(baseline) :]
    if len(baseline):
        posterior = fixed_gp(X, Y).posterior(baseline)
        drawn = sampler(kind=kind)(posterior).squeeze(-1).detach().numpy()
        mean, covariance = exact_joint(X, Y, baseline.numpy())
        root = np.linalg.cholesky(covariance)
        first = np.linalg.solve(root, (drawn - mean).T).T
        normals = np.concatenate([first, normals], axis=1)
    chosen = torch.cat([baseline, pending])
    picks, values = [], []
    for _ in range(q):
        scores = []
        for candidate in CHOICES:
            points = torch.cat([chosen, candidate.unsqueeze(0)])
            mean, covariance = exact_joint(X, Y, points.numpy())
            # A point that is there already has a singular covariance.
            root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(points)))
            samples = mean + normals[:, : len(points)] @ root.T
            scores.append(new_function(torch.from_numpy(samples)))
        scores = np.array(scores)
        if unique:
            scores[picks] = -np.inf
        picks.append(int(scores.argmax()))
        values.append(scores.max())
        chosen = torch.cat([chosen, CHOICES[picks[-1:]]])
    return picks, values


def on_samples(function, samples):
    """Return the value that a function of BoTorch gives to samples."""
    utilities = function._sample_forward(samples.unsqueeze(1))
    return function._sample_reduction(function._q_reduction(utilities)).item()


def ucb(model, **options):
    return qUpperConfidenceBound(model, beta=4.0, **options)


def log_ei(model, **options):
    return qLogExpectedImprovement(model, best_f=0.2, **options)


class SecondBest(MCAcquisitionFunction):
    """A user's own: the mean of the second largest sample."""

    @override
    def forward(self, X):
        if self.X_pending is not None:
            pending = self.X_pending.expand(*X.shape[:-2], -1, -1)
            X = torch.cat([pending, X], dim=-2)
        posterior = self.model.posterior(X)
        samples = self.get_posterior_samples(posterior).squeeze(-1)
        return samples.topk(min(2, X.shape[-2]), dim=-1).values[..., -1].mean(dim=0)


@pytest.mark.parametrize("model_class", [SingleTaskDTCGP, SingleTaskGP])
@pytest.mark.parametrize(
    ("new_function", "num_pending", "unique", "kind"),
    [
        (ucb, 0, True, SobolQMCNormalSampler),
        (ucb, 2, False, IIDNormalSampler),
        (log_ei, 0, False, SobolQMCNormalSampler),
        (qSimpleRegret, 3, True, SobolQMCNormalSampler),
        (SecondBest, 2, True, SobolQMCNormalSampler),
    ],
)
def test_batches_are_those_of_the_plain_reference(
    new_function, num_pending, unique, kind, model_class
):
    exact, model = fixed_gp(X, Y), fixed_gp(X, Y, model_class=model_class)
    pending = CHOICES[[4, 9, 9]][:num_pending]
    function = new_function(
        model, sampler=sampler(kind=kind), X_pending=pending if num_pending else None
    )
    assert can_share(function, CHOICES, 4)
    indices, values = optimize_acqf_finite(
        function, CHOICES, q=4, unique=unique, chunk_size=7
    )

    def evaluated(samples):
        if new_function is not SecondBest:
            return on_samples(new_function(exact), samples)
        size = min(2, samples.shape[-1])
        return samples.topk(size, dim=-1).values[..., -1].mean().item()

    picks, expected = reference(evaluated, 4, pending, X[:0], unique, kind)
    assert indices.tolist() == picks
    np.testing.assert_allclose(values, expected, atol=1e-5)
    # The function is as it was.
    assert function.model is model
    assert (function.X_pending is None) == (num_pending == 0)


def test_noisy_improvement_keeps_the_samples_of_the_baseline():
    model, baseline = fixed_gp(X, Y), X[:5]
    function = qLogNoisyExpectedImprovement(
        model, baseline, sampler=sampler(), prune_baseline=False
    )
    indices, values = optimize_acqf_finite(function, CHOICES, q=3)

    def improvement(samples):
        own, best = samples[:, -1:], samples[:, :-1].amax(dim=-1, keepdim=True)
        return on_samples(qLogExpectedImprovement(model, best_f=0.0), own - best)

    picks, expected = reference(
        improvement, 3, X[:0], baseline, True, SobolQMCNormalSampler
    )
    assert indices.tolist() == picks
    np.testing.assert_allclose(values, expected, atol=1e-4)


def two_outcomes(kind):
    second = (X - 0.5).square().sum(dim=-1, keepdim=True)
    if kind == "list":
        return ModelListGP(fixed_gp(X, Y), SingleTaskDTCGP(X, second))
    return SingleTaskGP(X, torch.cat([Y, second], dim=-1))


def hypervolume(kind, reference_point, **options):
    return lambda sampler: qLogNoisyExpectedHypervolumeImprovement(
        two_outcomes(kind), reference_point, X[:7], sampler=sampler, **options
    )


WEIGHTS = ScalarizedPosteriorTransform(torch.tensor([1.0, 0.5]).double())
FUNCTIONS = {
    "list": hypervolume("list", [-1.0, 0.0]),
    "pruned": hypervolume("one", [-1.0, 0.0], prune_baseline=True),
    # No point of the baseline is better.
    "all pruned": hypervolume("list", [9.0, 9.0], prune_baseline=True),
    "legacy": partial(qNoisyExpectedImprovement, fixed_gp(X, Y), X[:7]),
    "scalarized": lambda sampler: qLogExpectedImprovement(
        two_outcomes("one"), 0.0, sampler, posterior_transform=WEIGHTS
    ),
    "constrained": lambda sampler: qLogExpectedImprovement(
        SingleTaskDTCGP(X, Y, inducing_points=X[:4], input_transform=Normalize(2)),
        best_f=0.0,
        sampler=sampler,
        constraints=[lambda samples: samples[..., 0] - 1.0],
    ),
}


@pytest.mark.parametrize("new_function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.filterwarnings("ignore:qNoisyExpectedImprovement has known")
def test_batches_are_as_good_as_those_of_botorch(new_function):
    """By fresh samples; base samples differ, and with them the picks."""
    few = partial(sampler, size=64)
    function = new_function(few(1))
    assert can_share(function, CHOICES, 4)
    indices, _ = optimize_acqf_finite(function, CHOICES, q=3)
    with torch.no_grad():
        stock, _ = optimize_acqf_discrete(new_function(few(1)), q=3, choices=CHOICES)
        fresh = new_function(sampler(2, size=1024))
        ours, theirs = fresh(CHOICES[indices]), fresh(stock)
    assert ours >= theirs - 0.1


def test_samples_of_too_many_known_points_are_not_shared(monkeypatch):
    function = qLogNoisyExpectedImprovement(
        fixed_gp(X, Y), X[:7], sampler=sampler(), prune_baseline=False
    )
    monkeypatch.setattr(shared_samples, "MAX_BYTES", 8 * len(CHOICES) * 10)
    assert can_share(function, CHOICES, 3)
    assert not can_share(function, CHOICES, 4)


@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize(
    "new_function",
    [
        lambda: qLogExpectedImprovement(
            SingleTaskGP(X, Y.exp(), outcome_transform=Log()), 1.0, sampler=sampler()
        ),
        lambda: qMaxValueEntropy(fixed_gp(X, Y), CHOICES),  # fantasizes pending points
        lambda: qLogExpectedImprovement(
            ModelListGP(fixed_gp(X, Y), MultiTaskGP(TASKS, Y, task_feature=-1)),
            best_f=0.0,
            sampler=sampler(),
            objective=LinearMCObjective(torch.ones(3).double()),
        ),
    ],
)
def test_what_cannot_be_shared_is_evaluated_as_before(new_function):
    found = []
    for optimize in (optimize_acqf_finite, optimize_acqf_discrete):
        torch.manual_seed(0)
        found.append(optimize(new_function(), choices=CHOICES, q=2))
    (indices, values), (expected, others) = found
    assert not can_share(new_function(), CHOICES, 4)
    torch.testing.assert_close(CHOICES[indices], expected)
    torch.testing.assert_close(values, others.flatten())


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_model_of_two_outcomes_with_a_kernel_of_its_own_is_not_split():
    batch = torch.Size([2])
    kernel = ScaleKernel(MaternKernel(batch_shape=batch), batch_shape=batch)
    outcomes = torch.cat([Y, X[:, :1]], dim=-1)
    model = SingleTaskGP(X, outcomes, covar_module=kernel, outcome_transform=None)
    one, other = (
        qLogNoisyExpectedHypervolumeImprovement(
            model, [-1.0, 0.0], X, sampler=sampler()
        )
        for _ in range(2)
    )
    assert not can_share(one, CHOICES, 2)
    indices, _ = optimize_acqf_finite(one, CHOICES, q=2)
    expected, _ = optimize_acqf_discrete(other, q=2, choices=CHOICES)
    torch.testing.assert_close(CHOICES[indices], expected)


def test_a_model_of_several_tasks_needs_no_pending_points():
    model = MultiTaskGP(TASKS, Y, task_feature=-1, output_tasks=[0])
    function = qLogExpectedImprovement(model, best_f=0.0, sampler=sampler())
    assert can_share(function, CHOICES, 2)
    indices, _ = optimize_acqf_finite(function, CHOICES, q=2)
    with torch.no_grad():
        first = function(CHOICES.unsqueeze(-2))
    # With other base samples.
    assert first[indices[0]] > first.topk(5).values[-1]
    assert len({*indices.tolist()}) == 2


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_several_rows_of_one_choice_are_evaluated_as_before():
    perturbed = InputPerturbation(torch.tensor([[-0.1], [0.1]]).double().expand(2, 2))
    model = SingleTaskDTCGP(X, Y, input_transform=perturbed)
    function = qLogExpectedImprovement(
        model, best_f=0.0, sampler=sampler(), objective=CVaR(alpha=0.5, n_w=2)
    )
    assert not can_share(function, CHOICES, 4)
    indices, _ = optimize_acqf_finite(function, CHOICES, q=2)
    expected, _ = optimize_acqf_discrete(function, q=2, choices=CHOICES)
    torch.testing.assert_close(CHOICES[indices], expected)
    mean = UpperConfidenceBound(
        model, beta=1.0, posterior_transform=ExpectationPosteriorTransform(2)
    )
    with torch.no_grad():
        values = mean(CHOICES.unsqueeze(-2))
    index, value = optimize_acqf_finite(mean, CHOICES, chunk_size=3)
    assert index.item() == int(values.argmax())
    torch.testing.assert_close(value, values.max().unsqueeze(0))


def test_best_values_of_a_gradient_and_default_samplers_are_taken():
    model = fixed_gp(X, Y)
    best = model.posterior(X).mean.max()  # has a gradient
    torch.manual_seed(0)
    function = qLogExpectedImprovement(model, best_f=best)
    indices, _ = optimize_acqf_finite(function, CHOICES, q=3)
    assert len(set(indices.tolist())) == 3
    assert function.sampler is None or function.sampler.base_samples is None


@pytest.mark.parametrize("kind", [SingleTaskGP, SingleTaskDTCGP])
def test_a_posterior_transform_is_the_objective_that_does_the_same(kind):
    minus, picks = torch.tensor([-1.0]).double(), []
    for option in (
        {"posterior_transform": ScalarizedPosteriorTransform(minus)},
        {"objective": LinearMCObjective(minus)},
    ):
        samples = sampler(3, size=256)
        function = qUpperConfidenceBound(kind(X, Y), 1.5, sampler=samples, **option)
        picks.append(optimize_acqf_finite(function, CHOICES, q=4))
    assert picks[0][0].equal(picks[1][0])
    torch.testing.assert_close(picks[0][1], picks[1][1], rtol=0.01, atol=0.01)
