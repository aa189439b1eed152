"""Convert the preprocess record to Hugging Face's preprocessor_config.json, and back."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError

# Pillow's filter numbers, which Hugging Face writes as `resample`.
_NUMBERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
_NAMES = {number: name for name, number in _NUMBERS.items()}


def to_hf(preprocess: Preprocess, *, at_native_aspect: bool = False) -> dict[str, Any]:
    """Write preprocessor_config.json; ViT's processor only resizes, so a centre crop needs BiT's.

    Only SigLIP 2's processor keeps the aspect ratio, and only its NaFlex models take what it returns.
    """
    height, width = preprocess.size
    config: dict[str, Any] = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
        "resample": _NUMBERS[preprocess.interpolation],
        "rescale_factor": 1 / 255,
    }
    if at_native_aspect and preprocess.max_patches is not None and preprocess.patch is not None:
        return config | {
            "image_processor_type": "Siglip2ImageProcessor",
            "patch_size": preprocess.patch[0],
            "max_num_patches": preprocess.max_patches,
        }
    if preprocess.rule == "squash" and preprocess.resize_size == preprocess.size:
        size = {"height": height, "width": width}
        return config | {"image_processor_type": "ViTImageProcessor", "size": size}
    rows, columns = preprocess.resize_size
    if preprocess.rule == "squash":
        size = {"height": rows, "width": columns}
    elif height == width:
        size = {"shortest_edge": rows}
    else:
        raise ConfigError(
            f"Hugging Face cannot resize the shorter side for a size that is not square, "
            f"got {preprocess.size}; use the rule squash"
        )
    return config | {
        "image_processor_type": "BitImageProcessor",
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "size": size,
    }


def from_hf(config: Mapping[str, Any]) -> Preprocess:
    """Read preprocessor_config.json of ViT's, DeiT's, BiT's, CLIP's and SigLIP's processors."""
    if "max_num_patches" in config:
        patch, most = int(config.get("patch_size", 16)), int(config["max_num_patches"])
        config = {**config, "size": math.isqrt(most) * patch}
        return dataclasses.replace(
            from_hf({name: value for name, value in config.items() if name != "max_num_patches"}),
            max_patches=most,
            patch=(patch, patch),
        )
    size = _sides(config.get("size", 224))
    has_crop = bool(config.get("do_center_crop")) and "crop_size" in config
    crop = _sides(config["crop_size"]) if has_crop else size
    if crop is None:
        raise ConfigError(f"crop_size needs a height and a width, got {config['crop_size']}")
    scale = config.get("rescale_factor", 1 / 255)
    if config.get("do_rescale", True) and abs(scale * 255 - 1) > 1e-3:
        raise ConfigError(f"rescale_factor must be 1/255, got {scale}")
    shorter = _shorter(config.get("size"))
    number = config.get("resample", 2)
    if number not in _NAMES:
        raise ConfigError(f"resample must be one of {sorted(_NAMES)}, got {number}")
    normal = config.get("do_normalize", True)
    resized = shorter if shorter is not None else size[0]
    return Preprocess(
        size=crop,
        rule="squash" if shorter is None else "shorter",
        crop_fraction=min(1.0, crop[0] / resized),
        interpolation=_NAMES[number],  # type: ignore[arg-type]
        mean=tuple(config.get("image_mean") or (0.5,) * 3) if normal else (0.0,) * 3,
        std=tuple(config.get("image_std") or (0.5,) * 3) if normal else (1.0,) * 3,
    )


def _sides(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if "height" in size and "width" in size:
        return int(size["height"]), int(size["width"])
    edge = int(size["shortest_edge"])
    return edge, edge


def _shorter(size: Any) -> int | None:
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return int(size["shortest_edge"])
    return None
