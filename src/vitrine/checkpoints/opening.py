"""Locate weights and recognise their layout, config, preprocessing and classes, before a tensor is read."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.checkpoints.adapters import adapted, is_adapter_folder, read_adapter
from vitrine.checkpoints.adapting import (
    Changed,
    at_image_size,
    at_patch_size,
    with_channels,
    with_num_classes,
)
from vitrine.checkpoints.layouts import Configured, Hints, Layout, detect
from vitrine.checkpoints.layouts.prefixed import PrefixedFile
from vitrine.checkpoints.licences import licence_note
from vitrine.checkpoints.locating import find
from vitrine.checkpoints.reading import open_tensors
from vitrine.checkpoints.reconciling import is_saved_elsewhere, reconcile
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.sidecars import Sidecars, read_sidecars
from vitrine.checkpoints.tensors import TensorFile
from vitrine.checkpoints.weights import ModelWeights, Weights, map_weights
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError, MissingCheckpointError
from vitrine.models import ModelConfig, ViTConfig, create_model
from vitrine.models.config import with_options
from vitrine.models.families import untold_options
from vitrine.models.packed import require_packable
from vitrine.spelling import counted


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Weights that have been located and recognised, but not read."""

    weights: Weights
    record: Record
    notes: tuple[str, ...]
    file: TensorFile | None = None
    checksums: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    """Folder of the small files that go with the weights."""


def open_weights(
    source: str | Path,
    *,
    image_size: tuple[int, int] | None = None,
    num_heads: int | None = None,
    options: Mapping[str, Any] | None = None,
    revision: str | None = None,
) -> Opened:
    """Locate weights and recognise layout, config, preprocessing and classes. No tensor is read yet."""
    stated = {
        name: tuple(value) if isinstance(value, list) else value for name, value in (options or {}).items()
    }
    heads = stated.get("num_heads", num_heads)
    if is_adapter_folder(source):
        return open_adapted(source, image_size=image_size, options=stated, revision=revision)
    place = find(source, revision=revision)
    if isinstance(place, str):
        return fresh(place, image_size=image_size, options=stated)
    file = open_tensors(place.weights)
    beside = read_sidecars(place.folder, file.metadata)
    file, layout = detect(file, config=beside.record.config if beside.record else None)
    hints = Hints(
        path=place.weights,
        image_size=beside.image_size,
        asked_size=image_size,
        num_heads=heads if isinstance(heads, int) else None,
        options=stated,
        settings=beside.settings,
        metadata=file.metadata,
    )
    if beside.record is None:
        configured = understand(layout, file.index, hints)
        record, assumed = foreign_record(layout, configured, beside)
        notes = (*configured.notes, *assumed)
    else:
        is_foreign = is_saved_elsewhere(file, beside.settings, beside.record)
        shown = understand(layout, file.index, hints_of(beside.record, hints)).config if is_foreign else None
        record, notes = reconcile(beside.record, shown, layout=layout, beside=beside)
        record = dataclasses.replace(record, config=with_stated(record.config, stated, path=hints.path))
    if isinstance(file, PrefixedFile):
        skipped = f"; {counted(file.num_skipped, 'other tensor')} skipped" if file.num_skipped else ""
        notes = (*notes, f"the model is {file.prefix.rstrip('.')} in the file{skipped}")
    weights = map_weights(file, layout, record.config)
    sums = record.checksums.get(place.weights.name, {})
    return Opened(weights=weights, record=record, notes=notes, file=file, checksums=sums, folder=place.folder)


def open_adapted(
    source: str | Path,
    *,
    image_size: tuple[int, int] | None,
    options: Mapping[str, Any],
    revision: str | None,
) -> Opened:
    """Open the weights that an adapter was trained on, with the adapter merged into them."""
    adapter = read_adapter(source)
    try:
        base = open_weights(adapter.base, image_size=image_size, options=options, revision=revision)
    except MissingCheckpointError as error:
        raise CheckpointError(
            f"{source} is an adapter for {adapter.base}, which cannot be opened ({error}); put the model there, or "
            "correct base_model_name_or_path in adapter_config.json"
        ) from None
    size, patch = image_size, None
    if adapter.record is not None:
        config = adapter.record.config
        size = size or config.image_size
        if isinstance(config, ViTConfig) and config.patch_size != getattr(
            base.weights.config, "patch_size", None
        ):
            patch = config.patch_size[0]
    if patch is not None or (size is not None and size != base.weights.config.image_size):
        base = adapt(base, num_classes=None, image_size=size, channels=None, features_only=False, patch=patch)
    weights = adapted(base.weights, adapter)
    record = dataclasses.replace(adapter.record or base.record, config=weights.config)
    if adapter.record is None and weights.config.num_classes != base.weights.config.num_classes:
        record = dataclasses.replace(record, classes=None)
    note = f"adapter of {counted(len(adapter.factors), 'layer')} merged into {adapter.base}"
    return Opened(weights=weights, record=record, notes=(*base.notes, note), folder=adapter.folder)


def hints_of(record: Record, hints: Hints) -> Hints:
    """Complete the files' own settings with those of the record."""
    stated = hints.settings.get("num_attention_heads")
    recorded = untold_options(record.config)
    if stated:
        recorded["num_heads"] = stated
    return dataclasses.replace(
        hints,
        num_heads=hints.num_heads or recorded.get("num_heads"),
        options={**recorded, **hints.options},
        image_size=hints.image_size or record.config.image_size,
    )


def understand(layout: Layout, index: object, hints: Hints) -> Configured:
    """Read a config; name the file if no model can be built from it."""
    try:
        configured = layout.configure(index, hints)  # type: ignore[arg-type]
    except ConfigError as error:
        raise CheckpointError(f"cannot build a model from {hints.path}: {error}") from None
    except IndexError:
        raise CheckpointError(
            f"cannot build a model from {hints.path}: a tensor has fewer axes than in {layout.name}"
        ) from None
    config = with_stated(configured.config, hints.options, path=hints.path)
    return dataclasses.replace(configured, config=config)


def with_stated(config: ModelConfig, options: Mapping[str, Any], *, path: Path) -> ModelConfig:
    """Change a config as the user says; name the file if no model can be built then."""
    try:
        return with_options(config, dict(options))
    except ConfigError as error:
        raise CheckpointError(f"cannot build a model from {path}: {error}") from None


def fresh(name: str, *, image_size: tuple[int, int] | None, options: Mapping[str, Any]) -> Opened:
    """Create a variant with random weights, with a note."""
    model = create_model(name, image_size=image_size, **options)
    config = model.config
    preprocess = Preprocess(
        size=config.image_size, mean=(0.5,) * config.channels, std=(0.5,) * config.channels
    )
    note = f"{name} has fresh weights: it is not trained"
    record = Record(config=config, preprocess=preprocess, layout="fresh")
    return Opened(weights=ModelWeights(model), record=record, notes=(note,))


def foreign_record(
    layout: Layout, configured: Configured, beside: Sidecars
) -> tuple[Record, tuple[str, ...]]:
    """Build the record of a foreign file: its own preprocessing and classes, or the layout's defaults."""
    config, notes = configured.config, []
    preprocess = beside.preprocess
    if preprocess is None:
        preprocess = layout.preprocess(config)
        notes.append(f"no preprocessing beside the weights; using the usual one of {layout.name}")
    if preprocess.channels != config.channels:
        preprocess = fit_channels(preprocess, config.channels)
    classes = beside.classes
    if classes is not None and len(classes) != config.num_classes:
        if config.num_classes is not None:
            notes.append(f"{len(classes)} class names beside a head for {config.num_classes} were skipped")
        classes = None
    licence = licence_note(beside.licence, layout=layout.name)
    if licence:
        notes.append(licence)
    record = Record(
        config=config, preprocess=preprocess, classes=classes, licence=beside.licence, layout=layout.name
    )
    return record, tuple(notes)


def adapt(
    opened: Opened,
    *,
    num_classes: int | None,
    image_size: tuple[int, int] | None,
    channels: int | None,
    features_only: bool,
    new_head: bool = False,
    patch: int | None = None,
    max_patches: int | None = None,
) -> Opened:
    """Adapt weights, preprocessing and classes to the request; each change adds a sentence."""
    if features_only and num_classes is not None:
        raise ConfigError(
            f"features_only removes the head, num_classes={num_classes} adds one; pass only one of them"
        )
    weights, record, notes = opened.weights, opened.record, list(opened.notes)

    def change(changed: Changed) -> Weights:
        if changed[1]:
            notes.append(changed[1])
        return changed[0]

    if channels is not None and channels != weights.config.channels:
        weights = change(with_channels(weights, channels))
        record = dataclasses.replace(record, preprocess=fit_channels(record.preprocess, channels))
    if patch is not None and (patch, patch) != getattr(weights.config, "patch_size", None):
        weights = change(at_patch_size(weights, patch, image_size=image_size))
        record = dataclasses.replace(record, preprocess=with_patch(record.preprocess, weights.config))
    if image_size is not None:
        if image_size != weights.config.image_size:
            weights = change(at_image_size(weights, image_size))
        record = dataclasses.replace(record, preprocess=record.preprocess.with_size(image_size))
    if max_patches is not None:
        record = dataclasses.replace(
            record, preprocess=at_native_aspect(record.preprocess, weights.config, max_patches)
        )
    if features_only and weights.config.num_classes is not None:
        weights = change(with_num_classes(weights, None))
        record = dataclasses.replace(record, classes=None)
    if num_classes is not None and (new_head or num_classes != weights.config.num_classes):
        weights = change(with_num_classes(weights, num_classes))
        record = dataclasses.replace(record, classes=None)
    record = dataclasses.replace(record, config=weights.config)
    return dataclasses.replace(opened, weights=weights, record=record, notes=tuple(notes))


def with_patch(preprocess: Preprocess, config: ModelConfig) -> Preprocess:
    """Return the preprocessing of a model with other patches."""
    assert isinstance(config, ViTConfig)
    patch = None if preprocess.patch is None else config.patch_size
    return dataclasses.replace(preprocess, size=config.image_size, patch=patch)


def at_native_aspect(preprocess: Preprocess, config: ModelConfig, max_patches: int) -> Preprocess:
    """Return the preprocessing that keeps the aspect ratio of pictures, with at most `max_patches` each."""
    require_packable(config)
    assert isinstance(config, ViTConfig)
    return dataclasses.replace(preprocess, max_patches=max_patches, patch=config.patch_size)


def fit_channels(preprocess: Preprocess, channels: int) -> Preprocess:
    """Repeat mean and deviation for other channels; a single channel gets their averages."""

    def fitted(values: tuple[float, ...]) -> tuple[float, ...]:
        if channels == 1:
            return (sum(values) / len(values),)
        return tuple(values[i % len(values)] for i in range(channels))

    return dataclasses.replace(preprocess, mean=fitted(preprocess.mean), std=fitted(preprocess.std))
