"""Where arms live, and which of them may be pulled."""

from botorch_bkb.arms.capacity import Capacity, PullCounts
from botorch_bkb.arms.table import ArmTable


__all__ = ["ArmTable", "Capacity", "PullCounts"]
