"""Time the encoder of a masked autoencoder by the share of patches it sees, interleaved in one run on the CPU.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/masked.py --model ViT-S/16

Forward and backward pass of the encoder alone (assembling, blocks, norm) and of the whole step with its decoder,
next to masked patch prediction, whose encoder sees every patch. Prints the best of several rounds; every round runs
every case once, so that other load on the machine slows all of them alike.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch

from vitrine.models import ViT, create_model
from vitrine.objectives.masked_autoencoder import AutoencoderObjective, MaskedAutoencoder, num_visible
from vitrine.objectives.masked_patches import MaskedPatches, MaskedPatchesObjective
from vitrine.objectives.patch_targets import patch_targets

Case = Callable[[], None]
SHARES_SEEN = (1.0, 0.5, 0.25)


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


def step_of(module: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> Case:
    """Compute loss and gradients as training does."""

    def run() -> None:
        losses, _ = module(images, targets)
        losses.mean().backward()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--size", type=int, default=224, help="image size in pixels")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decoder-width", type=int, default=128)
    parser.add_argument("--decoder-depth", type=int, default=2)
    options = parser.parse_args()
    vit = create_model(options.model, num_classes=None, image_size=options.size)
    assert isinstance(vit, ViT)
    size = vit.config.image_size
    pixels = torch.randint(0, 256, (options.batch_size, 3, *size)).float()
    images = pixels / 127.5 - 1
    decoder = AutoencoderObjective(
        decoder_width=options.decoder_width, decoder_depth=options.decoder_depth, decoder_heads=4
    )
    cases = {f"encoder, {seen:.0%} seen": encoder_pass(vit, images, seen=seen) for seen in SHARES_SEEN}
    cases["step, masked patches"] = step_of(
        MaskedPatches(vit, MaskedPatchesObjective()),
        images,
        patch_targets(pixels, vit.config.token_stride, target="mean-color"),
    )
    cases["step, autoencoder"] = step_of(
        MaskedAutoencoder(vit, decoder),
        images,
        patch_targets(pixels, vit.config.token_stride, target="pixels"),
    )
    best = dict.fromkeys(cases, float("inf"))
    for number in range(options.rounds + 1):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            if number:  # the first round warms up
                best[name] = min(best[name], time.perf_counter() - began)
    whole = best["encoder, 100% seen"]
    for name, seconds in best.items():
        print(
            json.dumps(
                {"case": name, "milliseconds": round(1e3 * seconds, 1), "ratio": round(seconds / whole, 3)}
            )
        )


if __name__ == "__main__":
    main()
