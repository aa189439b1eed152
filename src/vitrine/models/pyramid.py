"""The base of PVT, PVT v2 and PCPVT: four stages of blocks whose keys and values come from a smaller map.

Shapes: B images, C channels, N = GH x GW tokens of a stage on its grid, S reduced tokens, D width, M hidden width of
the MLP, H heads, K = D / H channels per head, R width of the last stage.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.models.attention import attend
from vitrine.models.dropout import Dropout, StochasticDepth
from vitrine.models.encoder import Mlp
from vitrine.models.model import Model, wanted_layers
from vitrine.models.positions import Grid
from vitrine.models.pyramid_config import PyramidConfig

# The official code leaves torch's default in the norms of embeddings and reduced keys, and sets 1e-6 in all others.
EMBEDDING_NORM_EPS = 1e-5


class PatchEmbedding(nn.Module):
    """Project patches of an image, or of the map before, to tokens and normalise them."""

    def __init__(
        self, in_channels: int, width: int, *, kernel_size: int, stride: int, padding: int = 0
    ) -> None:
        super().__init__()
        self.padding = padding
        self.projection = nn.Conv2d(
            in_channels, width, kernel_size=kernel_size, stride=stride, padding=padding
        )
        self.norm = nn.LayerNorm(width, eps=EMBEDDING_NORM_EPS)

    def forward(self, maps: Tensor) -> tuple[Tensor, Grid]:
        """Map images or maps (B, C, rows, columns) to tokens (B, N, D) and their grid."""
        if maps.shape[2:] == (1, 1):
            # Only the middle of a padded kernel meets the one cell. Written out because oneDNN's gradient of such a
            # convolution is wrong in bf16 (torch 2.13 on CPUs with AVX-512 BF16: NaN or noise).
            middle = self.projection.weight[:, :, self.padding, self.padding]
            projected = F.linear(maps[:, :, 0, 0], middle, self.projection.bias)[:, :, None, None]
        else:
            projected = self.projection(maps)  # (B, D, GH, GW)
        return self.normalised(to_tokens(projected)), (projected.shape[2], projected.shape[3])

    def normalised(self, projected: Tensor) -> Tensor:
        """Normalise tokens (B, N, D) in their precision: a residual stream in bf16 has half the bytes."""
        normed: Tensor = self.norm(projected)
        return normed.to(projected.dtype)


class ReducedAttention(nn.Module):
    """Spatial-reduction attention: queries from all tokens, keys and values from a smaller map."""

    def __init__(
        self, width: int, *, num_heads: int, reduction: int, qkv_bias: bool, pooled_side: int | None = None
    ) -> None:
        super().__init__()
        self.num_heads, self.pooled_side = num_heads, pooled_side
        self.to_q = nn.Linear(width, width, bias=qkv_bias)
        self.to_kv = nn.Linear(width, 2 * width, bias=qkv_bias)
        self.to_out = nn.Linear(width, width)
        kernel = 1 if pooled_side else reduction
        is_reduced = pooled_side is not None or reduction > 1
        self.reduction = nn.Conv2d(width, width, kernel_size=kernel, stride=kernel) if is_reduced else None
        self.reduction_norm = nn.LayerNorm(width, eps=EMBEDDING_NORM_EPS) if is_reduced else None

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Mix tokens (B, N, D) on their grid; a class token may stand before them where nothing is reduced."""
        B, N, D = tokens.shape
        q, k, v = self.project(tokens, grid)
        return self.to_out(attend(q, k, v).transpose(1, 2).reshape(B, N, D))

    def weights(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Return the attention matrix (B, H, N, S) that `forward` uses; each row sums to one."""
        q, k, _ = self.project(tokens, grid)
        return ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1)

    def project(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, N, K), and keys and values (B, H, S, K)."""
        B, N, _ = tokens.shape
        q = self.to_q(tokens).view(B, N, self.num_heads, -1).transpose(1, 2)
        source = self.reduce(tokens, grid)
        k, v = self.to_kv(source).view(B, source.shape[1], 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return q, k, v

    def reduce(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Return the input of keys and values, (B, S, D)."""
        if self.reduction is None or self.reduction_norm is None:
            return tokens
        maps = to_map(tokens, grid)
        if self.pooled_side is None:
            return self.reduction_norm(to_tokens(self.reduction(maps)))
        # PVT v2, section 3.2: the map is averaged to a fixed side, so that attention is linear in the tokens.
        pooled = F.adaptive_avg_pool2d(maps, self.pooled_side)
        return F.gelu(self.reduction_norm(to_tokens(self.reduction(pooled))))


class PyramidBlock(nn.Module):
    """Reduced attention, then the MLP, each pre-normalised and added to the tokens."""

    def __init__(
        self, config: PyramidConfig, *, stage: int, drop_rate: float, pooled_side: int | None = None
    ) -> None:
        super().__init__()
        D = config.widths[stage]
        self.norm_1 = nn.LayerNorm(D, eps=config.norm_eps)
        self.attention = ReducedAttention(
            D,
            num_heads=config.num_heads[stage],
            reduction=config.reductions[stage],
            qkv_bias=config.qkv_bias,
            pooled_side=pooled_side,
        )
        self.norm_2 = nn.LayerNorm(D, eps=config.norm_eps)
        self.mlp: nn.Module = Mlp(
            D, hidden_width=D * config.mlp_ratios[stage], gelu="erf", dropout=config.dropout
        )
        self.dropout = Dropout(config.dropout)
        self.stochastic_depth_1 = StochasticDepth(drop_rate)
        self.stochastic_depth_2 = StochasticDepth(drop_rate)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D)."""
        mixed = self.dropout(self.attention(self.norm_1(tokens), grid))
        tokens = tokens + self.stochastic_depth_1(mixed)
        return tokens + self.stochastic_depth_2(self.transform(self.norm_2(tokens), grid))

    def transform(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Apply the MLP, which in PVT v2 also reads neighbours on the grid."""
        return self.mlp(tokens)

    def attention_weights(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Return the attention matrix (B, H, N, S) that `forward` uses on the same tokens."""
        return self.attention.weights(self.norm_1(tokens), grid)


class Pyramid(Model):
    """The forward pass through the stages; a family defines how stages begin and end, and how tokens are pooled."""

    config: PyramidConfig
    stages: nn.ModuleList

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, classes)."""
        representation = self.embed(images)
        return representation if self.head is None else self.head(representation)

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to what the head reads (B, R)."""
        return self.pool(self.encode(images))

    def encode(self, images: Tensor) -> Tensor:
        """Run all stages: the tokens of the last one, normalised, (B, N, R)."""
        maps = self.checked(images)
        for stage, depth in enumerate(self.config.depths):
            tokens, grid = self.begin_stage(maps, stage)
            for block in range(depth):
                tokens = self.run_block(tokens, grid, stage=stage, block=block)
            tokens = self.end_stage(tokens, stage)
            maps = self.map_of(tokens, grid)
        return tokens

    def checked(self, images: Tensor) -> Tensor:
        """Refuse images of other channels, or of a size that the stages cannot halve."""
        self.require_image_shape(images.shape)
        self.require_size((images.shape[2], images.shape[3]))
        return images

    def require_size(self, image_size: tuple[int, int]) -> None:
        """Refuse a size that the family cannot take, and name the nearest that it can."""
        raise NotImplementedError

    def begin_stage(self, maps: Tensor, stage: int) -> tuple[Tensor, Grid]:
        """Embed patches of the image or of the map before: tokens (B, N, D) and their grid."""
        raise NotImplementedError

    def end_stage(self, tokens: Tensor, stage: int) -> Tensor:
        """Normalise the tokens of a stage if the family does."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """Reduce the tokens of the last stage to one vector per image (B, R)."""
        raise NotImplementedError

    def after_block(self, tokens: Tensor, grid: Grid, *, stage: int, block: int) -> Tensor:
        """Change the tokens between blocks; only PCPVT does."""
        return tokens

    def run_block(self, tokens: Tensor, grid: Grid, *, stage: int, block: int) -> Tensor:
        """Run one block on tokens (B, N, D)."""
        module = self.block(stage, block)
        if self.is_recomputing():
            tokens = checkpoint(module, tokens, grid, use_reentrant=False)
        else:
            tokens = module(tokens, grid)
        return self.after_block(tokens, grid, stage=stage, block=block)

    def block(self, stage: int, block: int) -> PyramidBlock:
        """Return a block by its stage and its number there."""
        module = self.stages[stage].get_submodule(f"blocks.{block}")
        assert isinstance(module, PyramidBlock)
        return module

    def map_of(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Return the patch tokens on their grid, (B, D, GH, GW), without a class token."""
        return to_map(tokens[:, tokens.shape[1] - grid[0] * grid[1] :], grid)

    def last_map(self, images: Tensor) -> Tensor:
        """Return the normalised tokens of the last stage on their grid, (B, R, GH, GW)."""
        grid = self.config.grids((images.shape[2], images.shape[3]))[-1]
        return self.map_of(self.encode(images), grid)

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name, the logits last.

        `block_00`... (B, N, D) through all stages, `stage_1`... (B, D, GH, GW), `encoded` (B, N, R), `pooled` and
        `representation` (B, R; the same here), `logits`.
        """
        named: dict[str, Tensor] = {}
        maps, layer = self.checked(images), 0
        for stage, depth in enumerate(self.config.depths):
            tokens, grid = self.begin_stage(maps, stage)
            for block in range(depth):
                tokens = self.run_block(tokens, grid, stage=stage, block=block)
                named[f"block_{layer:02d}"] = tokens
                layer += 1
            tokens = self.end_stage(tokens, stage)
            maps = named[f"stage_{stage + 1}"] = self.map_of(tokens, grid)
        named["encoded"] = tokens
        named["pooled"] = named["representation"] = self.pool(tokens)
        if self.head is not None:
            named["logits"] = self.head(named["representation"])
        return named

    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, weights (B, H, N, S)): from all tokens of a stage to its reduced keys.

        Layers are counted through all stages. One layer is in memory at a time, without gradients.
        """
        wanted = wanted_layers(layers, depth=self.config.depth)
        maps, layer = self.checked(images), 0
        for stage, depth in enumerate(self.config.depths):
            with torch.no_grad():
                tokens, grid = self.begin_stage(maps, stage)
            for block in range(depth):
                if layer in wanted:
                    with torch.no_grad():
                        weights = self.block(stage, block).attention_weights(tokens, grid)
                    yield layer, weights
                if layer >= max(wanted, default=-1):
                    return
                with torch.no_grad():
                    tokens = self.run_block(tokens, grid, stage=stage, block=block)
                layer += 1
            with torch.no_grad():
                maps = self.map_of(self.end_stage(tokens, stage), grid)


def drop_rates(config: PyramidConfig) -> list[list[float]]:
    """Return the rate of stochastic depth of every block, by stage: rising linearly from 0 over all blocks."""
    last = max(config.depth - 1, 1)
    rates = iter(config.stochastic_depth * layer / last for layer in range(config.depth))
    return [[next(rates) for _ in range(depth)] for depth in config.depths]


def to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Reshape tokens (B, N, D) to their grid: (B, D, GH, GW)."""
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, *grid)


def to_tokens(maps: Tensor) -> Tensor:
    """Flatten a map (B, D, GH, GW) in raster order: (B, N, D)."""
    return maps.flatten(2).transpose(1, 2)
