"""`vitrine.load`: from any source of weights to a model, its preprocessing and its classes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrine.checkpoints.opening import Opened, adapt, open_weights
from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile, Verifier
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.weights import fill_model
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import Model
from vitrine.models.sizes import ImageSize, InputShape, as_shape, as_size, shown
from vitrine.runtime.progress import notice
from vitrine.runtime.result import abbreviated, html_table, is_empty


@dataclass(frozen=True, kw_only=True, repr=False)
class Loaded:
    """A model with its preprocessing, classes and record."""

    model: Model
    """Maps normalised images (B, C, height, width) to logits (B, K)."""
    preprocess: Preprocess
    """Turns a picture into the model's input."""
    classes: tuple[str, ...] | None
    """The classes' names in the order of the logits, where they are known."""
    record: Record
    notes: tuple[str, ...] = ()
    """Assumptions and adaptations, one sentence each."""
    folder: Path | None = None
    """Folder of the files beside the weights; None without any, or if the model was adapted."""

    def __repr__(self) -> str:
        return f"Loaded({', '.join(f'{name}={text}' for name, text in self.summary())})"

    def _repr_html_(self) -> str:
        return html_table("Loaded", self.summary())

    def summary(self) -> list[tuple[str, str]]:
        """Return the facts about the model, each as a name and a short value."""
        config = self.model.config
        facts: dict[str, object] = {
            "model": self.record.variant or type(self.model).__name__,
            "image_size": config.image_size,
            "channels": config.channels,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "num_classes": config.num_classes,
            "classes": self.classes,
            "layout": self.record.layout,
            "notes": self.notes,
        }
        return [(name, abbreviated(value)) for name, value in facts.items() if not is_empty(value)]


def load(
    source: str | Path,
    *,
    num_classes: int | None = None,
    image_size: ImageSize = None,
    patch_size: int | None = None,
    max_patches: int | None = None,
    channels: int | None = None,
    features_only: bool = False,
    new_head: bool = False,
    num_heads: int | None = None,
    options: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
) -> Loaded:
    """Load a model from a file, folder, run folder, hub id, URL or variant's name, ready for evaluation.

    Another `num_classes` gets a new head of zeros (with `new_head` as many classes too), another `image_size`
    resampled positions, another `patch_size` a resized patch embedding (FlexiViT), other `channels` an adapted first
    kernel; `notes` lists these changes. `max_patches` keeps the aspect ratio of pictures, with at most that many
    patches each. `features_only` removes the head. `options` gives fields of the config that a file does not record,
    such as `{"num_heads": (1, 2, 5, 8)}` for a PVT; `num_heads` alone is a ViT's. `revision` is the hub's.
    """
    shape = as_shape(image_size)
    size = None if shape.size is None else as_size(shape.size)
    patch = shape.patch if patch_size is None else patch_size
    # A size that other patches tile may not be one that the file's own tile.
    asked = size if patch is None else None
    opened = open_weights(source, image_size=asked, num_heads=num_heads, options=options, revision=revision)
    return load_opened(
        opened,
        num_classes=num_classes,
        shape=InputShape(
            size=size, patch=patch, max_patches=shape.max_patches if max_patches is None else max_patches
        ),
        channels=channels,
        features_only=features_only,
        new_head=new_head,
        dtype=dtype,
    )


def load_opened(
    opened: Opened,
    *,
    num_classes: int | None = None,
    shape: InputShape,
    channels: int | None = None,
    features_only: bool = False,
    new_head: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Loaded:
    """Load weights that were opened before, with the changes that `load` makes."""
    changed = adapt(
        opened,
        num_classes=num_classes,
        image_size=None if shape.size is None else as_size(shape.size),
        channels=channels,
        features_only=features_only,
        new_head=new_head,
        patch=shape.patch,
        max_patches=shape.max_patches,
    )
    model = filled(changed, dtype=dtype)
    notes = (*changed.notes, *zero_head_note(model, num_classes=num_classes))
    for note in notes:
        notice(note)
    record = changed.record
    return Loaded(
        model=model,
        preprocess=record.preprocess,
        classes=record.classes,
        record=record,
        notes=notes,
        folder=opened.folder if changed.weights is opened.weights else None,
    )


def class_names(loaded: Loaded) -> tuple[str, ...]:
    """Return the names of a model's classes; `class 0` and so on if they are unknown."""
    if loaded.classes:
        return loaded.classes
    return tuple(f"class {number}" for number in range(loaded.model.config.num_classes or 0))


def as_squares(loaded: Loaded, *, purpose: str) -> Loaded:
    """Return the same model with pictures of one size, if it keeps their aspect ratio, with a notice."""
    preprocess = loaded.preprocess
    if preprocess.max_patches is None:
        return loaded
    notice(
        f"{purpose} takes pictures of one size: {shown(preprocess.size)} px in place of their own aspect ratio"
    )
    preprocess = preprocess.with_size(preprocess.size)
    return dataclasses.replace(
        loaded, preprocess=preprocess, record=dataclasses.replace(loaded.record, preprocess=preprocess)
    )


def filled(opened: Opened, *, dtype: torch.dtype) -> Model:
    """Build the model and read its weights; tensors whose checksums are known are compared with them."""
    if not opened.checksums or not isinstance(opened.file, SafetensorsFile):
        return fill_model(opened.weights, dtype=dtype)
    verifier = opened.file.verifier = Verifier(opened.checksums.get("crc32", {}), path=opened.file.path)
    model = fill_model(opened.weights, dtype=dtype)
    verifier.finish()
    return model


def zero_head_note(model: Model, *, num_classes: int | None) -> tuple[str, ...]:
    """Report a head of zeros that nobody requested."""
    head = model.head
    if (
        head is None
        or num_classes is not None
        or head.weight.count_nonzero()
        or (head.bias != head.bias[0]).any()
    ):
        return ()
    return (
        f"the head for {model.config.num_classes} classes is all zeros, as in the official ImageNet-21k files: its "
        "logits are meaningless, its features are complete; set num_classes to train a new one",
    )
