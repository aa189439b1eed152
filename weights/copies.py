"""Find copies of test photographs among training photographs, by the teacher's features.

    python weights/copies.py describe MIRRORS --teacher DINOV2 --out tests.npz [--only pets] [--seconds 200]
    python weights/copies.py calibrate PACK.npz --teacher DINOV2 [--count 200]

`describe` computes the features of every test photograph that the card reports on, in steps of `--seconds` that
continue each other. `distil.py --tests tests.npz` then removes each training photograph with a cosine similarity of
COPY_COSINE or more to one of them. `calibrate` makes known copies of photographs (smaller, compressed again, cropped,
mirrored, darker) and prints how similar they are, beside the most similar other photograph.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from batches import TEACHER_PATCH, Images, decoded, whole
from gather import contents, mirror_of, paths_in, squared
from PIL import Image, ImageEnhance, ImageOps
from progress import Log
from sources import REPORTED
from teaching import CHUNK, LEAST_SIDE, Teacher, embedded
from torch import Tensor

# Finds 95 % of crops, 97 % of mirror images and 92 % of copies of 64 pixels; of 100 different photographs of VOC, the
# two most similar have 0.66. See docs/experiments.md, "The next bundled models".
COPY_COSINE = 0.8
# For photographs below LEAST_SIDE, whose copies are less similar: finds at least 95 % of copies of 64 pixels.
SMALL_COPY_COSINE = 0.7
TRIED = (0.93, 0.85, 0.8, 0.75, 0.7)
GRID = 9
SIDE = GRID * TEACHER_PATCH


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["describe", "calibrate"])
    parser.add_argument("source", type=Path)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--out", type=Path, default=Path("tests.npz"))
    parser.add_argument("--only", help="names of test sets, with commas between them")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    teacher = Teacher(options.teacher, torch.device(options.device))
    if options.verb == "calibrate":
        calibrate(options.source, teacher, count=options.count)
    else:
        describe(options, teacher)


def features(teacher: Teacher, pixels: Tensor) -> Tensor:
    """Return the teacher's class tokens of whole images at unit length (N, D)."""
    return F.normalize(teacher.encode(whole(pixels.to(teacher.device), SIDE))[0][:, 0].float(), dim=1)


def describe(options: argparse.Namespace, teacher: Teacher) -> None:
    """Compute features until the time is over; continue where the file ends."""
    end = time.monotonic() + options.seconds
    known = dict(np.load(options.out)) if options.out.exists() else {}
    for name in options.only.split(",") if options.only else REPORTED:
        repository, within = REPORTED[name]
        mirror = mirror_of(options.source, repository)
        if mirror is None:
            raise SystemExit(f"no clone of {repository} in {options.source}")
        objects = [one for _, one in paths_in(mirror, within)]
        rows = [known[name]] if name in known else []
        done = sum(map(len, rows))
        while done < len(objects) and time.monotonic() < end:
            chunk = objects[done : done + 8 * CHUNK]
            pixels = [readable(data) for data in contents(mirror, chunk)]
            found = features(teacher, torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
            rows.append(found.cpu().numpy().astype(np.float16))
            done += len(chunk)
        if rows:
            known[name] = np.concatenate(rows)
        np.savez(options.out, **known)
        print(f"{name}: {done:,} of {len(objects):,} test photographs described", flush=True)


def readable(data: bytes | None) -> np.ndarray:
    """Return an image as (side, side, 3) uint8; grey where it cannot be read, which resembles no photograph."""
    try:
        if data is not None:
            return np.asarray(squared(data, SIDE))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        pass
    return np.full((SIDE, SIDE, 3), 128, np.uint8)


def without_copies(sets: dict[str, Images], teacher: Teacher, tests: Path, log: Log) -> None:
    """Remove training images that the teacher considers copies of a test photograph."""
    with np.load(tests) as file:
        known = torch.cat([torch.from_numpy(file[name]) for name in file.files]).float().to(teacher.device)
    for name, images in sets.items():
        tokens = embedded(lambda pixels: teacher.encode(pixels)[0][:, 0], images, side=SIDE)
        nearest = torch.cat([(part @ known.T).amax(1) for part in F.normalize(tokens, dim=1).split(4096)])
        least = SMALL_COPY_COSINE if images.pixels.shape[-1] < LEAST_SIDE else COPY_COSINE
        images.keep(nearest < least)
        log(
            event="copies",
            set=name,
            least=least,
            left_out=int((nearest >= least).sum()),
            kept=len(images.pixels),
        )


def calibrate(pack: Path, teacher: Teacher, *, count: int) -> None:
    """Print the similarity of known copies, and of the most similar other photograph of the pack."""
    pixels, _ = decoded(pack)
    rows = np.linspace(0, len(pixels) - 1, min(count, len(pixels))).astype(int)
    originals = [Image.fromarray(pixels[row]) for row in rows]

    def of(images: list[Image.Image]) -> Tensor:
        stacked = np.stack(
            [np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image in images]
        )
        parts = torch.from_numpy(stacked).permute(0, 3, 1, 2).split(CHUNK)
        return torch.cat([features(teacher, part) for part in parts])

    own = of(originals)
    similar = own @ own.T
    nearest = similar.fill_diagonal_(-1).amax(1)
    print(f"most similar other photograph: {quantiles(nearest)}", flush=True)
    for name, change in CHANGES.items():
        same = (own * of([change(image) for image in originals])).sum(1)
        shares = ", ".join(f"{float((same >= least).float().mean()):.1%} at {least:g}" for least in TRIED)
        print(f"{name}: {quantiles(same)}; found {shares}", flush=True)


def quantiles(values: Tensor) -> str:
    """Return the smallest values, the median and the largest."""
    shown = values.quantile(torch.tensor([0.0, 0.01, 0.05, 0.5, 0.95, 0.99, 1.0], device=values.device))
    return "min, 1, 5, 50, 95, 99 %, max " + " ".join(f"{value:.3f}" for value in shown)


def compressed(image: Image.Image) -> Image.Image:
    """Compress as a JPEG of low quality."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer).convert("RGB")


def cropped(image: Image.Image) -> Image.Image:
    """Keep the middle 81 % of the area."""
    across, down = image.width // 20, image.height // 20
    return image.crop((across, down, image.width - across, image.height - down))


CHANGES = {
    "64 pixels": lambda image: image.resize((64, 64), Image.Resampling.BICUBIC),
    "96 pixels": lambda image: image.resize((96, 96), Image.Resampling.BICUBIC),
    "JPEG of quality 40": compressed,
    "cropped to 81 % of the area": cropped,
    "mirrored": ImageOps.mirror,
    "a quarter darker": lambda image: ImageEnhance.Brightness(image).enhance(0.75),
    "96 pixels, JPEG 40, cropped": lambda image: cropped(compressed(image.resize((96, 96)))),
}


if __name__ == "__main__":
    main()
