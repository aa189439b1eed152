"""Triton's Python backend: files of images in, logits and features out.

Needs in the server's container: pip install numpy pillow onnxruntime
"""

import io
import json
import math
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps

MODES = {1: "L", 3: "RGB"}
ORIENTATION_TAG = 0x0112
MAX_PIXELS = 50_000_000
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")


class TritonPythonModel:
    """The class that Triton creates once per instance."""

    def initialize(self, args):
        """Open the graph and the record of its preprocessing, which lie beside this file."""
        folder = Path(args["model_repository"]) / args["model_version"]
        self.preprocess = json.loads((folder / "preprocess.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        # Threads that spin between two calls take the cores from the decoding.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in self.session.get_outputs()]

    def execute(self, requests):
        """Answer requests together: one run of the graph for all images that can be read."""
        pixels, owners, problems = [], [], {}
        for number, request in enumerate(requests):
            given = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().ravel()
            try:
                prepared = [prepare(bytes(data), self.preprocess) for data in given]
            except (
                Exception
            ) as error:  # Pillow raises exceptions of any kind on damage; other requests continue
                problems[number] = f"an image cannot be read: {error}"
                continue
            pixels += prepared
            owners += [number] * len(prepared)
        outputs = self.run(pixels) if pixels else {}
        return [respond(number, problems, outputs, np.array(owners)) for number in range(len(requests))]

    def run(self, pixels):
        """Map the model's inputs (C, height, width) to its outputs by name, a row per image."""
        rows = self.session.run(None, {"pixels": np.stack(pixels)})
        return dict(zip(self.names, rows, strict=True))


def respond(number, problems, outputs, owners):
    """Return the rows of one request, or its problem."""
    if number in problems:
        return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(problems[number]))
    rows = owners == number
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, values[rows]) for name, values in outputs.items()]
    )


def prepare(data, preprocess):
    """Turn the file of an image into the model's input (C, height, width)."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it has {image.width} x {image.height} pixels; the limit is {MAX_PIXELS}")
        draft(image, resize_size(preprocess))
        upright = ImageOps.exif_transpose(plain(image, MODES[len(preprocess["mean"])]))
    image = resized(upright, preprocess)
    pixels = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1)
    mean, std = (np.array(preprocess[name], dtype=np.float32) * 255 for name in ("mean", "std"))
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1), dtype=np.float32)


def resize_size(preprocess):
    """Return the height and width of the resized image, before the centre is cropped."""
    return [math.floor(side / preprocess["crop_fraction"] + 1e-6) for side in preprocess["size"]]


def draft(image, size):
    """Decode a large JPEG at a half, a quarter or an eighth of its size, at least twice as large as needed."""
    rows, columns = (2 * side for side in size)
    if image.getexif().get(ORIENTATION_TAG, 1) >= 5:
        rows, columns = columns, rows
    for factor in (8, 4, 2):
        if image.height // factor >= rows and image.width // factor >= columns:
            image.draft(None, (image.width // factor, image.height // factor))
            return


def plain(image, mode):
    """Convert colours: 16 bits are scaled, alpha is on white, an animation gives its first frame."""
    exif = image.getexif()
    if image.mode.startswith("I"):
        levels = np.rint(np.asarray(image).clip(0, 65535) / 257).astype(np.uint8)
        made = Image.fromarray(levels).convert(mode)
    elif image.has_transparency_data:
        layered = image.convert("RGBA")
        made = Image.alpha_composite(Image.new("RGBA", layered.size, (255, 255, 255, 255)), layered)
        made = made.convert("RGB").convert(mode)
    else:
        made = image.convert(mode)
    made.getexif().update(exif)  # exif_transpose reads the orientation from it
    return made


def resized(image, preprocess):
    """Resize by the rule and crop the centre: of a large image only the part that is kept."""
    height, width = preprocess["size"]
    rows, columns = resize_size(preprocess)
    if preprocess["rule"] == "shorter":
        if image.height * columns <= image.width * rows:
            columns = max(columns, int(rows * image.width / image.height))
        else:
            rows = max(rows, int(columns * image.height / image.width))
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    down, across = image.height / rows, image.width / columns
    box = (
        left * across,
        top * down,
        min((left + width) * across, image.width),
        min((top + height) * down, image.height),
    )
    resampling = getattr(Image.Resampling, preprocess["interpolation"].upper())
    return image.resize((width, height), resampling, box=box)
