"""Ax's own Bayesian optimization, over all points of a discrete space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.optim import optimize_acqf_finite


class FiniteArmAcquisition(Acquisition):
    """Ax's acquisition, maximized over all points of a discrete search space.

    Exact, in chunks, with repeats, for any number of points that fits memory; pending
    points reach the acquisition function as often as they are pending. Pass it as
    ``generator_kwargs={"acquisition_class": FiniteArmAcquisition, ...}``.

    Args:
        surrogate: As Ax passes it, like all others.
        search_space_digest: The transformed search space.
        torch_opt_config: Holds the pending points with their multiplicity.
        botorch_acqf_class: A class that takes pending points, such as
            :class:`~botorch_bkb.acquisition.BatchUpperConfidenceBound`.
        **kwargs: The others.
    """

    def __init__(
        self,
        surrogate: Any,
        search_space_digest: SearchSpaceDigest,
        torch_opt_config: Any,
        botorch_acqf_class: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            surrogate=surrogate,
            search_space_digest=search_space_digest,
            torch_opt_config=torch_opt_config,
            botorch_acqf_class=botorch_acqf_class,
            **kwargs,
        )
        pending = torch_opt_config.pending_observations
        if pending is not None and pending[0].numel():
            # Ax has made a set of them.
            self.acqf.set_X_pending(pending[0].to(self.dtype))

    @override
    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: Any = None,
        equality_constraints: Any = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Any = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``n`` points, their values, and weights of one.

        Raises:
            UnsupportedError: If a feature is continuous, or there are constraints.
        """
        if inequality_constraints or equality_constraints or sampling_strategy:
            raise UnsupportedError(
                "Expected neither constraints nor a `sampling_strategy`, which "
                "FiniteArmAcquisition does not support."
            )
        choices = candidate_set
        if choices is None:
            choices = self._choices(search_space_digest, fixed_features or {})
        indices, values = optimize_acqf_finite(
            self.acqf, choices, q=n, unique=False, **(optimizer_options or {})
        )
        return choices[indices], values.reshape(-1), torch.ones(n, dtype=self.dtype)

    def _choices(
        self, digest: SearchSpaceDigest, fixed_features: dict[int, float]
    ) -> Tensor:
        """Return all points, in the space of the model."""
        columns = []
        for i, name in enumerate(digest.feature_names):
            if i in fixed_features:
                values: Sequence[float] = [fixed_features[i]]
            elif i in digest.discrete_choices:
                values = digest.discrete_choices[i]
            else:
                raise UnsupportedError(
                    f"Expected discrete parameters only, but {name!r} is continuous."
                )
            columns.append(torch.tensor(list(values), dtype=self.dtype))
        return torch.cartesian_prod(*columns).reshape(-1, len(columns))
