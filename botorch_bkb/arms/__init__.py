"""Where arms live, and which of them may be pulled."""

from botorch_bkb.arms.array import ArrayArms
from botorch_bkb.arms.capacity import Capacity, PullCounts
from botorch_bkb.arms.parquet import ParquetArms
from botorch_bkb.arms.stored import ShardDataError, StoredArms
from botorch_bkb.arms.table import ArmTable
from botorch_bkb.arms.workers import ShardLostError, ShardTimeoutError
from botorch_bkb.models.utils.bits import BitArms


__all__ = [
    "ArmTable",
    "ArrayArms",
    "BitArms",
    "Capacity",
    "ParquetArms",
    "PullCounts",
    "ShardDataError",
    "ShardLostError",
    "ShardTimeoutError",
    "StoredArms",
]
