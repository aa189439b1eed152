"""Transformer in Transformer (TNT, arXiv:2103.00112), top to bottom as in the paper.

Every patch, a "visual sentence", is a sequence of smaller pieces, its "visual words". In each block an inner
transformer mixes the words of a patch, a projection adds them to its token, and an outer transformer mixes patches.

Shapes: B images of C channels, N patches on a grid of GH x GW, W words per patch, E width of a word, D width of a
patch, K classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.models.attention import SelfAttention
from vitrine.models.dropout import Dropout, StochasticDepth
from vitrine.models.encoder import Mlp
from vitrine.models.initialisation import initialise_like_deit
from vitrine.models.model import Model, wanted_layers
from vitrine.models.positions import Grid, Learned1D, resample_grid
from vitrine.models.sizes import require_tiling
from vitrine.models.tnt_config import WORD_KERNEL, TNTConfig
from vitrine.models.touched import has_global_hooks, is_as_built


class TNT(Model):
    """Map images (B, C, height, width) to logits (B, K), or to the representation if there is no head."""

    config: TNTConfig

    def __init__(self, config: TNTConfig) -> None:
        super().__init__()
        self.config = config
        E, D, W = config.inner_width, config.width, config.num_words
        # The convolution sees one patch at a time: its padding is at the border of the patch, not of the image.
        self.word_projection = nn.Conv2d(
            config.channels, E, WORD_KERNEL, stride=config.word_stride, padding=WORD_KERNEL // 2
        )
        self.word_positions = nn.Parameter(torch.empty(1, W, E))
        self.to_patch = WordsToPatch(config, bias=True)
        self.class_token = nn.Parameter(torch.empty(1, 1, D))
        self.positions = Learned1D(
            config.grid_size, width=D, num_slots=1, resampling=config.position_resampling
        )
        self.dropout = Dropout(config.dropout)
        steps = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(
            TNTBlock(config, drop_rate=config.stochastic_depth * i / steps) for i in range(config.depth)
        )
        self.norm = nn.LayerNorm(D, eps=config.norm_eps)
        self.head = nn.Linear(D, config.num_classes) if config.num_classes else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if self.norm.weight.is_meta:
            return
        initialise_like_deit(self, tables=(self.class_token, self.word_positions))

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, K)."""
        return self.classify(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to the head's input (B, D)."""
        words, tokens, _ = self.embed_patches(images)
        last = self.config.depth - 1
        num_read = 1 if self.config.pooling == "class_token" else None
        if has_global_hooks() or not (is_as_built(self.blocks[last]) and is_as_built(self.norm)):
            num_read = None  # foreign code gets all tokens
        for layer in range(self.config.depth):
            words, tokens = self.run_block(
                words, tokens, layer=layer, num_read=num_read if layer == last else None
            )
        return self.pool(self.norm(tokens))

    def embed_patches(self, images: Tensor) -> tuple[Tensor, Tensor, Grid]:
        """Return words with their positions (B x N, W, E), class token and patches (B, 1 + N, D), and the grid."""
        patches, grid = self.cut_patches(images)
        words = self.word_projection(patches).flatten(2).transpose(1, 2)  # (B x N, W, E)
        words = words + self.word_positions.to(words.dtype)
        tokens = self.to_patch(words.view(images.shape[0], -1, *words.shape[1:]))  # (B, N, D)
        first = self.class_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([first, tokens], dim=1)
        return words, self.dropout(tokens + self.positions(grid).to(tokens.dtype)), grid

    def cut_patches(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Cut images into patches in raster order, each an image of its own: (B x N, C, P, P)."""
        self.require_image_shape(images.shape)
        B, C, height, width = images.shape
        P, Q = self.config.patch_size
        require_tiling((height, width), (P, Q))
        grid = (height // P, width // Q)
        pieces = images.reshape(B, C, grid[0], P, grid[1], Q).permute(0, 2, 4, 1, 3, 5)
        return pieces.reshape(-1, C, P, Q), grid

    def run_block(
        self, words: Tensor, tokens: Tensor, *, layer: int, num_read: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run one block on words and tokens; with `num_read`, only that many tokens come back."""
        if self.is_recomputing():
            again: tuple[Tensor, Tensor] = checkpoint(
                self.blocks[layer], words, tokens, num_read, use_reentrant=False
            )
            return again
        return self.blocks[layer](words, tokens, num_read)

    def pool(self, tokens: Tensor) -> Tensor:
        """Reduce encoded tokens (B, 1 + N, D) to one vector per image (B, D)."""
        return tokens[:, 0] if self.config.pooling == "class_token" else tokens[:, 1:].mean(dim=1)

    def classify(self, pooled: Tensor) -> Tensor:
        """Map the representation (B, D) to logits (B, K)."""
        return pooled if self.head is None else self.head(pooled)

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name, the logits last.

        `words` (B, N, W, E), `embedded` (B, 1 + N, D); `inner_00` (B, N, W, E) and `block_00` (B, 1 + N, D) for every
        block; `encoded` (B, 1 + N, D), `class_token` (B, D), `patch_tokens` (B, N, D), `pooled` and `representation`
        (B, D), the same here, `logits` (B, K).
        """
        words, tokens, _ = self.embed_patches(images)
        by_patch = (images.shape[0], -1, *words.shape[1:])
        features = {"words": words.view(by_patch), "embedded": tokens}
        for layer in range(self.config.depth):
            words, tokens = self.run_block(words, tokens, layer=layer)
            features[f"inner_{layer:02d}"] = words.view(by_patch)
            features[f"block_{layer:02d}"] = tokens
        features["encoded"] = tokens = self.norm(tokens)
        features["class_token"], features["patch_tokens"] = tokens[:, 0], tokens[:, 1:]
        features["pooled"] = features["representation"] = self.pool(tokens)
        if self.head is not None:
            features["logits"] = self.classify(features["pooled"])
        return features

    def last_map(self, images: Tensor) -> Tensor:
        """Return the encoded patches as a map (B, D, GH, GW)."""
        _, _, height, width = images.shape
        P, Q = self.config.patch_size
        patches = self.features(images)["patch_tokens"]
        return patches.transpose(1, 2).reshape(images.shape[0], -1, height // P, width // Q)

    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, weights) in order of depth, one layer in memory at a time, no gradients.

        Every block has two layers: layer 2 i is the inner attention of block i, (B, N x H', W, W) with all patches
        side by side, layer 2 i + 1 its outer attention, (B, H, 1 + N, 1 + N). Negative layers count from the end.
        """
        wanted = wanted_layers(layers, depth=2 * self.config.depth)
        with torch.no_grad():
            words, tokens, _ = self.embed_patches(images)
        for layer in range(max(wanted, default=-1) + 1):
            block = self.blocks[layer // 2]
            assert isinstance(block, TNTBlock)
            is_inner = layer % 2 == 0
            if layer in wanted:
                with torch.no_grad():
                    weights = block.inner_weights(words) if is_inner else block.outer_weights(words, tokens)
                yield layer, weights.reshape(images.shape[0], -1, *weights.shape[2:])
            if not is_inner:
                with torch.no_grad():
                    words, tokens = self.run_block(words, tokens, layer=layer // 2)


class WordsToPatch(nn.Module):
    """Map all words of a patch, one after the other, to its token: norm, projection, norm."""

    def __init__(self, config: TNTConfig, *, bias: bool) -> None:
        super().__init__()
        all_words = config.num_words * config.inner_width
        self.norm_1 = nn.LayerNorm(all_words, eps=config.norm_eps)
        self.projection = nn.Linear(all_words, config.width, bias=bias)
        self.norm_2 = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, words: Tensor) -> Tensor:
        """Map words (B, N, W, E) to patches (B, N, D)."""
        projected = self.projection(self.norm_1(words.flatten(2)))
        # The residual stream has the precision of the words: under bf16 autocast, half the bytes of fp32.
        return self.norm_2(projected).to(projected.dtype)


class TNTBlock(nn.Module):
    """One layer: inner transformer, words into patches, outer transformer; every branch is pre-normalised."""

    def __init__(self, config: TNTConfig, *, drop_rate: float) -> None:
        super().__init__()
        self.inner = Transformer(
            config,
            config.inner_width,
            num_heads=config.inner_num_heads,
            mlp_width=config.inner_mlp_width,
            drop_rate=drop_rate,
        )
        self.to_patch = WordsToPatch(config, bias=False)
        self.outer = Transformer(
            config, config.width, num_heads=config.num_heads, mlp_width=config.mlp_width, drop_rate=drop_rate
        )

    def forward(self, words: Tensor, tokens: Tensor, num_read: int | None = None) -> tuple[Tensor, Tensor]:
        """Map words (B x N, W, E) and tokens (B, 1 + N, D) to the next; only the first `num_read` tokens."""
        words = self.inner(words)  # eqs. 4 and 5
        return words, self.outer(self.with_words(words, tokens), num_read)  # eqs. 7 and 8

    def with_words(self, words: Tensor, tokens: Tensor) -> Tensor:
        """Add the words to their patches (eq. 6); the class token has none."""
        added = self.to_patch(words.view(tokens.shape[0], -1, *words.shape[1:]))  # (B, N, D)
        return tokens + F.pad(added, (0, 0, 1, 0))

    def inner_weights(self, words: Tensor) -> Tensor:
        """Return the attention matrices among words (B x N, H', W, W) that `forward` uses."""
        return self.inner.attention.weights(self.inner.norm_1(words))

    def outer_weights(self, words: Tensor, tokens: Tensor) -> Tensor:
        """Return the attention matrices among patches (B, H, 1 + N, 1 + N) that `forward` uses."""
        tokens = self.with_words(self.inner(words), tokens)
        return self.outer.attention.weights(self.outer.norm_1(tokens))


class Transformer(nn.Module):
    """Attention and MLP, each pre-normalised and added: the inner and the outer half of a block alike."""

    def __init__(
        self, config: TNTConfig, width: int, *, num_heads: int, mlp_width: int, drop_rate: float
    ) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.attention = SelfAttention(width, num_heads=num_heads, qkv_bias=config.qkv_bias)
        self.norm_2 = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, hidden_width=mlp_width, gelu="erf", dropout=config.dropout)
        self.dropout = Dropout(config.dropout)
        # For words, stochastic depth draws per patch, as in the authors' code.
        self.stochastic_depth_1, self.stochastic_depth_2 = (StochasticDepth(drop_rate) for _ in range(2))

    def forward(self, tokens: Tensor, num_read: int | None = None) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D); with `num_read`, only the first `num_read` of them."""
        mixed = self.dropout(self.attention(self.norm_1(tokens), num_read=num_read))
        tokens = tokens if num_read is None else tokens[:, :num_read]
        tokens = tokens + self.stochastic_depth_1(mixed)
        return tokens + self.stochastic_depth_2(self.mlp(self.norm_2(tokens)))


def resample(config: TNTConfig, image_size: tuple[int, int]) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return the function that resamples the patches' positions for another image size; words' positions stay."""
    require_tiling(image_size, config.patch_size)
    old = config.grid_size
    new = image_size[0] // config.patch_size[0], image_size[1] // config.patch_size[1]

    def resampled(table: Tensor) -> Tensor:
        patches = resample_grid(table[:, 1:], old, new, rule=config.position_resampling)
        return torch.cat([table[:, :1], patches], dim=1)

    return {"positions.table": resampled}
