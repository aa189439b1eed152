"""Masks and boxes of an upload, as /locate returns them: the class of every pixel, or objects with boxes or masks.

Shapes: H x W pixels of the picture, K classes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.decoding.annotation import Map
from vitrine.data.decoding.image_file import Pixels, read_facts
from vitrine.data.decoding.mask_file import as_palette, background_of, class_colours
from vitrine.data.decoding.mask_planes import mask_in
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.evaluation.box_predictions import boxes_of_read, fitted
from vitrine.evaluation.objects import BoxPrediction
from vitrine.evaluation.outputs import casting
from vitrine.evaluation.pixel_predictions import covering
from vitrine.evaluation.reading_ahead import ReadPicture
from vitrine.models.dense.config import DenseConfig
from vitrine.models.dense.windows import class_maps
from vitrine.serving.predictor import Predictor

# Masks of larger pictures are scaled down, because computing one takes four bytes per pixel and class.
MOST_MASK_PIXELS = 2**21
WINDOWS_AT_ONCE = 2


def locate_request(data: bytes, preprocess: Preprocess, *, has_objects: bool, max_pixels: int) -> ReadPicture:
    """Decode one upload to the model's input, with the size of the picture."""
    pixels: Pixels = preprocess.decode(data, name="the picture", max_pixels=max_pixels)
    facts = read_facts(data, name="the picture", max_pixels=max_pixels)
    resize = fitted if has_objects else covering
    return ReadPicture(index=0, resized=resize(pixels, preprocess), size=(facts.height, facts.width))


def locate(predictor: Predictor, pictures: Sequence[ReadPicture]) -> list[dict[str, Any]]:
    """Return masks or boxes of pictures as plain values."""
    config = predictor.model.config
    assert isinstance(config, DenseConfig)
    with torch.no_grad(), casting(predictor.device, predictor.precision):
        if config.answers != "masks":
            scaled = [replace(one, size=mask_size(one.size)) for one in pictures]
            predictions = boxes_of_read(
                predictor.model, scaled, predictor.preprocess, device=predictor.device, config=config
            )
            return [
                described_objects(prediction, predictor, one.size)
                for prediction, one in zip(predictions, pictures, strict=True)
            ]
        sizes = [mask_size(one.size) for one in pictures]
        images = [predictor.preprocess.normalise(resized_of(one).to(predictor.device)) for one in pictures]
        maps = class_maps(
            images, predictor.model, sizes=sizes, window=predictor.preprocess.size,
            most_windows=WINDOWS_AT_ONCE,
        )  # fmt: skip
    return [
        described_mask(classes.cpu().numpy(), predictor, one.size)
        for one, classes in zip(pictures, maps, strict=True)
    ]


def described_mask(classes: Map, predictor: Predictor, size: tuple[int, int]) -> dict[str, Any]:
    """Return a mask as a PNG of class numbers in colours, the background transparent, and the share of each class."""
    names = predictor.classes
    background, colours = background_of(names), class_colours(names)
    shares = np.bincount(classes.ravel(), minlength=len(names)) / classes.size
    image = as_palette(classes, colours)
    stored = io.BytesIO()
    clear = bytes(0 if number == background else 255 for number in range(len(names)))
    image.save(stored, "PNG", transparency=clear)
    return {
        "answers": "masks",
        "picture": list(size),
        "mask": {
            "png": base64.b64encode(stored.getvalue()).decode("ascii"),
            "size": list(classes.shape),
            "classes": [
                {
                    "label": names[number],
                    "number": number,
                    "share": float(f"{shares[number]:.6g}"),
                    "colour": "#{:02x}{:02x}{:02x}".format(*colours[number].tolist()),
                    "is_background": number == background,
                }
                for number in np.argsort(-shares, kind="stable").tolist()
                if shares[number]
            ],
        },
        "boxes": None,
    }


def described_objects(
    prediction: BoxPrediction, predictor: Predictor, size: tuple[int, int]
) -> dict[str, Any]:
    """Return objects with boxes in pixels of the picture, best first, and their masks if the model predicts any."""
    names, has_masks = predictor.classes, prediction.planes is not None
    # Boxes are coloured by class; masks each in a colour of its own.
    colours = class_colours((None, *names))[1:]
    enlarging = np.array([size[1] / prediction.size[1], size[0] / prediction.size[0]] * 2)
    objects = []
    for place, (box, label, score) in enumerate(
        zip(prediction.boxes, prediction.labels.tolist(), prediction.scores.tolist(), strict=True)
    ):
        colour = colours[(place if has_masks else label) % len(colours)]
        objects.append(
            {
                "label": names[label],
                "number": label,
                "score": float(f"{score:.5g}"),
                "box": [round(side, 1) for side in (box * enlarging).tolist()],
                "colour": "#{:02x}{:02x}{:02x}".format(*colour.tolist()),
                "mask": None
                if prediction.planes is None
                else mask_in_box(mask_in(prediction.planes, place), box, colour),
            }
        )
    return {
        "answers": "instances" if has_masks else "boxes",
        "picture": list(size),
        "mask": None,
        "boxes": objects,
    }


def mask_in_box(mask: NDArray[np.bool_], box: NDArray[np.float32], colour: NDArray[np.uint8]) -> str:
    """Return the part of a mask (H, W) in its box as a PNG in a colour, transparent elsewhere."""
    left, top, right, bottom = (int(side) for side in box)
    image = as_palette(
        mask[top:bottom, left:right].astype(np.uint8), np.stack([np.zeros_like(colour), colour])
    )
    stored = io.BytesIO()
    image.save(stored, "PNG", transparency=bytes([0, 255]))
    return base64.b64encode(stored.getvalue()).decode("ascii")


def mask_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of the mask of a picture: the picture's, or a smaller one of at most two million pixels."""
    factor = min((MOST_MASK_PIXELS / (size[0] * size[1])) ** 0.5, 1.0)
    return max(int(size[0] * factor), 1), max(int(size[1] * factor), 1)


def blank_request(preprocess: Preprocess) -> ReadPicture:
    """Return a picture without content, to measure the speed."""
    resized = torch.zeros(preprocess.channels, *preprocess.size, dtype=torch.uint8)
    return ReadPicture(index=0, resized=resized, size=preprocess.size)


def resized_of(picture: ReadPicture) -> Tensor:
    """Return the pixels of a picture that was read."""
    assert picture.resized is not None
    return picture.resized
