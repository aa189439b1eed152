"""Looking inside: where the attention of a real model falls, and what it costs in memory.

    python benchmarks/inspection.py attention DINOV2_FOLDER --pets pets --count 200
    python benchmarks/inspection.py memory

`attention` needs the photos and trimaps of Oxford-IIIT Pets (images/, annotations/trimaps/) and asks, for each of
`count` photos spread over the set, whether the share of a map on the animal is above the animal's share of area.
`memory` runs `vitrine inspect` in processes of their own and reads their peak; two models and 128 generated pictures.
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
from vitrine.inspection import attention_distance, attention_from, rollout
from vitrine.inspection.pictures import spread

FOREGROUND, BORDER = 1, 3  # of a trimap; 2 is background
LIMIT_BYTES = 2e9


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
    memory.add_argument("--only", choices=["large", "base"])
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
    shares: dict[str, list[float]] = {}
    areas: list[float] = []
    with_border: list[tuple[float, float]] = []
    distances = []
    for trimap in chosen:
        photo = pets / "images" / f"{trimap.stem}.jpg"
        image = loaded.preprocess(photo.read_bytes(), name=photo.name)[None]
        marks = nearest.pixels(np.asarray(Image.open(trimap))[:, :, None])[0]
        animal = on_grid(marks == FOREGROUND, loaded.model.config.token_stride)
        heads = attention_from(loaded.model, image)[0]  # (L, H, GH, GW)
        maps = {
            "rollout (the paper's)": rollout(loaded.model, image)[0],
            "rollout, smallest 90 % discarded": rollout(loaded.model, image, discard=0.9)[0],
            "class token in the last layer, mean of heads": heads[-1].mean(axis=0),
        }
        maps |= {f"head {number + 1} of the last layer": head for number, head in enumerate(heads[-1])}
        areas.append(float(animal.mean()))
        for name, weights in maps.items():
            shares.setdefault(name, []).append(float((weights * animal).sum() / weights.sum()))
        wide = on_grid((marks == FOREGROUND) | (marks == BORDER), loaded.model.config.token_stride)
        flow = maps["rollout (the paper's)"]
        with_border.append((float((flow * wide).sum() / flow.sum()), float(wide.mean())))
        distances.append(attention_distance(loaded.model, image))
    area = np.array(areas)
    print(f"{len(chosen)} photos at {size} px; the animal's share of area: {area.mean():.3f} on average")
    for name, values in shares.items():
        share = np.array(values)
        print(f"{name}: above the area in {np.mean(share > area):.1%}; mean share {share.mean():.3f}")
    wide_share = np.array(with_border)
    print(
        f"rollout, the trimap's border counted as animal: {np.mean(wide_share[:, 0] > wide_share[:, 1]):.1%}"
    )
    median = np.median(np.mean(distances, axis=0), axis=1)
    print("attention distance, median of heads by layer:", " ".join(f"{pixels:.0f}" for pixels in median))
    for first in (0, 1):
        rank = np.argsort(np.argsort(median[first:]))
        correlation = np.corrcoef(rank, np.arange(len(rank)))[0, 1]
        print(f"rank correlation of that with depth, from layer {first + 1} on: {correlation:.2f}")


def on_grid(mask: torch.Tensor, stride: tuple[int, int]) -> np.ndarray:
    """Return the share of each patch that the mask covers."""
    return torch.nn.functional.avg_pool2d(mask[None, None].double(), stride)[0, 0].numpy()


def measure_memory(only: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "large": ("ViT-L/16", "generated:shapes?size=512&count=1", 512),
            "base": ("ViT-B/16", "generated:shapes?size=224&count=128", 224),
        }
        for key, (name, images, size) in cases.items():
            if only not in (None, key):
                continue
            weights = Path(folder) / key
            subprocess.run(
                [sys.executable, "-c", f"import vitrine; vitrine.save(vitrine.create_model({name!r}, "
                 f"image_size={size}), {str(weights)!r})"], check=True)  # fmt: skip
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, __file__, "one", str(weights), images, str(size)],
                check=True, capture_output=True, text=True, env=os.environ,
            )  # fmt: skip
            found = json.loads(done.stdout)
            verdict = "within" if found["peak_bytes"] <= LIMIT_BYTES else "ABOVE"
            print(f"{name} at {size} px, {found['num_images']} image(s): peak {found['peak_bytes'] / 1e9:.2f} GB, "
                  f"{verdict} {LIMIT_BYTES / 1e9:.0f} GB; {time.perf_counter() - began:.0f} s")  # fmt: skip


def inspect_once(name: str, images: str, *, size: int) -> None:
    import resource

    with tempfile.TemporaryDirectory() as folder:
        result = vitrine.inspect(name, [images], out=Path(folder) / "out", size=size, device="cpu")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak, "num_images": result.num_images}))


if __name__ == "__main__":
    main()
