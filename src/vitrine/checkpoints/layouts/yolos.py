"""YOLOS as its authors and transformers store it: one table of positions for class token, patches and objects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vitrine.checkpoints.layouts.huggingface import GELUS, HuggingFaceLayout
from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.rules import SAME, Rule, layer, rule
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.dense.config import YolosConfig, as_encoder

NUM_LAYERS = 3
TABLE, TOKENS, PROJECTION, MIDDLE = "table", "tokens", "projection", "middle"


@dataclass(frozen=True, kw_only=True)
class YolosLayout:
    """The names of one origin; those of the ViT's blocks are timm's or Hugging Face's."""

    origin: str
    names: Mapping[str, str]
    vit: TimmLayout | HuggingFaceLayout
    vit_prefix: str
    """The prefix of the ViT's names."""
    block: str
    """Beginning of the names of a block, as a regular expression with its number."""
    hidden: str
    """Name of the weight in the first block that has as many rows as the MLP is wide."""
    norm_eps: float

    slots: ClassVar[int] = 1
    """Rows of the table before those of patches: the class token's."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return f"YOLOS, {self.origin}"

    def wants_slots(self, config: ModelConfig) -> bool:
        """The class token has a position."""
        return True

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config from shapes; the number of heads from config.json, if present."""
        num_detections = shape_of(index, self.names[TOKENS], hints=hints, axes=3)[1]
        activation = hints.settings.get("hidden_act", "gelu")
        if activation not in GELUS:
            raise CheckpointError(
                f"{hints.path} has the unknown activation {activation!r}; known: {', '.join(GELUS)}"
            )
        described = vit_config(
            index,
            hints,
            patch_kernel=shape_of(index, self.names[PROJECTION], hints=hints, axes=4),
            table=self.names[TABLE],
            depth=count(index, self.block),
            num_slots=self.slots + num_detections,
            num_heads=hints.num_heads or hints.settings.get("num_attention_heads"),
            mlp_width=shape_of(index, self.hidden, hints=hints, axes=2)[0],
            gelu=GELUS[activation],
            norm_eps=float(hints.settings.get("layer_norm_eps", self.norm_eps)),
            position_resampling="bicubic",
            num_classes=None,
        )
        assert isinstance(described.config, ViTConfig)
        classes = shape_of(index, f"{self.names['classes']}.{NUM_LAYERS - 1}.weight", hints=hints, axes=2)[0]
        config = YolosConfig(
            vit=as_encoder(described.config),
            num_classes=classes - 1,
            num_detections=num_detections,
            has_middle_positions=self.names[MIDDLE] in index,
        )
        return Configured(config, described.notes)

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, YolosConfig)
        declared = [
            replace(one, theirs=self.vit_prefix + one.theirs, ours=tuple(f"vit.{name}" for name in one.ours))
            for one in self.vit.rules(config.vit)
            if one.ours != ("positions.0.table",)
        ]
        both = ("vit.positions.0.table", "decoder.positions")
        declared += [
            Rule(self.names[TABLE], both, SAME, is_joined=True, axis=1),
            rule(self.names[TOKENS], "decoder.tokens"),
        ]
        if config.has_middle_positions:
            declared.append(rule(self.names[MIDDLE], "decoder.middle_positions"))
        for theirs, ours in (("classes", "classify"), ("boxes", "locate")):
            for number in range(NUM_LAYERS):
                declared += layer(f"{self.names[theirs]}.{number}", f"decoder.{ours}.layers.{number}")
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse to write: files are read only."""
        return "files of YOLOS are read and not written; the layout vitrine holds every model"

    def left_out(self, name: str) -> str | None:
        """Recognise tensors that are saved beside the model."""
        return "a classifier of whole pictures" if name.startswith(f"{self.vit_prefix}head.") else None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the authors' preprocessing; sizes vary there."""
        return Preprocess(size=config.image_size, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def official() -> YolosLayout:
    """Return the authors' names."""
    return YolosLayout(
        origin="official",
        names={
            TABLE: "backbone.pos_embed",
            TOKENS: "backbone.det_token",
            PROJECTION: "backbone.patch_embed.proj.weight",
            MIDDLE: "backbone.mid_pos_embed",
            "classes": "class_embed.layers",
            "boxes": "bbox_embed.layers",
        },
        vit=TimmLayout(),
        vit_prefix="backbone.",
        block=r"backbone\.blocks\.(\d+)\.",
        hidden="backbone.blocks.0.mlp.fc1.weight",
        norm_eps=1e-6,
    )


def hugging_face(index: Index) -> YolosLayout:
    """Return the names of transformers; the table of middle positions has moved between its versions."""
    middle = next((name for name in index if name.endswith(".mid_position_embeddings")), "")
    vit = HuggingFaceLayout(prefix="vit.", is_new=any(".attention.q_proj." in name for name in index))
    return YolosLayout(
        origin="Hugging Face",
        names={
            TABLE: "vit.embeddings.position_embeddings",
            TOKENS: "vit.embeddings.detection_tokens",
            PROJECTION: "vit.embeddings.patch_embeddings.projection.weight",
            MIDDLE: middle,
            "classes": "class_labels_classifier.layers",
            "boxes": "bbox_predictor.layers",
        },
        vit=vit,
        vit_prefix="",
        block=re.escape(vit.block(0)).replace(r"\.0\.", r"\.(\d+)\."),
        hidden=f"{vit.block(0)}{vit.parts['expand']}.weight",
        norm_eps=1e-12,
    )


def recognise(index: Index) -> YolosLayout | None:
    """Recognise YOLOS by its tokens and heads."""
    if "backbone.det_token" in index and "bbox_embed.layers.0.weight" in index:
        return official()
    if "vit.embeddings.detection_tokens" in index and "bbox_predictor.layers.0.weight" in index:
        return hugging_face(index)
    return None
