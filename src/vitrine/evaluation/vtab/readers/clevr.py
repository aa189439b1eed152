"""CLEVR v1.0: `images/train/*.png` and `scenes/CLEVR_train_scenes.json`; `val` is VTAB's test."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.file_list import FileList
from vitrine.data.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.vtab.labels import clevr_count, clevr_distance
from vitrine.evaluation.vtab.tasks import Task

_PARTS = {"train": "train", "test": "val"}  # CLEVR's own test has no scenes


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the scenes of train and val."""
    root = next((path for path in (folder, folder / "CLEVR_v1.0") if (path / "scenes").is_dir()), None)
    if root is None:
        return None
    label = clevr_count if task.name == "Clevr-Count" else clevr_distance
    splits: dict[str, Source] = {}
    for split, part in _PARTS.items():
        file = root / "scenes" / f"CLEVR_{part}_scenes.json"
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} reads its labels from there")
        paths, labels = [], []
        for scene in _scenes(file):
            paths.append(f"images/{part}/{scene['image_filename']}")
            labels.append(label(scene["objects"]))
        classes = [str(number) for number in range(task.num_classes)]
        splits[split] = FileList(root, paths, labels=np.array(labels, dtype=np.int32), classes=classes)
    return splits


def _scenes(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the scenes one by one: all of them at once as Python objects would take gigabytes."""
    text = file.read_text(encoding="utf-8")
    decoder = json.JSONDecoder()
    try:
        position = text.index("[", text.index('"scenes"')) + 1
        while True:
            while text[position] in ", \r\n\t":
                position += 1
            if text[position] == "]":
                return
            scene, position = decoder.raw_decode(text, position)
            yield scene
    except (ValueError, IndexError) as error:
        raise DataError(f"{file} is not a complete file of CLEVR scenes: {error}") from error
