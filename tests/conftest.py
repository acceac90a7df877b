"""Shared fixtures."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from botorch.optim.core import OptimizationResult, scipy_minimize
from hypothesis import HealthCheck, settings
from threadpoolctl import ThreadpoolController

from tests.pretend_device import register


# Timing is no property: the cores may be shared, and slow.
settings.register_profile(
    "any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any speed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        default="pretend",
        help="where tests/test_devices.py runs: a pretend device (default), or cuda",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "pretend":
        register()


@pytest.fixture(scope="session", autouse=True)
def _numpy_on_one_thread() -> Iterator[None]:
    """NumPy's threads wait for each other by spinning: slow beside other programs."""
    with ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small problems are faster, and repeatable to the last bit, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fits of bandits take two steps, where their optimum does not matter."""

    def two_steps(*args: Any, **options: Any) -> OptimizationResult:
        return scipy_minimize(*args, **options | {"options": {"maxiter": 2}})

    monkeypatch.setattr("botorch.optim.fit.scipy_minimize", two_steps)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1234)
