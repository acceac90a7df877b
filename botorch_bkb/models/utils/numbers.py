"""What counts as a number where an argument is one."""

from __future__ import annotations

from numbers import Real


def is_number(value: object) -> bool:
    """Whether this is a real number, Python's or NumPy's; no text and no tensor."""
    return isinstance(value, Real)
