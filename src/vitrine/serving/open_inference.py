"""The Open Inference Protocol, version 2: requests and responses, as KServe and Triton send and expect them.

A request is JSON, or with the binary extension JSON followed by the tensors' bytes; the header
`Inference-Header-Content-Length` is the length of the JSON. Tensors are little-endian and row by row; each element of
BYTES has its length before it, in four bytes.

A model reads `image` (BYTES, one file per image) or `pixels` (FP32, normalised), and answers with the outputs below.
"""

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.serving.admission import RefusedError

HEADER = "inference-header-content-length"
IMAGE, PIXELS = "image", "pixels"
LENGTH_BYTES = 4
BAD_REQUEST = 400
EXTENSIONS = ("binary_tensor_data", "model_repository")
OUTPUTS = ("logits", "probabilities", "label", "embedding", "familiarity")
ALWAYS = ("logits", "probabilities", "label")
"""Outputs of a request that names none."""
EXPLAINED = "see /v2/models/NAME for the inputs and outputs of a model"


@dataclass(frozen=True, kw_only=True)
class InferenceRequest:
    """One request: encoded images or normalised pixels, and the outputs that it wants."""

    id: str | None
    images: tuple[bytes, ...] | None
    pixels: NDArray[np.float32] | None
    """(B, C, height, width); None where `images` are given."""
    outputs: Mapping[str, bool]
    """By name, whether its bytes follow the JSON."""


def parse_request(body: bytes, header_length: str | None) -> InferenceRequest:
    """Read a request; refuse, in one sentence, what the protocol does not allow."""
    if header_length == "0":  # the raw form of the extension: the body is the one image
        return InferenceRequest(id=None, images=(body,), pixels=None, outputs=dict.fromkeys(ALWAYS, False))
    size = _header_size(header_length, len(body))
    try:
        request = json.loads(body[:size])
    except (ValueError, RecursionError):
        raise bad("the request is not JSON") from None
    if not isinstance(request, dict):
        raise bad("the request is not a JSON object")
    inputs = request.get("inputs")
    if not (isinstance(inputs, list) and len(inputs) == 1 and isinstance(inputs[0], dict)):
        raise bad(f"a request has exactly one input, {IMAGE} or {PIXELS}; {EXPLAINED}")
    [given] = inputs
    data = _raw(given, body[size:])
    name = given.get("name")
    if name not in (IMAGE, PIXELS):
        raise bad(f"no input is called {str(name)[:80]!r}; the inputs are {IMAGE} and {PIXELS}")
    images = _images(given, data) if name == IMAGE else None
    pixels = _pixels(given, data) if name == PIXELS else None
    identifier = request.get("id")
    return InferenceRequest(
        id=identifier if isinstance(identifier, str) else None,
        images=images,
        pixels=pixels,
        outputs=_wanted(request),
    )


def write_response(
    *, model: str, request: InferenceRequest, outputs: Mapping[str, NDArray[Any] | Sequence[str]]
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON where bytes follow it."""
    described, parts = [], []
    for name, values in outputs.items():
        is_text = not isinstance(values, np.ndarray)
        datatype, shape = "BYTES" if is_text else "FP32", list(np.shape(values))
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if request.outputs[name]:
            data = values.astype("<f4").tobytes() if isinstance(values, np.ndarray) else bytes_of(values)
            output["parameters"] = {"binary_data_size": len(data)}
            parts.append(data)
        else:
            output["data"] = list(values) if is_text else np.asarray(values, dtype=float).ravel().tolist()
        described.append(output)
    answer: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": described}
    if request.id is not None:
        answer["id"] = request.id
    text = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([text, *parts]), len(text) if parts else None


def bytes_of(texts: Sequence[str]) -> bytes:
    """Write elements of BYTES, each after its length."""
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def bad(sentence: str) -> RefusedError:
    """Refuse a request that is not as the protocol wants it."""
    return RefusedError(BAD_REQUEST, sentence)


def _header_size(length: str | None, total: int) -> int:
    if length is None:
        return total
    if not (length.isdecimal() and len(length) < 12 and int(length) <= total):
        raise bad(f"{HEADER} must be at most the {total} bytes of the request, got {length[:20]!r}")
    return int(length)


def _raw(given: dict[str, Any], rest: bytes) -> bytes | None:
    """Return the bytes of the input that follow the JSON; None where its data is inside."""
    parameters = given.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        if rest:
            raise bad(f"{len(rest)} bytes follow the JSON, but the input has no binary_data_size")
        return None
    if size != len(rest):
        raise bad(f"binary_data_size is {str(size)[:20]}, but {len(rest)} bytes follow the JSON")
    return rest


def _images(given: dict[str, Any], data: bytes | None) -> tuple[bytes, ...]:
    if given.get("datatype") != "BYTES":
        raise bad(f"{IMAGE} has the datatype BYTES, got {str(given.get('datatype'))[:20]!r}")
    if data is None:
        texts = given.get("data")
        if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
            raise bad(f"the data of {IMAGE} is a list of images in base64")
        try:
            images = tuple(base64.b64decode(text, validate=True) for text in texts)
        except (binascii.Error, ValueError):
            raise bad(f"the data of {IMAGE} is not base64; or send bytes by the binary extension") from None
    else:
        images = _elements(data)
    if _count(given.get("shape")) != len(images):
        raise bad(f"{IMAGE} holds {len(images)} images, but its shape is {str(given.get('shape'))[:60]}")
    return images


def _elements(data: bytes) -> tuple[bytes, ...]:
    elements, at = [], 0
    while at < len(data):
        end = at + LENGTH_BYTES
        size = int.from_bytes(data[at:end], "little")
        if end + size > len(data):
            raise bad(f"an element of {IMAGE} has {size} bytes, more than follow")
        elements.append(data[end : end + size])
        at = end + size
    if not elements:
        raise bad(f"{IMAGE} is empty")
    return tuple(elements)


def _count(shape: object) -> int | None:
    """Return the number of elements of a shape; None if it is not a valid shape."""
    if not (isinstance(shape, list) and shape and all(type(side) is int and side > 0 for side in shape)):
        return None
    count = 1
    for side in shape:
        count *= side
    return count


def _pixels(given: dict[str, Any], data: bytes | None) -> NDArray[np.float32]:
    if given.get("datatype") != "FP32":
        raise bad(f"{PIXELS} has the datatype FP32, got {str(given.get('datatype'))[:20]!r}")
    shape = given.get("shape")
    count = _count(shape)
    if data is None:
        try:
            values = np.asarray(given.get("data"), dtype=np.float32).ravel()
        except (TypeError, ValueError):
            raise bad(f"the data of {PIXELS} is not a list of numbers") from None
    elif len(data) % 4:
        raise bad(f"{PIXELS} has {len(data)} bytes, which is not a multiple of the 4 bytes of an FP32 value")
    else:
        values = np.frombuffer(data, dtype="<f4")
    if count != len(values):
        raise bad(f"{PIXELS} holds {len(values)} numbers, but its shape is {str(shape)[:60]}")
    if not np.isfinite(values).all():
        raise bad(f"{PIXELS} contains NaN or infinity")
    assert isinstance(shape, list)
    return values.reshape(shape).astype(np.float32)


def _wanted(request: dict[str, Any]) -> dict[str, bool]:
    parameters = request.get("parameters")
    in_binary = bool(parameters.get("binary_data_output")) if isinstance(parameters, dict) else False
    outputs = request.get("outputs")
    if not outputs:
        return dict.fromkeys(ALWAYS, in_binary)
    if not (isinstance(outputs, list) and all(isinstance(one, dict) for one in outputs)):
        raise bad(f"outputs must be a list of objects with a name; {EXPLAINED}")
    wanted = {}
    for one in outputs:
        if one.get("name") not in OUTPUTS:
            raise bad(f"no output is called {str(one.get('name'))[:80]!r}; there are {', '.join(OUTPUTS)}")
        own = one.get("parameters")
        wanted[one["name"]] = bool(own.get("binary_data", in_binary)) if isinstance(own, dict) else in_binary
    return wanted
