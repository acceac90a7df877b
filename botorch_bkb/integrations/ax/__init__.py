r"""Bandits in Ax experiments; needs the extra ``ax`` (Ax 1.3.1).

Two routes. :class:`BanditNode` is a generation node that lets any bandit of this
package choose, over a table of arms that is stored by reference (:class:`ArmFile`) or
over the product of an experiment's choice parameters (:class:`ChoiceGrid`). The other
route is Ax's own Bayesian optimization, ``Generators.BOTORCH_MODULAR``, with
:class:`~botorch_bkb.models.SingleTaskDTCGP`, the acquisition functions of this package
and :class:`FiniteArmAcquisition`, which searches all discrete points exactly, allows
repeats, and counts pending points as often as they are pending.

Import this module before an experiment is saved and before it is loaded: that tells Ax
how. A node refers to its bandit by the name of a factory, which :func:`register_bandit`
takes, in both processes: a stored experiment names code, it does not hold any. A table
of arms that has moved is found by :func:`register_folder`.

Use one-arm trials: Ax merges repeats within a batch trial. On the node's route, failed
and abandoned trials are released; on the other, Ax reports abandoned ones as pending
for ever, so mark them failed instead. The page "What works in Ax" says what is honoured
on which route, and what is refused.
"""

from __future__ import annotations


try:
    import ax  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Ax experiments need ax-platform, which is not installed. Install it with "
        'pip install "botorch_bkb[ax]".'
    ) from error

import botorch_bkb.integrations.ax.storage  # noqa: F401
from botorch_bkb.integrations.ax.arms import (
    ArmFile,
    ArmSource,
    ChoiceGrid,
    Parameters,
    register_folder,
)
from botorch_bkb.integrations.ax.modular import (
    check_modular,
    FiniteArmAcquisition,
    modular_strategy,
)
from botorch_bkb.integrations.ax.node import (
    BanditFactory,
    BanditNode,
    find_bandit_node,
    register_bandit,
)


__all__ = [
    "ArmFile",
    "ArmSource",
    "BanditFactory",
    "BanditNode",
    "ChoiceGrid",
    "FiniteArmAcquisition",
    "Parameters",
    "check_modular",
    "find_bandit_node",
    "modular_strategy",
    "register_bandit",
    "register_folder",
]
