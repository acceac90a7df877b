"""Confidence schedules, and acquisition functions that take them."""

from botorch_bkb.acquisition.analytic import (
    BatchUpperConfidenceBound,
    DiscreteKnowledgeGradient,
    ScheduledUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.acquisition.confidence import (
    BBKBWidth,
    BKBWidth,
    ChowdhuryGopalanWidth,
    LogWidth,
    NormBoundedWidth,
    NormDoubling,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    RTVWidth,
    SmoothBox,
    SrinivasWidth,
    TVWidth,
)
from botorch_bkb.acquisition.model_state import confidence_state_from_model
from botorch_bkb.acquisition.schedules import (
    ArmObservations,
    as_schedule,
    beta_from_confidence_width,
    ConfidenceSchedule,
    ConfidenceState,
    ConstantWidth,
    DeviationWidth,
    RandomDeviationWidth,
)
from botorch_bkb.models.utils.leverage_scores import bbkb_oversampling, bkb_oversampling


__all__ = [
    "ArmObservations",
    "BBKBWidth",
    "BKBWidth",
    "BatchUpperConfidenceBound",
    "ChowdhuryGopalanWidth",
    "ConfidenceSchedule",
    "ConfidenceState",
    "ConstantWidth",
    "DeviationWidth",
    "DiscreteKnowledgeGradient",
    "LogWidth",
    "NormBoundedWidth",
    "NormDoubling",
    "PracticalBBKBWidth",
    "PracticalBKBWidth",
    "RTVWidth",
    "RandomDeviationWidth",
    "ScheduledUpperConfidenceBound",
    "SmoothBox",
    "SrinivasWidth",
    "TVWidth",
    "TimeVaryingUpperConfidenceBound",
    "as_schedule",
    "bbkb_oversampling",
    "beta_from_confidence_width",
    "bkb_oversampling",
    "confidence_state_from_model",
]
