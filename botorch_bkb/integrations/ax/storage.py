"""Registers classes of this package with Ax's storage, at import."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from ax.storage.botorch_modular_registry import (
    register_acquisition,
    register_acquisition_function,
    register_model,
)
from ax.storage.json_store.encoders import pausing_criterion_to_dict
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY

from botorch_bkb.acquisition import (
    BatchUpperConfidenceBound,
    ScheduledUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.integrations.ax.arms import ArmFile, ChoiceGrid
from botorch_bkb.integrations.ax.modular import FiniteArmAcquisition, FiniteArmsOnly
from botorch_bkb.integrations.ax.node import BanditNode
from botorch_bkb.models import SingleTaskDTCGP, TimeVaryingGP


def _encode_node(node: BanditNode) -> dict[str, Any]:
    names = ("factory", "arms", "seed", "name", "transition_criteria", "time_unit")
    arguments = {name: getattr(node, name) for name in names}
    return {"__type": "BanditNode", **arguments, "state": node.state_dict()}


def _encode_arms(arms: ArmFile | ChoiceGrid) -> dict[str, Any]:
    return {"__type": type(arms).__name__, **asdict(arms)}


register_acquisition(FiniteArmAcquisition)
for _model_class in (SingleTaskDTCGP, TimeVaryingGP):
    register_model(_model_class)
for _acqf_class in (
    ScheduledUpperConfidenceBound,
    BatchUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
):
    register_acquisition_function(_acqf_class)
for _part, _encode in (
    (BanditNode, _encode_node),
    (FiniteArmsOnly, pausing_criterion_to_dict),
    (ArmFile, _encode_arms),
    (ChoiceGrid, _encode_arms),
):
    CORE_ENCODER_REGISTRY[_part] = _encode
    CORE_DECODER_REGISTRY[_part.__name__] = _part
# Ax would not decode the arguments of a class of nodes.
CORE_DECODER_REGISTRY["BanditNode"] = partial(BanditNode)
