"""The kernel of results that share offsets, for fits to them."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.kernels.learned import WeightedKernel
from botorch_bkb.models.utils.nystrom import dense_covariance


# The prior standard deviation of the value of a control, and of the level of an earlier
# campaign, in standard deviations of the rewards.
WIDE = 10.0
# Medians of the log-normal priors, and their standard deviations of logarithms: tau;
# rho; and the noise of an earlier campaign over that of the present one.
OFFSET_PRIOR = 0.5, 1.0
DISCREPANCY_PRIOR = 1.0, 1.0
NOISE_RATIO_PRIOR = 1.0, 0.5


class GroupedKernel(WeightedKernel):
    r"""Covariances of results in groups and campaigns, beside noise.

    ``k(x, z) (1 + rho_s^2 [same earlier campaign s]) + tau^2 c(g, h) + 100 [same
    earlier campaign] + 100 [same control]``, without ``k`` for controls. Its inputs are
    features, and the numbers of group, campaign and control, -1 for none. Its weights
    are tau, each campaign's rho, and the ratio of its noise to that of the others.

    Args:
        base_kernel: The kernel ``k`` of the features.
        scaled_covariance: The ``G x G`` prior covariances ``c`` of offsets, over tau^2.
        num_campaigns: The number of earlier campaigns, numbered from 0.
    """

    def __init__(
        self,
        base_kernel: Kernel,
        scaled_covariance: Tensor,
        num_campaigns: int,
    ) -> None:
        of_campaigns = [DISCREPANCY_PRIOR] * num_campaigns
        of_campaigns += [NOISE_RATIO_PRIOR] * num_campaigns
        medians, spreads = torch.tensor([OFFSET_PRIOR, *of_campaigns]).double().mT
        # A fit is to find the mode of the logarithms, which is the median.
        prior = LogNormalPrior(medians.log() + spreads**2, spreads)
        super().__init__((1 + 2 * num_campaigns,), prior)
        self.base_kernel, self.num_campaigns = base_kernel, num_campaigns
        # Place -1 is the last one.
        self.scaled_covariance = torch.nn.functional.pad(
            scaled_covariance, (0, 1, 0, 1)
        )
        self.initialize(raw_weight=medians)

    def noise_ratios(self, campaigns: Tensor) -> Tensor:
        """Return the ratio of the noise variance of ``n`` results, 1 without campaign.

        Args:
            campaigns: Their campaigns, -1 for none.
        """
        ratios = self.weight[1 + self.num_campaigns :]
        return torch.cat([ratios, ratios.new_ones(1)])[campaigns]

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        K = dense_covariance(self.base_kernel, x1[..., :-3], x2[..., :-3])
        left, right = x1[..., -3:].unsqueeze(-2), x2[..., -3:].unsqueeze(-3)
        is_arm = (left[..., 2] < 0) & (right[..., 2] < 0)
        _, campaign, control = ((left == right) & (left >= 0)).to(K).unbind(-1)
        rho = self.weight[1 : 1 + self.num_campaigns]
        rho = torch.cat([rho, rho.new_zeros(1)])[x1[..., -2].long()]
        K = K * is_arm * (1 + rho.square().unsqueeze(-1) * campaign)
        group = self.scaled_covariance[left[..., 0].long(), right[..., 0].long()]
        K = K + self.weight[0].square() * group + WIDE**2 * (campaign + control)
        return K.diagonal(dim1=-2, dim2=-1) if diag else K
