r"""Thompson sampling over a box.

References:
    [basu2017] K. Basu, S. Ghosh. Analysis of Thompson sampling for Gaussian process
    optimization in the bandit setting. 2017.
"""

from __future__ import annotations

from typing import Any, cast

from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.batch import condition_on_means
from botorch_bkb.bandits.box import BoxBandit
from botorch_bkb.bandits.thompson import DRAWS_PER_ROUND
from botorch_bkb.checks import check_probability
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.leverage_scores import check_oversampling


class BoxThompsonSampling(BoxBandit):
    r"""Thompson sampling on a box: points where draws from the posterior are largest.

    Algorithm 1 of [basu2017]_, on draws from the sparse posterior whose prior part is
    approximate; see :mod:`botorch_bkb.generation.paths`.

    Args:
        uniform_probability: The paper's xi: with this probability a point is uniform in
            the box in place of a draw's maximizer. None: the paper's 0.05 where kernel
            and noise are given, 0 where either is learned.
        oversampling: q-bar, as in :class:`~botorch_bkb.bandits.BoxBKB`.
        batch_size: The number of draws from one posterior, the paper's 30. Who measures
            one point at a time asks for one: ``ask(1)``.

    All other arguments are those of :class:`BoxBandit`. The paper's answer is
    ``maximizer_distribution().mode``.

    Example:
        >>> bandit = BoxThompsonSampling(bounds)
        >>> points = bandit.ask()
        >>> bandit.tell(points, measure(points))
    """

    def __init__(
        self,
        bounds: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float | None = None,
        oversampling: float = 2.0,
        batch_size: int = DRAWS_PER_ROUND,
        **options: Any,
    ) -> None:
        if uniform_probability is None:
            learns = covar_module is None or noise_variance is None
            uniform_probability = 0.0 if learns else 0.05
        check_probability("uniform_probability", uniform_probability)
        check_oversampling(oversampling)
        super().__init__(
            bounds, covar_module, noise_variance, batch_size=batch_size, **options
        )
        self.uniform_probability = uniform_probability
        self.oversampling = oversampling

    @override
    def _choose(self, model: SingleTaskDTCGP, size: int, others: Tensor) -> Tensor:
        pending = self._pending_features(others)
        if len(pending):
            # Its mean stays, and its variance falls.
            model = cast(SingleTaskDTCGP, condition_on_means(model, pending))
        points = self._hyperparameters.to_features(self._draw_points(size))
        is_drawn = self._uniform(size) >= self.uniform_probability
        num_draws = int(is_drawn.sum())
        if num_draws:
            points[is_drawn.to(points.device)] = self._draw_maximizers(
                model, num_draws, self.generator
            )
        return points
