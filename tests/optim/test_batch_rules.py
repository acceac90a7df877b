"""Rules take pulls as a plain loop would, one by one, that looks at every sum."""

import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import LinearKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.optim import (
    FixedSize,
    optimize_batch_ucb,
    ProductRule,
    SumRule,
)
from botorch_bkb.optim.batch_rules import check_batch_rule
from botorch_bkb.posteriors import ArmMoments, ArmPosterior


# Scores of arms, of which no sum is a threshold; arm 0 has no variance.
SCORES = [math.sqrt(2) * share for share in (0.0, 0.022, 0.12, 0.37, 1.63)]
NOISE = 0.25
NONE = torch.tensor([], dtype=torch.long)


def moments(dtype=torch.double):
    ones = torch.ones(len(SCORES), dtype=dtype)
    variance = NOISE * torch.tensor(SCORES, dtype=dtype)
    return ArmMoments(ones, variance, ones, NOISE, NONE, NONE, 0.0, 0.0)


def opened(rule, posterior=None, pending=()):
    scores = torch.tensor(pending, dtype=torch.double)
    return rule.open(posterior or moments(), scores)


def plain_batch(crossed, wanted):
    """Return how many are taken of each (arm, wanted) pair, pull by pull."""
    pulls, taken = [], []
    for arm, number in wanted:
        taken.append(0)
        for _ in range(number):
            pulls.append(arm)
            taken[-1] += 1
            if crossed(pulls):
                return taken
    return taken


def taken_by(batch, wanted):
    taken = []
    for arm, number in wanted:
        taken.append(batch.take(arm, number))
        if batch.is_closed:
            break
    return taken


def crossed_sum(threshold, pending=()):
    start = 1 + sum(pending)
    return lambda pulls: start + sum(SCORES[arm] for arm in pulls) > threshold


def crossed_product(threshold, pending=()):
    def crossed(pulls):
        scores = [*pending, *(SCORES[arm] for arm in pulls)]
        return math.prod(1 + score for score in scores) > threshold

    return crossed


@pytest.mark.parametrize(
    ("rule", "crossed"), [(SumRule, crossed_sum), (ProductRule, crossed_product)]
)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 99)), min_size=1),
    threshold=st.sampled_from([1.2, 2.0, 5.0]),
    pending=st.sampled_from([(), (0.07,), (0.07, 0.011)]),
)
@settings(max_examples=25)
def test_pulls_in_a_row_are_those_of_a_loop(rule, crossed, wanted, threshold, pending):
    batch = opened(rule(threshold), pending=pending)
    expected = plain_batch(crossed(threshold, pending), wanted)
    assert taken_by(batch, wanted) == expected


RULES = [SumRule(), ProductRule()]


@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_an_arm_of_no_variance_that_stays_the_best_fills_the_batch(rule, projected):
    kernel = LinearKernel().double()
    arms = torch.tensor([[1.0], [0.0]]).double()
    posterior = ArmPosterior(arms, kernel, 1.0)
    told = torch.tensor([0])
    posterior.update(told, told, torch.tensor([50.0]), torch.tensor([-500.0]))
    scores = torch.empty(0).double()
    picks = optimize_batch_ucb(
        posterior,
        1.0,
        rule,
        projected=projected,
        pending_indices=NONE,
        pending_scores=scores,
        max_size=7,
    )
    assert picks.tolist() == 7 * [1]


def test_a_score_that_rounding_swallows_takes_no_time():
    """A sum that stands on its threshold counted its pulls one by one."""
    tiny = moments()
    tiny.variance[:2] = NOISE * torch.tensor([1.0, 1e-22])
    batch = opened(SumRule(2.0), tiny)
    assert (batch.take(0, 1), batch.is_closed) == (1, False)
    assert batch.take(1, 2**31) > 1e6
    assert batch.is_closed


def wrong_rules():  # not checked by mypy, which would refuse them too
    return [
        (lambda: FixedSize(0), "`size` to be"),
        (lambda: FixedSize(2.0), "`size` to be"),
        (lambda: SumRule(0.5), "Expected `ratio_threshold`"),
        (lambda: ProductRule(math.nan), "Expected `ratio_threshold`"),
        (lambda: check_batch_rule("sum"), "`batch_rule` to be a rule of"),
        (lambda: check_batch_rule(SumRule), "`batch_rule` to be a rule of"),
    ]


@pytest.mark.parametrize(("make", "match"), wrong_rules())
def test_what_is_no_rule_is_refused(make, match):
    with pytest.raises(InputDataError, match=match):
        make()
