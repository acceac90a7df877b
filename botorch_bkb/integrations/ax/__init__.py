r"""Bandits in Ax experiments; needs the extra ``ax`` (Ax 1.3.1).

There are two routes. :class:`BanditNode` is a generation node in which a bandit of this
package chooses, over a table of arms that is stored by reference (:class:`ArmFile`) or
over the product of an experiment's choice parameters (:class:`ChoiceGrid`). The other
route is Ax's own Bayesian optimization, ``Generators.BOTORCH_MODULAR``, with
:class:`~botorch_bkb.models.SingleTaskDTCGP`, the acquisition functions of this package
and :class:`FiniteArmAcquisition`, an exact search over all discrete points.

Import this module before an experiment is saved and before it is loaded. A stored
experiment holds no code: a node refers to its bandit by the name of a factory, which
:func:`register_bandit` must know in both processes. :func:`register_folder` finds a
table of arms that has moved.

Use one-arm trials: Ax merges repeats within a batch trial. The node releases failed and
abandoned trials. On the other route, Ax reports abandoned trials as pending forever, so
mark them failed instead. The page "Ax" lists what is supported.
"""

from __future__ import annotations


try:
    import ax  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Ax experiments need ax-platform, which is not installed. Install it with "
        'pip install "botorch_bkb[ax]".'
    ) from error

import botorch_bkb.acquisition.input_constructors
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
