"""Pack the photos and labels of VOC small, and a model in fp16, so that they travel to another machine in parts.

    python benchmarks/dense_packing.py VOC2012 packed --task masks --model dinov2_vits14 --megabytes 40
    python benchmarks/dense_packing.py VOC2012 packed --task boxes --val 1500 --megabytes 40
    for part in packed/*.tar; do tar xf $part -C voc; done
    cat voc/model/weights.* > voc/model/model.safetensors && rm voc/model/weights.*
    vitrine finetune voc/masks --model voc/model --task instances

Photos are resized to a longer side; validation photos keep their size, as scores are computed at it, unless
`--val-side` says otherwise. With `--val`, they are drawn at random. `masks` writes VOC's layout, with the masks of
classes and of objects beside JPEGs. `boxes` writes COCO's JSON beside JPEGs, or with `--webp` beside WebPs, a third
smaller and slower to read: Pillow decodes one at a time, however many threads there are.
"""

import argparse
import functools
import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save

from vitrine.data.decoding.decode import decode
from vitrine.data.sources.mask_sets import voc_folder
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source

MASKS = ("SegmentationClass", "SegmentationObject")
WEIGHTS = "model.safetensors"
# Weights are cut into pieces, so that they fill what photos leave free in a part.
PIECE_BYTES = 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", choices=("masks", "boxes"), default="boxes")
    parser.add_argument("--side", type=int, default=448, help="longer side of a training photo at most")
    parser.add_argument("--val-side", type=int, help="the same of a validation photo [default: its own]")
    parser.add_argument("--quality", type=int, default=70)
    parser.add_argument("--webp", action="store_true", help="photos with boxes as WebP")
    parser.add_argument("--train", type=int, help="photos for training [default: all]")
    parser.add_argument("--val", type=int, help="photos for validation [default: all]")
    parser.add_argument("--model", type=Path, help="folder of a model to pack too")
    parser.add_argument("--megabytes", type=float, default=40, help="size of a part")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = Parts(options.out, most_bytes=int(1e6 * options.megabytes))
    pack = {
        "masks": pack_masks,
        "boxes": functools.partial(pack_boxes, kind="webp" if options.webp else "jpeg"),
    }[options.task]
    splits = open_splits(f"{options.task}:{options.data}")
    for split, count in (("train", options.train), ("val", options.val)):
        chosen = list(range(len(splits[split])))
        random.Random(0).shuffle(chosen)
        side = options.side if split == "train" else options.val_side
        pack(splits[split], sorted(chosen[:count]), parts, split=split, side=side, quality=options.quality)
    if options.model is not None:
        pack_model(options.model, parts)
    parts.close()
    print(f"{parts.number} parts, {parts.total / 1e6:.1f} MB")


class Parts:
    """Tar files of a size at most, written one after the other."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self.number, self.size, self.total = 0, 0, 0
        self.opened: tarfile.TarFile | None = None

    def add(self, name: str, data: bytes) -> None:
        if self.opened is None or self.size + len(data) + 2 * tarfile.BLOCKSIZE > self.most_bytes:
            self.close()
            file = self.folder / f"part-{self.number}.tar"
            self.opened, self.size = tarfile.open(file, "w"), tarfile.RECORDSIZE  # noqa: SIM115 (closed with the part)
            self.number += 1
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self.opened.addfile(member, io.BytesIO(data))
        self.size += len(data) + 2 * tarfile.BLOCKSIZE
        self.total += len(data)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def resized(source: Source, index: int, side: int | None) -> Image.Image:
    """Read a photo, its longer side at most so long."""
    pixels = decode(source.read(index).data)
    factor = 1.0 if side is None else min(side / max(pixels.shape[:2]), 1.0)
    height, width = (max(round(one * factor), 1) for one in pixels.shape[:2])
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    """Return an image as a file."""
    written = io.BytesIO()
    image.save(written, kind, optimize=True, **options)
    return written.getvalue()


def pack_masks(
    source: Source, chosen: list[int], parts: Parts, *, split: str, side: int | None, quality: int
) -> None:
    """Add the photos of a split with both masks, as VOC lays them out, and their list."""
    root = voc_folder(Path(source.address.removeprefix("masks:")))
    assert root is not None
    names = [Path(source.name(index)).stem for index in chosen]
    for index, name in zip(chosen, names, strict=True):
        photo = resized(source, index, side)
        parts.add(f"masks/JPEGImages/{name}.jpg", encoded(photo, "JPEG", quality=quality))
        for folder in MASKS:
            with Image.open(root / folder / f"{name}.png") as mask:
                smaller = mask.resize(photo.size, Image.Resampling.NEAREST)
                parts.add(f"masks/{folder}/{name}.png", encoded(smaller, "PNG"))
    listed = "".join(f"{name}\n" for name in names)
    parts.add(f"masks/ImageSets/Segmentation/{split}.txt", listed.encode())
    print(f"{split}: {len(names):,} photos with masks")


def pack_boxes(
    source: Source,
    chosen: list[int],
    parts: Parts,
    *,
    split: str,
    side: int | None,
    quality: int,
    kind: str,
) -> None:
    """Add the photos of a split, and COCO's annotations of them."""
    images, annotations = list[dict[str, object]](), list[dict[str, object]]()
    for number, index in enumerate(chosen, start=1):
        photo = resized(source, index, side)
        name = f"{Path(source.name(index)).stem}.{kind}"
        parts.add(f"boxes/{split}/{name}", encoded(photo, kind.upper(), quality=quality))
        images.append({"id": number, "file_name": name, "height": photo.height, "width": photo.width})
        size = (photo.height, photo.width)
        annotations += rows_of(source, index, size=size, picture=number, first=len(annotations) + 1)
    categories = [{"id": number, "name": name} for number, name in enumerate(source.classes, start=1)]
    labels = {"images": images, "annotations": annotations, "categories": categories}
    parts.add(f"boxes/annotations/instances_{split}.json", json.dumps(labels).encode())
    print(f"{split}: {len(images):,} photos, {len(annotations):,} boxes")


def rows_of(
    source: Source, index: int, *, size: tuple[int, int], picture: int, first: int
) -> Iterator[dict[str, object]]:
    """Yield the objects of a photo at its new size."""
    annotation = source.annotation(index)
    factors = np.array([size[1] / annotation.size[1], size[0] / annotation.size[0]] * 2)
    for place, box in enumerate((annotation.boxes * factors).round(2).tolist()):
        left, top, right, bottom = box
        yield {
            "id": first + place, "image_id": picture, "category_id": int(annotation.labels[place]) + 1,
            "bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top),
            "iscrowd": int(annotation.is_ignored[place]),
        }  # fmt: skip


def pack_model(folder: Path, parts: Parts) -> None:
    """Add the files of a model, its weights in fp16 and in pieces."""
    for file in sorted(folder.iterdir()):
        if file.name != WEIGHTS:
            parts.add(f"model/{file.name}", file.read_bytes())
    half = {
        name: tensor.half() if tensor.dtype == torch.float32 else tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    data = save(half, metadata=metadata_of(folder / WEIGHTS))
    for number, start in enumerate(range(0, len(data), PIECE_BYTES)):
        parts.add(f"model/weights.{number:02d}", data[start : start + PIECE_BYTES])
    print(f"model: {len(data) / 1e6:.1f} MB")


def metadata_of(file: Path) -> dict[str, str]:
    """Return the texts at the head of a file of weights."""
    with safe_open(file, "pt") as opened:
        return opened.metadata() or {}


if __name__ == "__main__":
    main()
