"""Measure what the bundled model gains: fine-tuned on a few real photos per class, next to the same ViT from scratch.

    python benchmarks/box_transfer.py PETS --shots 20 --epochs 10 --out box_transfer.json

PETS is Oxford-IIIT Pets as published (images/, annotations/). SHOTS images per class are drawn from the official
trainval list by --seed and linked into class folders. Every arm sees exactly these, for the same number of steps,
on this machine, and is evaluated on the whole official test list. Arms: `box` (vitrine finetune), `features`
(VitClassifier on frozen features, no training), `scratch` (vitrine pretrain, ViT-Ti/16, the recipe for small data),
`scratch-same` (fresh weights, the recipe of `box`). Reports the seconds of training alone and of the whole command.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import vitrine
from vitrine.evaluation.metrics import wilson_interval

FRESH = "ViT-Ti/16"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pets", type=Path)
    parser.add_argument("--arms", default="box,features,scratch")
    parser.add_argument("--shots", type=int, default=20)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", type=int, default=None, help="evaluate on this many test images only")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()

    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        train = linked(work / "train", options.pets, "trainval.txt", each=options.shots, seed=options.seed)
        test = linked(work / "test", options.pets, "test.txt", most=options.test, seed=options.seed)
        for arm in options.arms.split(","):
            results[arm] = ARMS[arm](train, test, work / arm, options)
            print(arm, json.dumps(results[arm]), flush=True)
            if options.out is not None:
                options.out.write_text(
                    json.dumps({"options": vars(options), "arms": results}, indent=2, default=str)
                )


def linked(
    folder: Path, pets: Path, listing: str, *, each: int | None = None, most: int | None = None, seed: int
) -> Path:
    """Link the images of a list into class folders: `each` per class, or `most` in total."""
    by_class: dict[str, list[str]] = {}
    for line in (pets / "annotations" / listing).read_text().splitlines():
        name = line.split()[0]
        by_class.setdefault(name.rsplit("_", 1)[0], []).append(name)
    generator = random.Random(seed)
    for label, names in sorted(by_class.items()):
        share = len(names) if each is None else each
        if most is not None:
            share = max(1, most // len(by_class))
        (folder / label).mkdir(parents=True)
        for name in generator.sample(sorted(names), min(share, len(names))):
            (folder / label / f"{name}.jpg").symlink_to((pets / "images" / f"{name}.jpg").absolute())
    return folder


def trained(verb: Any, train: Path, test: Path, run: Path, options: argparse.Namespace, **more: Any) -> Any:
    began = time.monotonic()
    result = verb(
        str(train), out=run, epochs=options.epochs, batch_size=options.batch_size, lr=options.lr,
        size=options.size, seed=options.seed, hold_out=0.0, **more,
    )  # fmt: skip
    whole = time.monotonic() - began
    scored = vitrine.evaluate(str(run), str(test), out=run / "test")
    images = result.steps * options.batch_size
    return {
        "top1": round(100 * scored.top1.value, 2),
        "interval": [round(100 * scored.top1.low, 2), round(100 * scored.top1.high, 2)],
        "test_images": scored.num_images,
        "steps": result.steps,
        "training_seconds": round(images / result.images_per_second, 1),
        "seconds": round(whole, 1),
    }


def on_features(train: Path, test: Path, run: Path, options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    X, y = paths_of(train)
    classifier = vitrine.VitClassifier(image_size=options.size).fit(X, y)
    seconds = time.monotonic() - began
    X, y = paths_of(test)
    accuracy = classifier.score(X, y)
    return {
        "top1": round(100 * accuracy, 2),
        "interval": [round(100 * end, 2) for end in wilson_interval(accuracy, len(X))],
        "test_images": len(X),
        "l2": classifier.closed_form_.l2,
        "left_out": round(100 * classifier.closed_form_.left_out_accuracy, 2),
        "seconds": round(seconds, 1),
    }


def paths_of(folder: Path) -> tuple[list[Path], list[str]]:
    paths = sorted(folder.glob("*/*.jpg"))
    return paths, [path.parent.name for path in paths]


ARMS: dict[str, Any] = {
    "box": lambda *sets: trained(vitrine.finetune, *sets),
    "scratch-same": lambda *sets: trained(vitrine.finetune, *sets, model=FRESH),
    "scratch": lambda *sets: trained(vitrine.pretrain, *sets, model=FRESH, recipe="from-scratch"),
    "features": on_features,
}

if __name__ == "__main__":
    main()
