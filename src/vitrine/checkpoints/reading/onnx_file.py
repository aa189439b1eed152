"""Weights from an ONNX graph, without the onnx package: this file reads the few protobuf fields it needs.

Exporters keep the names of most parameters. Matrices lose theirs when stored transposed; the scope of the MatMul that
uses them (`/blocks.0/attn/qkv/MatMul`) reveals the name. A position table that the graph resamples is located from
its Resize node.
"""

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitrine.checkpoints.tensors import Index, Spec
from vitrine.errors import CheckpointError, TryVerb

DTYPES = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
OURS = "vitrine"
"""The metadata key of files that `vitrine export` writes."""


@dataclass
class Initialiser:
    """A stored tensor: the location of its bytes."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: int = 0
    data: memoryview = field(default_factory=lambda: memoryview(b""))


@dataclass
class Node:
    """One operation."""

    name: str = ""
    op: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A parameter: its initialisers, concatenated along tokens, and whether it is stored transposed."""

    parts: tuple[Initialiser, ...]
    is_transposed: bool = False


class OnnxFile:
    """One .onnx file, as a file of named tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if OURS in read_metadata(path):
            raise CheckpointError(
                f"{path} is an ONNX export, from which no model can be built; use the exported model itself",
                advice=[TryVerb("serve", ("MODEL",), "to serve the export", {"onnx": str(path)})],
            )
        try:
            with path.open("rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            initialisers, nodes = read_graph(content)
        except (ValueError, IndexError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or not an ONNX file ({error})") from None
        self._stored = name_parameters(initialisers, nodes)
        self.metadata: Mapping[str, str] = describe(nodes)
        index = {}
        for name, stored in self._stored.items():
            index[name] = spec_of(stored, name=name, path=path)
        if not index:
            raise CheckpointError(f"{path} holds no weights beside its graph (external data is not read)")
        self.index: Index = index

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Read one parameter in torch's orientation, or one entry of its first axis."""
        stored = self._stored[name]
        parts = []
        for part in stored.parts:
            tensor = torch.frombuffer(bytearray(part.data), dtype=DTYPES[part.dtype]).reshape(part.shape)
            parts.append(tensor.T if stored.is_transposed else tensor)
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return whole if row is None else whole[row]

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Read one parameter into `out`."""
        out.copy_(self.read(name, row=row))


def read_metadata(path: Path) -> dict[str, str]:
    """Return the file's metadata (ModelProto.metadata_props)."""
    metadata = {}
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for number, value in fields(content):
            if number == 14 and isinstance(value, memoryview):
                words = {
                    key: str(part, "utf-8") for key, part in fields(value) if isinstance(part, memoryview)
                }
                metadata[words[1]] = words.get(2, "")
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not an ONNX file ({error})") from None
    return metadata


def name_parameters(initialisers: dict[str, Initialiser], nodes: list[Node]) -> dict[str, Stored]:
    """Give every stored matrix its parameter's name, without the exporter's prefix."""
    named = {
        name.removeprefix("model."): Stored((initialiser,))
        for name, initialiser in initialisers.items()
        if not name.startswith("onnx::") and initialiser.dtype in DTYPES
    }
    for node in nodes:
        scope = re.fullmatch(r"/?(.+)/MatMul", node.name)
        if node.op == "MatMul" and scope and node.inputs[1] in initialisers:
            matrix = initialisers[node.inputs[1]]
            if len(matrix.shape) == 2 and matrix.name.startswith("onnx::"):
                named[scope[1].replace("/", ".") + ".weight"] = Stored((matrix,), is_transposed=True)
    positions = find_positions(initialisers, nodes)
    if "pos_embed" not in named and positions:
        named["pos_embed"] = Stored(positions)
    return named


def find_positions(initialisers: dict[str, Initialiser], nodes: list[Node]) -> tuple[Initialiser, ...]:
    """Locate the table that a Resize node resamples, and the class token's slot that is prepended to it again."""
    made_by = {output: node for node in nodes for output in node.outputs}
    used_by: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.inputs:
            used_by.setdefault(name, []).append(node)
    resize = next((node for node in nodes if node.op == "Resize"), None)
    if resize is None:
        return ()
    name = resize.inputs[0]
    while name in made_by and made_by[name].op in ("Transpose", "Reshape", "Cast", "Identity"):
        name = made_by[name].inputs[0]
    table = initialisers.get(name)
    if table is None or len(table.shape) != 3:
        return ()
    name = resize.outputs[0]
    while True:
        following = [
            n for n in used_by.get(name, []) if n.op in ("Transpose", "Reshape", "Cast", "Concat", "Flatten")
        ]
        if not following:
            return (table,)
        if following[0].op == "Concat":
            slot = following[0].inputs[0]
            while slot in made_by and made_by[slot].op in ("Identity", "Cast", "Unsqueeze"):
                slot = made_by[slot].inputs[0]
            # Equal tensors are stored once: the slot may be the class token itself.
            return (initialisers[slot], table) if slot in initialisers else (table,)
        name = following[0].outputs[0]


def describe(nodes: list[Node]) -> dict[str, str]:
    """Return the numerics that the graph reveals: its GELU and how it resamples positions."""
    operations = {node.op for node in nodes}
    told = {"format": "onnx"}
    if "Erf" in operations or "Tanh" in operations:
        told["gelu"] = "erf" if "Erf" in operations else "tanh"
    for node in nodes:
        if node.op == "Resize":
            told["resize"] = {"linear": "bilinear", "cubic": "bicubic"}.get(node.words.get("mode", ""), "")
    return told


def spec_of(stored: Stored, *, name: str, path: Path) -> Spec:
    """Return shape and type, after a check that all bytes are present."""
    for part in stored.parts:
        spec = Spec(part.shape, DTYPES[part.dtype])
        if len(part.data) != spec.num_bytes:
            raise CheckpointError(
                f"{path} is truncated: its tensor {name} of {spec} needs {spec.num_bytes:,} bytes and has "
                f"{len(part.data):,}"
            )
    first = stored.parts[0]
    shape = first.shape[::-1] if stored.is_transposed else first.shape
    if len(stored.parts) > 1:
        shape = (shape[0], sum(part.shape[1] for part in stored.parts), *shape[2:])
    return Spec(shape, DTYPES[first.dtype])


def read_graph(content: memoryview) -> tuple[dict[str, Initialiser], list[Node]]:
    """Return the stored tensors and the operations of a ModelProto."""
    initialisers, nodes = {}, []
    for number, value in fields(content):
        if number != 7 or not isinstance(value, memoryview):  # ModelProto.graph
            continue
        for part, inner in fields(value):
            if part == 1 and isinstance(inner, memoryview):  # GraphProto.node
                nodes.append(read_node(inner))
            elif part == 5 and isinstance(inner, memoryview):  # GraphProto.initializer
                initialiser = read_initialiser(inner)
                initialisers[initialiser.name] = initialiser
    return initialisers, nodes


def read_initialiser(content: memoryview) -> Initialiser:
    """Read a TensorProto: dims 1, data_type 2, float_data 4, name 8, raw_data 9."""
    initialiser, dims = Initialiser(), []
    for number, value in fields(content):
        if isinstance(value, memoryview):
            if number == 8:
                initialiser.name = str(value, "utf-8")
            elif number in (4, 9):
                initialiser.data = value
            elif number == 1:
                dims += unpack_varints(value)
        elif number == 1:
            dims.append(value)
        elif number == 2:
            initialiser.dtype = value
    initialiser.shape = tuple(dims)
    return initialiser


def read_node(content: memoryview) -> Node:
    """Read a NodeProto: input 1, output 2, name 3, op_type 4, attribute 5 (name 1, s 4)."""
    node, inputs, outputs, words = Node(), [], [], {}
    for number, value in fields(content):
        if not isinstance(value, memoryview):
            continue
        if number == 5:
            parts = {key: inner for key, inner in fields(value) if isinstance(inner, memoryview)}
            if 1 in parts and 4 in parts:
                words[str(parts[1], "utf-8")] = str(parts[4], "utf-8", "replace")
            continue
        text = str(value, "utf-8", "replace")
        if number == 1:
            inputs.append(text)
        elif number == 2:
            outputs.append(text)
        elif number == 3:
            node.name = text
        elif number == 4:
            node.op = text
    node.inputs, node.outputs, node.words = tuple(inputs), tuple(outputs), words
    return node


def fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (number, value) of every field of a protobuf message; numbers as int, the rest as bytes."""
    at = 0
    while at < len(content):
        key, at = read_varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(content, at)
            yield number, value
            continue
        if kind == BYTES:
            count, at = read_varint(content, at)
        elif kind in (FIXED32, FIXED64):
            count = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + count > len(content):
            raise ValueError(f"a field of {count:,} bytes goes beyond the end")
        yield number, content[at : at + count]
        at += count


def read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at `at` and the byte after it."""
    value = 0
    for i in range(MAX_VARINT_BYTES):
        byte = content[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if not byte & 0x80:
            return value, at + i + 1
    raise ValueError(f"a number at byte {at} has no end")


def unpack_varints(content: memoryview) -> list[int]:
    """Read packed numbers."""
    at, values = 0, []
    while at < len(content):
        value, at = read_varint(content, at)
        values.append(value)
    return values
