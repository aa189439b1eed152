"""A model as torch's own exported program (.pt2), which runs without Vitrine."""

import json
from pathlib import Path

import torch
from torch import Tensor

from vitrine.checkpoints.record import Record
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import metadata_of, quietly
from vitrine.runtime.files import write_atomically

FILE = "model.pt2"


def write_program(model: InferenceModel, path: Path, *, record: Record) -> None:
    """Trace a model model for any number of images and save it, names and preprocessing inside."""
    config = record.config
    example = torch.zeros(2, config.channels, *config.image_size)
    with quietly():
        program = torch.export.export(
            model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
        )
        with write_atomically(path) as file:
            torch.export.save(program, file, extra_files={"vitrine.json": json.dumps(metadata_of(record))})


def open_program(path: Path) -> torch.nn.Module:
    """Open a saved program as a module that maps pixels (B, C, height, width) to a tuple of outputs."""
    with quietly():
        module: torch.nn.Module = torch.export.load(path).module()
    return module


def outputs_of(module: torch.nn.Module, pixels: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Run an opened program and name what it returns."""
    with torch.inference_mode():
        return dict(zip(names, module(pixels), strict=True))
