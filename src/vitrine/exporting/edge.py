"""A model for phones and other small devices: ExecuTorch with XNNPACK, LiteRT and Core ML.

All take one image at a time, as normalised pixels (1, C, height, width), and return logits, where there is a head,
and the embedding. Preprocessing and class names lie beside the file.
"""

import contextlib
import importlib
import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitrine.checkpoints.loading import Loaded
from vitrine.errors import CheckpointError, MissingExtraError
from vitrine.exporting.exported import Export, Exported, Subject
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import INPUT, metadata_of, quietly
from vitrine.exporting.proof import Answer
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import track

EdgeKind = Literal["executorch", "litert", "coreml"]
EDGE_KINDS: tuple[EdgeKind, ...] = get_args(EdgeKind)
FILES: dict[EdgeKind, str] = {
    "executorch": "model.pte",
    "litert": "model.tflite",
    "coreml": "model.mlpackage",
}
# The constants of GELU's tanh form, as in arXiv:1606.08415.
TANH_SCALE, CUBIC = 0.7978845608028654, 0.044715


def plan_edge(loaded: Loaded, *, to: EdgeKind) -> Export:
    """Check that the packages are installed; return the function that writes the file into a folder."""
    toolkit = {"executorch": import_executorch, "litert": import_litert, "coreml": import_coreml}[to]()
    model = InferenceModel(loaded.model)
    write = {"executorch": write_executorch, "litert": write_litert, "coreml": write_coreml}[to]

    def export(folder: Path) -> Exported:
        path = folder / FILES[to]
        for _ in track([path], "Converting"):
            with quietly(), silent():
                opened = write(toolkit, model, loaded, path)
        subject = Subject(name=opened.name, answer=one_at_a_time(opened.run, model), file=path)
        return Exported(files=(path,), subjects=(subject,), notes=opened.notes)

    return export


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A written file, opened; `run` maps one image (1, C, height, width) to its outputs."""

    name: str
    run: Callable[[Tensor], list[Tensor]]
    notes: tuple[str, ...] = ()


def one_at_a_time(run: Callable[[Tensor], list[Tensor]], model: InferenceModel) -> Answer:
    """Run a program for one image on every image of a batch."""

    def answer(images: Tensor) -> dict[str, Tensor]:
        with silent():
            rows = [run(image[None]) for image in images]
        return {
            name: torch.cat(parts)
            for name, parts in zip(model.output_names, zip(*rows, strict=True), strict=True)
        }

    return answer


def traced(model: InferenceModel, loaded: Loaded) -> torch.export.ExportedProgram:
    """Trace the model for one image, with GELU's tanh form written out.

    XNNPACK (ExecuTorch 1.5) and coremltools 9.0 silently compute every GELU in its erf form: logits would
    differ in the third digit.
    """
    config = loaded.model.config
    example = torch.zeros(1, config.channels, *config.image_size)
    program = torch.export.export(model, (example,), strict=False)
    return program.run_decompositions({torch.ops.aten.gelu.default: written_out_gelu})


def written_out_gelu(values: Tensor, *, approximate: str = "none") -> Any:
    """Compute the tanh form by plain operators; leave the erf form as it is."""
    if approximate != "tanh":
        return NotImplemented
    inner = TANH_SCALE * (values + CUBIC * values * values * values)
    return 0.5 * values * (1.0 + torch.tanh(inner))


def import_executorch() -> ModuleType:
    """Import ExecuTorch, or raise an error that says how to install it."""
    return imported(
        "executorch.exir", package="executorch", extra="executorch", purpose="a file for ExecuTorch"
    )


def import_litert() -> ModuleType:
    """Import LiteRT's converter and its interpreter, or raise an error that says how to install them."""
    imported("ai_edge_litert", package="ai-edge-litert", extra="litert", purpose="a file for LiteRT")
    return imported("litert_torch", package="litert-torch", extra="litert", purpose="a file for LiteRT")


def import_coreml() -> ModuleType:
    """Import coremltools, or raise an error that says how to install it."""
    return imported("coremltools", package="coremltools", extra="coreml", purpose="a package for Core ML")


def imported(module: str, *, package: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package without its warnings."""
    try:
        with quietly(), silent():
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra=extra, purpose=purpose) from error


def write_executorch(exir: ModuleType, model: InferenceModel, loaded: Loaded, path: Path) -> Opened:
    """Lower the model to XNNPACK's kernels and write model.pte."""
    xnnpack = importlib.import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    lowered = exir.to_edge_transform_and_lower(
        traced(model, loaded), partitioner=[xnnpack.XnnpackPartitioner()]
    ).to_executorch()
    with write_atomically(path) as file:
        file.write(lowered.buffer)
    return Opened(name="ExecuTorch, XNNPACK", run=open_executorch(path))


def open_executorch(path: Path) -> Callable[[Tensor], list[Tensor]]:
    """Open model.pte in ExecuTorch's runtime."""
    runtime = importlib.import_module("executorch.runtime").Runtime.get()
    program = runtime.load_program(path)
    method = program.load_method("forward")

    def run(image: Tensor) -> list[Tensor]:
        assert program is not None  # the method reads from it
        return [row.clone() for row in method.execute([image.contiguous()])]

    return run


def write_litert(converter: ModuleType, model: InferenceModel, loaded: Loaded, path: Path) -> Opened:
    """Convert the model and write model.tflite."""
    config = loaded.model.config
    converted = converter.convert(model, (torch.zeros(1, config.channels, *config.image_size),))
    with write_atomically(path) as file:
        file.write(converted.model_content())
    return Opened(name="LiteRT, XNNPACK", run=open_litert(path))


def open_litert(path: Path) -> Callable[[Tensor], list[Tensor]]:
    """Open model.tflite in LiteRT's interpreter."""
    interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter(
        str(path), num_threads=torch.get_num_threads()
    )
    run = interpreter.get_signature_runner()
    [given] = run.get_input_details()

    def answer(image: Tensor) -> list[Tensor]:
        outputs = run(**{given: image.numpy()})
        return [torch.from_numpy(outputs[name]) for name in sorted(outputs)]  # output_0, output_1

    return answer


def write_coreml(coremltools: ModuleType, model: InferenceModel, loaded: Loaded, path: Path) -> Opened:
    """Convert the model to an ML program in fp32 and write model.mlpackage."""
    config = loaded.model.config
    converted = coremltools.convert(
        traced(model, loaded),
        inputs=[coremltools.TensorType(INPUT, shape=(1, config.channels, *config.image_size))],
        outputs=[coremltools.TensorType(name) for name in model.output_names],
        minimum_deployment_target=coremltools.target.iOS16,
        compute_precision=coremltools.precision.FLOAT32,
        skip_model_load=True,
    )
    converted.user_defined_metadata.update(metadata_of(loaded.record))
    converted.save(str(path))
    return Opened(
        name="coremltools' own definition of each operator",
        run=partial(follow_program, converted._mil_program, model.output_names),
        notes=(
            "Core ML predicts only on Apple devices: the converted program was evaluated operator by operator with "
            "coremltools' own definitions, and was not run by Core ML",
        ),
    )


def follow_program(program: Any, names: tuple[str, ...], image: Tensor) -> list[Tensor]:
    """Evaluate a converted program on one image, with coremltools' own definition of each operator."""
    main = program.functions["main"]
    main.inputs[INPUT]._sym_val = SimpleNamespace(val=image.numpy())
    for operation in main.operations:
        if operation.op_type != "const":
            operation.type_value_inference(overwrite_output=True)
            if operation.outputs[0].val is None:
                raise CheckpointError(f"coremltools does not define {operation.op_type} for known values")
    rows = {output.name: torch.from_numpy(output.val.copy()) for output in main.outputs}
    return [rows[name] for name in names]


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Hide the output of converters from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
