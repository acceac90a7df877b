"""Every public use on an accelerator makes the picks that it makes on the CPU.

The device is a pretend one (``tests/pretend_device.py``), or a GPU with
``pytest --device cuda``. Where tensors of two devices meet, either raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.acquisition import qSimpleRegret
from botorch.fit import fit_gpytorch_mll
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_bkb import (
    BBKB,
    BoxBandit,
    EpsilonGreedy,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    RGPUCB,
    TVGPUCB,
)
from botorch_bkb.acquisition import BatchUpperConfidenceBound, BKBWidth
from botorch_bkb.arms import BitArms, TableArms
from botorch_bkb.bandits import BoxThompsonPolicy, ThompsonPolicy
from botorch_bkb.models import SingleTaskDTCGP, TimeVaryingGP
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.models.utils.nystrom import TriangularSolver
from botorch_bkb.models.utils.rows import as_dense
from botorch_bkb.optim import optimize_acqf_finite, top_k_choices
from tests.bandits import rbf
from tests.helpers import random_points, seeded
from tests.precise_reference import solve_lower
from tests.pretend_device import pretend_device


# On the pretend device every operation takes long.
pytestmark = pytest.mark.usefixtures("short_fits")
Use = Callable[[torch.device], Any]
ROUNDS = 2
# What drifting bandits must be told.
RATE: dict[Any, dict[str, Any]] = {
    TVGPUCB: {"forgetting_rate": 0.05},
    RGPUCB: {"block_size": 20},
}


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    name = request.config.getoption("--device")
    if name != "pretend":
        yield torch.device(name)
        return
    with pretend_device() as device:
        yield device


def some_arms(device: torch.device, num_arms: int = 40, seed: int = 3) -> Tensor:
    draws = random_points(num_arms, 2, seed=seed)
    return draws.to(device)


def rewards_of(arms: Tensor) -> Tensor:
    """Return rewards on the CPU, as a laboratory has them."""
    return (5 * arms.cpu()).sin().sum(dim=-1)


def given(device: torch.device, **options: Any) -> dict[str, Any]:
    return options | {"covar_module": rbf().to(device), "noise_variance": 0.1}


def play(
    bandit: Any, rewards: Tensor, rounds: int = ROUNDS, size: int | None = None
) -> list[Any]:
    """Ask and tell; return all picks, and the moments in the end."""
    picks, sizes = [], [] if size is None else [size]
    for number in range(rounds):
        indices = bandit.ask(*sizes)
        assert indices.device.type == bandit.arms.device.type
        told = indices if number % 2 else indices.cpu()  # from either device
        bandit.tell(told, rewards[indices.cpu()])
        picks.append(indices.tolist())
    mean, variance = bandit.predict()
    assert mean.device.type == bandit.arms.device.type
    bandit.confidence_bound([0])
    return [*picks, bandit.best_arm(), mean.cpu(), variance.cpu()]


def campaign(bandit_class: Any, learns: bool, **options: Any) -> Use:
    """Return the use of a bandit from the first ask to its predictions."""
    size = options.pop("size", None)

    def use(device: torch.device) -> Any:
        arms = some_arms(device)
        known = {} if learns else given(device)
        bandit = bandit_class(arms, seed=0, **known, **options)
        return play(bandit, rewards_of(arms), size=size)

    return use


def masks_and_changing_arms(device: torch.device) -> Any:
    arms = some_arms(device)
    bandit = GPBandit(arms, seed=0, max_repeats=2)
    offered = torch.arange(40) % 2 == 0
    first = bandit.ask(4, available=offered)  # a mask from the CPU
    second = bandit.ask(4, available=~offered.to(device))
    bandit.tell(first, rewards_of(arms[first]))
    bandit.fail(second[:1])
    bandit.add_observations([0, 1, 2], [0.1, 0.2, 0.3])
    bandit.add_pending([5, 6])
    bandit.retire_arms(first[:1])
    bandit.retire_arms(first[1:2].cpu())
    added = bandit.add_arms(some_arms(device, 5, seed=4))
    again = bandit.add_arms(some_arms(torch.device("cpu"), 5, seed=4))
    third = bandit.ask(4)
    rows = torch.cat([some_arms(device, 3, seed=5), arms[:2]])
    context = bandit.ask(2, arms=rows)
    bandit.withdraw([0])
    fourth = bandit.ask(3)
    plate = bandit.ask(2, same=[0])
    assert bandit.progress().best_arms.device == plate.device
    assert bandit.main_effects().effects[0]["std"].device == plate.device
    picks = [first, second, added, again, third, context, fourth, plate, bandit.counts]
    best = bandit.maximizer_distribution(64, seeded()).mode
    return [*(pick.tolist() for pick in picks), best]


def words(device: torch.device) -> Any:
    rows = product(["THF", "DMF", "water"], "abcd", [20.0, 40.0, 60.0], [1.0, 13.0])
    frame = pd.DataFrame(rows, columns=["solvent", "ligand", "heat", "hour"])
    bits = dict(zip("abcd", torch.eye(4, 16, dtype=torch.uint8).numpy(), strict=True))
    arms = TableArms(frame, {"ligand": bits}, {"hour": 24}).to(device)
    bandit = GPBandit(arms, seed=0)
    bandit.add_arms(frame[:2].assign(solvent="DMSO"))
    return play(bandit, rewards_of(as_dense(bandit.arms)))


def state_of(source: str, target: str) -> Use:
    """Return the use of a state that is saved on one device and loaded on another."""

    def use(device: torch.device) -> Any:
        places = {"cpu": torch.device("cpu"), "device": device}
        arms = some_arms(device)
        rewards = rewards_of(arms)
        picks = []
        for bandit_class in (GPBandit, GPThompsonSampling, TVGPUCB):
            saved, loaded = (
                bandit_class(
                    arms.to(places[where]),
                    generator=seeded(),
                    **({} if bandit_class is GPBandit else given(places[where])),
                    **RATE.get(bandit_class, {}),
                )
                for where in (source, target)
            )
            play(saved, rewards, rounds=2, size=3)
            saved.ask(2)
            saved.add_arms(some_arms(device, 3, seed=6))
            with TemporaryDirectory() as folder:
                saved.save(f"{folder}/state")
                loaded.load(f"{folder}/state")
            expected = saved.ask(3).tolist()
            found = loaded.ask(3)
            assert found.device.type == places[target].type
            assert found.tolist() == expected
            picks.append(expected)
        return picks

    return use


def box(learns: bool, **options: Any) -> Use:
    """Return the use of a bandit on a box."""

    def use(device: torch.device) -> Any:
        bounds = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.double).to(device)
        known = {} if learns else given(device)
        known |= {"num_restarts": 1, "raw_samples": 8, **options}
        bandit = BoxBandit(bounds, seed=0, **known)
        found = []
        for _ in range(2):
            points = bandit.ask(2)
            assert points.device.type == device.type
            bandit.tell(points, rewards_of(points))
            found.append(points.cpu())
        found += [moment.cpu() for moment in bandit.predict(points)]
        found.append(bandit.best_point().cpu())
        copy = BoxBandit(bounds, seed=0, **known)
        copy.load_state_dict(bandit.state_dict())
        found.append(copy.ask(1).cpu())
        # BoTorch draws paths from the generator of the device: other numbers.
        is_drawn = "policy" in options
        return [list(value.shape) if is_drawn else value for value in found]

    return use


def bits(device: torch.device) -> Any:
    fingerprints = torch.rand(40, 32, generator=seeded()) < 0.3
    arms = BitArms.of(fingerprints.to(torch.uint8)).to(device)
    assert arms.device.type == device.type
    rewards = fingerprints[:, :8].double().sum(dim=-1)
    learned = play(GPBandit(arms, seed=0), rewards, size=4)
    kernel = ScaleKernel(TanimotoKernel()).double().to(device)
    known = GPUCB(arms, kernel, 0.1, seed=0)
    return learned + play(known, rewards)


def model(device: torch.device, **options: Any) -> SingleTaskDTCGP:
    X = some_arms(device, 12)
    Y = rewards_of(X).unsqueeze(-1).to(device)
    return SingleTaskDTCGP(X, Y, **options)


def posteriors_of_models(device: torch.device) -> list[Tensor]:
    X, more = some_arms(device, 12), some_arms(device, 3, seed=7)
    values = []
    for options in (
        {},
        {"inducing_points": X[:5]},
        {"train_Yvar": torch.full((12, 1), 0.1, dtype=torch.double).to(device)},
    ):
        dtc = model(device, **options)
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(dtc.likelihood, dtc),
            optimizer_kwargs={"options": {"maxiter": 3}},
        )
        is_known = "train_Yvar" in options
        noise = torch.full((3, 1), 0.1).to(X) if is_known else None
        Y = rewards_of(more).unsqueeze(-1).to(device)
        posterior = dtc.posterior(more)
        values += [posterior.mean, posterior.variance]
        values += [
            dtc.condition_on_observations(more, Y, noise=noise).posterior(X).mean
        ]
        fantasies = dtc.fantasize(more, SobolQMCNormalSampler(torch.Size([2]), seed=0))
        values.append(fantasies.posterior(X).variance)
    return [value.detach().cpu() for value in values]


def drifting_model(device: torch.device) -> Any:
    X = some_arms(device, 12)
    times = torch.arange(12.0, dtype=torch.double).unsqueeze(-1).to(device)
    Y = rewards_of(X).unsqueeze(-1).to(device)
    drifting = TimeVaryingGP(torch.cat([X, times], dim=-1), Y)
    now = torch.cat([X[:3], times[:3] + 12], dim=-1)
    return drifting.posterior(now).mean.detach().cpu()


def acquisitions(device: torch.device) -> Any:
    choices, dtc = some_arms(device), model(device)
    dtc.eval()
    bound = BatchUpperConfidenceBound(dtc, BKBWidth(), choices[:2], num_arms=40)
    regret = qSimpleRegret(dtc, SobolQMCNormalSampler(torch.Size([8]), seed=0))
    found = []
    for acquisition in (bound, regret):
        for available in (None, torch.arange(40) % 2 == 0):
            indices, values = optimize_acqf_finite(
                acquisition, choices, q=2, available=available
            )
            found += [indices.tolist(), values.cpu()]
    indices, values = top_k_choices(bound, choices, 4)
    return [*found, indices.tolist(), values.cpu()]


USES: dict[str, Use] = {
    "masks, retired and added arms, contexts, history": masks_and_changing_arms,
    "a state to the CPU": state_of("device", "cpu"),
    "a state from the CPU": state_of("cpu", "device"),
    "packed bits": bits,
    "words": words,
    "models": posteriors_of_models,
    "a drifting model": drifting_model,
    "acquisition functions over choices": acquisitions,
    "BBKB, coupled": campaign(BBKB, learns=False, resampling="coupled"),
    "GPBandit, regret": campaign(GPBandit, learns=True, goal="regret", size=5),
    "GPBandit, draws": campaign(GPBandit, True, policy=ThompsonPolicy(), size=4),
    "GPBandit, drift": campaign(GPBandit, True, forgetting_rate="learn", size=4),
    "BBKB, few features": campaign(BBKB, learns=False, max_feature_bytes=2000),
    "TVGPUCB, sparse": campaign(TVGPUCB, False, forgetting_rate=0.05, sparse=True),
    "box, learned": box(learns=True),
    "box, draws": box(learns=True, policy=BoxThompsonPolicy()),
}
bandit_class: Any
for bandit_class in (EpsilonGreedy, GPBUCB, RGPUCB):
    rate = RATE.get(bandit_class, {})
    USES[bandit_class.__name__] = campaign(bandit_class, learns=False, **rate)


def assert_alike(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        # Optimizers and fits stop a little earlier or later where sums differ.
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert_alike(left, right)
    else:
        assert found == expected


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_use_gives_on_a_device_what_it_gives_on_the_cpu(use, device):
    assert_alike(use(device), use(torch.device("cpu")))


@pytest.mark.parametrize("size", [1, 63, 64, 130])
def test_blocks_solve_as_60_digits_do(size, device):
    """Nearly singular Gram matrices too, regularized by 1e-10: then blocks refine."""
    points = np.random.default_rng(0).random((size, 2))
    squared = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    for ridge, lengthscale, tolerance in ((1.0, 0.3, 1e-13), (1e-10, 0.5, 1e-6)):
        K = np.exp(-squared / (2 * lengthscale**2)) + ridge * np.eye(size)
        L = torch.linalg.cholesky(torch.tensor(K))
        B = random_points(size, 3)
        expected = solve_lower(L.numpy(), B.numpy())
        scale = np.abs(expected).max()
        found = TriangularSolver(L.to(device)).solve_(B.to(device)).cpu().numpy()
        plain = torch.linalg.solve_triangular(L, B, upper=False).numpy()
        error = np.abs(found - expected).max() / scale
        assert error <= tolerance
        # About as accurate as substitution.
        assert error <= 10 * np.abs(plain - expected).max() / scale + 1e-13
