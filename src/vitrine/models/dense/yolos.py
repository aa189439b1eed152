"""YOLOS: tokens for objects beside the patches of a plain ViT (Fang et al., arXiv:2106.00666).

Shapes: B images, N patches, T detection tokens, S positions before those of patches, D width, K classes, L blocks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.dense.config import YolosConfig
from vitrine.models.dense.model import DenseModel
from vitrine.models.positions import resample_grid

STD = 0.02
NUM_LAYERS = 3


class AnswerLayers(nn.Module):
    """Three linear layers with ReLU between them."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        widths = [width] * NUM_LAYERS + [outputs]
        self.layers = nn.ModuleList(nn.Linear(widths[i], widths[i + 1]) for i in range(NUM_LAYERS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, outputs)."""
        for layer in self.layers[:-1]:
            tokens = F.relu(layer(tokens))
        return self.layers[-1](tokens)


class DetectionTokens(nn.Module):
    """The tokens, their positions, and the heads that predict classes and boxes."""

    def __init__(self, config: YolosConfig) -> None:
        super().__init__()
        D, T = config.vit.width, config.num_detections
        self.tokens = nn.Parameter(torch.empty(1, T, D))
        self.positions = nn.Parameter(torch.empty(1, T, D))
        self.middle_positions = None
        if config.has_middle_positions:
            rows = config.vit.num_position_slots + config.vit.grid_size[0] * config.vit.grid_size[1] + T
            self.middle_positions = nn.Parameter(torch.empty(config.vit.depth - 1, 1, rows, D))
            nn.init.trunc_normal_(self.middle_positions, std=STD)
        self.classify = AnswerLayers(D, config.num_classes + 1)
        self.locate = AnswerLayers(D, 4)
        nn.init.trunc_normal_(self.tokens, std=STD)
        nn.init.trunc_normal_(self.positions, std=STD)


class Yolos(DenseModel):
    """A ViT with detection tokens: images to boxes in pixels and probabilities of classes (B, T, 4 + K)."""

    config: YolosConfig
    decoder: DetectionTokens

    def __init__(self, config: YolosConfig) -> None:
        super().__init__(config)
        self.decoder = DetectionTokens(config)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, H, W) to boxes and probabilities (B, T, 4 + K)."""
        boxes, logits = self.answers(images)
        return torch.cat([in_pixels(boxes, images), logits.softmax(dim=-1)[..., :-1]], dim=-1)

    def answers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes as centre and size as fractions of the image (B, T, 4), and class logits (B, T, K + 1)."""
        tokens, grid = self.first_tokens(images)
        for layer in range(self.vit.config.depth):
            tokens = self.run_block(tokens, grid, layer=layer)
        return self.read(tokens)

    def first_tokens(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return detection tokens before the others, with positions: (B, T + S + N, D)."""
        patches, grid = self.vit.embed_patches(images)
        tokens = self.vit.assemble(patches, grid)
        # Attention does not know the order of tokens: detection tokens may stand before the others.
        own = (self.decoder.tokens + self.decoder.positions).to(tokens.dtype)
        return torch.cat([own.expand(tokens.shape[0], -1, -1), tokens], dim=1), grid

    def run_block(self, tokens: Tensor, grid: tuple[int, int], *, layer: int) -> Tensor:
        """Run one block; add the middle positions after it, if there are any."""
        tokens = self.vit.blocks[layer](tokens)
        if self.decoder.middle_positions is not None and layer < self.vit.config.depth - 1:
            tokens = tokens + self.middle_rows(layer, grid).to(tokens.dtype)
        return tokens

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read boxes (B, T, 4) and class logits (B, T, K + 1) from the tokens of the last block."""
        located = self.vit.norm(tokens)[:, : self.config.num_detections]
        return self.decoder.locate(located).float().sigmoid(), self.decoder.classify(located).float()

    def middle_rows(self, layer: int, grid: tuple[int, int]) -> Tensor:
        """Return the positions that are added after a block (1, T + S + N, D)."""
        assert self.decoder.middle_positions is not None
        vit, table = self.config.vit, self.decoder.middle_positions[layer]
        S, T = vit.num_position_slots, self.config.num_detections
        patches = table[:, S:-T]
        if grid != vit.grid_size:
            patches = resample_grid(patches, vit.grid_size, grid, rule=vit.position_resampling)
        return torch.cat([table[:, -T:], table[:, :S], patches], dim=1)


def in_pixels(boxes: Tensor, images: Tensor) -> Tensor:
    """Return boxes (B, T, 4) as left, top, right and bottom in pixels of images (B, C, H, W)."""
    height, width = images.shape[2:]
    x, y, across, down = boxes.unbind(dim=-1)
    return torch.stack(
        [
            (x - across / 2) * width,
            (y - down / 2) * height,
            (x + across / 2) * width,
            (y + down / 2) * height,
        ],
        dim=-1,
    )
