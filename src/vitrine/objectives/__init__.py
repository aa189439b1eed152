"""Objectives map a model's output and a batch to a loss; every objective of the package is registered by name."""

from vitrine.objectives.classification import LabelsObjective
from vitrine.objectives.contrastive import MocoObjective, SimclrObjective
from vitrine.objectives.detection import DetectionObjective
from vitrine.objectives.dino import DinoObjective
from vitrine.objectives.distillation_objective import DistillationObjective
from vitrine.objectives.ibot import IbotObjective
from vitrine.objectives.instance_segmentation import InstanceObjective
from vitrine.objectives.mask_classification import MaskClassificationObjective
from vitrine.objectives.masked_autoencoder import AutoencoderObjective
from vitrine.objectives.masked_patches import MaskedPatchesObjective
from vitrine.objectives.objective import (
    OBJECTIVES,
    Objective,
    RunContext,
    Validation,
    find_objective,
    register_objective,
)
from vitrine.objectives.segmentation import SegmentationObjective
from vitrine.objectives.set_detection import SetDetectionObjective

__all__ = [
    "OBJECTIVES",
    "AutoencoderObjective",
    "DetectionObjective",
    "DinoObjective",
    "DistillationObjective",
    "IbotObjective",
    "InstanceObjective",
    "LabelsObjective",
    "MaskClassificationObjective",
    "MaskedPatchesObjective",
    "MocoObjective",
    "Objective",
    "RunContext",
    "SegmentationObjective",
    "SetDetectionObjective",
    "SimclrObjective",
    "Validation",
    "find_objective",
    "register_objective",
]
