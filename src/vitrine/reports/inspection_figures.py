"""The figures of an inspection, the paper's and others: one function each, from arrays to a matplotlib figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrine.inspection.dense_attention import Sight
from vitrine.inspection.filters import FilterComponents
from vitrine.inspection.tokens import TokenNorms
from vitrine.reports.figure_style import (
    ACCENT,
    SCALE_WORDS,
    import_matplotlib,
    label,
    mosaic,
    overlay,
    scaled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPONENTS_A_ROW = 7
PICTURES_A_ROW = 3
# With more tiles per side than this a figure is unreadable; then only every second, third... position is drawn.
MOST_TILES = 16
OUTLIER_COLOUR = "#e5484d"


def draw_filters(filters: FilterComponents) -> "Figure":
    """Draw the components as pictures with their share of the variance (Figure 7, left)."""
    count = len(filters.pictures)
    columns = min(COMPONENTS_A_ROW, count)
    rows = -(-count // columns)
    figure = _figure(9, 0.6 + 1.28 * rows)
    for number, axis in enumerate(np.atleast_1d(figure.subplots(rows, columns)).flat):
        axis.set_axis_off()
        if number < count:
            axis.imshow(filters.pictures[number], interpolation="none")
            axis.set_title(f"{number + 1}:  {100 * filters.explained[number]:.1f} %", fontsize=9, pad=3)
    figure.suptitle(
        f"First {count} principal components of the filters: "
        f"{100 * filters.explained.sum():.0f} % of their variance",
        fontsize=11,
    )
    return figure


def draw_positions(tiles: NDArray[Any], *, title: str) -> "Figure":
    """Draw tiles (N, GH, GW), each at the place of its own position (Figure 7, centre)."""
    GH, GW = tiles.shape[1:]
    down, across = (np.unique(np.linspace(0, side - 1, min(side, MOST_TILES)).round()).astype(int)
                    for side in (GH, GW))  # fmt: skip
    chosen = tiles.reshape(GH, GW, GH, GW)[np.ix_(down, across)]
    figure = _figure(7.6, 6.6)
    axis = figure.subplots()
    gap = max(1, GH // 10)
    shown = axis.imshow(mosaic(chosen, gap=gap), vmin=-1, vmax=1, interpolation="none")
    axis.set_xticks(np.arange(len(across)) * (GW + gap) + (GW - 1) / 2, across + 1, fontsize=8)
    axis.set_yticks(np.arange(len(down)) * (GH + gap) + (GH - 1) / 2, down + 1, fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("column of the patch")
    axis.set_ylabel("row of the patch")
    axis.set_title(title, fontsize=11)
    figure.colorbar(shown, ax=axis, label="cosine similarity", shrink=0.8).outline.set_visible(False)
    return figure


def draw_distance(distance: NDArray[Any], *, num_images: int, image_size: tuple[int, int]) -> "Figure":
    """Draw mean attention distance (L, H) by depth, one point per head, and the medians (Figure 7, right)."""
    figure = _figure(8, 4.4)
    axis = figure.subplots()
    layers, heads = distance.shape
    depth = np.arange(1, layers + 1)
    axis.scatter(np.repeat(depth, heads), distance.ravel(), s=26, alpha=0.55, color=ACCENT, linewidths=0,
                 label="one head")  # fmt: skip
    axis.plot(depth, np.median(distance, axis=1), color=ACCENT, linewidth=2, label="median of the heads")
    axis.set_xlabel("network depth (layer)")
    axis.set_ylabel("mean attention distance (pixels)")
    axis.set_xticks(depth if layers <= 16 else depth[::2])
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", alpha=0.2)
    axis.legend(frameon=False, loc="lower right")
    size = " x ".join(map(str, image_size))
    axis.set_title(f"Attention distance over {num_images:,} image{'s' * (num_images != 1)} of {size} pixels",
                   fontsize=11)  # fmt: skip
    return figure


def draw_rollout(pictures: NDArray[np.uint8], maps: NDArray[Any], names: list[str]) -> "Figure":
    """Draw each picture next to its attention rollout (Figures 6 and 14)."""
    rows = -(-len(pictures) // PICTURES_A_ROW)
    columns = 2 * min(PICTURES_A_ROW, len(pictures))
    figure = _figure(1.9 * columns + 0.9, 0.1 + rows * (0.35 + 1.85 * pictures.shape[1] / pictures.shape[2]))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for number, (picture, weights, name) in enumerate(zip(pictures, maps, names, strict=True)):
        row, place = divmod(number, PICTURES_A_ROW)
        left, right = axes[row, 2 * place], axes[row, 2 * place + 1]
        left.imshow(picture, interpolation="none")
        label(left, name, most=22)
        shown = _overlaid(right, picture, weights)
        right.set_title("rollout")
    bar = figure.colorbar(
        shown, ax=axes, shrink=0.8, label=SCALE_WORDS if rows > 1 else "weight", fraction=0.03
    )
    bar.outline.set_visible(False)
    return figure


def draw_heads(picture: NDArray[np.uint8], maps: NDArray[Any], *, name: str, query: str) -> "Figure":
    """Draw every head of every layer, (L, H, GH, GW), each map with its own scale, next to the picture."""
    L, H, GH, GW = maps.shape
    gap = max(1, GH // 10)
    tiles = mosaic(scaled(maps), gap=gap)
    width = min(11.0, max(7.0, 3.4 + 0.62 * H))
    figure = _figure(width, max(2.8, (width - 3.6) * tiles.shape[0] / tiles.shape[1] + 0.9))
    left, axis = figure.subplots(1, 2, width_ratios=[2.2, width - 3.4])
    left.imshow(picture, interpolation="none")
    left.set_axis_off()
    left.set_anchor("N")
    label(left, name, most=26)
    shown = axis.imshow(tiles, vmin=0, vmax=1, interpolation="none")
    axis.set_xticks(np.arange(H) * (GW + gap) + (GW - 1) / 2, range(1, H + 1), fontsize=8)
    axis.set_yticks(np.arange(L) * (GH + gap) + (GH - 1) / 2, range(1, L + 1), fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    axis.set_title(f"Attention of {query}, by head")
    bar = figure.colorbar(shown, ax=axis, shrink=0.5, label=SCALE_WORDS if L > 6 else "weight")
    bar.outline.set_visible(False)
    return figure


def draw_tokens(
    picture: NDArray[np.uint8],
    *,
    name: str,
    overlays: dict[str, NDArray[Any]],
    colours: NDArray[Any],
    norms: TokenNorms,
    number: int,
    patch: tuple[int, int] | None,
) -> "Figure":
    """Draw one picture's panels: overlaid maps, token components as colours, and token norms."""
    count = 3 + len(overlays)
    height, width = picture.shape[:2]
    figure = _figure(2.2 * count + 0.5, 0.4 + 2.15 * height / width)
    axes = list(figure.subplots(1, count))
    for axis in axes:
        axis.set_axis_off()
    axes[0].imshow(picture, interpolation="none")
    label(axes[0], name)
    panels = iter(axes[1:])
    for title, weights in overlays.items():
        axis = next(panels)
        _overlaid(axis, picture, weights)
        label(axis, title, most=26)
        if patch is not None and title.startswith("patch "):
            _mark(axis, patch, grid=weights.shape, size=(height, width))
    axis = next(panels)
    axis.imshow(colours, interpolation="none")
    axis.set_title("token components")
    _draw_norms(figure, next(panels), norms, number)
    return figure


def draw_sights(picture: NDArray[np.uint8], sights: Sequence[Sight], *, names: Sequence[str]) -> "Figure":
    """Draw answers (above) and the attention behind them (below), one column per answer, the picture first."""
    count = 1 + len(sights)
    height, width = picture.shape[:2]
    figure = _figure(2.2 * count + 0.3, 0.8 + 4.3 * height / width)
    axes = figure.subplots(2, count, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    axes[0, 0].imshow(picture, interpolation="none")
    for column, (one, name) in enumerate(zip(sights, names, strict=True), start=1):
        if one.answer is None:
            axes[0, column].imshow(picture, interpolation="none")
        else:
            _overlaid(axes[0, column], picture, one.answer)
        _overlaid(axes[1, column], picture, one.attention)
        label(axes[0, column], name, most=30)
        label(axes[1, column], f"seen by {one.asker}", most=26)
        if one.box is not None:
            _draw_box(axes[0, column], one.box, size=(height, width))
    return figure


def draw_layers(similarity: NDArray[Any], *, names: list[str]) -> "Figure":
    """Draw the similarity of any two layers (L + 1, L + 1)."""
    figure = _figure(6.2, 5.2)
    axis = figure.subplots()
    shown = axis.imshow(similarity, vmin=0, vmax=1, origin="lower", interpolation="none")
    step = 1 if len(names) <= 14 else 2
    places = range(0, len(names), step)
    axis.set_xticks(places, names[::step], fontsize=8, rotation=90 if max(map(len, names)) > 3 else 0)
    axis.set_yticks(places, names[::step], fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("layer")
    axis.set_ylabel("layer")
    axis.set_title("Similarity of layers (linear CKA)", fontsize=11)
    figure.colorbar(shown, ax=axis, label="CKA", shrink=0.85).outline.set_visible(False)
    return figure


def _figure(width: float, height: float) -> "Figure":
    figure: Figure = import_matplotlib().figure.Figure(figsize=(width, height), layout="constrained")
    return figure


def _overlaid(axis: Any, picture: NDArray[np.uint8], weights: NDArray[Any]) -> Any:
    axis.imshow(overlay(picture, weights), interpolation="none")
    axis.set_axis_off()
    return import_matplotlib().cm.ScalarMappable()  # its bar goes from 0 to 1 in the one scale


def _draw_box(axis: Any, box: tuple[float, float, float, float], *, size: tuple[int, int]) -> None:
    left, top, right, bottom = box
    rectangle = import_matplotlib().patches.Rectangle
    corner, wide, high = (left * size[1], top * size[0]), (right - left) * size[1], (bottom - top) * size[0]
    axis.add_patch(rectangle(corner, wide, high, fill=False, edgecolor=OUTLIER_COLOUR, linewidth=2))


def _mark(axis: Any, patch: tuple[int, int], *, grid: tuple[int, ...], size: tuple[int, int]) -> None:
    high, wide = size[0] / grid[0], size[1] / grid[1]
    corner = ((patch[1] % grid[1]) * wide - 0.5, (patch[0] % grid[0]) * high - 0.5)
    rectangle = import_matplotlib().patches.Rectangle
    axis.add_patch(rectangle(corner, wide, high, fill=False, edgecolor=OUTLIER_COLOUR, linewidth=1.6))


def _draw_norms(figure: "Figure", axis: Any, norms: TokenNorms, number: int) -> None:
    lengths = norms.patches[number]
    shown = axis.imshow(lengths, interpolation="none")
    rows, columns = np.nonzero(norms.outliers[number])
    axis.scatter(columns, rows, s=40, facecolors="none", edgecolors=OUTLIER_COLOUR, linewidths=1.4)
    axis.set_title(f"norms: {len(rows)} outlier{'s' * (len(rows) != 1)}")
    words = []
    if norms.class_token.shape[1]:
        words.append(f"class token {norms.class_token[number, 0]:.0f}")
    if norms.registers.shape[1]:
        words.append(f"registers {norms.registers[number].mean():.0f}")
    axis.text(0.5, -0.03, ", ".join(words), transform=axis.transAxes, ha="center", va="top", fontsize=9)
    figure.colorbar(shown, cax=axis.inset_axes((1.04, 0, 0.05, 1))).outline.set_visible(False)
