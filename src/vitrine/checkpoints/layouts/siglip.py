"""SigLIP's and SigLIP 2's image towers (arXiv:2303.15343, arXiv:2502.14786) under the names of transformers.

SigLIP 2 has one for any aspect ratio too (NaFlex). Its patch embedding is a dense layer of patches that are cut
beforehand, and its positions are resampled for every picture, bilinear with antialias.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrine.checkpoints.layouts.clip import ACTIVATIONS, OF_TEXT, prefixed
from vitrine.checkpoints.layouts.layout import Configured, Hints, refuse_odd_vit, shape_of, vit_config
from vitrine.checkpoints.layouts.named import NamedLayout, Names, read_blocks
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.choices import Resampling

NAMES = Names(
    patch="vision_model.embeddings.patch_embedding", table="vision_model.embeddings.position_embedding.weight",
    block="vision_model.encoder.layers.{}.", norm_1="layer_norm1",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.out_proj",
    norm_2="layer_norm2", dense=("mlp.fc1", "mlp.fc2"), norm="vision_model.post_layernorm", is_flat=True,
    pooling={
        "probe": "vision_model.head.probe",
        "to_qkv": "vision_model.head.attention.in_proj_*",
        "to_out": "vision_model.head.attention.out_proj",
        "norm": "vision_model.head.layernorm",
        "mlp.expand": "vision_model.head.mlp.fc1",
        "mlp.contract": "vision_model.head.mlp.fc2",
    },
)  # fmt: skip
EPS = 1e-6
NAFLEX_RULE: Resampling = "bilinear_antialias"


class SigLIPLayout(NamedLayout):
    """The image tower with its attention pooling, whose output is compared with embeddings of texts."""

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; activation and heads from config.json, where there is one."""
        said = hints.settings.get("vision_config") or hints.settings
        names = self.names
        activation = said.get("hidden_act", "gelu_pytorch_tanh")
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{hints.path} has the unknown activation {activation!r}; known: {', '.join(ACTIVATIONS)}"
            )
        return vit_config(
            index,
            hints,
            patch_kernel=self.patch_kernel(index, hints, said),
            table=names.table,
            num_slots=0,
            num_heads=hints.num_heads or said.get("num_attention_heads"),
            pooling="attention" if names.pooling["probe"] in index else "average",
            has_class_token=False,
            has_prefix_positions=False,
            num_classes=None,
            norm_eps=float(said.get("layer_norm_eps", EPS)),
            position_resampling=NAFLEX_RULE if names.has_flat_patches else "bicubic_antialias",
            **ACTIVATIONS[activation],
            **read_blocks(names, index, hints),
        )

    def patch_kernel(self, index: Index, hints: Hints, said: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the shape of the patch kernel: (width, channels, rows, columns)."""
        name = f"{self.names.patch}.weight"
        if not self.names.has_flat_patches:
            return shape_of(index, name, hints=hints, axes=4)
        flat = shape_of(index, name, hints=hints, axes=2)
        return unflattened(flat, channels=said.get("num_channels", 3), path=hints.path)

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """There is no class token."""
        return False

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why SigLIP's classes cannot hold a model."""
        reason = refuse_odd_vit(
            config, where=self.name, instead="the layout vitrine holds every model", poolings=("attention",),
            activations=True, only_square=True,
        )  # fmt: skip
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        if config.num_classes:
            return f"{self.name} has no head; the layouts timm and vitrine have one"
        return None

    def left_out(self, name: str) -> str | None:
        """Recognise the text tower."""
        return "of the text tower" if name.startswith(OF_TEXT) else None

    def settings(self, config: ModelConfig) -> dict[str, Any]:
        """Return the config.json of transformers."""
        assert isinstance(config, ViTConfig)
        activation = {"tanh": "gelu_pytorch_tanh", "erf": "gelu"}[config.gelu]
        size: dict[str, Any] = {"image_size": config.image_size[0]}
        if self.names.has_flat_patches:
            size = {"num_patches": config.grid_size[0] * config.grid_size[1]}
        return {
            "architectures": [f"{'Siglip2' if self.names.has_flat_patches else 'Siglip'}VisionModel"],
            "model_type": f"{'siglip2' if self.names.has_flat_patches else 'siglip'}_vision_model",
            "hidden_size": config.width,
            "intermediate_size": config.mlp_width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "hidden_act": activation if config.activation == "gelu" else config.activation,
            "layer_norm_eps": config.norm_eps,
            **size,
            "patch_size": config.patch_size[0],
            "num_channels": config.channels,
            "dtype": "float32",
        }

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return SigLIP's preprocessing: resized to the exact size, pixels from -1 to 1."""
        grey = (0.5,) * config.channels
        if self.names.has_flat_patches:
            assert isinstance(config, ViTConfig)
            return Preprocess(
                size=config.image_size, mean=grey, std=grey, max_patches=math.prod(config.grid_size),
                patch=config.patch_size,
            )  # fmt: skip
        return Preprocess(size=config.image_size, interpolation="bicubic", mean=grey, std=grey)


def recognise(index: Index) -> SigLIPLayout | None:
    """Recognise SigLIP by its names without CLIP's class token and norm of the embedding."""
    for prefix in ("vision_model.", ""):
        embeddings = f"{prefix}embeddings."
        patches = index.get(f"{embeddings}patch_embedding.weight")
        if (
            patches is not None
            and f"{embeddings}position_embedding.weight" in index
            and f"{embeddings}class_embedding" not in index
        ):
            return hugging_face(prefix=prefix, is_naflex=len(patches.shape) == 2)
    return None


def hugging_face(*, prefix: str = "vision_model.", is_naflex: bool = False) -> SigLIPLayout:
    """Return the names of transformers; version 5 has no prefix for a tower alone."""
    names = dataclasses.replace(prefixed(NAMES, prefix), has_flat_patches=is_naflex)
    return SigLIPLayout(names=names, label=f"Hugging Face SigLIP{' 2 NaFlex' if is_naflex else ''}")


def is_naflex(config: ViTConfig) -> bool:
    """Return whether positions are resampled as in SigLIP 2's models for any aspect ratio."""
    return config.position_resampling == NAFLEX_RULE


def unflattened(flat: tuple[int, ...], *, channels: int, path: Path) -> tuple[int, int, int, int]:
    """Return the shape of the patch kernel of which a dense layer (width, values per patch) is the flat form."""
    width, values = flat
    side = math.isqrt(values // channels)
    if side * side * channels != values:
        raise CheckpointError(
            f"{path} has a patch embedding of {values} values per patch, which are no square of {channels} channels"
        )
    return width, channels, side, side
