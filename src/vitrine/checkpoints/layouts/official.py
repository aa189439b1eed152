"""The authors' JAX files (.npz) of ViTs and hybrids, in four generations.

A: the released files. B: the current official code, with other numbers in the names. C: big_vision, with the
positions at the root and without a slot for the class token. D: the same with all layers stacked ("scanned").
"""

import re
from dataclasses import dataclass
from typing import Literal

from vitrine.checkpoints.layouts.layout import (
    Configured,
    Hints,
    count,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.rules import (
    FOUR_AXES,
    HWIO,
    SAME,
    TRANSPOSED,
    Rule,
    View,
    heads_of_bias,
    heads_of_kernel,
    joined_heads,
    rule,
)
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.stem_configs import ResNetStemConfig

Generation = Literal["A", "B", "C", "D"]
PREFIXES = ("", "params/img/", "params/", "opt/target/", "img/", "target/")


@dataclass(frozen=True, kw_only=True)
class OfficialLayout:
    """One generation of the official names."""

    generation: Generation = "A"
    prefix: str = ""
    has_old_norms: bool = False
    """Whether group norms are (1, 1, 1, channels)."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return f"official npz, generation {self.generation}"

    @property
    def has_slot(self) -> bool:
        """Whether the class token has a position."""
        return self.generation in ("A", "B")

    @property
    def table(self) -> str:
        """Name of the positions."""
        return self.prefix + (
            "Transformer/posembed_input/pos_embedding" if self.has_slot else "pos_embedding"
        )

    def wants_slots(self, config: ModelConfig) -> bool:
        """Generations A and B give the class token a position, big_vision does not."""
        return self.has_slot

    def block(self, layer: int) -> str:
        """Return the prefix of one encoder layer."""
        return f"{self.prefix}Transformer/encoderblock" + ("/" if self.generation == "D" else f"_{layer}/")

    @property
    def parts(self) -> dict[str, str]:
        """Return the names inside an encoder layer; flax has numbered modules in different ways over the years."""
        numbers = ("1", "2", "3") if self.generation == "A" else ("0", "1", "0")
        return {
            "attention": f"MultiHeadDotProductAttention_{numbers[0]}",
            "norm_2": f"LayerNorm_{numbers[1]}",
            "mlp": f"MlpBlock_{numbers[2]}",
        }

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the shape of the query kernel gives the number of heads."""
        p, lead = self.prefix, int(self.generation == "D")
        block, parts = self.block(0), self.parts
        rows, columns, inner, width = shape_of(index, f"{p}embedding/kernel", hints=hints, axes=4)
        query = shape_of(index, f"{block}{parts['attention']}/query/kernel", hints=hints, axes=3 + lead)
        hidden = shape_of(index, f"{block}{parts['mlp']}/Dense_0/kernel", hints=hints, axes=2 + lead)[-1]
        depth = query[0] if lead else count(index, re.escape(p) + r"Transformer/encoderblock_(\d+)/")
        stem, channels = self.read_stem(index, hints)
        has_class_token, has_map = f"{p}cls" in index, f"{p}MAPHead_0/probe" in index
        table = self.table if self.table in index else None
        pre, head = index.get(f"{p}pre_logits/bias"), index.get(f"{p}head/bias")
        return vit_config(
            index,
            hints,
            patch_kernel=(width, inner, rows, columns),
            table=table,
            depth=depth,
            num_slots=int(has_class_token and self.has_slot),
            num_heads=query[-2],
            channels=channels or inner,
            mlp_width=hidden,
            stem=stem,
            pooling="attention" if has_map else "class_token" if has_class_token else "average",
            has_class_token=has_class_token,
            has_prefix_positions=self.has_slot,
            # big_vision does not save fixed positions; the older code always has a table.
            positions="learned_1d" if table else "none" if self.has_slot else "sincos_2d",
            representation_width=pre.shape[0] if pre else None,
            num_classes=head.shape[0] if head else None,
            gelu="tanh",
            norm_eps=1e-6,
            position_resampling="linear_aligned",
        )

    def read_stem(self, index: Index, hints: Hints) -> tuple[ResNetStemConfig | None, int | None]:
        """Return a hybrid's stem and the image's channels, or nothing for a plain ViT."""
        p = self.prefix
        if f"{p}conv_root/kernel" not in index:
            return None, None
        root = shape_of(index, f"{p}conv_root/kernel", hints=hints, axes=4)
        stages = count(index, re.escape(p) + r"block(\d+)/unit")
        units = tuple(count(index, re.escape(p) + rf"block{i + 1}/unit(\d+)/") for i in range(stages))
        return ResNetStemConfig(units=units, width=root[-1]), root[2]

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every array."""
        assert isinstance(config, ViTConfig)
        p = self.prefix
        declared = [
            rule(f"{p}embedding/kernel", "patch_projection.weight", HWIO),
            rule(f"{p}embedding/bias", "patch_projection.bias"),
        ]
        if config.reads_class_token:
            declared.append(rule(f"{p}cls", "class_token"))
        if config.positions == "learned_1d":
            declared.append(rule(self.table, "positions.0.table"))
        declared += self.stem_rules(config) + self.block_rules(config)
        declared += norm(f"{p}Transformer/encoder_norm", "norm")
        if config.pooling == "attention":
            declared += self.pooling_rules(config)
        if config.representation_width:
            declared += dense(f"{p}pre_logits", "representation")
        if config.num_classes:
            declared += dense(f"{p}head", "head")
        return declared

    def block_rules(self, config: ViTConfig) -> list[Rule]:
        """Declare the encoder, layer by layer or stacked."""
        H, parts, declared = config.num_heads, self.parts, []

        def each(theirs: str, ours: str, view: View = SAME) -> None:
            names = [f"blocks.{i}.{ours}" for i in range(config.depth)]
            if self.generation == "D":
                declared.append(Rule(self.block(0) + theirs, tuple(names), view, is_stacked=True))
            else:
                declared.extend(rule(self.block(i) + theirs, name, view) for i, name in enumerate(names))

        attention, mlp = parts["attention"], parts["mlp"]
        for theirs, ours in (("LayerNorm_0", "norm_1"), (parts["norm_2"], "norm_2")):
            each(f"{theirs}/scale", f"{ours}.weight")
            each(f"{theirs}/bias", f"{ours}.bias")
        for i, which in enumerate(("query", "key", "value")):
            fused = "attention.to_qkv"
            each(f"{attention}/{which}/kernel", f"{fused}.weight", heads_of_kernel(i, of=3, num_heads=H))
            each(f"{attention}/{which}/bias", f"{fused}.bias", heads_of_bias(i, of=3, num_heads=H))
        each(f"{attention}/out/kernel", "attention.to_out.weight", joined_heads(num_heads=H))
        each(f"{attention}/out/bias", "attention.to_out.bias")
        for i, ours in enumerate(("mlp.expand", "mlp.contract")):
            each(f"{mlp}/Dense_{i}/kernel", f"{ours}.weight", TRANSPOSED)
            each(f"{mlp}/Dense_{i}/bias", f"{ours}.bias")
        return declared

    def pooling_rules(self, config: ViTConfig) -> list[Rule]:
        """Declare attention pooling."""
        p, ours, H = f"{self.prefix}MAPHead_0/", "attention_pooling", config.num_heads
        inside = f"{p}MultiHeadDotProductAttention_0/"
        declared = [rule(f"{p}probe", f"{ours}.probe")]
        for which, fused, i, of in (
            ("query", "to_q", 0, 1),
            ("key", "to_kv", 0, 2),
            ("value", "to_kv", 1, 2),
        ):
            kernel, bias = heads_of_kernel(i, of=of, num_heads=H), heads_of_bias(i, of=of, num_heads=H)
            declared.append(rule(f"{inside}{which}/kernel", f"{ours}.{fused}.weight", kernel))
            declared.append(rule(f"{inside}{which}/bias", f"{ours}.{fused}.bias", bias))
        declared.append(rule(f"{inside}out/kernel", f"{ours}.to_out.weight", joined_heads(num_heads=H)))
        declared.append(rule(f"{inside}out/bias", f"{ours}.to_out.bias"))
        declared += norm(f"{p}LayerNorm_0", f"{ours}.norm")
        declared += dense(f"{p}MlpBlock_0/Dense_0", f"{ours}.mlp.expand")
        return declared + dense(f"{p}MlpBlock_0/Dense_1", f"{ours}.mlp.contract")

    def stem_rules(self, config: ViTConfig) -> list[Rule]:
        """Declare a hybrid's ResNet."""
        if not isinstance(config.stem, ResNetStemConfig):
            return []
        p, shape = self.prefix, FOUR_AXES if self.has_old_norms else SAME
        declared = [rule(f"{p}conv_root/kernel", "stem.root_conv.weight", HWIO)]
        declared += norm(f"{p}gn_root", "stem.root_norm", shape)
        for i, num_units in enumerate(config.stem.units):
            for j in range(num_units):
                theirs, ours = f"{p}block{i + 1}/unit{j + 1}", f"stem.stages.{i}.{j}"
                for k in (1, 2, 3):
                    declared.append(rule(f"{theirs}/conv{k}/kernel", f"{ours}.conv_{k}.weight", HWIO))
                    declared += norm(f"{theirs}/gn{k}", f"{ours}.norm_{k}", shape)
                if j == 0:
                    declared.append(rule(f"{theirs}/conv_proj/kernel", f"{ours}.shortcut.0.weight", HWIO))
                    declared += norm(f"{theirs}/gn_proj", f"{ours}.shortcut.1", shape)
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why the official code cannot hold a model."""
        return refuse_odd_vit(
            config,
            where=f"an official .npz of generation {self.generation}",
            instead="the layout vitrine holds every model",
            poolings=("class_token", "average") if self.has_slot else ("class_token", "average", "attention"),
            stem=True,
            representation=True,
            fixed_positions=not self.has_slot,
            only_tanh=True,
        )

    def left_out(self, name: str) -> str | None:
        """Recognise the other arrays that big_vision saves."""
        if not name.startswith(self.prefix) and name.split("/", maxsplit=1)[0] in (
            "opt",
            "extra",
            "step",
            "states",
            "chrono",
        ):
            return "training state"
        if self.prefix.endswith("img/") and not name.startswith(self.prefix):
            return "not of the image tower"
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the official preprocessing: resize to the exact size, pixels from -1 to 1."""
        return Preprocess(size=config.image_size, mean=(0.5,) * config.channels, std=(0.5,) * config.channels)


def recognise(index: Index) -> OfficialLayout | None:
    """Recognise the generation by its names."""
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in index), None)
    if prefix is None:
        return None
    blocks = f"{prefix}Transformer/encoderblock"
    old = index.get(f"{prefix}gn_root/scale")
    generation: Generation
    if any(name.startswith(f"{blocks}/") for name in index):
        generation = "D"
    elif any(name.startswith(f"{blocks}_0/MultiHeadDotProductAttention_1/") for name in index):
        generation = "A"
    elif f"{prefix}Transformer/posembed_input/pos_embedding" in index:
        generation = "B"
    else:
        generation = "C"
    has_old_norms = old is not None and len(old.shape) == 4
    return OfficialLayout(generation=generation, prefix=prefix, has_old_norms=has_old_norms)


def of_generation(generation: Generation) -> OfficialLayout:
    """Return the layout to write: big_vision's generations under `params/`."""
    return OfficialLayout(generation=generation, prefix="params/" if generation in ("C", "D") else "")


def dense(theirs: str, ours: str) -> list[Rule]:
    """Declare kernel and bias of a dense layer."""
    return [
        rule(f"{theirs}/kernel", f"{ours}.weight", TRANSPOSED),
        rule(f"{theirs}/bias", f"{ours}.bias"),
    ]


def norm(theirs: str, ours: str, view: View = SAME) -> list[Rule]:
    """Declare scale and bias of a norm."""
    return [rule(f"{theirs}/scale", f"{ours}.weight", view), rule(f"{theirs}/bias", f"{ours}.bias", view)]
