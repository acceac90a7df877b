r"""The sparse DTC posterior of BKB as a BoTorch model.

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import gpt_posterior_settings
from botorch.utils.types import _DefaultType, DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from linear_operator.operators import LowRankRootLinearOperator, to_linear_operator
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils.covariance import dense_covariance, lazy_covariance
from botorch_bkb.models.utils.leverage_scores import (
    log_exclusion,
    Resampling,
    sample_inducing_indices,
    validate_resampling,
)
from botorch_bkb.models.utils.marginal_likelihood import (
    repeat_rows,
    ReplicatedMultivariateNormal,
)
from botorch_bkb.models.utils.prediction import (
    ExactPosterior,
    FactoredPosterior,
    nystrom_features,
    Observations,
    SparsePosterior,
)
from botorch_bkb.models.utils.replicates import (
    find_replicates,
    Replicates,
    sum_replicates,
)


class SingleTaskDTCGP(SingleTaskGP):
    r"""A single-task GP with the DTC posterior of BKB.

    With inducing points ``S``, ``K_S = L L^T`` and Nystrom features
    ``z(x) = L^{-1} k_S(x)``, the posterior is ::

        V = Z^T N Z + lambda I
        mean(x) = z(x)^T V^{-1} Z^T s
        var(x) = k(x, x) - |z(x)|^2 + lambda z(x)^T V^{-1} z(x)

    where repeated rows of the training inputs are merged (``N`` their counts, ``s``
    their sums); section 3.1 of [calandriello2019bkb]_, whose variance is this one over
    ``lambda``. With ``train_Yvar`` the sum of ``1 / Yvar`` takes the place of
    ``N / lambda``. It keeps the residual ``k - |z|^2`` at test points, so it does not
    starve the variance (SoR), and leaves it out in training, so it is not FITC. With
    every unique input inducing (the default) it is the exact GP of ``SingleTaskGP``.

    Training maximizes the DTC marginal likelihood through the stock
    ``ExactMarginalLogLikelihood`` in ``O(n m^2)``; inducing points stay as they are.
    Prediction never expands the training data over a t-batch: ``b x 1 x d`` inputs cost
    ``O(b m^2)`` time and ``O(b m)`` memory. ``condition_on_observations`` and
    ``fantasize`` append the new inputs to the inducing points (a sparse posterior would
    not move away from ``S`` otherwise).

    The ``state_dict`` holds hyper-parameters only, neither data nor inducing points.

    Example:
        >>> model = SingleTaskDTCGP(train_X, train_Y)
        >>> mll = ExactMarginalLogLikelihood(model.likelihood, model)
        >>> fit_gpytorch_mll(mll)
        >>> model.resample_inducing_points(oversampling=2.0, generator=generator)
        >>> posterior = model.posterior(test_X)
    """

    prediction_strategy: FactoredPosterior | None
    _inducing_points: Tensor | None
    _original_train_inputs: Tensor
    covar_module: Kernel

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        inducing_points: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
    ) -> None:
        r"""Construct the model.

        Args:
            train_X: An ``n x d`` tensor of training features; rows may repeat.
            train_Y: An ``n x 1`` tensor of training observations.
            train_Yvar: An optional ``n x 1`` tensor of observed noise variances.
            inducing_points: An ``m x d`` tensor in the units of ``train_X``. If
                omitted, all unique training inputs: the exact GP.
            likelihood: As in ``SingleTaskGP``.
            covar_module: Any GPyTorch kernel. If omitted, BoTorch's default with its
                dimension-scaled prior.
            mean_module: As in ``SingleTaskGP``, a ``ConstantMean`` if omitted.
            input_transform: As in ``SingleTaskGP``.
            outcome_transform: As in ``SingleTaskGP``: ``Standardize`` if omitted, None
                for none.

        Raises:
            UnsupportedError: If the training data are batched or have more than one
                output.
            BotorchTensorDimensionError: If ``inducing_points`` are not ``m x d``.
            InputDataError: If ``inducing_points`` hold NaN or there are none.
        """
        if train_X.dim() != 2 or train_Y.shape[-1] != 1:
            raise UnsupportedError(
                "Expected unbatched `train_X` (n x d) and one output in `train_Y` "
                f"(n x 1), but got shapes {tuple(train_X.shape)} and "
                f"{tuple(train_Y.shape)}. Use a `ModelListGP` of `SingleTaskDTCGP`s "
                "for several outputs."
            )
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        # Not persistent: Ax loads a state dict into models of other data.
        self.register_buffer("_inducing_points", None, persistent=False)
        if inducing_points is not None:
            self.set_inducing_points(inducing_points)
        self._uniforms: dict[bytes, float] = {}

    @property
    def inducing_points(self) -> Tensor:
        """The ``m x d`` inducing points, in the units of ``train_X``."""
        if self._inducing_points is not None:
            return self._inducing_points
        train_X = self._raw_train_X
        return train_X[find_replicates(train_X).first.sort().values]

    def set_inducing_points(self, inducing_points: Tensor | None) -> None:
        """Replace the inducing points.

        Args:
            inducing_points: An ``m x d`` tensor in the units of ``train_X``; None for
                all unique training inputs, the exact GP.

        Raises:
            BotorchTensorDimensionError: If the shape is not ``m x d``.
            InputDataError: If they are not finite or there are none.
        """
        train_X = self._raw_train_X
        if inducing_points is not None:
            if (
                inducing_points.dim() != 2
                or inducing_points.shape[-1] != train_X.shape[-1]
            ):
                raise BotorchTensorDimensionError(
                    f"Expected `inducing_points` of shape m x {train_X.shape[-1]}, but "
                    f"got {tuple(inducing_points.shape)}."
                )
            if inducing_points.shape[0] == 0 or not inducing_points.isfinite().all():
                raise InputDataError(
                    "Expected `inducing_points` to hold at least one row and finite "
                    f"numbers only, but got {inducing_points.shape[0]} rows. Pass None "
                    "to use every unique training input."
                )
            inducing_points = inducing_points.to(train_X)
        self._inducing_points = inducing_points
        self.prediction_strategy = None

    def resample_inducing_points(
        self,
        oversampling: float = 2.0,
        generator: torch.Generator | None = None,
        resampling: Resampling = "independent",
    ) -> None:
        r"""Draw the inducing points anew by ridge leverage scores.

        Every pull (row of the training data) is kept with probability
        ``min(1, oversampling * var(x) / noise)``, with the variance of the posterior
        under the present inducing points; algorithm BKB of [calandriello2019bkb]_. An
        input repeated ``n`` times is therefore kept with probability
        ``1 - (1 - p)^n``. If nothing is drawn, the input of the largest score is kept.

        Args:
            oversampling: q-bar. Theorem 1 asks ``6 alpha log(4 T / delta) / eps^2``
                (``acquisition.confidence.bkb_oversampling``); the experiments use 2.
            generator: The source of randomness; None for a new one, never the global.
            resampling: ``"independent"`` draws afresh, as the theorems assume.
                ``"coupled"`` keeps the number that this model first drew for an input:
                same marginals, but the set changes little from call to call, and no
                theorem covers it.

        Raises:
            InputDataError: If ``oversampling`` is not positive or ``resampling`` is
                unknown.
        """
        validate_resampling(resampling)
        train_X = self._raw_train_X
        replicates = find_replicates(train_X)
        inverse, num_unique = replicates.inverse, replicates.first.shape[0]
        scores = self.leverage_scores()  # n
        log_miss = sum_replicates(
            log_exclusion(scores, oversampling), inverse, num_unique
        )
        uniforms = _draw_uniforms(num_unique, generator)
        if resampling == "coupled":
            rows = train_X[replicates.first].cpu().numpy()
            uniforms = [
                self._uniforms.setdefault(row.tobytes(), fresh)
                for row, fresh in zip(rows, uniforms, strict=True)
            ]
        kept = sample_inducing_indices(
            -torch.expm1(log_miss),
            scores[replicates.first],
            scores.new_tensor(uniforms),
        )
        self.set_inducing_points(train_X[replicates.first[kept]])

    def leverage_scores(
        self, X: Tensor | None = None, Yvar: Tensor | None = None
    ) -> Tensor:
        r"""Return the ridge leverage scores ``var(x) / noise`` of pulls.

        This is the papers' ``sigma-tilde^2`` (section 3.2 of [calandriello2019bkb]_).
        It does not depend on the units of the outcome.

        Args:
            X: A ``... x n' x d`` tensor of inputs; the training inputs if omitted.
            Yvar: The ``... x n'``-dim noise variances of pulls at ``X``, in the model's
                (outcome-transformed) space. If omitted, the likelihood's noise.

        Returns:
            A ``... x n'``-dim tensor of scores, without gradient.

        Raises:
            UnsupportedError: If the noise differs between pulls (``train_Yvar``), ``X``
                is given and ``Yvar`` is not.
        """
        self.eval()
        if X is None:
            x, Yvar = self.train_inputs[0], self._train_noise
        else:
            x = self.transform_inputs(X)
        if Yvar is None:
            if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
                raise UnsupportedError(
                    "Expected `Yvar`, the noise variance of a pull at each of `X`, "
                    "since this model was given `train_Yvar`, but got None."
                )
            Yvar = self.likelihood.noise
        with torch.no_grad(), gpt_posterior_settings():
            variance = self(x.unsqueeze(-2)).variance
            return variance.squeeze(-1) / Yvar

    def effective_dimension(self) -> float:
        r"""Return the effective dimension, the sum of the pulls' leverage scores.

        Equation (5) of [calandriello2019bkb]_ with the DTC variance.
        """
        return self.leverage_scores().sum().item()

    def log_det(self) -> float:
        r"""Return ``log det(I + K / lambda)`` of the pulls.

        With sparse inducing points ``K`` is its Nystrom approximation, which makes this
        a lower bound.
        """
        self.eval()
        with torch.no_grad():
            return self._posterior_factors().log_det.item()

    @override
    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior over ``n x d`` inputs; in training the DTC prior."""
        if not self.training:
            covariance = lazy_covariance(self.covar_module, x)
            return MultivariateNormal(self.mean_module(x), covariance)
        x = self.transform_inputs(x)
        replicates = find_replicates(x)
        unique = x[replicates.first]
        if self._inducing_points is None:
            prior = to_linear_operator(dense_covariance(self.covar_module, unique))
        else:
            S = self._inducing_inputs(self._inducing_points)
            features = nystrom_features(self.covar_module, S)
            prior = LowRankRootLinearOperator(features(unique).mT)
        return ReplicatedMultivariateNormal(
            self.mean_module(x), repeat_rows(prior, replicates.inverse)
        )

    @override
    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the posterior (in training and prior mode: the prior) at inputs."""
        if self.training or settings.prior_mode.on():
            return super().__call__(*args, **kwargs)
        (x,) = args
        if x.dim() == 1:
            x = x.unsqueeze(-1)
        centered = self._posterior_factors()(x)
        mean = self.mean_module(x) + centered.mean
        return MultivariateNormal(mean, centered.lazy_covariance_matrix)

    @override
    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, **kwargs: Any
    ) -> SingleTaskDTCGP:
        r"""Condition on observations, their inputs appended to the inducing points.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``batch_shape' x q`` tensor of transformed targets, with any
                further leading fantasy dimensions.
            kwargs: ``noise``, a tensor like ``targets`` of noise variances, for models
                with ``train_Yvar``.
        """
        noise = kwargs.get("noise")
        if noise is None:
            noise = self.likelihood.noise
            if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
                raise UnsupportedError(
                    "Expected `noise`, the noise variance of each new observation, "
                    "since this model was given `train_Yvar`, but got None."
                )
        factors = self._posterior_factors()
        # As with test caches: gradients only where somebody asked for them.
        wanted = inputs.requires_grad or targets.requires_grad
        wanted = wanted or settings.detach_test_caches.off()
        batch_shape = torch.broadcast_shapes(inputs.shape[:-2], noise.shape[:-1])
        precisions = (1 / noise).expand(*batch_shape, inputs.shape[-2])
        with torch.set_grad_enabled(torch.is_grad_enabled() and wanted):
            means = targets - self.mean_module(inputs)
            conditioned = factors.condition(Observations(inputs, precisions, means))
        new = _copy_sharing_data(self)
        new.likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        leading = torch.broadcast_shapes(targets.shape[:-1], self.batch_shape)
        new.train_inputs = (_append(self.train_inputs[0], inputs, leading, dim=-2),)
        new.train_targets = _append(self.train_targets, targets, leading, dim=-1)
        new.prediction_strategy = conditioned
        return new

    @override
    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> SingleTaskDTCGP:
        """Condition the model on new observations; see BoTorch's models.

        The new inputs are appended to the inducing points, so that the posterior also
        moves at points outside them. Neither mean nor variance is recomputed from
        scratch.
        """
        self.eval()
        conditioned = cast(
            SingleTaskDTCGP,
            super().condition_on_observations(X, Y, noise=noise, **kwargs),
        )
        if self._inducing_points is not None:
            conditioned._inducing_points = _append(
                self._inducing_points, X, X.shape[:-2], dim=-2
            )
        return conditioned

    @property
    def _raw_train_X(self) -> Tensor:
        if getattr(self, "_has_transformed_inputs", False):
            return self._original_train_inputs
        return self.train_inputs[0]

    @property
    def _train_noise(self) -> Tensor:
        return self.likelihood.noise.expand(self.train_targets.shape)

    def _inducing_inputs(self, points: Tensor) -> Tensor:
        """Transform the inducing points as eval mode transforms training data.

        Not through ``transform_inputs``: in training that would relearn the bounds of a
        ``Normalize`` from the inducing points.
        """
        if not hasattr(self, "input_transform"):
            return points
        return self.input_transform.preprocess_transform(points)

    def merged_observations(self) -> Observations:
        """Return the training data, repeats merged, without mean and transformed.

        Raises:
            UnsupportedError: If the training data are batched (fantasies).
        """
        self.eval()
        X = self.train_inputs[0]
        if X.dim() != 2:
            raise UnsupportedError(
                "Expected unbatched training data to factor the posterior anew, but "
                f"got shape {tuple(X.shape)}. A batch of fantasy models keeps its "
                "factors as long as neither its data nor its mode change."
            )
        centered = self.train_targets - self.mean_module(X)
        noise = self._train_noise
        return merge_observations(X, centered, noise, find_replicates(X))

    def sparse_inducing_inputs(self) -> Tensor | None:
        """Return the transformed inducing points; None if they span all training data.

        The model is the exact GP then.
        """
        self.eval()
        if self._inducing_points is None:
            return None
        S = self._inducing_inputs(self._inducing_points)
        return None if _covers(S, self.merged_observations().inputs) else S

    def _posterior_factors(self) -> FactoredPosterior:
        factors, targets = self.prediction_strategy, self.train_targets
        # `Module.to` moves data and parameters, not factors.
        if factors is not None and (
            (factors.weights.device, factors.weights.dtype)
            != (targets.device, targets.dtype)
        ):
            self.prediction_strategy = None
        if self.prediction_strategy is None:
            detach = settings.detach_test_caches.on()
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
                self.prediction_strategy = self._factorize()
        return self.prediction_strategy

    def _factorize(self) -> FactoredPosterior:
        observations, S = self.merged_observations(), self.sparse_inducing_inputs()
        if S is None:
            return ExactPosterior.from_observations(self.covar_module, observations)
        return SparsePosterior.from_observations(self.covar_module, observations, S)


def merge_observations(
    X: Tensor, targets: Tensor, noise: Tensor, replicates: Replicates
) -> Observations:
    """Merge the repeats of ``n`` observations into precision-weighted means."""
    inverse, first = replicates
    W = sum_replicates(1 / noise, inverse, first.shape[0])
    means = sum_replicates(targets / noise, inverse, first.shape[0]) / W
    return Observations(X[first], W, means)


def _draw_uniforms(size: int, generator: torch.Generator | None) -> list[float]:
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    draws = torch.rand(size, generator=generator, device=generator.device)
    return list(draws.tolist())


def _covers(points: Tensor, inputs: Tensor) -> bool:
    """Whether every one of the unique ``inputs`` is among the ``points``."""
    if points.shape[0] < inputs.shape[0]:
        return False
    num_points = torch.unique(points, dim=0).shape[0]
    both = torch.unique(torch.cat([points, inputs]), dim=0)
    return both.shape[0] == num_points


def _append(old: Tensor, new: Tensor, leading: torch.Size, dim: int) -> Tensor:
    """Concatenate along ``dim`` (negative) after expanding leading dimensions."""
    old = old.expand(*leading, *old.shape[dim:])
    return torch.cat([old, new.expand(*leading, *new.shape[dim:])], dim=dim)


def _copy_sharing_data(model: SingleTaskDTCGP) -> SingleTaskDTCGP:
    """Copy modules and parameters, but not data, factors and likelihood."""
    shared = [
        model.train_targets,
        model.prediction_strategy,
        model.likelihood,
        model._raw_train_X,
        *model.train_inputs,
    ]
    return deepcopy(model, memo={id(value): value for value in shared})
