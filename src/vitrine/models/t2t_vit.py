"""T2T-ViT (arXiv:2101.11986): the tokens-to-token module, a stem for any ViT, and the published models.

Section 3.1: images become tokens in soft splits, which overlap, with a small attention layer after each but the last:
neighbouring tokens are gathered into one, step by step. The ViT's patch projection reads the last split.
Section 3.2: a deep and narrow ViT follows, with fixed sines and cosines as positions.

Shapes: B images, C channels, N tokens on a grid of rows x columns, I width of a layer's input, T of its output,
F random features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import attend
from vitrine.models.config import ViTConfig
from vitrine.models.dropout import Dropout
from vitrine.models.encoder import Mlp
from vitrine.models.fixed import HasFixedParameters
from vitrine.models.stem_configs import Mixing, TokensToTokenConfig

# Avoids a division by zero for a token without similar ones; the authors' value.
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
            tokens = layer(maps.flatten(2).transpose(1, 2))  # (B, N, T)
            image = tokens.transpose(1, 2).reshape(tokens.shape[0], -1, *maps.shape[2:])  # eq. 1's reshape
            maps = soft_split(image, *split)
        return maps


class TokenTransformer(nn.Module):
    """Attention of one head and an MLP; as widths differ, the residual adds the values, not the input."""

    def __init__(self, in_width: int, config: TokensToTokenConfig) -> None:
        super().__init__()
        T = config.token_width
        self.norm_1 = nn.LayerNorm(in_width, eps=config.norm_eps)
        self.to_qkv = nn.Linear(in_width, 3 * T, bias=False)
        self.to_out = nn.Linear(T, T)
        self.norm_2 = nn.LayerNorm(T, eps=config.norm_eps)
        self.mlp = Mlp(T, hidden_width=T, gelu="erf")
        self.scale = in_width**-0.5  # as in the authors' code: by the input's width, not the head's

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, I) to (B, N, T)."""
        q, k, v = self.to_qkv(self.norm_1(tokens))[:, None].chunk(3, dim=-1)  # each (B, 1, N, T)
        mixed = v[:, 0] + self.to_out(attend(q, k, v, scale=self.scale)[:, 0])
        return mixed + self.mlp(self.norm_2(mixed))


class TokenPerformer(HasFixedParameters, nn.Module):
    """Linear attention by random features (Performer, arXiv:2009.14794) and an MLP; the residual adds the values."""

    fixed: tuple[str, ...] = ("features",)

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
        if not q.is_meta and torch.is_autocast_enabled(q.device.type):
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
    if images.is_cuda:
        return gathered_slices(images, kernel, stride, padding, grid=(rows, columns))
    gathered = F.unfold(images, kernel, stride=stride, padding=padding)  # (B, C x kernel x kernel, N)
    return gathered.reshape(images.shape[0], -1, rows, columns)


def gathered_slices(
    images: Tensor, kernel: int, stride: int, padding: int, *, grid: tuple[int, int]
) -> Tensor:
    """Gather the same by one slice per place in the kernel: torch's unfold launches a kernel per image on CUDA."""
    padded = F.pad(images, (padding,) * 4)
    last_row, last_column = (stride * (count - 1) + 1 for count in grid)
    slices = [
        padded[:, :, down : down + last_row : stride, across : across + last_column : stride]
        for down in range(kernel)
        for across in range(kernel)
    ]
    return torch.stack(slices, dim=2).flatten(1, 2)  # channels vary slowest, as in unfold


def t2t_vit(mixing: Mixing, *, width: int, depth: int, num_heads: int, mlp_ratio: int) -> ViTConfig:
    """Return the config of a T2T-ViT; all of them split images alike."""
    return ViTConfig(
        patch_size=(1, 1),
        stem=TokensToTokenConfig(mixing=mixing),
        width=width,
        depth=depth,
        num_heads=num_heads,
        mlp_width=mlp_ratio * width,
        positions="sincos_1d",
        position_resampling="bicubic",
        qkv_bias=False,
        gelu="erf",
        norm_eps=1e-5,
        initialisation="deit",
    )


# Table 2, and two shapes of section 4.3; `_t` has token transformers instead of performers.
VARIANTS = {
    "T2T-ViT-7": t2t_vit("performer", width=256, depth=7, num_heads=4, mlp_ratio=2),
    "T2T-ViT-10": t2t_vit("performer", width=256, depth=10, num_heads=4, mlp_ratio=2),
    "T2T-ViT-12": t2t_vit("performer", width=256, depth=12, num_heads=4, mlp_ratio=2),
    "T2T-ViT-14": t2t_vit("performer", width=384, depth=14, num_heads=6, mlp_ratio=3),
    "T2T-ViT-19": t2t_vit("performer", width=448, depth=19, num_heads=7, mlp_ratio=3),
    "T2T-ViT-24": t2t_vit("performer", width=512, depth=24, num_heads=8, mlp_ratio=3),
    "T2T-ViT_t-14": t2t_vit("transformer", width=384, depth=14, num_heads=6, mlp_ratio=3),
    "T2T-ViT_t-19": t2t_vit("transformer", width=448, depth=19, num_heads=7, mlp_ratio=3),
    "T2T-ViT_t-24": t2t_vit("transformer", width=512, depth=24, num_heads=8, mlp_ratio=3),
    "T2T-ViT-14-resnext": t2t_vit("performer", width=384, depth=14, num_heads=32, mlp_ratio=3),
    "T2T-ViT-14-wide": t2t_vit("performer", width=768, depth=4, num_heads=12, mlp_ratio=3),
}
ALIASES = {name.lower().replace("-", "_"): name for name in VARIANTS}
"""Names in the authors' code: t2t_vit_14, t2t_vit_t_14, t2t_vit_14_resnext."""
