"""Smaller ONNX files of the same graph: half precision, and eight-bit matrix products."""

import importlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import ConfigError, MissingExtraError, TryOption
from vitrine.exporting.onnx_graph import INPUT, clean, import_onnx, save_graph
from vitrine.models import BiTConfig, ModelConfig

# Tensors with fewer weights than this keep their precision: they would save nothing.
FEW_WEIGHTS = 1024
HALF_MAX = float(np.finfo(np.float16).max)


def write_fp16(source: Path, path: Path) -> None:
    """Write a copy that computes in half precision; `pixels` and outputs stay fp32."""
    onnx = import_onnx()
    float16 = import_converter()
    save_graph(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), path)


def write_int8(source: Path, path: Path) -> None:
    """Write a copy with eight-bit matrix products; the ranges of activations are measured per batch.

    Weights have a scale for each output channel and seven bits of range: processors without VNNI add pairs of
    products in sixteen bits, which eight would overflow, so that accuracy would depend on the machine.
    """
    quantization = import_quantization()

    def quantize(whole: Path) -> None:
        quantization.quantize_dynamic(
            source,
            whole,
            op_types_to_quantize=["MatMul"],  # the head is a Gemm: small, so it stays in fp32
            per_channel=True,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )

    save_quantized(source, path, quantize)


def write_static_int8(source: Path, path: Path, *, images: NDArray[np.float32]) -> None:
    """Write a copy with eight-bit products whose activations have fixed ranges, measured on `images` (N, C, H, W).

    Ranges are written as pairs of QuantizeLinear and DequantizeLinear, which every runtime may turn into its own
    eight-bit kernels; OpenVINO supports no other form.
    """
    quantization = import_quantization()

    def quantize(whole: Path) -> None:
        quantization.quantize_static(
            source,
            whole,
            calibration_reader(quantization, images),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )

    save_quantized(source, path, quantize)


def save_quantized(source: Path, path: Path, quantize: Callable[[Path], None]) -> None:
    """Write a file with `quantize`, check and clean it, and save it as `path` with the metadata of `source`."""
    onnx = import_onnx()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder, without_log():
        whole = Path(folder) / path.name
        quantize(whole)
        proto = onnx.load(whole)
    metadata = {
        entry.key: entry.value for entry in onnx.load(source, load_external_data=False).metadata_props
    }
    clean(proto)
    onnx.helper.set_model_props(proto, metadata)
    save_graph(proto, path)


def calibration_reader(quantization: ModuleType, images: NDArray[np.float32]) -> Any:
    """Return images (N, C, H, W) one at a time, as onnxruntime's quantiser requests them."""
    batches = ({INPUT: batch} for batch in np.split(images, len(images)))
    reader = type(
        "Reader", (quantization.CalibrationDataReader,), {"get_next": lambda _: next(batches, None)}
    )
    return reader()


def import_quantization() -> ModuleType:
    """Import onnxruntime's quantiser, or raise an error that says how to install it."""
    return part_of_onnxruntime("quantization", purpose="eight-bit weights")


def part_of_onnxruntime(name: str, *, purpose: str) -> ModuleType:
    """Import a part of onnxruntime; the error names the package that it lacks, which may be onnx."""
    try:
        return importlib.import_module(f"onnxruntime.{name}")
    except ImportError as error:
        raise MissingExtraError(error.name or "onnxruntime", extra="export", purpose=purpose) from None


def store_in_fp16(source: Path, path: Path) -> None:
    """Write a copy that stores its weights in half precision and computes with them in single precision.

    onnxruntime casts them once, when it opens the file. Weights beyond the range of half precision stay as they are.
    """
    onnx = import_onnx()
    proto = onnx.load(source)
    graph, casts = proto.graph, []
    for weight in graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.size < FEW_WEIGHTS or np.abs(values).max() > HALF_MAX:
            continue
        name, half = weight.name, f"{weight.name}.fp16"
        weight.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), half))
        casts.append(onnx.helper.make_node("Cast", [half], [name], to=onnx.TensorProto.FLOAT))
    graph.node.extend(casts)
    save_graph(proto, path)


def require_products(config: ModelConfig) -> None:
    """Refuse int8 for a model that has almost no matrix products."""
    if isinstance(config, BiTConfig):
        raise ConfigError(
            "quantizes matrix products, and a BiT ResNet consists of convolutions",
            option="int8",
            advice=[TryOption("fp16", "to halve its size", True)],
        )


def import_converter() -> ModuleType:
    """Import onnxruntime's conversion to half precision."""
    return part_of_onnxruntime("transformers.float16", purpose="half precision")


@contextmanager
def without_log() -> Iterator[None]:
    """Keep the quantiser from logging advice to the root logger."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)
