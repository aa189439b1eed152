"""All figures of one inspection, drawn, written and put on one page."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitrine.inspection.analysis import Analysis
from vitrine.inspection.dense_attention import Sight
from vitrine.models import Model, ViT
from vitrine.reports import inspection_figures as figures
from vitrine.reports.figure_style import drawing, report_missing, save_figure
from vitrine.reports.pages import render
from vitrine.runtime.progress import track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_WIDE = 3
POSITION_KINDS = {
    "learned_1d": "learned, one per patch",
    "learned_2d": "learned, rows and columns",
    "factorised": "learned, a row's plus a column's",
    "sincos_1d": "sines and cosines of the index",
    "sincos_2d": "sines and cosines",
    "relative": "relative",
    "relative_bias": "relative, added to the logits",
}
OF_DISTANCE = (
    "Mean distance in pixels between a patch and the patches that a head attends to, weighted by attention and "
    "averaged over patches and images. Class token and registers are dropped and the rows normalised again."
)
OF_ROLLOUT = (
    "Influence of each patch on the output through all layers (brighter = more influence): heads averaged, the "
    "identity added for the residual branch, rows normalised, layers multiplied."
)
OF_TOKENS = (
    "Attention averaged over heads, from the output and from the patch in the red frame; three principal components "
    "of the tokens as colours, the same in all images; norms of the tokens, outliers in a red ring."
)
OF_CONVOLUTION = (
    "Principal components of the last feature map's cells as colours, the same in all images, and the norms of the "
    "cells, outliers in a red ring."
)
OF_SIGHTS = (
    "Above, the model's answers: a mask, the probability of a class of pixels (with the share of the picture that "
    "it covers), or a box (with its score). Below, the attention behind each answer in the last block, averaged over "
    "heads."
)
OF_HEADS = "One map per head and layer, each with its own scale."
OF_LAYERS = (
    "Linear CKA between the outputs of any two layers over the patch tokens of all images; layer 0 is the patch "
    "embedding. 1 means equal up to rotation and scale: blocks of one colour are layers with similar outputs."
)
OF_STAGES = "Linear CKA between the outputs of any two stages, averaged over the map, over all images."


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """One figure of the page: file name, heading, explanation, and the function that draws it."""

    name: str
    heading: str
    words: str
    draw: Callable[[], "Figure"]


@dataclass(frozen=True, kw_only=True)
class Captions:
    """Names of images and classes in the figures."""

    names: list[str]
    of_class: list[str]
    layer: int | None
    image_size: tuple[int, int]


def page_figures(analysis: Analysis, *, model: Model, captions: Captions) -> list[PageFigure]:
    """List the figures that have results, in the order of the page."""
    plates: list[PageFigure] = []
    if analysis.rollout is not None and analysis.pictures is not None:
        words = f"{OF_ROLLOUT} Seen from {output_of(model)}."
        draw = partial(figures.draw_rollout, analysis.pictures, analysis.rollout, captions.names)
        plates.append(PageFigure(name="rollout", heading="Attention rollout", words=words, draw=draw))
    plates += _model_figures(analysis, model)
    if analysis.distance is not None:
        draw = partial(
            figures.draw_distance,
            analysis.distance,
            num_images=analysis.num_images,
            image_size=captions.image_size,
        )
        plates.append(
            PageFigure(name="attention_distance", heading="Attention distance", words=OF_DISTANCE, draw=draw)
        )
    for number in range(len(captions.names)):
        plates += _image_figures(analysis, number, model=model, captions=captions)
    if analysis.similarity is not None:
        is_vit = isinstance(model, ViT)
        stages = [str(number) if is_vit else f"stage {number}" for number in range(len(analysis.similarity))]
        names = stages if is_vit else ["root", *stages[1:]]
        draw = partial(figures.draw_layers, analysis.similarity, names=names)
        words = OF_LAYERS if is_vit else OF_STAGES
        plates.append(
            PageFigure(name="layer_similarity", heading="Similarity of layers", words=words, draw=draw)
        )
    return plates


def sight_figures(
    analysis: Analysis, sights: Sequence[Sequence[Sight]], *, names: Sequence[str], classes: Sequence[str]
) -> list[PageFigure]:
    """List the figures of the attention of queries and classes, one per image."""
    assert analysis.pictures is not None
    plates = []
    for number, (picture, own, name) in enumerate(zip(analysis.pictures, sights, names, strict=True)):
        words = OF_SIGHTS if own else "Nothing was found in this picture."
        titles = [f"{classes[one.label]} {100 * one.score:.0f} %" for one in own]
        draw = partial(figures.draw_sights, picture, own, names=titles)
        plates.append(
            PageFigure(name=f"answers_{number:02d}", heading=f"Answers: {name}", words=words, draw=draw)
        )
    return plates


def draw_all(plates: list[PageFigure], folder: Path) -> list[tuple[PageFigure, str]]:
    """Draw and write every figure; return each with its drawing for the page."""
    drawn, without_font = [], set[str]()
    for plate in track(plates, "Drawing figures"):
        with drawing(plate.name) as missing:
            drawn.append((plate, save_figure(plate.draw(), folder, plate.name)))
        without_font |= missing
    report_missing(without_font)
    return drawn


def output_of(model: Model) -> str:
    """Name the tokens whose attention stands for the output."""
    if isinstance(model, ViT) and not model.config.reads_class_token:
        return "all patches, averaged, because the model has no class token"
    return "the class token"


def described(model: Model, *, variant: str | None) -> str:
    """Describe the model on one line."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    text = f"{variant or type(model).__name__}, {num_parameters / 1e6:,.1f} M parameters"
    if not isinstance(model, ViT):
        return text
    config, (down, across) = model.config, model.config.token_stride
    return (
        f"{text}, {config.depth} layers of {config.num_heads} heads, width {config.width}, one token per "
        f"{down} x {across} pixels"
    )


def facts_of(analysis: Analysis, *, image_size: tuple[int, int]) -> list[tuple[str, str]]:
    """Return the headline figures, each with its label."""
    facts = [(" x ".join(map(str, image_size)), "pixels, height x width")]
    if analysis.num_images:
        facts.append((f"{analysis.num_images:,}", "images in the averages"))
    if analysis.filters is not None:
        count = len(analysis.filters.explained)
        share = f"{100 * analysis.filters.explained.sum():.0f} %"
        facts.append((share, f"of the filters' variance in {count} components"))
    if analysis.distance is not None:
        median = np.median(analysis.distance, axis=1)
        facts.append((f"{median[0]:.0f} → {median[-1]:.0f} px", "attention distance, first to last layer"))
    if analysis.norms is not None:
        facts.append((str(int(analysis.norms.outliers.sum())), "outlier tokens in the images shown"))
    return facts


def render_inspection(drawn: Sequence[tuple[PageFigure, str]], **values: Any) -> str:
    """Render the page of all figures, each with its SVG text."""
    # The drawings are ours and matplotlib escapes the names in them; everything else is escaped by the template.
    shown = [
        {
            "name": figure.name,
            "heading": figure.heading,
            "words": figure.words,
            "drawing": Markup(svg),
            "is_wide": is_wide(svg),
        }
        for figure, svg in drawn
    ]
    return render("inspect.html.j2", plates=shown, **values)


def is_wide(svg: str) -> bool:
    """Whether a drawing is so wide that it would be unreadable at the width of a phone."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return box is not None and float(box[1]) >= LEAST_WIDE * float(box[2])


def _model_figures(analysis: Analysis, model: Model) -> list[PageFigure]:
    plates = []
    if analysis.filters is not None:
        draw = partial(figures.draw_filters, analysis.filters)
        plates.append(PageFigure(name="filters", heading="Filters", words=_filter_words(model), draw=draw))
    if analysis.positions is None or not isinstance(model, ViT):
        return plates
    words = (
        "Tile (row, column) shows the similarity of the key of the offset to each patch with the key of offset 0."
        if model.config.positions == "relative"
        else "Tile (row, column) shows the cosine similarity of that patch's position embedding with all others."
    )
    kind = POSITION_KINDS[model.config.positions]
    is_one = analysis.positions.ndim == 3
    for layer, tiles in enumerate(analysis.positions[None] if is_one else analysis.positions):
        of_layer = "" if is_one else f" of layer {layer + 1}"
        draw = partial(figures.draw_positions, tiles, title=f"Similarity of positions{of_layer} ({kind})")
        name = "positions" if is_one else f"positions_layer_{layer + 1:02d}"
        plates.append(PageFigure(name=name, heading=f"Positions{of_layer}", words=words, draw=draw))
    return plates


def _filter_words(model: Model) -> str:
    whose = "the patch projection's kernel"
    before = ""
    if not isinstance(model, ViT):
        before, whose = "A ResNet has no patches. ", "the first convolution's kernel"
    elif model.config.stem is not None:
        before = "The hybrid's patch projection reads a feature map, not pixels. "
        whose = "the first convolution's kernel"
    return f"{before}Principal components of {whose}, with their share of its variance. Grey is zero."


def _image_figures(analysis: Analysis, number: int, *, model: Model, captions: Captions) -> list[PageFigure]:
    assert analysis.pictures is not None
    picture, name = analysis.pictures[number], captions.names[number]
    of_class = captions.of_class[number] if number < len(captions.of_class) else ""
    titled = f"{name}: {of_class}" if of_class else name
    plates = []
    if analysis.colours is not None and analysis.norms is not None:
        draw = partial(
            figures.draw_tokens,
            picture,
            name=name,
            overlays=_overlays(analysis, number, model=model, captions=captions),
            colours=analysis.colours[number],
            norms=analysis.norms,
            number=number,
            patch=analysis.patch,
        )
        words = OF_TOKENS if isinstance(model, ViT) else OF_CONVOLUTION
        plates.append(
            PageFigure(name=f"tokens_{number + 1:02d}", heading=f"Tokens of {titled}", words=words, draw=draw)
        )
    if analysis.heads is not None:
        query = output_of(model).split(",")[0]
        draw = partial(figures.draw_heads, picture, analysis.heads[number], name=name, query=query)
        plates.append(
            PageFigure(
                name=f"heads_{number + 1:02d}", heading=f"Heads on {titled}", words=OF_HEADS, draw=draw
            )
        )
    return plates


def _overlays(
    analysis: Analysis, number: int, *, model: Model, captions: Captions
) -> dict[str, NDArray[Any]]:
    if (
        not isinstance(model, ViT)
        or analysis.heads is None
        or analysis.patch_heads is None
        or analysis.patch is None
    ):
        return {}
    depth = model.config.depth
    layer = depth - 1 if captions.layer is None else captions.layer % depth
    query = "class token" if model.config.reads_class_token else "all patches"
    row, column = analysis.patch
    overlays = {
        f"{query}, layer {layer + 1}": analysis.heads[number, layer].mean(axis=0),
        f"patch {row},{column}, layer {layer + 1}": analysis.patch_heads[number].mean(axis=0),
    }
    if analysis.class_maps is not None:
        overlays[f"for {captions.of_class[number]}"] = analysis.class_maps[number]
    return overlays
