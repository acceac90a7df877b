"""The sparse DTC posterior of BKB as a BoTorch model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import _DefaultType, DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator
from torch import nn, Tensor
from typing_extensions import override

from botorch_bkb.checks import (
    check_choice,
    check_columns,
    check_modules,
    check_numbers,
    check_size,
    check_tensors,
    check_training_data,
    is_integer,
)
from botorch_bkb.models.utils.draws import as_generator, draw_uniforms
from botorch_bkb.models.utils.leverage_scores import (
    CANDIDATES,
    INCLUSION,
    Inclusion,
    log_exclusion,
    MAX_SPARSE_SHARE,
    random_rows,
    RESAMPLING,
    Resampling,
    sample_inducing_indices,
    weighted_pivots,
)
from botorch_bkb.models.utils.nystrom import lazy_covariance
from botorch_bkb.models.utils.prediction import (
    check_likelihood,
    concatenate,
    dtc_prior,
    DTCPredictionStrategy,
    ExactPosterior,
    new_noise,
    Observations,
    observed_noise,
    SparsePosterior,
)
from botorch_bkb.models.utils.rows import covers, find_replicates, sum_replicates


class SingleTaskDTCGP(SingleTaskGP):
    r"""A single-task GP with the DTC posterior of BKB.

    With inducing points ``S``, ``K_S = L L^T`` and Nystrom features
    ``z(x) = L^{-1} k_S(x)``, the posterior is ::

        V = Z^T N Z + lambda I
        mean(x) = z(x)^T V^{-1} Z^T s
        var(x) = k(x, x) - |z(x)|^2 + lambda z(x)^T V^{-1} z(x)

    where repeated rows of the training inputs are merged (``N`` their counts, ``s``
    their sums); section 3.1 of [calandriello2019bkb]_, whose variance is this one over
    ``lambda``. With ``train_Yvar``, ``N / lambda`` is the sum of ``1 / Yvar``. With
    every unique input inducing (the default) it is ``SingleTaskGP``.

    Training maximizes the DTC marginal likelihood by ``ExactMarginalLogLikelihood`` in
    ``O(n m^2)``. Prediction of ``b x 1 x d`` inputs costs ``O(b m^2)`` time and
    ``O(b m)`` memory. ``condition_on_observations`` and ``fantasize`` append the new
    inputs to the inducing points. The ``state_dict`` holds hyperparameters, and the
    inducing points with the training inputs they belong to. A model of other training
    inputs that loads it keeps its own inducing points.

    Example:
        >>> model = SingleTaskDTCGP(train_X, train_Y, inducing_points=300)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> posterior = model.posterior(test_X)
    """

    _supports_batched_models = False  # BoTorch's: Ax uses one model per outcome
    prediction_strategy: DTCPredictionStrategy | None
    _inducing_points: Tensor | None
    _original_train_inputs: Tensor
    covar_module: Kernel

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        inducing_points: Tensor | int | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
    ) -> None:
        """Construct the model.

        Args:
            train_X: An ``n x d`` tensor of training features; rows may repeat.
            train_Y: An ``n x 1`` tensor of training observations.
            train_Yvar: An optional ``n x 1`` tensor of observed noise variances.
            inducing_points: As in :meth:`set_inducing_points`.
            likelihood: Any Gaussian one of one output.
            covar_module: Any GPyTorch kernel.
            mean_module: As in ``SingleTaskGP``.
            input_transform: As in ``SingleTaskGP``.
            outcome_transform: As in ``SingleTaskGP``.

        Raises:
            UnsupportedError: If the training data are batched or have more than one
                output, a kernel or mean is a batch, or the likelihood is none of these.
            BotorchTensorDimensionError: If ``inducing_points`` are not ``m x d``.
            InputDataError: If a number is not finite, or a type is wrong.
        """
        check_modules(Kernel, covar_module=covar_module)
        check_modules(Mean, mean_module=mean_module)
        check_modules(InputTransform, input_transform=input_transform)
        check_modules(OutcomeTransform, outcome_transform=outcome_transform)
        check_likelihood(likelihood)
        check_training_data("SingleTaskDTCGP", train_X, train_Y, train_Yvar)
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
        # Not persistent: part of the extra state, whatever the number of points.
        self.register_buffer("_inducing_points", None, persistent=False)
        self._num_inducing: int | None = None
        self._uniforms: dict[tuple[float, ...], float] = {}
        if inducing_points is not None:
            self.set_inducing_points(inducing_points)
            self.train()

    @classmethod
    @override
    def construct_inputs(
        cls, training_data: SupervisedDataset, **options: Any
    ) -> dict[str, Any]:
        """Return the constructor's arguments, from Ax its ``model_options`` too."""
        return {**super().construct_inputs(training_data), **options}

    @override
    def get_extra_state(self) -> Tensor:
        """Return training inputs, then inducing points; their last column is 1."""
        X, S, pad = self._raw_train_X, self._inducing_points, nn.functional.pad
        S = X[..., :0, :] if S is None else S
        return concatenate(pad(X, (0, 1)), pad(S, (0, 1), value=1.0), -2)

    @override
    def set_extra_state(self, state: Tensor) -> None:
        """Take over the inducing points of the same training inputs, else none."""
        X, is_inducing = self._raw_train_X, state[..., -1] == 1
        # In single precision, since the other model may be.
        rows = state[..., :-1][~is_inducing].to(X.device).float()
        is_unbatched = self.train_inputs[0].dim() == state.dim() == 2
        if is_unbatched and torch.equal(rows, X.float()):
            S, number = state[is_inducing, :-1], self._num_inducing
            self.set_inducing_points(S if len(S) else None)
            self._num_inducing = number  # for the next fit

    @override
    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        key = f"{prefix}_extra_state"
        if key not in state_dict:  # of version 1.0, or of another class
            warnings.warn(
                "The state dict has no inducing points, so this model keeps its own. "
                "Set those of the saved model by `set_inducing_points`.",
                InputDataWarning,
                stacklevel=2,
            )
            state_dict = {**state_dict, key: self.get_extra_state()}
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def inducing_points(self) -> Tensor:
        """The ``m x d`` inducing points, in the units of ``train_X``."""
        if self._inducing_points is not None:
            return self._inducing_points
        train_X = self._unbatched(self._raw_train_X)
        return train_X[find_replicates(train_X).first.sort().values]

    def set_inducing_points(self, inducing_points: Tensor | int | None) -> None:
        """Replace the inducing points.

        Args:
            inducing_points: An ``m x d`` tensor in the units of ``train_X``; how many
                training inputs to choose, now and after each ``fit_gpytorch_mll``; None
                for all unique training inputs, the exact GP.

        Raises:
            BotorchTensorDimensionError: If the shape is not ``m x d`` with ``m >= 1``.
            InputDataError: If they are not finite, or the number is not positive.
            UnsupportedError: If this is a fantasy model.
        """
        train_X, number = self._unbatched(self._raw_train_X), None
        S: Any = inducing_points
        if is_integer(S):
            check_size("inducing_points", S)
            number, rows = int(S), random_rows(train_X, CANDIDATES * S)
            S = train_X[weighted_pivots(self, rows, S)] if len(rows) > S else None
        check_tensors(inducing_points=S)
        if S is not None:
            shape, d = S.shape, train_X.shape[-1]
            if len(shape) != 2 or shape[0] == 0 or shape[1] != d:
                raise BotorchTensorDimensionError(
                    f"Expected `inducing_points` of shape m x {d} with at least one "
                    f"row, but got {tuple(shape)}. Pass None to use every unique "
                    "training input."
                )
            check_numbers(inducing_points=S)
            S = S.to(train_X)
        self._inducing_points, self._num_inducing = S, number
        self.prediction_strategy = None

    @property
    def custom_fit(self) -> Callable[..., MarginalLogLikelihood]:
        """What ``fit_gpytorch_mll`` calls if the inducing points are a number.

        It fits with random ones: the likelihood of chosen ones overrates the noise.
        """
        number = self._num_inducing
        if number is None:
            raise AttributeError("custom_fit")

        def fit(mll: MarginalLogLikelihood, **options: Any) -> MarginalLogLikelihood:
            X, is_exact = self._raw_train_X, self._inducing_points is None
            self.set_inducing_points(None if is_exact else X[random_rows(X, number)])
            try:
                return fit_gpytorch_mll(mll, **options)
            finally:
                self.set_inducing_points(number)

        return fit

    def resample_inducing_points(
        self,
        oversampling: float = 2.0,
        generator: torch.Generator | None = None,
        resampling: Resampling = "independent",
        max_inducing: int | None = None,
        inclusion: Inclusion = "per_pull",
        scores: Tensor | None = None,
    ) -> None:
        r"""Draw new inducing points by ridge leverage scores.

        Every pull (row of the training data) is kept with probability
        ``min(1, oversampling * var(x) / noise)``: algorithm BKB of
        [calandriello2019bkb]_. If none is kept, the one of the largest score is. If
        more than 40 % of the unique inputs are kept, all are: the exact GP is as fast.

        Args:
            oversampling: q-bar; 2 in the BBKB paper's experiments, for Theorem 1
                ``acquisition.bkb_oversampling``.
            generator: The source of randomness; None for a new one, never the global.
            resampling: ``"independent"``, fresh numbers, as the theorems assume, or
                ``"coupled"``, the number first drawn for each input: the set then
                changes little from call to call.
            max_inducing: A ceiling. Of more points, pivoted Cholesky chooses so many.
            inclusion: ``"per_pull"`` as above; ``"merged"``, as in the authors' code:
                an input counts as one row with the sum of its pulls' scores.
            scores: The ``n`` leverage scores; None for this model's. The papers' are of
                the model before: ``previous.leverage_scores(train_X)``.

        Raises:
            InputDataError: If an argument is out of range.
            BotorchTensorDimensionError: If there is not a score per training input.
        """
        check_choice("resampling", resampling, RESAMPLING)
        check_choice("inclusion", inclusion, INCLUSION)
        check_tensors(scores=scores)
        check_numbers(scores=scores)
        train_X = self._unbatched(self._raw_train_X)
        scores = self.leverage_scores() if scores is None else scores.to(train_X)
        if scores.shape != train_X.shape[:1]:
            raise BotorchTensorDimensionError(
                f"Expected `scores` of shape {len(train_X)}, one per training input, "
                f"but got {tuple(scores.shape)}. Use `leverage_scores(train_X)`."
            )
        inverse, first = find_replicates(train_X)
        most = len(first) if max_inducing is None else max_inducing
        check_size("max_inducing", most)
        log_miss = log_exclusion(scores, oversampling)
        kept = -torch.expm1(sum_replicates(log_miss, inverse, len(first)))
        if inclusion == "merged":
            kept = oversampling * sum_replicates(scores, inverse, len(first))
        # In single precision, on which the draws of a seed depend.
        uniforms = draw_uniforms(len(first), as_generator(generator), torch.float32)
        if resampling == "coupled":
            rows, known = train_X[first].tolist(), self._uniforms
            pairs = zip(map(tuple, rows), uniforms.tolist(), strict=True)
            uniforms = torch.tensor([known.setdefault(*pair) for pair in pairs])
        drawn = first[sample_inducing_indices(kept, scores[first], uniforms.to(scores))]
        if len(drawn) > most:
            order = random_rows(train_X, len(first))
            drawn = weighted_pivots(self, order[torch.isin(order, drawn)], most)
        is_cheap = len(drawn) <= MAX_SPARSE_SHARE * len(first)
        self.set_inducing_points(train_X[drawn] if is_cheap else None)

    def leverage_scores(
        self, X: Tensor | None = None, Yvar: Tensor | None = None
    ) -> Tensor:
        r"""Return the ridge leverage scores ``var(x) / noise`` of pulls.

        The papers' ``sigma-tilde^2``, section 3.2 of [calandriello2019bkb]_.

        Args:
            X: A ``... x n' x d`` tensor of inputs; None: the training inputs.
            Yvar: The ``... x n'``-dim noise variances of pulls at ``X``, in the model's
                (outcome-transformed) space. None: the likelihood's noise.

        Returns:
            A ``... x n'``-dim tensor of scores, without gradient.

        Raises:
            UnsupportedError: If the noise differs between pulls (``train_Yvar``), ``X``
                is given and ``Yvar`` is not, or this is a fantasy model.
        """
        check_tensors(X=X, Yvar=None if isinstance(Yvar, int | float) else Yvar)
        x = self._unbatched_inputs()
        Yvar = self._train_noise if X is None else Yvar
        x = x if X is None else self.transform_inputs(X)
        if Yvar is None:
            Yvar = new_noise(self.likelihood, x.unsqueeze(-2)).squeeze(-1)
        with torch.no_grad(), gpt_posterior_settings():
            return self(x.unsqueeze(-2)).variance.squeeze(-1) / Yvar

    def effective_dimension(self) -> float:
        """Return the pulls' sum of leverage scores, (5) of [calandriello2019bkb]_."""
        return self.leverage_scores().sum().item()

    def log_det(self) -> float:
        """Return ``log det(I + K / lambda)`` of the pulls, with Nystrom's ``K``."""
        self.eval()
        with torch.no_grad():
            log_det = self.factors().log_det
        if log_det.dim():
            self._unbatched_inputs()  # raises
        return log_det.item()

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Return the posterior of each pull given all others, in ``O(n m^2)``.

        Hyperparameters, transforms and inducing points stay. With every unique input
        inducing this is ``botorch.cross_validation.loo_cv``, which is an error for a
        sparse model.

        Args:
            observation_noise: Whether the variance is that of the pull's outcome, as in
                ``loo_cv``, or of the function.

        Returns:
            A posterior of mean and variance ``n x 1 x 1``, without gradient.
        """
        X, factors = self._unbatched_inputs(), self.factors()
        with torch.no_grad(), gpt_posterior_settings():
            if not isinstance(factors, SparsePosterior):
                return efficient_loo_cv(self, observation_noise).posterior
            noise, prior_mean = self._train_noise, self.mean_module(X)
            mean, variance = factors.leave_one_out(
                X, self.train_targets - prior_mean, noise
            )
            if observation_noise:
                variance = variance + noise
            # n distributions of one point each.
            covariance = DiagLinearOperator(variance.unsqueeze(-1))
            loo = MultivariateNormal((prior_mean + mean).unsqueeze(-1), covariance)
            posterior: Posterior = GPyTorchPosterior(loo)
            transform = getattr(self, "outcome_transform", None)
            if transform is None:
                return posterior
            return transform.untransform_posterior(posterior, X=X.unsqueeze(-2))

    # Settings of GPyTorch are those of all threads.
    _is_called = False

    @override
    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior over ``n x d`` inputs; in training the DTC prior.

        Raises:
            UnsupportedError: If BoTorch's ``loo_cv`` asks a sparse model for it, where
                the results would be those of the exact GP.
        """
        S = self._inducing_points
        is_called = self._is_called or x is not self.train_inputs[0]
        if not is_called and S is not None and not covers(S, self._raw_train_X):
            raise UnsupportedError(
                "Expected a model with every unique input inducing, but got "
                f"{S.shape[-2]} inducing points of {x.shape[-2]} rows. Use "
                "`loo_posterior` for leave-one-out."
            )
        if self.training:
            return self._train_prior(self.transform_inputs(x))
        covariance = lazy_covariance(self.covar_module, x)
        return MultivariateNormal(self.mean_module(x), covariance)

    def _train_prior(self, x: Tensor) -> MultivariateNormal:
        """Return the DTC prior over ``n x d`` transformed training inputs."""
        S = self._inducing_inputs()
        return dtc_prior(self.covar_module, self.mean_module, self._unbatched(x), S)

    @override
    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the posterior (in training and prior mode: the prior) at inputs."""
        if self.training or settings.prior_mode.on():
            self._is_called = True  # tells `forward` who calls
            try:
                return super().__call__(*args, **kwargs)
            finally:
                self._is_called = False
        (x,) = args
        if x.dim() == 1:
            x = x.unsqueeze(-1)
        centered = self.factors()(x)
        mean = self.mean_module(x) + centered.mean
        return MultivariateNormal(mean, centered.lazy_covariance_matrix)

    @override
    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, **kwargs: Any
    ) -> SingleTaskDTCGP:
        """Do what :meth:`condition_on_observations` does, on transformed data."""
        likelihood, noise = observed_noise(self.likelihood, kwargs.get("noise"), inputs)
        factors = self.factors()
        # As with test caches: gradients only if an argument requires them.
        wanted = inputs.requires_grad or targets.requires_grad
        wanted = wanted or settings.detach_test_caches.off()
        batch_shape = torch.broadcast_shapes(inputs.shape[:-2], noise.shape[:-1])
        with torch.set_grad_enabled(torch.is_grad_enabled() and wanted):
            precisions = (1 / noise).expand(*batch_shape, inputs.shape[-2])
            means = targets - self.mean_module(inputs)
            observations = Observations(inputs, precisions, means)
            conditioned = factors.condition(observations, kwargs.get("reproject", True))
        # Data, factors and likelihood are not copied.
        shared = [
            *(self.train_targets, self.prediction_strategy, self.likelihood),
            *(self._raw_train_X, *self.train_inputs),
        ]
        new = deepcopy(self, memo={id(value): value for value in shared})
        new.likelihood = likelihood
        leading = torch.broadcast_shapes(targets.shape[:-1], self.batch_shape)
        (old,) = self.train_inputs
        new.train_inputs = (concatenate(old, inputs, -2, leading),)
        new.train_targets = concatenate(self.train_targets, targets, -1, leading)
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
        moves at points outside them. Their factor is extended, not computed again.

        Args:
            X: As in BoTorch's models; there may be no points.
            Y: As in BoTorch's models.
            noise: As in BoTorch's models, required if this model was given
                ``train_Yvar``; rounded up to ``gpytorch.settings.min_fixed_noise``.
            reproject: Whether the old data are projected on the new inducing points
                too, as in a model built from scratch with them. False is Bayes' rule on
                the present posterior, which is the same if every unique input is
                inducing.
            **kwargs: As in BoTorch's models.
        """
        check_tensors(X=X, Y=Y, noise=noise)
        check_columns("X", X, Y=Y, noise=noise)
        self.eval()
        options = {"noise": noise, "reproject": reproject, **kwargs}
        conditioned: Any = super().condition_on_observations(X, Y, **options)
        if self._inducing_points is not None:
            points = concatenate(self._inducing_points, X, -2)
            conditioned._inducing_points = points
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

        The present posterior is conditioned by Bayes' rule, ::

            mean'(x') = mean(x') + c(x', x) (c(x, x) + noise)^{-1} (y - mean(x))

        with its covariance ``c``, residual included, so that a lookahead is unbiased:
        ``E[mean'(x')] = mean(x')``. With ``reproject=True``, see
        :meth:`condition_on_observations`, the old data move the mean too, whatever
        ``y`` is.
        """
        return super().fantasize(
            X, sampler, observation_noise, reproject=reproject, **kwargs
        )

    @property
    def _raw_train_X(self) -> Tensor:
        if getattr(self, "_has_transformed_inputs", False):
            return self._original_train_inputs
        return self.train_inputs[0]

    @property
    def _train_noise(self) -> Tensor:
        """The ``n`` noise variances of the training data."""
        (x,), likelihood = self.train_inputs, self.likelihood
        noise: Tensor | None = getattr(likelihood, "noise", None)
        if noise is None:  # it may scale with the variances of the prior
            prior = likelihood(self._train_prior(x), x)
            covariance = prior.lazy_covariance_matrix
            if isinstance(covariance, AddedDiagLinearOperator):
                noise = covariance._diag_tensor.diagonal()
        n = x.shape[-2]
        if noise is None or tuple(noise.shape) not in ((1,), (n,)):
            found = "none" if noise is None else f"shape {tuple(noise.shape)}"
            raise UnsupportedError(
                f"Expected `likelihood` to give one noise variance, or {n}, one per "
                f"row of `train_X`, but got {found} from a "
                f"{type(likelihood).__name__}."
            )
        return noise.expand(n)

    def _inducing_inputs(self) -> Tensor | None:
        """Return the inducing points as eval mode transforms training data."""
        # `transform_inputs` would, in training, relearn the bounds of a `Normalize`.
        S = self._inducing_points
        if S is None or not hasattr(self, "input_transform"):
            return S
        return self.input_transform.preprocess_transform(S)

    def merged_observations(
        self, targets: Tensor | None = None, noise: Tensor | None = None
    ) -> Observations:
        """Return the transformed training data, repeats merged, without the mean.

        Args:
            targets: ``n`` transformed targets; None for the training data's.
            noise: ``n`` noise variances; None for the likelihood's.
        """
        X = self._unbatched_inputs()
        targets = self.train_targets if targets is None else targets
        noise = self._train_noise if noise is None else noise
        centered = targets - self.mean_module(X)
        return Observations.merged(X, centered, noise)

    def _unbatched_inputs(self) -> Tensor:
        """Return the ``n x d`` transformed training inputs, or raise."""
        self.eval()
        return self._unbatched(self.train_inputs[0])

    def _unbatched(self, X: Tensor) -> Tensor:
        """Return ``n x d`` training inputs, or raise."""
        # In training, inputs that are not transformed may have no batch.
        shape = self.train_targets.shape
        if len(shape) != 1:
            raise UnsupportedError(
                "Expected unbatched training data, but got targets of shape "
                f"{tuple(shape)}. Fantasy models have a posterior until their data or "
                "mode change: ask the model that they were made from."
            )
        return X

    def sparse_inducing_inputs(self) -> Tensor | None:
        """Return the transformed inducing points; None if the model is the exact GP."""
        X, S = self._unbatched_inputs(), self._inducing_inputs()
        return None if S is None or covers(S, X) else S

    def factors(self) -> DTCPredictionStrategy:
        """Return the factored posterior, computed if it is not known yet."""
        factors = self.prediction_strategy
        # `Module.to` moves data and parameters, not factors.
        if factors is None or (
            factors.weights.to(self.train_targets) is not factors.weights
        ):
            detach = settings.detach_test_caches.on()
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
                factors = self._factored()
            self.prediction_strategy = factors
        return factors

    def _factored(self) -> DTCPredictionStrategy:
        """Compute the factored posterior."""
        kernel, data = self.covar_module, self.merged_observations()
        if (S := self.sparse_inducing_inputs()) is None:
            return ExactPosterior.from_observations(kernel, data)
        return SparsePosterior.from_observations(kernel, data, S)
