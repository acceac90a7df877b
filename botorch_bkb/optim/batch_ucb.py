r"""Choosing a batch of arms by upper confidence bounds, exactly and lazily.

Inside a batch the mean and the width are frozen, and variances fall with every pull
already chosen (hallucination, GP-BUCB). Each pick is the arm of the largest

    mean_start(x) + w sqrt(var_now(x) / lambda),

the lowest index among ties: line 4 of algorithm 1 in the BBKB paper. What is done here
equals a loop that recomputes everything at every pull. It is faster because upper
bounds only fall, so that a stale one still is a bound and only a small pool of arms has
to be kept exact, and because consecutive pulls of one arm have a closed form.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.models.utils.nystrom import span_tolerance
from botorch_bkb.optim.batch_rules import BatchRule, first_crossing
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


# The pool starts with this many arms and doubles; past the limit all arms are tracked.
POOL_SIZE = 128
MAX_POOL_SIZE = 1024
# So few that a pool's product with them stays below the size from which BLAS libraries
# start threads, which cost more than the product.
MAX_DOWNDATES = 64


class PoolPosterior:
    r"""The bounds of a few arms as pulls without reward are added.

    ``n`` pulls of an arm turn a covariance ``M`` into ``M - n m m^T / (lambda + n p)``,
    ``m`` the arm's column and ``p`` its variance. With fixed inducing arms ``M`` is the
    projected covariance, beside which the residual stays; with inducing arms that grow
    on the exact GP it is the whole covariance, and nothing is left beside it.

    In NumPy on the processor: on a hundred numbers PyTorch's overhead is most of the
    time, and an accelerator's launches are all of it.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        indices: The ``k`` arms of the pool, ascending.
        pulls: The pulls so far, by arm.
        grow: Whether pulled arms join the inducing arms.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        indices: Tensor,
        pulls: dict[int, int],
        grow: bool,
    ) -> None:
        self.noise_variance = posterior.noise_variance
        self.scale = scale
        self.indices = indices
        self.arms: list[int] = indices.tolist()
        self.position = {arm: position for position, arm in enumerate(self.arms)}
        covariance = posterior.covariance(indices, indices, projected=not grow)
        if pulls:
            arms = torch.tensor(list(pulls), device=indices.device)
            counts = covariance.new_tensor(list(pulls.values()))
            K = posterior.covariance(arms, arms, projected=not grow)
            cross = posterior.covariance(arms, indices, projected=not grow)
            L = torch.linalg.cholesky(K + torch.diag(self.noise_variance / counts))
            root = torch.linalg.solve_triangular(L, cross, upper=False)
            covariance -= root.mT @ root
        self.covariance = covariance.cpu().numpy()
        # Rounding can leave a variance of zero below it, and a bound that is NaN.
        self.projected = self.covariance.diagonal().clip(min=0.0)
        self.mean = posterior.mean[indices].cpu().numpy()
        self.residual = posterior.residual[indices].cpu().numpy()
        if grow:
            self.residual = np.zeros_like(self.residual)
        # The downdates m sqrt(n / (lambda + n p)) not yet in `covariance`.
        self.downdates = np.empty((MAX_DOWNDATES, len(self.arms)), self.mean.dtype)
        self.num_downdates = 0
        self._refresh()

    def __contains__(self, index: int) -> bool:
        """Whether an arm is in the pool."""
        return index in self.position

    def best(self) -> tuple[float, int]:
        """Return the largest bound and its arm, the lowest index among ties."""
        position = int(self.bounds.argmax())
        return self.bounds.item(position), self.arms[position]

    def rival(self, index: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, and its arm."""
        position = self.position[index]
        own = self.bounds[position]
        self.bounds[position] = -math.inf
        best = self.best()
        self.bounds[position] = own
        return best

    def variances(self, index: int) -> tuple[float, float]:
        """Return the residual and the projected variance of an arm."""
        position = self.position[index]
        return self.residual.item(position), self.projected.item(position)

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        self.mean[self.position[index]] = -math.inf
        self._refresh()

    def append(self, index: int) -> None:
        """Do nothing: growth of the exact GP is in the covariance already."""

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of one arm of the pool, without rewards."""
        position = self.position[index]
        p = self.projected.item(position)
        if p <= 0:
            return
        if self.num_downdates == MAX_DOWNDATES:
            self.covariance -= self.downdates.T @ self.downdates
            self.num_downdates = 0
        earlier = self.downdates[: self.num_downdates]
        column = self.covariance[position] - earlier[:, position] @ earlier
        column *= math.sqrt(num_pulls / (self.noise_variance + num_pulls * p))
        self.downdates[self.num_downdates] = column
        self.num_downdates += 1
        self.projected -= column * column
        np.maximum(self.projected, 0.0, out=self.projected)
        self._refresh()

    def _refresh(self) -> None:
        self.bounds = self.mean + self.scale * np.sqrt(self.residual + self.projected)


class FeatureRows:
    """Features of some arms (of all if ``indices`` is None), old and appended ones."""

    def __init__(self, posterior: ArmPosterior, indices: Tensor | None) -> None:
        self.posterior = posterior
        self.indices = indices
        num_arms = posterior.mean.shape[0] if indices is None else indices.shape[0]
        self.appended = posterior.mean.new_empty(0, num_arms)

    def dot(self, vector: Tensor) -> Tensor:
        """Return ``z(x)^T vector`` of the arms, appended features included."""
        m = vector.shape[0] - self.appended.shape[0]
        if self.indices is None:
            result = self.posterior.dot(vector[:m])
        else:
            result = vector[:m] @ self.posterior.features(self.indices)
        return result + vector[m:] @ self.appended

    def append(self, feature: Tensor) -> None:
        """Add the feature of one more inducing arm."""
        self.appended = torch.cat([self.appended, feature.unsqueeze(0)])


class HallucinatedPosterior:
    r"""The variances of all arms as pulls without reward and inducing arms are added.

    Holds ``R`` with ``V_now^{-1} = R R^T`` and the arms appended to the inducing arms;
    ``V`` and the features are those of
    :class:`~botorch_bkb.posteriors.ArmPosterior`. Every change passes over the
    features of all arms, ``O(A (m + f))``.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        capacity: An ``A``-dim long tensor, the pulls each arm still allows, or None.
    """

    def __init__(
        self, posterior: ArmPosterior, scale: float, capacity: Tensor | None
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.mean = posterior.mean
        if capacity is not None:
            self.mean = self.mean.masked_fill(capacity <= 0, -math.inf)
        self._bounds: Tensor | None = None
        m = posterior.L_v.shape[0]
        eye = torch.eye(m).to(posterior.L_v)
        self.R = torch.linalg.solve_triangular(posterior.L_v, eye, upper=False).mT
        self.residual = posterior.residual.clone()
        self.projected = posterior.projected.clone()
        # Of the appended arms: B their features at the start, C the Cholesky factor of
        # their Schur complement.
        self.appended = posterior.pulled_indices[:0]
        self.B = self.R.new_empty(0, m)
        self.C = self.R.new_empty(0, 0)
        self.rows = FeatureRows(posterior, None)
        # Pulled arms outside the span of S change V once it grows.
        is_outside = ~posterior.pulled_in_span
        self.outside = posterior.pulled_indices[is_outside]
        self.pulled = FeatureRows(posterior, self.outside)
        self.precisions = posterior.precisions[is_outside]

    def __contains__(self, index: int) -> bool:
        """Whether an arm is tracked: all are."""
        return True

    def best(self) -> tuple[float, int]:
        """Return the largest bound and its arm, the lowest index among ties."""
        bounds = self._refreshed_bounds()
        index = int(bounds.argmax())
        return bounds[index].item(), index

    def rival(self, index: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, and its arm."""
        bounds = self._refreshed_bounds()
        own = bounds[index].clone()
        bounds[index] = -math.inf
        best = self.best()
        bounds[index] = own
        return best

    def variances(self, index: int) -> tuple[float, float]:
        """Return the residual and the projected variance of an arm."""
        return self.residual[index].item(), self.projected[index].item()

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        closed = torch.tensor([index], device=self.mean.device)
        self.mean = self.mean.index_fill(0, closed, -math.inf)
        self._bounds = None

    def append(self, index: int) -> None:
        r"""Append an arm to the inducing points, unless it is in their span.

        With ``a(x)`` the new feature and, over the pulled arms, ``g = Z^T W a`` and
        ``s = 1 + a^T W a - |R^T g|^2``, ``V`` grows to ``[[V, g], [g^T, 1 + a^T W a]]``
        and ``projected(x)`` by ``(a(x) - z(x)^T V^{-1} g)^2 / s``.
        """
        z = self._features_of(index)
        m = self.B.shape[1]
        prior = self.posterior.prior_variance[index]
        residual = self.posterior.residual[index] - z[m:].square().sum()
        if residual <= span_tolerance(z.dtype) * prior:
            return
        self._bounds = None
        root = residual.sqrt()
        a_pulled = self._new_feature(self.pulled, index, z, root)
        a = self._new_feature(self.rows, index, z, root)
        weighted = self.precisions * a_pulled
        g = self.posterior.features(self.outside) @ weighted
        h = self.R.mT @ torch.cat([g, self.pulled.appended @ weighted])
        Rh = self.R @ h
        s = 1 + (weighted @ a_pulled) - h.square().sum()
        self.projected += (a - self.rows.dot(Rh)).square() / s
        self.residual = (self.residual - a.square()).clamp_min(0.0)
        self.pulled.append(a_pulled)
        self.rows.append(a)
        corner = (1 / s.sqrt()).reshape(1, 1)
        self.R = _bordered(self.R, -Rh.unsqueeze(-1) * corner, corner)
        new = torch.tensor([index], device=self.appended.device)
        self.appended = torch.cat([self.appended, new])
        self.B = torch.cat([self.B, z[:m].unsqueeze(0)])
        self.C = _bordered(self.C.mT, z[m:].unsqueeze(-1), root.reshape(1, 1)).mT

    def pull(self, index: int, num_pulls: int) -> None:
        r"""Add pulls of one arm, without rewards.

        With ``p = projected(x)`` of the arm, ``n`` pulls turn ``p`` into
        ``p lambda / (lambda + n p)`` and lower any ``projected(x')`` by
        ``n c(x, x')^2 / (lambda + n p)``, ``c = z(x)^T V^{-1} z(x')``.
        """
        noise = self.posterior.noise_variance
        u = self.R.mT @ self._features_of(index)
        p = u.square().sum()
        if p <= 0:
            return
        self._bounds = None
        Ru = self.R @ u
        shrink = num_pulls / (noise + num_pulls * p)
        self.projected -= shrink * self.rows.dot(Ru).square()
        self.projected.clamp_(min=0.0)
        # 1 - sqrt(lambda / (lambda + n p)) without cancellation.
        ratio = num_pulls * p / (noise + num_pulls * p)
        alpha = ratio / (1 + (1 - ratio).sqrt())
        self.R = self.R - torch.outer(Ru, u * (alpha / p))

    def _refreshed_bounds(self) -> Tensor:
        if self._bounds is None:
            variance = self.residual + self.projected
            self._bounds = self.mean + self.scale * variance.sqrt()
        return self._bounds

    def _features_of(self, index: int) -> Tensor:
        arm = torch.tensor([index], device=self.appended.device)
        z = self.posterior.features(arm)
        if self.appended.numel() == 0:
            return z.squeeze(-1)
        K = self.posterior.prior_covariance(self.appended, arm)
        new = torch.linalg.solve_triangular(self.C, K - self.B @ z, upper=False)
        return torch.cat([z, new]).squeeze(-1)

    def _new_feature(
        self, arms: FeatureRows, index: int, z: Tensor, root: Tensor
    ) -> Tensor:
        column = self.posterior.prior_column(index, arms.indices)
        return (column - arms.dot(z)) / root


def optimize_batch_ucb(
    posterior: ArmPosterior,
    confidence_width: float,
    batch_rule: BatchRule,
    *,
    grow: bool,
    pending_indices: Tensor,
    pending_scores: Tensor,
    capacity: Tensor | None = None,
    first: int | None = None,
) -> Tensor:
    r"""Choose a batch of arms greedily by upper confidence bounds.

    Args:
        posterior: The posterior given all rewards.
        confidence_width: w, in the papers' scaling.
        batch_rule: When to close the batch.
        grow: Whether chosen arms join the inducing points inside the batch.
        pending_indices: A long tensor of the pulls still without reward, repeats
            included. They shrink the variance and always join the inducing points.
        pending_scores: Their leverage scores, each frozen at the start of its batch.
        capacity: An ``A``-dim long tensor, the pulls each arm still allows; None for no
            limit.
        first: The first arm, if it is chosen already (the uniform draw that opens a
            run); a rule that waits for its reward then closes at once.

    Returns:
        A long tensor of arm indices in order of choice, at least one; repeated arms
        repeat.

    Raises:
        InputDataError: If no arm allows a pull.

    Memory and time: ``O(A)``, plus ``O(pool^2)`` a pick. Where inducing points grow
    without holding all pulled arms (then no bound is known to fall), with pulls pending
    under fixed inducing points, and where over 1,024 arms compete, a pick passes over
    all features: ``O(A (m + f))`` time and ``O(A f)`` memory for ``f`` appended arms.
    """
    scale = confidence_width / math.sqrt(posterior.noise_variance)
    chosen: list[int] = []
    frontier = _Frontier(posterior, scale, grow, pending_indices, capacity)
    batch = batch_rule.open(posterior, pending_scores, projected=not grow)

    def take(index: int, wanted: int) -> None:
        taken = batch.take(index, wanted)
        frontier.pull(index, taken)
        chosen.extend([index] * taken)

    if first is not None:
        frontier.append(first)
        take(first, 1)
    done = first is not None and batch_rule.opens_with_one_pull
    while not (done or (chosen and batch.is_closed)):
        index = frontier.best()
        if index is None:
            break
        frontier.append(index)
        take(index, frontier.num_repeats(index))
    if not chosen:
        raise InputDataError(
            "Expected at least one arm that may still be pulled, but `available` and "
            "`max_repeats` leave none. Allow more repeats or stop here."
        )
    return posterior.pulled_indices.new_tensor(chosen)


class _Frontier:
    """The arms that may be the best: a pool with exact bounds, stale ones outside.

    A stale bound holds as long as variances only fall: with fixed inducing arms, and
    with growing ones where the GP is exact. Otherwise, and where the pool would grow
    too large, all arms are tracked.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        grow: bool,
        pending_indices: Tensor,
        capacity: Tensor | None,
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.grow = grow
        self.capacity = None if capacity is None else capacity.clone()
        self.outside = (-math.inf, -1)
        self.tracked: PoolPosterior | HallucinatedPosterior
        pending = _counts_in_order(pending_indices)
        self.pulls: dict[int, int] = {}
        if (grow and posterior.is_exact) or not (grow or pending):
            self.pulls = pending
            self.stale = posterior.mean + scale * posterior.variance.sqrt()
            if self.capacity is not None:
                self.stale[self.capacity <= 0] = -math.inf
            self._pool(POOL_SIZE)
        else:
            # Pending arms join the inducing arms, whatever the rule.
            self._track_all(pending, append=True)

    def best(self) -> int | None:
        """Return the arm of the largest bound, lowest index first; None if none."""
        while True:
            tracked = self.tracked
            best = tracked.best()
            if math.isnan(best[0]):
                raise InputDataError(
                    "Expected upper confidence bounds to be numbers, but got NaN. "
                    "Check `covar_module` and the confidence schedule."
                )
            if best[0] == self.outside[0] == -math.inf:
                return None
            if isinstance(tracked, PoolPosterior) and _beats(self.outside, best):
                self._enlarge(tracked)
            else:
                return best[1]

    def num_repeats(self, index: int) -> int:
        """Return how many pulls in a row keep the arm best; at most its capacity.

        One at least. With ``n`` pulls the bound is ``mean + scale sqrt(residual +
        p lambda / (lambda + n p))``, against bounds that can only fall.
        """
        noise = self.posterior.noise_variance
        rival = self.tracked.rival(index)
        if _beats(self.outside, rival):
            rival = self.outside
        mean = self.posterior.mean[index].item()
        residual, p = self.tracked.variances(index)

        def overtaken(num_pulls: int) -> bool:
            variance = residual + p * noise / (noise + num_pulls * p)
            bound = mean + self.scale * math.sqrt(variance)
            return _beats(rival, (bound, index))

        limit = math.inf
        if rival[0] > mean and self.scale > 0:
            room = ((rival[0] - mean) / self.scale) ** 2 - residual
            limit = noise / room - noise / p if room > 0 and p > 0 else math.inf
        pulls = first_crossing(overtaken, limit) if limit > 0 else 1
        return pulls if self.capacity is None else min(pulls, int(self.capacity[index]))

    def append(self, index: int) -> None:
        """Let a chosen arm join the inducing arms, if they grow."""
        if self.grow:
            self.tracked.append(index)

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of an arm."""
        self.pulls[index] = self.pulls.get(index, 0) + num_pulls
        if index in self.tracked:
            self.tracked.pull(index, num_pulls)
        else:
            # A first arm that nobody chose by its bound.
            self._pool(POOL_SIZE)
        if self.capacity is not None:
            self.capacity[index] -= num_pulls
            if self.capacity[index] <= 0 and index in self.tracked:
                self.tracked.close(index)

    def _enlarge(self, pool: PoolPosterior) -> None:
        """Track twice as many arms, or all."""
        size = 2 * len(pool.arms)
        if size > MAX_POOL_SIZE:
            self._track_all(self.pulls, append=self.grow)
            return
        self.stale[pool.indices] = torch.as_tensor(pool.bounds).to(self.stale)
        self._pool(size)

    def _pool(self, size: int) -> None:
        """Make the arms of the largest bounds exact; remember the best one outside."""
        size = min(size, self.stale.shape[0])
        arms = self.stale.topk(size).indices.sort().values
        pool = PoolPosterior(self.posterior, self.scale, arms, self.pulls, self.grow)
        if self.capacity is not None:
            for closed in arms[self.capacity[arms] <= 0].tolist():
                pool.close(closed)
        self.tracked = pool
        outside = self.stale.index_fill(0, arms, -math.inf)
        best = int(outside.argmax())
        self.outside = (outside[best].item(), best)

    def _track_all(self, pulls: dict[int, int], append: bool) -> None:
        self.tracked = HallucinatedPosterior(self.posterior, self.scale, self.capacity)
        self.outside = (-math.inf, -1)
        for index, num_pulls in pulls.items():
            if append:
                self.tracked.append(index)
            self.tracked.pull(index, num_pulls)


def _beats(left: tuple[float, int], right: tuple[float, int]) -> bool:
    """Whether the first (bound, index) goes before the second."""
    return left[0] > right[0] or (left[0] == right[0] and left[1] < right[1])


def _bordered(block: Tensor, side: Tensor, corner: Tensor) -> Tensor:
    """Return ``[[block, side], [0, corner]]``."""
    below = torch.cat([block.new_zeros(1, block.shape[1]), corner], dim=-1)
    return torch.cat([torch.cat([block, side], dim=-1), below])


def _counts_in_order(indices: Tensor) -> dict[int, int]:
    """Count the occurrences of each value, in order of appearance."""
    counts: dict[int, int] = {}
    for index in indices.tolist():
        counts[index] = counts.get(index, 0) + 1
    return counts
