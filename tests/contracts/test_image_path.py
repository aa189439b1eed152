"""The path of one image from the disk to the training metric, measured: ARCHITECTURE.md lists its files."""

import dataclasses
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

import vitrine
from vitrine.training.loop import Run

ROOT = Path(__file__).parents[2]
SOURCE = Path(vitrine.__file__).parent
MOST_FILES = 16
Seen = dict[str, Counter[str]]


def values_in(value: object, depth: int = 4) -> Iterator[str]:
    """Yield a short digest of each array, file or number in a value."""
    if isinstance(value, torch.Tensor):
        value = value.detach().float().numpy()
    if isinstance(value, np.ndarray):
        value = value.tobytes()
    if isinstance(value, bytes):
        yield hashlib.blake2b(value, digest_size=8).hexdigest()
    elif isinstance(value, dict) and depth:
        for part in value.values():
            yield from values_in(part, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for part in value:
            yield from values_in(part, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and depth:
        for field in dataclasses.fields(value):
            yield from values_in(getattr(value, field.name, None), depth - 1)


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Record by file what every function of the package takes and returns inside the block."""

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(SOURCE)):
            return
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        taken = [frame.f_locals.get(name) for name in code.co_varnames[:count] if name != "self"]
        # What a function writes into, it returns: before that, the memory is anything.
        argument = taken if event == "call" else [argument, *taken]
        name = str(Path(code.co_filename).relative_to(SOURCE))
        seen.setdefault(name, Counter()).update(values_in(argument))

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


def one_step(folder: Path, *, seed: int, suffix: str, settings: list[str]) -> Seen:
    """Take one training step on a folder of random pictures; return what passed each file."""
    random = np.random.default_rng(seed)
    for number in range(8):
        place = folder / "data" / f"class {number % 2}" / f"{number}{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(place)
    seen: Seen = {}
    go, log = Run.take_all_steps, Run.log

    def take(run: Run, *arguments: Any) -> None:
        with watched(seen):
            go(run, *arguments)

    def stop_watching(run: Run, *arguments: Any, **options: Any) -> str:
        text = log(run, *arguments, **options)
        sys.setprofile(None)
        return text

    with mock.patch.object(Run, "take_all_steps", take), mock.patch.object(Run, "log", stop_watching):
        vitrine.pretrain(
            folder / "data", recipe="demo", out=folder / "run", steps=1, batch_size=4, log_every=1, workers=0,
            device="cpu", hold_out=0.25,
            set=["model_options.depth=1", "model_options.width=32", "model_options.mlp_width=32", *settings],
        )  # fmt: skip
    return seen


def files_of_the_image(folder: Path, *, suffix: str = ".jpg", settings: list[str]) -> set[str]:
    """Return the files that handle the image or its loss: those where something differs if only the pictures do."""
    one = one_step(folder / "one", seed=0, suffix=suffix, settings=settings)
    other = one_step(folder / "other", seed=1, suffix=suffix, settings=settings)
    return {name for name in one | other if one.get(name) != other.get(name)}


STRONG = ["views.crop=inception", "model_options.dropout=0.1", "augment.mixup=0.2"]


def test_an_image_passes_the_files_that_the_architecture_lists(tmp_path: Path) -> None:
    listed = re.findall(
        r"^\| `([a-z_]+/[a-z_/]+\.py)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE
    )
    measured = files_of_the_image(tmp_path, settings=STRONG)
    assert measured == set(listed)
    assert len(listed) <= MOST_FILES


@pytest.mark.parametrize(
    ("suffix", "settings", "more"),
    [
        (".png", STRONG, "data/decoding/image_file.py"),
        (".jpg", [*STRONG, "augment.num_operations=2"], "data/augmenting/randaugment.py"),
    ],
)
def test_pillow_and_randaugment_add_one_file_each(
    tmp_path: Path, suffix: str, settings: list[str], more: str
) -> None:
    plain = files_of_the_image(tmp_path / "plain", settings=STRONG)
    assert files_of_the_image(tmp_path / "more", suffix=suffix, settings=settings) - plain == {more}
