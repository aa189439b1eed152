"""T2T-ViT's files, as its authors publish them."""

from dataclasses import dataclass

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.layouts.rules import Rule, View, layer, rule
from vitrine.checkpoints.layouts.timm_parts import block_rules
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.stem_configs import TokensToTokenConfig

MODULE = "tokens_to_token"
DEFAULT_CROP = 0.9
# These files have a dense layer in place of our kernel for patches of one cell.
DENSE = View("reshaped", lambda kernel: kernel.flatten(1))


@dataclass(frozen=True, kw_only=True)
class T2TLayout:
    """The names of yitu-opensource/T2T-ViT."""

    @property
    def name(self) -> str:
        """The name in reports."""
        return "T2T-ViT"

    def wants_slots(self, config: ModelConfig) -> bool:
        """The table begins with the class token's position."""
        return True

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the number of heads is not in the files."""
        width, gathered = shape_of(index, f"{MODULE}.project.weight", hints=hints, axes=2)
        is_performer = f"{MODULE}.attention1.w" in index
        token_width = shape_of(index, f"{MODULE}.attention1.norm2.weight", hints=hints, axes=1)[0]
        stem = TokensToTokenConfig(
            mixing="performer" if is_performer else "transformer", token_width=token_width
        )
        first = shape_of(index, f"{MODULE}.attention1.norm1.weight", hints=hints, axes=1)[0]
        channels, rest = divmod(first, stem.kernels[0] ** 2)
        if rest or gathered != stem.out_channels or count(index, rf"{MODULE}\.attention(\d+)\.") != 2:
            raise CheckpointError(
                f"{hints.path} splits images in another way than the published T2T-ViTs: "
                f"{first} and {gathered} values per token"
            )
        head = index.get("head.bias")
        return vit_config(
            index,
            hints,
            patch_kernel=(width, gathered, 1, 1),
            table="pos_embed",
            depth=count(index, r"blocks\.(\d+)\."),
            num_slots=1,
            num_heads=None,
            channels=channels,
            stem=stem,
            mlp_width=shape_of(index, "blocks.0.mlp.fc1.weight", hints=hints, axes=2)[0],
            num_classes=head.shape[0] if head else None,
            qkv_bias="blocks.0.attn.qkv.bias" in index,
            positions="sincos_1d",
            position_resampling="bicubic",
            gelu="erf",
            norm_eps=1e-5,
            initialisation="deit",
        )

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, ViTConfig) and isinstance(config.stem, TokensToTokenConfig)
        declared = [rule("cls_token", "class_token"), rule("pos_embed", "positions.0.table")]
        is_performer = config.stem.mixing == "performer"
        for i in range(len(config.stem.kernels) - 1):
            theirs, ours = f"{MODULE}.attention{i + 1}", f"stem.layers.{i}"
            declared += performer_rules(theirs, ours) if is_performer else transformer_rules(theirs, ours)
        declared.append(rule(f"{MODULE}.project.weight", "patch_projection.weight", DENSE))
        declared.append(rule(f"{MODULE}.project.bias", "patch_projection.bias"))
        for i in range(config.depth):
            declared += block_rules(config, theirs=f"blocks.{i}", ours=f"blocks.{i}")
        declared += layer("norm", "norm")
        return declared + (layer("head", "head") if config.num_classes else [])

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse all models but T2T-ViT as it was published."""
        if not isinstance(config, ViTConfig) or not isinstance(config.stem, TokensToTokenConfig):
            return "T2T-ViT's files hold only models with its tokens-to-token stem"
        published = TokensToTokenConfig(mixing=config.stem.mixing, token_width=config.stem.token_width)
        wants = {
            "another way to split images": config.stem.splits != published.splits
            or config.patch_size != (1, 1),
            f"{config.positions} positions": config.positions not in ("sincos_1d", "learned_1d")
            or config.position_placement != "stem",
            f"{config.pooling} pooling": config.pooling != "class_token",
            "registers": config.num_registers > 0,
            "a distillation token": config.has_distillation_token,
            "LayerScale": config.layer_scale is not None,
            "norms of queries and keys": config.qk_norm,
            "a norm of the mixed values of all heads": config.attention_norm,
            "a representation layer before the head": config.representation_width is not None,
            "the tanh form of GELU": config.gelu == "tanh",
        }
        for what, is_wanted in wants.items():
            if is_wanted:
                return f"T2T-ViT's files cannot hold {what}; the layout vitrine can"
        return None

    def left_out(self, name: str) -> str | None:
        """Expect only weights in these files."""
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the authors' rule: ImageNet's statistics, a centre crop of nine tenths."""
        return centre_cropped(config, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_fraction=DEFAULT_CROP)


def performer_rules(theirs: str, ours: str) -> list[Rule]:
    """Declare a token performer; its random features are kept in the file."""
    return [
        rule(f"{theirs}.w", f"{ours}.features"),
        *layer(f"{theirs}.kqv", f"{ours}.to_kqv"),
        *layer(f"{theirs}.proj", f"{ours}.to_out"),
        *layer(f"{theirs}.norm1", f"{ours}.norm_1"),
        *layer(f"{theirs}.norm2", f"{ours}.norm_2"),
        *layer(f"{theirs}.mlp.0", f"{ours}.mlp.expand"),
        *layer(f"{theirs}.mlp.2", f"{ours}.mlp.contract"),
    ]


def transformer_rules(theirs: str, ours: str) -> list[Rule]:
    """Declare a token transformer."""
    return [
        *layer(f"{theirs}.norm1", f"{ours}.norm_1"),
        rule(f"{theirs}.attn.qkv.weight", f"{ours}.to_qkv.weight"),
        *layer(f"{theirs}.attn.proj", f"{ours}.to_out"),
        *layer(f"{theirs}.norm2", f"{ours}.norm_2"),
        *layer(f"{theirs}.mlp.fc1", f"{ours}.mlp.expand"),
        *layer(f"{theirs}.mlp.fc2", f"{ours}.mlp.contract"),
    ]


def recognise(index: Index) -> T2TLayout | None:
    """Recognise T2T-ViT by its module."""
    return T2TLayout() if f"{MODULE}.project.weight" in index else None
