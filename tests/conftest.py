"""Shared fixtures."""

import pytest
import torch
from hypothesis import settings


# Timing is no property: the cores may be shared.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def _one_thread():
    """Small problems are faster, and repeatable to the last bit, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1234)
