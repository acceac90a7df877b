"""Uses in BoTorch: as SingleTaskGP if every input is inducing, and with fewer."""

import copy
import pickle

import pytest
import torch
from botorch.acquisition import (
    ConstrainedExpectedImprovement,
    FixedFeatureAcquisitionFunction,
    LogExpectedImprovement,
    LogNoisyExpectedImprovement,
    PosteriorMean,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qNegIntegratedPosteriorVariance,
    qNoisyExpectedImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
from botorch.acquisition.max_value_entropy_search import (
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
)
from botorch.acquisition.multi_objective.logei import (
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.risk_measures import CVaR
from botorch.acquisition.utils import project_to_target_fidelity, prune_inferior_points
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.cost import AffineFidelityCostModel
from botorch.models.kernels import CategoricalKernel, LinearTruncatedFidelityKernel
from botorch.models.transforms import (
    Bilog,
    ChainedInputTransform,
    Log,
    Normalize,
    Round,
    Standardize,
    Warp,
)
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from botorch.optim import (
    gen_batch_initial_conditions,
    optimize_acqf,
    optimize_acqf_discrete_local_search,
    optimize_acqf_mixed,
)
from botorch.optim.utils import sample_all_priors
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import RBFKernel, ScaleKernel

from botorch_bkb.models import SingleTaskDTCGP


stream = torch.Generator().manual_seed(0)
X, T = (torch.rand(n, 2, generator=stream, dtype=torch.double) for n in (20, 6))
X[:, 1] = torch.arange(20) % 3 / 2
Y = torch.sin(6 * X[:, :1]) * X[:, 1:] + X[:, :1].square()
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
Q = T.unsqueeze(-2)
SHIFTS = torch.tensor([[0.0, 0.0], [0.1, 0.0]]).double()


def sampler(size=16, seed=0):
    return SobolQMCNormalSampler(torch.Size([size]), seed=seed)


def gp(make, Y=Y, noise=0.01, X=X, **options):
    """Return a model of known hyperparameters; ``make`` says which."""
    model = make(X, Y, **options)
    for part in model.covar_module.modules():
        if getattr(part, "has_lengthscale", False):
            part.lengthscale = 0.4
    if "train_Yvar" not in options:
        model.likelihood.noise = noise
    return model.eval()


def pair(make):
    return ModelListGP(gp(make), gp(make, -Y.square(), train_Yvar=0.01 + 0 * Y))


def moments(posterior):
    return posterior.mean, posterior.variance


def at(model, T=T, **options):
    return moments(model.posterior(T, **options))


def optimized(make, acquisition=LogExpectedImprovement, **options):
    acqf = acquisition(gp(make), Y.max())
    return optimize_acqf(acqf, BOX, num_restarts=2, raw_samples=8, **options)


def analytic(make):
    model, best = gp(make), Y.max()
    yield LogExpectedImprovement(model, best)(Q)
    yield UpperConfidenceBound(model, 2.0)(Q)
    noisy = gp(make, train_Yvar=torch.full_like(Y, 0.05))
    yield LogNoisyExpectedImprovement(noisy, X, num_fantasies=3)(Q)
    yield ConstrainedExpectedImprovement(pair(make), best, 0, {1: [None, 0.5]})(Q)
    fixed = LogExpectedImprovement(model, best)
    yield FixedFeatureAcquisitionFunction(fixed, 2, [1], [0.4])(Q[..., :1])
    scalar = ScalarizedPosteriorTransform(torch.tensor([1.0, -0.5]).double())
    yield UpperConfidenceBound(pair(make), 1.0, posterior_transform=scalar)(Q)


def monte_carlo(make):
    model, batch = gp(make), T.view(2, 3, 2)
    improvement = qLogExpectedImprovement(model, Y.max(), sampler=sampler())
    yield improvement(batch)
    improvement.set_X_pending(X[:2] + 0.05)
    yield improvement(batch)
    for prune in (False, True):
        options = {"sampler": sampler(), "prune_baseline": prune}
        yield qLogNoisyExpectedImprovement(model, X, **options)(batch)
    options = {"sampler": sampler(), "prune_baseline": True}
    yield qLogNoisyExpectedHypervolumeImprovement(
        pair(make), [-2.0, -2.0], X, **options
    )(T[:2])
    yield prune_inferior_points(model, X, sampler=sampler(64))
    yield qNegIntegratedPosteriorVariance(model, T)(T[:2])


def lookahead(make):
    model, four = gp(make), {"num_fantasies": 4, "sampler": sampler(4)}
    yield qKnowledgeGradient(model, **four)(T[:5])
    two_steps = {"batch_sizes": [1, 1], "samplers": [sampler(2), sampler(2)]}
    yield qMultiStepLookahead(model, **two_steps)(torch.cat([X, T])[:13])
    cost = InverseCostWeightedUtility(AffineFidelityCostModel({1: 1.0}, 1.0))
    options = {
        "cost_aware_utility": cost,
        "current_value": Y.max(),
        "project": lambda x: project_to_target_fidelity(
            x, d=2, target_fidelities={1: 1.0}
        ),
    }
    kernel = LinearTruncatedFidelityKernel([1], dimension=2)
    fidelities = gp(make, covar_module=ScaleKernel(kernel))
    yield qMultiFidelityKnowledgeGradient(fidelities, **four, **options)(T[:5])


def entropy(make):
    model = gp(make)
    for function in (qMaxValueEntropy, qLowerBoundMaxValueEntropy):
        torch.manual_seed(0)
        yield function(model, torch.cat([X, T]))(Q)
    optimal = T[:3], model.posterior(T[:3]).mean.detach()
    yield qJointEntropySearch(model, *optimal)(Q[3:])


def input_transforms(make):
    for transform in (
        Normalize(2),
        Round(integer_indices=[0]),
        Warp(2, [0]),
        ChainedInputTransform(a=Normalize(2), b=Round(integer_indices=[0])),
    ):
        model = gp(make, input_transform=transform)
        yield from at(model)
        yield from at(model.fantasize(Q[:3], sampler(3)))
        yield from at(model.condition_on_observations(T[:2], Y[:2]))
    model = gp(make, input_transform=InputPerturbation(SHIFTS))
    yield from at(model)
    model = gp(make, input_transform=model.input_transform)
    yield from at(model)
    risk = {"objective": CVaR(0.7, 2), "sampler": sampler(), "prune_baseline": True}
    yield qNoisyExpectedImprovement(model, X, **risk)(T[:2])
    expectation = ExpectationPosteriorTransform(2)
    yield PosteriorMean(model, posterior_transform=expectation)(Q)
    wide, transform = torch.cat([X, X[:, :1]], dim=-1), AppendFeatures(SHIFTS[:, :1])
    yield from at(gp(make, X=wide, input_transform=transform))


def outcome_transforms(make):
    yield from at(gp(make, outcome_transform=None))
    yield from at(gp(make, outcome_transform=Standardize(1)))
    yield from at(gp(make, Y.abs() + 0.1, outcome_transform=Log()))
    yield sampler()(gp(make, outcome_transform=Bilog()).posterior(T))


def optimizers(make):
    yield from optimized(make, q=1)
    fixed = gp(make)
    acqf = qLogExpectedImprovement(fixed, Y.max(), sampler=sampler())
    options = {"num_restarts": 2, "raw_samples": 8}
    yield from optimize_acqf(acqf, BOX, q=2, sequential=True, **options)
    features = [{1: 0.0}, {1: 0.5}, {1: 1.0}]
    yield from optimize_acqf_mixed(
        acqf, BOX, 1, fixed_features_list=features, **options
    )
    grid = [torch.linspace(0, 1, 5, dtype=torch.double)] * 2
    yield from optimize_acqf_discrete_local_search(acqf, grid, 2, **options)
    yield gen_batch_initial_conditions(acqf, BOX, 2, num_restarts=3, raw_samples=8)


def draws(make):
    model = gp(make)
    yield MaxPosteriorSampling(model, replacement=False)(T, 3)
    yield sampler()(model.posterior(T.view(3, 2, 2)))
    paths = draw_matheron_paths(model, torch.Size([3]))  # of other random numbers
    yield torch.tensor(paths(T).shape)


def lists(make):
    models = pair(make)
    yield from at(models)
    yield from at(models.subset_output([1]), observation_noise=True)
    yield from at(models.fantasize(T[:2], sampler(3)))


def categories(make):
    kernel = RBFKernel(active_dims=[0]) * CategoricalKernel(active_dims=[1])
    model = gp(make, X=X * 2, covar_module=ScaleKernel(kernel))
    yield from at(model, X[:4] * 2)


def gradients(make):
    model, x = gp(make), T.clone().requires_grad_()
    value = qLogExpectedImprovement(model, Y.max(), sampler=sampler())(x)
    yield from torch.autograd.grad(value.sum(), x)
    covariance = model.posterior(x).distribution.covariance_matrix
    yield from torch.autograd.grad(covariance.logdet(), x)


def copies(make):
    model = gp(make)
    model.posterior(T)  # fills its caches
    other = make(X, Y)
    other.load_state_dict(model.state_dict())
    for each in (other.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        yield from at(each)
    longer = make(torch.cat([X, T]), torch.cat([Y, Y[:6]]))
    longer.load_state_dict(model.state_dict())
    yield from at(longer.eval())
    single = model.to(torch.float32).train().eval()
    yield single.posterior(T.float()).mean.double().round(decimals=4)
    sample_all_priors(other)
    yield from at(other)


USES = [
    *(analytic, monte_carlo, lookahead, entropy, input_transforms, outcome_transforms),
    *(optimizers, draws, lists, categories, gradients, copies),
]


def sparse(X, Y, **options):
    return SingleTaskDTCGP(X, Y, inducing_points=X[:12], **options)


@pytest.mark.filterwarnings("ignore")  # of BoTorch, as with its own model
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_use_in_botorch(use):
    found, expected, answers = [], [], []
    for make, parts in (
        (SingleTaskDTCGP, found),
        (SingleTaskGP, expected),
        (sparse, answers),
    ):
        torch.manual_seed(0)
        parts += use(make)
    for one, other, answer in zip(found, expected, answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert answer.shape == other.shape
        assert answer.double().isfinite().all()
