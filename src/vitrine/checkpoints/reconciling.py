"""Our record beside files that another program has saved again: if they disagree, the files are right.

transformers keeps unknown entries of config.json, our record included, when it saves a model that it has trained or
relabelled. The record then describes the old model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitrine.checkpoints.layouts.huggingface import HuggingFaceLayout
from vitrine.checkpoints.layouts.layout import Layout
from vitrine.checkpoints.layouts.named import takes_flat_patches
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.sidecars import Sidecars, classes_in
from vitrine.checkpoints.tensors import TensorFile
from vitrine.data.preparing.hf_preprocess import from_hf, to_hf
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError
from vitrine.models import ModelConfig

SAVED_BY_TRANSFORMERS = "transformers_version"
"""A key of config.json that transformers always writes and Vitrine never does."""
FROM_SHAPES = (
    "image_size",
    "patch_size",
    "channels",
    "width",
    "depth",
    "mlp_width",
    "num_classes",
    "representation_width",
    "num_registers",
    "has_distillation_token",
    "qkv_bias",
)
"""Fields of a model's config that shapes and names of tensors decide."""
FROM_SETTINGS = ("num_heads", "gelu", "norm_eps")
"""Fields that Hugging Face's config.json states."""


def is_saved_elsewhere(file: TensorFile, settings: Mapping[str, Any], record: Record) -> bool:
    """Whether another program wrote the weights, so that the record's checksums do not apply."""
    if SAVED_BY_TRANSFORMERS in settings:
        return True
    sums = record.checksums.get(file.path.name, {}).get("crc32")
    # Vitrine writes tensors in the order of its checksums; damage keeps that order, another program does not.
    return sums is not None and list(file.index) != list(sums)


def reconcile(
    record: Record, read: ModelConfig | None, *, layout: Layout, beside: Sidecars
) -> tuple[Record, tuple[str, ...]]:
    """Correct a record by the files beside it; return it with a note of the differences.

    `read` is the config as the tensors show it, given where another program wrote them.
    """
    changes: dict[str, Any] = {}
    differs = []
    if read is not None:
        changes["checksums"] = {}
        config = corrected(record.config, read, layout=layout)
        if config != record.config:
            changes["config"] = config
            differs += [
                f"{field.name} {getattr(config, field.name)} instead of {getattr(record.config, field.name)}"
                for field in dataclasses.fields(config)
                if getattr(config, field.name) != getattr(record.config, field.name)
            ]
    classes = record.classes if "id2label" not in beside.settings else classes_in(beside.settings)
    if classes is not None and len(classes) != changes.get("config", record.config).num_classes:
        classes = None
    if classes != record.classes:
        changes["classes"] = classes
        differs.append("class names")
    if beside.preprocess is not None and beside.preprocess != as_hugging_face_reads(
        record.preprocess, layout=layout
    ):
        changes["preprocess"] = beside.preprocess
        differs.append("preprocessing")
    if not changes:
        return record, ()
    return dataclasses.replace(record, **changes), (note_of(beside.settings, differs),)


def corrected(config: ModelConfig, read: ModelConfig, *, layout: Layout) -> ModelConfig:
    """Combine the values stated in the files with those that only the record can hold."""
    if type(config) is not type(read):
        return read
    names = (*FROM_SHAPES, *(FROM_SETTINGS if isinstance(layout, HuggingFaceLayout) else ()))
    known = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: getattr(read, name) for name in names if name in known})


def as_hugging_face_reads(preprocess: Preprocess, *, layout: Layout) -> Preprocess | None:
    """Return preprocessor_config.json as it was when the record was written; None if it could not express it."""
    try:
        return from_hf(to_hf(preprocess, at_native_aspect=takes_flat_patches(layout)))
    except ConfigError:
        return None


def note_of(settings: Mapping[str, Any], differs: list[str]) -> str:
    """Report in one sentence which program saved the files and what changed."""
    version = settings.get(SAVED_BY_TRANSFORMERS)
    who = f"saved by transformers {version}" if version else "saved by another program"
    if not differs:
        return f"The weights were {who} after Vitrine wrote its record; its checksums no longer apply"
    return f"The model was {who} after Vitrine wrote its record; the files are used: {', '.join(differs)}"
