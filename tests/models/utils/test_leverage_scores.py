"""Inclusion probabilities, and draws by them."""

import pytest
import torch

from botorch_bkb.models.utils.leverage_scores import (
    inclusion_probabilities,
    sample_inducing_indices,
)


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
