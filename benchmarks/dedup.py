"""Plant copies of test images in a training set; measure how many are found, and how many false pairs.

    python benchmarks/dedup.py TRAIN TEST [--quality 75] [--shift 2] [--brightness 1.1 1.2] [--sheets DIR]

Every test image is copied once: shifted by up to `--shift` pixels in each direction (never by zero; the exposed
border is black, repeated or wrapped, in turn), brightened and saved as JPEG. Prints:

- recall: the fraction of planted copies that are paired with their own test image;
- other pairs: test images paired with real training images or with the copy of another test image. Real data sets
  contain real near-duplicates, so these need a look: `--sheets` draws them;
- the mirror control: mirrored test images against the training images without planted copies. They have the same
  statistics as the test images, but only a mirrored or symmetric copy is a true match.

The rate of false pairs is the number of pairs divided by the number of test images (queries). Before that it prints
time and memory of a search of 10,000 synthetic thumbnails among 100,000 (`--synthetic` sets both numbers).
"""

import argparse
import io
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitrine.data.auditing.near_duplicates import Pairs, feature_pairs, near_pairs
from vitrine.data.auditing.survey import in_order, survey_images
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.opening import open_source
from vitrine.data.sources.source import Source


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", nargs="?")
    parser.add_argument("test", nargs="?")
    parser.add_argument("--quality", type=int, default=75)
    parser.add_argument("--shift", type=int, default=2, help="pixels of the original image")
    parser.add_argument("--brightness", type=float, nargs=2, default=(1.1, 1.2))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheets", type=Path, help="folder for contact sheets of the pairs to look at")
    parser.add_argument("--synthetic", type=int, nargs=2, default=(100_000, 10_000), help="base and queries")
    parser.add_argument("--synthetic-only", action="store_true")
    options = parser.parse_args()
    if options.synthetic_only:
        measure_synthetic(*options.synthetic)
        return
    # In its own process, so that its memory peak is separate.
    sizes = map(str, options.synthetic)
    subprocess.run([sys.executable, __file__, "--synthetic-only", "--synthetic", *sizes], check=True)
    if options.train and options.test:
        measure_planted(options)


def measure_synthetic(num_base: int, num_queries: int) -> None:
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(num_base, 8, 8)).astype(np.float32)
    base = np.empty((num_base, 32, 32), dtype=np.uint8)
    for number, values in enumerate(coarse):
        smooth = Image.fromarray(values).resize((32, 32), Image.Resampling.BICUBIC)
        base[number] = np.clip(np.asarray(smooth) * 40 + 128, 0, 255)
    queries = base[rng.choice(num_base, num_queries, replace=False)]
    before = peak()
    began = time.perf_counter()
    pairs = near_pairs(queries, base)
    print(
        f"synthetic thumbnails, {num_queries:,} x {num_base:,}: {time.perf_counter() - began:.1f} s, "
        f"{len(pairs):,} pairs, peak memory {peak():.2f} GiB ({before:.2f} before the search)"
    )
    features = rng.normal(size=(num_base, 384)).astype(np.float32)
    began = time.perf_counter()
    pairs = feature_pairs(features[:num_queries] + 0.1, features)
    print(
        f"synthetic features (384), {num_queries:,} x {num_base:,}: {time.perf_counter() - began:.1f} s, "
        f"{len(pairs):,} pairs, peak memory {peak():.2f} GiB"
    )


def measure_planted(options: argparse.Namespace) -> None:
    train = open_source(options.train, is_labelled=False)
    test = open_source(options.test, is_labelled=False)
    with tempfile.TemporaryDirectory() as folder:
        plant(test, Path(folder), options)
        copies = open_source(folder, is_labelled=False)
        assert len(copies) == len(test)
        thumbnails = {}
        for name, source in (("train", train), ("test", test), ("copies", copies)):
            began = time.perf_counter()
            thumbnails[name] = np.array(survey_images(source, is_cached=False).thumbnails)
            seconds = time.perf_counter() - began
            print(
                f"reading {name}: {len(source):,} images in {seconds:.1f} s, {len(source) / seconds:,.0f}/s"
            )
        base = np.concatenate([thumbnails["train"], thumbnails["copies"]])
        began = time.perf_counter()
        pairs = near_pairs(thumbnails["test"], base)
        seconds = time.perf_counter() - began
        own = pairs.others == len(train) + pairs.queries
        in_train = pairs.others < len(train)
        print(f"search, {len(test):,} x {len(base):,}: {seconds:.1f} s, peak memory {peak():.2f} GiB")
        print(f"recall: {own.sum():,} of {len(test):,} planted copies, {100 * own.sum() / len(test):.2f} %")
        print(
            f"other pairs: {in_train.sum():,} with real training images ({len(np.unique(pairs.queries[in_train])):,} "
            f"test images), {(~own & ~in_train).sum():,} with copies of other test images"
        )
        control = near_pairs(np.ascontiguousarray(thumbnails["test"][:, :, ::-1]), thumbnails["train"])
        print(
            f"mirror control: {len(control):,} pairs, {100 * len(control) / len(test):.3f} % of queries "
            "(true mirrored copies among them)"
        )
        if options.sheets:
            options.sheets.mkdir(parents=True, exist_ok=True)
            draw(control, test, [train], options.sheets / "mirror.png", is_mirrored=True)
            others = Pairs(
                queries=pairs.queries[~own], others=pairs.others[~own], similarity=pairs.similarity[~own]
            )
            draw(others, test, [train, copies], options.sheets / "others.png")


def plant(test: Source, folder: Path, options: argparse.Namespace) -> None:
    def one(index: int) -> None:
        rng = np.random.default_rng([options.seed, index])
        pixels = decode(test.read(index).data)
        down, right = 0, 0
        while options.shift and down == 0 and right == 0:
            down, right = rng.integers(-options.shift, options.shift + 1, 2)
        around = [(options.shift, options.shift)] * 2 + [(0, 0)]
        padded = np.pad(pixels, around, mode=("constant", "edge", "wrap")[index % 3])
        top, left = options.shift + down, options.shift + right
        moved = padded[top : top + pixels.shape[0], left : left + pixels.shape[1]]
        brighter = np.clip(moved * rng.uniform(*options.brightness), 0, 255).round().astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(brighter).save(buffer, "JPEG", quality=options.quality)
        (folder / f"{index:07d}.jpg").write_bytes(buffer.getvalue())

    for _ in in_order(one, range(len(test)), num_workers=0):
        pass


def draw(
    pairs: Pairs,
    test: Source,
    bases: list[Source],
    path: Path,
    *,
    is_mirrored: bool = False,
    columns: int = 14,
) -> None:
    """Draw all pairs side by side, the least similar first."""
    cell, side = 132, 60
    count = len(pairs)
    sheet = Image.new("RGB", (columns * cell, -(-count // columns) * (side + 16) or 1))
    pen = ImageDraw.Draw(sheet)
    for number, place in enumerate(np.argsort(pairs.similarity)):
        row, column = divmod(number, columns)
        query, other = int(pairs.queries[place]), int(pairs.others[place])
        source = bases[0] if other < len(bases[0]) else bases[1]
        first, second = decode(test.read(query).data), decode(source.read(other % len(bases[0])).data)
        if is_mirrored:
            first = np.ascontiguousarray(first[:, ::-1])
        for offset, pixels in ((0, first), (side + 2, second)):
            picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.BOX)
            sheet.paste(picture, (column * cell + offset, row * (side + 16)))
        pen.text((column * cell, row * (side + 16) + side), f"{number} {pairs.similarity[place]:.3f}")
    sheet.save(path)
    print(f"wrote {path}: {count} pairs")


def peak() -> float:
    """Peak memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
