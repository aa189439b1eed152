import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from unit.exporting.made import loaded

from vitrine.errors import ConfigError, DownloadError, MissingDataError
from vitrine.exporting import open_runner
from vitrine.exporting.exported import answer_of
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnxruntime_web import WASM, WEBGPU, find_onnxruntime_web
from vitrine.exporting.proof import answers_of, compare, reference
from vitrine.exporting.web import PageFacts, attention_of, plan_web
from vitrine.runtime.cache import downloads

FACTS = PageFacts(entry={"name": "mine"}, figures={"model": "mine"})


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of npm's package by name only: these tests run no browser."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "dist").mkdir()
    for name in (*WASM, *WEBGPU):
        (folder / "dist" / name).write_text(name)
    return folder


def written(kind: str, folder: Path, package: Path, *, int8: bool = False) -> Path:
    plan_web(loaded(kind), facts=lambda: FACTS, int8=int8, onnxruntime_web=package)(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Path:
    """One export, which tests only read."""
    return written("class token", tmp_path_factory.mktemp("web"), package)


@pytest.mark.parametrize("kind", ["class token", "parallel branches", "registers"])
def test_the_graph_also_returns_the_attention_of_all_layers(kind: str) -> None:
    made = loaded(kind)
    images = torch.randn(2, made.model.config.channels, *made.model.config.image_size)
    model = InferenceModel(made.model, with_attention=True)
    with torch.inference_mode():
        outputs = dict(zip(model.output_names, model(images), strict=True))
        expected = torch.stack([weights for _, weights in made.model.attention(images)], dim=1)
        torch.testing.assert_close(outputs["attention"], expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(outputs["logits"], made.model(images), rtol=1e-4, atol=1e-5)


def test_weights_take_half_the_room_and_the_answers_are_those_of_weights_in_half_precision(
    folder: Path,
) -> None:
    made = loaded("class token")
    graph = onnx.load(folder / "model.onnx").graph
    large = {w.data_type for w in graph.initializer if np.prod(w.dims) >= 1024}
    assert large == {onnx.TensorProto.FLOAT16}
    images = torch.randn(2, 3, *made.model.config.image_size)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["logits", "embedding", "attention"]
    logits = session.run(["logits"], {"pixels": images.numpy()})[0]
    # Half precision has 11 bits: each weight is off by at most 5e-4 of itself.
    np.testing.assert_allclose(logits, made.model(images).detach().numpy(), rtol=0, atol=0.01)


def test_the_graph_is_compared_with_the_model_by_the_answers_that_both_have(
    folder: Path,
) -> None:
    made = loaded("class token")
    images = torch.randn(3, 3, *made.model.config.image_size, generator=torch.Generator().manual_seed(0))
    answer = answer_of(open_runner(folder))
    assert "attention" in answer(images)
    expected = answers_of(reference(made.model), images)
    check = compare("page", answer, expected=expected, images=images, precision="fp16")
    assert check.largest is not None and check.largest < 0.01


def test_the_folder_says_all_that_the_page_needs_and_lists_what_to_keep(folder: Path) -> None:
    made = loaded("class token")
    described = json.loads((folder / "model.json").read_text())
    assert described["preprocess"] == made.preprocess.to_json()
    assert described["attention"] == attention_of(made.model)
    kept = json.loads((folder / "files.json").read_text())
    assert {"model.onnx", "model.json", "index.html", "page/worker.js"} <= set(kept)
    assert all((folder / name).is_file() for name in kept)
    assert not [name for name in kept if "jspi" in name]  # only browsers with WebGPU fetch it
    assert b"EXPORT_ID" not in (folder / "service-worker.js").read_bytes()
    assert "MIT" in (folder / "onnxruntime-web" / "LICENSE").read_text()
    assert not list((folder / "onnxruntime-web").glob("*.mjs"))  # a type that some hosts do not know


def test_another_model_makes_another_cache(folder: Path, tmp_path: Path, package: Path) -> None:
    other = written("DINOv2 without a head", tmp_path, package)
    one, two = ((each / "service-worker.js").read_text() for each in (folder, other))
    assert one != two


def test_attention_too_large_for_a_phone_is_left_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrine.exporting.web.ATTENTION_BYTES", 1000)
    assert attention_of(loaded("class token").model) is None


def test_a_folder_that_is_not_the_package_is_refused_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="npm pack onnxruntime-web@"):
        find_onnxruntime_web(tmp_path)


def test_without_a_network_it_says_how_to_pass_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path))
    with downloads(allowed=False), pytest.raises(DownloadError, match="onnxruntime_web") as caught:
        find_onnxruntime_web()
    assert "cannot be downloaded" in str(caught.value)


def test_a_model_that_reads_no_photos_is_refused(package: Path) -> None:
    made = loaded("class token")
    five = replace(made.preprocess, mean=(0.5,) * 5, std=(0.5,) * 5)
    with pytest.raises(ConfigError, match=r"1 or 3 .*has 5"):
        plan_web(replace(made, preprocess=five), facts=lambda: FACTS, int8=False, onnxruntime_web=package)


def test_a_model_that_predicts_a_number_is_refused(package: Path) -> None:
    made = loaded("class token")
    numbers = replace(made, record=replace(made.record, number={"name": "weight"}))
    with pytest.raises(ConfigError, match="this model predicts a number"):
        plan_web(numbers, facts=lambda: FACTS, int8=False, onnxruntime_web=package)
