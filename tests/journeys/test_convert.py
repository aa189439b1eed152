"""`vitrine convert` as a user meets it."""

import json
from pathlib import Path

from journeys.commandline import assert_refused, inside
from PIL import Image
from unit.checkpoints.made import small_vit

from vitrine.checkpoints import save
from vitrine.errors import CheckpointError


def test_convert_reports_each_tensor_and_the_agreement_and_says_what_is_next(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "model.npz", to="npz")
    Image.new("RGB", (50, 40), "teal").save(tmp_path / "photo.png")
    done = inside(
        "convert", tmp_path / "model.npz", tmp_path / "hf", "--to", "hf", "--images", tmp_path / "photo.png"
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "official npz, generation A",
        "vit.encoder.layer.#.attention.attention.query.weight (64, 64) (x2) transposed <- Transformer/encoderblock_#",
        "transposed",
        "bit-identical",
        "Vitrine, read back, given images: largest logit difference 0.00e+00",
        "transformers",
        f"Wrote {tmp_path / 'hf'}",
        "Next: vitrine evaluate",
    ):
        assert words in done.stdout, words


def test_a_model_without_a_head_goes_on_to_what_needs_none(tmp_path: Path) -> None:
    save(small_vit(num_classes=None), tmp_path / "model")
    done = inside("convert", tmp_path / "model", tmp_path / "my model", "--to", "timm", "--no-check")
    assert done.returncode == 0, done.stderr
    assert f"Next: vitrine fewshot '{tmp_path / 'my model'}' ./photos" in done.stdout


def test_convert_speaks_json(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "model")
    done = inside(
        "convert", tmp_path / "model", tmp_path / "c.npz", "--to", "npz", "--generation", "C", "--json"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["num_identical"] == len(result["tensors"])
    assert {line["operation"] for line in result["tensors"]} >= {"transposed", "reshaped", "slot merged"}
    # The same numbers in the same sums; products of one row round by where it lies in memory.
    assert result["parity"][0]["largest"] <= 4e-6


def test_a_refusal_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    save(small_vit(pooling="average"), tmp_path / "model")
    done = inside("convert", tmp_path / "model", tmp_path / "out", "--to", "hf")
    assert_refused(done, "average pooling", error=CheckpointError)
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "model.npz", to="npz")
    done = inside("convert", tmp_path / "model.npy", tmp_path / "out", "--to", "hf")
    assert_refused(done, "did you mean", "model.npz")


def test_a_resampled_table_and_a_new_head_are_named_as_such(tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "model")
    options = ("--to", "npz", "--size", "48", "--num-classes", "3", "--no-check")
    done = inside("convert", tmp_path / "model", tmp_path / "x.npz", *options)
    assert done.returncode == 0, done.stderr
    assert "pos_embedding (1, 37, 64) resampled" in done.stdout
    assert "resampled <- vit.embeddings.position_embeddings" in done.stdout
    assert "head/kernel (64, 3) new" in done.stdout
    assert "Note: positions 4x4 -> 6x6" in done.stdout
