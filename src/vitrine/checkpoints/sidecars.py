"""The small files beside weights: config.json and preprocessor_config.json, Hugging Face's, timm's and ours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.checkpoints.licences import licence_beside
from vitrine.checkpoints.record import KEY, Record
from vitrine.checkpoints.tensors import require_readable
from vitrine.data.preparing.hf_preprocess import from_hf
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError
from vitrine.models.sizes import as_size
from vitrine.runtime.files import parse_json


@dataclass(frozen=True, kw_only=True)
class Sidecars:
    """The contents of the files beside the weights."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    record: Record | None = None
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None
    licence: str | None = None


def read_sidecars(folder: Path | None, metadata: Mapping[str, str]) -> Sidecars:
    """Read our own record, from config.json or from the weights file itself, and the other files."""
    settings = read_json(folder / "config.json") if folder else {}
    if folder and not settings:
        settings = read_json(folder / "open_clip_config.json")
    said = settings.get(KEY)
    where = folder / "config.json" if folder else Path("metadata")
    if said is None and KEY in metadata:
        said = parsed_record(metadata[KEY])
    record = None if said is None else Record.from_json(said, path=where)
    rules = read_json(folder / "preprocessor_config.json") if folder else {}
    preprocess = None
    try:
        if rules:
            preprocess = from_hf(rules)
        elif "pretrained_cfg" in settings and record is None:
            preprocess = timm_preprocess(settings)
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the preprocessing beside {where} cannot be read: {error}") from None
    try:
        classes, size = classes_in(settings), size_in(settings)
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where} gives no classes or image size that can be used: {error}") from None
    return Sidecars(
        settings=settings,
        record=record,
        preprocess=preprocess,
        classes=classes,
        image_size=size,
        licence=licence_beside(folder, settings),
    )


def parsed_record(text: str) -> Any:
    """Read our record from the metadata of a weights file."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"the record inside the weights file is not JSON: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no file."""
    if not path.exists():
        return {}
    require_readable(path)
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return values


def classes_in(settings: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the class names of a config.json, unless they are placeholders."""
    names = settings.get("label_names")
    if not names and isinstance(settings.get("id2label"), Mapping):
        by_number = {int(number): str(name) for number, name in settings["id2label"].items()}
        names = [by_number[number] for number in sorted(by_number)]
    if not names or all(re.fullmatch(r"LABEL_\d+", str(name)) for name in names):
        return None
    return tuple(str(name) for name in names)


def size_in(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the image size of a config.json, Hugging Face's or timm's."""
    arguments = settings.get("model_args") or {}
    trained = settings.get("pretrained_cfg") or {}
    size = settings.get("image_size") or arguments.get("img_size") or (trained.get("input_size") or [])[1:]
    return as_size(tuple(size) if isinstance(size, list) else size) if size else None


def timm_preprocess(settings: Mapping[str, Any]) -> Preprocess:
    """Read timm's pretrained_cfg; its NaFlex models keep the aspect ratio, with as many patches as the square has."""
    trained = settings["pretrained_cfg"]
    _, height, width = trained.get("input_size") or (3, 224, 224)
    patch = None
    if native := re.match(r"naflexvit_.*patch(\d+)", str(settings.get("architecture"))):
        patch = as_size((settings.get("model_args") or {}).get("patch_size", int(native[1])))
    return Preprocess(
        size=(height, width),
        rule="squash" if trained.get("crop_mode") == "squash" else "shorter",
        crop_fraction=float(trained.get("crop_pct") or 1.0),
        interpolation=trained.get("interpolation") or "bicubic",
        mean=tuple(trained.get("mean") or (0.5,) * 3),
        std=tuple(trained.get("std") or (0.5,) * 3),
        max_patches=None if patch is None else (height // patch[0]) * (width // patch[1]),
        patch=patch,
    )
