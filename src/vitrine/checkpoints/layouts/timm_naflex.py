"""timm's NaFlex models: ViTs for pictures of any shape, under names of their own (`embeds.`).

They are timm's ViTs with another embedding: patches through a dense layer, a table of positions with two axes (or one
per axis), no positions before the patches. A file alone does not say how positions are resampled.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from vitrine.checkpoints.layouts.layout import Configured, Hints, shape_of
from vitrine.checkpoints.layouts.rules import FLAT_PATCHES, Rule, View, rule, split_axis
from vitrine.checkpoints.layouts.siglip import NAFLEX_RULE, unflattened
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.checkpoints.tensors import Index, Spec
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig

EMBEDS = "embeds."
NAMES = {"patch_embed.proj.weight": "embeds.proj.weight", "patch_embed.proj.bias": "embeds.proj.bias"} | {
    name: EMBEDS + name for name in ("cls_token", "reg_token", "pos_embed")
}
RULES = {"bilinear": NAFLEX_RULE, "bicubic": "bicubic_antialias"}
USUAL_SIDE = 24  # patches per side of the square that timm evaluates published models at
SIGLIP = "naflexvit_base_patch16_siglip"
ANY_NAFLEX = (
    "naflexvit_base_patch16_map"  # the arguments determine everything that its name does, and LayerScale
)


@dataclass(frozen=True, kw_only=True)
class TimmNaFlexLayout(TimmLayout):
    """timm's names of a NaFlexVit, on the rules of its VisionTransformer."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "timm NaFlex"

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """Tokens before the patches never have positions."""
        return False

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config as that of a ViT of timm with one table; then how its positions are resampled."""
        arguments = hints.settings.get("model_args") or {}
        name = architecture_of(index, hints)
        flat = shape_of(index, "embeds.proj.weight", hints=hints, axes=2)
        kernel = unflattened(flat, channels=arguments.get("in_chans", 3), path=hints.path)
        grid = grid_in(index, hints)
        dtype = index["embeds.proj.weight"].dtype
        plain = {theirs: index[ours] for theirs, ours in NAMES.items() if ours in index}
        plain |= {one: spec for one, spec in index.items() if not one.startswith(EMBEDS)}
        plain["patch_embed.proj.weight"] = Spec(kernel, dtype)
        plain["pos_embed"] = Spec((1, grid[0] * grid[1], kernel[0]), dtype)
        known = dataclasses.replace(
            hints,
            image_size=(grid[0] * kernel[2], grid[1] * kernel[3]),
            settings={**hints.settings, "architecture": name},
        )
        read = super().configure(plain, known)
        assert isinstance(read.config, ViTConfig)
        factorised = "embeds.pos_embed_y" in index
        mode = arguments.get("pos_embed_interp_mode", "bilinear" if "siglip" in name else "bicubic")
        keeps = arguments.get("pos_embed_ar_preserving", "_par" in name)
        config = dataclasses.replace(
            read.config,
            has_prefix_positions=False,
            positions="factorised" if factorised else "learned_1d",
            position_resampling="bilinear" if factorised else RULES[mode],
            positions_keep_aspect=keeps,
        )
        if hints.settings.get("architecture"):
            return Configured(config, read.notes)
        note = (
            f"the file does not contain how positions are resampled; those of {name} assumed: set "
            "position_resampling and positions_keep_aspect to change it"
        )
        return Configured(config, (*read.notes, note))

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor: those of a ViT of timm, the embedding under its own names and shapes."""
        assert isinstance(config, ViTConfig)
        rows = config.grid_size[0]
        declared = [
            dataclasses.replace(one, theirs=NAMES.get(one.theirs, one.theirs))
            for one in super().rules(config)
            if one.theirs not in ("patch_embed.proj.weight", "pos_embed")
        ]
        declared.append(rule("embeds.proj.weight", "patch_projection.weight", FLAT_PATCHES))
        if config.positions == "factorised":
            axes = (("y", "rows"), ("x", "columns"))
            declared += [rule(f"embeds.pos_embed_{axis}", f"positions.0.{ours}") for axis, ours in axes]
        elif config.positions == "learned_1d":
            on_grid = View("reshaped", lambda table: split_axis(table, 1, rows))
            declared.append(rule("embeds.pos_embed", "positions.0.table", on_grid))
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why timm's NaFlexVit cannot hold a model."""
        if not isinstance(config, ViTConfig):
            return super().refusal(config)
        plain = config
        if config.positions == "factorised":
            plain = dataclasses.replace(config, positions="learned_1d")
        reason = super().refusal(dataclasses.replace(plain, positions_keep_aspect=False))
        if reason:
            return reason
        for is_wanted, what in (
            (config.stem is not None, "a stem"),
            (config.num_branches > 1, "parallel branches"),
            (config.embedding_norm, "a norm of the embedding"),
            (config.mlp == "swiglu", "SwiGLU"),
            (config.has_distillation_token, "a distillation token"),
        ):
            if is_wanted:
                return f"{self.name} cannot hold {what}; the layouts timm and vitrine can"
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return timm's preprocessing: the aspect ratio kept, as many patches as the usual square has."""
        assert isinstance(config, ViTConfig)
        grey = (0.5,) * config.channels
        return Preprocess(
            size=config.image_size, interpolation="bicubic", mean=grey, std=grey, max_patches=USUAL_SIDE**2,
            patch=config.patch_size,
        )  # fmt: skip


def architecture_of(index: Index, hints: Hints) -> str:
    """Return timm's name of the model; of a bare file, that of the published model with such tensors."""
    stated = hints.settings.get("architecture")
    if stated:
        return str(stated)
    if "embeds.pos_embed_y" in index:
        return "naflexvit_base_patch16_parfac_gap"
    has_siglips_parts = "attn_pool.latent" in index and "blocks.0.ls1.gamma" not in index
    return SIGLIP if has_siglips_parts else "naflexvit_base_patch16_gap"


def grid_in(index: Index, hints: Hints) -> tuple[int, int]:
    """Return rows and columns of the position table."""
    if "embeds.pos_embed_y" in index:
        rows, columns = (
            shape_of(index, f"embeds.pos_embed_{axis}", hints=hints, axes=3)[1] for axis in ("y", "x")
        )
        return rows, columns
    _, rows, columns, _ = shape_of(index, "embeds.pos_embed", hints=hints, axes=4)
    return rows, columns


def recognise(index: Index) -> TimmNaFlexLayout | None:
    """Recognise a NaFlexVit by the names of its embedding."""
    is_naflex = "embeds.proj.weight" in index and "blocks.0.attn.qkv.weight" in index
    return TimmNaFlexLayout() if is_naflex and len(index["embeds.proj.weight"].shape) == 2 else None


def is_naflex(config: ViTConfig) -> bool:
    """Return whether, of timm's models, only a NaFlexVit resamples positions as this one does."""
    return config.positions_keep_aspect or config.position_resampling == NAFLEX_RULE


def naflex_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments with which timm builds such a model."""
    mode = "bilinear" if config.position_resampling.startswith("bilinear") else "bicubic"
    activation = {"tanh": "gelu_tanh", "erf": "gelu"}[config.gelu]
    arguments: dict[str, Any] = {
        "in_chans": config.channels,
        "patch_size": list(config.patch_size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": (config.mlp_width + 0.5) / config.width,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
        "class_token": config.reads_class_token,
        "reg_tokens": config.num_registers,
        "pos_embed": "factorized" if config.positions == "factorised" else "learned",
        "pos_embed_grid_size": list(config.grid_size),
        "pos_embed_interp_mode": mode,
        "pos_embed_ar_preserving": config.positions_keep_aspect,
        "global_pool": {"class_token": "token", "average": "avg", "attention": "map"}[config.pooling],
        "fc_norm": config.norm_after_pooling,
        "act_layer": activation if config.activation == "gelu" else config.activation,
    }
    if config.norm == "rms_norm":
        arguments["norm_layer"] = "rmsnorm"
    if config.pooling == "attention" and config.pools_leading_tokens and config.num_leading_tokens:
        arguments["pool_include_prefix"] = True
    if config.layer_scale is None:  # timm's create_model drops arguments that are None
        del arguments["init_values"]
        return SIGLIP, arguments
    return ANY_NAFLEX, arguments
