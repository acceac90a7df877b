r"""Samples that the picks of a greedy batch share, so that each pick adds one row.

BoTorch's Monte Carlo acquisition functions value a choice ``x`` by joint samples of the
objective ``f`` at ``x``, at the pending points and at a baseline. Let ``C C^T`` be the
posterior covariance of ``f`` at the points that are known so far, and ``c(x)`` that
with ``x``. Then a joint sample is ::

    f(x) = mean(x) + c(x)^T C^{-T} z + sqrt(var(x) - |C^{-1} c(x)|^2) z',

``z`` the standard normal numbers of the known points and ``z'`` that of the choice. So
a choice needs its mean, its variance, and one number of ``C^{-1} c(x)`` for each known
point. A pick becomes a known point, with the samples that it had as a choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

import torch
from botorch.acquisition.cached_cholesky import CachedCholeskyMCSamplerMixin
from botorch.acquisition.monte_carlo import (
    MCAcquisitionFunction,
    SampleReducingMCAcquisitionFunction,
)
from botorch.acquisition.multi_objective.base import MultiObjectiveMCAcquisitionFunction
from botorch.acquisition.objective import LearnedObjective
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from botorch_bkb.models.utils.prediction import masked_cholesky


# Choices that are predicted jointly: more of them mean more covariances that nobody
# needs, fewer mean more copies of the known points.
BLOCK_SIZE = 32
# How many sampled numbers of choices and known points are alive at a time.
NUM_SAMPLED = 2**19
# The most bytes that the known points may take for all choices.
MAX_BYTES = 2**31


class SharedSamples:
    """Joint samples of known points, and of every choice given these.

    Memory: ``O(A m (q + k))`` numbers for ``A`` choices, ``m`` outcomes, ``q`` picks
    and ``k`` points of a baseline.

    Args:
        acq_function: A function that :func:`can_share`; it is not changed.
        choices: The ``A x d`` choices.
        q: How many picks there will be.
        chunk_size: How many choices are predicted at a time.

    Attributes:
        function: A copy of the acquisition function whose model and sampler look
            samples up.
    """

    def __init__(
        self, acq_function: Any, choices: Tensor, q: int, chunk_size: int
    ) -> None:
        self.choices = choices
        self.chunk_size = chunk_size
        self.model: Any = acq_function.model
        self.options = _options_of(acq_function)
        self.points = choices[:0]
        self.at = slice(0)  # the choices that are evaluated now
        trial = self.model.posterior(choices[:1], **self.options)
        shape = acq_function.sample_shape
        self.sampler: Any = acq_function.sampler or get_sampler(trial, shape)
        pending = pending_points(acq_function)
        pending = choices[:0] if pending is None else pending
        models = [self.model]
        if trial.mean.shape[-1] > 1:
            numbers = range(self.model.num_outputs)
            models = [self.model.subset_output([number]) for number in numbers]
        self.outcomes = [_Outcome(self, model) for model in models]
        # Standard normal numbers, drawn once: samples of independent points. The first
        # ones are those of the baseline, or like them: its samples exist already.
        has_baseline = getattr(acq_function, "base_sampler", None) is not None
        num_known = len(acq_function.X_baseline) if has_baseline else 0
        shape = num_known + len(pending) + q, len(models)
        size = shape[0] * shape[1]
        unit = MultivariateNormal(choices.new_zeros(size), torch.eye(size).to(choices))
        normals = deepcopy(self.sampler)(GPyTorchPosterior(unit))
        self.normals = normals.squeeze(-1).unflatten(-1, shape)[..., num_known:, :]
        self.function = self._copied(acq_function)
        self.add(pending)

    def _copied(self, function: Any) -> Any:
        model, sampler = copy(self.model), copy(self.sampler)
        vars(model)["posterior"] = self._posterior
        vars(sampler).update(
            forward=self._sampled,
            _update_base_samples=lambda **_: None,
            __deepcopy__=lambda memo: sampler,
        )
        # Tensors that need a gradient cannot be copied.
        memo: dict[int, Any] = {id(one): one.detach() for one in function.buffers()}
        memo |= {id(self.model): model, id(self.sampler): sampler}
        # By which the copy is recognized when it asks for a posterior.
        memo |= {id(one): one for one in self.options.values()}
        is_cached = isinstance(function, CachedCholeskyMCSamplerMixin)
        base_sampler = getattr(function, "base_sampler", None)
        if base_sampler is not None:  # else pruning has left no baseline
            # What the function has computed from its samples of the baseline stays.
            baseline = function.X_baseline
            self.add(
                baseline, base_sampler(self.model.posterior(baseline, **self.options))
            )
            memo[id(base_sampler)] = sampler
        copied: Any = deepcopy(function, memo)
        copied.sampler, copied.prune_baseline = sampler, False
        if is_cached:  # the last points are new, those before are the baseline
            copied._get_f_X_samples = lambda posterior, q_in: self.samples_of(
                posterior.X[..., -q_in:, :]
            )
        # A learned objective compares the points of a batch with each other.
        is_reducing = isinstance(function, SampleReducingMCAcquisitionFunction)
        if is_reducing and not isinstance(function.objective, LearnedObjective):
            copied._non_reduced_forward = _Utilities(copied._non_reduced_forward)
        return copied

    def _posterior(self, X: Tensor, *args: Any, **options: Any) -> Any:
        if args or {"posterior_transform": None} | options != self.options:
            return self.model.posterior(X, *args, **options)
        return _LazyPosterior(self, X)

    def _sampled(self, posterior: Any) -> Tensor:
        found = None
        if isinstance(posterior, _LazyPosterior):
            found = self.samples_of(posterior.X)
            posterior = posterior.computed() if found is None else posterior
        return self.sampler(posterior) if found is None else found

    def add(self, points: Tensor, samples: Tensor | None = None) -> None:
        """Make ``k x d`` points known, by ``S x k x m`` samples or by new ones."""
        if not len(points):  # which not every model predicts
            return
        normals = self.normals[..., : len(points), :]
        if samples is None:
            self.normals = self.normals[..., len(points) :, :]
        for place, outcome in enumerate(self.outcomes):
            given = None if samples is None else samples[..., place]
            outcome.add(points, normals[..., place], given)
        self.points = torch.cat([self.points, points])

    def slices(self) -> Iterator[slice]:
        """Yield slices of the choices, to be evaluated one after the other."""
        size = (len(self.points) + 1) * self.normals[..., 0, 0].numel()
        size = max(1, NUM_SAMPLED // size)
        for start in range(0, len(self.choices), size):
            self.at = slice(start, start + size)
            yield self.at

    def samples_of(self, X: Tensor) -> Tensor | None:
        """Return the ``S x b x k x m`` samples of ``b x k x d`` points.

        None if one of them is neither known nor one of the choices that are evaluated.
        """
        samples = []
        for x in X.unbind(dim=-2):
            if torch.equal(x, self.choices[self.at]):
                normals = self.normals[..., 0, :].unbind(dim=-1)
                pairs = zip(self.outcomes, normals, strict=True)
                parts = [outcome.drawn(self.at, one) for outcome, one in pairs]
            else:
                row = x.reshape(-1, x.shape[-1])[0]
                found = (self.points == row).all(dim=-1).nonzero()
                if not len(found) or not torch.equal(x, row.expand_as(x)):
                    return None
                known = [outcome.samples[..., found[0]] for outcome in self.outcomes]
                if x.dim() > 1:
                    parts = [one.expand(*one.shape[:-1], len(x)) for one in known]
                else:
                    parts = [one.squeeze(-1) for one in known]
            samples.append(torch.stack(parts, dim=-1))
        return torch.stack(samples, dim=-2)


def can_share(acq_function: Any, choices: Tensor, q: int) -> bool:
    """Whether :class:`SharedSamples` gives the values of an acquisition function.

    All that it asks of its model must be samples, by ``self.get_posterior_samples(
    self.model.posterior(X))``, of outcomes that are independent Gaussian processes. And
    a number for each choice, known point and outcome must fit two GiB.
    """
    # Others with a sampler, such as qMaxValueEntropy, condition on pending points.
    kinds = MCAcquisitionFunction, MultiObjectiveMCAcquisitionFunction
    if not isinstance(acq_function, kinds):
        return False
    function: Any = acq_function
    model, options = function.model, _options_of(function)
    # If not cached, the samples of a baseline are not kept.
    if is_ensemble(model) or not getattr(function, "_cache_root", True):
        return False
    trial = model.posterior(choices[:1], **options)
    if type(trial) is not GPyTorchPosterior or trial.mean.dim() != 2:
        return False
    rows, outputs = trial.mean.shape  # an input transform may make several rows of one
    known = [pending_points(function), getattr(function, "X_baseline", None)]
    num_known = q + sum(len(points) for points in known if points is not None)
    if choices[:, 0].nbytes * outputs * num_known > MAX_BYTES:
        return False
    return rows == 1 and (outputs == 1 or _can_split(model))


def _can_split(model: Any) -> bool:
    """Whether a model consists of models of independent outcomes."""
    if not isinstance(model, ModelListGP | BatchedMultiOutputGPyTorchModel):
        return False
    try:
        for number in range(model.num_outputs):
            model.subset_output([number])
    # BoTorch's of a given kernel, or of several tasks.
    except (NotImplementedError, UnsupportedError):
        return False
    return True


def pending_points(function: Any) -> Tensor | None:
    """Return the pending points of an acquisition function, None if there are none."""
    pending: Tensor | None = getattr(function, "X_pending", None)
    # qLogNoisyExpectedImprovement keeps them at the end of its baseline.
    whole: Tensor | None = getattr(function, "_full_X_baseline", None)
    if pending is None and whole is not None:
        whole = whole[len(function._X_baseline) :]
        pending = whole if len(whole) else None
    return pending


def _options_of(function: Any) -> dict[str, Any]:
    return {"posterior_transform": getattr(function, "posterior_transform", None)}


class _Outcome:
    """One outcome: the moments of the choices, and what known points tell about them.

    Attributes:
        C: The ``k x k`` Cholesky factor of the covariance of the known points.
        normals: Their ``S x k`` normal numbers.
        samples: Their ``S x k`` samples.
        rows: ``k x A``, the columns ``C^{-1} c(x)``.
        variance: What they leave of the variances of the choices.
    """

    def __init__(self, shared: SharedSamples, model: Any) -> None:
        self.shared = shared
        self.model = model
        choices = shared.choices
        self.C, self.rows = choices.new_empty(0, 0), choices.new_empty(0, len(choices))
        shape = shared.sampler.sample_shape
        self.normals = self.samples = choices.new_empty(*shape, 0)
        self.mean, self.variance = choices.new_empty(2, len(choices)).unbind()
        for at, size, posterior in self._blocks(choices[:0]):
            self.mean[at] = posterior.mean.flatten()[:size]
            self.variance[at] = posterior.variance.flatten()[:size]

    def _blocks(self, points: Tensor) -> Iterator[tuple[slice, int, GPyTorchPosterior]]:
        """Yield choices, their number, and posteriors of blocks of them.

        Each block has the same ``k`` points before its choices. The last choice fills
        up the last block.
        """
        choices, step = self.shared.choices, self.shared.chunk_size
        for start in range(0, len(choices), step):
            some = choices[start : start + step]
            size = min(max(BLOCK_SIZE, len(points)), len(some))
            filling = some[-1:].expand(-len(some) % size, -1)
            blocks = torch.cat([some, filling]).unflatten(0, (-1, size))
            before = points.expand(len(blocks), *points.shape)
            X = torch.cat([before, blocks], dim=-2)
            posterior = self.model.posterior(X, **self.shared.options)
            yield slice(start, start + step), len(some), posterior

    def add(self, points: Tensor, normals: Tensor, samples: Tensor | None) -> None:
        """Make points known, see :meth:`SharedSamples.add`."""
        known, k = torch.cat([self.shared.points, points]), len(self.shared.points)
        joint = self.model.posterior(known, **self.shared.options).distribution
        covariance = joint.covariance_matrix
        B = torch.linalg.solve_triangular(self.C, covariance[:k, k:], upper=False)
        covariance = covariance[k:, k:]
        C, kept = masked_cholesky(covariance - B.mT @ B, covariance.diagonal())
        mean = joint.mean[k:] + self.normals @ B
        if samples is None:
            samples = mean + (normals * kept) @ C.mT
        else:
            rest = (samples - mean).unsqueeze(-1)
            normals = torch.linalg.solve_triangular(C, rest, upper=False).squeeze(-1)
        added = self.rows.new_empty(len(points), len(self.mean))
        for at, size, posterior in self._blocks(points):
            cross = posterior.distribution.covariance_matrix
            cross = cross[:, : len(points), len(points) :]
            cross = cross.movedim(1, 0).flatten(1)[:, :size] - B.mT @ self.rows[:, at]
            added[:, at] = torch.linalg.solve_triangular(C, cross, upper=False)
        added[~kept] = 0.0
        self.variance = (self.variance - added.square().sum(dim=0)).clamp_min(0.0)
        self.rows = torch.cat([self.rows, added])
        above = torch.nn.functional.pad(self.C, (0, len(points)))
        self.C = torch.cat([above, torch.cat([B.mT, C], dim=-1)])
        self.normals = torch.cat([self.normals, normals * kept], dim=-1)
        self.samples = torch.cat([self.samples, samples], dim=-1)

    def drawn(self, at: slice, normal: Tensor) -> Tensor:
        """Return the ``S x b`` samples of some choices, given their normal number."""
        own = normal.unsqueeze(-1) * self.variance[at].sqrt() + self.mean[at]
        return own + self.normals @ self.rows[:, at]


class _LazyPosterior:
    """A posterior that is computed if more is asked of it than samples."""

    def __init__(self, shared: SharedSamples, X: Tensor) -> None:
        self.shared = shared
        self.X = X

    def computed(self) -> Any:
        return self.shared.model.posterior(self.X, **self.shared.options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.computed(), name)

    def _extended_shape(self) -> torch.Size:
        return torch.Size([*self.X.shape[:-1], len(self.shared.outcomes)])


class _Utilities:
    """The utilities of a choice, and those of the pending points beside it.

    The latter do not depend on the choice, so they are computed once for each pick.
    """

    def __init__(self, utilities: Any) -> None:
        self.utilities = utilities
        self.known: Tensor | None = None

    def __call__(self, X: Tensor) -> Tensor:
        own: Tensor = self.utilities(X[:, :1])
        if not (size := X.shape[-2] - 1):
            return own
        if self.known is None or self.known.shape[-1] != size:
            self.known = self.utilities(X[:1, 1:])
        return torch.cat([own, self.known.expand(*own.shape[:-1], size)], dim=-1)
