import logging

import pytest


@pytest.fixture(autouse=True)
def quiet():
    """Let Ax log nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
