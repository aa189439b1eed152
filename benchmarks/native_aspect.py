"""Pets in closed form on frozen features: photos as squares beside photos at their own aspect ratio.

python benchmarks/native_aspect.py /data/pets --model MODEL --size 224 --max-patches 256 --train 8 --test 8

Draws photos per breed from `images/`, fits the head on some of them (`finetune --fast`) and evaluates on the others,
both ways with as many patches. Prints the accuracies and on how many test photos only one of them is right.
"""

import argparse
import csv
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import vitrine


def drawn(pets: Path, folder: Path, *, train: int, test: int) -> Path:
    """Link photos of every breed into a folder per split and breed."""
    random.seed(0)
    breeds: dict[str, list[Path]] = {}
    for photo in sorted((pets / "images").glob("*.jpg")):
        breeds.setdefault(re.sub(r"_\d+\.jpg", "", photo.name), []).append(photo)
    for breed in sorted(breeds):
        chosen = random.sample(breeds[breed], train + test)
        for split, photos in (("train", chosen[:train]), ("test", chosen[train:])):
            (folder / split / breed).mkdir(parents=True, exist_ok=True)
            for photo in photos:
                (folder / split / breed / photo.name).symlink_to(photo.resolve())
    return folder


def correct(folder: Path) -> dict[str, bool]:
    """Read which test photos were classified correctly."""
    with (folder / "predictions.csv").open(newline="") as file:
        return {row["path"]: row["correct"] == "1" for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pets", type=Path)
    parser.add_argument("--model", default="box")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--max-patches", type=int, default=256)
    parser.add_argument("--train", type=int, default=8)
    parser.add_argument("--test", type=int, default=8)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    shapes: dict[str, dict[str, Any]] = {
        f"{arguments.size} px": {"size": arguments.size},
        f"{arguments.max_patches} patches": {"max_patches": arguments.max_patches},
    }
    rights = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = drawn(arguments.pets, work / "data", train=arguments.train, test=arguments.test)
        for number, (words, shape) in enumerate(shapes.items()):
            options: dict[str, Any] = {"device": arguments.device, "precision": "fp32"}
            run = work / f"run{number}"
            fitted = vitrine.finetune(data, model=arguments.model, fast=True, out=run, **shape, **options)
            vitrine.evaluate(run, data, split="test", out=work / f"evaluation{number}", **options)
            rights.append(correct(work / f"evaluation{number}"))
            share = sum(rights[-1].values()) / len(rights[-1])
            left_out = 0.0 if fitted.accuracy is None else fitted.accuracy
            print(
                f"{words}: {share:.1%} of {len(rights[-1])} test photos, left-out training photos {left_out:.1%}"
            )
    squares, native = rights
    only = [sum(a[photo] and not b[photo] for photo in a) for a, b in ((squares, native), (native, squares))]
    print(f"Only as squares right: {only[0]}; only at their own aspect ratio: {only[1]}")


if __name__ == "__main__":
    main()
