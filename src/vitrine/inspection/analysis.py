"""All analyses of one model, as arrays by name; one that does not apply is reported and the others run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.class_gradient import class_attention
from vitrine.inspection.filters import PAPER_COUNT, FilterComponents, filter_components, has_pixel_kernel
from vitrine.inspection.heads import attention_distance, patch_number, seen_from
from vitrine.inspection.pictures import PictureBatches, as_shown, spread
from vitrine.inspection.rollout import from_output, roll_out
from vitrine.inspection.similarity import layer_similarity, position_similarity
from vitrine.inspection.streaming import concatenated, grid_of, num_pieces, on_grid, pieces, require_attention
from vitrine.inspection.tokens import TokenNorms, token_colours, token_norms
from vitrine.models import Model, ViT
from vitrine.models.config import checked_layer
from vitrine.models.families import family_of
from vitrine.runtime.progress import track
from vitrine.spelling import nearest


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A patch, a layer and a class, each by index; None to choose from the results."""

    patch: tuple[int, int] | None = None
    layer: int | None = None
    target: int | None = None
    num_components: int = PAPER_COUNT


def check_selection(model: Model, selection: Selection, *, image_size: tuple[int, int]) -> None:
    """Refuse a patch, layer or class that the model does not have, before any work."""
    if not isinstance(model, ViT):
        if selection.patch is not None or selection.layer is not None or selection.target is not None:
            raise ConfigError(
                f"a {family_of(model.config).kind} has no patch, layer or class to choose; leave the options out"
            )
        return
    if selection.layer is not None:
        checked_layer(selection.layer, model.config.depth)
    if selection.patch is not None:
        down, across = model.config.token_stride
        patch_number(selection.patch, (image_size[0] // down, image_size[1] // across))


def parse_patch(text: str) -> tuple[int, int]:
    """Read a row and a column, separated by a comma."""
    try:
        row, column = (int(number) for number in text.split(","))
    except ValueError:
        raise ConfigError(f"must be a row and a column, such as 3,7, got {text!r}", option="patch") from None
    return row, column


def find_class(wanted: str, model: Model, *, classes: Sequence[str]) -> int:
    """Return a class's index from its name or its index."""
    num_classes = model.config.num_classes
    if num_classes is None:
        raise ConfigError(f"the model has no head, so it has no class {wanted!r}", option="class_")
    if wanted in classes:
        return list(classes).index(wanted)
    if wanted.isdecimal() and int(wanted) < num_classes:
        return int(wanted)
    close = nearest(wanted, classes)
    near = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"the model has no class {wanted!r} among its {num_classes}{near}", suggestions=close)


Measured = TypeVar("Measured")


@dataclass(kw_only=True)
class Analysis:
    """The computed arrays; None or absent if an analysis does not apply, with the reason."""

    filters: FilterComponents | None = None
    positions: NDArray[Any] | None = None
    distance: NDArray[Any] | None = None
    similarity: NDArray[Any] | None = None
    num_images: int = 0
    shown: list[int] = field(default_factory=list)
    """Numbers of the images with figures of their own."""
    pictures: NDArray[np.uint8] | None = None
    rollout: NDArray[Any] | None = None
    heads: NDArray[Any] | None = None
    patch: tuple[int, int] | None = None
    patch_heads: NDArray[Any] | None = None
    class_maps: NDArray[Any] | None = None
    predictions: list[int] = field(default_factory=list)
    colours: NDArray[Any] | None = None
    norms: TokenNorms | None = None
    missing: dict[str, list[str]] = field(default_factory=dict)
    """By reason, the analyses that are missing."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, for a file."""
        filters = None if self.filters is None else {
            "filter_components": self.filters.components, "filter_explained_variance": self.filters.explained
        }  # fmt: skip
        norms = None if self.norms is None else {
            "token_norms": self.norms.patches, "token_outliers": self.norms.outliers,
            "class_token_norms": self.norms.class_token, "register_norms": self.norms.registers,
        }  # fmt: skip
        named = {
            "position_similarity": self.positions, "attention_distance": self.distance,
            "layer_similarity": self.similarity, "images": self.pictures, "rollout": self.rollout,
            "head_attention": self.heads, "patch_attention": self.patch_heads,
            "class_attention": self.class_maps, "token_colours": self.colours,
        } | (filters or {}) | (norms or {})  # fmt: skip
        return {name: array for name, array in named.items() if array is not None}


def analyse_model(model: Model, selection: Selection, *, image_size: tuple[int, int]) -> Analysis:
    """Run the analyses that need no image: filters and positions."""
    analysis = Analysis()
    if has_pixel_kernel(model):
        analysis.filters = filter_components(model, count=selection.num_components)
    else:
        analysis.missing["no kernel of this model reads pixels"] = ["filters"]
    grid = None
    if isinstance(model, ViT):
        rows, columns = (
            side // step for side, step in zip(image_size, model.config.token_stride, strict=True)
        )
        grid = (rows, columns)
    analysis.positions = _tried(
        analysis, "position similarity", lambda: position_similarity(model, grid=grid)
    )
    return analysis


def analyse_images(
    analysis: Analysis, model: Model, batches: PictureBatches, selection: Selection, *, num_shown: int
) -> None:
    """Run the analyses over all images, then those of `num_shown` single images that can be read."""
    analysis.distance = _tried(analysis, "attention distance", lambda: attention_distance(model, batches))
    analysis.similarity = _tried(analysis, "similarity of layers", lambda: layer_similarity(model, batches))
    readable = [index for index in range(len(batches.source)) if index not in batches.failures]
    analysis.num_images = len(readable)
    if not readable:
        analysis.missing = {why: whats for why, whats in analysis.missing.items() if "images" not in why}
        analysis.missing["none of the images can be read"] = ["all analyses of images"]
    if not readable or not num_shown:
        return
    analysis.shown = [readable[place] for place in spread(len(readable), num_shown)]
    few = batches.part(analysis.shown)
    pixels = torch.cat(list(few.pixels()))
    analysis.pictures = as_shown(pixels)
    images = batches.preprocess.normalise(pixels)
    _tried(analysis, "rollout, single heads", lambda: _look_at_attention(analysis, model, images, selection))
    analysis.predictions = _predictions(model, images)
    analysis.class_maps = _tried(
        analysis, "attention for a class", lambda: class_attention(model, images, target=selection.target)
    )
    analysis.colours = token_colours(model, images, layer=selection.layer)
    analysis.norms = token_norms(model, images, layer=selection.layer)


def _look_at_attention(analysis: Analysis, model: Model, images: Tensor, selection: Selection) -> None:
    """Compute rollout, single heads and a patch's attention in one pass; separate calls need one pass each."""
    vit = require_attention(model)
    chosen = checked_layer(-1 if selection.layer is None else selection.layer, vit.config.depth)
    grid = grid_of(vit, images)
    analysis.patch = selection.patch or (grid[0] // 2, grid[1] // 2)
    token = vit.num_leading_tokens + patch_number(analysis.patch, grid)
    flows, heads, seen = [], [], []
    with evaluating(vit):
        for piece in track(pieces(vit, images), "Attention of images", total=num_pieces(vit, images)):
            maps: list[Tensor] = []

            def averages(piece: Tensor = piece, maps: list[Tensor] = maps) -> Iterator[Tensor]:
                for layer, weights in vit.attention(piece):
                    maps.append(on_grid(seen_from(vit, weights, None), grid))
                    if layer == chosen:
                        seen.append(on_grid(seen_from(vit, weights, token), grid))
                    yield weights.mean(dim=1)

            flows.append(on_grid(from_output(vit, roll_out(averages())), grid))
            heads.append(torch.stack(maps, dim=1))
    analysis.rollout, analysis.heads, analysis.patch_heads = (
        concatenated(flows),
        concatenated(heads),
        concatenated(seen),
    )


def _predictions(model: Model, images: Tensor) -> list[int]:
    if model.head is None:
        return []
    with evaluating(model), torch.no_grad():
        return [int(k) for piece in pieces(model, images) for k in model(piece).argmax(dim=1)]


def _tried(analysis: Analysis, what: str, look: Callable[[], Measured]) -> Measured | None:
    try:
        return look()
    except (ConfigError, DataError) as error:
        analysis.missing.setdefault(str(error), []).append(what)
        return None
