"""A model as one ONNX file: pixels in, `logits` and `embedding` out, any number of images at a time.

The graph has standard operators only. Class names, preprocessing and the model's name are in its metadata.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from vitrine.checkpoints.reading.onnx_file import OURS
from vitrine.checkpoints.record import Record
from vitrine.errors import CheckpointError, ConfigError, MissingExtraError, TryOption
from vitrine.exporting.dense_model import DenseInferenceModel
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.runner import HUGGING_FACE_EMBEDDING, import_onnxruntime
from vitrine.runtime.files import json_text, write_atomically
from vitrine.version import __version__

INPUT = "pixels"
HUGGING_FACE_INPUT = "pixel_values"
"""The name of an image model's input in transformers.js."""
# The first opset with GELU as one operator; onnxruntime supports it since 1.17.
OPSET = 20
# A protobuf file must be smaller than 2 GiB; the graph beside the weights is small.
MOST_BYTES = 2**31 - 2**24


def write_onnx(
    model: InferenceModel | DenseInferenceModel, path: Path, *, record: Record, for_hugging_face: bool = False
) -> None:
    """Write the graph of a model, with our names of input and outputs or those that transformers.js knows."""
    onnx = import_onnx()
    require_one_file(model)
    config = record.config
    renamed = {"embedding": HUGGING_FACE_EMBEDDING} if for_hugging_face else {}
    # Two images, because a batch of one would become a constant.
    example = torch.zeros(2, config.channels, *config.image_size)
    with quietly():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            input_names=[HUGGING_FACE_INPUT if for_hugging_face else INPUT],
            output_names=[renamed.get(name, name) for name in model.output_names],
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    clean(proto)
    proto.producer_name, proto.producer_version = "vitrine", __version__
    onnx.helper.set_model_props(proto, metadata_of(record))
    save_graph(proto, path)


def save_graph(proto: Any, path: Path) -> None:
    """Sort the nodes, check the whole graph with onnx, and write it."""
    onnx = import_onnx()
    sort_nodes(proto.graph)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CheckpointError(f"onnx refuses the graph of {path.name}: {str(error).strip()}") from error
    with write_atomically(path) as file:
        file.write(proto.SerializeToString())


def check_file(path: Path) -> None:
    """Check a written file with onnx, as any of its readers would."""
    onnx = import_onnx()
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CheckpointError(f"onnx refuses {path}: {str(error).strip()}") from error


def sort_nodes(graph: Any) -> None:
    """Sort the nodes topologically, otherwise in the order that they have; converters append theirs at the end."""
    known = {"", *(part.name for part in (*graph.initializer, *graph.input))}
    waiting, ordered = list(graph.node), []
    while waiting:
        ready = [node for node in waiting if known.issuperset(needed_by(node))]
        if not ready:  # a cycle; the checker reports it
            break
        for node in waiting:
            if known.issuperset(needed_by(node)):
                ordered.append(node)
                known.update(node.output)
        waiting = [node for node in waiting if not known.issuperset(node.output)]
    copies = [type(node).FromString(node.SerializeToString()) for node in (*ordered, *waiting)]
    del graph.node[:]
    graph.node.extend(copies)


def needed_by(node: Any) -> set[str]:
    """Return the names of all inputs of a node, including those of graphs inside it."""
    inner = {
        name
        for attribute in node.attribute
        for part in attribute.g.node
        for name in needed_by(part)
        if name not in {made for other in attribute.g.node for made in other.output}
    }
    return {*node.input, *inner}


def metadata_of(record: Record) -> dict[str, str]:
    """Return the metadata of the file, as JSON under a few plain names."""
    return {
        "model": record.variant or type(record.config).__name__.removesuffix("Config"),
        "classes": json_text(list(record.classes) if record.classes else None),
        "preprocess": json.dumps(record.preprocess.to_json()),
        OURS: __version__,
    }


def clean(proto: Any) -> None:
    """Remove the paths and source lines of this machine, which the exporter records, from the graph."""
    del proto.metadata_props[:]
    graph = proto.graph
    del graph.metadata_props[:]
    del graph.value_info[:]  # readers infer the shapes themselves
    for part in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""


def require_one_file(model: InferenceModel | DenseInferenceModel) -> None:
    """Refuse a model that is too large for one ONNX file."""
    num_bytes = sum(
        tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers())
    )
    if num_bytes > MOST_BYTES:
        raise ConfigError(
            f"one ONNX file holds at most 2 GiB and these weights are {num_bytes / 2**30:.1f} GiB",
            advice=[TryOption("to", "to export without this limit", "torch-export")],
        )


def import_onnx() -> ModuleType:
    """Import onnx and onnxscript, which torch needs, or raise an error that says how to install them."""
    try:
        import onnx  # noqa: PLC0415 (an extra)
        import onnxscript  # noqa: F401, PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError(
            error.name or "onnx", extra="export", purpose="writing an ONNX file"
        ) from None
    return onnx


def require_onnx() -> None:
    """Refuse to begin without a package that writes an ONNX file or compares it with the model afterwards."""
    import_onnx()
    import_onnxruntime()


@contextmanager
def quietly() -> Iterator[None]:
    """Hide the exporters' warnings about their internals from the user."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
