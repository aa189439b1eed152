"""Pack folders of images for `distil.py`: square WebP of one size per data set, one .npz per data set.

    python weights/packs.py ROOT PACKS

ROOT contains one folder per data set, named as in `SIDES`, with images at any depth. Two have labels: `tiny` is
Tiny-ImageNet as published (train/, val/ with val_annotations.txt; it becomes `tiny` and `tinyval`), `pets` is
Oxford-IIIT Pets as published (images/, annotations/list.txt). The test images of both are never trained on.

An image is cropped to at most 4:3 and resized to a square, which crops of any shape undo. That takes fewer bytes than
either alone: large data sets of small images fit in a few hundred megabytes.
"""

import argparse
import io
import multiprocessing
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

# Set: side in pixels and WebP quality.
SIDES = {
    "tiny": (64, 82), "imval": (176, 72), "sample": (176, 72), "nette": (176, 72), "dogs": (176, 72),
    "dogcat": (176, 72), "birds": (160, 70), "cars": (128, 70), "scenes": (112, 70), "cifar100": (32, 85),
    "pets": (160, 75),
}  # fmt: skip
PICTURES = (".jpg", ".jpeg", ".png")
NO_LABEL = -1
WIDEST = 4 / 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("packs", type=Path)
    options = parser.parse_args()
    options.packs.mkdir(parents=True, exist_ok=True)
    for name, shape in SIDES.items():
        folder = options.root / name
        if not folder.is_dir():
            print(f"{name}: no folder {folder}, left out")
        elif name == "tiny":
            write(options.packs / "tiny.npz", tiny_training(folder), *shape)
            write(options.packs / "tinyval.npz", tiny_validation(folder), *shape)
        else:
            rows = pets(folder) if name == "pets" else unlabelled(folder)
            write(options.packs / f"{name}.npz", rows, *shape)


def unlabelled(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in PICTURES:
            yield path, NO_LABEL


def tiny_training(folder: Path) -> Iterator[tuple[Path, int]]:
    for number, wordnet_id in enumerate(tiny_classes(folder)):
        for path, _ in unlabelled(folder / "train" / wordnet_id):
            yield path, number


def tiny_validation(folder: Path) -> Iterator[tuple[Path, int]]:
    number_of = {name: number for number, name in enumerate(tiny_classes(folder))}
    for line in (folder / "val" / "val_annotations.txt").read_text().splitlines():
        name, wordnet_id = line.split("\t")[:2]
        yield folder / "val" / "images" / name, number_of[wordnet_id]


def tiny_classes(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "train").iterdir())


def pets(folder: Path) -> Iterator[tuple[Path, int]]:
    for line in (folder / "annotations" / "list.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, number = line.split()[:2]
            yield folder / "images" / f"{name}.jpg", int(number) - 1


def write(path: Path, rows: Iterable[tuple[Path, int]], side: int, quality: int) -> None:
    """Write all readable images; skip and count the others."""
    blobs, labels, bad = [], [], 0
    with multiprocessing.Pool() as pool:
        jobs = ((picture, label, side, quality) for picture, label in rows)
        for blob, label in pool.imap(packed, jobs, chunksize=32):
            if blob is None:
                bad += 1
            else:
                blobs.append(blob)
                labels.append(label)
    np.savez(
        path,
        blob=np.frombuffer(b"".join(blobs), np.uint8),
        sizes=np.array([len(blob) for blob in blobs], np.int32),
        labels=np.array(labels, np.int16),
        side=side,
    )
    print(
        f"{path.name}: {len(blobs):,} pictures, {bad} unreadable, {sum(map(len, blobs)) / 1e6:.1f} MB",
        flush=True,
    )


def packed(job: tuple[Path, int, int, int]) -> tuple[bytes | None, int]:
    path, label, side, quality = job
    try:
        with Image.open(path) as image:
            if image.format == "JPEG":
                image.draft("RGB", (side, side))
            square = squared(ImageOps.exif_transpose(image).convert("RGB"), side)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None, label
    buffer = io.BytesIO()
    square.save(buffer, "WEBP", quality=quality, method=3)
    return buffer.getvalue(), label


def squared(image: Image.Image, side: int) -> Image.Image:
    width, height = image.size
    width, height = min(width, int(height * WIDEST)), min(height, int(width * WIDEST))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    frame = (left, top, left + width, top + height)
    return image.resize((side, side), Image.Resampling.BICUBIC, box=frame, reducing_gap=3.0)


if __name__ == "__main__":
    main()
