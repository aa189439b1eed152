"""How long to train on a handful of photos, and which weights to keep: a floor on steps, best weights or last ones.

    python benchmarks/small_sets.py pets cifar10 imagenette cub --classes 10 --shots 5 --steps 50,250,500 --draws 2

DATA is a folder with class folders below train/ and test/ (or val/). Of its first classes a few photos are drawn;
`vitrine finetune` runs on them with its defaults but the steps, 0 for `--fast`, and is measured on test pictures: the
weights that it saves, and the last ones, both calibrated on its own held-out photos. Every run is a line of --out, so
that a benchmark that was interrupted continues.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source
from vitrine.evaluation.calibration import calibration_error
from vitrine.evaluation.outputs import run_model
from vitrine.evaluation.temperature import fit_temperature
from vitrine.models import Model
from vitrine.runtime.devices import choose_device
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.saving import newest_state, weights_of

KINDS = ("saved", "last")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--model", default="box")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--steps", default="0,50,250,500")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--test", type=int, default=30, help="test pictures per class")
    parser.add_argument("--size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("small-sets.jsonl"))
    options = parser.parse_args(arguments)
    rows = read(options.out)
    for data in options.data:
        for seed in range(options.draws):
            for steps in map(int, options.steps.split(",")):
                key = {"data": data.name, "seed": seed, "steps": steps, "shots": options.shots}
                if any(key.items() <= row.items() for row in rows):
                    continue
                rows.append(key | measure(data, options, seed=seed, steps=steps))
                with options.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


def measure(data: Path, options: argparse.Namespace, *, seed: int, steps: int) -> dict[str, float]:
    """Fine-tune on one draw and return accuracy and calibration error of the saved and of the last weights."""
    train, test = (
        draw(find(data, names), classes=options.classes, count=count, seed=seed)
        for names, count in ((("train",), options.shots), (("test", "val"), options.test))
    )
    with tempfile.TemporaryDirectory() as temporary:
        photos, run = Path(temporary) / "photos", RunFolder(Path(temporary) / "run")
        link(train, photos / "train")
        link(test, photos / "test")
        vitrine.finetune(
            photos, model=options.model, out=run.path, steps=steps or None, fast=not steps, size=options.size,
            device=options.device, workers=options.workers, seed=seed,
        )  # fmt: skip
        loaded = vitrine.load(run.model)
        # A test folder is no validation split, so finetune holds photos out.
        splits = open_splits(photos, split_file=None if not steps else run.path / "split.csv")
        place = {"preprocess": loaded.preprocess, "options": options}
        result = scores("saved", loaded.model, splits, is_calibrated=True, **place)
        if steps:
            state = newest_state(run.last_checkpoint)
            assert state is not None
            loaded.model.load_state_dict(weights_of(state))
            result |= scores("last", loaded.model, splits, is_calibrated=False, **place)
    return result


def scores(
    kind: str,
    model: Model,
    splits: dict[str, Source],
    *,
    is_calibrated: bool,
    preprocess: Preprocess,
    options: argparse.Namespace,
) -> dict[str, float]:
    """Measure a model on the test pictures; calibrate it on the held-out photos before, if it is not."""

    def logits(source: Source) -> tuple[Tensor, Tensor]:
        device = choose_device(options.device)
        outputs = run_model(
            model.to(device), source, preprocess=preprocess, num_workers=options.workers, device=device
        )
        return outputs.rows.double(), torch.from_numpy(source.labels.astype(np.int64))

    rows, labels = logits(splits["test"])
    if not is_calibrated:
        held_out, targets = logits(splits["val"])
        rows = rows / fit_temperature(held_out, targets)
    right = float((rows.argmax(dim=1) == labels).double().mean())
    return {f"{kind}_accuracy": right, f"{kind}_error": calibration_error(rows.float(), labels) or 0.0}


def find(data: Path, names: Sequence[str]) -> Path:
    """Return the first folder of these names."""
    return next(data / name for name in names if (data / name).is_dir())


def draw(folder: Path, *, classes: int, count: int, seed: int) -> list[Path]:
    """Draw some pictures of each of the first classes."""
    generator = random.Random(seed)
    chosen = []
    for one in sorted(path for path in folder.iterdir() if path.is_dir())[:classes]:
        files = sorted(one.iterdir())
        chosen += generator.sample(files, min(count, len(files)))
    return chosen


def link(files: Sequence[Path], folder: Path) -> None:
    """Link pictures into folders of their classes."""
    for file in files:
        place = folder / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.resolve())


def read(file: Path) -> list[dict[str, Any]]:
    """Read the runs of earlier calls."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Show accuracy and calibration error in per cent, the mean of the draws, by set and steps."""
    lines = [f"{'set':14} {'steps':>6} {'draws':>5}  saved: accuracy, error   last: accuracy, error"]
    for name, steps in sorted({(row["data"], row["steps"]) for row in rows}):
        own = [row for row in rows if (row["data"], row["steps"]) == (name, steps)]
        cells = []
        for kind in KINDS:
            values = [
                100 * np.mean([row.get(f"{kind}_{what}", np.nan) for row in own])
                for what in ("accuracy", "error")
            ]
            cells.append(" ".join(f"{value:11.1f}" for value in values))
        lines.append(f"{name:14} {steps:6} {len(own):5}  {'  '.join(cells)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
