"""Measure a model of the box for its card, beside its teacher, by one command.

    python weights/card.py box:ti MIRRORS --out ti.json
    python weights/card.py DINOV2 MIRRORS --out teacher.json --size 196
    python weights/card.py box:ti MIRRORS --out trial.json --test 200 --seeds 2 --only pets,speed

MIRRORS holds bare clones as for `gather.py`. Measures 1, 5, 10 and 25 photographs per class in closed form on Pets,
CUB, Cars, CIFAR-10 and CIFAR-100; top-1, top-5 and calibration on ImageNet's validation photographs, and top-1 after
these were shrunk; photographs per second. A model of other classes is measured on the classes whose names both have.
Every figure is written as soon as it is known, and what the file has already is not measured again. `ship.py` puts
the figures into the card.
"""

import argparse
import io
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gather import PETS_LIST, contents, git, mirror_of, paths_in
from PIL import Image
from sources import class_names

import vitrine
from vitrine.evaluation.calibration import calibration_error
from vitrine.evaluation.fewshot import fewshot_accuracy

CUB, CARS = "cyizhuo/CUB-200-2011-dataset", "cyizhuo/Stanford-Cars-dataset"
CIFAR_10, CIFAR_100 = "cyizhuo/CIFAR-10-dataset", "cyizhuo/CIFAR-100-dataset"
PETS = "ml4py/dataset-iiit-pet"
IMAGENET = "ndb796/Small-ImageNet-Validation-Dataset-1000-Classes"
FEWSHOT = {"pets": PETS, "cub": CUB, "cars": CARS, "cifar10": CIFAR_10, "cifar100": CIFAR_100}
SHRUNK = (64, 96, 128, 192)
Rows = list[tuple[str, int]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", type=int, default=10_000, help="test photographs per set, spread over all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--shots", default="1,5,10,25", help="photographs per class, with commas between them"
    )
    parser.add_argument("--only", help="names of figures, with commas between them")
    options = parser.parse_args()
    predictor = vitrine.Predictor.open(options.model, device=options.device, image_size=options.size)
    figures: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only.split(",") if options.only else [*FEWSHOT, "imagenet", "shrunk", "speed"]:
        if name in figures:
            continue
        figures[name] = measured(name, predictor, options)
        options.out.write_text(json.dumps(figures, indent=2) + "\n")
        print(name, json.dumps(figures[name]), flush=True)


def measured(name: str, predictor: vitrine.Predictor, options: argparse.Namespace) -> dict[str, Any]:
    """Return one figure with the number of photographs behind it."""
    if name in FEWSHOT:
        return few_shot(predictor, clone(options.mirrors, FEWSHOT[name]), options)
    mirror = clone(options.mirrors, IMAGENET)
    rows = [(one, int(Path(path).parent.name)) for path, one in paths_in(mirror, "img_val_subset/")]
    rows = thinned(rows, options.test)
    if name == "imagenet":
        return own_classes(predictor, mirror, rows, shrunk=None)
    if name == "shrunk":
        return {str(side): own_classes(predictor, mirror, rows, shrunk=side) for side in SHRUNK}
    if name == "speed":
        return speed(predictor, [data for data in contents(mirror, [one for one, _ in rows[:64]]) if data])
    raise SystemExit(f"no figure {name}; there are {', '.join([*FEWSHOT, 'imagenet', 'shrunk', 'speed'])}")


def clone(mirrors: Path, repository: str) -> Path:
    """Return the Git directory of a clone, or end with a sentence."""
    mirror = mirror_of(mirrors, repository)
    if mirror is None:
        raise SystemExit(f"no clone of {repository} in {mirrors}")
    return mirror


def few_shot(predictor: vitrine.Predictor, mirror: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return accuracy per number of photographs per class, in closed form; training photographs are the published."""
    wanted = [int(number) for number in options.shots.split(",")]
    train, test = splits(mirror)
    by_class = defaultdict(list)
    for one, label in train:
        by_class[label].append(one)
    # Every draw takes its photographs from twice as many per class, at equal distances.
    train = [
        (one, label)
        for label, objects in by_class.items()
        for one, _ in thinned([(one, label) for one in objects], 2 * max(wanted))
    ]
    test = thinned(test, options.test)
    features = [embedded(predictor, mirror, rows) for rows in (train, test)]
    least = int(np.bincount(features[0][1]).min())
    shots = [number for number in wanted if number <= least]
    scores = fewshot_accuracy(*features[0], *features[1], shots=shots, seeds=options.seeds)
    return {
        "test": len(features[1][1]),
        "seeds": options.seeds,
        **{f"{number}-shot": round(scores.score(number).mean, 4) for number in shots},
    }


def splits(mirror: Path) -> tuple[Rows, Rows]:
    """Return training and test photographs with their classes, as published."""
    rows = paths_in(mirror, "")
    objects = {path: one for path, one in rows if path.startswith(("train/", "test/", "images/"))}
    if any(path == PETS_LIST for path in names_in(mirror)):
        lists = [
            git(mirror, "show", f"HEAD:annotations/{name}.txt").decode() for name in ("trainval", "test")
        ]
        train, test = (
            [
                (objects[f"images/{line.split()[0]}.jpg"], int(line.split()[1]) - 1)
                for line in text.splitlines()
            ]
            for text in lists
        )
        return train, test
    classes = {name: number for number, name in enumerate(sorted({path.split("/")[1] for path in objects}))}
    of = {
        part: [(one, classes[path.split("/")[1]]) for path, one in objects.items() if path.startswith(part)]
        for part in ("train/", "test/")
    }
    return of["train/"], of["test/"]


def names_in(mirror: Path) -> list[str]:
    """Return all paths of a clone."""
    return git(mirror, "ls-tree", "-r", "-z", "--name-only", "HEAD").decode("utf-8", "replace").split("\0")


def thinned(rows: Rows, most: int) -> Rows:
    """Return at most so many rows, at equal distances."""
    return rows if len(rows) <= most else [rows[at] for at in np.linspace(0, len(rows) - 1, most).astype(int)]


def embedded(predictor: vitrine.Predictor, mirror: Path, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of all readable photographs."""
    data = list(contents(mirror, [one for one, _ in rows]))
    kept = [index for index, one in enumerate(data) if one is not None]
    outputs = predictor.embed([data[index] for index in kept])
    labels = np.array([rows[index][1] for index in kept])
    return outputs.rows.numpy()[outputs.readable], labels[outputs.readable]


def own_classes(
    predictor: vitrine.Predictor, mirror: Path, rows: Rows, *, shrunk: int | None
) -> dict[str, Any]:
    """Return top-1, top-5 and calibration error of the model's own head on ImageNet's photographs."""
    number_of = {name: number for number, name in enumerate(predictor.classes)}
    known = {label: number_of[name] for label, name in enumerate(class_names()) if name in number_of}
    rows = [(one, known[label]) for one, label in rows if label in known]
    if not rows:
        return {"photographs": 0}
    data = contents(mirror, [one for one, _ in rows])
    photographs = [one if shrunk is None or one is None else smaller(one, shrunk) for one in data]
    kept = [index for index, one in enumerate(photographs) if one is not None]
    outputs = predictor.logits([photographs[index] for index in kept])
    readable = torch.from_numpy(outputs.readable)
    labels = torch.tensor([rows[index][1] for index in kept])[readable]
    logits = outputs.rows[readable].float()
    ranked = logits.topk(5).indices == labels[:, None]
    return {
        "photographs": len(labels),
        "classes": len(known),
        "top_1": round(float(ranked[:, 0].float().mean()), 4),
        "top_5": round(float(ranked.any(1).float().mean()), 4),
        "calibration_error": rounded(calibration_error(logits, labels)),
    }


def rounded(value: float | None) -> float | None:
    """Return four digits of a figure."""
    return None if value is None else round(value, 4)


def smaller(data: bytes, side: int) -> bytes:
    """Shrink a photograph until its shorter side has so many pixels."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
    image.thumbnail((side * max(image.size) // min(image.size),) * 2)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def speed(predictor: vitrine.Predictor, photographs: list[bytes]) -> dict[str, Any]:
    """Return the time of one photograph and photographs per second, decoding included."""
    predictor.logits(photographs[:1]) if predictor.num_classes else predictor.embed(photographs[:1])
    begin = time.perf_counter()
    for one in photographs[:8]:
        predictor.embed([one])
    single = (time.perf_counter() - begin) / 8
    begin = time.perf_counter()
    predictor.embed(photographs)
    many = len(photographs) / (time.perf_counter() - begin)
    return {
        "device": str(predictor.device), "threads": torch.get_num_threads(),
        "ms_per_photograph": round(1e3 * single, 1), "photographs_per_second": round(many, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
