"""What the tests of the contract of ask and tell share."""

from itertools import cycle

import pytest
from typing_extensions import override

from botorch_bkb.acquisition.schedules import ConfidenceSchedule
from botorch_bkb.optim import FixedSize, ProductRule, SumRule
from tests.bandits import PAPERS_BANDITS


def each(classes):
    return pytest.mark.parametrize(
        "bandit_class", classes, ids=lambda item: item.__name__
    )


both_signs = pytest.mark.parametrize("maximize", [True, False], ids=["max", "min"])
RULES = (FixedSize(3), SumRule(), ProductRule())


def each_bandit_and_rule(test):
    """Run a test with every bandit and with every rule, not with all pairs."""
    pairs = list(zip(PAPERS_BANDITS, cycle(RULES), strict=False))
    return pytest.mark.parametrize(("bandit_class", "rule"), pairs)(test)


class Recorder(ConfidenceSchedule):
    """A constant width that keeps what it is shown."""

    def __init__(self):
        self.states = []

    @override
    def __call__(self, state):
        self.states.append(state)
        return 1.0


def answers(bandit):
    return (
        *bandit.predict(),
        bandit.confidence_bound(),
        bandit.best_arm(),
        bandit.best_arm(among_pulled=False),
    )


def leverage_at_ask(bandit, indices):
    """Return the scores at the start of the batch that was just asked."""
    return (bandit.predict()[1] / bandit.noise_variance)[indices].tolist()
