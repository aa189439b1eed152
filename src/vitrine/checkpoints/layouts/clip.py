"""CLIP's image towers (arXiv:2103.00020): the names of transformers, and those of OpenAI's code and OpenCLIP."""

import dataclasses
from typing import Any

from vitrine.checkpoints.layouts.layout import (
    CLIP_MEAN,
    CLIP_STD,
    Configured,
    Hints,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.named import NamedLayout, Names, read_blocks
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig

HUGGING_FACE = Names(
    patch="vision_model.embeddings.patch_embedding", class_token="vision_model.embeddings.class_embedding",
    table="vision_model.embeddings.position_embedding.weight", embedding_norm="vision_model.pre_layrnorm",
    block="vision_model.encoder.layers.{}.", norm_1="layer_norm1",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.out_proj",
    norm_2="layer_norm2", dense=("mlp.fc1", "mlp.fc2"), norm="vision_model.post_layernorm",
    projection="visual_projection.weight", is_flat=True,
)  # fmt: skip
OPENCLIP = Names(
    patch="visual.conv1", class_token="visual.class_embedding", table="visual.positional_embedding",
    embedding_norm="visual.ln_pre", block="visual.transformer.resblocks.{}.", norm_1="ln_1",
    qkv=("attn.in_proj_*",), out="attn.out_proj", norm_2="ln_2", dense=("mlp.c_fc", "mlp.c_proj"),
    gains=("ls_1.gamma", "ls_2.gamma"), norm="visual.ln_post", projection="visual.proj",
    is_projection_transposed=True, is_flat=True,
)  # fmt: skip
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "quick_gelu": {"activation": "quick_gelu"},
    "gelu": {"activation": "gelu", "gelu": "erf"},
    "gelu_pytorch_tanh": {"activation": "gelu", "gelu": "tanh"},
    "gelu_new": {"activation": "gelu", "gelu": "tanh"},
}
EPS = 1e-5
OF_TEXT = (
    "text_model.", "text_projection", "logit_scale", "logit_bias", "transformer.", "token_embedding.", "ln_final.",
    "positional_embedding", "attn_mask", "text.",
)  # fmt: skip
OF_JIT = ("input_resolution", "context_length", "vocab_size")


class CLIPLayout(NamedLayout):
    """CLIP's image tower with its projection, under one library's names."""

    @property
    def is_hugging_face(self) -> bool:
        """Whether these are the names of transformers."""
        return len(self.names.qkv) > 1

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; activation and heads from config.json, where there is one."""
        said = hints.settings.get("vision_config") or hints.settings
        cfg = (said.get("model_cfg") or {}).get("vision_cfg") or {}
        names = self.names
        notes: tuple[str, ...] = ()
        kernel = shape_of(index, f"{names.patch}.weight", hints=hints, axes=4)
        activation = said.get("hidden_act")
        if "model_cfg" in said:
            activation = "quick_gelu" if said["model_cfg"].get("quick_gelu") else "gelu"
        if activation is None:
            activation = "quick_gelu"
            notes = (
                "the file does not contain the activation; quick_gelu assumed, as in OpenAI's models: for OpenCLIP's "
                "give the option activation=gelu",
            )
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{hints.path} has the unknown activation {activation!r}; known: {', '.join(ACTIVATIONS)}"
            )
        projection = index.get(names.projection)
        width = None if projection is None else projection.shape[1 if names.is_projection_transposed else 0]
        heads = hints.num_heads or said.get("num_attention_heads")
        if heads is None and "head_width" in cfg:
            heads = kernel[0] // cfg["head_width"]
        described = vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table=names.table,
            num_slots=1,
            num_heads=heads,
            patch_bias=f"{names.patch}.bias" in index,
            embedding_norm=f"{names.embedding_norm}.weight" in index,
            representation_width=width,
            representation_layer="projection" if width else "tanh",
            num_classes=None,
            norm_eps=float(said.get("layer_norm_eps", EPS)),
            position_resampling="bicubic_antialias",
            **{"gelu": "erf", **ACTIVATIONS[activation]},
            **read_blocks(names, index, hints),
        )
        return Configured(described.config, (*described.notes, *notes))

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why CLIP's classes cannot hold a model."""
        reason = refuse_odd_vit(
            config, where=self.name, instead="the layout vitrine holds every model", embedding_norm=True,
            no_patch_bias=True, projection=True, activations=True, only_square=True,
            layer_scale=not self.is_hugging_face,
        )  # fmt: skip
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        if not config.embedding_norm or config.patch_bias:
            return f"{self.name} has an embedding norm and no patch bias; the layouts timm and vitrine can hold it"
        if config.activation not in ("gelu", "quick_gelu"):
            return f"{self.name} cannot hold the activation {config.activation}; the layout vitrine can"
        if config.num_classes:
            return f"{self.name} has no head; the layout vitrine has one"
        return None

    def left_out(self, name: str) -> str | None:
        """Recognise the text tower, and the constants of a traced module."""
        if name.startswith(OF_TEXT):
            return "of the text tower"
        return "an index, not a weight" if name.endswith("position_ids") or name in OF_JIT else None

    def settings(self, config: ModelConfig) -> dict[str, Any]:
        """Return the config.json of transformers; OpenCLIP's names have none."""
        assert isinstance(config, ViTConfig)
        if not self.is_hugging_face:
            return {}
        activation = {"tanh": "gelu_pytorch_tanh", "erf": "gelu"}[config.gelu]
        return {
            "architectures": [
                "CLIPVisionModelWithProjection" if config.representation_width else "CLIPVisionModel"
            ],
            "model_type": "clip_vision_model",
            "hidden_size": config.width,
            "intermediate_size": config.mlp_width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "hidden_act": activation if config.activation == "gelu" else config.activation,
            "layer_norm_eps": config.norm_eps,
            "image_size": config.image_size[0],
            "patch_size": config.patch_size[0],
            "num_channels": config.channels,
            "projection_dim": config.representation_width or config.width,
            "dtype": "float32",
        }

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return CLIP's preprocessing."""
        return centre_cropped(config, mean=CLIP_MEAN, std=CLIP_STD)


def recognise(index: Index) -> CLIPLayout | None:
    """Recognise CLIP by its norm of the embedding, under either library's names."""
    if "visual.conv1.weight" in index and "visual.ln_pre.weight" in index:
        return openclip()
    for prefix in ("vision_model.", ""):
        if f"{prefix}pre_layrnorm.weight" in index:
            return hugging_face(prefix=prefix)
    return None


def openclip() -> CLIPLayout:
    """Return the names of OpenAI's code and of OpenCLIP."""
    return CLIPLayout(names=OPENCLIP, label="OpenCLIP")


def hugging_face(*, prefix: str = "vision_model.") -> CLIPLayout:
    """Return the names of transformers; a bare tower of version 5 has no prefix."""
    return CLIPLayout(names=prefixed(HUGGING_FACE, prefix), label="Hugging Face CLIP")


def prefixed(names: Names, prefix: str) -> Names:
    """Return names with another prefix than `vision_model.`."""
    changed: dict[str, Any] = {
        one.name: value.replace("vision_model.", prefix)
        for one in dataclasses.fields(names)
        if isinstance(value := getattr(names, one.name), str)
    }
    pooling = {ours: theirs.replace("vision_model.", prefix) for ours, theirs in names.pooling.items()}
    return dataclasses.replace(names, **changed, pooling=pooling)
