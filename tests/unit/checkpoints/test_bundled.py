"""The names of the bundled models: what `box` stands for, and downloads of those that are not in the package."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from boxes import untrained_box

import vitrine
from tests.unit.data.web import Answer, Request, answering
from vitrine.checkpoints import bundled, locating
from vitrine.checkpoints.bundled import BOX_MODELS, BoxModel, Release, box_on
from vitrine.errors import CheckpointError
from vitrine.runtime import download as downloading


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "FIRST_PAUSE_SECONDS", 0)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One file with its own record, as `weights/ship.py --release` writes it."""
    folder = tmp_path_factory.mktemp("release")
    loaded = vitrine.load(untrained_box(folder / "model", image_size=32, num_classes=7))
    file = folder / "box-s.safetensors"
    vitrine.save(
        loaded.model.half(), file, preprocess=loaded.preprocess, classes=loaded.classes, overwrite=False
    )
    return file.read_bytes()


def registered(monkeypatch: pytest.MonkeyPatch, name: str, url: str, content: bytes) -> None:
    release = Release(url=url, sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content))
    models = {**BOX_MODELS, name: BoxModel(variant=BOX_MODELS[name].variant, release=release)}
    monkeypatch.setattr(bundled, "BOX_MODELS", models)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, weights: bytes) -> Iterator[list[Request]]:
    """A server on loopback and an entry of the registry that names it."""

    def answer(request: Request) -> Answer:
        return (200, {}, weights) if request.path == "/v1/box-s.safetensors" else (404, {}, b"")

    with answering(answer) as (address, requests):
        registered(monkeypatch, "box:s", f"{address}/v1/box-s.safetensors", weights)
        yield requests


def test_an_unreleased_model_says_so_and_names_the_one_in_the_package() -> None:
    with pytest.raises(CheckpointError, match="released") as refused:
        vitrine.load("box:s")
    assert refused.value.suggestions == ("box:ti",)


def test_an_unknown_model_of_the_box_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match="box:small") as refused:
        vitrine.load("box:small")
    assert refused.value.suggestions == ("box:ti", "box:s")


def test_box_ti_is_the_model_in_the_package() -> None:
    by_name, default = vitrine.load("box:ti"), vitrine.load("box")
    assert by_name.record.variant == "ViT-Ti/16"
    assert torch.equal(by_name.model.head.weight, default.model.head.weight)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps"])
def test_the_default_is_the_tiny_model_everywhere_until_a_small_one_is_released(device: str) -> None:
    assert box_on("box", device=device) == "box:ti"


@pytest.mark.parametrize(("device", "name"), [("cpu", "box:ti"), ("cuda:1", "box:s"), ("mps", "box:s")])
def test_the_default_is_a_released_small_model_on_a_gpu(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, "box:s", "https://example.org/box-s.safetensors", b"weights")
    assert box_on("box", device=device) == name
    assert box_on("box:ti", device=device) == "box:ti"
    assert box_on("runs/latest", device=device) == "runs/latest"


def test_a_released_model_is_downloaded_once_and_loads_with_its_classes(
    served: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = vitrine.load("box:s")
    assert loaded.classes is not None
    assert len(loaded.classes) == 7
    assert loaded.preprocess.size == (32, 32)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # now the cache must do
    assert torch.equal(vitrine.load("box:s").model.head.weight, loaded.model.head.weight)
    assert len(served) == 1
    assert [path.suffix for path in (tmp_path / "cache" / "box").iterdir()] == [".safetensors"]


def test_without_a_network_the_model_in_the_package_is_named(
    served: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE") as refused:
        vitrine.load("box:s")
    assert refused.value.suggestions == ("box:ti",)
    assert served == []


@pytest.mark.parametrize("damage", [b"x", b""], ids=["another byte", "too short"])
def test_a_file_with_another_content_is_refused_and_leaves_nothing(
    damage: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: bytes
) -> None:
    with answering(lambda request: (200, {}, weights[:-1] + damage)) as (address, _):
        registered(monkeypatch, "box:s", f"{address}/box-s.safetensors", weights)
        with pytest.raises(CheckpointError, match="box:s") as refused:
            vitrine.load("box:s")
        assert refused.value.suggestions == ("box:ti",)
    assert not list((tmp_path / "cache" / "box").glob("*.safetensors"))


def test_a_package_without_weights_downloads_the_tiny_model_where_it_is_released(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: bytes
) -> None:
    monkeypatch.setattr(locating, "BOX_FOLDER", tmp_path / "missing")
    with answering(lambda request: (200, {}, weights)) as (address, _):
        registered(monkeypatch, "box:ti", f"{address}/box-ti.safetensors", weights)
        assert vitrine.load("box").model.config.num_classes == 7
