"""Photos of mixed shapes through a ViT: packed in one sequence, padded to the longest, or squashed to squares.

python benchmarks/packing.py --model ViT-B/16 --budgets 256 --batches 32,128 --passes inference,training
python benchmarks/packing.py --budgets 64,144,256               photos of three resolutions in one batch
python benchmarks/packing.py --photos DIR                      with the shapes of these photos

All take turns on the same photos. `packed` is what Vitrine does on the device, `apart` the same with attention
image by image. `padded` is what a batch of one shape does: every photo has as many tokens as the largest budget, and
those that are not there are masked as keys. Before anything is timed, logits and gradients of the pack are compared
with those of photos computed alone. Prints a table; with --out, JSON.
"""

import argparse
import contextlib
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import vitrine
from vitrine.data.preparing.native import native_size, written_as_patches
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ViT
from vitrine.models.packed import embedded, grids_of, packed_attention
from vitrine.models.segments import Segments
from vitrine.runtime.devices import choose_device

# Height over width of photos as people take them: 3:4, 4:3, 2:3, 3:2, 16:9, 9:16 and squares.
ASPECTS = (0.75, 1.3333, 0.6667, 1.5, 0.5625, 1.7778, 1.0)
LONG_SIDE = 640
MOST_CHECKED = 8
WAYS = ("packed", "apart", "padded", "squares")
# Of the largest value, in fp32: sums in another order through 12 blocks; a wrong mask or position gives 1e-1.
TOLERANCE = 1e-3


def shapes_of(photos: Path | None, count: int) -> list[tuple[int, int]]:
    """Return heights and widths: of photos, or drawn from the usual ones."""
    rng = np.random.default_rng(0)
    if photos is None:
        return [
            (LONG_SIDE, round(LONG_SIDE / aspect)) if aspect > 1 else (round(LONG_SIDE * aspect), LONG_SIDE)
            for aspect in rng.choice(ASPECTS, count)
        ]
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    return [height_and_width(files[number]) for number in rng.integers(0, len(files), count)]


def height_and_width(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.height, image.width


def native_batch(shapes: list[tuple[int, int]], vit: ViT, budgets: list[int], device: torch.device) -> Tensor:
    """Make photos of noise in these shapes, as patches: (B, 1 + M, C x P x P); budgets take turns."""
    patch, max_patches = vit.config.patch_size, max(budgets)
    preprocess = Preprocess(size=vit.config.image_size, patch=patch, max_patches=max_patches)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number, shape in enumerate(shapes):
        size = native_size(*shape, patch=patch, max_patches=budgets[number % len(budgets)])
        image = torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8)
        rows.append(written_as_patches(image, patch=patch, max_patches=max_patches))
    return preprocess.normalise(torch.stack(rows).to(device))


def padded(vit: ViT, pictures: Tensor, *, max_patches: int) -> Tensor:
    """Compute logits with one row of tokens per photo, and keys beyond its end masked."""
    parts = embedded(vit, pictures, grids_of(vit, pictures))
    length = max_patches + vit.num_leading_tokens
    tokens = torch.stack([F.pad(part, (0, 0, 0, length - len(part))) for part in parts])
    counts = torch.tensor([len(part) for part in parts], device=tokens.device)
    is_there = torch.arange(length, device=tokens.device)[None] < counts[:, None]
    mask = is_there[:, None, None, :]
    for block in vit.blocks:
        attention = block.attention
        q, k, v = attention.project(block.norm_1(tokens))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        tokens = tokens + attention.to_out(mixed.transpose(1, 2).flatten(2))
        tokens = tokens + block.transform(tokens)
    return vit.classify(vit.norm(tokens))


def unpacked(picture: Tensor, vit: ViT) -> Tensor:
    """Put the patches of one picture back into an image, (1, C, height, width)."""
    (rows, columns), (P, Q) = grids_of(vit, picture[None])[0], vit.config.patch_size
    pieces = picture[1 : 1 + rows * columns].view(rows, columns, vit.config.channels, P, Q)
    return pieces.permute(2, 0, 3, 1, 4).reshape(1, vit.config.channels, rows * P, columns * Q)


def check_against_single(vit: ViT, native: Tensor) -> dict[str, float]:
    """Compare some photos packed with the same photos alone, in fp32; stop the benchmark where they differ."""
    some = native[:MOST_CHECKED]
    images = [unpacked(picture, vit) for picture in some]
    results = []
    for function in (lambda: vit(some), lambda: torch.cat([vit(image) for image in images])):
        logits = function()
        logits.square().sum().backward()
        gradient = vit.patch_projection.weight.grad
        assert gradient is not None
        results.append((logits.detach(), gradient.clone()))
        vit.zero_grad(set_to_none=True)
    differences = {}
    for name, packed, alone in zip(("logits", "gradients"), *results, strict=True):
        difference = float((packed - alone).abs().max() / alone.abs().max())
        differences[name] = difference
        if not difference < TOLERANCE:
            raise SystemExit(
                f"packed {name} differ from those of photos alone by {difference:.1e} of the largest"
            )
    return differences


@contextlib.contextmanager
def image_by_image() -> Iterator[None]:
    """Compute attention inside pictures one by one, whatever the device offers."""
    usual = Segments.attend
    Segments.attend = Segments.attend_one_by_one  # type: ignore[method-assign]
    try:
        yield
    finally:
        Segments.attend = usual  # type: ignore[method-assign]


def apart(vit: ViT, pictures: Tensor) -> Tensor:
    """Compute logits of a pack with attention image by image."""
    with image_by_image():
        return vit(pictures)


def timed(step: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return seconds per call, repeated for about this long."""
    step()
    wait(device)
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < seconds:
        step()
        wait(device)
        count += 1
    return (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_step(
    function: Callable[[Tensor], Tensor], vit: ViT, inputs: Tensor, *, trains: bool
) -> Callable[[], object]:
    def step() -> None:
        with torch.autocast(inputs.device.type, torch.bfloat16), torch.set_grad_enabled(trains):
            logits = function(inputs)
        if trains:
            logits.float().square().mean().backward()
            vit.zero_grad(set_to_none=True)

    return step


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    device = choose_device(arguments.device)
    torch.manual_seed(0)
    vit = vitrine.create_model(arguments.model, num_classes=1000)
    assert isinstance(vit, ViT) and vit.head is not None and vit.config.pooling == "class_token"
    torch.nn.init.normal_(vit.head.weight, std=0.02)
    vit.to(device).eval()
    rows: list[dict[str, object]] = []
    budgets = [int(budget) for budget in arguments.budgets.split(",")]
    max_patches = max(budgets)
    for batch in map(int, arguments.batches.split(",")):
        shapes = shapes_of(arguments.photos, batch)
        native = native_batch(shapes, vit, budgets, device)
        share = float(sum(down * across for down, across in grids_of(vit, native))) / (batch * max_patches)
        side = round(max_patches**0.5) * vit.config.patch_size[0]
        squares = torch.randn(batch, 3, side, side, device=device)
        pad = functools.partial(padded, vit, max_patches=max_patches)
        differences = check_against_single(vit, native)
        ways = {
            "packed": (vit, native), "apart": (functools.partial(apart, vit), native), "padded": (pad, native),
            "squares": (vit, squares),
        }  # fmt: skip
        for kind in arguments.passes.split(","):
            steps = {
                way: make_step(function, vit, inputs, trains=kind == "training")
                for way, (function, inputs) in ways.items()
            }
            seconds: dict[str, list[float]] = {way: [] for way in steps}
            for _ in range(arguments.rounds):
                for way, step in steps.items():
                    seconds[way].append(timed(step, device, arguments.seconds))
            rates = {way: batch / statistics.median(times) for way, times in seconds.items()}
            gib = {way: memory_of(step, device) for way, step in steps.items()}
            rows.append(
                {
                    "pass": kind,
                    "batch": batch,
                    "patches_used": share,
                    "differences": differences,
                    "gib": gib,
                    **rates,
                }
            )
    return rows


def memory_of(step: Callable[[], object], device: torch.device) -> float | None:
    """Return the most memory in GiB that a step has allocated; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return torch.cuda.max_memory_allocated(device) / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--budgets", default="256", help="most patches of a photo; several take turns")
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--passes", default="inference,training")
    parser.add_argument("--photos", type=Path, help="folder whose photos give the shapes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per way and round")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    config = vitrine.create_model(arguments.model, num_classes=None).config
    print(f"{arguments.model} on {device}: {packed_attention(1, config, device)}; torch {torch.__version__}")
    rows = measure(arguments)
    print(
        f"{'pass':10} {'batch':>5} " + " ".join(f"{way:>9}" for way in WAYS) + "  packed/padded  patches used"
    )
    for row in rows:
        rates = {way: float(row[way]) for way in WAYS}  # type: ignore[arg-type]
        print(
            f"{row['pass']:10} {row['batch']:5} "
            + " ".join(f"{rate:9,.1f}" for rate in rates.values())
            + f"  {rates['packed'] / rates['padded']:13.2f}  {row['patches_used']:.0%}"
        )
    worst = {name: max(row["differences"][name] for row in rows) for name in ("logits", "gradients")}  # type: ignore[index]
    print(
        "Packed against alone, of the largest: "
        + ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
