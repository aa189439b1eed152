"""One function per target: a model's files in a folder, and what computes from them.

`model.pt2` is torch's own exported program, which runs without Vitrine. transformers.js opens a folder with Hugging
Face's config and processor files and the graph in onnx/; it chooses its classes by `model_type` and runs the graph as
it is, so that it opens every ViT, also one whose pooling or positions Hugging Face's own classes cannot hold.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints.converting import other_numerics
from vitrine.checkpoints.layouts.huggingface import for_model
from vitrine.checkpoints.libraries import LIBRARIES, NoAnswerError, open_in_library
from vitrine.checkpoints.library_settings import hugging_face_settings
from vitrine.checkpoints.loading import Loaded, load
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.saving import Prepared, prepare, write
from vitrine.checkpoints.weights import ModelWeights
from vitrine.checkpoints.writing import write_json
from vitrine.data.preparing.hf_preprocess import to_hf
from vitrine.errors import ConfigError, TryOption
from vitrine.exporting.dense_model import DenseInferenceModel, exported_form
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import (
    check_file,
    import_onnx,
    metadata_of,
    quietly,
    require_one_file,
    write_onnx,
)
from vitrine.exporting.proof import Answer, reference
from vitrine.exporting.reduced_precision import require_products, write_fp16, write_int8
from vitrine.exporting.runner import FILES, HUGGING_FACE_FILES, OnnxRunner, Precision, open_runner
from vitrine.models import BiTConfig
from vitrine.models.families import untold_options
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import quiet, track

Kind = Literal["onnx", "web", "triton", "transformers.js", "torch-export", "hf", "timm", "torchvision", "npz"]
KINDS: tuple[Kind, ...] = get_args(Kind)
GRAPHS = ("onnx", "transformers.js")
PROGRAM = "model.pt2"
ONNX_FOLDER = "onnx"
RGB_CHANNELS = 3
WEIGHTS = {"hf": "model.safetensors", "timm": "model.safetensors", "torchvision": "model.safetensors"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something that computes from a written file, to be compared with the model."""

    name: str
    precision: str = "fp32"
    answer: Answer | None = None
    """None where it could not be asked, for this `reason`."""
    reason: str = ""
    explained: str = ""
    """Why it may differ: the library computes with other numerics, which no file can change."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files of weights and graphs, and who computes from them."""

    files: tuple[Path, ...]
    settings: tuple[Path, ...] = ()
    """Small files that go with them."""
    subjects: tuple[Subject, ...] = ()
    notes: tuple[str, ...] = ()


Export = Callable[[Path], Exported]


def plan_export(
    loaded: Loaded, *, to: Kind, fp16: bool = False, int8: bool = False, approximate: bool = False
) -> Export:
    """Check that the model can be written so; return the function that writes it into a folder."""
    if to not in KINDS:
        raise ConfigError(f"must be one of {', '.join(KINDS)}, got {to!r}", option="to")
    if (fp16 or int8) and to not in GRAPHS:
        raise ConfigError(
            f"{to} does not support copies in lower precision",
            option="fp16" if fp16 else "int8",
            advice=[TryOption("to", "to write an ONNX graph", "onnx")],
        )
    if to in ("onnx", "transformers.js"):
        import_onnx()
        if to == "transformers.js":
            require_openable(loaded.record)
        if int8:
            require_products(loaded.record.config)
        precisions: list[Precision] = ["fp32"]
        precisions += ["fp16"] if fp16 else []
        precisions += ["int8"] if int8 else []
        model = exported_form(loaded.model)
        require_one_file(model)
        return lambda folder: export_onnx(
            model, loaded, folder, precisions=precisions, for_hugging_face=to == "transformers.js"
        )
    if to == "torch-export":
        return lambda folder: export_program(loaded, folder)
    prepared = prepare(ModelWeights(loaded.model), loaded.record, target=to, approximate=approximate)
    return lambda folder: export_layout(prepared, folder)


def export_onnx(
    model: InferenceModel | DenseInferenceModel,
    loaded: Loaded,
    folder: Path,
    *,
    precisions: list[Precision],
    for_hugging_face: bool = False,
) -> Exported:
    """Write the graph and its copies of lower precision, each checked by onnx."""
    names = HUGGING_FACE_FILES if for_hugging_face else FILES
    files = {precision: folder / names[precision] for precision in precisions}
    files["fp32"].parent.mkdir(parents=True, exist_ok=True)
    subjects, notes = [], []
    settings = write_settings(loaded.record, folder) if for_hugging_face else ()
    for precision, path in track(files.items(), "Writing ONNX"):
        if precision == "fp32":
            write_onnx(model, path, record=loaded.record, for_hugging_face=for_hugging_face)
        else:
            {"fp16": write_fp16, "int8": write_int8}[precision](files["fp32"], path)
        check_file(path)
        runner = open_runner(path)
        subjects.append(Subject(name=runner.version, precision=precision, answer=answer_of(runner)))
    if "int8" in precisions:
        notes.append(
            "int8 takes the range of the activations from each batch, so an image's logits depend slightly on the "
            "other images of its batch"
        )
    return Exported(
        files=tuple(files.values()), settings=settings, subjects=tuple(subjects), notes=tuple(notes)
    )


def answer_of(runner: OnnxRunner) -> Answer:
    """Let a runner take and return tensors."""

    def answer(images: Tensor) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(values) for name, values in runner.outputs_of(np.asarray(images)).items()
        }

    return answer


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
    """Run an opened program and name what it returns."""
    with torch.inference_mode():
        return dict(zip(names, module(pixels), strict=True))


def require_openable(record: Record) -> None:
    """Refuse a model that transformers.js has no class or no input for."""
    if isinstance(record.config, BiTConfig):
        raise ConfigError(
            "transformers.js has no class for BiT ResNets",
            option="to",
            advice=[TryOption("to", "to write a graph for onnxruntime", "onnx")],
        )
    if record.config.channels != RGB_CHANNELS:
        raise ConfigError(
            f"transformers.js reads images of 3 channels, this model has {record.config.channels}",
            option="to",
            advice=[TryOption("to", "to write a graph for onnxruntime", "onnx")],
        )
    to_hf(record.preprocess)


def write_settings(record: Record, folder: Path) -> tuple[Path, ...]:
    """Write config.json and preprocessor_config.json."""
    assert not isinstance(record.config, BiTConfig)
    layout = for_model(record.config)
    settings: dict[str, Any] = hugging_face_settings(record.config, layout, classes=record.classes)
    if record.config.num_classes:
        settings["architectures"] = [f"{settings['architectures'][0].split('For')[0]}ForImageClassification"]
    # In a browser transformers.js looks for a quantized graph unless config.json names another.
    settings["transformers.js_config"] = {"dtype": "fp32"}
    write_json(folder / "config.json", settings)
    write_json(folder / "preprocessor_config.json", to_hf(record.preprocess))
    return folder / "config.json", folder / "preprocessor_config.json"
