"""Packs of equal subsets: what is packed comes back, the same number of every class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.sources.opening import open_splits

ROOT = Path(__file__).parents[3]


def test_a_pack_holds_equally_many_images_of_every_class_and_vitrine_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from parts.subsets import pack, unpack

    random = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 5)):
        for name in ("a cat", "dog"):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / split / name / f"{number}.png")
    pack(str(tmp_path / "set"), tmp_path / "set.tar", num_train=20, num_test=8)
    unpack(tmp_path / "set.tar", tmp_path / "back")
    splits = open_splits(str(tmp_path / "back"), val_fraction=0)
    assert tuple(splits["train"].classes) == ("a_cat", "dog")
    assert [list(splits[name].counts()) for name in ("train", "test")] == [[10, 10], [4, 4]]
    stored = {
        np.asarray(Image.open(file)).tobytes(): file.parent.name.replace(" ", "_")
        for file in (tmp_path / "set" / "train").rglob("*.png")
    }
    train = splits["train"]
    for row in range(20):
        example = train.read(row)
        assert stored[np.asarray(example.data).tobytes()] == train.classes[example.label]
