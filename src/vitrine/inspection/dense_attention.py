"""Answers of models for masks and boxes, and the attention of the tokens behind each answer to the patches.

EoMT's queries, YOLOS' detection tokens and Segmenter's class embeddings attend themselves, in the last block that
they pass. A linear head and a dense detector have no such tokens: there the patches of the answer attend, in the
last block of the ViT. Attention is the mean over heads. Shapes: B images, Q queries, T tokens, N patches on GH x GW.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrine.evaluation.box_predictions import best_boxes
from vitrine.models.dense.detector import Detector
from vitrine.models.dense.eomt import EoMT, InstanceEoMT
from vitrine.models.dense.linear import LinearSegmenter
from vitrine.models.dense.model import DenseModel
from vitrine.models.dense.segmenter import Segmenter
from vitrine.models.dense.yolos import Yolos, in_pixels
from vitrine.models.encoder import Block
from vitrine.models.rotary import Rotation


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One answer about a picture, and the attention behind it."""

    label: int
    score: float
    """Probability of the class; for a class of pixels, the share of the picture that it covers."""
    asker: str
    """The tokens that attend: `query 12`, or the patches."""
    answer: NDArray[Any] | None
    """Probability of the mask or of the class in each cell (rows, columns); None for boxes."""
    box: tuple[float, float, float, float] | None
    """Left, top, right and bottom in shares of the picture; None for masks."""
    attention: NDArray[Any]
    """Attention to each patch (GH, GW)."""


def sights_of(
    model: DenseModel, images: Tensor, *, most: int, target: int | None = None
) -> list[list[Sight]]:
    """Return for each normalised image (B, C, H, W) its best answers, at most `most`, or those of one class."""
    seers: dict[type[DenseModel], Callable[[Any, Tensor], list[list[Sight]]]] = {
        EoMT: _of_queries, InstanceEoMT: _of_queries, Yolos: _of_tokens, Segmenter: _of_embeddings,
        LinearSegmenter: _of_pixels, Detector: _of_cells,
    }  # fmt: skip
    with torch.no_grad():
        answered = [sights for image in images for sights in seers[type(model)](model, image[None])]
    return [
        sorted((one for one in sights if target is None or one.label == target), key=lambda one: -one.score)[
            :most
        ]
        for sights in answered
    ]


def _of_queries(model: EoMT, images: Tensor) -> list[list[Sight]]:
    tokens, grid = model.first_blocks(images)
    weights = tokens  # replaced in the last block
    for layer in model.masked_layers:
        block, places = model.vit.blocks[layer], model.places(tokens, grid)
        if layer == model.masked_layers[-1]:
            weights = attention_in(block, tokens, places)
        tokens = block(tokens, places)
    masks, classes = model.read(tokens, grid)
    Q = masks.shape[1]
    first = Q + model.vit.num_leading_tokens
    scores, labels = classes.float().softmax(dim=-1)[..., :-1].max(dim=-1)
    return [
        [
            Sight(
                label=int(labels[image, query]), score=float(scores[image, query]), asker=f"query {query}",
                answer=masks[image, query].float().sigmoid().cpu().numpy(), box=None,
                attention=on_grid(weights[image, query, first:], grid),
            )
            for query in range(Q)
        ]
        for image in range(len(images))
    ]  # fmt: skip


def _of_tokens(model: Yolos, images: Tensor) -> list[list[Sight]]:
    tokens, grid = model.first_tokens(images)
    weights, last = tokens, model.vit.config.depth - 1
    for layer, block in enumerate(model.vit.blocks.children()):
        if layer == last:
            weights = attention_in(block, tokens)
        tokens = model.run_block(tokens, grid, layer=layer)
    boxes, logits = model.read(tokens)
    T = model.config.num_detections
    first = T + model.vit.num_leading_tokens
    scores, labels = logits.softmax(dim=-1)[..., :-1].max(dim=-1)
    corners = in_shares(in_pixels(boxes, images), images)
    return [
        [
            Sight(
                label=int(labels[image, token]), score=float(scores[image, token]), asker=f"token {token}",
                answer=None, box=box_of(corners[image, token]),
                attention=on_grid(weights[image, token, first:], grid),
            )
            for token in range(T)
        ]
        for image in range(len(images))
    ]  # fmt: skip


def _of_embeddings(model: Segmenter, images: Tensor) -> list[list[Sight]]:
    maps = model.vit.last_map(images)
    decoder, grid = model.decoder, (maps.shape[2], maps.shape[3])
    tokens = decoder.with_classes(maps)
    weights = tokens
    for layer in decoder.layers.children():
        weights = attention_in(layer, tokens)
        tokens = layer(tokens)
    scores = decoder.read(tokens, grid)
    N = grid[0] * grid[1]
    return _of_classes(scores, lambda image, label, _: weights[image, N + label, :N], asker="class embedding")


def _of_pixels(model: LinearSegmenter, images: Tensor) -> list[list[Sight]]:
    scores = model(images)
    weights = patch_attention(model, images)

    def attention(image: int, label: int, winners: Tensor) -> Tensor:
        rows = weights[image][(winners[image] == label).flatten()]
        return rows.mean(dim=0)

    return _of_classes(scores, attention, asker="its patches")


def _of_classes(
    scores: Tensor, attention: Callable[[int, int, Tensor], Tensor], *, asker: str
) -> list[list[Sight]]:
    """Describe the classes that occur in maps of scores (B, K, GH, GW)."""
    grid = (scores.shape[2], scores.shape[3])
    shares, winners = scores.float().softmax(dim=1), scores.argmax(dim=1)
    return [
        [
            Sight(
                label=label, score=float((winners[image] == label).float().mean()), asker=asker,
                answer=shares[image, label].cpu().numpy(), box=None,
                attention=on_grid(attention(image, label, winners), grid),
            )
            for label in torch.bincount(winners[image].flatten()).nonzero()[:, 0].tolist()
        ]
        for image in range(len(scores))
    ]  # fmt: skip


def _of_cells(model: Detector, images: Tensor) -> list[list[Sight]]:
    weights, grid = patch_attention(model, images), model.grid_of(images)
    sights: list[list[Sight]] = []
    for image, (boxes, labels, scores) in enumerate(best_boxes(model(images))):
        corners = in_shares(boxes, images)
        sights.append(
            [
                Sight(
                    label=int(label), score=float(score), asker="patches in box", answer=None,
                    box=box_of(box), attention=on_grid(weights[image][patches_in(box, grid)].mean(dim=0), grid),
                )
                for box, label, score in zip(corners, labels, scores, strict=True)
            ]
        )  # fmt: skip
    return sights


def attention_in(block: nn.Module, tokens: Tensor, places: Rotation | None = None) -> Tensor:
    """Return the attention between the tokens (B, T, D) that enter a block, the mean of its heads (B, T, T)."""
    assert isinstance(block, Block)
    return block.attention.weights(block.norm_1(tokens), places).mean(dim=1)


def patch_attention(model: DenseModel, images: Tensor) -> Tensor:
    """Return the attention of patches to patches in the last block of the ViT (B, N, N)."""
    ((_, weights),) = model.vit.attention(images, layers=[-1])
    first = model.vit.num_leading_tokens
    return weights.mean(dim=1)[:, first:, first:]


def patches_in(box: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return which patches (N,) have their centre in a box of shares; at least the one nearest to its centre."""
    rows = (torch.arange(grid[0], device=box.device) + 0.5) / grid[0]
    columns = (torch.arange(grid[1], device=box.device) + 0.5) / grid[1]
    left, top, right, bottom = box
    inside = ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))[None]
    if not inside.any():
        row = (rows - (top + bottom) / 2).abs().argmin()
        inside[row, (columns - (left + right) / 2).abs().argmin()] = True
    return inside.flatten()


def in_shares(boxes: Tensor, images: Tensor) -> Tensor:
    """Return boxes (..., 4) in pixels of images (B, C, H, W) as shares of their sides, inside them."""
    height, width = images.shape[2:]
    return (boxes / boxes.new_tensor([width, height, width, height])).clamp(0, 1)


def box_of(corners: Tensor) -> tuple[float, float, float, float]:
    """Return a box as numbers."""
    left, top, right, bottom = corners.tolist()
    return left, top, right, bottom


def on_grid(weights: Tensor, grid: tuple[int, int]) -> NDArray[Any]:
    """Put the weights of patches (N,) on their grid (GH, GW)."""
    return weights.float().view(grid).cpu().numpy()
