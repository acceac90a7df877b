r"""Do the papers' statements hold in whole runs, and what happens at q-bar = 2?

Leverage scores, where both halves of Theorem 1 say something: far more distinct pulls
than inducing arms may be kept, and a kernel of no finite rank. Arms on [0, 1], each
pulled once, and the kernel exp(-|x - x'| / lengthscale): two passes over the sorted
arms give its exact variances.

BBKB, whole runs: Theorem 1, Lemmas 3 and 5 and the proof of part 2 of Theorem 1 of its
paper. For lambda >= 1 and q-bar = 8 log(4 T / delta), with probability 1 - delta, in
every batch and for all arms, with variances over lambda,

    var / 3 <= var~ <= 3 var,       var_start <= 3 C~ var_now  up to the last pull,
    |S| <= 9 C~ (1 + kappa^2 / lambda) q-bar d_eff,
    batches <= 9 C~ / (C~ - 1) (1 + kappa^2 / lambda) d_eff.

(The appendix ends at the square of the second constant, and has the sum of var_t(x_t)
in the place of the smaller d_eff in the third: what is checked here is stricter.) A
single inducing arm is exempt: the algorithm starts with one, which the bound on ``|S|``
forbids where lambda is large. The same is reported at q-bar = 2 under both inclusion
and both resampling laws, which no theorem covers.

BKB, the last steps of a run: Theorem 1 of its paper, var / alpha <= var~ <= alpha var
and ``|S| <= 3 (1 + kappa^2 / lambda) alpha q-bar d_eff``, for q-bar = 6 alpha log(4 T /
delta) / eps^2 at eps = sqrt(2) - 1, which makes the second bound least. That q-bar is
above 1,000, and a draw and a rebuild at each step of a run would take hours: so all
pulls but the last come from outside, and the draw that these cause is not counted.

Regret: functions of known norm F = 1 in the RKHS of an RBF kernel, noise of known
deviation 0.05, the theorems' widths and q-bar: the band mean +- w sqrt(var / lambda)
covers the function at all arms and steps with probability 1 - delta (Theorem 2 of
either paper), and the cumulative regret grows with an exponent below one. At such
horizons the theorems' q-bar keeps every pulled arm, so the same is reported at q-bar =
2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from benchmarks.record import Report
from botorch_bkb import BBKB, BKB
from botorch_bkb.acquisition.confidence import BBKBWidth, BKBWidth
from botorch_bkb.acquisition.schedules import ConstantWidth
from botorch_bkb.models.utils.leverage_scores import (
    bbkb_oversampling,
    bkb_oversampling,
    Inclusion,
    Resampling,
)
from botorch_bkb.optim import ArmPosterior, SumRule
from botorch_bkb.plotting import blank_figure, tidy_axes


# Small, so that two failures in a handful of runs already refute a theorem.
FAILURE_PROBABILITY = 1e-3
BKB_EPS = 2**0.5 - 1
BKB_ALPHA = (1 + BKB_EPS) / (1 - BKB_EPS)
BBKB_ALPHA = 3.0  # of Lemma 3
NOISE_STD = 0.05
BKB_NOISE_VARIANCE, BBKB_NOISE_VARIANCE = 0.1, 1.0
INFORMATION = "d_eff", "information", "gamma"
LABELS = {
    "bound": "right-hand side of Theorem 2",
    "regret": "cumulative regret",
    "d_eff": "effective dimension",
    "information": "information gain of the pulls",
    "gamma": "information gain of greedy pulls",
}
CONFIDENCE = ConstantWidth(0.1)  # Theorem 1 holds for any width


THEOREMS = "the theorem's"
# How BBKB draws inducing arms: its q-bar, None for the theorem's, and the laws.
SAMPLINGS: dict[str, tuple[float | None, Inclusion, Resampling]] = {
    THEOREMS: (None, "per_pull", "independent"),
    "2": (2.0, "per_pull", "independent"),
    "2, merged": (2.0, "merged", "independent"),
    "2, coupled": (2.0, "per_pull", "coupled"),
    "2, merged, coupled": (2.0, "merged", "coupled"),
}


class Line:
    """Sorted arms on [0, 1] under the kernel ``exp(-|x - x'| / lengthscale)``."""

    def __init__(
        self,
        num_arms: int,
        noise_variance: float,
        generator: torch.Generator,
        lengthscale: float = 1.0,
    ) -> None:
        points = torch.rand(num_arms, generator=generator, dtype=torch.double)
        self.arms = points.sort().values.unsqueeze(-1)
        self.noise_variance = noise_variance
        self.kernel = MaternKernel(nu=0.5).double()
        self.kernel.lengthscale = lengthscale
        phase = torch.rand(1, generator=generator, dtype=torch.double)
        self.rewards = torch.sin(9 * self.arms.squeeze(-1) + 6 * phase)

    @property
    def bound_factor(self) -> float:
        """``1 + kappa^2 / lambda``."""
        return 1 + 1 / self.noise_variance

    def exact_variances(self, counts: np.ndarray) -> np.ndarray:
        """Return the exact GP's variances of all arms."""
        x, lengthscale = self.arms.squeeze(-1).numpy(), self.kernel.lengthscale.item()
        return exact_line_variances(x, counts, self.noise_variance, lengthscale)


def exact_line_variances(
    x: np.ndarray, counts: np.ndarray, noise_variance: float, lengthscale: float
) -> np.ndarray:
    r"""Return the posterior variances at sorted points under an exponential kernel.

    The process is Markov: given its value at a point, its two sides are independent. So
    the precisions given the pulls to the left, the pulls to the right and those of the
    arm itself add up, less the prior's, which the first two share.
    """
    precision = counts / noise_variance
    decay = np.exp(-2 * np.diff(x) / lengthscale)
    left = _one_sided_variances(decay, precision)
    right = _one_sided_variances(decay[::-1], precision[::-1])[::-1]
    return 1 / (1 / left + 1 / right - 1 + precision)


def _one_sided_variances(decay: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return each point's variance given the pulls of the points before it."""
    variances = [1.0]
    for rho2, own in zip(decay.tolist(), precision.tolist(), strict=False):
        variance = variances[-1] / (1 + own * variances[-1])
        variances.append(rho2 * variance + 1 - rho2)
    return np.array(variances)


class Worst:
    """The worst of a theorem's statements over the draws of a run.

    Args:
        line: The arms.
        alpha: The bound on the ratio of the variances, either way.
        size_factor: The bound on ``|S|`` over ``(1 + kappa^2 / lambda) d_eff``.
    """

    def __init__(self, line: Line, alpha: float, size_factor: float) -> None:
        self.line = line
        self.alpha = alpha
        self.size_factor = size_factor
        self.ratio = 1.0
        self.size_over_bound = 0.0
        self.inducing_share = 0.0
        self.bound_share = 0.0
        self.d_eff = 0.0

    def look(self, bandit: BKB | BBKB, exact: np.ndarray) -> None:
        """Compare the bandit's present draw with the exact variances."""
        ratio = bandit.predict()[1].numpy() / exact
        self.ratio = max(self.ratio, ratio.max(), 1 / ratio.min())
        num_pulls = bandit.num_pulls
        self.d_eff = bandit.counts.numpy() @ exact / self.line.noise_variance
        bound = self.size_factor * self.line.bound_factor * self.d_eff
        size = bandit.inducing_indices.numel()
        if size > 1:
            self.size_over_bound = max(self.size_over_bound, size / bound)
        self.inducing_share, self.bound_share = size / num_pulls, bound / num_pulls

    def summary(self) -> dict[str, float]:
        """Return the figures; those with ``share`` are of the last draw's pulls."""
        return {
            "worst_ratio": self.ratio,
            "size_over_bound": self.size_over_bound,
            "inducing_share": self.inducing_share,
            "bound_share": self.bound_share,
            "d_eff": self.d_eff,
            "failed": float(self.ratio > self.alpha or self.size_over_bound > 1),
        }


def leverage_run(
    num_arms: int,
    seed: int,
    oversampling: float | None = None,
    inclusion: Inclusion = "per_pull",
    resampling: Resampling = "independent",
) -> dict[str, float]:
    """Let BBKB pull every arm once; return the worst over all batches."""
    generator = torch.Generator().manual_seed(seed)
    line = Line(num_arms, num_arms / 10, generator)
    # Batches of at most BULK_SIZE arms: larger ones are not drawn as in the algorithm.
    ratio_threshold = 1 + 400 / num_arms
    if oversampling is None:
        # As Theorem 1 is printed. The proof's would keep nearly all of so few arms.
        oversampling = bbkb_oversampling(num_arms, FAILURE_PROBABILITY) / 9
    bandit = BBKB(
        line.arms,
        covar_module=line.kernel,
        noise_variance=line.noise_variance,
        confidence=CONFIDENCE,
        batch_rule=SumRule(ratio_threshold),
        oversampling=oversampling,
        inclusion=inclusion,
        resampling=resampling,
        max_repeats=1,
        generator=generator,
    )
    worst = Worst(line, BBKB_ALPHA, 9 * ratio_threshold * oversampling)
    worst_drop, largest_batch = 1.0, 1
    while bandit.num_pulls < num_arms:
        indices = bandit.ask()
        largest_batch = max(largest_batch, len(indices))
        if bandit.num_pulls:
            counts = bandit.counts.numpy()
            start = line.exact_variances(counts)
            worst.look(bandit, start)
            counts[indices[:-1].numpy()] += 1
            worst_drop = max(worst_drop, (start / line.exact_variances(counts)).max())
        bandit.tell(indices, line.rewards[indices])
    bound = 9 * ratio_threshold / (ratio_threshold - 1) * line.bound_factor
    return worst.summary() | {
        "drop_over_bound": worst_drop / (BBKB_ALPHA * ratio_threshold),
        "largest_batch": largest_batch,
        "batches": bandit.num_batches,
        "batches_over_bound": bandit.num_batches / (bound * worst.d_eff),
    }


def late_run(num_arms: int, num_steps: int, seed: int) -> dict[str, float]:
    """Let BKB take the last steps of a run; return the worst over them."""
    generator = torch.Generator().manual_seed(seed)
    # Variances fall by more than alpha, or the first half of the theorem is vacuous.
    line = Line(num_arms, num_arms / 2, generator, lengthscale=4.0)
    oversampling = bkb_oversampling(num_arms, FAILURE_PROBABILITY, BKB_EPS)
    bandit = BKB(
        line.arms,
        covar_module=line.kernel,
        noise_variance=line.noise_variance,
        confidence=CONFIDENCE,
        oversampling=oversampling,
        inclusion="per_pull",
        max_repeats=1,
        generator=generator,
    )
    outside = torch.randperm(num_arms, generator=generator)[num_steps + 1 :]
    bandit.add_observations(outside, line.rewards[outside])
    worst = Worst(line, BKB_ALPHA, 3 * BKB_ALPHA * oversampling)
    for step in range(num_steps + 1):
        indices = bandit.ask()
        if step:
            exact = line.exact_variances(bandit.counts.numpy())
            worst.look(bandit, exact)
        bandit.tell(indices, line.rewards[indices])
    return worst.summary() | {"largest_drop": 1 / exact.min()}


class RegretProblem(NamedTuple):
    """A function of norm 1 on some arms, its dense kernel, and a bandit."""

    function: Tensor
    gram: Tensor
    bandit: BKB | BBKB
    generator: torch.Generator

    def measure(self, indices: Tensor) -> Tensor:
        """Return noisy rewards."""
        shape = len(indices)
        noise = torch.randn(shape, generator=self.generator, dtype=torch.double)
        return self.function[indices] + NOISE_STD * noise


def regret_problem(
    name: str, horizon: int, seed: int, num_arms: int, oversampling: float | None = None
) -> RegretProblem:
    """Return a problem of Theorem 2 of either paper, with its width and q-bar."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.rand(num_arms, 2, generator=generator, dtype=torch.double)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.5
    with torch.no_grad():
        gram = kernel(arms).to_dense()
    weights = torch.zeros(num_arms, dtype=torch.double)
    weights[:10] = torch.randn(10, generator=generator, dtype=torch.double)
    function = gram @ weights / (weights @ gram @ weights).sqrt()
    delta = FAILURE_PROBABILITY
    bandit_class: type[BKB | BBKB] = BKB
    width_class: type[BKBWidth | BBKBWidth] = BKBWidth
    noise_variance, theorems = BKB_NOISE_VARIANCE, bkb_oversampling(horizon, delta)
    if name == "BBKB":  # whose theorem asks lambda >= 1
        bandit_class, width_class, noise_variance = BBKB, BBKBWidth, BBKB_NOISE_VARIANCE
        theorems = bbkb_oversampling(horizon, delta, ratio_threshold=2.0)
    bandit = bandit_class(
        arms,
        covar_module=kernel,
        noise_variance=noise_variance,
        confidence=width_class(1.0, NOISE_STD, delta),
        oversampling=theorems if oversampling is None else oversampling,
        generator=generator,
    )
    return RegretProblem(function, gram, bandit, generator)


def regret_run(
    name: str,
    horizon: int,
    seed: int,
    num_arms: int = 50,
    oversampling: float | None = None,
) -> dict[str, float]:
    """Optimize a function of known norm; return coverage, regret and sizes."""
    problem = regret_problem(name, horizon, seed, num_arms, oversampling)
    function, gram, bandit, _ = problem
    noise_variance = bandit.noise_variance
    gaps = function.max() - function
    regret: list[Tensor] = []
    worst_error, worst_size = 0.0, 0.0
    while bandit.num_pulls < horizon:
        indices = bandit.ask(max_size=horizon - bandit.num_pulls)
        if bandit.num_pulls:
            error = (function - bandit.predict()[0]).abs()
            outside = error / narrowest_band(bandit, indices)
            worst_error = max(worst_error, outside.max().item())
            d_eff = effective_dimension(gram, bandit.counts, noise_variance)
            worst_size = max(worst_size, bandit.inducing_indices.numel() / d_eff)
        bandit.tell(indices, problem.measure(indices))
        regret.append(gaps[indices])
    cumulative = torch.cat(regret).cumsum(0).numpy()
    steps = np.arange(1, horizon + 1)
    late = slice(horizon // 2, None)
    d_eff = effective_dimension(gram, bandit.counts, noise_variance)
    return {
        "failed": float(worst_error > 1),
        "error_over_band": worst_error,
        "exponent": np.polyfit(np.log(steps[late]), np.log(cumulative[late]), 1)[0],
        "regret": cumulative[-1],
        "uniform_regret": horizon * gaps.mean().item(),
        "batches_over_d_eff": bandit.num_batches / d_eff,
        "inducing_over_d_eff": worst_size,
        "d_eff": d_eff,
    }


def narrowest_band(bandit: BKB | BBKB, batch: Tensor) -> Tensor:
    """Return the band's half-width at the last pull of a batch that has been asked.

    Mean and width are frozen in a batch and variances fall, so if the function is in
    this band, it was in that of every step before.
    """
    mean, start = bandit.predict()
    now = ArmPosterior(bandit.arms, bandit.covar_module, bandit.noise_variance)
    counts = bandit.counts.clone()
    counts += torch.bincount(batch[:-1], minlength=len(counts))
    pulled = counts.nonzero().squeeze(-1)
    nothing = torch.zeros(len(pulled), dtype=torch.double)
    now.update(bandit.inducing_indices, pulled, counts[pulled].to(nothing), nothing)
    width = (bandit.confidence_bound() - mean) / start.sqrt()
    return width * now.variance.sqrt()


def effective_dimension(gram: Tensor, counts: Tensor, noise_variance: float) -> float:
    """Return ``Tr(K (K + lambda I)^{-1})`` of all pulls, from the dense Gram matrix."""
    pulled = counts.nonzero().squeeze(-1)
    roots = counts[pulled].to(gram).sqrt()
    K = roots.unsqueeze(-1) * gram[pulled][:, pulled] * roots
    eigenvalues = torch.linalg.eigvalsh(K).clamp_min(0.0)
    return (eigenvalues / (eigenvalues + noise_variance)).sum().item()


def bkb_regret_bound(t: int, d_eff: float) -> float:
    """Return the right-hand side of Theorem 2 of the BKB paper, at eps = 1/2."""
    alpha, noise, delta = 3.0, BKB_NOISE_VARIANCE, FAILURE_PROBABILITY
    size = d_eff * math.log(t)  # kappa = 1
    rest = NOISE_STD * (size + math.log(1 / delta)) + math.sqrt(noise * size)
    return 2 * (2 * alpha) ** 1.5 * math.sqrt(t) * rest


def bbkb_regret_bound(t: int, variances: float) -> float:
    """Return the right-hand side of Theorem 2 of the BBKB paper.

    Args:
        t: The number of pulls.
        variances: The sum of ``sigma_{s-1}^2(x_s)``, exact variances over lambda.
    """
    rest = variances + math.log(1 / FAILURE_PROBABILITY)
    rest = NOISE_STD * rest + math.sqrt(BBKB_NOISE_VARIANCE * variances)
    return 55 * 2.0**2 * math.sqrt(t) * rest


def exact_gains(gram: Tensor, noise_variance: float, pulls: list[int] | int) -> Tensor:
    """Return ``sigma_{s-1}^2(x_s)`` over lambda, of pulls or of so many greedy ones."""
    C, gains = gram.clone(), []
    for pull in [None] * pulls if isinstance(pulls, int) else pulls:
        x = int(C.diagonal().argmax()) if pull is None else pull
        column = C[:, x].clone()
        gains.append(column[x] / noise_variance)
        C.addr_(column, column, alpha=-1 / (column[x].item() + noise_variance))
    return torch.stack(gains)


class RegretBounds:
    """Theorem 2 of both papers: regret, its bound, and the information gain.

    gamma_T is between the information gain of greedy pulls, which is shown, and that
    over ``1 - 1 / e``.
    """

    keys = ("bandit", "seed")
    seeds = range(5)

    def __init__(self, smoke: bool) -> None:
        self.horizons = {"BKB": 60 if smoke else 1000, "BBKB": 200 if smoke else 10_000}

    def runs(self, seed: int) -> list[tuple[str, int]]:
        """Return the runs of a seed."""
        return [(name, seed) for name in self.horizons]

    def play(self, name: str, seed: int) -> pd.DataFrame:
        """Return a row for each of some numbers of pulls."""
        horizon = self.horizons[name]
        problem = regret_problem(name, horizon, seed, num_arms=200)
        bandit, gram, d_eff = problem.bandit, problem.gram, {}
        while bandit.num_pulls < horizon:
            indices = bandit.ask(max_size=horizon - bandit.num_pulls)
            d_eff[bandit.num_pulls] = bandit.diagnostics().effective_dimension
            bandit.tell(indices, problem.measure(indices))
        pulls = bandit.diagnostics().arms
        regret = (problem.function.max() - problem.function[pulls]).cumsum(0)
        gains = exact_gains(gram, bandit.noise_variance, pulls.tolist())
        greedy = exact_gains(gram, bandit.noise_variance, horizon)
        halves = [gain.log1p().cumsum(0) / 2 for gain in (gains, greedy)]
        t = np.unique(np.geomspace(10, horizon, 30).astype(int))
        dimension = np.interp(t, list(d_eff), list(d_eff.values()))
        bounds = [
            bkb_regret_bound(n, d)
            if name == "BKB"
            else bbkb_regret_bound(n, gains[:n].sum().item())
            for n, d in zip(t.tolist(), dimension.tolist(), strict=True)
        ]
        columns = {"regret": regret, "information": halves[0], "gamma": halves[1]}
        rows = {key: value[t - 1].numpy() for key, value in columns.items()}
        return pd.DataFrame({"t": t, "d_eff": dimension, "bound": bounds, **rows})

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the last numbers, and a picture for each bandit."""
        figures = {}
        for name, own in rows.groupby("bandit", sort=False):
            figure = blank_figure(8.0, 3.4)
            left, right = figure.subplots(1, 2)
            means = own.groupby("t").mean(numeric_only=True)
            for axes, columns in ((left, ("bound", "regret")), (right, INFORMATION)):
                for column in columns:
                    axes.loglog(means.index, means[column], label=LABELS[column])
                axes.set_xlabel("pulls")
                axes.legend(frameon=False, fontsize="small")
                tidy_axes(axes)
            figure.suptitle(f"{name}, Theorem 2, means of {own['seed'].nunique()} runs")
            figures[f"regret_bounds_{name}"] = figure
        last = rows.groupby(["bandit", "seed"], sort=False).tail(1)
        table = last.drop(columns="seed").groupby("bandit", sort=False)
        return {"regret_bounds": table.mean(numeric_only=True).reset_index()}, figures


class Theorems:
    """The statements of both papers."""

    keys = ("statement", "oversampling", "seed")
    seeds = range(10)

    def __init__(self, smoke: bool) -> None:
        self.num_arms, self.late_steps = (600, 3) if smoke else (10_000, 3)
        self.horizons = {"BKB": 60 if smoke else 1000, "BBKB": 200 if smoke else 10_000}

    def runs(self, seed: int) -> list[tuple[str, str, int]]:
        """Return the runs of a seed."""
        return [
            (statement, oversampling, seed)
            for statement, samplings in (
                ("leverage scores, BBKB", SAMPLINGS),
                ("leverage scores, BKB", (THEOREMS,)),
                ("regret, BBKB", (THEOREMS, "2")),
                ("regret, BKB", (THEOREMS, "2")),
            )
            for oversampling in samplings
        ]

    def play(self, statement: str, oversampling: str, seed: int) -> pd.DataFrame:
        """Return one row per quantity."""
        what, name = statement.split(", ")
        sampling = SAMPLINGS[oversampling]
        if what == "regret":
            horizon = self.horizons[name]
            quantities = regret_run(name, horizon, seed, 200, sampling[0])
        elif name == "BBKB":
            quantities = leverage_run(self.num_arms, seed, *sampling)
        else:
            quantities = late_run(self.num_arms, self.late_steps, seed)
        return pd.DataFrame(quantities.items(), columns=["quantity", "value"])

    def report(self, rows: pd.DataFrame) -> Report:
        """Return means, and the largest value of what must not exceed a bound."""
        keys = ["statement", "oversampling"]
        values = rows.pivot(index=[*keys, "seed"], columns="quantity", values="value")
        groups = values.groupby(keys, sort=False)
        table = groups[["failed", "inducing_share", "exponent"]].mean()
        table.insert(0, "runs", groups.size())
        for name in ("worst_ratio", "error_over_band"):
            table[name] = groups[name].max()
        return {"theorems": table.reset_index()}, {}
