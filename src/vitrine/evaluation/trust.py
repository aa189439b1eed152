"""Statistics about a model's own limits, in one small file beside its weights: trust.safetensors.

Statistics of the training images for "none of these", and scores of held-out images for prediction sets.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrine.checkpoints.tensors import TRUST_FILE, Spec
from vitrine.checkpoints.writing import write_safetensors
from vitrine.errors import CheckpointError
from vitrine.evaluation.familiarity import ClassDistance, Familiarity
from vitrine.evaluation.prediction_sets import HeldOutScores

KEY, FORMAT = "vitrine_trust", "1"
_DISTANCE = ("means", "centre", "within", "whole")


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How familiar a picture is, and which classes it may be; None where a model has no evidence for it."""

    familiarity: Familiarity | None = None
    held_out: HeldOutScores | None = None
    errors: Tensor | None = None
    """For a model of numbers, (N,): true numbers less predictions, on images that were left out."""


def write_trust(folder: Path, trust: Trust) -> Path:
    """Write the file into the folder of a model."""
    tensors: dict[str, Tensor] = {}
    if trust.familiarity is not None:
        distance = trust.familiarity.distance
        tensors |= {f"distance.{name}": getattr(distance, name).float() for name in _DISTANCE}
        tensors["distance.held_out"] = trust.familiarity.held_out.float()
    if trust.held_out is not None:
        tensors["sets.probabilities"] = trust.held_out.probabilities.float()
        tensors["sets.labels"] = trust.held_out.labels.to(torch.int32)
    if trust.errors is not None:
        tensors["numbers.errors"] = trust.errors.float()
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    write_safetensors(
        folder / TRUST_FILE,
        list(contiguous.items()),
        specs={name: Spec(tuple(value.shape), value.dtype) for name, value in contiguous.items()},
        metadata={KEY: FORMAT},
    )
    return folder / TRUST_FILE


def read_trust(folder: Path | None) -> Trust:
    """Read the file of a model's folder; a model without one has no evidence."""
    if folder is None or not (folder / TRUST_FILE).is_file():
        return Trust()
    file = folder / TRUST_FILE
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); remove it to use the model without it") from None
    if metadata.get(KEY) != FORMAT:
        raise CheckpointError(
            f"{file} was written by another version of Vitrine; remove it to use the model without it"
        )
    try:
        return _trust_of(tensors)
    except KeyError as error:
        raise CheckpointError(
            f"{file} is damaged: it lacks {error}; remove it to use the model without it"
        ) from None


def _trust_of(tensors: dict[str, Tensor]) -> Trust:
    familiarity, held_out = None, None
    if "distance.means" in tensors:
        parts = {name: tensors[f"distance.{name}"].double() for name in _DISTANCE}
        familiarity = Familiarity(
            distance=ClassDistance(**parts), held_out=tensors["distance.held_out"].double()
        )
    if "sets.labels" in tensors:
        held_out = HeldOutScores(
            probabilities=tensors["sets.probabilities"].double(), labels=tensors["sets.labels"].long()
        )
    errors = tensors.get("numbers.errors")
    return Trust(
        familiarity=familiarity, held_out=held_out, errors=None if errors is None else errors.double()
    )
