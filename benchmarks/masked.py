"""Time the encoder of a masked autoencoder by the share of patches it sees, interleaved in one run.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/masked.py --model ViT-S/16
    PYTHONPATH=src python benchmarks/masked.py --device cuda --compile --model ViT-B/16 --batch-size 256 --only step

Forward and backward pass of the encoder alone (assembling, blocks, norm) and of the whole step with its decoder,
next to masked patch prediction, whose encoder sees every patch, and to a classifier's step. On CUDA in bf16 with our
kernels, as in training. Prints the best of several rounds; every round runs
every case once, so that other load on the machine slows all of them alike.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from train_step import synchronize

from vitrine.models import ViT, create_model
from vitrine.models.kernels import use_kernels
from vitrine.objectives.masked_autoencoder import AutoencoderObjective, MaskedAutoencoder, num_visible
from vitrine.objectives.masked_patches import MaskedPatches, MaskedPatchesObjective
from vitrine.objectives.patch_targets import patch_targets

Case = Callable[[], None]
SHARES_SEEN = (1.0, 0.5, 0.25)
# Rounds that compile, and on CUDA choose kernels and fill the allocator.
WARM_UPS = {"cpu": 1, "cuda": 3}


def encoder_pass(vit: ViT, images: torch.Tensor, *, seen: float) -> Case:
    """Run the encoder forward and backward, with all patches or a fraction of them."""
    hidden = 1 - seen

    def run() -> None:
        patches, grid = vit.embed_patches(images)
        tokens = vit.assemble(patches, grid)
        if hidden:
            S, N = vit.num_leading_tokens, patches.shape[1]
            tokens = tokens[:, : S + num_visible(N, hidden=hidden)]  # any choice costs the same
        vit.encode(tokens, grid).sum().backward()

    return run


def step_of(module: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor, *, compiles: bool) -> Case:
    """Compute loss and gradients as training does."""
    network = torch.compile(module) if compiles else module

    def run() -> None:
        losses, _ = network(images, targets)
        losses.mean().backward()

    return run


def plain_step(vit: torch.nn.Module, images: torch.Tensor, *, compiles: bool) -> Case:
    """Compute loss and gradients of a classifier."""
    network = torch.compile(vit) if compiles else vit
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)

    def run() -> None:
        torch.nn.functional.cross_entropy(network(images), labels).backward()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--size", type=int, default=224, help="image size in pixels")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decoder-width", type=int, default=128)
    parser.add_argument("--decoder-depth", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="compile the steps")
    parser.add_argument("--only", default="", help="cases whose names begin with this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = compared(cases_of(options), options)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


def cases_of(options: argparse.Namespace) -> dict[str, Case]:
    device = torch.device(options.device)
    vit, classifier = (
        create_model(options.model, num_classes=classes, image_size=options.size).to(device)
        for classes in (None, 1000)
    )
    assert isinstance(vit, ViT)
    for model in (vit, classifier):
        use_kernels(model, device=device, precision="bf16" if options.device == "cuda" else "fp32")
    size = vit.config.image_size
    pixels = torch.randint(0, 256, (options.batch_size, 3, *size), device=device).float()
    images = pixels / 127.5 - 1
    decoder = AutoencoderObjective(
        decoder_width=options.decoder_width, decoder_depth=options.decoder_depth, decoder_heads=4
    )
    cases = {f"encoder, {seen:.0%} seen": encoder_pass(vit, images, seen=seen) for seen in SHARES_SEEN}
    cases["step, masked patches"] = step_of(
        MaskedPatches(vit, MaskedPatchesObjective()).to(device),
        images,
        patch_targets(pixels, vit.config.token_stride, target="mean-color"),
        compiles=options.compile,
    )
    cases["step, autoencoder"] = step_of(
        MaskedAutoencoder(vit, decoder).to(device),
        images,
        patch_targets(pixels, vit.config.token_stride, target="pixels"),
        compiles=options.compile,
    )
    cases["step, classifier"] = plain_step(classifier, images, compiles=options.compile)
    return {name: case for name, case in cases.items() if name.startswith(options.only)}


def compared(cases: dict[str, Case], options: argparse.Namespace) -> list[dict[str, object]]:
    """Time all cases in turns; each row has its ratio to the classifier's step."""
    best = dict.fromkeys(cases, float("inf"))
    for number in range(options.rounds + WARM_UPS[options.device]):
        for name, case in cases.items():
            synchronize()
            began = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16, enabled=options.device == "cuda"):
                case()
            synchronize()
            if number >= WARM_UPS[options.device]:
                best[name] = min(best[name], time.perf_counter() - began)
    whole = best["step, classifier"]
    rows: list[dict[str, object]] = [
        {"case": name, "milliseconds": round(1e3 * seconds, 2), "of_plain_step": round(seconds / whole, 3)}
        for name, seconds in best.items()
    ]
    for row in rows:
        print(json.dumps(row))
    return rows


if __name__ == "__main__":
    main()
