"""The exact GP over space and time, as a BoTorch model."""

from __future__ import annotations

from copy import deepcopy

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.types import _DefaultType, DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ProductKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.priors import GammaPrior
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_modules, check_training_data
from botorch_bkb.models.kernels import TemporalDecayKernel
from botorch_bkb.models.utils.nystrom import lazy_covariance
from botorch_bkb.models.utils.prediction import check_likelihood


class TimeVaryingGP(SingleTaskGP):
    r"""A GP whose function drifts: a kernel over space times one over time.

    The last column of the inputs is time. With the default kernel over time this is the
    model of equations (3) and (4) of [bogunovic2016tvgpucb]_, and its posterior is that
    of equations (7) and (8), at ``O(n^3)``. Hyperparameters, the forgetting rate among
    them, are learned by the marginal likelihood, equation (24), as in any BoTorch
    model. At a decision, time is fixed: ``fixed_features={d: time}`` in
    ``optimize_acqf``, or
    :class:`~botorch_bkb.acquisition.TimeVaryingUpperConfidenceBound`.

    Args:
        train_X: An ``n x (d + 1)`` tensor, time last.
        train_Y: An ``n x 1`` tensor.
        train_Yvar: An ``n x 1`` tensor of noise variances. None: one that is learned.
        likelihood: As in ``SingleTaskGP``.
        covar_module: The kernel over the ``d`` columns of space. None: BoTorch's
            default.
        temporal_kernel: The kernel over the time column. None:
            :class:`TemporalDecayKernel` with an exponential prior of mean 0.1.
        mean_module: As in ``SingleTaskGP``.
        outcome_transform: As in ``SingleTaskGP``.
        input_transform: As in ``SingleTaskGP``. A forgetting rate is per unit of time:
            beside a :class:`TemporalDecayKernel`, of the columns of space alone.

    Raises:
        BotorchTensorDimensionError: If ``train_X`` has no column beside time.
        UnsupportedError: If the training data are batched or have more than one output,
            a kernel or mean is a batch, the likelihood is not a Gaussian one, or
            ``input_transform`` changes time.
        InputDataError: If an argument is no tensor of floats, kernel or mean.

    Example:
        >>> model = TimeVaryingGP(torch.cat([X, times], dim=-1), Y)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.forgetting_rate
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        temporal_kernel: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        """Take the arguments that the class describes."""
        kernels = {"covar_module": covar_module, "temporal_kernel": temporal_kernel}
        check_modules(Kernel, **kernels)
        check_modules(Mean, mean_module=mean_module)
        check_modules(InputTransform, input_transform=input_transform)
        check_modules(OutcomeTransform, outcome_transform=outcome_transform)
        check_likelihood(likelihood)
        check_training_data("TimeVaryingGP", train_X, train_Y, train_Yvar)
        d = train_X.shape[-1] - 1
        if d < 1:
            raise BotorchTensorDimensionError(
                "Expected `train_X` of shape n x (d + 1), with time as its last column,"
                f" but got {tuple(train_X.shape)}."
            )
        if covar_module is None:
            covar_module = get_covar_module_with_dim_scaled_prior(d)
        if temporal_kernel is None:
            temporal_kernel = default_temporal_kernel()
        if input_transform is not None and any(
            isinstance(part, TemporalDecayKernel) for part in temporal_kernel.modules()
        ):
            check_keeps_time(input_transform, train_X)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood=likelihood,
            covar_module=ProductKernel(
                over_columns(covar_module, range(d)),
                over_columns(temporal_kernel, [d]),
            ),
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )

    @override
    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior over ``batch_shape x n x (d + 1)`` inputs."""
        if self.training:
            x = self.transform_inputs(x)
        covariance = lazy_covariance(self.covar_module, x)
        return MultivariateNormal(self.mean_module(x), covariance)

    @property
    def spatial_kernel(self) -> Kernel:
        """The kernel over space."""
        return self.covar_module.kernels[0]

    @property
    def temporal_kernel(self) -> Kernel:
        """The kernel over time."""
        return self.covar_module.kernels[1]

    @property
    def forgetting_rate(self) -> float:
        """``eps``, per unit of time, where time has the default kernel."""
        return self.temporal_kernel.forgetting_rate.item()


def check_keeps_time(input_transform: InputTransform, X: Tensor) -> None:
    """Raise unless a transform of ``n x (d + 1)`` inputs leaves the time as it is."""
    transform, d = deepcopy(input_transform).train(), X.shape[-1] - 1
    later = X + 0.3 * (torch.arange(d + 1).to(X) == d)  # of no integer times
    for x in (X, later):  # learned from the first
        if not torch.equal(transform(x)[..., d : d + 1].unique(), x[:, d].unique()):
            raise UnsupportedError(
                "Expected `input_transform` to leave the last column, time, as it is, "
                f"but {type(input_transform).__name__} changes it, and the unit of the "
                "forgetting rate. Name the columns of space in each transform, such as "
                f"`Normalize({d + 1}, indices={list(range(d))})`."
            )
        transform.eval()


def default_temporal_kernel() -> TemporalDecayKernel:
    """Return the decay over time whose rate is learned, from 0.1 on."""
    kernel = TemporalDecayKernel(forgetting_rate_prior=GammaPrior(1.0, 10.0))
    kernel.forgetting_rate = 0.1
    return kernel


def over_columns(kernel: Kernel, columns: range | list[int]) -> Kernel:
    """Return a copy that sees these columns, unless it has active dimensions."""
    kernel = deepcopy(kernel)
    if kernel.active_dims is None:
        dims = torch.tensor(list(columns), dtype=torch.long)
        kernel.register_buffer("active_dims", dims)
    return kernel
