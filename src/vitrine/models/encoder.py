"""The Transformer encoder of ViT (arXiv:2010.11929, section 3.1, eqs. 2 and 3).

Shapes: B images, N tokens, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import SelfAttention
from vitrine.models.config import Gelu, ViTConfig
from vitrine.models.dropout import Dropout, StochasticDepth


class Mlp(nn.Module):
    """Two dense layers with a GELU between them, each followed by dropout."""

    def __init__(self, width: int, *, hidden_width: int, gelu: Gelu, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden_width)
        self.contract = nn.Linear(hidden_width, width)
        self.hidden_dropout, self.dropout = Dropout(dropout), Dropout(dropout)
        self.approximate = "tanh" if gelu == "tanh" else "none"

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., D)."""
        hidden = self.hidden_dropout(F.gelu(self.expand(tokens), approximate=self.approximate))
        return self.dropout(self.contract(hidden))


class LayerScale(nn.Module):
    """A learned gain for each channel of a residual branch."""

    def __init__(self, width: int, *, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.gain = nn.Parameter(torch.empty(width))

    def forward(self, branch: Tensor) -> Tensor:
        """Scale a branch (B, N, D)."""
        return branch * self.gain.to(branch.dtype)


class Block(nn.Module):
    """One encoder layer: attention, then MLP, each pre-normalised and added to the tokens."""

    def __init__(self, config: ViTConfig, *, drop_rate: float) -> None:
        super().__init__()
        D = config.width

        def scale() -> nn.Module:
            return nn.Identity() if config.layer_scale is None else LayerScale(D, initial=config.layer_scale)

        self.norm_1 = nn.LayerNorm(D, eps=config.norm_eps)
        self.attention = SelfAttention(
            D,
            num_heads=config.num_heads,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
        )
        self.scale_1 = scale()
        self.norm_2 = nn.LayerNorm(D, eps=config.norm_eps)
        self.mlp = Mlp(D, hidden_width=config.mlp_width, gelu=config.gelu, dropout=config.dropout)
        self.scale_2 = scale()
        self.dropout = Dropout(config.dropout)
        self.stochastic_depth_1 = StochasticDepth(drop_rate)
        self.stochastic_depth_2 = StochasticDepth(drop_rate)

    def forward(
        self, tokens: Tensor, relative_keys: Tensor | None = None, num_read: int | None = None
    ) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D); with `num_read`, only the first `num_read` of them."""
        mixed = self.dropout(self.attention(self.norm_1(tokens), relative_keys, num_read))
        tokens = tokens if num_read is None else tokens[:, :num_read]
        tokens = tokens + self.stochastic_depth_1(self.scale_1(mixed))  # eq. 2
        return tokens + self.stochastic_depth_2(self.scale_2(self.mlp(self.norm_2(tokens))))  # eq. 3

    def attention_weights(self, tokens: Tensor, relative_keys: Tensor | None = None) -> Tensor:
        """Return the attention matrix (B, H, N, N) that `forward` uses on the same tokens."""
        return self.attention.weights(self.norm_1(tokens), relative_keys)
