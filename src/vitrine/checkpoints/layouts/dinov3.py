"""DINOv3's ViTs (arXiv:2508.10104): its own files and those of transformers, which keeps q, k and v apart.

Neither file has the frequencies exactly (the official one rounds them to bf16), so they are computed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.named import NamedLayout, Names, read_blocks
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.rotary import BASES

OFFICIAL = Names(
    patch="patch_embed.proj", class_token="cls_token", registers="storage_tokens", block="blocks.{}.",
    norm_1="norm1", qkv=("attn.qkv",), keeps_masked_bias=True, out="attn.proj", norm_2="norm2",
    dense=("mlp.fc1", "mlp.fc2"), gated=("mlp.w1", "mlp.w2", "mlp.w3"), gains=("ls1.gamma", "ls2.gamma"),
    norm="norm",
)  # fmt: skip
HUGGING_FACE = Names(
    patch="embeddings.patch_embeddings", class_token="embeddings.cls_token", registers="embeddings.register_tokens",
    block="layer.{}.", norm_1="norm1", qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj", norm_2="norm2", dense=("mlp.up_proj", "mlp.down_proj"),
    gated=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), gains=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    norm="norm",
)  # fmt: skip
NUMERICS: dict[str, Any] = {"norm_eps": 1e-5, "gelu": "erf", "positions": "none", "rotary": "dinov3"}
# From the released recipe, for further training: coordinates scale by up to 2.
RELEASED_RESCALE = 2.0
MASKED_KEYS = 3
UNUSED = {
    "mask_token": "only used by masked pre-training",
    "embeddings.mask_token": "only used by masked pre-training",
    "local_cls_norm.": "a norm that only pre-training on small crops uses",
    "rope_embed.periods": "computed here; the file rounds them to bf16",
}


class DINOv3Layout(NamedLayout):
    """DINOv3's own names, or those of transformers."""

    @property
    def is_official(self) -> bool:
        """Whether these are the authors' names."""
        return self.names.registers == OFFICIAL.registers

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; in official files, the number of frequencies gives that of the heads."""
        said, names = hints.settings, self.names
        kernel = shape_of(index, f"{names.patch}.weight", hints=hints, axes=4)
        periods, registers = index.get("rope_embed.periods"), index.get(names.registers)
        heads = hints.num_heads or said.get("num_attention_heads")
        if heads is None and periods is not None:
            heads = kernel[0] // (4 * periods.shape[0])
        base = said.get("rope_theta")
        rescale = said.get("pos_embed_rescale", RELEASED_RESCALE)
        return vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table=None,
            num_slots=0,
            num_heads=heads,
            num_registers=registers.shape[1] if registers and registers.shape[1] else 0,
            num_classes=None,
            patch_bias=f"{names.patch}.bias" in index,
            **read_blocks(names, index, hints),
            **{**NUMERICS, "norm_eps": float(said.get("layer_norm_eps", NUMERICS["norm_eps"]))},
            rotary_base=None if base == BASES["dinov3"] else base,
            rotary_shift=said.get("pos_embed_shift"),
            rotary_jitter=said.get("pos_embed_jitter"),
            rotary_rescale=rescale,
        )

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why DINOv3's classes cannot hold a model."""
        reason = refuse_odd_vit(
            config, where=self.name, instead="the layout vitrine holds every model", positions=("none",),
            rotary=("dinov3",), registers=True, layer_scale=True, swiglu=True, no_qkv_bias=True, no_key_bias=True,
            only_erf=True, only_square=self.is_official,
        )  # fmt: skip
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        if config.num_classes:
            return f"{self.name} has no head; the layouts timm and vitrine have one"
        if config.layer_scale is None:
            return f"{self.name} always has LayerScale; the layout timm can do without"
        return None

    def left_out(self, name: str) -> str | None:
        """Recognise the tensors beside the model."""
        if name.endswith("attn.qkv.bias_mask"):
            return "ones and zeros: keys have no bias"
        return next((reason for start, reason in UNUSED.items() if name.startswith(start)), None)

    def constants(self, config: ModelConfig) -> Mapping[str, Tensor]:
        """Return the tensors that the authors' code needs beside the weights: masks, frequencies, an unused token."""
        if not self.is_official:
            return {}
        assert isinstance(config, ViTConfig)
        count = config.width // config.num_heads // 4
        base = config.rotary_base or BASES["dinov3"]
        made = {
            "mask_token": torch.zeros(1, config.width),
            "rope_embed.periods": base ** (torch.arange(count) / count),
        }
        if config.qkv_bias:
            mask = torch.ones(MASKED_KEYS, config.width)
            mask[1] = float(config.key_bias)
            made |= {f"blocks.{i}.attn.qkv.bias_mask": mask.flatten().clone() for i in range(config.depth)}
        return made

    def settings(self, config: ModelConfig) -> dict[str, Any]:
        """Return the config.json of transformers."""
        assert isinstance(config, ViTConfig)
        return {
            "architectures": ["DINOv3ViTModel"],
            "model_type": "dinov3_vit",
            "hidden_size": config.width,
            "intermediate_size": config.mlp_width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "hidden_act": "silu" if config.mlp == "swiglu" else "gelu",
            "layer_norm_eps": config.norm_eps,
            "rope_theta": config.rotary_base or BASES["dinov3"],
            "image_size": config.image_size[0]
            if len(set(config.image_size)) == 1
            else list(config.image_size),
            "patch_size": config.patch_size[0]
            if len(set(config.patch_size)) == 1
            else list(config.patch_size),
            "num_channels": config.channels,
            "query_bias": config.qkv_bias,
            "key_bias": config.qkv_bias and config.key_bias,
            "value_bias": config.qkv_bias,
            "layerscale_value": config.layer_scale,
            "use_gated_mlp": config.mlp == "swiglu",
            "num_register_tokens": config.num_registers,
            "pos_embed_shift": config.rotary_shift,
            "pos_embed_jitter": config.rotary_jitter,
            "pos_embed_rescale": config.rotary_rescale,
            "dtype": "float32",
        }

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return DINOv3's preprocessing: resized to the exact size, ImageNet's mean and deviation."""
        usual = config.channels == len(IMAGENET_MEAN)
        grey = (0.5,) * config.channels
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if usual else (grey, grey)
        return Preprocess(size=config.image_size, mean=mean, std=std)


def recognise(index: Index) -> DINOv3Layout | None:
    """Recognise the authors' names or those of transformers, in a file or in memory."""
    if "storage_tokens" in index or ("rope_embed.periods" in index and "patch_embed.proj.weight" in index):
        return official()
    if "embeddings.patch_embeddings.weight" in index and "norm.weight" in index:
        inner = any(name.startswith("model.layer.") for name in index)
        return hugging_face(block="model.layer.{}." if inner else HUGGING_FACE.block)
    return None


def official() -> DINOv3Layout:
    """Return the layout of the authors' files."""
    return DINOv3Layout(names=OFFICIAL, label="DINOv3")


def hugging_face(*, block: str = HUGGING_FACE.block) -> DINOv3Layout:
    """Return the layout of transformers."""
    return DINOv3Layout(names=dataclasses.replace(HUGGING_FACE, block=block), label="Hugging Face DINOv3")
