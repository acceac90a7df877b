"""Finite-arm problems with known mean rewards, and so known regrets."""

from __future__ import annotations

from typing import Self, TYPE_CHECKING

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.test_functions.base import BaseTestProblem
from torch import Tensor

from botorch_bkb.checks import check_not_negative, check_size
from botorch_bkb.models.utils.rows import BitArms, row_blocks


if TYPE_CHECKING:
    import pandas as pd


class FiniteArmProblem:
    r"""A bandit problem over finitely many arms with Gaussian noise.

    Pulling arm ``i`` returns ``mean_rewards[i] + noise_std * N(0, 1)``; its regret is
    the distance of ``mean_rewards[i]`` from the best mean reward, never negative.

    Args:
        arms: An ``A x d``-dim tensor of features.
        mean_rewards: An ``A``-dim tensor.
        noise_std: The standard deviation of the noise, in the rewards' unit.
        maximize: Whether the best arm has the largest mean reward.

    Raises:
        BotorchTensorDimensionError: If the shapes do not fit.
        InputDataError: If there is no arm, a value is not finite, or the noise is
            negative.
    """

    def __init__(
        self,
        arms: Tensor,
        mean_rewards: Tensor,
        noise_std: float,
        maximize: bool = True,
    ) -> None:
        if arms.ndim != 2 or mean_rewards.shape != arms.shape[:1]:
            raise BotorchTensorDimensionError(
                "Expected `arms` to have shape `A x d` and `mean_rewards` to have "
                f"shape `A`, but got {tuple(arms.shape)} and "
                f"{tuple(mean_rewards.shape)}. "
                "Pass one mean reward per row of `arms`."
            )
        if len(arms) == 0:
            raise InputDataError("Expected `arms` to hold at least one arm, but got 0.")
        # Bits and counts are finite.
        numbers = arms.numbers if isinstance(arms, BitArms) else arms
        is_finite = all(rows.isfinite().all() for _, rows in row_blocks(numbers))
        if not (is_finite and mean_rewards.isfinite().all()):
            raise InputDataError(
                "Expected `arms` and `mean_rewards` to be finite, but got NaN or "
                "infinite values. Drop or fill those arms."
            )
        check_not_negative("noise_std", noise_std)
        self.arms = arms
        is_whole = not mean_rewards.is_floating_point()
        self.mean_rewards = mean_rewards.double() if is_whole else mean_rewards
        self.noise_std = noise_std
        self.maximize = maximize

    @classmethod
    def from_test_function(
        cls,
        function: BaseTestProblem,
        num_arms: int,
        *,
        noise_std: float,
        generator: torch.Generator | None = None,
    ) -> Self:
        r"""Restrict a BoTorch test function to scrambled Sobol points.

        Features lie in the unit cube, whatever the function's bounds. A function that
        BoTorch minimizes is negated, so that the problem always maximizes.

        Args:
            function: A BoTorch test function with one outcome. Its own ``noise_std`` is
                not used.
            num_arms: The number of Sobol points.
            noise_std: The standard deviation of the noise on a reward.
            generator: Chooses the scrambling; None for torch's global generator.

        Returns:
            The problem, in the dtype and on the device of ``function.bounds``.
        """
        check_size("num_arms", num_arms)
        seed = int(torch.randint(2**31, (1,), generator=generator))
        engine = torch.quasirandom.SobolEngine(function.dim, scramble=True, seed=seed)
        lower, upper = torch.as_tensor(function.bounds)
        arms = engine.draw(num_arms, dtype=lower.dtype).to(lower)
        mean_rewards = function(lower + (upper - lower) * arms, noise=False)
        if function.is_minimization_problem:
            mean_rewards = -mean_rewards
        return cls(arms, mean_rewards, noise_std)

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        reward: str,
        *,
        noise_std: float,
        maximize: bool = True,
        standardize_reward: bool = False,
    ) -> Self:
        r"""Treat every row of a table as an arm.

        Every column but ``reward`` is a feature and is standardized to mean 0 and
        standard deviation 1 over the rows.

        Args:
            table: A table of numbers.
            reward: The column that holds the mean rewards.
            noise_std: The standard deviation of the noise on a reward, in standardized
                units if ``standardize_reward`` is set.
            maximize: Whether the best arm has the largest mean reward.
            standardize_reward: Whether to standardize the reward column too.

        Returns:
            The problem, in float64.

        Raises:
            InputDataError: If ``reward`` is no column, there is no feature or no row,
                or a column is not numeric, not finite, or constant.
        """
        if reward not in table.columns:
            raise InputDataError(
                f"Expected `reward` to be one of the columns {list(table.columns)}, "
                f"but got {reward!r}."
            )
        features = [column for column in table.columns if column != reward]
        if not features or len(table) == 0:
            raise InputDataError(
                "Expected `table` to have rows, and features beside the reward "
                f"{reward!r}, but got {len(table)} rows and {len(features)} features."
            )
        arms = torch.stack([standardized(table[name]) for name in features], dim=-1)
        read_reward = standardized if standardize_reward else _as_tensor
        return cls(arms, read_reward(table[reward]), noise_std, maximize)

    @property
    def num_arms(self) -> int:
        """The number of arms, ``A``."""
        return len(self.arms)

    @property
    def best_arm(self) -> int:
        """The index of the best arm; of several, the lowest."""
        rewards = self.mean_rewards
        return int(rewards.argmax() if self.maximize else rewards.argmin())

    @property
    def best_value(self) -> float:
        """The mean reward of the best arm."""
        return self.mean_rewards[self.best_arm].item()

    def sample(
        self, indices: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return ``q`` noisy rewards.

        Args:
            indices: A ``q``-dim tensor of arm indices, repeats allowed.
            generator: The source of the noise; None for torch's global generator.
        """
        means = self.mean_rewards[indices]
        noise = torch.randn(
            means.shape, generator=generator, dtype=means.dtype, device=means.device
        )
        return means + self.noise_std * noise

    def regret(self, indices: Tensor) -> Tensor:
        """Return the regrets of arms, never negative, for indices of any shape."""
        return (self.mean_rewards[indices] - self.best_value).abs()

    def uniform_cumulative_regret(self, num_pulls: int) -> float:
        """Return the expected sum of regrets of ``num_pulls`` uniform choices."""
        return num_pulls * self.regret(torch.arange(self.num_arms)).mean().item()

    def uniform_simple_regret(self, num_pulls: int) -> float:
        """Return the expected regret of the best of ``num_pulls`` uniform choices."""
        regrets = self.regret(torch.arange(self.num_arms))
        regrets = regrets.sort().values  # A, r_1 <= ... <= r_A
        # With R the least regret seen, P(R >= r_k) = ((A - k + 1) / A)^n, and
        # E[R] = r_1 + sum_{k > 1} (r_k - r_{k - 1}) P(R >= r_k), where r_1 = 0.
        share_left = torch.arange(
            self.num_arms - 1, 0, -1, dtype=regrets.dtype, device=regrets.device
        ).div(self.num_arms)
        return (regrets.diff() * share_left.pow(num_pulls)).sum().item()


def _as_tensor(column: pd.Series) -> Tensor:
    try:
        values = column.to_numpy(dtype="float64", copy=True)
    except (TypeError, ValueError) as error:
        raise InputDataError(
            f"Expected column {column.name!r} to be numeric, but got {column.dtype}. "
            "Code it as numbers or drop it."
        ) from error
    return torch.from_numpy(values)


def standardized(column: pd.Series) -> Tensor:
    """Return a column with mean 0 and standard deviation 1.

    Raises:
        InputDataError: If it is not numeric, not finite, or constant.
    """
    values = _as_tensor(column)
    if not values.isfinite().all():
        raise InputDataError(
            f"Expected column {column.name!r} to be finite, but it has missing or "
            "infinite values. Drop or fill those rows."
        )
    centred = values - values.mean()
    # Relative to the size of the values, since the mean of a constant is rounded.
    if centred.abs().max() <= 1e-12 * values.abs().max():
        raise InputDataError(
            f"Expected column {column.name!r} to vary, but it is constant. Drop it if "
            "it is a feature. If it is the reward, all rows are equally good."
        )
    return centred / centred.square().mean().sqrt()
