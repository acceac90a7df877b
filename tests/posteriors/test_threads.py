"""Small work runs on one thread, and the number of threads is always given back."""

import pytest
import torch

from botorch_bkb.posteriors.threads import MIN_SHARED_BYTES, threads_for


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_small_work_runs_on_one_thread():
    with threads_for(MIN_SHARED_BYTES - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_large_work_is_shared():
    with threads_for(MIN_SHARED_BYTES):
        assert torch.get_num_threads() == 3


def test_an_error_gives_the_threads_back():
    with pytest.raises(ValueError, match="inside"), threads_for(0):
        raise ValueError("inside")
    assert torch.get_num_threads() == 3
