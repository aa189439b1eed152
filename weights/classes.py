"""Ask the second teacher, which knows ImageNet's 1,000 classes, about every photograph of the packs.

    python weights/classes.py PACKS LITE.pth [--device cuda] [--seconds 200]
    python weights/classes.py MIRRORS LITE.pth --check 400

Writes the ten most likely classes and their probabilities beside each pack, as NAME-00.classes.npz: 60 bytes
per photograph. Packs that have one are skipped, so that the work can be done in steps. Photographs below 100
pixels are too small for it. Where a pack has labels, prints the teacher's accuracy. `--check` measures it on so
many of ImageNet's validation photographs at full size, as its authors do: that shows whether the weights are
read well.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import torch
from batches import CLASSES_SUFFIX, decoded, resized
from gather import contents, mirror_of, paths_in, spread
from lite import SIDE, Lite, read_lite
from PIL import Image
from sources import REPORTED
from teaching import LEAST_SIDE
from torch import Tensor

MOST_LIKELY = 10
# The fraction of the shorter side that the authors' centre crop keeps.
CROPPED = 0.875


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="*", help="pattern of the packs' names")
    parser.add_argument("--check", type=int, help="photographs to measure on")
    options = parser.parse_args()
    if options.check is not None:
        check(options.packs, read_lite(options.weights), count=options.check)
        return
    end = time.monotonic() + options.seconds
    device = torch.device(options.device)
    teacher = read_lite(options.weights).to(device, memory_format=torch.channels_last)
    for path in sorted(options.packs.glob(f"{options.only}-[0-9][0-9].npz")):
        if not path.with_suffix(CLASSES_SUFFIX).exists() and time.monotonic() < end:
            ask(path, teacher, device)


def ask(path: Path, teacher: Lite, device: torch.device) -> None:
    """Write the answers for one pack, and print their accuracy."""
    pixels, labels = decoded(path)
    if pixels.shape[1] < LEAST_SIDE:
        print(f"{path.name}: photographs of {pixels.shape[1]} pixels are too small, skipped", flush=True)
        return
    chunk = 512 if device.type == "cuda" else 16
    classes, probabilities = [], []
    for part in torch.from_numpy(pixels).split(chunk):
        values, numbers = answers(teacher, part.to(device).permute(0, 3, 1, 2)).topk(MOST_LIKELY)
        probabilities.append(values.cpu().numpy().astype(np.float16))
        classes.append(numbers.cpu().numpy().astype(np.int16))
    ranked = np.concatenate(classes)
    np.savez(path.with_suffix(CLASSES_SUFFIX), classes=ranked, probabilities=np.concatenate(probabilities))
    known = (labels >= 0) & (labels < 1000) & ("pets" not in path.name)
    right = ranked[known] == labels[known, None]
    score = (
        f"top-1 {right[:, 0].mean():.1%}, top-5 {right[:, :5].any(1).mean():.1%}"
        if known.any()
        else "no labels"
    )
    print(f"{path.name}: {len(labels):,} photographs; {score}", flush=True)


def check(mirrors: Path, teacher: Lite, *, count: int) -> None:
    """Print the accuracy on validation photographs at full size."""
    repository, within = REPORTED["imagenet-val"]
    mirror = mirror_of(mirrors, repository)
    if mirror is None:
        raise SystemExit(f"no clone of {repository} in {mirrors}")
    rows = spread(paths_in(mirror, within), count)
    ranked = []
    for (path, _), data in zip(rows, contents(mirror, [one for _, one in rows]), strict=True):
        if data is not None:
            pixels = torch.from_numpy(np.array(centre(data))).permute(2, 0, 1)[None]
            ranked.append(answers(teacher, pixels).topk(5).indices[0] == int(Path(path).parent.name))
    right = torch.stack(ranked).float()
    print(f"{len(right)} photographs: top-1 {right[:, 0].mean():.1%}, top-5 {right.sum(1).mean():.1%}")


def centre(data: bytes) -> Image.Image:
    """Resize the shorter side, then crop the centre."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
    factor = SIDE / CROPPED / min(image.size)
    image = image.resize(
        (round(image.width * factor), round(image.height * factor)),
        Image.Resampling.BICUBIC,
        reducing_gap=3.0,
    )
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return image.crop((left, top, left + SIDE, top + SIDE))


@torch.no_grad()
def answers(teacher: Lite, pixels: Tensor) -> Tensor:
    """Return the probabilities of all classes (B, 1000) for square images (B, 3, side, side) uint8."""
    with torch.autocast(pixels.device.type, torch.float16, enabled=pixels.device.type == "cuda"):
        return teacher(resized(pixels, SIDE)).float().softmax(1)


if __name__ == "__main__":
    main()
