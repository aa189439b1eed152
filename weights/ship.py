"""Put trained weights into the package as the bundled model: half precision, class names and a model card.

    python weights/ship.py WEIGHTS --classes words.txt --figures figures.json [--out FOLDER]
    python weights/ship.py WEIGHTS --figures figures.json --out FOLDER --release box-s.safetensors

WEIGHTS is anything that `vitrine.load` reads; words.txt has one class name per line, in the order of the logits
(not needed if the weights have names already); figures.json is a list of {"what", "figure", "command"}. Prints how
much half precision changes the logits, and refuses what `tests/contracts/test_box.py` would. With --release it also
writes one file with its own record and prints its entry for the registry in `checkpoints/bundled.py`.
"""

import argparse
import json
from pathlib import Path

import torch

import vitrine
from vitrine.checkpoints import Loaded
from vitrine.checkpoints.locating import BOX_FOLDER
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.runtime.files import sha256_of

# Of the tiny model and of the small one; the wheel stays below 60 MB with both.
MOST_BYTES = {192: 12_500_000, 384: 45_500_000}
CARD = """---
library_name: vitrine
license: apache-2.0
tags: [image-classification, image-feature-extraction, vision-transformer]
---

# The bundled model

A ViT-Ti/16 of the paper (arXiv:2010.11929; width 192, 12 layers, 3 heads, class token, {params:,} parameters) at
{size} pixels, stored in half precision and loaded in single precision. It is the default model of every Vitrine
command: a good start for fine-tuning, features for few labels and for search, and {classes} classes of its own, so
that `vitrine predict photo.jpg` works at once.

## Data

Its features were distilled from DINOv2 ViT-S/14 (arXiv:2304.07193): class token, patch tokens and the distances
between class tokens, on augmented views of 264,903 public images, without their labels: Tiny-ImageNet's training
images (64 pixels), Imagenette, CIFAR-100's training images, CUB-200-2011, Stanford Cars, six images of each
ImageNet class, 18,232 photos of dogs (the Dog API's collection, mostly Stanford Dogs), 24,989 of dogs and cats
(Asirra) and 24,338 of landscapes. Its head was trained on the labels of Tiny-ImageNet's training images and on the
outputs of a linear head that was fitted to the teacher with these labels. Oxford-IIIT Pets and Tiny-ImageNet's
validation images are the test sets: none of their images was used for training, and 57 training images that the
teacher considers near-duplicates (cosine similarity of 0.93 or more) were removed. The unlabelled photos include
dog breeds of Pets.

Training code: `weights/` in the source; 11 minutes on one H200.

## Licence

The weights are Apache-2.0, as are Vitrine and the teacher. The images belong to their owners and were published for
research; none of them is in this package. If you need weights trained on images with commercial terms, train your
own: `vitrine pretrain`.

## Limits

- It is small. Larger models (`vitrine finetune --model ...`) are better at fine distinctions.
- Its classes are those of Tiny-ImageNet: some animals, vehicles, household objects and food. For anything else it
  predicts the nearest of these, sometimes with high confidence. Fine-tune it for your own classes.
- Its data does not cover people as such, documents, text, medical and satellite images, or drawings.
- Images on the web are not representative. The model inherits the balance of places, people and objects of its
  sources, and their biases. Evaluate it on your own photos before you rely on it.

## Figures

{figures}

## Input

{preprocess}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("--classes", type=Path, default=None)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=BOX_FOLDER)
    parser.add_argument("--release", type=Path, help="also write one file, to be published beside a release")
    options = parser.parse_args()

    loaded = vitrine.load(options.weights)
    words = (
        options.classes.read_text(encoding="utf-8").split("\n") if options.classes else loaded.classes or ()
    )
    classes = [word.strip() for word in words if word.strip()]
    if len(set(classes)) != loaded.model.config.num_classes:
        raise SystemExit(f"{len(set(classes))} different words for {loaded.model.config.num_classes} classes")
    images = torch.randn(8, 3, *loaded.preprocess.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = loaded.model(images)
    params = sum(parameter.numel() for parameter in loaded.model.parameters())
    vitrine.save(
        loaded.model.half(),
        options.out,
        preprocess=loaded.preprocess,
        classes=classes,
        recipe={},
        overwrite=True,
    )
    figures = json.loads(options.figures.read_text(encoding="utf-8"))
    (options.out / "README.md").write_text(
        CARD.format(
            params=params,
            size=loaded.preprocess.size[0],
            classes=len(classes),
            figures=table(figures),
            preprocess=described(loaded.preprocess),
        ),
        encoding="utf-8",
    )
    with torch.no_grad():
        after = vitrine.load(options.out).model(images)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(
        f"{options.out}: {size:,} bytes; half precision moves a logit by {(after - before).abs().max():.4f} at most"
    )
    most = MOST_BYTES[loaded.model.config.width]
    if size > most:
        raise SystemExit(f"{size:,} bytes are more than {most:,}")
    if options.release is not None:
        print(release(loaded, options.release, classes=classes))


def release(loaded: Loaded, path: Path, *, classes: list[str]) -> str:
    """Write one file of half-precision weights with its own record; return its entry for the registry."""
    vitrine.save(
        loaded.model.half(), path, preprocess=loaded.preprocess, classes=classes, recipe={}, overwrite=True
    )
    return (
        f'release=Release(url="ADDRESS/{path.name}", sha256="{sha256_of(path)}", '
        f"num_bytes={path.stat().st_size}),"
    )


def table(figures: list[dict[str, str]]) -> str:
    rows = [f"| {row['what']} | {row['figure']} | `{row['command']}` |" for row in figures]
    return "\n".join(["| what | figure | command |", "|---|---|---|", *rows])


def described(preprocess: Preprocess) -> str:
    return (
        f"Rule {preprocess.rule}, crop {preprocess.crop_fraction:g}, {preprocess.interpolation}, mean "
        f"{list(preprocess.mean)}, std {list(preprocess.std)} of pixels from 0 to 1. config.json holds the same."
    )


if __name__ == "__main__":
    main()
