"""Posteriors over a finite set of arms: what every kind of them answers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors.basis import Basis, sums_of
from botorch_bkb.posteriors.grouped import GroupedResults


class Ranked(NamedTuple):
    """Arms in order of their values, largest first, the lowest index among ties."""

    values: Tensor
    arms: Tensor

    def first(self, size: int) -> Ranked:
        """Return the first of them."""
        return Ranked(self.values[:size], self.arms[:size])

    @property
    def head(self) -> float:
        """The largest value; minus infinity if there is none."""
        return self.values[0].item() if len(self.values) else -math.inf

    def after(self, size: int) -> Ranked:
        """Return those after the first."""
        return Ranked(self.values[size:], self.arms[size:])

    @classmethod
    def merged(cls, parts: Iterable[Ranked]) -> Ranked:
        """Return one list of several, each in any order."""
        values, arms = map(torch.cat, zip(*parts, strict=True))
        if not (arms.diff() > 0).all():
            arms, order = arms.sort()
            values = values[order]
        values, by_value = values.sort(descending=True, stable=True)
        return cls(values, arms[by_value])


def largest(values: Tensor, size: int) -> Ranked:
    """Return the largest values and their places, the lowest index among ties.

    NaN is larger than any number.
    """
    size = min(size, len(values))
    if not size:
        return Ranked(values[:0], torch.arange(0, device=values.device))
    if size == 1:  # `max` returns the first of the largest
        return Ranked(*values.max(dim=0, keepdim=True))
    least = values.topk(size).values[-1:]
    above = (values.isnan() | (values > least)).nonzero().squeeze(-1)[:size]
    ties = (values == least).nonzero().squeeze(-1)[: size - len(above)]
    positions = torch.cat([above, ties]).sort().values
    found, order = values[positions].sort(descending=True, stable=True)
    return Ranked(found, positions[order])


def expected_rise(
    mean: Tensor,  # k
    variance: Tensor,  # k
    noise_variance: float,
    top: Ranked,
    is_best: Tensor,  # k, bool
) -> Tensor:  # k
    r"""Return how much one more pull is expected to raise the largest mean.

    The knowledge gradient of [frazier2009]_ as if arms were independent: a pull of
    ``x`` moves its mean by a normal step of standard deviation
    ``s = v / sqrt(v + lambda)``, so ::

        E max(mean(x) + step, rest) - max(mean(x), rest) = s h(-|mean(x) - rest| / s)

    with ``h(z) = z Phi(z) + phi(z)`` and ``rest`` the largest mean of the others.

    Args:
        mean: The means of some arms.
        variance: Their variances.
        noise_variance: lambda.
        top: The two largest means of all arms that compete; one if there is one arm.
        is_best: Whether an arm is the first of these.
    """
    second = top.values[1] if len(top.values) > 1 else -math.inf
    rest = torch.where(is_best, second, top.values[0])
    step = variance / (variance + noise_variance).sqrt()
    z = -(mean - rest).abs() / step
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    gain = step * (z * torch.special.ndtr(z) + density)
    # Far below the best the two terms cancel, and rounding is negative.
    return torch.where(step > 0, gain, 0.0).nan_to_num(0.0).clamp_min(0.0)


class Pulls(NamedTuple):
    r"""Pulls without reward, as shards need them.

    With ``c(x)`` the covariances of an arm with the ``f`` pulled ones and ``C C^T`` the
    covariance of the means of their rewards, a variance falls by ``|C^{-1} c(x)|^2``.
    Entry ``j`` of this vector depends on the first ``j`` pulls only.

    Attributes:
        counts: The number of pulls of each arm, in their order.
        projected: Whether only the projected variance falls.
        points: The ``f x d`` rows of these arms; none if only the projected variance
            falls.
        vectors: ``M x f``: ``c(x)`` is their product with the features, plus the prior
            covariances with the points.
        C: The ``f x f`` lower Cholesky factor.
        room: How many rows ``C^{-1} c`` of all arms may be kept.
    """

    counts: dict[int, int]
    projected: bool
    points: Tensor
    vectors: Tensor
    C: Tensor
    room: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What says which pulls these are, one entry a row."""
        return (*((self.projected, *one) for one in self.counts.items()),)


class Draws(NamedTuple):
    """What draws of all arms are made of, see ``arm_sampler``.

    Attributes:
        vectors: ``M x (n + f)``: the weights of ``n`` draws, and the features of ``f``
            appended arms.
        points: The rows of these.
        C: The ``f x f`` factor of their Schur complement.
        weights: The ``f x n`` weights of their features.
    """

    vectors: Tensor
    points: Tensor
    C: Tensor
    weights: Tensor


class Posterior(ABC):
    """Means and variances of ``A`` arms, and what widths need beside them.

    Attributes:
        num_arms: A.
        like: A tensor without entries, of the dtype and on the device of the moments.
        max_prior_variance: The largest prior variance, kappa squared.
        noise_variance: lambda.
        pulled_indices: The arms with rewards.
        inducing_indices: The inducing arms.
        log_det: ``log det(I + K / lambda)`` of the pulls.
        effective_dimension: The sum of the pulls' leverage scores.
        has_covariances: Whether it has a :meth:`covariance` of some arms.
    """

    num_arms: int
    like: Tensor
    max_prior_variance: float
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float
    has_covariances = True

    @abstractmethod
    def moments(self, indices: Tensor) -> Tensor:
        """Return prior variances, means, residuals and projected variances, ``4 x k``.

        The posterior variance is the sum of the last two.
        """

    def covariance(
        self, left: Tensor, right: Tensor, projected: bool = False
    ) -> Tensor:
        """Return the ``k x l`` posterior covariances between two lists of arms.

        If ``projected``, without the residual: ``z(x)^T V^{-1} z(x')``, the part
        through which a pull enters the sparse model.
        """
        raise UnsupportedError("Expected a posterior of arms that do not drift.")

    @abstractmethod
    def given(self, pulls: Mapping[int, int], projected: bool = False) -> Self:
        """Return the posterior conditioned on pulls without reward.

        Each pull counts as if its reward were the posterior mean: means stay, and
        variances fall (GP-BUCB).

        Args:
            pulls: The number of pulls of each arm.
            projected: Whether they reduce the projected variance only, as the proofs of
                [calandriello2020bbkb]_ need. Otherwise they condition the whole
                posterior, since an arm far from the inducing arms would keep its
                variance.
        """

    @abstractmethod
    def largest_bounds(self, scale: float, size: int, allowed: Any = None) -> Ranked:
        """Return the arms of the largest ``mean + scale sqrt(variance)``.

        Args:
            scale: The number of standard deviations.
            size: How many, at most.
            allowed: An ``A``-dim boolean tensor, or the mask of a product space; minus
                infinity for all others. All compete if None.
        """

    def left_out(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances of some arms, without the rewards of these."""
        raise UnsupportedError("Expected a posterior of arms that do not drift.")

    @property
    def result_variance(self) -> float:
        """The variance of a new result of an arm, given the arm's value."""
        return self.noise_variance

    def shortlist(
        self, scale: float, size: int, allowed: Any
    ) -> tuple[Ranked, tuple[float, int]]:
        """Return some arms of the largest bounds, and the best of all others.

        The second is a bound and an index, below which all others are.
        """
        found = self.largest_bounds(scale, size + 1, allowed)
        outside = -math.inf, -1
        if len(found.arms) > size:
            outside = found.values[size].item(), int(found.arms[size])
        return found.first(size), outside

    def means(self, indices: Tensor) -> Tensor:
        """Return the posterior means of a few arms."""
        return self.moments(indices)[1]

    def variances(self, indices: Tensor) -> Tensor:
        """Return the posterior variances of a few arms."""
        _, _, residual, projected = self.moments(indices)
        return residual + projected

    def leverage_scores_of(self, indices: Tensor) -> Tensor:
        """Return the ridge leverage scores of a few arms."""
        return self.variances(indices) / self.noise_variance

    def leverage_score(self, index: int) -> float:
        """Return the ridge leverage score of one arm."""
        arm = torch.tensor([index], device=self.like.device)
        return self.leverage_scores_of(arm).item()

    def best_mean(self, allowed: Any = None) -> int:
        """Return the arm of the largest mean, the lowest index among ties.

        Args:
            allowed: An ``A``-dim boolean tensor; all if None.
        """
        return int(self.largest_bounds(0.0, 1, allowed).arms)


class StaticPosterior(Posterior):
    """A posterior of a function that does not change, from inducing arms.

    Attributes:
        arms: The ``A x d`` arms.
        covar_module: The kernel.
        basis: The small matrices.
        data: The summed precisions of the pulled arms, and their reward sums over
            lambda, ``2 x P``.
        feature_bytes: The size of all arms' features, kept or not.
        pulls: What conditions it beside the rewards; None for nothing.
        grouped: The results, if some of them share offsets; None if ``data`` is all.
    """

    arms: Tensor
    covar_module: Kernel
    basis: Basis
    data: Tensor
    feature_bytes: int
    pulls: Pulls | None = None
    grouped: GroupedResults | None = None
    # How many rows of pulls without reward are kept for all arms.
    room = 0

    @abstractmethod
    def update(
        self,
        inducing_indices: Tensor,
        pulled_indices: Tensor,
        counts: Tensor,
        sums: Tensor,
        grouped: GroupedResults | None = None,
    ) -> None:
        r"""Move to other inducing arms and data.

        Args:
            inducing_indices: An ``m``-dim long tensor; arms that add nothing to the
                span of the others are left out.
            pulled_indices: A ``P``-dim long tensor of the arms with rewards.
            counts: The ``P`` numbers of pulls.
            sums: The ``P`` sums of (centered) rewards.
            grouped: The same results one by one, and others of the same arms, if some
                of them share offsets.

        Raises:
            InputDataError: If the kernel is not positive semi-definite on the arms.
        """

    @property
    @override
    def result_variance(self) -> float:
        own = 0.0 if self.grouped is None else self.grouped.offset_variance
        return self.noise_variance + own

    def scatter_and_target(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``Z W Z^T`` and ``Z W ybar``, of features of the pulled arms."""
        if self.grouped is None:
            return sums_of(Z, Z, self.data)
        return self.grouped.scatter_and_target(Z)

    @abstractmethod
    def features(self, indices: Tensor) -> Tensor:
        """Return the ``M x k`` features of ``k`` arms.

        Features are known up to a rotation only; these have ``M >= m`` coordinates,
        see :mod:`~botorch_bkb.posteriors.basis`.
        """

    @torch.no_grad()
    def prior_covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the ``k x l`` prior covariances between two lists of arms."""
        x1, x2 = self.arms[left], self.arms[right]
        # Kernels may not keep the dtype.
        return dense_covariance(self.covar_module, x1, x2).to(self.like)

    @abstractmethod
    def _moments(self, indices: Tensor) -> Tensor:
        """Return the moments given the rewards alone, ``4 x k``."""

    @property
    @override
    def effective_dimension(self) -> float:  # type: ignore[override]
        """The sum of the pulls' leverage scores; equation (5) of the COLT paper.

        Of results that share offsets it is the trace of ``I - V^{-1}``.
        """
        if self.grouped is not None:
            eye = torch.eye(len(self.basis.L_v)).to(self.basis.L_v)
            root = torch.linalg.solve_triangular(self.basis.L_v, eye, upper=False)
            return len(eye) - root.square().sum().item()
        return (self.data[0] * self.variances(self.pulled_indices)).sum().item()

    @override
    def moments(self, indices: Tensor) -> Tensor:
        found = self._moments(indices)
        if self.pulls is None:
            return found
        _, _, residual, variance = found
        lost = self._taken(self.pulls, indices).square().sum(dim=0)
        least = torch.zeros_like(residual) if self.pulls.projected else -residual
        return torch.stack([*found[:3], (variance - lost).maximum(least)])

    @override
    def covariance(
        self, left: Tensor, right: Tensor, projected: bool = False
    ) -> Tensor:
        found = self._covariance(left, right, projected)
        if self.pulls is None:
            return found
        lost = self._taken(self.pulls, left)
        other = lost if left is right else self._taken(self.pulls, right)
        return found - lost.mT @ other

    def _covariance(self, left: Tensor, right: Tensor, projected: bool) -> Tensor:
        """Return the covariances given the rewards alone."""
        lists = [left] if left is right else [left, right]
        Z = [self.features(arms) for arms in lists]
        L_v = self.basis.L_v
        roots = [torch.linalg.solve_triangular(L_v, each, upper=False) for each in Z]
        covariance = roots[0].mT @ roots[-1]
        if projected:
            return covariance
        prior = self.prior_covariance(left, right)
        return covariance + prior - Z[0].mT @ Z[-1]

    @torch.no_grad()
    @override
    def left_out(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return means and variances of some arms, without the rewards of these.

        With their projected covariances ``C``, summed precisions ``W`` and reward sums
        over lambda ``s``: ``(I - C W)^{-1} (mean - C s)``, and ``(I - C W)^{-1} C``.
        """
        _, mean, residual, _ = self._moments(indices)
        place = positions_in(self.pulled_indices, indices, is_ascending=True)
        if self.grouped is not None:
            basis, own = self.basis, self.features(indices)
            Z = self.features(self.pulled_indices)
            moved, more = self.grouped.left_out(place, Z, basis.L_v, basis.weights, own)
            return mean + moved, self.variances(indices) + more.diagonal()
        C = self._covariance(indices, indices, projected=True)
        W, s = torch.where(place < 0, 0.0, self.data[:, place])
        right = torch.cat([C, (mean - C @ s).unsqueeze(-1)], dim=-1)
        solved = torch.linalg.solve(torch.eye(len(C)).to(C) - C * W, right)
        return solved[:, -1], residual + solved.diagonal()

    def _taken(self, pulls: Pulls, indices: Tensor) -> Tensor:
        """Return the ``f x k`` rows whose squares the pulls take from variances."""
        arms = indices.new_tensor(list(pulls.counts))
        cross = self._covariance(arms, indices, pulls.projected)
        return torch.linalg.solve_triangular(pulls.C, cross, upper=False)

    @torch.no_grad()
    @override
    def given(self, pulls: Mapping[int, int], projected: bool = False) -> Self:
        before = self.pulls
        if not pulls:
            return self
        counts = Counter() if before is None else Counter(before.counts)
        counts.update(pulls)
        if before is not None:
            projected &= before.projected
        arms = self.pulled_indices.new_tensor(list(counts))
        numbers = self.like.new_tensor(list(counts.values()))
        C = self._covariance(arms, arms, projected)
        C = torch.linalg.cholesky(C + torch.diag(self.noise_variance / numbers))
        Z = self.features(arms)
        vectors = self.basis.solve(Z) - (0.0 if projected else Z)
        points = self.arms[arms[: 0 if projected else None]]
        other = copy(self)
        other.pulls = Pulls(dict(counts), projected, points, vectors, C, self.room)
        return other
