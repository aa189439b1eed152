"""Mask models as their authors and transformers store them: Segmenter's mask transformer, and EoMT.

The ViT inside has timm's names (or, of transformers' EoMT, its own); the layers around it are declared here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.rules import Rule, View, layer, part, rule
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.dense.config import DenseConfig, EoMTConfig, SegmenterConfig, as_encoder

# A table of rows of positions where ours has an axis of images before it.
WITHOUT_IMAGES = View("reshaped", lambda tensor: tensor[0])
HALF = (0.5, 0.5, 0.5)
# Segmenter trains the ViT with torch's own, although its weights come from timm's 1e-6.
SEGMENTER_EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class MaskLayout:
    """A layout of one kind of model: how it is read, and what its tensors are called."""

    name: str
    read: Callable[[Index, Hints], Configured]
    declare: Callable[[DenseConfig], list[Rule]]
    skipped: Mapping[str, str]
    """Beginnings of the names that are not read, each with what these tensors are."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    slots: ClassVar[int] = 0

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """Take the table of positions as it is."""
        return None

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config from names and shapes."""
        return self.read(index, hints)

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, DenseConfig)
        return self.declare(config)

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse to write: files are read only."""
        return f"files of {self.name} are read and not written; the layout vitrine holds every model"

    def left_out(self, name: str) -> str | None:
        """Recognise tensors that are saved beside the model."""
        return next((why for start, why in self.skipped.items() if name.startswith(start)), None)

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the authors' preprocessing, at the size of a window."""
        return Preprocess(size=config.image_size, mean=self.mean, std=self.std)


def recognise(index: Index) -> MaskLayout | None:
    """Recognise Segmenter by its class embeddings, EoMT by its queries and mask head."""
    if "decoder.cls_emb" in index and "encoder.patch_embed.proj.weight" in index:
        return segmenter(is_deit="encoder.dist_token" in index)
    for prefix in ("network.", ""):
        if f"{prefix}q.weight" in index and f"{prefix}mask_head.0.weight" in index:
            return official_eomt(prefix)
    if "query.weight" in index and "mask_head.fc1.weight" in index:
        return hugging_face_eomt()
    return None


def segmenter(*, is_deit: bool) -> MaskLayout:
    """Return Segmenter's layout; its ViTs are normalised to -1 to 1, its DeiTs as ImageNet is."""
    return MaskLayout(
        name="Segmenter", read=_read_segmenter, declare=_segmenter_rules,
        skipped={
            "encoder.head": "a classifier of whole pictures", "encoder.pre_logits": "a layer of the classifier"
        },
        mean=IMAGENET_MEAN if is_deit else HALF, std=IMAGENET_STD if is_deit else HALF,
    )  # fmt: skip


def _read_segmenter(index: Index, hints: Hints) -> Configured:
    described = TimmLayout().configure(below(index, "encoder."), hints)
    assert isinstance(described.config, ViTConfig)
    vit = replace(
        as_encoder(described.config), norm_eps=SEGMENTER_EPS, position_resampling="bilinear",
    )  # fmt: skip
    width = shape_of(index, "decoder.proj_dec.weight", hints=hints, axes=2)[0]
    config = SegmenterConfig(
        vit=vit,
        num_classes=shape_of(index, "decoder.cls_emb", hints=hints, axes=3)[1],
        width=width,
        depth=count(index, r"decoder\.blocks\.(\d+)\."),
        mlp_width=shape_of(index, "decoder.blocks.0.mlp.fc1.weight", hints=hints, axes=2)[0],
    )
    return Configured(config, described.notes)


def _segmenter_rules(config: DenseConfig) -> list[Rule]:
    assert isinstance(config, SegmenterConfig)
    declared = prefixed(TimmLayout().rules(config.vit), "encoder.")
    declared += [
        rule("decoder.cls_emb", "decoder.class_embedding"),
        rule("decoder.proj_patch", "decoder.patch_projection"),
        rule("decoder.proj_classes", "decoder.class_projection"),
    ]
    declared += layer("decoder.proj_dec", "decoder.project")
    declared += layer("decoder.decoder_norm", "decoder.norm") + layer(
        "decoder.mask_norm", "decoder.mask_norm"
    )
    for number in range(config.depth):
        theirs, ours = f"decoder.blocks.{number}", f"decoder.layers.{number}"
        for one, other in (
            ("norm1", "norm_1"), ("attn.qkv", "attention.to_qkv"), ("attn.proj", "attention.to_out"),
            ("norm2", "norm_2"), ("mlp.fc1", "mlp.expand"), ("mlp.fc2", "mlp.contract"),
        ):  # fmt: skip
            declared += layer(f"{theirs}.{one}", f"{ours}.{other}")
    return declared


def official_eomt(prefix: str) -> MaskLayout:
    """Return the layout of EoMT's authors; Lightning puts `network.` before every name."""
    backbone = f"{prefix}encoder.backbone."

    def read(index: Index, hints: Hints) -> Configured:
        described = TimmLayout().configure(below(index, backbone), hints)
        assert isinstance(described.config, ViTConfig)
        names = (f"{prefix}q.weight", f"{prefix}class_head.weight", f"{prefix}attn_mask_probs")
        scales = count(index, rf"{prefix.replace('.', '[.]')}upscale\.(\d+)\.")
        return eomt_config(index, hints, described, names=names, num_upscales=scales)

    def declare(config: DenseConfig) -> list[Rule]:
        declared = prefixed(TimmLayout().rules(config.vit), backbone)
        heads = [f"{prefix}mask_head.{number}" for number in (0, 2, 4)]
        scales = [(f"{prefix}upscale.{number}", "norm") for number in range(upscales_of(config))]
        return declared + eomt_rules(f"{prefix}q.weight", f"{prefix}class_head", heads, scales)

    skipped = {
        f"{prefix}attn_mask_probs": "how much attention was masked", f"{prefix}encoder.pixel_": "mean and deviation",
        "criterion.": "a part of the loss", f"{backbone}head.": "a classifier of whole pictures",
    }  # fmt: skip
    return MaskLayout(name="EoMT, official", read=read, declare=declare, skipped=skipped)


def hugging_face_eomt() -> MaskLayout:
    """Return transformers' layout of EoMT on DINOv2."""
    skipped = {
        "attn_mask_probs": "how much attention was masked", "criterion.": "a part of the loss",
        "embeddings.position_ids": "numbers of positions",
    }  # fmt: skip
    return MaskLayout(
        name="EoMT, Hugging Face", read=_read_hugging_face, declare=_hugging_face_rules, skipped=skipped
    )


def _read_hugging_face(index: Index, hints: Hints) -> Configured:
    said = hints.settings
    if said.get("use_swiglu_ffn") or said.get("hidden_act", "gelu") != "gelu":
        raise CheckpointError(f"{hints.path} has an MLP that cannot be read; known: gelu without gates")
    registers = index.get("embeddings.register_tokens")
    kernel = shape_of(index, "embeddings.patch_embeddings.projection.weight", hints=hints, axes=4)
    described = vit_config(
        index,
        hints,
        patch_kernel=kernel,
        table="embeddings.position_embeddings.weight",
        depth=count(index, r"layers\.(\d+)\."),
        num_slots=0,
        num_heads=hints.num_heads or said.get("num_attention_heads"),
        mlp_width=shape_of(index, "layers.0.mlp.fc1.weight", hints=hints, axes=2)[0],
        num_registers=registers.shape[1] if registers else 0,
        has_prefix_positions=False,
        layer_scale=1.0,
        gelu="erf",
        norm_eps=float(said.get("layer_norm_eps", 1e-6)),
        position_resampling="bicubic_antialias",
        num_classes=None,
    )
    names = ("query.weight", "class_predictor.weight", "attn_mask_probs")
    scales = count(index, r"upscale_block\.block\.(\d+)\.")
    return eomt_config(index, hints, described, names=names, num_upscales=scales)


def _hugging_face_rules(config: DenseConfig) -> list[Rule]:
    vit = config.vit
    declared = layer("embeddings.patch_embeddings.projection", "vit.patch_projection")
    declared.append(rule("embeddings.cls_token", "vit.class_token"))
    declared.append(rule("embeddings.position_embeddings.weight", "vit.positions.0.table", WITHOUT_IMAGES))
    if vit.num_registers:
        declared.append(rule("embeddings.register_tokens", "vit.registers"))
    for number in range(vit.depth):
        theirs, ours = f"layers.{number}", f"vit.blocks.{number}"
        for which, name in enumerate(("q_proj", "k_proj", "v_proj")):
            for kind in ("weight", "bias"):
                fused = f"{ours}.attention.to_qkv.{kind}"
                declared.append(rule(f"{theirs}.attention.{name}.{kind}", fused, part(which, of=3)))
        for one, other in (
            ("attention.out_proj", "attention.to_out"), ("norm1", "norm_1"), ("norm2", "norm_2"),
            ("mlp.fc1", "mlp.expand"), ("mlp.fc2", "mlp.contract"),
        ):  # fmt: skip
            declared += layer(f"{theirs}.{one}", f"{ours}.{other}")
        for scale in (1, 2):
            declared.append(rule(f"{theirs}.layer_scale{scale}.lambda1", f"{ours}.scale_{scale}.gain"))
    declared += layer("layernorm", "vit.norm")
    heads = [f"mask_head.fc{number}" for number in (1, 2, 3)]
    scales = [(f"upscale_block.block.{number}", "layernorm2d") for number in range(upscales_of(config))]
    return declared + eomt_rules("query.weight", "class_predictor", heads, scales)


def eomt_config(
    index: Index, hints: Hints, described: Configured, *, names: tuple[str, str, str], num_upscales: int
) -> Configured:
    """Read EoMT's own shapes; `names` are those of queries, classifier and the shares of masked attention."""
    assert isinstance(described.config, ViTConfig)
    queries, classifier, shares = names
    masked = index.get(shares)
    num_blocks = masked.shape[0] if masked else hints.settings.get("num_blocks", 4)
    config = EoMTConfig(
        vit=as_encoder(described.config),
        num_classes=shape_of(index, classifier, hints=hints, axes=2)[0] - 1,
        num_queries=shape_of(index, queries, hints=hints, axes=2)[0],
        num_blocks=num_blocks,
    )
    if config.num_upscales != num_upscales:
        raise CheckpointError(
            f"{hints.path} doubles the map of patches {num_upscales} times; with patches of "
            f"{config.vit.patch_size[0]} pixels {config.num_upscales} times are known"
        )
    return Configured(config, described.notes)


def eomt_rules(
    queries: str, classifier: str, mask_layers: list[str], scales: list[tuple[str, str]]
) -> list[Rule]:
    """Declare queries, heads, and the blocks that double the map, each with the name of its norm."""
    declared = [rule(queries, "decoder.queries"), *layer(classifier, "decoder.classify")]
    for number, theirs in zip((0, 2, 4), mask_layers, strict=True):
        declared += layer(theirs, f"decoder.embed_mask.{number}")
    for number, (theirs, norm) in enumerate(scales):
        ours = f"decoder.upscale.{number}"
        declared += layer(f"{theirs}.conv1", f"{ours}.enlarge")
        declared.append(rule(f"{theirs}.conv2.weight", f"{ours}.mix.weight"))
        declared += layer(f"{theirs}.{norm}", f"{ours}.norm")
    return declared


def upscales_of(config: DenseConfig) -> int:
    """Return how often EoMT doubles the map of patches."""
    assert isinstance(config, EoMTConfig)
    return config.num_upscales


def below(index: Index, prefix: str) -> Index:
    """Return the tensors below a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in index.items() if name.startswith(prefix)}


def prefixed(rules: list[Rule], prefix: str) -> list[Rule]:
    """Declare a ViT inside a model of masks."""
    return [
        replace(one, theirs=prefix + one.theirs, ours=tuple(f"vit.{name}" for name in one.ours))
        for one in rules
    ]
