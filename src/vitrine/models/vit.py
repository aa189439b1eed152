"""The Vision Transformer and its hybrids (arXiv:2010.11929, section 3.1), top to bottom as in the paper.

Shapes: B images of C channels, N patches on a grid of GH x GW, T tokens (class, distillation, registers,
patches, in this order), D width, L layers, K classes.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.errors import ConfigError
from vitrine.models import choices, packed
from vitrine.models.attention import Places
from vitrine.models.axial import axis_of
from vitrine.models.config import ViTConfig, with_options
from vitrine.models.dropout import Dropout
from vitrine.models.encoder import Block, ParallelBlock, attention_pooling, cut_patches, encoder_layer
from vitrine.models.initialisation import initialise_vit
from vitrine.models.model import Model, wanted_layers
from vitrine.models.norms import make_norm
from vitrine.models.patch_dropping import drop_patches
from vitrine.models.patch_resizing import resized_kernel
from vitrine.models.positions import Grid, position_tables
from vitrine.models.rotary import RotaryPositions
from vitrine.models.sizes import require_tiling
from vitrine.models.stem_configs import HMlpStemConfig
from vitrine.models.stems import PatchNorm, build_stem
from vitrine.models.timm_keywords import POOLINGS
from vitrine.models.timm_surface import Level
from vitrine.models.touched import has_global_hooks, is_as_built, is_plain
from vitrine.models.vit_features import vit_features


class ViT(Model):
    """Map images (B, C, height, width) to logits (B, K), or to the representation if there is no head."""

    config: ViTConfig
    trained_patch: tuple[int, int] | None = None  # in training: another patch size, as FlexiViT draws them
    num_kept: int | None = None  # in training: patches kept of each image, drawn at random; None keeps all

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.stem = build_stem(config.stem, channels=config.channels)
        self.patch_projection = nn.Conv2d(  # holds E of eq. 1, in the shape of a convolution kernel
            config.stem.out_channels if config.stem else config.channels, D, kernel_size=config.patch_size,
            stride=config.patch_size, bias=config.patch_bias,
        )  # fmt: skip
        # The third batch norm of the hMLP stem; without that stem, patches are not normalised.
        self.patch_norm = PatchNorm(D) if isinstance(config.stem, HMlpStemConfig) else nn.Identity()
        self.class_token = nn.Parameter(torch.empty(1, 1, D)) if config.reads_class_token else None
        self.distillation_token = (
            nn.Parameter(torch.empty(1, 1, D)) if config.has_distillation_token else None
        )
        self.registers = (
            nn.Parameter(torch.empty(1, config.num_registers, D)) if config.num_registers else None
        )
        self.positions = nn.ModuleList(position_tables(config))
        self.rotary = RotaryPositions(config) if config.rotary != "none" else None
        self.dropout = Dropout(config.position_drop_rate)
        self.embedding_norm = (
            make_norm(config.norm, D, eps=config.norm_eps) if config.embedding_norm else nn.Identity()
        )
        self.blocks = nn.ModuleList(encoder_layer(config, layer=layer) for layer in range(config.depth))
        self.norm = make_norm(config.norm, D, eps=config.norm_eps)
        self.attention_pooling = attention_pooling(config) if config.pooling == "attention" else None
        R = config.representation_width
        has_bias = config.representation_layer == "tanh" or config.projection_bias
        self.representation = nn.Linear(D, R, bias=has_bias) if R else None
        self.head_dropout = Dropout(config.head_dropout) if config.head_dropout else nn.Identity()
        K = config.num_classes
        self.head = nn.Linear(R or D, K) if K else None
        self.distillation_head = nn.Linear(D, K) if K and config.has_distillation_token else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if self.norm.weight.is_meta:
            return
        initialise_vit(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, K); also packed pictures of any shape."""
        if images.dim() == 3:
            return packed.classify_packed(self, images)
        patches, grid = self.embed_patches(images)
        tokens = self.assemble(patches, grid)
        if self.training and self.num_kept:
            tokens = drop_patches(tokens, num_leading=self.num_leading_tokens, num_kept=self.num_kept)
        return self.classify(self.encode(tokens, grid, num_read=self.num_tokens_read))

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to the head's input (B, R); nothing else is kept."""
        if images.dim() == 3:
            return packed.embed_packed(self, images)
        patches, grid = self.embed_patches(images)
        tokens = self.encode(self.assemble(patches, grid), grid, num_read=self.num_tokens_read)
        return self.represent(self.pool(tokens))

    def embed_patches(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Cut images into patches and project each: x_p E of eq. 1, (B, N, D), and their grid."""
        return self.project_patches(self.run_stem(images))

    def run_stem(self, images: Tensor) -> Tensor:
        """Return the input of the patch embedding: a hybrid's feature map, or the images unchanged."""
        self.require_image_shape(images.shape)
        require_tiling((images.shape[2], images.shape[3]), self.config.token_stride)
        maps: Tensor = self.stem(images)
        return maps

    def project_patches(self, maps: Tensor) -> tuple[Tensor, Grid]:
        """Cut images or feature maps into patches and project each: (B, N, D), and their grid."""
        if not is_plain(self.patch_projection, nn.Conv2d):
            projected: Tensor = self.patch_projection(maps)  # (B, D, GH, GW)
            patches = projected.flatten(2).transpose(1, 2)
            return self.patch_norm(patches), (projected.shape[2], projected.shape[3])
        patch = (self.trained_patch if self.training else None) or self.config.patch_size
        pieces, grid = cut_patches(maps, patch)
        # One matrix product, as in eq. 1; the equivalent convolution is several times slower on a GPU.
        kernel = resized_kernel(self.patch_projection.weight, patch).flatten(1)
        return self.patch_norm(F.linear(pieces, kernel, self.patch_projection.bias)), grid

    def assemble(self, patches: Tensor, grid: Grid) -> Tensor:
        """Prepend the class, distillation and register tokens and add positions: z_0 of eq. 1, (B, T, D)."""
        return self.embedding_norm(self.dropout(self.place(patches, grid)))

    def place(self, patches: Tensor, grid: Grid) -> Tensor:
        """Return z_0 before dropout and before a norm of the embedding: a sum of patches and constants."""
        B = patches.shape[0]
        prefix = [self.class_token, self.distillation_token, self.registers]
        # The residual stream has the precision of the patches: under bf16 autocast, half the bytes of fp32.
        before = [p.to(patches.dtype).expand(B, -1, -1) for p in prefix if p is not None]
        tokens = torch.cat([*before, patches], dim=1)
        if self.config.position_placement == "stem":
            tokens = self.add_positions(tokens, grid, layer=0)
        return tokens

    def encode(self, tokens: Tensor, grid: Grid, *, num_read: int | None = None) -> Tensor:
        """Run the encoder on z_0 (B, T, D) and normalise: LN(z_L), (B, T, D).

        With `num_read`, the last block computes only that many tokens, (B, num_read, D), unless it or the norm
        contains foreign code: that code gets all tokens.
        """
        last = self.config.depth - 1
        if has_global_hooks() or not (is_as_built(self.blocks[last]) and is_as_built(self.norm)):
            num_read = None
        for layer in range(self.config.depth):
            tokens = self.run_block(tokens, grid, layer=layer, num_read=num_read if layer == last else None)
        return tokens if self.config.norm_after_pooling else self.norm(tokens)

    def run_block(self, tokens: Tensor, grid: Grid, *, layer: int, num_read: int | None = None) -> Tensor:
        """Run one block on z_(l-1), positions of this layer included: z_l of eqs. 2 and 3."""
        tokens, places = self.block_input(tokens, grid, layer=layer)
        if self.is_recomputing():
            recomputed: Tensor = checkpoint(self.blocks[layer], tokens, places, num_read, use_reentrant=False)
            return recomputed
        return self.blocks[layer](tokens, places, num_read)

    def block_input(self, tokens: Tensor, grid: Grid, *, layer: int) -> tuple[Tensor, Places]:
        """Return the input of block `layer`: tokens with its positions, and the positions for its attention."""
        if self.config.positions in choices.IN_ATTENTION:
            table = self.positions[layer if self.config.position_placement == "every_layer" else 0]
            return tokens, table(tokens.shape[1] if self.config.positions == "relative" else grid)
        if self.config.positions == "peg" and layer - 1 in self.config.peg_layers:
            tokens = self.positions[self.config.peg_layers.index(layer - 1)](tokens, grid)
        elif self.config.position_placement != "stem":
            tokens = self.add_positions(tokens, grid, layer=layer)
        if self.config.attention == "axial":
            return tokens, axis_of(layer, grid)
        return tokens, None if self.rotary is None else self.rotary(grid, num_images=tokens.shape[0])

    def add_positions(self, tokens: Tensor, grid: Grid, *, layer: int) -> Tensor:
        """Add the absolute positions of `layer`; registers and tokens without a slot get none."""
        if self.config.positions in ("none", *choices.NO_TABLE):
            return tokens
        table = self.positions[layer if self.config.position_placement == "every_layer" else 0](grid)
        slots = self.config.num_position_slots
        gap = tokens.shape[1] - table.shape[1]  # tokens between the slots and the patches
        if gap:
            empty = table.new_zeros(1, gap, table.shape[2])
            table = torch.cat([table[:, :slots], empty, table[:, slots:]], dim=1)
        return tokens + table.to(tokens.dtype)

    def pool(self, tokens: Tensor) -> Tensor:
        """Reduce encoded tokens (B, T, D) to one vector per image (B, D): y of eq. 4."""
        if self.config.pooling == "class_token":
            pooled = tokens[:, 0]
        elif self.config.pooling == "average":
            pooled = tokens[:, self.num_leading_tokens :].mean(dim=1)
        else:
            assert self.attention_pooling is not None
            first = 0 if self.config.pools_leading_tokens else self.num_leading_tokens
            pooled = self.attention_pooling(tokens[:, first:])
        return self.norm(pooled) if self.config.norm_after_pooling else pooled

    def represent(self, pooled: Tensor) -> Tensor:
        """Apply the layer between pooling and head, if there is one: (B, D) to (B, R)."""
        hidden: Tensor = pooled if self.representation is None else self.representation(pooled)
        if self.representation is not None and self.config.representation_layer == "tanh":
            hidden = torch.tanh(hidden)
        return F.normalize(hidden, dim=-1) if self.config.unit_length else hidden

    def classify(self, tokens: Tensor) -> Tensor:
        """Map encoded tokens (B, T, D) to logits (B, K); with a distillation token, the mean of both heads'."""
        logits, of_distillation = self.read_out(tokens)
        return logits if of_distillation is None else (logits + of_distillation) / 2

    def read_out(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map encoded tokens (B, T, D) to the head's logits (B, K) and, if there are two heads, to the other's.

        Without a head: the representation.
        """
        representation = self.represent(self.pool(tokens))
        if self.head is None:
            return representation, None
        if self.distillation_head is None:
            return self.head(self.head_dropout(representation)), None
        of_distillation = self.distillation_head(self.head_dropout(tokens[:, 1]))
        return self.head(self.head_dropout(representation)), of_distillation

    def levels(self, images: Tensor) -> Iterator[Level]:
        """Yield the tokens (B, T, D) after each block."""
        patches, grid = self.embed_patches(images)
        tokens = self.assemble(patches, grid)
        for layer in range(self.config.depth):
            tokens = self.run_block(tokens, grid, layer=layer)
            yield Level(tokens, grid, self.num_leading_tokens)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return all tokens after the last block and the norm, (B, T, D)."""
        patches, grid = self.embed_patches(images)
        return self.encode(self.assemble(patches, grid), grid)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Map encoded tokens (B, T, D) to logits (B, K), or to the head's input; of two heads, to their mean."""
        if not pre_logits:
            return self.classify(features)
        if self.config.has_distillation_token:
            return (features[:, 0] + features[:, 1]) / 2
        return self.head_dropout(self.represent(self.pool(features)))

    def set_pooling(self, global_pool: str) -> None:
        """Pool by `avg` or `token`; the class token stays in the sequence."""
        pooling = POOLINGS.get(global_pool)
        if pooling is None or (pooling == "attention") != (self.attention_pooling is not None):
            raise ConfigError(f"cannot change the pooling to {global_pool!r}", option="global_pool")
        kept = {"pooling": pooling, "has_class_token": self.config.reads_class_token}
        self.config = with_options(self.config, kept)

    @property
    def num_tokens_read(self) -> int | None:
        """Number of leading tokens that `classify` reads; None if it reads the patches.

        The last block's output for any other token is never used (eq. 4 reads only z_L^0).
        """
        if self.config.pooling != "class_token":
            return None
        return 1 if self.distillation_head is None else 2

    @property
    def num_leading_tokens(self) -> int:
        """Number of tokens before the first patch."""
        return self.config.num_leading_tokens

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name, the logits last; vit_features.py lists the names and shapes."""
        return vit_features(self, images)

    def last_map(self, images: Tensor) -> Tensor:
        """Return the encoded patches on their grid, (B, D, GH, GW)."""
        patches, grid = self.embed_patches(images)
        tokens = self.encode(self.assemble(patches, grid), grid)[:, self.num_leading_tokens :]
        tokens = self.norm(tokens) if self.config.norm_after_pooling else tokens
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, *grid)

    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, weights (B, H, T, T)) in order of depth, one layer in memory at a time, no gradients.

        The weights are those of the fused path, written out. `layers` counts from 0; negative from the end.
        """
        wanted = wanted_layers(layers, depth=self.config.depth)
        with torch.no_grad():
            patches, grid = self.embed_patches(images)
            tokens = self.assemble(patches, grid)
        for layer in range(max(wanted, default=-1) + 1):
            if layer in wanted:
                with torch.no_grad():
                    block = self.blocks[layer]
                    assert isinstance(block, (Block, ParallelBlock))
                    weights = block.attention_weights(*self.block_input(tokens, grid, layer=layer))
                yield layer, weights
            with torch.no_grad():
                tokens = self.run_block(tokens, grid, layer=layer)
