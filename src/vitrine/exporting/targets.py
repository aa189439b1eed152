"""A model as torch's own exported program, or in another library's layout, and the runtimes that compute from them.

`model.pt2` runs without Vitrine.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from vitrine.checkpoints.converting import other_numerics
from vitrine.checkpoints.libraries import LIBRARIES, NoAnswerError, open_in_library
from vitrine.checkpoints.loading import Loaded, load
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.saving import Prepared, prepare, write
from vitrine.checkpoints.weights import ModelWeights
from vitrine.exporting.dense_model import DenseInferenceModel, exported_form
from vitrine.exporting.exported import Export, Exported, Kind, Subject
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import metadata_of, quietly
from vitrine.exporting.proof import reference
from vitrine.models.families import untold_options
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import quiet, track

PROGRAM = "model.pt2"
WEIGHTS = {"hf": "model.safetensors", "timm": "model.safetensors", "torchvision": "model.safetensors"}


def plan_export(loaded: Loaded, *, to: Kind, approximate: bool = False) -> Export:
    """Check that the model can be written so; return the function that writes it into a folder."""
    if to == "torch-export":
        return lambda folder: export_program(loaded, folder)
    prepared = prepare(ModelWeights(loaded.model), loaded.record, target=to, approximate=approximate)
    return lambda folder: export_layout(prepared, folder)


def export_program(loaded: Loaded, folder: Path) -> Exported:
    """Write model.pt2."""
    model = exported_form(loaded.model)
    path = folder / PROGRAM
    for _ in track([path], "Writing the program"):
        write_program(model, path, record=loaded.record)
    module, names = open_program(path), model.output_names
    subject = Subject(
        name=f"torch.export {torch.__version__}", answer=lambda images: outputs_of(module, images, names)
    )
    return Exported(files=(path,), subjects=(subject,))


def export_layout(prepared: Prepared, folder: Path) -> Exported:
    """Write weights in another library's layout, as `vitrine convert` does."""
    config, target = prepared.record.config, prepared.target
    place = folder / "model.npz" if target == "npz" else folder
    write(prepared, place, overwrite=True)
    explained = other_numerics(target, config)
    with quiet():
        again = load(place, options=untold_options(config), image_size=config.image_size)
    # A folder carries the model's numerics along; a bare .npz has no place for them.
    why = explained if target == "npz" else ""
    subjects = [Subject(name="Vitrine, read back", answer=reference(again.model), explained=why)]
    if target in LIBRARIES:
        subjects.append(library_subject(prepared, folder, explained=explained))
    file = place if target == "npz" else folder / WEIGHTS[target]
    return Exported(files=(file,), subjects=tuple(subjects), notes=prepared.notes)


def library_subject(prepared: Prepared, folder: Path, *, explained: str) -> Subject:
    """Open the folder in its own library, where that is installed."""
    target, config = prepared.target, prepared.record.config
    output = "logits" if config.num_classes else "embedding"
    try:
        name, run = open_in_library(target, folder, config=config)
    except NoAnswerError as error:
        return Subject(name=LIBRARIES[target], reason=str(error))
    return Subject(name=name, answer=lambda images: {output: run(images)}, explained=explained)


def write_program(model: InferenceModel | DenseInferenceModel, path: Path, *, record: Record) -> None:
    """Trace a model for any number of images and save it, names and preprocessing inside."""
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
    """Run an opened program and name its outputs."""
    with torch.inference_mode():
        return dict(zip(names, module(pixels), strict=True))
