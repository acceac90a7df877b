"""The knowledge gradient over a finite set, against quadrature on dense moments."""

import math

import numpy as np
import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Log

import botorch_bkb.acquisition.input_constructors  # noqa: F401
from botorch_bkb.acquisition import DiscreteKnowledgeGradient
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import optimize_acqf_finite
from tests.acquisition import exact_joint, fixed_gp, NOISE, standardized_data


GENERATOR = torch.Generator().manual_seed(3)
CHOICES = torch.rand(40, 2, dtype=torch.float64, generator=GENERATOR)
CANDIDATES = torch.cat(
    [CHOICES[:6], torch.rand(5, 2, dtype=torch.float64, generator=GENERATOR)]
)
X, Y = standardized_data(12)
Z = np.linspace(-9, 9, 90_001)
WEIGHTS = np.exp(-(Z**2) / 2) * (Z[1] - Z[0]) / math.sqrt(2 * math.pi)


def expected_rises(sign=1.0, scale=1.0):
    """Return the rises by dense algebra and a Riemann sum over the result."""
    both = np.vstack([CHOICES, CANDIDATES])
    mean, K = exact_joint(X, Y, both)
    mean = sign * mean
    rises = []
    for j in range(len(CHOICES), len(both)):
        b = K[: len(CHOICES), j] / math.sqrt(K[j, j] + NOISE)
        best = (mean[: len(CHOICES), None] + b[:, None] * Z).max(axis=0)
        rises.append(best @ WEIGHTS - mean[: len(CHOICES)].max())
    return scale * np.array(rises)


def rises_of(model, **options):
    acqf = DiscreteKnowledgeGradient(model, CHOICES, **options)
    return acqf(CANDIDATES.unsqueeze(-2)).detach()


@pytest.mark.parametrize("unit", [7.0, 1e-6])
@pytest.mark.parametrize("model_class", [SingleTaskGP, SingleTaskDTCGP])
def test_it_is_the_expected_rise_of_the_best_mean(model_class, unit):
    fixed = fixed_gp(X, Y)
    parts = ("likelihood", "covar_module", "mean_module")
    options = {part: getattr(fixed, part) for part in parts}
    model = model_class(X, unit * (4 + Y), **options)  # standardized inside
    for maximize, sign in ((True, 1.0), (False, -1.0)):
        found = rises_of(model, maximize=maximize)
        np.testing.assert_allclose(
            found, expected_rises(sign, unit), rtol=1e-5, atol=1e-8 * unit
        )
        acqf = DiscreteKnowledgeGradient(model, CHOICES, maximize=maximize)
        (index,), value = optimize_acqf_finite(acqf, CANDIDATES, chunk_size=4)
        assert index == found.argmax()
        torch.testing.assert_close(value, found.amax(keepdim=True), atol=0, rtol=1e-6)


def test_it_takes_a_scalarized_model_and_has_gradients():
    model = ModelListGP(fixed_gp(X, Y), fixed_gp(X, 0 * Y, noise=1e3))
    weights = torch.tensor([-1.0, 0.0], dtype=torch.float64)
    transform = ScalarizedPosteriorTransform(weights)
    found = rises_of(model, posterior_transform=transform)
    np.testing.assert_allclose(found, expected_rises(-1.0), rtol=1e-5, atol=1e-8)
    acqf = DiscreteKnowledgeGradient(fixed_gp(X, Y), CHOICES)
    points = CANDIDATES[5:8].unsqueeze(-2).clone().requires_grad_(True)
    assert torch.autograd.gradcheck(acqf, points, atol=1e-6)


def test_it_can_be_small_but_neither_negative_nor_nan():
    """Of equal choices, of one choice, and after many results."""
    X_many = torch.cat([CHOICES] * 30)
    model = fixed_gp(X_many, 9 * torch.sin(X_many.sum(dim=-1, keepdim=True)), 1e-4)
    for choices in (CHOICES[:1], CHOICES[:1].repeat(4, 1), CHOICES):
        acqf = DiscreteKnowledgeGradient(model, choices)
        found = acqf(CANDIDATES.unsqueeze(-2)).detach()
        assert ((found >= 0) & (found < 1e-3)).all()


def test_what_does_not_fit_is_refused_and_ax_can_construct_it():
    with pytest.raises(BotorchTensorDimensionError, match="`choices` of shape C x d"):
        DiscreteKnowledgeGradient(fixed_gp(X, Y), CHOICES[0])
    model = SingleTaskGP(X, Y.exp(), outcome_transform=Log())
    with pytest.raises(UnsupportedError, match="got a TransformedPosterior"):
        rises_of(model)
    construct = get_acqf_input_constructor(DiscreteKnowledgeGradient)
    inputs = construct(model=fixed_gp(X, Y), choices=CHOICES)
    acqf = DiscreteKnowledgeGradient(**inputs)
    np.testing.assert_allclose(
        acqf(CANDIDATES.unsqueeze(-2)).detach(), expected_rises(), rtol=1e-5, atol=1e-8
    )
