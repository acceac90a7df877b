"""What Ax needs to know to store and load experiments with our parts."""

from __future__ import annotations

from dataclasses import asdict
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


def register_all() -> None:
    """Let Ax store and load what this package brings; again does no harm."""
    register_acquisition(FiniteArmAcquisition)
    for model_class in (SingleTaskDTCGP, TimeVaryingGP):
        register_model(model_class)
    for acqf_class in (
        ScheduledUpperConfidenceBound,
        BatchUpperConfidenceBound,
        TimeVaryingUpperConfidenceBound,
    ):
        register_acquisition_function(acqf_class)
    CORE_ENCODER_REGISTRY[BanditNode] = _encode_node
    CORE_DECODER_REGISTRY["BanditNode"] = BanditNode
    CORE_ENCODER_REGISTRY[FiniteArmsOnly] = pausing_criterion_to_dict
    CORE_DECODER_REGISTRY["FiniteArmsOnly"] = FiniteArmsOnly
    CORE_ENCODER_REGISTRY[ArmFile] = _encode_arms
    CORE_DECODER_REGISTRY["ArmFile"] = ArmFile
    CORE_ENCODER_REGISTRY[ChoiceGrid] = _encode_arms
    CORE_DECODER_REGISTRY["ChoiceGrid"] = ChoiceGrid


def _encode_node(node: BanditNode) -> dict[str, Any]:
    return {
        "__type": "BanditNode",
        "factory": node.factory,
        "arms": node.arms,
        "seed": node.seed,
        "name": node.name,
        "transition_criteria": node.transition_criteria,
        "state": node.state_dict(),
        "time_unit": node.time_unit,
    }


def _encode_arms(arms: ArmFile | ChoiceGrid) -> dict[str, Any]:
    return {"__type": type(arms).__name__, **asdict(arms)}
