"""Embed a sample of a data set once, for the experiments on frozen features in docs/experiments.md.

    python benchmarks/frozen_features.py MODEL DATA features/pets-box.npz --train 40 --test 30
    python benchmarks/frozen_features.py MODEL noise features/noise-box.npz --test 300

DATA is a folder of Oxford-IIIT Pets (images/ and annotations/), one with train/ and test/ of class folders, one with
test/ alone, or `noise` or `textures`, which are drawn from a seed. --train and --test count pictures per class; with
--most the sample is cut to that many pictures. A run that was interrupted continues where it stopped.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrine.serving.predictor import Predictor

BLOCK = 200
SIDE = 224
GENERATED = ("noise", "textures")


class Sample(NamedTuple):
    """One picture (a path, or pixels), its class, and whether it is of the test set."""

    picture: Any
    label: str
    is_test: bool


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=0)
    parser.add_argument("--test", type=int, default=0)
    parser.add_argument("--most", type=int, default=None)
    parser.add_argument("--size", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=840.0, help="stop after this time")
    options = parser.parse_args(arguments)
    samples = draw_sample(options.data, num_train=options.train, num_test=options.test)[: options.most]
    embed(options.model, samples, options.out, size=options.size, seconds=options.seconds)


def draw_sample(data: str, *, num_train: int, num_test: int) -> list[Sample]:
    """Draw this many pictures per class, shuffled, so that a part of the sample is a fair one; the seed is 0."""
    if data in GENERATED:
        generator = np.random.default_rng(0)
        draw = noise if data == "noise" else texture
        return [Sample(draw(generator), data, True) for _ in range(num_test)]
    generator = random.Random(0)
    train, test = listed(Path(data), generator)
    samples = []
    for label in sorted(test):
        for files, count, is_test in (
            (train.get(label, []), num_train, False),
            (test[label], num_test, True),
        ):
            generator.shuffle(files)
            samples += [Sample(file, label, is_test) for file in files[:count]]
    generator.shuffle(samples)
    return samples


def listed(data: Path, generator: random.Random) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """List training and test pictures by class."""
    if (data / "annotations").is_dir():
        return pets_list(data, "trainval.txt"), pets_list(data, "test.txt")
    folders = [
        {each.name: sorted(map(str, each.iterdir())) for each in sorted((data / split).iterdir())}
        if (data / split).is_dir()
        else {}
        for split in ("train", "test")
    ]
    return folders[0], folders[1]


def pets_list(data: Path, file: str) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = {}
    for line in (data / "annotations" / file).read_text().splitlines():
        name = line.split()[0]
        path = data / "images" / f"{name}.jpg"
        if path.exists():
            classes.setdefault(name.rsplit("_", 1)[0], []).append(str(path))
    return classes


def noise(generator: np.random.Generator) -> np.ndarray:
    """Independent noise per pixel, from fine to coarse."""
    cells = int(generator.choice([8, 16, 32, 56, 112, 224]))
    values = generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
    return np.kron(values, np.ones((SIDE // cells, SIDE // cells, 1), dtype=np.uint8))


def texture(generator: np.random.Generator) -> np.ndarray:
    """A repeating pattern: the product of two waves in random directions, between two colours, with grain."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    waves = np.ones((SIDE, SIDE))
    for _ in range(2):
        angle, length = generator.uniform(0, np.pi), generator.uniform(6, 60)
        phase = generator.uniform(0, 2 * np.pi)
        along = np.cos(angle) * rows + np.sin(angle) * columns
        wave = np.sin(2 * np.pi * along / length + phase)
        waves *= np.sign(wave) if generator.random() < 0.5 else wave
    share = (waves[..., None] + 1) / 2
    colours = generator.uniform(0, 255, (2, 3))
    grain = generator.normal(0, 12, (SIDE, SIDE, 1))
    pixels = share * colours[0] + (1 - share) * colours[1] + grain
    return pixels.clip(0, 255).astype(np.uint8)


def embed(model: str, samples: list[Sample], out: Path, *, size: int | None, seconds: float) -> None:
    """Embed block by block and write all arrays after each."""
    classes = sorted({sample.label for sample in samples})
    numbers = np.array([classes.index(sample.label) for sample in samples])
    is_test = np.array([sample.is_test for sample in samples])
    names = np.array(
        [
            sample.picture if isinstance(sample.picture, str) else str(row)
            for row, sample in enumerate(samples)
        ]
    )
    rows: list[np.ndarray] = list(np.load(out)["features"]) if out.exists() else []
    predictor = Predictor.open(model, image_size=size, workers=1)
    began = time.monotonic()
    while len(rows) < len(samples) and time.monotonic() - began < seconds:
        block = [sample.picture for sample in samples[len(rows) : len(rows) + BLOCK]]
        outputs = predictor.embed(block)
        if outputs.failures:
            raise SystemExit(f"cannot read {block[next(iter(outputs.failures))]}")
        rows += list(outputs.rows.numpy())
        count = len(rows)
        out.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            out, features=np.stack(rows), labels=numbers[:count], split=is_test[:count].astype(int),
            paths=names[:count], classes=np.array(classes),
        )  # fmt: skip
        print(f"{out.name}: {count:,} of {len(samples):,}", flush=True)


if __name__ == "__main__":
    main()
