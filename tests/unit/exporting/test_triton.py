"""The repository for Triton: its program run outside Triton on odd photos, its config, and what it refuses."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from odd_photos import odd_photos
from servers import CLASSES, saved_vit

import vitrine
from vitrine.errors import ConfigError
from vitrine.exporting.triton import LABELS, NAME, VERSION, ask, open_outside_triton, plan_triton
from vitrine.serving.predictor import Predictor


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_vit(tmp_path_factory.mktemp("model") / "mine", size=160)


@pytest.fixture(scope="module")
def repository(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    result = vitrine.export(model, to="triton", out=folder, speed=False)
    [check] = result.proof
    assert check.agrees and check.against == "model.py outside Triton"
    return folder / NAME


def test_files_of_images_get_the_logits_of_python(repository: Path, model: Path) -> None:
    predictor, opened = Predictor.open(model), open_outside_triton(repository)
    photos = {name: data for name, data in odd_photos().items() if name != "avif"}
    responses = ask(opened, [[data] for data in photos.values()])
    expected = predictor.logits(list(photos.values())).rows.numpy()
    largest = np.abs(expected).max()
    for (name, _), response, logits in zip(photos.items(), responses, expected, strict=True):
        assert response.error is None, (name, response.error)
        found = {tensor.name: tensor.as_numpy() for tensor in response.output_tensors}
        # Pillow's resize is within two levels of torch's.
        assert np.abs(found["logits"][0] - logits).max() < 0.01 * largest, name


def test_a_damaged_image_fails_its_own_request_alone(repository: Path) -> None:
    good = odd_photos()["png"]
    first, damaged, last = ask(open_outside_triton(repository), [[good, good], [b"no image"], [good]])
    assert "cannot be read" in (damaged.error or "")
    assert [response.output_tensors[0].as_numpy().shape for response in (first, last)] == [(2, 6), (1, 6)]


def test_the_config_names_what_the_graph_computes(repository: Path) -> None:
    text = (repository / "config.pbtxt").read_text()
    assert re.findall(r'name: "(\w+)"', text) == [NAME, "image", "logits", "embedding"]
    assert f"dims: [ {len(CLASSES)} ] label_filename" in text and text.count("{") == text.count("}")
    assert (repository / LABELS).read_text().split("\n")[:-1] == list(CLASSES)
    assert {path.name for path in (repository / VERSION).iterdir()} >= {
        "model.py",
        "model.onnx",
        "preprocess.json",
    }


def test_a_model_that_reads_no_photos_is_refused(model: Path) -> None:
    loaded = vitrine.load(model)
    five = replace(loaded.preprocess, mean=(0.5,) * 5, std=(0.5,) * 5)
    with pytest.raises(ConfigError, match=r"1 or 3 .*has 5") as refused:
        plan_triton(replace(loaded, preprocess=five))
    assert refused.value.option == "to"
