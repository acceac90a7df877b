"""Four ways to find the arm of the largest ``mean + sqrt(BETA var)``.

A way takes a task, does what it may have done before the clock starts, and returns a
function that does the rest, once per call, and returns the arm it chose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf_discrete
from gpytorch.kernels import RBFKernel
from torch import Tensor

from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import optimize_acqf_finite
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


NUM_FEATURES = 8
NUM_NEW_PULLS = 10
BETA = 2.0
NOISE_VARIANCE = 0.1
LENGTHSCALE = 0.5
# Enough for the features, and for the kernel rows, of 10^6 arms and 200 inducing ones.
MAX_FEATURE_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Sizes:
    """How large a task is.

    Attributes:
        num_arms: A.
        num_observed: P, the number of distinct arms observed.
        num_inducing: m, for the sparse ways.
        num_pulls: T, told pulls; at least P, rounded down to as many for every arm.
    """

    num_arms: int
    num_observed: int
    num_inducing: int
    num_pulls: int

    @classmethod
    def unrepeated(cls, num_arms: int, num_observed: int, num_inducing: int) -> Sizes:
        """Return sizes with one pull per observed arm, and m at most that many."""
        num_inducing = min(num_inducing, num_observed)
        return cls(num_arms, num_observed, num_inducing, num_observed)


class Task:
    """Random arms in the unit cube, the first of them observed, standardized rewards.

    Args:
        sizes: How large.
        device: Where.
    """

    def __init__(self, sizes: Sizes, device: str = "cpu") -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.sizes = sizes
        arms = self._draw(torch.rand, sizes.num_arms, NUM_FEATURES)
        noise = self._draw(torch.randn, sizes.num_arms)
        # Nothing as large as `arms` beside them: it would hide what a way allocates.
        rewards = (3 * arms.sum(dim=-1)).sin() + NOISE_VARIANCE**0.5 * noise
        rewards = (rewards - rewards.mean()) / rewards.std()
        self.arms, self.rewards = arms.to(device), rewards.to(device)
        self.kernel = RBFKernel().to(self.arms)
        self.kernel.lengthscale = LENGTHSCALE

    @property
    def observed(self) -> Tensor:
        """The indices of the observed arms."""
        return torch.arange(self.sizes.num_observed, device=self.arms.device)

    @property
    def inducing(self) -> Tensor:
        """The indices of the inducing arms."""
        return self.observed[: self.sizes.num_inducing]

    def totals(self) -> tuple[Tensor, Tensor]:
        """Return the numbers of pulls and the sums of rewards of all arms."""
        repeats = self.sizes.num_pulls // self.sizes.num_observed
        counts = torch.zeros_like(self.rewards)
        counts[self.observed] = repeats
        return counts, counts * self.rewards

    def draw_arms(self, num: int) -> Tensor:
        """Draw some arms, with replacement, and return the distinct ones."""
        drawn = torch.randint(self.sizes.num_arms, (num,), generator=self.generator)
        return drawn.unique().to(self.arms.device)

    def _draw(self, draw: Callable[..., Tensor], *shape: int) -> Tensor:
        return draw(*shape, generator=self.generator, dtype=torch.double)


Way = Callable[[Task], Callable[[], int]]


def cold(task: Task) -> Callable[[], int]:
    """Build the sparse posterior of all arms from nothing."""
    counts, sums = task.totals()

    def choose() -> int:
        posterior = _posterior(task)
        _update(posterior, task.inducing, counts, sums)
        return _best(posterior)

    return choose


def cached(task: Task) -> Callable[[], int]:
    """Tell ten more pulls of random arms to a posterior that keeps its inducing arms.

    Every call tells ten more.
    """
    counts, sums = task.totals()
    posterior = _posterior(task)
    _update(posterior, task.inducing, counts, sums)

    def choose() -> int:
        pulled = task.draw_arms(NUM_NEW_PULLS)
        counts[pulled] += 1
        sums[pulled] += task.rewards[pulled]
        _update(posterior, task.inducing, counts, sums)
        return _best(posterior)

    return choose


def exact(task: Task) -> Callable[[], int]:
    """Our model with every input inducing, and our optimizer over finite sets."""

    def choose() -> int:
        X, Y = task.arms[task.observed], task.rewards[task.observed].unsqueeze(-1)
        model = SingleTaskDTCGP(X, Y, covar_module=task.kernel, outcome_transform=None)
        model.likelihood.noise = NOISE_VARIANCE
        acqf = UpperConfidenceBound(model, beta=BETA)
        return int(optimize_acqf_finite(acqf, task.arms)[0])

    return choose


def stock(task: Task) -> Callable[[], int]:
    """BoTorch's own model, and its optimizer over finite sets."""

    def choose() -> int:
        X, Y = task.arms[task.observed], task.rewards[task.observed].unsqueeze(-1)
        model = SingleTaskGP(X, Y, covar_module=task.kernel, outcome_transform=None)
        model.likelihood.noise = NOISE_VARIANCE
        acqf = UpperConfidenceBound(model, beta=BETA)
        with torch.no_grad():
            point, _ = optimize_acqf_discrete(acqf, q=1, choices=task.arms)
        return int((task.arms == point).all(dim=-1).nonzero()[0])

    return choose


WAYS: dict[str, Way] = {
    "ours, cached": cached,
    "ours, cold": cold,
    "ours, exact": exact,
    "stock": stock,
}


def _posterior(task: Task) -> ArmPosterior:
    return ArmPosterior(
        task.arms, task.kernel, NOISE_VARIANCE, max_feature_bytes=2 * MAX_FEATURE_BYTES
    )


def _update(
    posterior: ArmPosterior, inducing: Tensor, counts: Tensor, sums: Tensor
) -> None:
    pulled = counts.nonzero().squeeze(-1)
    posterior.update(inducing, pulled, counts[pulled], sums[pulled])


def _best(posterior: ArmPosterior) -> int:
    return int((posterior.mean + (BETA * posterior.variance).sqrt()).argmax())
