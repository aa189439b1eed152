"""Hugging Face's ViT, DeiT and DINOv2, with the tensor names of transformers 4 and those of 5."""

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
from vitrine.checkpoints.layouts.rules import Rule, layer, part, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig

Family = Literal["vit", "deit", "dinov2"]
GELUS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
GELU_NAMES = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}
DEFAULT_EPS = {"vit": 1e-12, "deit": 1e-12, "dinov2": 1e-6}


@dataclass(frozen=True, kw_only=True)
class HuggingFaceLayout:
    """Names of one family; `prefix` if the model has a head, `is_new` for transformers 5."""

    family: Family = "vit"
    prefix: str = "vit."
    is_new: bool = False

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        label = {"vit": "ViT", "deit": "DeiT", "dinov2": "DINOv2"}[self.family]
        return f"Hugging Face {label}" + (", names of transformers 5" if self.is_new else "")

    @property
    def heads(self) -> tuple[str, str]:
        """Names of the head and of the distillation head."""
        return ("cls_classifier", "distillation_classifier") if self.family == "deit" else ("classifier", "")

    def block(self, index: int) -> str:
        """Return the prefix of one encoder layer."""
        listed = "layers" if self.is_new and self.family != "dinov2" else "encoder.layer"
        return f"{self.prefix}{listed}.{index}."

    @property
    def parts(self) -> dict[str, str]:
        """Return the names inside an encoder layer."""
        new = self.is_new
        attention = {
            "query": "attention.q_proj" if new else "attention.attention.query",
            "key": "attention.k_proj" if new else "attention.attention.key",
            "value": "attention.v_proj" if new else "attention.attention.value",
            "out": "attention.o_proj" if new else "attention.output.dense",
        }
        if self.family == "dinov2":
            return attention | {
                "norm_1": "norm1",
                "norm_2": "norm2",
                "expand": "mlp.fc1",
                "contract": "mlp.fc2",
                "gates": "mlp.gate_proj" if new else "mlp.weights_in",
                "values": "mlp.up_proj" if new else "mlp.weights_in",
                "gated_contract": "mlp.down_proj" if new else "mlp.weights_out",
            }
        return attention | {
            "norm_1": "layernorm_before",
            "norm_2": "layernorm_after",
            "expand": "mlp.fc1" if new else "intermediate.dense",
            "contract": "mlp.fc2" if new else "output.dense",
        }

    def wants_slots(self, config: ModelConfig) -> bool:
        """Hugging Face's table begins with the positions of the class and distillation token."""
        return True

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; heads, eps and GELU from config.json, if present."""
        said, embeddings = hints.settings, f"{self.prefix}embeddings."
        activation = said.get("hidden_act", "gelu")
        if activation not in GELUS:
            raise CheckpointError(
                f"{hints.path} has the unknown activation {activation!r}; known: {', '.join(GELUS)}"
            )
        block, parts = self.block(0), self.parts
        width = shape_of(index, f"{embeddings}patch_embeddings.projection.weight", hints=hints, axes=4)[0]
        options, notes = self.read_head(index, hints, width=width)
        registers = index.get(f"{embeddings}register_tokens")
        is_distilled = f"{embeddings}distillation_token" in index
        is_gated = f"{block}{parts.get('gated_contract', '')}.weight" in index
        last = parts["gated_contract" if is_gated else "contract"]
        described = vit_config(
            index,
            hints,
            patch_kernel=index[f"{embeddings}patch_embeddings.projection.weight"].shape,
            table=f"{embeddings}position_embeddings",
            depth=count(index, self.block(0).replace(".0.", r".(\d+).")),
            num_slots=1 + int(is_distilled),
            num_heads=hints.num_heads or said.get("num_attention_heads"),
            mlp="swiglu" if is_gated else "dense",
            mlp_width=shape_of(index, f"{block}{last}.weight", hints=hints, axes=2)[1],
            num_registers=registers.shape[1] if registers else 0,
            has_distillation_token=is_distilled,
            layer_scale=1.0 if self.family == "dinov2" else None,
            qkv_bias=f"{block}{parts['query']}.bias" in index,
            gelu=GELUS[activation],
            norm_eps=float(said.get("layer_norm_eps", DEFAULT_EPS[self.family])),
            position_resampling="bicubic",
            **options,
        )
        return Configured(described.config, (*described.notes, *notes))

    def read_head(self, index: Index, hints: Hints, *, width: int) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Recognise head and representation layer: the pooler counts only if no classifier ignores it."""
        head, pooler = index.get(f"{self.heads[0]}.weight"), index.get(f"{self.prefix}pooler.dense.weight")
        if head is not None and head.shape[1] == width:
            return {"num_classes": head.shape[0]}, ()
        if head is not None:
            note = "skipped the classifier, which reads the class token and the mean of the patches together"
            return {"num_classes": None}, (note,)
        if self.family == "deit" and "classifier.weight" in index:
            raise CheckpointError(
                f"{hints.path} has one classifier beside a distillation token; "
                "only models with both heads (DeiTForImageClassificationWithTeacher) can be read"
            )
        if pooler is None:
            return {"num_classes": None}, ()
        if hints.settings.get("pooler_act", "tanh") != "tanh":
            raise CheckpointError(
                f"{hints.path} has the unknown pooler {hints.settings['pooler_act']!r}; known: tanh"
            )
        return {"num_classes": None, "representation_width": pooler.shape[0]}, ()

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, ViTConfig)
        p, embeddings = self.prefix, f"{self.prefix}embeddings."
        declared = layer(f"{embeddings}patch_embeddings.projection", "patch_projection")
        declared.append(rule(f"{embeddings}cls_token", "class_token"))
        declared.append(rule(f"{embeddings}position_embeddings", "positions.0.table"))
        if config.has_distillation_token:
            declared.append(rule(f"{embeddings}distillation_token", "distillation_token"))
        if config.num_registers:
            declared.append(rule(f"{embeddings}register_tokens", "registers"))
        for i in range(config.depth):
            declared += self.block_rules(config, index=i)
        declared += layer(f"{p}layernorm", "norm")
        if config.representation_width:
            declared += layer(f"{p}pooler.dense", "representation")
        if config.num_classes:
            declared += layer(self.heads[0], "head")
            if config.has_distillation_token:
                declared += layer(self.heads[1], "distillation_head")
        return declared

    def block_rules(self, config: ViTConfig, *, index: int) -> list[Rule]:
        """Declare one encoder layer: q, k and v are separate layers."""
        theirs, ours, parts = self.block(index), f"blocks.{index}", self.parts
        declared = []
        for i, which in enumerate(("query", "key", "value")):
            for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
                fused = f"{ours}.attention.to_qkv.{kind}"
                declared.append(rule(f"{theirs}{parts[which]}.{kind}", fused, part(i, of=3)))
        is_gated = config.mlp == "swiglu"
        for name, our_name in (
            ("out", "attention.to_out"),
            ("norm_1", "norm_1"),
            ("norm_2", "norm_2"),
            ("gated_contract" if is_gated else "contract", "mlp.contract"),
        ):
            declared += layer(f"{theirs}{parts[name]}", f"{ours}.{our_name}")
        if not is_gated or parts["gates"] == parts["values"]:
            declared += layer(f"{theirs}{parts['gates' if is_gated else 'expand']}", f"{ours}.mlp.expand")
        else:
            for i, name in enumerate(("gates", "values")):
                for kind in ("weight", "bias"):
                    fused = f"{ours}.mlp.expand.{kind}"
                    declared.append(rule(f"{theirs}{parts[name]}.{kind}", fused, part(i, of=2)))
        if config.layer_scale is not None:
            declared += [rule(f"{theirs}layer_scale{k}.lambda1", f"{ours}.scale_{k}.gain") for k in (1, 2)]
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why Hugging Face's classes cannot hold a model."""
        is_dino = self.family == "dinov2"
        reason = refuse_odd_vit(
            config,
            where="Hugging Face's ViT",
            instead="the layouts timm and vitrine can",
            representation=not is_dino,
            distillation=self.family == "deit",
            layer_scale=is_dino,
            registers=is_dino,
            swiglu=is_dino,
            no_qkv_bias=True,
        )
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        if config.representation_width and config.num_classes:
            return (
                "Hugging Face's classifier ignores the representation layer; "
                "the layouts npz, torchvision and vitrine keep it"
            )
        if config.mlp == "swiglu" and swiglu_width(config) != config.mlp_width:
            return "Hugging Face's SwiGLU has other widths; the layout vitrine holds every model"
        if is_dino and config.num_classes:
            return (
                "Hugging Face's DINOv2 classifier reads twice the width; "
                "the layouts timm and vitrine can hold this head"
            )
        return None

    def left_out(self, name: str) -> str | None:
        """Recognise the tensors that transformers saves beside the model."""
        if ".pooler." in f".{name}":
            return "the pooler, which the classifier ignores"
        if name.endswith("mask_token") or name.startswith("decoder."):
            return "only used by masked pre-training"
        if name.startswith("classifier.") and self.family == "dinov2":
            return "it reads class token and mean patch together"
        return "an index, not a weight" if name.endswith("position_ids") else None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the family's preprocessing: ViT resizes to the exact size, pixels from -1 to 1."""
        channels = config.channels
        if self.family == "vit" or channels != len(IMAGENET_MEAN):
            return Preprocess(size=config.image_size, mean=(0.5,) * channels, std=(0.5,) * channels)
        return Preprocess(
            size=config.image_size,
            rule="shorter",
            crop_fraction=224 / 256,
            interpolation="bicubic",
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        )


def swiglu_width(config: ViTConfig) -> int:
    """Return the hidden width that transformers computes for the nearest whole ratio."""
    ratio = round(1.5 * config.mlp_width / config.width)
    return (int(int(config.width * ratio) * 2 / 3) + 7) // 8 * 8


def recognise(index: Index) -> HuggingFaceLayout | None:
    """Recognise family, prefix and version of the names."""
    projection = "embeddings.patch_embeddings.projection.weight"
    prefix = next(
        (p for p in ("vit.", "deit.", "dinov2.", "dinov2_with_registers.", "") if p + projection in index),
        None,
    )
    if prefix is None:
        return None
    family: Family = "vit"
    if f"{prefix}encoder.layer.0.layer_scale1.lambda1" in index:
        family = "dinov2"
    elif f"{prefix}embeddings.distillation_token" in index:
        family = "deit"
    is_new = any(".attention.q_proj." in name for name in index)
    return HuggingFaceLayout(family=family, prefix=prefix, is_new=is_new)


def for_model(config: ModelConfig) -> HuggingFaceLayout:
    """Return the layout to write for a model: names of transformers 4, which 5 reads as well."""
    if not isinstance(config, ViTConfig):
        return HuggingFaceLayout()
    if config.has_distillation_token:
        return HuggingFaceLayout(family="deit", prefix="deit." if config.num_classes else "")
    if config.layer_scale is not None or config.num_registers:
        return HuggingFaceLayout(family="dinov2", prefix="")
    return HuggingFaceLayout(prefix="vit." if config.num_classes else "")
