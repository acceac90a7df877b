"""Rules, and the lazy batch optimizer against a loop that recomputes everything."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import LinearKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.arms import PullLimits
from botorch_bkb.optim import FixedSize, optimize_batch_ucb, ProductRule, SumRule
from botorch_bkb.optim.batch_rules import check_batch_rule, fill_batch
from botorch_bkb.posteriors import ArmMoments, ArmPosterior, upper_bounds
from botorch_bkb.posteriors.upper_bounds import UpperBounds
from tests.bandits import rbf
from tests.helpers import gram_matrix
from tests.reference import greedy_batch


NONE = torch.tensor([], dtype=torch.long)


@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("rule", [SumRule(), ProductRule()], ids=repr)
def test_an_arm_of_no_variance_that_stays_the_best_fills_the_batch(rule, projected):
    kernel = LinearKernel().double()
    arms = torch.tensor([[1.0], [0.0]]).double()
    posterior = ArmPosterior(arms, kernel, 1.0)
    told = torch.tensor([0])
    posterior.update(told, told, torch.tensor([50.0]), torch.tensor([-500.0]))
    pending = {"pending_indices": NONE, "pending_scores": torch.empty(0).double()}
    options = {"projected": projected, "max_size": 7, **pending}
    picks = optimize_batch_ucb(posterior, 1.0, rule, **options)
    assert picks.tolist() == 7 * [1]


def test_a_score_that_rounding_swallows_takes_no_time():
    """A sum that stands on its threshold counted its pulls one by one."""
    ones, variance = torch.ones(2).double(), torch.tensor([0.25, 0.25e-22]).double()
    tiny = ArmMoments(ones, variance, ones, 0.25, NONE, NONE, 0.0, 0.0)
    batch = SumRule(2.0).open(tiny, torch.empty(0).double())
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


# Batches against the plain greedy loop ------------------------------------------------


RULES = {
    "fixed": lambda threshold, size: FixedSize(size),
    "sum": lambda threshold, size: SumRule(threshold),
    "product": lambda threshold, size: ProductRule(threshold),
}


class Problem:
    """A random posterior, by the package and as plain numbers for the reference."""

    def __init__(self, seed, num_arms=60, exact=False, kernel=None, noise=None):
        generator = torch.Generator().manual_seed(seed)
        numbers = np.random.default_rng(seed)
        self.noise = noise or float(numbers.choice([0.05, 0.3, 2.0]))
        if kernel is None:
            kernel = rbf(numbers.uniform(0.2, 1.0))
        arms = torch.rand(num_arms, 2, generator=generator, dtype=torch.double)
        self.gram = gram_matrix(kernel, arms)
        pulled = np.sort(numbers.choice(num_arms, size=12, replace=False))
        self.counts = np.zeros(num_arms)
        self.counts[pulled] = numbers.integers(1, 6, size=12)
        self.sums = self.counts * numbers.normal(size=num_arms)
        self.S = list(pulled) if exact else list(pulled[: numbers.integers(3, 12)])
        self.posterior = ArmPosterior(arms, kernel, self.noise)
        indices = torch.as_tensor(pulled)
        self.posterior.update(
            torch.as_tensor(np.array(self.S)),
            indices,
            torch.as_tensor(self.counts[pulled]),
            torch.as_tensor(self.sums[pulled]),
        )

    def choose(self, width, rule, projected, pending=(), scores=(), **options):
        return optimize_batch_ucb(
            self.posterior,
            width,
            rule,
            projected=projected,
            pending_indices=torch.tensor(pending, dtype=torch.long),
            pending_scores=torch.tensor(scores, dtype=torch.double),
            **options,
        ).tolist()

    def greedy(self, width, rule, projected, **options):
        state = self.gram, self.noise, self.S, self.counts, self.sums
        return greedy_batch(*state, width, rule, projected=projected, **options)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", RULES)
@given(
    seed=st.integers(0, 100_000),
    threshold=st.sampled_from([1.5, 2.0, 8.0]),
    projected=st.booleans(),
    pending=st.sampled_from([[], [3, 50, 3]]),
    limit=st.none() | st.integers(0, 3),
    sizes=st.tuples(*[st.sampled_from([1, 2, 7, 15, 1024])] * 2),
    room=st.sampled_from([0, 4, 1000]),
)
@settings(max_examples=15)
def test_every_rule_picks_what_the_plain_greedy_loop_picks(
    name, exact, seed, threshold, projected, pending, limit, sizes, room
):
    """Sparse with a fixed set, and the exact GP; pools of any size."""
    problem = Problem(seed, exact=exact)
    problem.posterior.room = room
    width = [0.0, 0.5, 2.0, 5.0][seed % 4]
    batch = {"projected": projected and name != "fixed", "pending": pending}
    scores = [0.2, 0.1, 0.2][: len(pending)]
    capacity = limits = None
    if limit is not None:
        capacity = np.r_[np.full(5, limit + 1), np.full(55, limit)]
        limits = PullLimits(torch.from_numpy(capacity).int())
    with pytest.MonkeyPatch.context() as patch:
        names = ("POOL_SIZE", "MAX_POOL_SIZE")
        for constant, size in zip(names, sizes, strict=True):
            patch.setattr(upper_bounds, constant, size)
        patch.setattr(upper_bounds, "MAX_DOWNDATES", 4)
        rule, more = RULES[name](threshold, 20), {"limits": limits, "max_size": 30}
        ours = problem.choose(width, rule, scores=scores, **batch, **more)
    more = {"size": 20, "cap": 30, "capacity": capacity}
    theirs = problem.greedy(
        width, name, threshold=threshold, pending_scores=scores, **batch, **more
    )
    assert ours == theirs


def test_a_singular_gram_matrix():
    """A linear kernel in two dimensions has rank two: ten inducing arms, two kept."""
    for seed in range(5):
        problem = Problem(seed, kernel=LinearKernel().double(), noise=0.3)
        for name in ("sum", "fixed"):
            ours = problem.choose(1.5, RULES[name](4.0, 12), name == "sum")
            options = {"threshold": 4.0, "size": 12}
            assert ours == problem.greedy(1.5, name, name == "sum", **options)
        assert problem.posterior.inducing_indices.numel() == 2


@pytest.mark.parametrize("name", ["sum", "product"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_rule_goes_on_after_a_given_first_arm(name, exact):
    """As where a new arm is due; only the draw that opens a run is waited for."""
    problem = Problem(0, exact=exact)
    posterior, rule = problem.posterior, RULES[name](8.0, 30)
    left = PullLimits.unlimited(posterior.like, 60)
    for first in (0, 17, 59):
        bounds = UpperBounds(posterior, problem.noise**-0.5, not exact, left)
        batch = rule.open(posterior, torch.empty(0, dtype=torch.double))
        ours = fill_batch(bounds, batch, 10_000, first)
        theirs = problem.greedy(1.0, name, not exact, threshold=8.0, first=first)
        assert ours == theirs
        assert ours[0] == first


def test_no_arm_left_is_an_error():
    problem, limits = Problem(0), PullLimits(torch.zeros(60, dtype=torch.int32))
    with pytest.raises(InputDataError, match="may still be pulled"):
        problem.choose(1.0, FixedSize(3), False, limits=limits)
