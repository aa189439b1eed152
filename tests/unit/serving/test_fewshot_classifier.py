import json

import pytest
import torch
from servers import jpeg, small_vit

import vitrine
from vitrine.checkpoints import load
from vitrine.errors import CheckpointError
from vitrine.serving import fewshot_classifier
from vitrine.serving.fewshot_classifier import FORMAT, read_classifier, with_classifier
from vitrine.serving.predictor import Predictor


def written(path, **changes):
    weight = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).double()
    values = {
        "format": FORMAT,
        "classes": ["a", "b", "c"],
        "weight": weight.tolist(),
        "bias": [0.5, -0.5, 0.0],
    }
    path.write_text(json.dumps(values | changes))
    return path


@pytest.fixture
def loaded(tmp_path):
    vitrine.save(small_vit(), tmp_path / "model")
    return load(tmp_path / "model")


def test_the_classifier_is_the_head_on_the_same_features(loaded, tmp_path):
    path = written(tmp_path / "few.json")
    classes, weight, bias = read_classifier(path)
    features = Predictor(loaded, device="cpu").embed([jpeg(1), jpeg(2)]).rows
    found = with_classifier(loaded, path)
    logits = Predictor(found, device="cpu").logits([jpeg(1), jpeg(2)]).rows
    torch.testing.assert_close(logits, features @ weight.float().T + bias.float(), rtol=0, atol=1e-5)
    assert found.classes == classes == ("a", "b", "c")
    assert found.model.config.num_classes == 3
    assert "few.json" in found.notes[-1]


def test_a_model_without_a_head_and_a_resnet_get_one(tmp_path):
    for name, model, width in [
        ("headless", small_vit(num_classes=None), 32),
        ("hidden", small_vit(representation_width=24), 24),
        ("bit", vitrine.create_model("BiT-R26x1", image_size=32, num_classes=None), 2048),
    ]:
        vitrine.save(model, tmp_path / name)
        path = written(tmp_path / f"{name}.json", weight=[[0.1] * width] * 3)
        found = with_classifier(load(tmp_path / name), path)
        assert found.model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "not a few-shot classifier"),
        ({"classes": ["a"]}, "damaged"),
        ({"weight": [[1.0], [2.0, 3.0], [4.0]]}, "damaged"),
        ({"weight": "text"}, "damaged"),
        ({"bias": [0.0, 1.0]}, "damaged"),
        ({"bias": [0.0, 1.0, float("inf")]}, "damaged"),
        ({"weight": [[1.0] * 31] * 3}, "31 features, .*32"),
    ],
)
def test_a_file_that_is_not_right_is_refused(loaded, tmp_path, changes, words):
    with pytest.raises(CheckpointError, match=words):
        with_classifier(loaded, written(tmp_path / "few.json", **changes))


def test_a_file_that_is_missing_or_no_json_is_refused(loaded, tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        with_classifier(loaded, tmp_path / "none.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(CheckpointError, match="JSON"):
        with_classifier(loaded, tmp_path / "text.json")


def test_two_heads_are_refused(tmp_path):
    vitrine.save(small_vit(has_distillation_token=True), tmp_path / "deit")
    with pytest.raises(CheckpointError, match="two heads"):
        with_classifier(load(tmp_path / "deit"), written(tmp_path / "few.json"))


def test_a_file_that_is_too_large_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(fewshot_classifier, "MOST_BYTES", 10)
    path = written(tmp_path / "few.json")
    with pytest.raises(CheckpointError) as caught:
        read_classifier(path)
    assert str(caught.value).count(str(path)) == 1
    assert "JSON" not in str(caught.value)
