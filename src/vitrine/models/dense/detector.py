"""A dense detector without anchors: every cell of a feature pyramid predicts one box and its classes.

The pyramid is ViTDet's (arXiv:2203.16527), the heads are those of FCOS (arXiv:1904.01355) without its centre-ness: a
cell's scores say how well its box fits, as in TOOD (arXiv:2108.07755). Shapes: B images, D width of the ViT, W of the
pyramid, N cells of all levels, K classes, L levels.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.dense.config import DetectorConfig
from vitrine.models.dense.model import DenseModel
from vitrine.models.dense.pyramid import ConvNorm, Level, level_grid

# The score of a fresh model for every class: the many cells without an object must not dominate the first steps.
PRIOR = 0.01
OUTPUT_STD = 0.01
# A new model's boxes reach this many cells to each side, like RetinaNet's anchors, so each level has its own scale.
REACH = 4.0
# Largest logarithm of a distance relative to that.
MOST_LOG = 5.0


class Tower(nn.Module):
    """Convolutions with norms, and an output per cell; shared by all levels."""

    def __init__(self, width: int, outputs: int, *, num_convs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(ConvNorm(width, width, kernel_size=3) for _ in range(num_convs))
        self.output = nn.Conv2d(width, outputs, kernel_size=3, padding=1)
        nn.init.normal_(self.output.weight, std=OUTPUT_STD)
        nn.init.zeros_(self.output.bias)  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, W, rows, columns) to (B, cells, outputs)."""
        for conv in self.convs:
            maps = F.gelu(conv(maps))
        return self.output(maps).flatten(2).transpose(1, 2)


class DetectionDecoder(nn.Module):
    """The pyramid and both heads."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            Level(config.vit.width, config.width, scale=scale) for scale in config.levels
        )
        self.classify = Tower(config.width, config.num_classes, num_convs=config.num_convs)
        self.locate = Tower(config.width, 4, num_convs=config.num_convs)
        self.scales = nn.Parameter(torch.ones(len(config.levels)))
        nn.init.constant_(self.classify.output.bias, math.log(PRIOR / (1 - PRIOR)))  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Map patches (B, D, GH, GW) to class logits (B, N, K) and the logarithms of four distances (B, N, 4)."""
        classes, distances = [], []
        for number, level in enumerate(self.levels):
            features = level(maps)
            classes.append(self.classify(features))
            distances.append(self.locate(features).float() * self.scales[number])
        return torch.cat(classes, dim=1), torch.cat(distances, dim=1)


class Detector(DenseModel):
    """A ViT and a dense detector: images to boxes in pixels and probabilities of classes (B, N, 4 + K)."""

    config: DetectorConfig

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__(config)
        self.decoder = DetectionDecoder(config)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, H, W) to boxes and probabilities (B, N, 4 + K)."""
        boxes, logits = self.answers(images)
        return torch.cat([boxes, logits.sigmoid()], dim=-1)

    def answers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return a box in pixels (left, top, right, bottom) (B, N, 4) and class logits (B, N, K) for every cell."""
        maps = self.vit.last_map(images)
        logits, distances = self.decoder(maps)
        cells = self.cells((maps.shape[2], maps.shape[3]), device=images.device)
        reach = cells[:, 2:] * REACH * distances.clamp(max=MOST_LOG).exp()  # (B, N, 4)
        centres = cells[:, :2]
        return torch.cat([centres - reach[..., :2], centres + reach[..., 2:]], dim=-1), logits.float()

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """Return the patches (down, across) of images (B, C, H, W)."""
        stride = self.config.vit.token_stride
        return images.shape[2] // stride[0], images.shape[3] // stride[1]

    def cells(self, grid: tuple[int, int], *, device: torch.device) -> Tensor:
        """Return the centre (x, y) and the side of every cell in pixels (N, 3), finest level first."""
        stride = self.config.vit.token_stride
        assert stride[0] == stride[1]
        return all_cells(grid, self.config.levels, stride=stride[0], device=device)


def all_cells(
    grid: tuple[int, int], levels: tuple[float, ...], *, stride: int, device: torch.device
) -> Tensor:
    """Return the centre (x, y) and the side of the cells of all levels in pixels (N, 3)."""
    parts = []
    for scale in levels:
        rows, columns = level_grid(grid, scale)
        side = stride / scale
        y, x = torch.meshgrid(
            (torch.arange(rows, device=device) + 0.5) * side,
            (torch.arange(columns, device=device) + 0.5) * side,
            indexing="ij",
        )
        parts.append(torch.stack([x, y, torch.full_like(x, side)], dim=-1).view(-1, 3))
    return torch.cat(parts)
