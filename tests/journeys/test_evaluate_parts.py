"""Evaluation of what `predict` wrote: the figures of `evaluate` on the same pictures, from answers alone."""

import json
from pathlib import Path

import pytest
import torch
from pictures import photo, save

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, DataError

from .commandline import inside, refusal

fsspec = pytest.importorskip("fsspec")
parquet = pytest.importorskip("pyarrow.parquet")
CPU = {"device": "cpu", "workers": 0}
CLASSES = ("ant", "bee", "cow", "dog", "eel", "fox", "gnu")


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Seven classes of six pictures as shards, one more that cannot be read, and a model that guesses."""
    desk = tmp_path_factory.mktemp("desk")
    for number in range(42):
        save(desk / "photos" / CLASSES[number % 7] / f"{number:02d}.png", photo(number, 20, 18))
    (desk / "photos" / "cow" / "bad.jpg").write_text("no picture")
    torch.manual_seed(1)
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, patch_size=8, num_classes=7
    )
    torch.nn.init.normal_(model.head.weight)
    vitrine.save(model, desk / "model", preprocess=Preprocess(size=(16, 16)), classes=CLASSES)
    vitrine.shard(desk / "photos", desk / "shards")
    vitrine.predict(desk / "model", desk / "shards", out=desk / "parts", part_size=16, batch_size=8, **CPU)
    return desk


def test_predictions_in_parts_have_the_figures_of_an_evaluation_of_the_model(desk):
    whole = vitrine.evaluate(desk / "model", desk / "shards", out=desk / "whole", batch_size=8, **CPU)
    counted = vitrine.evaluate(desk / "parts", out=desk / "counted")
    assert (counted.num_images, counted.num_unreadable, counted.num_classes) == (42, 1, 7)
    assert 0 < counted.top1.value < counted.top5.value < 1
    for name in ("top1", "top5"):
        ours, theirs = getattr(counted, name), getattr(whole, name)
        assert ours.value == pytest.approx(theirs.value)
        # Wilson's interval and the bootstrap's, of 42 pictures: ends differ by at most two pictures.
        assert ours.low == pytest.approx(theirs.low, abs=2.1 / 42)
        assert ours.high == pytest.approx(theirs.high, abs=2.1 / 42)
    for name in ("macro_f1", "ece", "mean_confidence"):
        assert getattr(counted, name) == pytest.approx(getattr(whole, name), abs=1e-6)
    assert (desk / "counted" / "confusion.csv").read_text() == (desk / "whole" / "confusion.csv").read_text()
    metrics = json.loads((desk / "counted" / "metrics.json").read_text())
    assert len(metrics["per_class"]) == 7 and sum(one["num_images"] for one in metrics["bins"]) == 42


def test_the_command_line_evaluates_parts_here_and_at_an_address(desk, monkeypatch):
    monkeypatch.chdir(desk)
    here = inside("evaluate", "parts", "--out", "printed")
    assert here.returncode == 0 and "42 images, 7 classes\nTop-1 " in here.stdout, here.stderr
    fsspec.filesystem("memory").put(str(desk / "parts"), "/answers", recursive=True)
    there = vitrine.evaluate("memory://answers", out="there")
    assert there.top1 == vitrine.evaluate("parts", out="again").top1


def test_parts_that_cannot_be_evaluated_are_refused(desk, tmp_path):
    vitrine.predict(desk / "model", desk / "photos", out=tmp_path / "unlabelled", part_size=16, **CPU)
    with refusal(DataError, "no column label:", advice=["shard"]):
        vitrine.evaluate(tmp_path / "unlabelled", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "unlabelled" / "_job" / "part-00001.json").unlink()
    with refusal(ConfigError, "1 of its 3 parts"):
        vitrine.evaluate(tmp_path / "unlabelled", out=tmp_path / "out2")
