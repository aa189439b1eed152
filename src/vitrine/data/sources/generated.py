"""Rendered pictures that need no files: any number of them, each a pure function of seed and number.

A picture shows one shape with a colour and a texture, at one of nine positions and three scales, on a background
whose shading runs in one of eight directions, among one to five small marks. Each of these is a label, drawn
independently of the others; exact position, size, rotation, shades and noise vary within a label.
"""

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.randomness import random_words, uniforms
from vitrine.data.sources.source import Example, Source
from vitrine.errors import ConfigError
from vitrine.spelling import near_match

Plane = NDArray[Any]

COLOURS = {
    "blue": (40, 80, 230),
    "cyan": (20, 200, 210),
    "green": (40, 170, 60),
    "magenta": (220, 40, 190),
    "orange": (245, 140, 20),
    "red": (220, 40, 40),
    "white": (245, 245, 245),
    "yellow": (240, 220, 40),
}


def _star(x: Plane, y: Plane, r: Plane) -> Plane:
    outline: Plane = 0.72 + 0.28 * np.cos(5 * np.arctan2(x, -y))
    return r - outline


# Signed distance to the outline (negative inside), about one unit in radius.
SHAPES: dict[str, Callable[[Plane, Plane, Plane], Plane]] = {
    "bar": lambda x, y, r: np.maximum(abs(x) - 1, abs(y) - 0.35),
    "circle": lambda x, y, r: r - 0.9,
    "cross": lambda x, y, r: np.minimum(
        np.maximum(abs(x) - 0.95, abs(y) - 0.3), np.maximum(abs(x) - 0.3, abs(y) - 0.95)
    ),
    "diamond": lambda x, y, r: (abs(x) + abs(y) - 1.1) * 0.7,
    "half": lambda x, y, r: np.maximum(r - 1, -y - 0.2),
    "hexagon": lambda x, y, r: np.maximum(abs(x) * 0.866 + abs(y) * 0.5, abs(y)) - 0.85,
    "ring": lambda x, y, r: abs(r - 0.72) - 0.24,
    "square": lambda x, y, r: np.maximum(abs(x), abs(y)) - 0.82,
    "star": _star,
    "triangle": lambda x, y, r: np.maximum(abs(x) * 0.866 - y * 0.5, y) - 0.5,
}
# Darkness of the fill, from -1 to 1, by place in units of the shape's radius.
TEXTURES: dict[str, Callable[[Plane, Plane, Plane], Plane]] = {
    "checks": lambda x, y, r: np.sin(7 * x) * np.sin(7 * y) * 4,
    "dots": lambda x, y, r: (np.cos(10 * x) + np.cos(10 * y) - 0.6) * 2,
    "rings": lambda x, y, r: np.sin(13 * r) * 2,
    "solid": lambda x, y, r: np.zeros_like(r) - 1,
    "stripes": lambda x, y, r: np.sin(9 * x) * 2,
}
_ROWS, _COLUMNS = ("bottom", "middle", "top"), ("centre", "left", "right")
# No shape reaches the border, where the marks are.
_ROW_AT = {"top": 0.32, "middle": 0.5, "bottom": 0.68}
_COLUMN_AT = {"left": 0.32, "centre": 0.5, "right": 0.68}
# Every label and its classes, sorted.
FACTORS: dict[str, tuple[str, ...]] = {
    "shape": tuple(SHAPES),
    "colour": tuple(COLOURS),
    "texture": tuple(TEXTURES),
    "position": tuple(f"{row}-{column}" for row in _ROWS for column in _COLUMNS),
    "scale": ("large", "medium", "small"),
    "orientation": tuple(f"{angle:03d}" for angle in range(0, 360, 45)),
    "count": ("1", "2", "3", "4", "5"),
}
_RADIUS = {"small": 0.11, "medium": 0.15, "large": 0.2}
_CHUNK = 65_536
_NUM_CHOICES = len(FACTORS)
_NUM_FREE = 24
_BLOCK = 128


class GeneratedSource(Source):
    """Pictures `start` to `start + count` of an unlimited series, labelled by one factor or several (`a,b`)."""

    has_fixed_classes = True

    def __init__(
        self,
        *,
        count: int,
        size: int = 32,
        label: str = "shape",
        seed: int = 0,
        start: int = 0,
        noise: int = 8,
        address: str = "generated:shapes",
        prefix: str = "",
    ) -> None:
        if count < 1 or not 8 <= size <= 4096:
            raise ConfigError(f"count must be at least 1 and size from 8 to 4096, got {count} and {size}")
        self.image_size, self.seed, self.start, self.noise = size, seed, start, noise
        self.address, self.prefix = address, prefix
        names = label.split(",")
        if len(names) == 1:
            self.classes = FACTORS[label]
            self.labels = self._choices(count, names)[:, 0]
        else:
            self.classes = tuple(f"{name}={value}" for name in names for value in FACTORS[name])
            starts = np.cumsum([0, *(len(FACTORS[name]) for name in names)])[:-1]
            self.labels = self._choices(count, names) + starts.astype(np.int32)

    def factors(self, index: int) -> dict[str, str]:
        """Return every label of picture `index`, by name."""
        block, row = divmod(self.start + index, _BLOCK)
        words = _drawn(self.seed, block)[0][row]
        return {
            name: values[int(word) * len(values) >> 32]
            for (name, values), word in zip(FACTORS.items(), words, strict=True)
        }

    def name(self, index: int) -> str:
        """Name picture `index` by its number."""
        return f"{self.prefix}{index:07d}"

    def read(self, index: int) -> Example:
        """Render picture `index`: (size, size, 3)."""
        pixels = render(
            self.factors(index),
            size=self.image_size,
            seed=self.seed,
            number=self.start + index,
            noise=self.noise,
        )
        return Example(data=pixels, label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of one picture."""
        return 3 * self.image_size**2

    def _choices(self, count: int, names: list[str]) -> NDArray[np.int32]:
        chosen = np.empty((count, len(names)), dtype=np.int32)
        columns = [list(FACTORS).index(name) for name in names]
        lengths = np.array([len(FACTORS[name]) for name in names], dtype=np.uint64)
        for first in range(0, count, _CHUNK):
            numbers = self.start + np.arange(first, min(first + _CHUNK, count), dtype=np.uint64)
            words = random_words(
                self.seed, stream="generated", epochs=0, positions=numbers, count=_NUM_CHOICES
            )
            scaled = words[:, columns].astype(np.uint64) * lengths >> np.uint64(32)
            chosen[first : first + len(numbers)] = scaled.astype(np.int32)
        return chosen


def render(factors: dict[str, str], *, size: int, seed: int, number: int, noise: int = 8) -> Pixels:
    """Draw one picture (size, size, 3); details that the labels leave open depend on seed and number."""
    block, place_in_block = divmod(number, _BLOCK)
    free = _drawn(seed, block)[1][place_in_block]
    rows, columns = _grid(size)
    angle = np.deg2rad(float(factors["orientation"]))
    shade = np.cos(angle) * (columns - 0.5) - np.sin(angle) * (rows - 0.5)  # (S, S), -0.7 to 0.7
    backdrop = 55 + 60 * free[0:3].astype(np.float32)
    picture = backdrop * (1 + 0.9 * shade)[:, :, None]

    row, _, column = factors["position"].partition("-")
    radius = _RADIUS[factors["scale"]] * (0.93 + 0.14 * free[3])
    centre = _ROW_AT[row] + 0.04 * (free[4] - 0.5), _COLUMN_AT[column] + 0.04 * (free[5] - 0.5)
    turn = 0.5 * (free[6] - 0.5)
    across, down = (columns - centre[1]) / radius, (rows - centre[0]) / radius
    x, y = np.cos(turn) * across + np.sin(turn) * down, np.cos(turn) * down - np.sin(turn) * across
    r = np.sqrt(x * x + y * y)
    inside = np.clip(0.5 - SHAPES[factors["shape"]](x, y, r) * radius * size, 0, 1)
    dark = np.clip(TEXTURES[factors["texture"]](x, y, r), 0, 1)
    colour = np.array(COLOURS[factors["colour"]], dtype=np.float32) * (0.85 + 0.15 * free[7])
    fill = colour * (1 - 0.65 * dark)[:, :, None]
    picture += inside[:, :, None] * (fill - picture)
    for place in _mark_places(factors, free):
        _mark(picture, rows, columns, place, radius=0.03 + 0.2 / size)
    if noise:
        generator = np.random.Generator(np.random.Philox(key=seed & (2**64 - 1), counter=number))
        picture += generator.random(picture.shape, dtype=np.float32) * (2 * noise) - noise
    pixels: Pixels = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


def _mark_places(factors: dict[str, str], free: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return the positions of the small marks: on the border, where no shape reaches, in different slots of 16."""
    slots = np.argsort(free[8:24])[: int(factors["count"])]
    places = []
    for slot in slots.tolist():
        side, along = slot // 4, 0.125 + 0.25 * (slot % 4)
        edge = 0.05
        places.append([(edge, along), (along, 1 - edge), (1 - edge, 1 - along), (1 - along, edge)][side])
    return places


def _mark(picture: Plane, rows: Plane, columns: Plane, place: tuple[float, float], *, radius: float) -> None:
    size = len(rows)
    reach = radius + 1 / size
    top, left = (max(0, int((at - reach) * size)) for at in place)
    bottom, right = (min(size, int((at + reach) * size) + 2) for at in place)
    window = np.s_[top:bottom, left:right]
    distance = np.hypot(rows[window[0]] - place[0], columns[:, window[1]] - place[1])
    inside = np.clip(0.5 - (distance - radius) * size, 0, 1)[:, :, None]
    picture[window] += inside * (250 - picture[window])


@functools.lru_cache(maxsize=64)
def _drawn(seed: int, block: int) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Draw the random numbers of a block of pictures at once, which costs little more than for one."""
    numbers = block * _BLOCK + np.arange(_BLOCK, dtype=np.uint64)
    words = random_words(seed, stream="generated", epochs=0, positions=numbers, count=_NUM_CHOICES)
    return words, uniforms(seed, stream="generated", epochs=1, positions=numbers, count=_NUM_FREE)


@functools.lru_cache(maxsize=4)
def _grid(size: int) -> tuple[Plane, Plane]:
    at = (np.arange(size, dtype=np.float32) + 0.5) / size
    return at[:, None], at[None, :]


PREFIX = "generated:"
_OPTIONS = ("size", "count", "label", "seed", "val", "test", "noise")


def recognises(address: str) -> bool:
    """Accept addresses that begin with `generated:`."""
    return address.startswith(PREFIX)


def open_all(address: str) -> dict[str, Source]:
    """Return `train` of `count` pictures, `val` and `test` of a fifth as many, without overlap."""
    kind, _, query = address.removeprefix(PREFIX).partition("?")
    if kind != "shapes":
        raise ConfigError(f"there are no generated pictures called {kind!r}; use generated:shapes")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            close = near_match(name, _OPTIONS)
            hint = f"did you mean {close}?" if close else f"it has {', '.join(_OPTIONS)}"
            raise ConfigError(
                f"generated:shapes has no option {name!r}; {hint}", suggestions=[close] if close else []
            )
    count = _number(options, "count", 5000)
    counts = {
        "train": count,
        "val": _number(options, "val", max(1, count // 5)),
        "test": _number(options, "test", max(1, count // 5)),
    }
    label = options.get("label", "shape")
    labels = tuple(label.split(","))
    for name in labels:
        if name not in FACTORS:
            raise ConfigError(f"generated:shapes has no label {name!r}; it has {', '.join(FACTORS)}")
    splits: dict[str, Source] = {}
    start = 0
    for split, length in counts.items():
        if length:
            splits[split] = GeneratedSource(
                count=length,
                size=_number(options, "size", 32),
                label=label,
                seed=_number(options, "seed", 0),
                start=start,
                noise=_number(options, "noise", 8),
                address=address,
                prefix=f"{split}/",
            )
        # Far apart, so that a larger train set keeps the same val and test.
        start += 2**40
    return splits


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name} must be a whole number, got {text!r}")
    return int(text)
