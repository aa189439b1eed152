"""Measure where a real model attends, and how much memory `vitrine inspect` needs.

    python benchmarks/inspection.py attention DINOV2_FOLDER --pets pets --count 200
    python benchmarks/inspection.py memory

`attention` needs the photos and trimaps of Oxford-IIIT Pets (images/, annotations/trimaps/). For each of `count`
photos spread over the set it compares the share of a map on the animal with the animal's share of the area.
`memory` runs `vitrine inspect` in processes of its own and reads their peak memory: two models, 128 generated images.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrine
from vitrine.inspection import attention_distance, roll_out
from vitrine.inspection.pictures import spread
from vitrine.inspection.rollout import from_output, without_smallest
from vitrine.models import ViT

FOREGROUND, BORDER = 1, 3  # of a trimap; 2 is background
PLAIN = "rollout (the paper's)"
DISTANCE_IMAGES = 128  # as in the paper
LIMIT_BYTES = 2e9
# Model, images, image size. The last one takes seconds and tests the measurement itself.
MEMORY_CASES = {
    "large": ("ViT-L/16", "generated:shapes?size=512&count=1&val=0&test=0", 512),
    "base": ("ViT-B/16", "generated:shapes?size=224&count=128&val=0&test=0", 224),
    "tiny": ("ViT-Ti/16", "generated:shapes?size=32&count=2&val=0&test=0", 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="what", required=True)
    attention = verbs.add_parser("attention")
    attention.add_argument("model")
    attention.add_argument("--pets", type=Path, required=True)
    attention.add_argument("--count", type=int, default=200)
    attention.add_argument("--size", type=int, default=224)
    memory = verbs.add_parser("memory")
    memory.add_argument("--only", choices=list(MEMORY_CASES))
    one = verbs.add_parser("one")  # what `memory` starts
    one.add_argument("name")
    one.add_argument("images")
    one.add_argument("size", type=int)
    options = parser.parse_args()
    if options.what == "attention":
        measure_attention(options.model, options.pets, count=options.count, size=options.size)
    elif options.what == "memory":
        measure_memory(options.only)
    else:
        inspect_once(options.name, options.images, size=options.size)


def measure_attention(model: str, pets: Path, *, count: int, size: int) -> None:
    loaded = vitrine.load(model, image_size=size)
    trimaps = sorted((pets / "annotations" / "trimaps").glob("[!.]*.png"))
    chosen = [trimaps[index] for index in spread(len(trimaps), count)]
    nearest = dataclasses.replace(loaded.preprocess, interpolation="nearest")
    figures: dict[str, list[tuple[float, float]]] = {}
    images = []
    for trimap in chosen:
        photo = pets / "images" / f"{trimap.stem}.jpg"
        image = loaded.preprocess(photo.read_bytes(), name=photo.name)[None]
        marks = nearest.pixels(np.asarray(Image.open(trimap))[:, :, None])[0]
        animal = on_grid(marks == FOREGROUND, loaded.model.config.token_stride)
        border = on_grid(marks == BORDER, loaded.model.config.token_stride)
        maps = maps_of(loaded.model, image)
        for name, weights in maps.items():
            figures.setdefault(name, []).append(shares(weights, animal, np.ones_like(animal)))
        flow = maps[PLAIN]
        figures.setdefault(f"{PLAIN}, border is animal", []).append(
            shares(flow, animal + border, np.ones_like(animal))
        )
        figures.setdefault(f"{PLAIN}, border ignored", []).append(shares(flow, animal, 1 - border))
        if len(images) < DISTANCE_IMAGES:
            images.append(image)
    print(f"{len(chosen)} photos at {size} px, spread evenly over {len(trimaps)}")
    for name, values in figures.items():
        mass, area = np.array(values).T
        print(
            f"{name}: above the area in {np.mean(mass > area):.1%}; share {mass.mean():.3f}, area {area.mean():.3f}"
        )
    median = np.median(attention_distance(loaded.model, images), axis=1)
    print("attention distance, median of heads by layer:", " ".join(f"{pixels:.0f}" for pixels in median))
    for first in (0, 1):
        rank = np.argsort(np.argsort(median[first:]))
        correlation = np.corrcoef(rank, np.arange(len(rank)))[0, 1]
        print(f"rank correlation of that with depth, from layer {first + 1} on: {correlation:.2f}")


def maps_of(model: ViT, image: torch.Tensor) -> dict[str, np.ndarray]:
    """Return every map from one pass: rollouts as `rollout` computes them, and the last layer's heads."""
    down, across = model.config.token_stride
    grid = (image.shape[2] // down, image.shape[3] // across)
    averages = []
    for _, weights in model.eval().attention(image):
        averages.append(weights.mean(dim=1))
    heads = from_output(model, weights)[0].reshape(-1, *grid).numpy()
    maps = {
        PLAIN: from_output(model, roll_out(averages)).reshape(grid).numpy(),
        "rollout, smallest 90 % discarded": from_output(
            model, roll_out(without_smallest(average, 0.9) for average in averages)
        )
        .reshape(grid)
        .numpy(),
        "class token in the last layer, mean of heads": heads.mean(axis=0),
    }
    return maps | {f"head {number + 1} of the last layer": head for number, head in enumerate(heads)}


def shares(weights: np.ndarray, animal: np.ndarray, counted: np.ndarray) -> tuple[float, float]:
    """Return the animal's fraction of a map and of the area, over the counted pixels."""
    return float((weights * animal).sum() / (weights * counted).sum()), float(animal.sum() / counted.sum())


def on_grid(mask: torch.Tensor, stride: tuple[int, int]) -> np.ndarray:
    """Return the fraction of each patch that the mask covers."""
    return torch.nn.functional.avg_pool2d(mask[None, None].double(), stride)[0, 0].numpy()


def measure_memory(only: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for key in [only] if only else ["large", "base"]:
            name, images, size = MEMORY_CASES[key]
            weights = Path(folder) / key
            subprocess.run(
                [sys.executable, "-c", f"import vitrine; vitrine.save(vitrine.create_model({name!r}, "
                 f"image_size={size}), {str(weights)!r})"], check=True)  # fmt: skip
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, __file__, "one", str(weights), images, str(size)],
                check=True, capture_output=True, text=True, env=os.environ,
            )  # fmt: skip
            figures = json.loads(done.stdout)
            verdict = "within" if figures["peak_bytes"] <= LIMIT_BYTES else "ABOVE"
            count, peak = figures["num_images"], figures["peak_bytes"] / 1e9
            print(f"{name} at {size} px, {count} image(s): peak {peak:.2f} GB, "
                  f"{verdict} {LIMIT_BYTES / 1e9:.0f} GB; {time.perf_counter() - began:.0f} s")  # fmt: skip


def inspect_once(name: str, images: str, *, size: int) -> None:
    import resource

    with tempfile.TemporaryDirectory() as folder:
        result = vitrine.inspect(name, [images], out=Path(folder) / "out", size=size, device="cpu")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak, "num_images": result.num_images}))


if __name__ == "__main__":
    main()
