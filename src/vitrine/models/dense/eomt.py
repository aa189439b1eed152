"""EoMT, the encoder-only mask transformer (Kerssies et al., arXiv:2503.19108): queries in the last blocks of a ViT.

Each query predicts one mask and one class, or none. While training, a query attends only to the patches of the
mask that it predicts so far; this is annealed away, so that a trained model is a plain ViT.

Shapes: B images, Q queries, T tokens, N patches on GH x GW, D width, K classes, S predictions (one per masked block
and the last), h x w cells of a mask.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import attend
from vitrine.models.dense.config import EoMTConfig
from vitrine.models.dense.model import ChannelNorm, DenseModel, as_map
from vitrine.models.dropout import RandomLayer
from vitrine.models.encoder import Block
from vitrine.models.rotary import Rotation

ANNEALING_POWER = 0.9
NORM_EPS = 1e-6


class QueryAnswers(NamedTuple):
    """The outputs of the queries, for each of S predictions."""

    masks: Tensor
    """Logits (S, B, Q, h, w)."""
    classes: Tensor
    """Logits (S, B, Q, K + 1); the last is "no object"."""
    points: Tensor
    """Uniform numbers in [0, 1) for the loss (B, P, 2), the same for an image in any micro-batch."""


class ScaleBlock(nn.Module):
    """Double a map's rows and columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)
        self.mix = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width, bias=False)
        self.norm = ChannelNorm(width, eps=NORM_EPS)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, rows, columns) to (B, D, 2 rows, 2 columns)."""
        return self.norm(self.mix(F.gelu(self.enlarge(maps))))


class QueryDecoder(nn.Module):
    """The queries, and the heads that read masks and classes from them."""

    def __init__(self, config: EoMTConfig) -> None:
        super().__init__()
        D = config.vit.width
        self.queries = nn.Parameter(torch.empty(config.num_queries, D))
        nn.init.normal_(self.queries)
        self.classify = nn.Linear(D, config.num_classes + 1)
        self.embed_mask = nn.Sequential(
            nn.Linear(D, D), nn.GELU(), nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)
        )
        self.upscale = nn.Sequential(*(ScaleBlock(D) for _ in range(config.num_upscales)))
        self.masking, self.points = RandomLayer(), RandomLayer()

    def forward(self, tokens: Tensor, *, num_prefix: int, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Map normalised tokens (queries, prefix, patches) to mask logits (B, Q, h, w) and class logits."""
        Q = len(self.queries)
        maps = self.upscale(as_map(tokens, grid, num_leading=Q + num_prefix))
        embedded = self.embed_mask(tokens[:, :Q])
        return torch.einsum("bqd,bdhw->bqhw", embedded, maps), self.classify(tokens[:, :Q])


class EoMT(DenseModel):
    """A plain ViT with queries in its last blocks."""

    config: EoMTConfig
    decoder: QueryDecoder

    def __init__(self, config: EoMTConfig) -> None:
        super().__init__(config)
        self.decoder = QueryDecoder(config)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, H, W) to scores (B, K, H, W): the queries' predictions, summed per class."""
        masks, classes = self.answers(images)
        masks = F.interpolate(masks.float(), size=images.shape[2:], mode="bilinear", align_corners=False)
        return torch.einsum("bqk,bqhw->bkhw", classes.float().softmax(dim=-1)[..., :-1], masks.sigmoid())

    def answers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mask logits (B, Q, h, w) and class logits (B, Q, K + 1) of every query."""
        tokens, grid = self.first_blocks(images)
        for layer in self.masked_layers:
            tokens = self.vit.blocks[layer](tokens, self.places(tokens, grid))
        return self.read(tokens, grid)

    def places(self, tokens: Tensor, grid: tuple[int, int]) -> Rotation | None:
        """Return the rotation of queries and tokens (B, Q + T, D), if the ViT has one; queries are not rotated."""
        rotary = self.vit.rotary
        return (
            None
            if rotary is None
            else rotary(grid, num_images=tokens.shape[0]).after(len(self.decoder.queries))
        )

    def first_blocks(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Run the blocks without queries, and put the queries before their tokens: (B, Q + T, D)."""
        vit = self.vit
        patches, grid = vit.embed_patches(images)
        tokens = vit.assemble(patches, grid)
        for layer in range(self.masked_layers.start):
            tokens = vit.run_block(tokens, grid, layer=layer)
        queries = self.decoder.queries.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return torch.cat([queries, tokens], dim=1), grid

    def read(self, tokens: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Read masks and classes from tokens (B, Q + T, D)."""
        masks, classes = self.decoder(
            self.vit.norm(tokens), num_prefix=self.vit.num_leading_tokens, grid=grid
        )
        return masks, classes

    @property
    def masked_layers(self) -> range:
        """The blocks that the queries pass."""
        return range(self.vit.config.depth - self.config.num_blocks, self.vit.config.depth)


class InstanceEoMT(EoMT):
    """An EoMT of objects: each query predicts one, with its mask and its class."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map normalised images (B, C, H, W) to logits of masks (B, Q, h, w) and class probabilities (B, Q, K)."""
        masks, classes = self.answers(images)
        return masks.float(), classes.float().softmax(dim=-1)[..., :-1]

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate of the ViT by name, and last the `masks` (B, Q, h, w) and `scores` (B, Q, K)."""
        masks, scores = self(images)
        return {**self.vit.features(images), "masks": masks, "scores": scores}


class TrainedEoMT(nn.Module):
    """An EoMT with masked attention, as it is trained; called with images alone, it returns the model's output."""

    def __init__(self, model: EoMT, *, num_points: int) -> None:
        super().__init__()
        self.model, self.num_points = model, num_points

    def forward(
        self, images: Tensor, progress: Tensor | None = None
    ) -> QueryAnswers | Tensor | tuple[Tensor, Tensor]:
        """Return the predictions before each block with queries and after the last, masked for this progress (B,)."""
        if progress is None:
            answered: Tensor | tuple[Tensor, Tensor] = self.model(images)
            return answered
        model, decoder = self.model, self.model.decoder
        tokens, grid = model.first_blocks(images)
        answers = []
        for place, layer in enumerate(model.masked_layers):
            masks, classes = model.read(tokens, grid)
            answers.append((masks, classes))
            share = masked_share(progress, place=place, num_blocks=len(model.masked_layers))
            is_masked = decoder.masking.draw(*masks.shape[:2], device=images.device) < share[:, None]
            is_hidden = hidden_patches(masks.detach(), is_masked, grid=grid)
            tokens = masked_block(model.vit.blocks[layer], tokens, is_hidden, model.places(tokens, grid))
        answers.append(model.read(tokens, grid))
        return QueryAnswers(
            torch.stack([masks for masks, _ in answers]),
            torch.stack([classes for _, classes in answers]),
            decoder.points.draw(len(images), self.num_points, 2, device=images.device),
        )


def masked_share(progress: Tensor, *, place: int, num_blocks: int) -> Tensor:
    """Return the share of queries that are masked in a block: 1, then falling to 0, earlier blocks first.

    The blocks' phases follow each other, as in the authors' schedule for four blocks on ADE20K.
    """
    start, end = ((place + step) / (num_blocks + 2) for step in (1, 2))
    done = ((progress - start) / (end - start)).clamp(0, 1)
    return (1 - done) ** ANNEALING_POWER


def hidden_patches(masks: Tensor, is_masked: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """Return which patches each query must not attend to (B, Q, N): those outside the mask of a masked query."""
    on_grid = F.interpolate(masks.float(), size=grid, mode="bilinear", align_corners=False).flatten(2)
    return (on_grid <= 0) & is_masked[..., None]


def masked_block(
    block: nn.Module, tokens: Tensor, is_hidden: Tensor, places: Rotation | None = None
) -> Tensor:
    """Run a block on tokens (B, Q + T, D) in which some patches are hidden from the queries (B, Q, N).

    The attention of the few queries is written out, and that of all other tokens needs no mask: fused kernels with a
    mask have returned gradients of 1e9 on an H200 (compiled, bf16, 1,125 tokens), and they need a T x T mask.
    """
    assert isinstance(block, Block)
    attention, Q = block.attention, is_hidden.shape[1]
    q, k, v = attention.project(block.norm_1(tokens), places=places)
    logits = (q[:, :, :Q] * attention.factor(q)) @ k.transpose(-2, -1)  # (B, H, Q, Q + T)
    is_hidden = F.pad(is_hidden, (logits.shape[-1] - is_hidden.shape[-1], 0))[:, None]
    of_queries = logits.masked_fill(is_hidden, -math.inf).softmax(dim=-1).to(v.dtype) @ v
    others = attend(q[:, :, Q:], k, v, scale=attention.scale)
    tokens = tokens + block.scale_1(attention.join(torch.cat([of_queries, others], dim=2)))
    return tokens + block.scale_2(block.mlp(block.norm_2(tokens)))
