"""Exported ONNX files, run by onnxruntime or OpenVINO: logits and embeddings from a preprocessed batch.

This is all that serving needs of an export; no model is built and torch computes nothing.
Shapes: B images, C channels, K classes, R numbers of the representation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrine.checkpoints.reading.onnx_file import read_metadata
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError, MissingCheckpointError
from vitrine.runtime.files import parse_json
from vitrine.runtime.optional import optional
from vitrine.runtime.threads import available_cores

Engine = Literal["onnxruntime", "openvino"]
Precision = Literal["fp32", "bf16", "fp16", "int8", "int8-static"]
# bf16 is a precision of the computation, not of the file, and only OpenVINO has it.
FILES: dict[Precision, str] = {
    "fp32": "model.onnx",
    "bf16": "model.onnx",
    "fp16": "model.fp16.onnx",
    "int8": "model.int8.onnx",
    "int8-static": "model.int8-static.onnx",
}
HUGGING_FACE_FILES: dict[Precision, str] = {
    "fp32": "onnx/model.onnx",
    "bf16": "onnx/model.onnx",
    "fp16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_quantized.onnx",
    "int8-static": "onnx/model_int8.onnx",
}
"""The same files in the layout of transformers.js, under the names that it expects."""
HUGGING_FACE_EMBEDDING = "image_embeds"
"""The name of one vector per image in transformers.js."""
Pixels = NDArray[np.float32]
Run = Callable[[Pixels], list[NDArray[np.float32]]]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The outputs of a model for a batch."""

    logits: NDArray[np.float32] | None
    """(B, K); None if the model has no head."""
    embedding: NDArray[np.float32]
    """(B, R)"""


class OnnxRunner:
    """One open ONNX file of an export; may be called from several threads."""

    def __init__(
        self,
        path: Path,
        *,
        engine: Engine = "onnxruntime",
        is_bf16: bool = False,
        threads: int | None = None,
    ) -> None:
        self.path, self.engine = path, engine
        metadata = read_metadata(path)
        if "preprocess" not in metadata:
            raise CheckpointError(f"{path} was not exported by Vitrine: it does not describe its input")
        threads = threads or available_cores()
        if engine == "onnxruntime":
            if is_bf16:
                raise ConfigError("onnxruntime does not compute in bf16 on a CPU; use the engine openvino")
            self._run, self.input_shape, self.outputs, self.version = _start_onnxruntime(path, threads)
        elif engine == "openvino":
            self._run, self.input_shape, self.outputs, self.version = _start_openvino(
                path, threads, is_bf16=is_bf16
            )
        else:
            raise ConfigError(f"engine must be onnxruntime or openvino, got {engine!r}")
        try:
            self.preprocess = Preprocess.from_json(parse_json(metadata["preprocess"]))
            names = parse_json(metadata["classes"])
            self.classes: tuple[str, ...] | None = tuple(names) if names else None
            self.model = metadata["model"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} does not describe its input in a known way: {error}") from None

    def __call__(self, pixels: Pixels) -> Answers:
        """Compute logits (B, K) and embedding (B, R) of normalised pixels (B, C, height, width)."""
        named = self.outputs_of(pixels)
        if "embedding" not in named:
            raise ConfigError(f"{self.path} answers with {' and '.join(named)}, not with classes of pictures")
        return Answers(logits=named.get("logits"), embedding=named["embedding"])

    def outputs_of(self, pixels: Pixels) -> dict[str, NDArray[np.float32]]:
        """Compute all outputs by name: also `scores` of masks, or `boxes` and `scores`."""
        if pixels.ndim != 4 or pixels.shape[1:] != self.input_shape:
            wanted = ", ".join(map(str, self.input_shape))
            raise ConfigError(f"pixels must be (batch, {wanted}), got {pixels.shape}")
        values = self._run(np.ascontiguousarray(pixels, dtype=np.float32))
        ours = {HUGGING_FACE_EMBEDDING: "embedding"}
        return {ours.get(name, name): value for name, value in zip(self.outputs, values, strict=True)}


def open_runner(
    folder: str | Path,
    *,
    precision: Precision = "fp32",
    engine: Engine = "onnxruntime",
    threads: int | None = None,
) -> OnnxRunner:
    """Open the folder of an ONNX export, or one of its files."""
    path = Path(folder)
    if path.is_dir():
        if precision not in FILES:
            raise ConfigError(f"precision must be one of {', '.join(FILES)}, got {precision!r}")
        files = HUGGING_FACE_FILES if (path / HUGGING_FACE_FILES["fp32"]).exists() else FILES
        path = path / files[precision]
        if not path.exists():
            there = [name for name, file in files.items() if (Path(folder) / file).exists()]
            hint = f"there is {', '.join(there)}" if there else "it is not an ONNX export"
            raise CheckpointError(f"{path.parent} holds no {path.name}; {hint}")
    elif not path.exists():
        raise MissingCheckpointError(f"no such file or folder: {path}")
    return OnnxRunner(path, engine=engine, is_bf16=precision == "bf16", threads=threads)


Started = tuple[Run, tuple[int, ...], tuple[str, ...], str]


def import_onnxruntime() -> ModuleType:
    """Import onnxruntime, or raise an error that says how to install it."""
    module: ModuleType = optional("onnxruntime", extra="export", purpose="running an ONNX file")
    return module


def _start_onnxruntime(path: Path, threads: int) -> Started:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Threads that spin between two calls take the cores from decoding and from every other process.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # any exception means that the file cannot be read
        raise CheckpointError(f"onnxruntime cannot open {path}: {_first_line(error)}") from error
    [graph_input] = session.get_inputs()
    outputs = tuple(output.name for output in session.get_outputs())

    def run(pixels: Pixels) -> list[NDArray[np.float32]]:
        return session.run(None, {graph_input.name: pixels})

    return run, tuple(graph_input.shape[1:]), outputs, f"onnxruntime {onnxruntime.__version__}"


def _start_openvino(path: Path, threads: int, *, is_bf16: bool) -> Started:
    openvino = optional("openvino", extra="openvino", purpose="the engine openvino")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        # By default OpenVINO computes in bf16 on every processor that supports it.
        "INFERENCE_PRECISION_HINT": "bf16" if is_bf16 else "f32",
    }
    try:
        compiled = openvino.Core().compile_model(path, "CPU", settings)
    except Exception as error:  # any exception means that the file cannot be read
        raise CheckpointError(f"openvino cannot open {path}: {_first_line(error)}") from error
    names = tuple(output.any_name for output in compiled.outputs)
    shape = tuple(size.get_length() for size in list(compiled.inputs[0].partial_shape)[1:])

    def run(pixels: Pixels) -> list[NDArray[np.float32]]:
        # One inference request per call, because a request cannot be shared by two threads.
        results: Any = compiled.create_infer_request().infer({0: pixels})
        return [results[name] for name in names]

    return run, shape, names, f"openvino {openvino.__version__.split('-')[0]}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
