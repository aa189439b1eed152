"""The tokens-to-token module of T2T-ViT (arXiv:2101.11986, section 3.1) as the stem of a ViT.

Images become tokens in soft splits, which overlap, with a small attention layer after each but the last: neighbouring
tokens are gathered into one, step by step. The model's patch projection turns the last split into its tokens.

Shapes: B images, C channels, N tokens on a grid of rows x columns, I width of a layer's input, T of its output,
F random features.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import attend
from vitrine.models.dropout import Dropout
from vitrine.models.encoder import Mlp
from vitrine.models.fixed import HasFixedParameters
from vitrine.models.stem_configs import TokensToTokenConfig

# Keeps a token with no similar one from a division by zero; the authors' value.
PERFORMER_EPS = 1e-8


class TokensToToken(nn.Module):
    """Map images (B, C, height, width) to gathered tokens as a map (B, channels, height / stride, width / stride)."""

    def __init__(self, config: TokensToTokenConfig, *, channels: int) -> None:
        super().__init__()
        self.splits = config.splits
        widths = (channels, *(config.token_width for _ in config.kernels[1:]))
        kind = TokenPerformer if config.mixing == "performer" else TokenTransformer
        self.layers = nn.ModuleList(
            kind(width * kernel**2, config)
            for width, kernel in zip(widths, config.kernels[:-1], strict=False)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Split, and mix and split again as often as there are layers."""
        maps = soft_split(images, *self.splits[0])
        for layer, split in zip(self.layers, self.splits[1:], strict=True):
            rows, columns = maps.shape[2:]
            tokens = layer(maps.flatten(2).transpose(1, 2))  # (B, N, T)
            image = tokens.transpose(1, 2).unflatten(2, (rows, columns))  # the paper's re-structurisation
            maps = soft_split(image, *split)
        return maps

    def initialise(self) -> None:
        """Draw the random features; other parameters are those of ordinary layers."""
        for layer in self.layers:
            if isinstance(layer, TokenPerformer):
                layer.draw_features()


class TokenTransformer(nn.Module):
    """Attention of one head and an MLP; widths differ, so that values instead of the input skip the attention."""

    def __init__(self, in_width: int, config: TokensToTokenConfig) -> None:
        super().__init__()
        T = config.token_width
        self.norm_1 = nn.LayerNorm(in_width, eps=config.norm_eps)
        self.to_qkv = nn.Linear(in_width, 3 * T, bias=False)
        self.to_out = nn.Linear(T, T)
        self.norm_2 = nn.LayerNorm(T, eps=config.norm_eps)
        self.mlp = Mlp(T, hidden_width=T, gelu="erf")
        # The authors' scale follows the width that comes in; `attend` divides by the square root of the head's.
        self.query_gain = (T / in_width) ** 0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, I) to (B, N, T)."""
        q, k, v = self.to_qkv(self.norm_1(tokens))[:, None].chunk(3, dim=-1)  # each (B, 1, N, T)
        mixed = v[:, 0] + self.to_out(attend(q * self.query_gain, k, v)[:, 0])
        return mixed + self.mlp(self.norm_2(mixed))


class TokenPerformer(HasFixedParameters, nn.Module):
    """Linear attention by random features (Performer, arXiv:2009.14794) and an MLP; values skip the attention."""

    fixed: ClassVar[tuple[str, ...]] = ("features",)

    def __init__(self, in_width: int, config: TokensToTokenConfig) -> None:
        super().__init__()
        T = config.token_width
        self.norm_1 = nn.LayerNorm(in_width, eps=config.norm_eps)
        self.to_kqv = nn.Linear(in_width, 3 * T)  # keys first, as in the authors' files
        self.to_out, self.dropout = nn.Linear(T, T), Dropout(config.performer_dropout)
        self.norm_2 = nn.LayerNorm(T, eps=config.norm_eps)
        self.mlp, self.mlp_dropout = Mlp(T, hidden_width=T, gelu="erf"), Dropout(config.performer_dropout)
        self.features = nn.Parameter(torch.empty(config.num_features, T), requires_grad=False)

    def draw_features(self) -> None:
        """Draw orthogonal directions of length sqrt(F)."""
        nn.init.orthogonal_(self.features)
        self.features.mul_(self.features.shape[0] ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, I) to (B, N, T)."""
        k, q, v = self.to_kqv(self.norm_1(tokens)).chunk(3, dim=-1)  # each (B, N, T)
        mixed = v + self.dropout(self.to_out(self.mix(q, k, v)))
        return mixed + self.mlp_dropout(self.mlp(self.norm_2(mixed)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in time and memory linear in N: sums over keys first. At least fp32, for the exponentials."""
        if torch.is_autocast_enabled(q.device.type):
            with torch.autocast(q.device.type, enabled=False):
                return self.mix(q, k, v)
        kind = torch.promote_types(q.dtype, torch.float32)
        similar_q, similar_k = self.positive_features(q.to(kind)), self.positive_features(k.to(kind))
        gathered = similar_k.transpose(1, 2) @ v.to(kind)  # (B, F, T)
        total = similar_q @ similar_k.sum(dim=1)[:, :, None]  # (B, N, 1)
        return (similar_q @ gathered / (total + PERFORMER_EPS)).to(v.dtype)

    def positive_features(self, vectors: Tensor) -> Tensor:
        """Map vectors (B, N, T) to positive features (B, N, F) whose dot products estimate exp(q . k)."""
        directions = self.features.to(vectors.dtype)
        exponent = vectors @ directions.T - vectors.square().sum(dim=-1, keepdim=True) / 2
        return exponent.exp() * directions.shape[0] ** -0.5


def soft_split(images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Gather overlapping squares of a map (B, C, rows, columns): (B, C x kernel x kernel, rows / stride, ...)."""
    rows, columns = (size // stride for size in images.shape[2:])
    gathered = F.unfold(images, kernel, stride=stride, padding=padding)  # (B, C x kernel x kernel, N)
    return gathered.unflatten(2, (rows, columns))
