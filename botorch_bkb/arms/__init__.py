"""Storage of arms, and limits on their pulls."""

from botorch_bkb.arms.columns import TableArms
from botorch_bkb.arms.parquet import ParquetArms
from botorch_bkb.arms.product import ProductArms
from botorch_bkb.arms.product_table import ProductLimits, ProductMask
from botorch_bkb.arms.stored import (
    ArrayArms,
    ShardDataError,
    ShardLostError,
    ShardTimeoutError,
    StoredArms,
)
from botorch_bkb.arms.table import ArmTable, PullCounts, PullLimits
from botorch_bkb.models.utils.rows import BitArms


__all__ = [
    "ArmTable",
    "ArrayArms",
    "BitArms",
    "ParquetArms",
    "ProductArms",
    "ProductLimits",
    "ProductMask",
    "PullCounts",
    "PullLimits",
    "ShardDataError",
    "ShardLostError",
    "ShardTimeoutError",
    "StoredArms",
    "TableArms",
]
