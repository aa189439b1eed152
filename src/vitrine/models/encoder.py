"""The Transformer encoder of ViT (arXiv:2010.11929, section 3.1): patches of eq. 1, layers of eqs. 2 and 3.

Shapes: B images, N tokens, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import AttentionPooling, Places, SelfAttention
from vitrine.models.choices import Activation, Gelu, MlpKind, Norm
from vitrine.models.config import ViTConfig
from vitrine.models.dropout import Dropout, StochasticDepth
from vitrine.models.norms import activation_of, make_norm
from vitrine.models.touched import is_plain

MLP_RATIO = 4  # hidden width of the MLP, in widths (Table 1)


def cut_patches(images: Tensor, patch_size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Cut (B, C, height, width) into flat patches (B, N, C x P x P) in raster order, and return their grid."""
    B, C, height, width = images.shape
    P, Q = patch_size
    grid = (height // P, width // Q)
    pieces = images.reshape(B, C, grid[0], P, grid[1], Q).permute(0, 2, 4, 1, 3, 5)  # (B, GH, GW, C, P, P)
    return pieces.reshape(B, grid[0] * grid[1], C * P * Q), grid


class Mlp(nn.Module):
    """Two dense layers with an activation between, each followed by dropout."""

    def __init__(
        self,
        width: int,
        *,
        hidden_width: int,
        activation: Activation = "gelu",
        gelu: Gelu = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden_width)
        self.contract = nn.Linear(hidden_width, width)
        self.hidden_dropout, self.dropout = Dropout(dropout), Dropout(dropout)
        self.activation, self.gelu = activation, gelu
        self.activate = activation_of(activation, gelu=gelu)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., D)."""
        return self.dropout(self.contract(self.hidden_dropout(self.activate(self.expand(tokens)))))

    def is_plain(self) -> bool:
        """Whether it has GELU and every layer inside is unchanged, so that its weights determine its result."""
        return (
            self.activation == "gelu"
            and is_plain(self.expand, nn.Linear)
            and is_plain(self.contract, nn.Linear)
            and is_plain(self.hidden_dropout, Dropout)
            and is_plain(self.dropout, Dropout)
        )


class GatedMlp(nn.Module):
    """SwiGLU (arXiv:2002.05202): the hidden layer is the product of two, one of them through SiLU."""

    def __init__(
        self, width: int, *, hidden_width: int, norm: nn.Module | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 2 * hidden_width)  # the gates, then the values
        self.norm = nn.Identity() if norm is None else norm
        self.contract = nn.Linear(hidden_width, width)
        self.hidden_dropout, self.dropout = Dropout(dropout), Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., D)."""
        hidden = self.hidden_dropout(self.activate(self.expand(tokens)))
        return self.dropout(self.contract(hidden))

    def activate(self, both: Tensor) -> Tensor:
        """Map gates and values (..., 2 M) to the hidden layer (..., M)."""
        gates, values = both.chunk(2, dim=-1)
        return self.norm(F.silu(gates) * values)


class LayerScale(nn.Module):
    """A learned gain for each channel of a residual branch."""

    def __init__(self, width: int, *, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.gain = nn.Parameter(torch.full((width,), initial))

    def forward(self, branch: Tensor) -> Tensor:
        """Scale a branch (B, N, D)."""
        return branch * self.gain.to(branch.dtype)


class Block(nn.Module):
    """One encoder layer: attention, then MLP, each pre-normalised and added to the tokens.

    Can be used alone, `Block(384, num_heads=6)`: its layers then have torch's initialisation, and `initialise_layer`
    gives them the paper's. `drop_rate` is the rate of stochastic depth of both branches.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        mlp_width: int | None = None,
        qkv_bias: bool = True,
        key_bias: bool = True,
        qk_norm: bool = False,
        attention_norm: bool = False,
        attention_scale: float | None = None,
        layer_scale: float | None = None,
        mlp: MlpKind = "dense",
        mlp_norm: bool = False,
        activation: Activation = "gelu",
        gelu: Gelu = "tanh",
        norm: Norm = "layer_norm",
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = MLP_RATIO * width if mlp_width is None else mlp_width
        self.norm_1 = make_norm(norm, width, eps=norm_eps)
        self.attention = SelfAttention(
            width, num_heads=num_heads, qkv_bias=qkv_bias, key_bias=key_bias, qk_norm=qk_norm,
            attention_norm=attention_norm, norm=norm, norm_eps=norm_eps, scale=attention_scale,
            dropout=attention_dropout,
        )  # fmt: skip
        self.scale_1 = gain(layer_scale, width)
        self.norm_2 = make_norm(norm, width, eps=norm_eps)
        self.mlp: Mlp | GatedMlp
        if mlp == "dense":
            self.mlp = Mlp(width, hidden_width=hidden, activation=activation, gelu=gelu, dropout=dropout)
        else:
            normed = make_norm(norm, hidden, eps=norm_eps) if mlp_norm else None
            self.mlp = GatedMlp(width, hidden_width=hidden, norm=normed, dropout=dropout)
        self.scale_2 = gain(layer_scale, width)
        self.dropout = Dropout(dropout)
        self.stochastic_depth_1 = StochasticDepth(drop_rate)
        self.stochastic_depth_2 = StochasticDepth(drop_rate)

    def forward(self, tokens: Tensor, places: Places = None, num_read: int | None = None) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D); with `num_read`, only the first `num_read` of them."""
        mixed = self.mix(tokens, places, num_read)
        tokens = tokens if num_read is None else tokens[:, :num_read]
        tokens = tokens + mixed  # eq. 2
        return tokens + self.transform(tokens)  # eq. 3

    def mix(self, tokens: Tensor, places: Places = None, num_read: int | None = None) -> Tensor:
        """Return what attention adds to the tokens (B, N, D), or to the first `num_read` of them."""
        mixed = self.dropout(self.attention(self.norm_1(tokens), places, num_read))
        return self.stochastic_depth_1(self.scale_1(mixed))

    def transform(self, tokens: Tensor) -> Tensor:
        """Return what the MLP adds to the tokens (B, N, D)."""
        return self.stochastic_depth_2(self.scale_2(self.mlp(self.norm_2(tokens))))

    def attention_weights(self, tokens: Tensor, places: Places = None) -> Tensor:
        """Return the attention matrix (B, H, N, N) that `forward` uses on the same tokens."""
        return self.attention.weights(self.norm_1(tokens), places)


class ParallelBlock(nn.Module):
    """Attention layers side by side, then MLPs side by side (arXiv:2203.09795, section 3): wider, not deeper.

    Each branch has its own norms and gains: it is a `Block` whose halves are added with those of the others.
    """

    def __init__(self, branches: list[Block]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, tokens: Tensor, places: Places = None, num_read: int | None = None) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D); with `num_read`, only the first `num_read` of them."""
        mixed = [branch.mix(tokens, places, num_read) for branch in self.parts]
        tokens = sum(mixed, tokens if num_read is None else tokens[:, :num_read])
        return sum((branch.transform(tokens) for branch in self.parts), tokens)

    @property
    def parts(self) -> list[Block]:
        """The branches, with their type."""
        return [branch for branch in self.branches if isinstance(branch, Block)]

    def attention_weights(self, tokens: Tensor, places: Places = None) -> Tensor:
        """Return the attention matrices of all branches, their heads one after the other."""
        return torch.cat([branch.attention_weights(tokens, places) for branch in self.parts], dim=1)


def gain(layer_scale: float | None, width: int) -> nn.Module:
    """Create the gains at the end of a branch, or none."""
    return nn.Identity() if layer_scale is None else LayerScale(width, initial=layer_scale)


def encoder_layer(config: ViTConfig, *, layer: int) -> Block | ParallelBlock:
    """Create layer number `layer` of a model."""
    rate = config.stochastic_depth
    if config.drop_rates == "linear":
        rate = rate * layer / max(config.depth - 1, 1)
    blocks = [
        Block(
            config.width, num_heads=config.num_heads, mlp_width=config.mlp_width, qkv_bias=config.qkv_bias,
            key_bias=config.key_bias, qk_norm=config.qk_norm, attention_norm=config.attention_norm,
            attention_scale=config.attention_scale, layer_scale=config.layer_scale, mlp=config.mlp,
            mlp_norm=config.mlp_norm, activation=config.activation, gelu=config.gelu, norm=config.norm,
            norm_eps=config.norm_eps,
            dropout=config.projection_drop_rate, attention_dropout=config.attention_dropout, drop_rate=rate,
        )
        for _ in range(config.num_branches)
    ]  # fmt: skip
    return blocks[0] if config.num_branches == 1 else ParallelBlock(blocks)


def attention_pooling(config: ViTConfig) -> AttentionPooling:
    """Create the pooling that attends from one learned query."""
    mlp = Mlp(config.width, hidden_width=config.mlp_width, activation=config.activation, gelu=config.gelu)
    return AttentionPooling(
        config.width, num_heads=config.num_heads, mlp=mlp, norm=config.norm, norm_eps=config.norm_eps
    )
