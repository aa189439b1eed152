"""Loading adapts weights to what is asked for, and says what it did."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from unit.checkpoints.made import arrays_of, images, logits, small_vit, write_npz

import vitrine
from vitrine.checkpoints import load, save
from vitrine.checkpoints.weights import fill_model
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError
from vitrine.models.positions import resample_grid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rules = Preprocess(size=(32, 32), rule="shorter", crop_fraction=0.9, interpolation="bicubic")
    return save(small_vit(), tmp_path / "model", preprocess=rules, classes=["a", "b", "c", "d", "e"])


def test_preprocessing_and_classes_come_back_with_the_model(folder: Path) -> None:
    loaded = vitrine.load(folder)
    assert loaded.classes == ("a", "b", "c", "d", "e")
    assert loaded.preprocess.crop_fraction == 0.9
    assert loaded.preprocess.interpolation == "bicubic"
    assert not loaded.model.training
    assert loaded.notes == ()


def test_another_resolution_resamples_positions_and_says_so(folder: Path) -> None:
    before, loaded = load(folder).model, load(folder, image_size=48)
    [note] = loaded.notes
    assert note.startswith("positions 4x4 -> 6x6") and "linear aligned" in note
    assert loaded.preprocess.size == loaded.model.config.image_size == (48, 48)
    table = before.positions[0].table  # type: ignore[union-attr]
    expected = torch.cat([table[:, :1], resample_grid(table[:, 1:], (4, 4), (6, 6))], dim=1)
    assert torch.equal(loaded.model.positions[0].table, expected)  # type: ignore[union-attr]
    # The same as what the model would have made of such images on the fly.
    batch = torch.randn(1, 3, 48, 48)
    torch.testing.assert_close(logits(loaded.model, batch), logits(before, batch))


def test_one_channel_answers_to_grey_as_three_do_to_equal_colours(folder: Path) -> None:
    colour, grey = load(folder), load(folder, channels=1)
    batch = torch.randn(2, 1, 32, 32)
    expected = logits(colour.model, batch.expand(-1, 3, -1, -1))
    torch.testing.assert_close(logits(grey.model, batch), expected, rtol=0, atol=1e-5)
    [note] = grey.notes
    assert "summed from 3 to 1" in note
    assert grey.preprocess.channels == 1


def test_more_channels_keep_the_strength_of_an_image_that_is_the_same_in_all(folder: Path) -> None:
    colour, many = load(folder), load(folder, channels=5)
    batch = torch.randn(2, 1, 32, 32)
    seen = [
        loaded.model.embed_patches(batch.expand(-1, n, -1, -1))[0] for loaded, n in ((colour, 3), (many, 5))
    ]  # type: ignore[union-attr]
    kernel = colour.model.patch_projection.weight.sum(dim=1)  # type: ignore[union-attr]
    again = many.model.patch_projection.weight.sum(dim=1)  # type: ignore[union-attr]
    assert 0.2 < (again.norm() / kernel.norm()) < 2
    assert seen[0].shape == seen[1].shape
    assert "scaled from 3 to 5" in many.notes[0]


def test_another_number_of_classes_gets_a_new_head_of_zeros_and_says_so(folder: Path) -> None:
    loaded = load(folder, num_classes=7)
    assert loaded.model.head is not None
    assert loaded.model.head.weight.shape == (7, 64)
    assert not loaded.model.head.weight.any()
    assert loaded.classes is None
    [note] = loaded.notes
    assert re.search("for 5 .*zeros for 7", note)


def test_the_same_number_of_classes_keeps_the_head(folder: Path) -> None:
    assert load(folder, num_classes=5).classes is not None


def test_a_new_head_takes_the_hidden_layer_away_too(tmp_path: Path) -> None:
    path = save(small_vit(representation_width=16), tmp_path / "pre.npz", to="npz")
    loaded = load(path, num_classes=3)
    assert loaded.model.representation is None  # type: ignore[union-attr]
    assert any("and its hidden layer" in note for note in loaded.notes)


def test_features_only_takes_the_head_away(folder: Path) -> None:
    loaded = load(folder, features_only=True)
    expected = load(folder).model.features(images(loaded.model))["representation"]
    found = logits(loaded.model, images(loaded.model))
    torch.testing.assert_close(found, expected, rtol=0, atol=4e-6)  # the same sums, of other lengths
    with pytest.raises(ConfigError, match="features_only"):
        load(folder, features_only=True, num_classes=2)


def test_all_zero_heads_of_official_files_are_noticed(tmp_path: Path) -> None:
    arrays = arrays_of(save(small_vit(), tmp_path / "x.npz", to="npz"))
    for name in ("head/kernel", "head/bias"):
        arrays[name] = np.zeros_like(arrays[name])
    loaded = load(write_npz(tmp_path / "i21k.npz", arrays))
    assert any("all zeros" in note and "ImageNet-21k" in note for note in loaded.notes)
    assert not any("ImageNet-21k" in note for note in load(tmp_path / "i21k.npz", num_classes=3).notes)


def test_a_variant_by_name_has_fresh_weights_and_says_so() -> None:
    loaded = load("ViT-Ti/16", num_classes=2, image_size=32)
    assert loaded.model.config.num_classes == 2
    assert "fresh weights" in loaded.notes[0]


def test_a_run_folder_is_loaded_from_its_model(tmp_path: Path, folder: Path) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}\n")
    folder.rename(run / "model")
    assert load(run).classes == ("a", "b", "c", "d", "e")
    assert load(str(run)).classes == ("a", "b", "c", "d", "e")


def test_a_file_inside_a_folder_brings_its_record(folder: Path) -> None:
    assert load(folder / "model.safetensors").classes is not None


def test_a_single_safetensors_file_carries_its_record_inside(tmp_path: Path) -> None:
    path = save(small_vit(gelu="tanh"), tmp_path / "one.safetensors", to="timm", classes=list("abcde"))
    loaded = load(path)
    assert loaded.model.config.gelu == "tanh"
    assert loaded.classes == tuple("abcde")


def test_timm_configs_tell_preprocessing_classes_and_numerics(tmp_path: Path) -> None:
    folder = save(small_vit(gelu="tanh"), tmp_path / "timm", to="timm", classes=list("abcde"))
    settings = json.loads((folder / "config.json").read_text())
    del settings["vitrine"]
    settings["pretrained_cfg"] |= {"crop_pct": 0.95, "interpolation": "bicubic", "mean": [0.1, 0.2, 0.3]}
    (folder / "config.json").write_text(json.dumps(settings))
    loaded = load(folder)
    assert loaded.model.config.gelu == "tanh"
    assert loaded.model.config.num_heads == 4
    assert loaded.preprocess.crop_fraction == 0.95
    assert loaded.preprocess.mean == (0.1, 0.2, 0.3)
    assert loaded.classes == tuple("abcde")


@pytest.mark.parametrize(
    ("to", "gelu", "rule", "mean"),
    [
        ("npz", "tanh", "squash", 0.5),
        ("timm", "erf", "shorter", 0.5),
        ("torchvision", "erf", "shorter", 0.485),
    ],
)
def test_bare_files_get_the_preprocessing_and_numerics_of_their_layout(
    tmp_path: Path, to: str, gelu: str, rule: str, mean: float
) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / ("x.npz" if to == "npz" else "x.safetensors")
    save(small_vit(gelu=gelu), path, to=to)  # type: ignore[arg-type]
    if to != "npz":
        save_file(load_file(path), path)
    loaded = load(path, num_heads=4)
    assert loaded.model.config.gelu == gelu
    assert (loaded.preprocess.rule, loaded.preprocess.mean[0]) == (rule, mean)
    assert any("no preprocessing beside the weights" in note for note in loaded.notes)


def test_a_pooler_counts_only_where_no_classifier_ignores_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save(small_vit(), tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    del settings["vitrine"]
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = load_file(folder / "model.safetensors")
    tensors |= {"vit.pooler.dense.weight": torch.randn(64, 64), "vit.pooler.dense.bias": torch.randn(64)}
    save_file(tensors, folder / "model.safetensors")
    assert load(folder).model.config.representation_width is None  # type: ignore[union-attr]
    bare = {name.removeprefix("vit."): tensor for name, tensor in tensors.items() if "classifier" not in name}
    save_file(bare, folder / "model.safetensors")
    assert load(folder).model.config.representation_width == 64  # type: ignore[union-attr]


def test_weights_are_read_one_tensor_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory: the model itself and never a second tensor beside the one that is being filled.
    from vitrine.checkpoints.opening import open_weights
    from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile

    def no_copy(self: SafetensorsFile, name: str, *, row: int | None = None) -> torch.Tensor:
        raise AssertionError(f"{name} was read into memory of its own before it was copied")

    opened = open_weights(folder)
    monkeypatch.setattr(SafetensorsFile, "read", no_copy)
    fill_model(opened.weights)


def test_a_model_stays_what_it_was_when_its_file_is_replaced(folder: Path) -> None:
    loaded = load(folder)
    before = logits(loaded.model, images(loaded.model))
    save(small_vit(seed=9), folder, overwrite=True)
    assert torch.equal(logits(loaded.model, images(loaded.model)), before)


def test_classes_whose_names_are_no_utf_8_come_back_and_the_files_are_utf_8_all_the_same(
    tmp_path: Path,
) -> None:
    """Folders out of an old archive: their bytes are kept as Python keeps them in names of files."""
    classes = ("caf\udce9", "猫", "c", "d", "e")
    folder = save(small_vit(), tmp_path / "model", classes=classes)
    assert load(folder).classes == classes
    for file in ("config.json", "README.md"):
        (folder / file).read_bytes().decode("utf-8")


def test_a_loaded_model_has_a_short_repr_and_a_table_for_notebooks(tmp_path: Path) -> None:
    loaded = load(save(small_vit(), tmp_path / "m", classes=["<b>", "dog", "cat", "cow", "hen"]))
    assert len(repr(loaded)) < 300
    assert "num_classes=5" in repr(loaded)
    assert loaded._repr_html_().startswith("<table>")
    assert "<b>" not in loaded._repr_html_()
