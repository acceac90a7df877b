r"""Upper confidence bounds over a box.

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from botorch.optim import optimize_acqf
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.batch import BatchUpperConfidenceBound
from botorch_bkb.acquisition.confidence import (
    as_schedule,
    ChowdhuryGopalanWidth,
    ConfidenceSchedule,
    PracticalBKBWidth,
)
from botorch_bkb.acquisition.deviations import RandomDeviationWidth
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import draw_seed
from botorch_bkb.models.utils.leverage_scores import check_oversampling


class BoxUCB(BoxBandit):
    """Upper confidence bounds, maximized by BoTorch's gradient optimizer.

    Args:
        confidence: A schedule of ``botorch_bkb.acquisition.confidence``, or a number (a
            constant width ``w``, in the papers' scaling). None: the bandit's default,
            the paper's if kernel and noise are given, and one posterior deviation on
            average, ``RandomDeviationWidth(1.0)``, if either is learned: a constant
            number measures where the mean is largest again and again, or goes from
            corner to corner.

    All other arguments are those of :class:`BoxBandit`.
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        confidence: ConfidenceSchedule | float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(bounds, covar_module, noise_variance, **options)
        if confidence is None and self._hyperparameters.learns:
            confidence = self.practical_confidence()
        elif confidence is None:
            confidence = self.default_confidence()
        self.confidence = as_schedule(confidence)

    @abstractmethod
    def default_confidence(self) -> ConfidenceSchedule:
        """Return the schedule used if none is given, but kernel and noise are."""

    def practical_confidence(self) -> ConfidenceSchedule:
        """Return the schedule used if none is given and something is learned."""
        return RandomDeviationWidth(seed=draw_seed(self.generator))

    @override
    def _choose(self, model: SingleTaskDTCGP, size: int, others: Tensor) -> Tensor:
        chosen = self._pending_features(others)
        for _ in range(size):
            acqf = BatchUpperConfidenceBound(model, self.confidence, chosen)
            with manual_seed(draw_seed(self.generator)):
                # Late maxima are narrower than uniform starting points are apart.
                point, _ = optimize_acqf(
                    acqf,
                    self._hyperparameters.to_features(self.bounds),
                    q=1,
                    num_restarts=self.num_restarts,
                    raw_samples=self.raw_samples,
                    options={"sample_around_best": self._hyperparameters.learns},
                )
            chosen = torch.cat([chosen, point])
        return chosen[-size:]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "confidence": self.confidence.state_dict()}

    @override
    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.confidence.load_state_dict(state["confidence"])


class BoxGPUCB(BoxUCB):
    """GP-UCB on a box, on the exact posterior.

    Points pending or chosen earlier in the batch lower the variance (GP-BUCB). The
    arguments are those of :class:`BoxBandit`, and ``confidence``, a schedule or a
    number. By default it is the width of Chowdhury and Gopalan with kernel and noise
    given, and ``RandomDeviationWidth(1.0)`` where either is learned.

    Example:
        >>> bandit = BoxGPUCB(bounds, covar_module=RBFKernel(), noise_variance=0.2)
        >>> points = bandit.ask()
        >>> bandit.tell(points, measure(points))
    """

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return ChowdhuryGopalanWidth()


class BoxBKB(BoxUCB):
    """BKB on a box: GP-UCB on the sparse posterior.

    Algorithm 1 of [calandriello2019bkb]_ on an infinite set of arms: each told point is
    inducing with probability ``min(1, oversampling * var / lambda)``, with the variance
    before the update, drawn anew after every batch; where more than 256 points are new,
    as of a warm start, as if they had come in doubling blocks. Where kernel or noise is
    learned, the posterior is exact up to 256 told points. The gradient optimizer
    finds a local maximum of the bound, where the theorem asks for the global one.

    Args:
        oversampling: q-bar.

    All other arguments are those of :class:`BoxGPUCB`. By default the width is the
    practical one of BKB with kernel and noise given, and ``RandomDeviationWidth(1.0)``
    where either is learned.
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        oversampling: float = 2.0,
        **options: Any,
    ) -> None:
        check_oversampling(oversampling)
        super().__init__(bounds, covar_module, noise_variance, **options)
        self.oversampling = oversampling

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return PracticalBKBWidth()
