"""Where arms live, and which of them may be pulled."""

from botorch_bkb.arms.capacity import Capacity, PullCounts
from botorch_bkb.arms.table import ArmTable
from botorch_bkb.models.utils.bits import BitArms


__all__ = ["ArmTable", "BitArms", "Capacity", "PullCounts"]
