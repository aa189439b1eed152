"""`vitrine.save`: a model with its record to disk, in our format or another; atomically."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrine.checkpoints.adapting import with_slots, with_table
from vitrine.checkpoints.card import card
from vitrine.checkpoints.layouts import Generation, Layout, Target, layout_for
from vitrine.checkpoints.layouts.huggingface import HuggingFaceLayout, for_model
from vitrine.checkpoints.layouts.named import NamedLayout, takes_flat_patches
from vitrine.checkpoints.layouts.rules import Rule
from vitrine.checkpoints.layouts.t2t import T2TLayout
from vitrine.checkpoints.layouts.timm_naflex import TimmNaFlexLayout
from vitrine.checkpoints.library_settings import hugging_face_settings, label_settings, timm_settings
from vitrine.checkpoints.loading import Loaded
from vitrine.checkpoints.record import KEY, Record
from vitrine.checkpoints.tensors import TRUST_FILE, Spec
from vitrine.checkpoints.weights import ModelWeights, Weights, as_written, in_order, spec_of
from vitrine.checkpoints.writing import (
    refusing_in_words,
    write_json,
    write_npz,
    write_safetensors,
    write_text,
)
from vitrine.data.preparing.hf_preprocess import to_hf
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError, TryOption
from vitrine.models import Model, ModelConfig, ViTConfig
from vitrine.runtime.files import move_into_place, temporary_beside
from vitrine.runtime.progress import track

WEIGHTS = "model.safetensors"
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Weights in a target's layout, not yet written."""

    target: Target
    layout: Layout
    weights: Weights
    rules: list[Rule]
    record: Record
    notes: tuple[str, ...]


def save(
    model: Model | Loaded,
    destination: str | Path,
    *,
    preprocess: Preprocess | None = None,
    classes: tuple[str, ...] | list[str] | None = None,
    recipe: Mapping[str, Any] | None = None,
    measured: Mapping[str, Any] | None = None,
    calibration: Mapping[str, Any] | None = None,
    number: Mapping[str, Any] | None = None,
    licence: str | None = None,
    to: Target = "vitrine",
    generation: Generation = "A",
    overwrite: bool = False,
) -> Path:
    """Save a model, with its preprocessing and classes, as a folder (or, to npz, a file) that `load` reads.

    `to` is the layout: Hugging Face transformers reads `vitrine` directly if the model is a classic ViT. `generation`
    is that of an official .npz: A to D. `measured` is the accuracy for the model card: `accuracy`, `interval`,
    `num_images`; `licence` that of the weights that the model started from.
    """
    if isinstance(model, Loaded):
        record = model.record
        module = model.model
    else:
        channels = (0.5,) * model.config.channels
        usual = Preprocess(size=model.config.image_size, mean=channels, std=channels)
        record, module = Record(config=model.config, preprocess=usual), model
    changes: dict[str, Any] = {"config": module.config}
    if preprocess is not None:
        changes["preprocess"] = preprocess
    if classes is not None:
        changes["classes"] = tuple(classes)
    if recipe is not None:
        changes["recipe"] = recipe
    if measured is not None:
        changes["measured"] = measured
    if calibration is not None:
        changes["calibration"] = calibration
    if number is not None:
        changes["number"] = number
    if licence is not None:
        changes["licence"] = licence
    record = dataclasses.replace(record, **changes)
    require_classes(record)
    prepared = prepare(ModelWeights(module), record, target=to, generation=generation)
    return write(prepared, Path(destination), overwrite=overwrite)


def prepare(
    weights: Weights,
    record: Record,
    *,
    target: Target,
    generation: Generation = "A",
    approximate: bool = False,
) -> Prepared:
    """Convert weights to a target's layout, or refuse with the reason and a target that can hold them."""
    layout, notes = layout_for(target, weights.config, generation=generation), []
    config = weights.config
    keeps_positions = target == "vitrine" and not isinstance(layout, HuggingFaceLayout)
    keeps_positions = keeps_positions or isinstance(layout, T2TLayout | TimmNaFlexLayout)
    is_fixed = isinstance(config, ViTConfig) and config.positions == "sincos_2d"
    if not keeps_positions and not (is_fixed and target == "npz" and generation in ("C", "D")):
        weights, note = with_table(weights)
        notes.append(note)
    wanted = layout.wants_slots(weights.config)
    if wanted is not None:
        weights, note = with_slots(weights, wanted)
        notes.append(note)
    notes.append(require_layout(layout, weights.config, approximate=approximate))
    rules = in_order(layout.rules(weights.config))
    record = dataclasses.replace(record, config=weights.config)
    return Prepared(
        target=target,
        layout=layout,
        weights=weights,
        rules=rules,
        record=record,
        notes=tuple(note for note in notes if note),
    )


def require_layout(layout: Layout, config: ModelConfig, *, approximate: bool) -> str:
    """Refuse a model that a layout cannot hold; return a note where it holds it only approximately, else nothing."""
    reason, note = layout.refusal(config), ""
    if reason and "form of GELU" in reason:
        if not approximate:
            raise CheckpointError(
                f"not converted: {reason}",
                advice=[TryOption("approximate", "to convert it all the same", True)],
            )
        note = f"{reason.split(';')[0]}: its outputs will differ"
        assert isinstance(config, ViTConfig)
        other = dataclasses.replace(config, gelu="erf" if config.gelu == "tanh" else "tanh")
        reason = layout.refusal(other)
    if reason:
        raise CheckpointError(f"not converted: {reason}")
    return note


def write(prepared: Prepared, destination: Path, *, overwrite: bool = False) -> Path:
    """Write prepared weights; a failure leaves nothing behind."""
    require_free(destination, overwrite=overwrite)
    if prepared.target == "npz":
        if destination.suffix != ".npz":
            raise CheckpointError(
                f"the name of an official file must end in .npz, got {destination}; try {destination}.npz"
            )
        write_npz(destination, tensors_of(prepared))
        return destination
    if destination.suffix in PICKLES:
        better = destination.with_suffix(".safetensors")
        raise CheckpointError(f"pickles are never written, got {destination}; try {better} or a folder")
    if destination.suffix == ".safetensors":
        words = {KEY: json.dumps(prepared.record.to_json())}
        write_safetensors(destination, tensors_of(prepared), specs=specs_of(prepared), metadata=words)
        return destination
    write_folder(prepared, destination)
    return destination


def write_folder(prepared: Prepared, destination: Path) -> None:
    """Write weights, config, preprocessing and card into a temporary folder, then rename it."""
    with refusing_in_words(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        private = temporary_beside(destination)
        private.mkdir(mode=0o700)
    # mkdtemp creates a private folder; the folder inside it has the usual permissions.
    staged = private / "model"
    try:
        staged.mkdir()
        sums = write_safetensors(staged / WEIGHTS, tensors_of(prepared), specs=specs_of(prepared))
        record = dataclasses.replace(prepared.record, checksums={WEIGHTS: sums})
        write_text(staged / "README.md", card(record, layout=prepared.layout))
        if prepared.target not in ("timm", "naflex"):  # its config.json has it
            with suppress(ConfigError):  # our record has what Hugging Face's file cannot express
                rules = to_hf(record.preprocess, at_native_aspect=takes_flat_patches(prepared.layout))
                write_json(staged / "preprocessor_config.json", rules)
        write_json(staged / "config.json", {**settings_of(prepared), KEY: record.to_json()})
        with refusing_in_words(destination):
            put_in_place(staged, destination)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def put_in_place(staged: Path, destination: Path) -> None:
    """Move a finished folder to its place; into an existing folder, file by file with the config last."""
    if not destination.exists():
        move_into_place(staged, Path(os.path.realpath(destination)))
        return
    (destination / TRUST_FILE).unlink(missing_ok=True)  # measured on the weights that are replaced
    for name in sorted((entry.name for entry in staged.iterdir()), key=lambda name: name == "config.json"):
        move_into_place(staged / name, destination / name)


def settings_of(prepared: Prepared) -> dict[str, Any]:
    """Return the target's own config.json."""
    record, layout = prepared.record, prepared.layout
    if isinstance(layout, HuggingFaceLayout):
        return hugging_face_settings(record.config, layout, classes=record.classes)
    if isinstance(layout, NamedLayout) and layout.settings(record.config):
        return layout.settings(record.config) | label_settings(record.config, record.classes)
    if isinstance(layout, TimmNaFlexLayout):
        return timm_settings(
            record.config, preprocess=record.preprocess, classes=record.classes, as_naflex=True
        )
    if prepared.target == "timm":
        return timm_settings(record.config, preprocess=record.preprocess, classes=record.classes)
    # transformers prints the model type of a folder that it cannot open.
    reason = (for_model(record.config).refusal(record.config) or "").split(";")[0]
    return {
        "model_type": f"vitrine ({reason}; open this folder with vitrine.load)",
        "library_name": "vitrine",
        "num_classes": record.config.num_classes,
    }


def tensors_of(prepared: Prepared) -> Iterator[tuple[str, Tensor]]:
    """Yield the target's tensors by name, with progress."""
    tensors = as_written(prepared.rules, prepared.weights)
    for rule, tensor in track(tensors, "writing tensors", total=len(prepared.rules)):
        yield rule.theirs, tensor
    yield from constants_of(prepared).items()


def constants_of(prepared: Prepared) -> Mapping[str, Tensor]:
    """Return the tensors that the target's code needs in its files beside the weights."""
    layout, config = prepared.layout, prepared.weights.config
    return layout.constants(config) if isinstance(layout, NamedLayout) else {}


def specs_of(prepared: Prepared) -> dict[str, Any]:
    """Return shapes and types of the target's tensors."""
    index = prepared.weights.index
    specs = {rule.theirs: spec_of(rule, index) for rule in prepared.rules}
    constants = constants_of(prepared)
    return specs | {name: Spec(tuple(one.shape), one.dtype) for name, one in constants.items()}


def require_free(destination: Path, *, overwrite: bool) -> None:
    """Refuse to overwrite, unless requested."""
    is_taken = destination.is_file() or (destination.is_dir() and any(destination.iterdir()))
    if is_taken and not overwrite:
        raise CheckpointError(f"{destination} exists; choose another name, or set overwrite")


def require_classes(record: Record) -> None:
    """Refuse class names that do not match the head."""
    if record.classes is not None and len(record.classes) != record.config.num_classes:
        raise ConfigError(
            f"classes must match the head, got {len(record.classes)} names and "
            f"num_classes={record.config.num_classes}"
        )
