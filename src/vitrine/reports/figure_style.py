"""Shared by all figures of an inspection: colour scale, ink, overlays, and saving as PNG, SVG and page."""

import io
import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import MissingExtraError
from vitrine.inspection.rollout import upsample
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALE = "viridis"
INK, PAPER, ACCENT = "#1d1f23", "#fefefe", "#4267b2"
PNG_DPI = 144
# Fonts for letters that matplotlib's own font lacks: Chinese, Japanese and Korean; Devanagari; Thai; emoji (drawn as
# outlines, not colours). The first installed font of each row is used.
SCRIPT_FONTS = (
    ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
     "PingFang SC", "Hiragino Sans GB", "Arial Unicode MS", "Microsoft YaHei", "SimHei", "Droid Sans Fallback"),
    ("Noto Sans Devanagari", "Nirmala UI", "Kohinoor Devanagari", "Lohit Devanagari"),
    ("Noto Sans Thai", "Leelawadee UI", "Thonburi"),
    ("Noto Emoji", "Segoe UI Emoji", "Symbola", "Segoe UI Symbol"),
)  # fmt: skip
# Matplotlib's warning about a letter without a font, and the maximum number of letters in a notice.
MISSING = re.compile(r"Glyph (\d+) .*missing from font")
MOST_LETTERS = 8
# Share of colour in an overlay where the map is 0 and where it is largest; the rest is the picture.
LEAST_COLOUR, MOST_COLOUR = 0.3, 0.8
# A few patches often hold most of a map: values above this percentile are drawn as the largest.
TOP_PERCENTILE = 98
SCALE_WORDS = "weight, from the map's minimum to its top 2 %"
# Names of these colours in the page's style, so that a figure follows light and dark.
_IN_PAGE = {INK: "currentColor", PAPER: "none", ACCENT: "var(--bar-0)"}


def import_matplotlib() -> Any:
    """Import matplotlib with the parts that figures need, or raise an error that says how to install it."""
    try:
        import matplotlib.figure  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError("matplotlib", extra="report", purpose="drawing figures") from error
    return matplotlib


@contextmanager
def drawing(name: str) -> Iterator[set[str]]:
    """Set the style for figures made in the block; `name` makes their ids unique on a page.

    Afterwards the set that is yielded contains the letters that no installed font has.
    """
    matplotlib = import_matplotlib()
    coloured = (
        "text.color",
        "axes.labelcolor",
        "axes.titlecolor",
        "axes.edgecolor",
        "xtick.color",
        "ytick.color",
    )
    style: dict[str, Any] = dict.fromkeys(coloured, INK) | {
        "figure.facecolor": PAPER,
        "axes.facecolor": "none",
        "font.family": font_families([font.name for font in matplotlib.font_manager.fontManager.ttflist]),
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "image.cmap": SCALE,
        "svg.fonttype": "none",
        "svg.hashsalt": f"vitrine {name}",
    }
    missing: set[str] = set()
    with matplotlib.rc_context(style), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=MISSING.pattern)
        yield missing
    for one in caught:
        if match := MISSING.match(str(one.message)):
            missing.add(chr(int(match[1])))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def report_missing(letters: Collection[str]) -> None:
    """Send one notice for all letters that are drawn as boxes, instead of one per letter."""
    if letters:
        notice(
            f"Figures show boxes instead of {''.join(sorted(letters)[:MOST_LETTERS])}: no installed font has these "
            "letters; install a font such as Noto Sans CJK or Noto Emoji"
        )


def font_families(installed: Collection[str]) -> list[str]:
    """Return the fonts to draw text with: the usual one, then installed ones that have the letters it lacks."""
    known = set(installed)
    scripts = (next((name for name in names if name in known), None) for names in SCRIPT_FONTS)
    return ["DejaVu Sans", *(name for name in scripts if name is not None)]


def save_figure(figure: "Figure", folder: Path, name: str) -> str:
    """Write `name`.png and `name`.svg, and return the drawing for the page, in the page's own colours."""
    with write_atomically(folder / f"{name}.png") as file:
        figure.savefig(file, format="png", dpi=PNG_DPI)
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    with write_atomically(folder / f"{name}.svg") as file:
        file.write(text.getvalue())
    return for_page(text.getvalue().decode("utf-8"), prefix=name)


def for_page(svg: str, *, prefix: str) -> str:
    """Turn an SVG file into a part of a page: no header, unique ids, the page's colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r' height="[\d.]+pt"', "", body, count=1)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    for colour, in_page in _IN_PAGE.items():
        body = body.replace(colour, in_page)
    return body


def overlay(picture: NDArray[np.uint8], weights: NDArray[Any]) -> NDArray[Any]:
    """Overlay a map (GH, GW) in colour on a picture (height, width, 3): (height, width, 3) from 0 to 1.

    The picture stays grey where the map is small.
    """
    height, width = picture.shape[:2]
    share = upsample(scaled(weights)[None], (height, width))[0]
    grey = (picture @ np.array([0.299, 0.587, 0.114]) / 255)[:, :, None]  # ITU-R 601 luma
    part = LEAST_COLOUR + (MOST_COLOUR - LEAST_COLOUR) * share[:, :, None]
    return (1 - part) * grey + part * import_matplotlib().colormaps[SCALE](share)[:, :, :3]


def scaled(maps: NDArray[Any]) -> NDArray[Any]:
    """Scale each map (..., GH, GW) from 0, its minimum, to 1, its top percentile; a flat map is 0."""
    least = maps.min(axis=(-2, -1), keepdims=True)
    top = np.percentile(maps, TOP_PERCENTILE, axis=(-2, -1), keepdims=True)
    top = np.where(top > least, top, maps.max(axis=(-2, -1), keepdims=True))
    span = np.where(top > least, top - least, 1)
    return np.clip((maps - least) / span, 0, 1)


def mosaic(tiles: NDArray[Any], *, gap: int = 1) -> NDArray[Any]:
    """Arrange tiles (R, C, h, w) in one image, with NaN in the gaps."""
    rows, columns, height, width = tiles.shape
    out = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + gap), column * (width + gap)
            out[top : top + height, left : left + width] = tiles[row, column]
    return out


def label(axis: Any, text: str, *, most: int = 34) -> None:
    """Title a panel with a name from outside: never parsed as math, one line, shortened in the middle."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(clean) > most:
        clean = f"{clean[: most // 2 - 1]}…{clean[-most // 2 :]}"
    axis.set_title(clean, parse_math=False)
