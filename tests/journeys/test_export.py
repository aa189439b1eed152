"""`vitrine export` as a user meets it."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from journeys.commandline import assert_refused, inside
from pictures import class_folders
from unit.exporting.made import CLASSES, loaded

import vitrine as library
from vitrine.checkpoints import save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    model = loaded("class token")
    return save(model, tmp_path / "mine")


def test_onnx_is_proven_on_the_given_images_and_carries_all_that_it_needs(
    model: Path, tmp_path: Path
) -> None:
    photos = class_folders(tmp_path / "photos", classes=CLASSES[:3], each=2)
    out = tmp_path / "out"
    done = inside(
        "export", model, "--to", "onnx", "--out", out, "--images", photos, "--int8", "--fp16", "--data", photos,
        "--allow-loss", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["images"] == "given"
    assert [check["precision"] for check in result["proof"]] == ["fp32", "fp16", "int8"]
    for check in result["proof"]:
        assert check["num_images"] == 6 and check["batches"] == [1, 2, 5] and check["top1"] is not None
    assert result["proof"][0]["largest"] < 1e-5
    assert [row["precision"] for row in result["accuracy"]] == ["fp32", "fp16", "int8"]
    assert result["accuracy"][0]["cost"] == 0
    assert {(t["engine"].split()[0], t["batch_size"]) for t in result["timings"]} >= {
        ("torch", 1), ("torch", 8), ("onnxruntime", 1), ("onnxruntime", 8),
    }  # fmt: skip
    assert set(result["sizes"]) == {"torch", "model.onnx", "model.fp16.onnx", "model.int8.onnx"}
    assert json.loads((out / "classes.json").read_text()) == list(CLASSES)
    assert json.loads((out / "preprocess.json").read_text()) == loaded("class token").preprocess.to_json()
    card = (out / "README.md").read_text()
    assert "dög" in card and "the same for 100.0 %" in card and "points lost" in card
    assert str(tmp_path) not in card

    # What a user without Vitrine does with it.
    session = onnxruntime.InferenceSession(out / "model.onnx")
    photo = next((photos / "ant").iterdir())
    pixels = loaded("class token").preprocess(photo.read_bytes())[None].numpy()
    logits, embedding = session.run(None, {"pixels": pixels})
    assert logits.shape == (1, 5) and embedding.shape == (1, 32)
    expected = loaded("class token").model(loaded("class token").preprocess(photo.read_bytes())[None])
    np.testing.assert_allclose(logits, expected.detach().numpy(), rtol=0, atol=1e-5)


def test_without_images_generated_ones_are_taken_and_it_says_what_is_next(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "hf"
    done = inside("export", model, "--to", "hf", "--out", out, "--no-speed")
    assert done.returncode == 0, done.stderr
    for words in (
        "Proof on generated images",
        "transformers",
        ": agrees",
        "Size: torch",
        f"Wrote {out}",
        "Next: ",
    ):
        assert words in done.stdout, words
    assert "from_pretrained" in (out / "README.md").read_text()
    assert library.load(out).classes == CLASSES


def test_an_export_is_not_written_over_nor_into_the_images(model: Path, tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", each=1)
    options = ("--to", "npz", "--no-speed")
    assert inside("export", model, "--out", tmp_path / "a", *options).returncode == 0
    assert_refused(inside("export", model, "--out", tmp_path / "a", *options), "already holds", "--overwrite")
    assert inside("export", model, "--out", tmp_path / "a", "--overwrite", *options).returncode == 0
    copy = tmp_path / "b" / "model.int8.onnx"  # of another model
    copy.parent.mkdir()
    copy.write_bytes(b"old")
    onnx = ("export", model, "--to", "onnx", "--no-speed", "--out", copy.parent)
    assert_refused(inside(*onnx), "already holds model.int8.onnx", "--overwrite")
    assert copy.exists()
    assert inside(*onnx, "--overwrite").returncode == 0
    assert not copy.exists()
    inner = ("export", model, "--out", photos / "cat", "--images", photos)
    assert_refused(inside(*inner, *options), "where nothing is ever written")


def test_what_a_target_cannot_hold_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = save(loaded("average pooling"), tmp_path / "mine")
    done = inside("export", model, "--to", "hf", "--out", tmp_path / "out")
    assert_refused(done, "cannot hold average pooling")
    assert not (tmp_path / "out").exists()
    assert_refused(inside("export", model, "--to", "onx"), "onnx")
    missing = inside("export", model, "--images", tmp_path / "none", "--out", tmp_path / "out")
    assert_refused(missing, "no such folder")
    assert not (tmp_path / "out").exists()
