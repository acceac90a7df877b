"""The sparse DTC posterior of BKB as a BoTorch model."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import torch
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.types import _DefaultType, DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from linear_operator.operators import (
    DiagLinearOperator,
    LowRankRootLinearOperator,
    to_linear_operator,
)
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import (
    check_generator,
    check_modules,
    check_single_output,
    check_tensors,
)
from botorch_bkb.models.utils.covariance import dense_covariance, lazy_covariance
from botorch_bkb.models.utils.draws import as_generator, draw_uniforms
from botorch_bkb.models.utils.leverage_scores import (
    check_resampling,
    log_exclusion,
    Resampling,
    sample_inducing_indices,
)
from botorch_bkb.models.utils.marginal_likelihood import (
    repeat_rows,
    ReplicatedMultivariateNormal,
)
from botorch_bkb.models.utils.noise import (
    check_likelihood,
    new_noise,
    observed_noise,
    train_noise,
)
from botorch_bkb.models.utils.prediction import (
    DTCPredictionStrategy,
    ExactPosterior,
    nystrom_features,
    Observations,
    SparsePosterior,
)
from botorch_bkb.models.utils.replicates import (
    covers,
    find_replicates,
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

    prediction_strategy: DTCPredictionStrategy | None
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
            likelihood: As in ``SingleTaskGP``. One without ``noise``, such as BoTorch's
                ``SparseOutlierGaussianLikelihood``, is called for it.
            covar_module: Any GPyTorch kernel. If omitted, BoTorch's default with its
                dimension-scaled prior.
            mean_module: As in ``SingleTaskGP``, a ``ConstantMean`` if omitted.
            input_transform: As in ``SingleTaskGP``.
            outcome_transform: As in ``SingleTaskGP``: ``Standardize`` if omitted, None
                for none.

        Raises:
            UnsupportedError: If the training data are batched or have more than one
                output, a kernel or mean is a batch, or the likelihood does not give one
                noise variance for each row.
            BotorchTensorDimensionError: If ``inducing_points`` are not ``m x d``.
            InputDataError: If ``inducing_points`` hold NaN or there are none, or an
                argument is no tensor of floats, kernel or mean.
        """
        check_tensors(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            inducing_points=inducing_points,
        )
        check_modules(Kernel, covar_module=covar_module)
        check_modules(Mean, mean_module=mean_module)
        check_likelihood(likelihood)
        check_single_output("SingleTaskDTCGP", train_X, train_Y)
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
        if likelihood is not None:
            # Refuses what the model cannot stand on. A copy: some remember their call.
            with torch.no_grad():
                x = self.transform_inputs(train_X)
                train_noise(deepcopy(likelihood), lambda: self._train_prior(x), x)
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
        check_tensors(inducing_points=inducing_points)
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
                (``acquisition.bkb_oversampling``); the experiments use 2.
            generator: The source of randomness; None for a new one, never the global.
            resampling: ``"independent"`` draws afresh, as the theorems assume.
                ``"coupled"`` keeps the number that this model first drew for an input:
                same marginals, but the set changes little from call to call, and no
                theorem covers it.

        Raises:
            InputDataError: If ``oversampling`` is not positive, ``resampling`` is
                unknown or ``generator`` is none.
        """
        check_resampling(resampling)
        check_generator(generator)
        train_X = self._raw_train_X
        replicates = find_replicates(train_X)
        inverse, num_unique = replicates.inverse, replicates.first.shape[0]
        scores = self.leverage_scores()  # n
        log_miss = sum_replicates(
            log_exclusion(scores, oversampling), inverse, num_unique
        )
        # In single precision, unlike the other draws: a seed draws what it always drew.
        generator = as_generator(generator)
        uniforms = draw_uniforms(num_unique, generator, torch.float32).tolist()
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
        check_tensors(X=X, Yvar=None if isinstance(Yvar, int | float) else Yvar)
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
            Yvar = new_noise(self.likelihood, x.unsqueeze(-2)).squeeze(-1)
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

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        r"""Return the posterior of each pull given all others: leave-one-out.

        Hyper-parameters, transforms and inducing points stay. With ``h = z^T V^{-1} z``
        in the units of the class docstring, ::

            mean_loo = mean - h / (1 - h) (y - mean)
            var_loo = k - |z|^2 + lambda h / (1 - h)

        in ``O(n m^2)``, by the Sherman-Morrison formula for ``V`` less one pull. With
        every unique input inducing this is ``botorch.cross_validation.loo_cv``, in
        ``O(n^3)``; for a sparse model, of which ``loo_cv`` would not be right, that is
        an error.

        Args:
            observation_noise: Whether the variance is that of the pull's outcome, as in
                ``loo_cv``, or of the function.

        Returns:
            A posterior of mean and variance ``n x 1 x 1``, without gradient.

        Raises:
            UnsupportedError: If the training data are batched (fantasies).
        """
        X, y = self._unbatched_inputs(), self.train_targets
        factors = self._posterior_factors()
        with torch.no_grad(), gpt_posterior_settings():
            if not isinstance(factors, SparsePosterior):
                return efficient_loo_cv(self, observation_noise).posterior
            now = self(X.unsqueeze(-2))
            mean, variance = now.mean.squeeze(-1), now.variance.squeeze(-1)
            known = factors.projected_variance(X.unsqueeze(-2)).squeeze(-1)
            noise = self._train_noise
            odds = known / (noise - known)
            mean = mean - odds * (y - mean)
            variance = variance - known + noise * odds
            if observation_noise:
                variance = variance + noise
            # n distributions of one point each.
            covariance = DiagLinearOperator(variance.unsqueeze(-1))
            loo = MultivariateNormal(mean.unsqueeze(-1), covariance)
            posterior: Posterior = GPyTorchPosterior(loo)
            outcome_transform = getattr(self, "outcome_transform", None)
            if outcome_transform is not None:
                posterior = outcome_transform.untransform_posterior(
                    posterior, X=X.unsqueeze(-2)
                )
            return posterior

    @override
    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior over ``n x d`` inputs; in training the DTC prior.

        Raises:
            UnsupportedError: If this is not called by ``__call__``, but asked for the
                covariance of a sparse model's training data, as BoTorch's ``loo_cv``
                does: there is none on which its posterior stands.
        """
        S = self._inducing_points
        if (
            x is self.train_inputs[0]
            and settings.prior_mode.off()
            and S is not None
            and not covers(S, self._raw_train_X)
        ):
            raise UnsupportedError(
                "Expected a model whose posterior stands on the covariance of the "
                "training data, one with every unique input inducing, but got "
                f"{S.shape[-2]} inducing points of {x.shape[-2]} rows. Use "
                "`loo_posterior` for leave-one-out."
            )
        if self.training:
            return self._train_prior(self.transform_inputs(x))
        covariance = lazy_covariance(self.covar_module, x)
        return MultivariateNormal(self.mean_module(x), covariance)

    def _train_prior(self, x: Tensor) -> ReplicatedMultivariateNormal:
        """Return the DTC prior over ``n x d`` transformed training inputs."""
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
            with settings.prior_mode():  # tells `forward` who calls
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
                with ``train_Yvar``; ``reproject``, as ``condition_on_observations``
                takes it.
        """
        likelihood, noise = observed_noise(self.likelihood, kwargs.get("noise"), inputs)
        factors = self._posterior_factors()
        # As with test caches: gradients only where somebody asked for them.
        wanted = inputs.requires_grad or targets.requires_grad
        wanted = wanted or settings.detach_test_caches.off()
        batch_shape = torch.broadcast_shapes(inputs.shape[:-2], noise.shape[:-1])
        precisions = (1 / noise).expand(*batch_shape, inputs.shape[-2])
        with torch.set_grad_enabled(torch.is_grad_enabled() and wanted):
            means = targets - self.mean_module(inputs)
            observations = Observations(inputs, precisions, means)
            conditioned = factors.condition(observations, kwargs.get("reproject", True))
        new = _copy_sharing_data(self)
        new.likelihood = likelihood
        leading = torch.broadcast_shapes(targets.shape[:-1], self.batch_shape)
        new.train_inputs = (_append(self.train_inputs[0], inputs, leading, dim=-2),)
        new.train_targets = _append(self.train_targets, targets, leading, dim=-1)
        new.prediction_strategy = conditioned
        return new

    @override
    def condition_on_observations(
        self,
        X: Tensor,
        Y: Tensor,
        noise: Tensor | None = None,
        reproject: bool = True,
        **kwargs: Any,
    ) -> SingleTaskDTCGP:
        """Condition the model on new observations; see BoTorch's models.

        The new inputs are appended to the inducing points, so that the posterior also
        moves at points outside them. Neither mean nor variance is recomputed from
        scratch.

        Args:
            X: As in BoTorch's models; there may be no points.
            Y: As in BoTorch's models.
            noise: As in BoTorch's models. Noise under 1e-6 (float32: 1e-4) is rounded
                up to that with a warning, as GPyTorch's likelihood of known noise does.
            reproject: Whether the old data speak through the new inducing points too,
                as in a model built from scratch with them. False is Bayes' rule on the
                posterior as it is, which :meth:`fantasize` uses. For a model with every
                unique input inducing the two are the same.
            **kwargs: As in BoTorch's models.

        Raises:
            InputDataError: If ``X``, ``Y`` or ``noise`` is no tensor of floats.
            UnsupportedError: If this model was given ``train_Yvar`` and there is no
                ``noise``.
        """
        check_tensors(X=X, Y=Y, noise=noise)
        self.eval()
        conditioned = cast(
            SingleTaskDTCGP,
            super().condition_on_observations(
                X, Y, noise=noise, reproject=reproject, **kwargs
            ),
        )
        if self._inducing_points is not None:
            old = self._inducing_points
            leading = torch.broadcast_shapes(old.shape[:-2], X.shape[:-2])
            conditioned._inducing_points = _append(old, X, leading, dim=-2)
        return conditioned

    @override
    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        reproject: bool = False,
        **kwargs: Any,
    ) -> SingleTaskDTCGP:
        r"""Condition the model on draws of its outcomes; see BoTorch's models.

        Fantasies are for looking ahead, and there the mean to be has to average to the
        mean that is: ``E[mean(x') | y] = mean(x')``. So the present posterior is
        conditioned by Bayes' rule, ::

            mean'(x') = mean(x') + c(x', x) (c(x, x) + noise)^{-1} (y - mean(x))

        with its covariance ``c``, residual included: the posterior moves outside the
        inducing points, and old data say what they said. A model built from scratch
        with ``x`` among the inducing points (``reproject=True``) hears more of the old
        data, whatever ``y`` is: where inducing points are few, a lookahead would take
        that for information which ``x`` brings.

        Resample before looking ahead: on points that :meth:`resample_inducing_points`
        drew, a knowledge gradient chooses what it does on the exact GP either way, and
        on the first few evaluations it does not (``python -m benchmarks lookahead``).

        Args:
            X: As in BoTorch's models.
            sampler: As in BoTorch's models.
            observation_noise: As in BoTorch's models.
            reproject: As :meth:`condition_on_observations` takes it.
            **kwargs: As in BoTorch's models.
        """
        return super().fantasize(
            X, sampler, observation_noise, reproject=reproject, **kwargs
        )

    @override
    def set_train_data(
        self,
        inputs: Tensor | None = None,
        targets: Tensor | None = None,
        strict: bool = True,
    ) -> None:
        """Replace the training data, as in GPyTorch's models.

        In eval mode the inputs are transformed ones, as in BoTorch's models; their
        originals, which training and ``inducing_points`` go back to, are theirs too.

        Raises:
            UnsupportedError: If they cannot be transformed back.
        """
        super().set_train_data(inputs, targets, strict)
        # BoTorch calls this itself, to go to eval mode and back.
        original = self._original_train_inputs
        if inputs is None or not self._has_transformed_inputs or inputs is original:
            return
        (x,) = self.train_inputs
        if torch.equal(self.input_transform.preprocess_transform(x), x):
            self._original_train_inputs = x
            return
        try:
            self._original_train_inputs = self.input_transform.untransform(x)
        except NotImplementedError as error:
            raise UnsupportedError(
                "Expected an `input_transform` with `untransform`, to set training "
                f"inputs in eval mode, but got {type(self.input_transform).__name__}. "
                "Call `train()` first, and pass inputs that are not transformed."
            ) from error

    @property
    def _raw_train_X(self) -> Tensor:
        if getattr(self, "_has_transformed_inputs", False):
            return self._original_train_inputs
        return self.train_inputs[0]

    @property
    def _train_noise(self) -> Tensor:
        x = self.train_inputs[0]
        return train_noise(self.likelihood, lambda: self._train_prior(x), x)

    def _inducing_inputs(self, points: Tensor) -> Tensor:
        """Transform the inducing points as eval mode transforms training data.

        Not through ``transform_inputs``: in training that would relearn the bounds of a
        ``Normalize`` from the inducing points.
        """
        if not hasattr(self, "input_transform"):
            return points
        return self.input_transform.preprocess_transform(points)

    def merged_observations(
        self, targets: Tensor | None = None, noise: Tensor | None = None
    ) -> Observations:
        """Return the training data, repeats merged, without mean and transformed.

        Args:
            targets: ``n`` transformed targets in the place of those of the training
                data.
            noise: ``n`` noise variances in the place of the likelihood's.

        Raises:
            UnsupportedError: If the training data are batched (fantasies).
        """
        X = self._unbatched_inputs()
        targets = self.train_targets if targets is None else targets
        noise = self._train_noise if noise is None else noise
        centered = targets - self.mean_module(X)
        inverse, first = find_replicates(X)
        W = sum_replicates(1 / noise, inverse, len(first))
        means = sum_replicates(centered / noise, inverse, len(first)) / W
        return Observations(X[first], W, means)

    def _unbatched_inputs(self) -> Tensor:
        """Return the ``n x d`` transformed training inputs, or raise."""
        self.eval()
        X = self.train_inputs[0]
        if X.dim() != 2:
            raise UnsupportedError(
                "Expected unbatched training data to factor the posterior anew, but "
                f"got shape {tuple(X.shape)}. A batch of fantasy models keeps its "
                "factors as long as neither its data nor its mode change."
            )
        return X

    def sparse_inducing_inputs(self) -> Tensor | None:
        """Return the transformed inducing points; None if they span all training data.

        The model is the exact GP then.
        """
        self.eval()
        if self._inducing_points is None:
            return None
        S = self._inducing_inputs(self._inducing_points)
        return None if covers(S, self._unbatched_inputs()) else S

    def _posterior_factors(self) -> DTCPredictionStrategy:
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

    def _factorize(self) -> DTCPredictionStrategy:
        observations, S = self.merged_observations(), self.sparse_inducing_inputs()
        if S is None:
            return ExactPosterior.from_observations(self.covar_module, observations)
        return SparsePosterior.from_observations(self.covar_module, observations, S)


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
