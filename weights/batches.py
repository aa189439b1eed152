"""Images on the device: packs decoded once, then crops and colours of whole batches.

Shapes: B views of a batch; images (N, 3, side, side) uint8; K classes that a second teacher finds most likely.
"""

import dataclasses
import io
import math
import multiprocessing
import os
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sources import NO_LABEL, SOURCES
from torch import Tensor

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TEACHER_PATCH, STUDENT_PATCH = 14, 16
# Sets of another number of classes than ImageNet's 1,000 have labels for measuring only.
CLASSES_SUFFIX = ".classes.npz"


@dataclasses.dataclass
class Images:
    """Square images of one size, (N, 3, side, side) uint8, labels (N,), -1 without, and a teacher's answers."""

    pixels: Tensor
    labels: Tensor
    classes: Tensor
    """The most likely classes (N, K); -1 where the second teacher was not asked."""
    probabilities: Tensor
    """Their probabilities (N, K)."""

    def keep(self, kept: Tensor) -> None:
        """Keep only these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name)[kept])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Views:
    """One batch: the same crops for the student and for the teacher, small crops of the same images, and targets."""

    student: Tensor
    teacher: Tensor
    local: Tensor
    """Small crops (V * B, 3, side, side) for the student alone; empty without multi-crop."""
    labels: Tensor
    classes: Tensor
    probabilities: Tensor


def read_sets(folder: Path, device: torch.device) -> dict[str, Images]:
    """Read all packs of a folder; the parts of a source belong together."""
    parts = defaultdict(list)
    for path in sorted(folder.glob("*-[0-9][0-9].npz")):
        parts[path.stem.rpartition("-")[0]].append(read_pack(path, device))
    return {name: joined(images) for name, images in parts.items()}


def joined(parts: list[Images]) -> Images:
    """Return all images of several parts."""
    fields = [field.name for field in dataclasses.fields(Images)]
    return Images(*(torch.cat([getattr(part, name) for part in parts]) for name in fields))


def read_pack(path: Path, device: torch.device) -> Images:
    """Decode a pack with all cores and copy it to the device."""
    pixels, labels = decoded(path)
    classes, probabilities = np.full((len(labels), 1), NO_LABEL), np.zeros((len(labels), 1))
    if path.with_suffix(CLASSES_SUFFIX).exists():
        with np.load(path.with_suffix(CLASSES_SUFFIX)) as answers:
            classes, probabilities = answers["classes"], answers["probabilities"]
    return Images(
        pixels=torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).contiguous(),
        labels=torch.from_numpy(labels.astype(np.int64)).to(device),
        classes=torch.from_numpy(classes.astype(np.int64)).to(device),
        probabilities=torch.from_numpy(probabilities.astype(np.float32)).to(device),
    )


def decoded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Decode a pack with all cores: (N, side, side, 3) uint8, and labels (N,)."""
    with np.load(path) as pack:
        side, sizes, labels = int(pack["side"]), pack["sizes"], pack["labels"]
        bytes_of = pack["blob"]
    ends = np.cumsum(sizes)
    with tempfile.TemporaryFile() as file:  # shared memory is small in many containers
        pixels = np.memmap(file, np.uint8, "w+", shape=(len(sizes), side, side, 3))

    def decode(first: int, last: int) -> None:
        for index in range(first, last):
            data = bytes_of[ends[index] - sizes[index] : ends[index]].tobytes()
            pixels[index] = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    bounds = np.linspace(0, len(sizes), 1 + min(len(sizes), os.cpu_count() or 1)).astype(int)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=decode, args=pair) for pair in pairwise(bounds)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit(f"{path} could not be decoded")
    return pixels, labels


def views(
    sets: dict[str, Images],
    *,
    grid: int,
    teacher_grid: int,
    batch: int,
    num_local: int,
    local_grid: int,
    generator: torch.Generator,
) -> Views:
    """Draw a batch: the same crops for the student (16 pixels per patch) and the teacher (14), and its targets."""
    device = generator.device
    mine, its, local, rows = [], [], [], []
    for name, count in counts_of(sets, batch).items():
        images = sets[name]
        chosen = torch.randint(len(images.pixels), (count,), device=device, generator=generator)
        pixels = images.pixels[chosen].to(torch.float16 if device.type == "cuda" else torch.float32)
        frames = crops(count, generator, least=0.25)
        mine.append(cut(pixels, frames, STUDENT_PATCH * grid))
        its.append(cut(pixels, frames, TEACHER_PATCH * teacher_grid))
        local.append([cut(pixels, crops(count, generator, least=0.05, most=0.3), STUDENT_PATCH * local_grid)
                      for _ in range(num_local)])  # fmt: skip
        rows.append((images.labels[chosen], images.classes[chosen], images.probabilities[chosen]))
    colours = Colours(batch, generator)
    small = [colours(torch.cat(same)) for same in zip(*local, strict=True)]
    most = max(classes.shape[1] for _, classes, _ in rows)
    return Views(
        student=colours(torch.cat(mine)),
        teacher=colours(torch.cat(its)),
        local=torch.cat(small) if small else torch.empty(0, device=device),
        labels=torch.cat([labels for labels, _, _ in rows]),
        classes=torch.cat(
            [F.pad(classes, (0, most - classes.shape[1]), value=NO_LABEL) for _, classes, _ in rows]
        ),
        probabilities=torch.cat([F.pad(values, (0, most - values.shape[1])) for _, _, values in rows]),
    )


def counts_of(sets: dict[str, Images], batch: int) -> dict[str, int]:
    """Divide a batch among the sets by their shares; the first takes what rounding leaves."""
    shares = {name: SOURCES[name].share for name in sets if SOURCES[name].share}
    whole_share = sum(shares.values())
    counts = {name: max(1, int(share / whole_share * batch)) for name, share in shares.items()}
    first = next(iter(counts))
    counts[first] += batch - sum(counts.values())
    return counts


def crops(count: int, generator: torch.Generator, *, least: float, most: float = 1.0) -> Tensor:
    """Draw Inception crops with flips as affine maps (count, 2, 3) from the view to the image."""
    uniform = torch.rand(count, 5, device=generator.device, generator=generator)
    area = least + (most - least) * uniform[:, 0]
    ratio = torch.exp((uniform[:, 1] * 2 - 1) * math.log(4 / 3)).sqrt()
    height, width = (area.sqrt() / ratio).clamp(max=1), (area.sqrt() * ratio).clamp(max=1)
    flip = torch.where(uniform[:, 2] < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(height)
    down, across = (2 * uniform[:, 3] - 1) * (1 - height), (2 * uniform[:, 4] - 1) * (1 - width)
    return torch.stack([width * flip, zero, across, zero, height, down], dim=1).view(-1, 2, 3)


def cut(pixels: Tensor, frames: Tensor, side: int) -> Tensor:
    """Sample each image at its crop: (B, 3, side, side)."""
    places = F.affine_grid(frames.to(pixels.dtype), [len(pixels), 3, side, side], align_corners=False)
    return F.grid_sample(pixels, places, mode="bilinear", padding_mode="reflection", align_corners=False)


class Colours:
    """Brightness, contrast, saturation and grey, drawn once for a batch, then normalisation."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        uniform = torch.rand(count, 5, device=generator.device, generator=generator)
        changed = (uniform[:, 3:4] < 0.8).float()
        self.factors = 1 + changed * 0.4 * (2 * uniform[:, :3] - 1)
        self.factors[:, 2] *= uniform[:, 4] >= 0.1

    def __call__(self, pixels: Tensor) -> Tensor:
        """Map pixels from 0 to 255 to normalised ones."""
        brightness, contrast, saturation = self.factors.to(pixels.dtype).view(-1, 3, 1, 1, 1).unbind(1)
        pixels = pixels / 255 * brightness
        pixels = pixels.mean((1, 2, 3), keepdim=True).lerp(pixels, contrast)
        weights = pixels.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
        grey = (pixels * weights).sum(1, keepdim=True)
        return normalised(grey.lerp(pixels, saturation).clamp(0, 1))


def normalised(pixels: Tensor) -> Tensor:
    """Subtract ImageNet's mean and divide by its standard deviation; pixels from 0 to 1."""
    mean, std = (pixels.new_tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (pixels - mean) / std


def whole(pixels: Tensor, side: int) -> Tensor:
    """Resize whole images and normalize them."""
    return normalised(resized(pixels, side) / 255)


def resized(pixels: Tensor, side: int) -> Tensor:
    """Resize whole images; pixels stay from 0 to 255."""
    return F.interpolate(pixels.float(), size=(side, side), mode="bicubic", antialias=True).clamp(0, 255)
