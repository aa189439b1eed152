"""A model that we saved, changed in transformers or elsewhere and saved again, comes back as it is now."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrine
from tests.unit.checkpoints.made import images, logits, small_vit
from vitrine.checkpoints.libraries import import_installed
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError

transformers = import_installed("transformers")
CLASSES = ("a", "b", "c", "d", "e")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    preprocess = Preprocess(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    recipe = {"name": "ours"}
    return vitrine.save(
        small_vit(gelu="erf"), tmp_path / "ours", classes=CLASSES, preprocess=preprocess, recipe=recipe
    )


def opened(folder: Path, **options: Any) -> Any:
    return transformers.ViTForImageClassification.from_pretrained(folder, **options).eval()


def test_weights_trained_in_transformers_come_back(saved: Path, tmp_path: Path) -> None:
    model = opened(saved)
    batch = torch.randn(2, 3, 32, 32)
    model.train()
    model(batch, labels=torch.tensor([0, 3])).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.eval().save_pretrained(tmp_path / "theirs")
    with torch.inference_mode():
        expected = model(batch).logits
    loaded = vitrine.load(tmp_path / "theirs")
    torch.testing.assert_close(logits(loaded.model, batch), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(expected, logits(vitrine.load(saved).model, batch))
    assert loaded.classes == CLASSES
    assert loaded.record.preprocess == vitrine.load(saved).preprocess
    assert len(loaded.notes) == 1
    assert transformers.__version__ in loaded.notes[0]


def test_a_head_for_other_classes_comes_back_with_their_names(saved: Path, tmp_path: Path) -> None:
    names = {0: "cat", 1: "dog", 2: "bird"}
    model = opened(
        saved,
        num_labels=3,
        id2label=names,
        label2id={name: i for i, name in names.items()},
        ignore_mismatched_sizes=True,
    )
    model.save_pretrained(tmp_path / "theirs")
    loaded = vitrine.load(tmp_path / "theirs")
    assert loaded.classes == ("cat", "dog", "bird")
    assert loaded.model.config.num_classes == 3
    batch = images(loaded.model)
    with torch.inference_mode():
        expected = model(batch).logits
    torch.testing.assert_close(logits(loaded.model, batch), expected, rtol=0, atol=1e-5)
    assert "num_classes 3 instead of 5" in loaded.notes[0]


def test_a_head_without_names_has_none_of_the_old_ones(saved: Path, tmp_path: Path) -> None:
    opened(saved, num_labels=2, ignore_mismatched_sizes=True).save_pretrained(tmp_path / "theirs")
    loaded = vitrine.load(tmp_path / "theirs")
    assert loaded.classes is None
    assert loaded.model.config.num_classes == 2


def test_names_changed_in_config_json_alone_count(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["id2label"] = {str(i): name.upper() for i, name in enumerate(CLASSES)}
    (saved / "config.json").write_text(json.dumps(config))
    loaded = vitrine.load(saved)
    assert loaded.classes == ("A", "B", "C", "D", "E")
    assert any("class names" in note for note in loaded.notes)


def test_a_processor_saved_by_transformers_counts(saved: Path, tmp_path: Path) -> None:
    opened(saved).save_pretrained(tmp_path / "theirs")
    processor = transformers.AutoImageProcessor.from_pretrained(saved)
    processor.image_mean, processor.image_std = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    processor.save_pretrained(tmp_path / "theirs")
    loaded = vitrine.load(tmp_path / "theirs")
    assert loaded.preprocess.mean == (0.1, 0.2, 0.3)
    assert loaded.preprocess.std == (0.4, 0.5, 0.6)
    assert any("preprocessing" in note for note in loaded.notes)


def test_numerics_changed_in_transformers_count(saved: Path, tmp_path: Path) -> None:
    model = opened(saved, layer_norm_eps=1e-3, hidden_act="gelu_pytorch_tanh")
    model.save_pretrained(tmp_path / "theirs")
    loaded = vitrine.load(tmp_path / "theirs")
    assert (loaded.model.config.norm_eps, loaded.model.config.gelu) == (1e-3, "tanh")


def test_the_body_alone_comes_back_without_a_head(saved: Path, tmp_path: Path) -> None:
    model = transformers.ViTModel.from_pretrained(saved, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "theirs")
    loaded = vitrine.load(tmp_path / "theirs")
    assert loaded.model.config.num_classes is None
    batch = images(loaded.model)
    with torch.inference_mode():
        expected = model(batch).last_hidden_state[:, 0]
    torch.testing.assert_close(logits(loaded.model, batch), expected, rtol=0, atol=1e-5)


def test_a_file_written_by_another_program_counts(saved: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    tensors["classifier.bias"] += 1
    save_file(tensors, saved / "model.safetensors")
    before = small_vit(gelu="erf")
    loaded = vitrine.load(saved)
    batch = images(before)
    torch.testing.assert_close(logits(loaded.model, batch), logits(before, batch) + 1, rtol=0, atol=1e-5)
    assert len(loaded.notes) == 1


def test_what_comes_back_can_be_converted_and_saved_again(saved: Path, tmp_path: Path) -> None:
    opened(saved, num_labels=3, ignore_mismatched_sizes=True).save_pretrained(tmp_path / "theirs")
    result = vitrine.convert(tmp_path / "theirs", tmp_path / "again", to="vitrine")
    assert result.exit_code == 0
    assert vitrine.load(tmp_path / "again").notes == ()


def test_a_damaged_file_of_ours_is_still_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksum"):
        vitrine.load(saved)


def test_an_untouched_folder_has_nothing_to_note(saved: Path) -> None:
    assert vitrine.load(saved).notes == ()
    assert vitrine.load(saved).record.recipe == {"name": "ours"}


def test_transformers_is_told_who_opens_an_average_pooling_model(tmp_path: Path) -> None:
    folder = vitrine.save(small_vit(pooling="average"), tmp_path / "average")
    with pytest.raises(ValueError, match=r"vitrine\.load"):
        transformers.AutoModelForImageClassification.from_pretrained(folder)
