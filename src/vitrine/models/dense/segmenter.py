"""Segmenter's mask transformer (Strudel et al., arXiv:2105.05633): one learned embedding per class.

The embeddings pass some blocks beside the patches; the score of a class at a patch is the cosine of both, normalised
over the classes. Shapes: B images, N patches on GH x GW, E width of the decoder, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.dense.config import SegmenterConfig
from vitrine.models.dense.model import DenseModel
from vitrine.models.encoder import MLP_RATIO, Block

STD = 0.02


class MaskTransformer(nn.Module):
    """Patches and class embeddings through some blocks, to the cosine of each patch with each class."""

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__()
        E, K = config.decoder_width, config.num_classes
        self.project = nn.Linear(config.vit.width, E)
        self.class_embedding = nn.Parameter(torch.empty(1, K, E))
        self.layers = nn.ModuleList(
            Block(
                E, num_heads=config.num_heads, mlp_width=config.mlp_width or MLP_RATIO * E, gelu="erf",
                norm_eps=config.norm_eps, dropout=config.dropout,
            )
            for _ in range(config.depth)
        )  # fmt: skip
        self.norm = nn.LayerNorm(E, eps=config.norm_eps)
        self.patch_projection = nn.Parameter(torch.empty(E, E))
        self.class_projection = nn.Parameter(torch.empty(E, E))
        self.mask_norm = nn.LayerNorm(K, eps=config.norm_eps)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw linear layers and embeddings with deviation .02, both projections with E ** -0.5."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.class_embedding, std=STD)
        for projection in (self.patch_projection, self.class_projection):
            nn.init.normal_(projection, std=projection.shape[0] ** -0.5)

    def forward(self, maps: Tensor) -> Tensor:
        """Map encoded patches (B, D, GH, GW) to scores (B, K, GH, GW)."""
        tokens = self.with_classes(maps)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.read(tokens, (maps.shape[2], maps.shape[3]))

    def with_classes(self, maps: Tensor) -> Tensor:
        """Put the class embeddings behind the patches of a map (B, D, GH, GW): (B, N + K, E)."""
        tokens = self.project(maps.flatten(2).transpose(1, 2))  # (B, N, E)
        classes = self.class_embedding.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return torch.cat([tokens, classes], dim=1)

    def read(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Compare the patches of tokens (B, N + K, E) with the classes: scores (B, K, GH, GW)."""
        K = self.class_embedding.shape[1]
        tokens = self.norm(tokens)
        patches = F.normalize(tokens[:, :-K] @ self.patch_projection.to(tokens.dtype), dim=-1)
        wanted = F.normalize(tokens[:, -K:] @ self.class_projection.to(tokens.dtype), dim=-1)
        scores = self.mask_norm(patches @ wanted.transpose(1, 2))  # (B, N, K)
        return scores.transpose(1, 2).reshape(tokens.shape[0], K, *grid)


class Segmenter(DenseModel):
    """A ViT and the mask transformer."""

    config: SegmenterConfig
    decoder: MaskTransformer

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__(config)
        self.decoder = MaskTransformer(config)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to scores (B, K, GH, GW)."""
        return self.decoder(self.vit.last_map(images))
