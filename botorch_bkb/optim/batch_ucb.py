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

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.models.utils.nystrom import span_tolerance
from botorch_bkb.optim.arm_posterior import ArmPosterior
from botorch_bkb.optim.batch_rules import BatchRule, first_crossing


# The pool starts with this many arms and doubles; past the limit all arms are tracked.
POOL_SIZE = 128
MAX_POOL_SIZE = 1024


class PoolPosterior:
    r"""The covariance of a few arms as pulls without reward are added.

    ``n`` pulls of an arm turn a covariance ``M`` into ``M - n m m^T / (lambda + n p)``,
    ``m`` the arm's column and ``p`` its variance. With fixed inducing arms ``M`` is the
    projected covariance, beside which the residual stays; with inducing arms that grow
    on the exact GP it is the whole covariance, and nothing is left beside it.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        indices: The ``k`` arms of the pool, ascending.
        pulls: The pulls so far, by arm.
        grow: Whether pulled arms join the inducing arms.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        indices: Tensor,
        pulls: dict[int, int],
        grow: bool,
    ) -> None:
        self.noise_variance = posterior.noise_variance
        self.indices = indices
        self.covariance = posterior.covariance(indices, indices, projected=not grow)
        self.residual = posterior.residual[indices]
        if grow:
            self.residual = torch.zeros_like(self.residual)
        if pulls:
            arms = torch.tensor(list(pulls), device=indices.device)
            counts = self.residual.new_tensor(list(pulls.values()))
            K = posterior.covariance(arms, arms, projected=not grow)
            cross = posterior.covariance(arms, indices, projected=not grow)
            L = torch.linalg.cholesky(K + torch.diag(self.noise_variance / counts))
            root = torch.linalg.solve_triangular(L, cross, upper=False)
            self.covariance -= root.mT @ root
        # Rounding can leave a variance of zero below it, and a bound that is NaN.
        self.covariance.diagonal().clamp_(min=0.0)

    @property
    def projected(self) -> Tensor:
        """The variances that pulls shrink."""
        return self.covariance.diagonal()

    def append(self, index: int) -> None:
        """Do nothing: growth of the exact GP is in the covariance already."""

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of one arm of the pool, without rewards."""
        position = int(torch.searchsorted(self.indices, index))
        column = self.covariance[position].clone()
        p = column[position].item()
        if p <= 0:
            return
        shrink = num_pulls / (self.noise_variance + num_pulls * p)
        self.covariance.addr_(column, column, alpha=-shrink)
        self.covariance.diagonal().clamp_(min=0.0)


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
    :class:`~botorch_bkb.optim.arm_posterior.ArmPosterior`. Every change passes over the
    features of all arms, ``O(A (m + f))``.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
    """

    indices = None

    def __init__(self, posterior: ArmPosterior) -> None:
        self.posterior = posterior
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
        self.arms = FeatureRows(posterior, None)
        # Pulled arms outside the span of S change V once it grows.
        is_outside = ~posterior.pulled_in_span
        self.outside = posterior.pulled_indices[is_outside]
        self.pulled = FeatureRows(posterior, self.outside)
        self.precisions = posterior.precisions[is_outside]

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
        root = residual.sqrt()
        a_pulled = self._new_feature(self.pulled, index, z, root)
        a = self._new_feature(self.arms, index, z, root)
        weighted = self.precisions * a_pulled
        g = self.posterior.features(self.outside) @ weighted
        h = self.R.mT @ torch.cat([g, self.pulled.appended @ weighted])
        Rh = self.R @ h
        s = 1 + (weighted @ a_pulled) - h.square().sum()
        self.projected += (a - self.arms.dot(Rh)).square() / s
        self.residual = (self.residual - a.square()).clamp_min(0.0)
        self.pulled.append(a_pulled)
        self.arms.append(a)
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
        Ru = self.R @ u
        shrink = num_pulls / (noise + num_pulls * p)
        self.projected -= shrink * self.arms.dot(Ru).square()
        self.projected.clamp_(min=0.0)
        # 1 - sqrt(lambda / (lambda + n p)) without cancellation.
        share = num_pulls * p / (noise + num_pulls * p)
        alpha = share / (1 + (1 - share).sqrt())
        self.R = self.R - torch.outer(Ru, u * (alpha / p))

    def _features_of(self, index: int) -> Tensor:
        one = torch.tensor([index], device=self.appended.device)
        z = self.posterior.features(one)
        if self.appended.numel() == 0:
            return z.squeeze(-1)
        K = self.posterior.prior_covariance(self.appended, one)
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
    frontier = _Frontier(posterior, scale, grow, pending_indices, capacity)
    batch = batch_rule.open(posterior, pending_scores, projected=not grow)
    chosen: list[Tensor] = []

    def take(index: int, wanted: int) -> None:
        taken = batch.take(index, wanted)
        frontier.pull(index, taken)
        chosen.append(posterior.pulled_indices.new_full((taken,), index))

    if first is not None:
        frontier.append(first)
        take(first, 1)
        if batch_rule.opens_with_one_pull:
            return chosen[0]
    while not chosen or not batch.is_closed:
        index = frontier.best()
        if index is None:
            break
        frontier.append(index)
        take(index, frontier.row_length(index))
    if not chosen:
        raise InputDataError(
            "Expected at least one arm that may still be pulled, but `available` and "
            "`max_repeats` leave none. Allow more repeats or stop here."
        )
    return torch.cat(chosen)


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
        self.current: Tensor | None = None
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
            bounds = self._bounds()
            position = int(bounds.argmax())
            value = bounds[position].item()
            if math.isnan(value):
                raise InputDataError(
                    "Expected upper confidence bounds to be numbers, but got NaN. "
                    "Check `covar_module` and the confidence schedule."
                )
            if value == self.outside[0] == -math.inf:
                return None
            index = self._arm(position)
            if _beats((value, index), self.outside):
                return index
            size = 2 * bounds.shape[0]
            if size > MAX_POOL_SIZE:
                self._track_all(self.pulls, append=self.grow)
            else:
                self.stale[self.tracked.indices] = bounds
                self._pool(size)

    def row_length(self, index: int) -> int:
        """Return how many pulls in a row keep the arm best; at most its capacity.

        One at least. With ``n`` pulls the bound is ``mean + scale sqrt(residual +
        p lambda / (lambda + n p))``, against bounds that can only fall.
        """
        noise = self.posterior.noise_variance
        position = self._position(index)
        bounds = self._bounds().clone()
        bounds[position] = -math.inf
        runner = int(bounds.argmax())
        rival = (bounds[runner].item(), self._arm(runner))
        if _beats(self.outside, rival):
            rival = self.outside
        mean = self.posterior.mean[index].item()
        residual = self.tracked.residual[position].item()
        p = self.tracked.projected[position].item()

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
            self.current = None

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of an arm."""
        self.pulls[index] = self.pulls.get(index, 0) + num_pulls
        if self.capacity is not None:
            self.capacity[index] -= num_pulls
        indices = self.tracked.indices
        if indices is None or bool((indices == index).any()):
            self.tracked.pull(index, num_pulls)
            self.current = None
        else:
            # A first arm that nobody chose by its bound.
            self._pool(indices.shape[0])

    def _bounds(self) -> Tensor:
        """Return the exact bounds of the tracked arms."""
        if self.current is None:
            tracked, means, capacity = self.tracked, self.posterior.mean, self.capacity
            if tracked.indices is not None:
                means = means[tracked.indices]
                capacity = None if capacity is None else capacity[tracked.indices]
            variance = tracked.residual + tracked.projected
            self.current = means + self.scale * variance.sqrt()
            if capacity is not None:
                self.current[capacity <= 0] = -math.inf
        return self.current

    def _pool(self, size: int) -> None:
        """Make the arms of the largest bounds exact; remember the best one outside."""
        size = min(size, self.stale.shape[0])
        pool = self.stale.topk(size).indices.sort().values
        self.tracked = PoolPosterior(self.posterior, pool, self.pulls, self.grow)
        self.current = None
        outside = self.stale.index_fill(0, pool, -math.inf)
        best = int(outside.argmax())
        self.outside = (outside[best].item(), best)

    def _track_all(self, pulls: dict[int, int], append: bool) -> None:
        self.tracked = HallucinatedPosterior(self.posterior)
        self.current = None
        self.outside = (-math.inf, -1)
        for index, num_pulls in pulls.items():
            if append:
                self.tracked.append(index)
            self.tracked.pull(index, num_pulls)

    def _arm(self, position: int) -> int:
        indices = self.tracked.indices
        return position if indices is None else int(indices[position])

    def _position(self, index: int) -> int:
        indices = self.tracked.indices
        return index if indices is None else int(torch.searchsorted(indices, index))


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
