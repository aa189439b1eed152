"""A model as a repository for NVIDIA's Triton server: it includes preprocessing, so clients send image files.

Triton's Python backend runs `triton_model.py`, which needs numpy, Pillow and onnxruntime in the server's container
and nothing of Vitrine. The proof runs the same file outside Triton, with a stand-in for the module of its backend.
"""

import importlib.util
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.checkpoints.loading import Loaded
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.writing import write_json, write_text
from vitrine.errors import ConfigError, TryOption
from vitrine.exporting.exported import Export, Exported, Subject
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import check_file, require_one_file, require_onnx, write_onnx
from vitrine.runtime.progress import track

NAME, VERSION = "vitrine", "1"
LABELS = "labels.txt"
BACKEND_MODULE = "triton_python_backend_utils"
CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: 32
input [ {{ name: "image" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {outputs} ]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def plan_triton(loaded: Loaded) -> Export:
    """Check that the model reads photos; return the function that writes the repository."""
    require_onnx()
    if loaded.preprocess.channels not in (1, 3):
        raise ConfigError(
            f"triton supports models with 1 or 3 channels, this model has {loaded.preprocess.channels}",
            option="to",
            advice=[TryOption("to", "to write a graph alone", "onnx")],
        )
    model = InferenceModel(loaded.model)
    require_one_file(model)

    def write(folder: Path) -> Exported:
        place = folder / NAME / VERSION
        place.mkdir(parents=True, exist_ok=True)
        graph, program, config = place / "model.onnx", place / "model.py", folder / NAME / "config.pbtxt"
        for _ in track([graph], "Writing ONNX"):
            write_onnx(model, graph, record=loaded.record)
        check_file(graph)
        write_text(program, files("vitrine.exporting").joinpath("triton_model.py").read_text("utf-8"))
        write_json(place / "preprocess.json", loaded.preprocess.to_json())
        write_text(config, config_of(model, loaded.record))
        settings = [config, program, place / "preprocess.json"]
        if loaded.record.classes:
            write_text(
                folder / NAME / LABELS, "".join(f"{one_line(each)}\n" for each in loaded.record.classes)
            )
            settings.append(folder / NAME / LABELS)
        opened = open_outside_triton(folder / NAME)

        def answer(images: Tensor) -> dict[str, Tensor]:
            return {name: torch.from_numpy(rows) for name, rows in opened.run(list(images.numpy())).items()}

        subject = Subject(name="model.py outside Triton", answer=answer)
        return Exported(files=(graph,), settings=tuple(settings), subjects=(subject,))

    return write


def config_of(model: InferenceModel, record: Record) -> str:
    """Write config.pbtxt."""
    with torch.inference_mode():
        rows = model(torch.zeros(1, record.config.channels, *record.config.image_size))
    described = []
    for name, row in zip(model.output_names, rows, strict=True):
        labels = f' label_filename: "{LABELS}"' if name == "logits" and record.classes else ""
        described.append(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ {row.shape[1]} ]{labels} }}')
    return CONFIG.format(name=NAME, outputs=", ".join(described))


def one_line(name: str) -> str:
    """Return a class's name on one line: labels.txt has one per line."""
    return " ".join(name.split())


@dataclass(frozen=True)
class StandInTensor:
    """A stand-in for Triton's tensor."""

    name: str
    values: NDArray[Any]

    def as_numpy(self) -> NDArray[Any]:
        """Return the values."""
        return self.values


@dataclass(frozen=True)
class StandInResponse:
    """A stand-in for Triton's response."""

    output_tensors: Sequence[StandInTensor]
    error: str | None = None


def open_outside_triton(folder: Path) -> Any:
    """Open a model of the repository as Triton's Python backend does; requests are mappings of tensors by name."""
    stand_in = types.ModuleType(BACKEND_MODULE)
    values: dict[str, Any] = {
        "Tensor": StandInTensor,
        "InferenceResponse": StandInResponse,
        "TritonError": str,
        "get_input_tensor_by_name": lambda request, name: request[name],
    }
    vars(stand_in).update(values)
    before = sys.modules.get(BACKEND_MODULE)
    sys.modules[BACKEND_MODULE] = stand_in
    try:
        spec = importlib.util.spec_from_file_location("triton_model_of_export", folder / VERSION / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        with suppress(KeyError):
            del sys.modules[BACKEND_MODULE]
        if before is not None:
            sys.modules[BACKEND_MODULE] = before
    opened = module.TritonPythonModel()
    opened.initialize({"model_repository": str(folder), "model_version": VERSION})
    return opened


def ask(opened: Any, requests: Sequence[Sequence[bytes]]) -> list[StandInResponse]:
    """Send requests of files of images to an opened model."""
    tensors = [StandInTensor("image", np.array(list(one), dtype=object)[:, None]) for one in requests]
    responses: list[StandInResponse] = opened.execute([{"image": tensor} for tensor in tensors])
    return responses
