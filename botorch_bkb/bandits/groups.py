"""Plates, days and devices with their offsets, controls, and earlier campaigns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import Any, cast, TYPE_CHECKING

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import Posterior as BotorchPosterior
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.kernels.grouped import (
    DISCREPANCY_PRIOR,
    NOISE_RATIO_PRIOR,
    OFFSET_PRIOR,
    WIDE,
)
from botorch_bkb.models.utils.prediction import (
    nystrom_features,
    Observations,
    SparsePosterior,
)
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors import StaticPosterior
from botorch_bkb.posteriors.grouped import GroupedResults


if TYPE_CHECKING:
    from botorch_bkb.bandits.fitting import Units


# Offsets act once so many groups of a campaign have so many results each.
MIN_GROUPS = MIN_RESULTS = 2
# The rho of a campaign that tells nothing.
NOTHING = 1e3
# The columns of labels.
GROUP, CAMPAIGN, CONTROL = range(3)
# In place of the number of a group: of results without one, and of a whole campaign.
NO_GROUP, WHOLE = -1, -2


@dataclass(frozen=True)
class GroupFit:
    """What is learned of groups and of earlier campaigns.

    Attributes:
        offset_std: The prior standard deviation tau of offsets, in standard deviations
            of the rewards.
        campaigns: For each earlier campaign, by its number among the labels, the
            standard deviation rho of its discrepancy, in prior standard deviations, and
            the ratio of its noise variance to that of the others.
    """

    offset_std: float = OFFSET_PRIOR[0]
    campaigns: Mapping[int, Sequence[float]] = field(default_factory=dict)

    def of(self, campaigns: Sequence[int]) -> list[Sequence[float]]:
        """Return rho and noise ratio of some campaigns, those before a fit if new."""
        initial = DISCREPANCY_PRIOR[0], NOISE_RATIO_PRIOR[0]
        return [self.campaigns.get(campaign, initial) for campaign in campaigns]

    def without(self, campaigns: Sequence[int]) -> GroupFit:
        """Return a fit in which some campaigns tell nothing."""
        nothing = dict.fromkeys(campaigns, (NOTHING, NOISE_RATIO_PRIOR[0]))
        return replace(self, campaigns={**self.campaigns, **nothing})

    @classmethod
    def from_weights(cls, weights: Tensor, labels: Tensor) -> GroupFit:
        """Return the weights of a ``GroupedKernel`` by campaigns of its results."""
        sharing = Sharing.of(labels)
        campaigns = [] if sharing is None else sharing.campaigns
        pairs = weights[1:].view(2, -1).mT.tolist()
        return cls(weights[0].item(), dict(zip(campaigns, pairs, strict=True)))

    def weights(self, campaigns: list[int]) -> Tensor:
        """Return weights of a ``GroupedKernel`` from which a fit can start."""
        known = {key: pair for key, pair in self.campaigns.items() if pair[0] < NOTHING}
        pairs = replace(self, campaigns=known).of(campaigns)
        parts = ([pair[place] for pair in pairs] for place in (0, 1))
        return torch.tensor([self.offset_std, *chain(*parts)]).double()

    @property
    def noise_ratios(self) -> dict[int, float]:
        """The ratios of noise variances, by campaign."""
        return {campaign: ratio for campaign, (_, ratio) in self.campaigns.items()}


# Before a fit.
NO_GROUPS = GroupFit()


@dataclass(frozen=True, eq=False)
class Sharing:
    """Which of ``n`` results share offsets, campaigns and controls.

    Attributes:
        codes: Numbers of group, campaign and control, -1 for none, ``n x 3``. Groups
            of different campaigns have different numbers, and so have their controls.
            Where offsets act, results without a group are a group of their own.
            Campaigns are counted from 0, the present one is -1.
        campaigns: The earlier campaigns, by their numbers among the labels.
    """

    codes: Tensor
    campaigns: list[int]

    @classmethod
    def of(cls, labels: Tensor) -> Sharing | None:
        """Return what results with labels share; None if no offset acts."""
        if (labels < 0).all():
            return None
        codes, campaign = labels.clone(), labels[:, CAMPAIGN]
        for column in (GROUP, CONTROL):
            pairs = labels[:, [CAMPAIGN, column]]
            _, code = pairs.unique(dim=0, return_inverse=True)
            codes[:, column] = code.where(labels[:, column] >= 0, -1)
        counts = (codes[:, 0] + 1).bincount()
        counts[0] = 0  # the results without a group
        is_large = counts[codes[:, 0] + 1] >= MIN_RESULTS
        for own in campaign.unique():
            rows = campaign == own
            if len(codes[rows & is_large, 0].unique()) < MIN_GROUPS:
                codes[rows, 0] = -1
            else:
                codes[rows & (codes[:, 0] < 0), 0] = codes[:, 0].max() + 1
        has_group = codes[:, GROUP] >= 0
        codes[has_group, GROUP] = codes[has_group, GROUP].unique(return_inverse=True)[1]
        earlier = campaign[campaign >= 0].unique()
        codes[:, CAMPAIGN] = positions_in(earlier, campaign, is_ascending=True)
        if not len(earlier) and not has_group.any():
            return None
        return cls(codes, earlier.tolist())

    def columns(self) -> tuple[Tensor, Tensor]:
        """Return which offsets each result has, ``n x G``, and the kind of each.

        The kind is its column in the codes: of a group, a campaign, or a control.
        """
        names = [codes[codes >= 0].unique() for codes in self.codes.mT]
        parts = [
            codes.unsqueeze(-1) == own
            for codes, own in zip(self.codes.mT, names, strict=True)
        ]
        kinds = [kind for kind, own in enumerate(names) for _ in own]
        return torch.cat(parts, dim=-1), self.codes.new_tensor(kinds)

    @property
    def center(self) -> Tensor:
        """The ``G x G`` matrix that centers the offsets of each campaign's groups.

        It takes from them their average over the results of arms, as rewards are
        centered.
        """
        effects, kinds = self.columns()
        campaigns = self.codes[effects.int().argmax(dim=0), CAMPAIGN]
        same = (campaigns.unsqueeze(-1) == campaigns) & (kinds == GROUP)
        same &= (kinds == GROUP).unsqueeze(-1)
        counts = same * effects[self.codes[:, CONTROL] < 0].sum(dim=0).double()
        share = counts / counts.sum(dim=-1, keepdim=True).clamp_min(1.0)
        return torch.eye(len(kinds)).to(share) - share

    @property
    def scaled_covariance(self) -> Tensor:
        """The prior covariances of the offsets of groups, over tau squared."""
        center, num_groups = self.center, int(self.codes[:, GROUP].max()) + 1
        center = center[:num_groups, :num_groups]
        return center @ center.mT

    def offset_root(self, fit: GroupFit) -> Tensor:
        """Return a root of the prior covariance of ``G`` offsets, in units."""
        _, kinds = self.columns()
        return self.center * torch.where(kinds == GROUP, fit.offset_std, WIDE)

    def levels(
        self, labels: Tensor, solved: Tensor, fit: GroupFit
    ) -> dict[tuple[int, int], float]:
        """Return the offsets of campaigns and groups, by their numbers in the labels.

        A campaign as a whole has the group ``WHOLE``. ``solved`` are the rewards of the
        ``n`` results, times the inverse of their covariance matrix.
        """
        effects, kinds = self.columns()
        root = self.offset_root(fit)
        offsets = root @ (root.mT @ (effects.double().mT @ solved))
        names = labels[effects.int().argmax(dim=0)][:, [CAMPAIGN, GROUP]]
        names[kinds == CAMPAIGN, 1] = WHOLE
        pairs = zip(map(tuple, names.tolist()), offsets.tolist(), strict=True)
        return dict(compress(pairs, kinds != CONTROL))

    def grouped(
        self,
        places: Tensor,
        precisions: Tensor,
        values: Tensor,
        fit: GroupFit,
        unit: float,
    ) -> GroupedResults:
        """Return the results as posteriors take them.

        Args:
            places: The places of their ``n`` arms, -1 for controls.
            precisions: Their precisions.
            values: Their standardized rewards.
            fit: What is learned of groups.
            unit: A standard deviation of the rewards, in units of the posterior.
        """
        effects, _ = self.columns()
        has_groups = (self.codes[self.codes[:, CAMPAIGN] < 0, GROUP] >= 0).any()
        return GroupedResults(
            places=places,
            precisions=precisions,
            sums=values * precisions,
            campaigns=self.codes[:, 1] + 1,
            effects=effects.to(values),
            offset_root=self.offset_root(fit).to(values) * unit,
            offset_variance=float(has_groups) * (fit.offset_std * unit) ** 2,
            rho_squared=[0.0, *(rho**2 for rho, _ in fit.of(self.campaigns))],
        )


class GroupedModel(SingleTaskDTCGP):
    """The posterior of results that share offsets, of the average group.

    Its training data are the results as told. Its hyperparameters are fixed.

    Attributes:
        grouped: The results; None until they are assigned.
        pulled: The rows of the pulled arms.
    """

    grouped: GroupedResults | None = None
    pulled: Tensor

    @override
    def _factored(self) -> SparsePosterior:
        if self.grouped is None:
            raise UnsupportedError(
                "Expected a fantasy model in its first mode and precision, where its "
                "posterior is known. Condition `bandit.model()` again."
            )
        kernel, inducing = self.covar_module, self._inducing_inputs()
        pulled = self.transform_inputs(self.pulled.to(self.train_targets))
        features = nystrom_features(kernel, pulled if inducing is None else inducing)
        Z = features(pulled)
        scatter, target = self.grouped.to(Z).scatter_and_target(Z)
        return SparsePosterior(kernel, features, scatter, target, ())

    @override
    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, **kwargs: Any
    ) -> SingleTaskDTCGP:
        """Condition the present posterior by Bayes' rule, whatever ``reproject`` is."""
        # What results of groups tell is projected once, by the bandit.
        kwargs["reproject"] = False
        new = super().get_fantasy_model(inputs, targets, **kwargs)
        cast(GroupedModel, new).grouped = None  # more is observed than these results
        return new

    @override
    def _train_prior(self, x: Tensor) -> MultivariateNormal:
        raise UnsupportedError(
            "Expected `posterior(X)`, since fits, leave-one-out and paths of a model "
            "would ignore the offsets of groups. The bandit fits them: call `ask`, "
            "`predict` or `maximizer_distribution`."
        )

    @override
    def loo_posterior(self, observation_noise: bool = True) -> BotorchPosterior:
        """Raise an ``UnsupportedError``: results depend on each other by offsets."""
        return self._train_prior(self.train_inputs[0])

    @override
    def merged_observations(
        self, targets: Tensor | None = None, noise: Tensor | None = None
    ) -> Observations:
        """Raise an ``UnsupportedError``, as :meth:`loo_posterior`."""
        return self._train_prior(self.train_inputs[0])


def describe_groups(
    posterior: StaticPosterior, labels: Tensor, names: Sequence[str], units: Units
) -> dict[str, list[Any]]:
    """Return the columns of :meth:`botorch_bkb.bandits.GPBandit.groups`."""
    rows: dict[tuple[int, int], list[int]] = {}
    for place, (group, campaign, _) in enumerate(labels.tolist()):
        if campaign >= 0:
            rows.setdefault((campaign, WHOLE), []).append(place)
        if campaign < 0 or group != NO_GROUP:
            rows.setdefault((campaign, group), []).append(place)
    keys = ("campaign", "group", "offset", "std", "num_results", "worth")
    found: dict[str, list[Any]] = {key: [] for key in keys}
    sharing, grouped = Sharing.of(labels), None
    if sharing is not None and (grouped := posterior.grouped) is not None:
        Z, basis = posterior.features(posterior.pulled_indices), posterior.basis
        worth = grouped.worth(Z, posterior.noise_variance)[1:]
        effects, kinds = sharing.columns()
        mean, covariance = grouped.offsets(Z, basis.L_v, basis.weights)
        variance = covariance.diagonal().clamp_min(0.0)
        moments = units.std * torch.stack([mean, variance.sqrt()], dim=-1)
    for (campaign, group), places in rows.items():
        found_of, results, kind = [], math.nan, CAMPAIGN if group == WHOLE else GROUP
        if sharing is not None and grouped is not None:
            has = effects[places[0]] & (kinds == kind)
            number = sharing.codes[places[0], CAMPAIGN] + 1
            # Without a present result, an earlier campaign's level is that of all.
            is_known = group != WHOLE or bool((labels[:, CAMPAIGN] < 0).any())
            is_known &= grouped.rho_squared[number] < NOTHING**2
            if has.any() and is_known:
                found_of = moments[has].flatten().tolist()
            if kind == CAMPAIGN:
                results = worth[number - 1]
        if group == NO_GROUP and not found_of:
            continue
        label = (names[at] if at >= 0 else "" for at in (campaign, group))
        values = (*label, *(found_of or [math.nan] * 2), len(places), results)
        for key, value in zip(keys, values, strict=True):
            found[key].append(value)
    return found
