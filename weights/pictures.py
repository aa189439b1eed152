"""Images on the device: packs decoded once, then crops and colours of whole batches.

Shapes: B views of a batch; images (N, 3, side, side) uint8.
"""

import dataclasses
import io
import math
import multiprocessing
import os
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Share of each set in a batch: many small pictures of everything, more often those that are sharp.
SHARES = {
    "tiny": 0.36, "dogs": 0.13, "dogcat": 0.14, "nette": 0.09, "imval": 0.07, "sample": 0.015,
    "birds": 0.07, "cars": 0.04, "scenes": 0.045, "cifar100": 0.04,
}  # fmt: skip


@dataclasses.dataclass
class Images:
    """Square images of one size, (N, 3, side, side) uint8, and labels (N,), -1 if there is none."""

    pixels: Tensor
    labels: Tensor

    def keep(self, kept: Tensor) -> None:
        """Keep only these."""
        self.pixels, self.labels = self.pixels[kept], self.labels[kept]


def read_pack(path: Path, device: torch.device) -> Images:
    """Decode a pack with all cores and copy it to the device."""
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
    return Images(
        pixels=torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).contiguous(),
        labels=torch.from_numpy(labels.astype(np.int64)).to(device),
    )


def views(
    sets: dict[str, Images], grid: int, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a batch: the same crops for the student (16 pixels per patch) and the teacher (14), and labels."""
    device = generator.device
    counts = {name: max(1, round(share * batch)) for name, share in SHARES.items() if name in sets}
    counts["tiny"] += batch - sum(counts.values())
    mine, its, labels = [], [], []
    for name, count in counts.items():
        images = sets[name]
        chosen = torch.randint(len(images.pixels), (count,), device=device, generator=generator)
        pixels = images.pixels[chosen].to(torch.float16 if device.type == "cuda" else torch.float32)
        frames = crops(count, generator)
        mine.append(cut(pixels, frames, 16 * grid))
        its.append(cut(pixels, frames, 14 * grid))
        labels.append(images.labels[chosen] if name == "tiny" else torch.full_like(chosen, -1))
    colours = Colours(batch, generator)
    return colours(torch.cat(mine)), colours(torch.cat(its)), torch.cat(labels)


def crops(count: int, generator: torch.Generator) -> Tensor:
    """Draw Inception crops with flips as affine maps (count, 2, 3) from the view to the image."""
    uniform = torch.rand(count, 5, device=generator.device, generator=generator)
    area = 0.25 + 0.75 * uniform[:, 0]
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
    floats = pixels.float() / 255
    return normalised(F.interpolate(floats, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1))
