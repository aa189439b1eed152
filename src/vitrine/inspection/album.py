"""All figures of one inspection, drawn, written and put on one page."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrine.inspection import figures
from vitrine.inspection.drawing import drawing, save_figure
from vitrine.inspection.looks import Looks
from vitrine.models import Model, ViT
from vitrine.runtime.progress import track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSITION_KINDS = {
    "learned_1d": "learned, one a patch",
    "learned_2d": "learned, rows and columns",
    "sincos_2d": "sines and cosines",
    "relative": "relative",
}
OF_DISTANCE = (
    "How far from a patch, in pixels, a head gathers what it mixes into it: distances between patches weighted by "
    "attention, averaged over patches and images. Class token, registers and their like are dropped and the rows "
    "normalised again."
)
OF_ROLLOUT = (
    "How much of the output comes from each patch through all layers: heads averaged, the identity added for the "
    "residual branch, rows normalised, layers multiplied."
)
OF_TOKENS = (
    "Attention averaged over heads, from the output and from the patch in the red frame; three principal components "
    "of the tokens as colours, the same in all images; lengths of the tokens, the longest by far in a red ring."
)
OF_CONVOLUTION = (
    "Principal components of the last feature map's cells as colours, the same in all images, and the lengths of the "
    "cells, those far beyond the rest in a red ring."
)
OF_HEADS = "A map for every head of every layer, each by its own scale."
OF_LAYERS = (
    "Linear CKA of what any two layers put out, 0 the embedded patches, over patch tokens of all images: 1 is the "
    "same up to rotation and scale. Blocks of one colour are layers that do much the same."
)
OF_STAGES = "Linear CKA of what any two stages put out, averaged over the map, over all images."


@dataclass(frozen=True, kw_only=True)
class Plate:
    """One figure in the album: its file's name, heading, words, and how it is drawn."""

    name: str
    heading: str
    words: str
    draw: Callable[[], "Figure"]


@dataclass(frozen=True, kw_only=True)
class Captions:
    """What the figures call the images and classes that they show."""

    names: list[str]
    of_class: list[str]
    layer: int | None
    image_size: tuple[int, int]


def plates_of(looks: Looks, *, model: Model, captions: Captions) -> list[Plate]:
    """List the figures that there is something to draw for, in the order of the page."""
    plates = _model_plates(looks, model)
    if looks.distance is not None:
        draw = partial(
            figures.draw_distance,
            looks.distance,
            num_images=looks.num_images,
            image_size=captions.image_size,
        )
        plates.append(
            Plate(name="attention_distance", heading="Attention distance", words=OF_DISTANCE, draw=draw)
        )
    if looks.rollout is not None and looks.pictures is not None:
        words = f"{OF_ROLLOUT} Seen from {output_of(model)}."
        draw = partial(figures.draw_rollout, looks.pictures, looks.rollout, captions.names)
        plates.append(Plate(name="rollout", heading="Attention rollout", words=words, draw=draw))
    for number in range(len(captions.names)):
        plates += _image_plates(looks, number, model=model, captions=captions)
    if looks.similarity is not None:
        is_vit = isinstance(model, ViT)
        stages = [str(number) if is_vit else f"stage {number}" for number in range(len(looks.similarity))]
        names = stages if is_vit else ["root", *stages[1:]]
        draw = partial(figures.draw_layers, looks.similarity, names=names)
        words = OF_LAYERS if is_vit else OF_STAGES
        plates.append(Plate(name="layer_similarity", heading="Similarity of layers", words=words, draw=draw))
    return plates


def draw_all(plates: list[Plate], folder: Path) -> list[tuple[Plate, str]]:
    """Draw and write every figure; return each with its drawing for the page."""
    drawn = []
    for plate in track(plates, "Drawing figures"):
        with drawing(plate.name):
            drawn.append((plate, save_figure(plate.draw(), folder, plate.name)))
    return drawn


def output_of(model: Model) -> str:
    """Say whose row of attention stands for the output."""
    if isinstance(model, ViT) and not model.config.reads_class_token:
        return "all patches, averaged, as the model has no class token"
    return "the class token"


def described(model: Model, *, variant: str | None) -> str:
    """Say in one line what the model is."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    text = f"{variant or type(model).__name__}, {num_parameters / 1e6:,.1f} M parameters"
    if not isinstance(model, ViT):
        return text
    config, (down, across) = model.config, model.config.token_stride
    return (
        f"{text}, {config.depth} layers of {config.num_heads} heads, width {config.width}, a token every "
        f"{down} x {across} pixels"
    )


def facts_of(looks: Looks, *, image_size: tuple[int, int]) -> list[tuple[str, str]]:
    """Return the headline figures, each with what it is."""
    facts = [(" x ".join(map(str, image_size)), "pixels, height x width")]
    if looks.num_images:
        facts.append((f"{looks.num_images:,}", "images averaged over"))
    if looks.filters is not None:
        count = len(looks.filters.explained)
        share = f"{100 * looks.filters.explained.sum():.0f} %"
        facts.append((share, f"of the filters' variance in {count} components"))
    if looks.distance is not None:
        median = np.median(looks.distance, axis=1)
        facts.append((f"{median[0]:.0f} → {median[-1]:.0f} px", "attention distance, first to last layer"))
    if looks.norms is not None:
        facts.append((str(int(looks.norms.outliers.sum())), "outlier tokens in the images shown"))
    return facts


def _model_plates(looks: Looks, model: Model) -> list[Plate]:
    plates = []
    if looks.filters is not None:
        draw = partial(figures.draw_filters, looks.filters)
        plates.append(Plate(name="filters", heading="Filters", words=_filter_words(model), draw=draw))
    if looks.positions is None or not isinstance(model, ViT):
        return plates
    words = (
        "Tile (row, column) shows how much the key of the offset to each patch is like the key of offset 0."
        if model.config.positions == "relative"
        else "Tile (row, column) shows the cosine of that patch's position embedding with all the others'."
    )
    kind = POSITION_KINDS[model.config.positions]
    is_one = looks.positions.ndim == 3
    for layer, tiles in enumerate(looks.positions[None] if is_one else looks.positions):
        of_layer = "" if is_one else f" of layer {layer + 1}"
        draw = partial(figures.draw_positions, tiles, title=f"Similarity of positions{of_layer} ({kind})")
        name = "positions" if is_one else f"positions_layer_{layer + 1:02d}"
        plates.append(Plate(name=name, heading=f"Positions{of_layer}", words=words, draw=draw))
    return plates


def _filter_words(model: Model) -> str:
    whose = "the patch projection's kernel"
    before = ""
    if not isinstance(model, ViT):
        before, whose = "A ResNet has no patches. ", "the first convolution's kernel"
    elif model.config.stem is not None:
        before = "The hybrid's patch projection reads a feature map, no pixels. "
        whose = "the first convolution's kernel"
    return f"{before}Principal components of {whose}, with their share of its variance. Grey is zero."


def _image_plates(looks: Looks, number: int, *, model: Model, captions: Captions) -> list[Plate]:
    assert looks.pictures is not None
    picture, name = looks.pictures[number], captions.names[number]
    plates = []
    if looks.colours is not None and looks.norms is not None:
        draw = partial(
            figures.draw_tokens,
            picture,
            name=name,
            overlays=_overlays(looks, number, model=model, captions=captions),
            colours=looks.colours[number],
            norms=looks.norms,
            number=number,
            patch=looks.patch,
        )
        words = OF_TOKENS if isinstance(model, ViT) else OF_CONVOLUTION
        plates.append(
            Plate(name=f"tokens_{number + 1:02d}", heading=f"Tokens of {name}", words=words, draw=draw)
        )
    if looks.heads is not None:
        query = output_of(model).split(",")[0]
        draw = partial(figures.draw_heads, picture, looks.heads[number], name=name, query=query)
        plates.append(
            Plate(name=f"heads_{number + 1:02d}", heading=f"Heads on {name}", words=OF_HEADS, draw=draw)
        )
    return plates


def _overlays(looks: Looks, number: int, *, model: Model, captions: Captions) -> dict[str, NDArray[Any]]:
    if not isinstance(model, ViT) or looks.heads is None or looks.patch_heads is None or looks.patch is None:
        return {}
    depth = model.config.depth
    layer = depth - 1 if captions.layer is None else captions.layer % depth
    query = "class token" if model.config.reads_class_token else "all patches"
    row, column = looks.patch
    overlays = {
        f"{query}, layer {layer + 1}": looks.heads[number, layer].mean(axis=0),
        f"patch {row},{column}, layer {layer + 1}": looks.patch_heads[number].mean(axis=0),
    }
    if looks.class_maps is not None:
        overlays[f"for {captions.of_class[number]}"] = looks.class_maps[number]
    return overlays
