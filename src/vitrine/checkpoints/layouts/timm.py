"""timm's ViTs and hybrids, and DeiT's and DINOv2's files, which use the same names."""

from dataclasses import dataclass
from typing import Any, Literal

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.named import with_bias
from vitrine.checkpoints.layouts.rules import Rule, layer, rule
from vitrine.checkpoints.layouts.timm_parts import (
    BLOCK,
    activation_of,
    block_rules,
    is_square,
    named_rules,
    norm_rules,
    position_slots,
    read_stem,
    stem_rules,
)
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig

DEFAULT_CROP = 0.9  # timm's for ViTs below 384 pixels
FULL_CROP_FROM = 384
DINOV2_CROP = 224 / 256
CLIP_EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class TimmLayout:
    """timm's names, and the differences of DINOv2's own files."""

    family: Literal["timm", "dinov2"] = "timm"

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "timm" if self.family == "timm" else "DINOv2"

    @property
    def registers(self) -> str:
        """Name of the register tokens."""
        return "reg_token" if self.family == "timm" else "register_tokens"

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """timm supports both, with registers only without; DINOv2's table begins with the class token's position."""
        if self.family == "dinov2":
            return True
        return False if isinstance(config, ViTConfig) and config.num_registers else None

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the number of heads is only in a config.json beside the file."""
        kernel = shape_of(index, "patch_embed.proj.weight", hints=hints, axes=4)
        stem, channels = read_stem(index, hints)
        arguments = hints.settings.get("model_args") or {}
        registers = index.get(self.registers)
        prefix = int("cls_token" in index) + int("dist_token" in index)
        stride = stem.stride if stem else 1
        slots = position_slots(index, prefix=prefix, kernel=kernel, stride=stride, hints=hints)
        heads = hints.num_heads or arguments.get("num_heads")
        head, pre = index.get("head.weight"), index.get("pre_logits.fc.weight")
        branches = max(count(index, r"blocks\.0\.attns\.(\d+)\."), 1)
        first = "blocks.0." if branches == 1 else "blocks.0.ffns.0."
        attention = "blocks.0.attn." if branches == 1 else "blocks.0.attns.0.attn."
        mlp, mlp_width = self.read_mlp(index, hints, first=first)
        has_norm_before = "norm_pre.weight" in index
        scales = "blocks.0.ls1.gamma" in index or f"{first}ls.gamma" in index
        return vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table="pos_embed" if "pos_embed" in index else None,
            depth=count(index, r"blocks\.(\d+)\."),
            num_slots=slots,
            num_heads=heads,
            channels=channels or kernel[1],
            mlp=mlp,
            mlp_width=mlp_width,
            patch_bias="patch_embed.proj.bias" in index,
            embedding_norm=has_norm_before,
            num_branches=branches,
            stem=stem,
            **self.pooling_of(index, hints),
            has_prefix_positions=slots > 0 or prefix == 0,
            positions="learned_1d" if "pos_embed" in index else "none",
            num_registers=registers.shape[1] if registers else 0,
            has_distillation_token="dist_token" in index,
            representation_width=pre.shape[0] if pre else None,
            num_classes=head.shape[0] if head else None,
            layer_scale=1e-5 if scales else None,
            qkv_bias=f"{attention}qkv.bias" in index,
            qk_norm=f"{attention}q_norm.weight" in index,
            norm="layer_norm" if "norm.bias" in index or "fc_norm.bias" in index else "rms_norm",
            **activation_of(hints),
            norm_eps=CLIP_EPS if has_norm_before else 1e-6,
            position_resampling=self.resampling(index, hints),
        )

    def read_mlp(self, index: Index, hints: Hints, *, first: str) -> tuple[str, int]:
        """Return the kind of MLP and its hidden width: SwiGLU's first layer is twice as wide as its last reads."""
        expand, contract = ("w12", "w3") if f"{first}mlp.w12.weight" in index else ("fc1", "fc2")
        wide = shape_of(index, f"{first}mlp.{expand}.weight", hints=hints, axes=2)[0]
        hidden = shape_of(index, f"{first}mlp.{contract}.weight", hints=hints, axes=2)[1]
        return "swiglu" if wide == 2 * hidden else "dense", hidden

    def pooling_of(self, index: Index, hints: Hints) -> dict[str, Any]:
        """Recognise the pooling by its tensors: a norm after it, a pooling module, no class token."""
        has_class_token, has_norm_after = "cls_token" in index, "fc_norm.weight" in index
        arguments = hints.settings.get("model_args") or {}
        said = arguments.get("global_pool") or hints.settings.get("global_pool")
        if "attn_pool.latent" in index:
            pooling = "attention"
        elif has_norm_after or not has_class_token or said == "avg":
            pooling = "average"
        else:
            pooling = "class_token"
        return {
            "pooling": pooling,
            "has_class_token": has_class_token,
            "norm_after_pooling": has_norm_after and pooling == "average",
            "pools_leading_tokens": has_no_prefix(index) or bool(arguments.get("pool_include_prefix")),
        }

    def resampling(self, index: Index, hints: Hints) -> str:
        """DINOv2 resamples by a slightly larger factor; with registers it antialiases instead."""
        if self.family == "timm":
            return "bicubic_antialias"
        said = hints.metadata.get("resize")
        if said:
            return f"{said}_offset"
        return "bicubic_antialias" if self.registers in index else "bicubic_offset"

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, ViTConfig)
        declared = self.patch_rules(config)
        for theirs, ours, exists in (
            ("cls_token", "class_token", config.reads_class_token),
            ("dist_token", "distillation_token", config.has_distillation_token),
            (self.registers, "registers", config.num_registers > 0),
            ("pos_embed", "positions.0.table", config.positions == "learned_1d"),
        ):
            if exists:
                declared.append(rule(theirs, ours))
        for i in range(config.depth):
            declared += self.block_rules(config, f"blocks.{i}")
        declared += norm_rules(config, "fc_norm" if config.norm_after_pooling else "norm", "norm")
        if config.pooling == "attention":
            declared.append(rule("attn_pool.latent", "attention_pooling.probe"))
            for theirs, ours in (
                ("q", "to_q"),
                ("kv", "to_kv"),
                ("proj", "to_out"),
                ("mlp.fc1", "mlp.expand"),
                ("mlp.fc2", "mlp.contract"),
            ):
                declared += layer(f"attn_pool.{theirs}", f"attention_pooling.{ours}")
            declared += norm_rules(config, "attn_pool.norm", "attention_pooling.norm")
        if config.representation_width:
            declared += layer("pre_logits.fc", "representation")
        if config.num_classes:
            declared += layer("head", "head")
            if config.has_distillation_token:
                declared += layer("head_dist", "distillation_head")
        return declared

    def patch_rules(self, config: ViTConfig) -> list[Rule]:
        """Declare the patch projection, and a hybrid's ResNet before it."""
        declared = with_bias("patch_embed.proj", "patch_projection", has_bias=config.patch_bias)
        if config.embedding_norm:
            declared += norm_rules(config, "norm_pre", "embedding_norm")
        return [*declared, *stem_rules(config)]

    def block_rules(self, config: ViTConfig, block: str) -> list[Rule]:
        """Declare one encoder layer."""
        if self.family == "dinov2" and config.mlp == "swiglu":
            fused = {**BLOCK, "expand": "w12", "contract": "w3"}
            return named_rules(config, fused, theirs=block, ours=block)
        return block_rules(config, theirs=block, ours=block)

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why timm's VisionTransformer, or DINOv2's, cannot hold a model."""
        is_timm = self.family == "timm"
        reason = refuse_odd_vit(
            config,
            where=self.name,
            instead="the layout vitrine holds every model",
            poolings=("class_token", "average", "attention") if is_timm else ("class_token",),
            stem=is_timm,
            idle_class_token=True,
            norm_after_pooling=True,
            registers=True,
            distillation=is_timm,
            layer_scale=True,
            qk_norm=is_timm,
            no_qkv_bias=True,
            activations=is_timm,
            rms_norm=is_timm,
            branches=is_timm,
            swiglu=True,
            no_patch_bias=is_timm,
            embedding_norm=is_timm,
            only_erf=not is_timm,
            pools_patches=is_timm,
            only_square=not is_timm,
        )
        if reason and "representation layer" in reason:
            return "timm drops the representation layer before the head; npz, torchvision and vitrine keep it"
        if reason is None and is_timm:
            assert isinstance(config, ViTConfig)
            if config.embedding_norm == config.patch_bias:
                return "timm has an embedding norm exactly if patches have no bias; the layout vitrine can hold it"
        if reason is None and not is_timm:
            assert isinstance(config, ViTConfig)
            if config.num_classes:
                return "DINOv2's files have no head; the layout timm has one"
            if config.layer_scale is None:
                return "DINOv2 always has LayerScale; the layout timm can do without"
        return reason

    def left_out(self, name: str) -> str | None:
        """Recognise the tensors that training leaves in such files."""
        if name == "mask_token" or name.startswith("decoder_"):
            return "only used by masked pre-training"
        if name.startswith(("dino_head.", "ibot_head.", "dino_loss.", "ibot_patch_loss.")):
            return "a head of self-supervised training"
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return timm's or DINOv2's preprocessing."""
        size, channels = config.image_size, config.channels
        is_distilled = isinstance(config, ViTConfig) and config.has_distillation_token
        mean, std = (0.5,) * channels, (0.5,) * channels
        if channels == len(IMAGENET_MEAN) and (self.family == "dinov2" or is_distilled):
            mean, std = IMAGENET_MEAN, IMAGENET_STD
        usual = DEFAULT_CROP if max(size) < FULL_CROP_FROM else 1.0
        crop = DINOV2_CROP if self.family == "dinov2" else usual
        return Preprocess(
            size=size, rule="shorter", crop_fraction=crop, interpolation="bicubic", mean=mean, std=std
        )


def recognise(index: Index) -> TimmLayout | None:
    """Recognise timm's names, and DINOv2's by its mask token or the name of its registers."""
    attentions = ("blocks.0.attn.qkv.weight", "blocks.0.attns.0.attn.qkv.weight")
    if "patch_embed.proj.weight" not in index or not any(name in index for name in attentions):
        return None
    if "decoder_pos_embed" in index:  # a masked autoencoder with its decoder (MAE)
        return TimmLayout()
    if "mask_token" in index or "register_tokens" in index:
        return TimmLayout(family="dinov2")
    # DINOv2 without its mask token (an exported graph): LayerScale, a class slot, and no head.
    scaled = "blocks.0.ls1.gamma" in index and "head.weight" not in index and "reg_token" not in index
    table = index["pos_embed"].shape if "pos_embed" in index else ()
    if scaled and "cls_token" in index and len(table) == 3 and is_square(table[1] - 1):
        return TimmLayout(family="dinov2")
    return TimmLayout()


def has_no_prefix(index: Index) -> bool:
    """Return whether all tokens are patches, so that pooling has no choice."""
    return not any(name in index for name in ("cls_token", "reg_token", "dist_token"))
