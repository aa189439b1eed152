"""Pack the photos and boxes of a data set small, so that they travel to another machine in parts.

    python benchmarks/detection.py VOC2012 packed --side 448 --quality 60 --val 1500 --megabytes 45
    for part in packed/*.tar; do tar xf $part -C voc; done
    vitrine finetune voc --model dinov2_vits14 --recipe boxes

Photos are resized to a longer side and encoded as WebP, boxes follow them, and the labels become COCO's JSON. Of the
validation photos, some are drawn at random.
"""

import argparse
import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from vitrine.data.decoding.decode import decode
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", type=int, default=448, help="longer side of a photo at most")
    parser.add_argument("--quality", type=int, default=60)
    parser.add_argument("--train", type=int, help="photos for training [default: all]")
    parser.add_argument("--val", type=int, help="photos for validation [default: all]")
    parser.add_argument("--megabytes", type=float, default=45, help="size of a part")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = Parts(options.out, most_bytes=int(1e6 * options.megabytes))
    splits = open_splits(f"boxes:{options.data}")
    for split, count in (("train", options.train), ("val", options.val)):
        source = splits[split]
        chosen = list(range(len(source)))
        random.Random(0).shuffle(chosen)
        labels = packed(
            source, sorted(chosen[:count]), parts, split=split, side=options.side, quality=options.quality
        )
        parts.add(f"annotations/instances_{split}.json", json.dumps(labels).encode())
        print(f"{split}: {len(labels['images']):,} photos, {len(labels['annotations']):,} boxes")
    parts.close()
    print(f"{parts.number} parts, {parts.total / 1e6:.1f} MB")


class Parts:
    """Tar files of a size at most, written one after the other."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self.number, self.size, self.total = 0, 0, 0
        self.opened: tarfile.TarFile | None = None

    def add(self, name: str, data: bytes) -> None:
        if self.opened is None or self.size + len(data) > self.most_bytes:
            self.close()
            file = self.folder / f"part-{self.number}.tar"
            self.opened, self.size = tarfile.open(file, "w"), 0  # noqa: SIM115 (closed with the part)
            self.number += 1
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self.opened.addfile(member, io.BytesIO(data))
        self.size += len(data) + 2 * tarfile.BLOCKSIZE
        self.total += len(data)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def packed(
    source: Source, chosen: list[int], parts: Parts, *, split: str, side: int, quality: int
) -> dict[str, list[dict[str, object]]]:
    """Add the photos of a split to the parts; return COCO's annotations of them."""
    images, annotations = list[dict[str, object]](), list[dict[str, object]]()
    for number, index in enumerate(chosen, start=1):
        pixels = decode(source.read(index).data)
        factor = min(side / max(pixels.shape[:2]), 1.0)
        height, width = (max(round(one * factor), 1) for one in pixels.shape[:2])
        written = io.BytesIO()
        photo = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
        photo.save(written, "WEBP", quality=quality)
        name = f"{Path(source.name(index)).stem}.webp"
        parts.add(f"{split}/{name}", written.getvalue())
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        annotations += rows_of(
            source, index, size=(height, width), picture=number, first=len(annotations) + 1
        )
    categories: list[dict[str, object]] = [
        {"id": number, "name": name} for number, name in enumerate(source.classes, start=1)
    ]
    return {"images": images, "annotations": annotations, "categories": categories}


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


if __name__ == "__main__":
    main()
