"""Photos of any shape and patches of other sizes, from files to answers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import photo, save

import vitrine
from vitrine.checkpoints import opening
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError

from .commandline import refusal

CPU = {"device": "cpu", "workers": 0}
SHAPES = {"wide": (30, 80), "tall": (90, 31), "square": (40, 40)}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of three shapes in two classes, and a small model of random weights."""
    desk = tmp_path_factory.mktemp("desk")
    for number, kind in enumerate(("cat", "dog")):
        for row, (name, shape) in enumerate([*SHAPES.items()] * 2):
            save(desk / "photos" / kind / f"{name}{row}.png", photo(100 * number + row, *shape))
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=16, depth=2, num_heads=2, mlp_width=16, image_size=32, patch_size=8, num_classes=2
    )
    torch.nn.init.normal_(model.head.weight)
    vitrine.save(model, desk / "model", preprocess=Preprocess(size=(32, 32)), classes=("cat", "dog"))
    return desk


def test_embeddings_at_native_aspect_ratio_are_those_of_each_photo_alone(desk: Path) -> None:
    paths = sorted((desk / "photos").rglob("*.png"))
    vitrine.embed(desk / "model", paths, max_patches=12, precision="fp32", out=desk / "e.npy", **CPU)
    rows = torch.from_numpy(np.load(desk / "e.npy"))
    loaded = vitrine.load(desk / "model", max_patches=12)
    assert len(rows) == len(paths) == 12
    for row, path in zip(rows, paths, strict=True):
        with torch.no_grad():
            alone = loaded.model.embed(loaded.preprocess(path)[None])
        torch.testing.assert_close(row, alone[0], rtol=1e-5, atol=1e-5)


def test_a_model_fine_tuned_at_native_aspect_ratio_keeps_it_and_returns_to_squares(desk: Path) -> None:
    result = vitrine.finetune(
        desk / "photos", model=desk / "model", max_patches=12, steps=2, batch_size=4, precision="fp32",
        out=desk / "run", set=["training.graphs=false"], **CPU,
    )  # fmt: skip
    loaded = vitrine.load(desk / "run")
    assert (loaded.preprocess.max_patches, loaded.preprocess.patch) == (12, (8, 8))
    score = vitrine.evaluate(desk / "run", desk / "photos", out=desk / "native", **CPU)
    squares = vitrine.evaluate(desk / "run", desk / "photos", size=32, out=desk / "squares", **CPU)
    assert score.num_images == squares.num_images == 2 and result.steps == 2
    prediction = vitrine.predict(desk / "run", desk / "photos" / "cat" / "wide0.png", **CPU)
    assert len(prediction.predictions) == 1


@pytest.mark.slow
def test_training_draws_patch_sizes_and_the_model_keeps_its_own(desk: Path) -> None:
    options = {"model": desk / "model", "steps": 3, "batch_size": 4, "precision": "fp32", **CPU}
    vitrine.finetune(
        desk / "photos", size=48, out=desk / "flexi", set=["views.patch_sizes=[8,12,16]"], **options
    )
    assert vitrine.load(desk / "flexi").model.config.patch_size == (8, 8)
    with refusal(ConfigError, "stride 12, got 32"):
        vitrine.finetune(desk / "photos", out=desk / "x", set=["views.patch_sizes=[8,12]"], **options)


def test_augmentation_that_needs_images_of_one_shape_is_refused(desk: Path) -> None:
    with refusal(ConfigError, "max_patches", "mixup"):
        vitrine.finetune(
            desk / "photos",
            model=desk / "model",
            max_patches=12,
            set=["augment.mixup=0.2"],
            out=desk / "y",
            **CPU,
        )


def test_another_patch_size_is_resized_at_load_and_converted(desk: Path) -> None:
    loaded = vitrine.load(desk / "model", patch_size=16)
    assert loaded.model.config.patch_size == (16, 16) and loaded.model.config.grid_size == (2, 2)
    assert any("8 to 16 px" in note and "4x4 -> 2x2" in note for note in loaded.notes)
    vitrine.convert(desk / "model", desk / "converted", patch=16, check=False)
    again = vitrine.load(desk / "converted")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(again.model(images), loaded.model(images))
    assert vitrine.load(desk / "model", patch_size=12).model.config.image_size == (36, 36)
    with pytest.raises(ConfigError, match="only a plain ViT"):
        vitrine.load("PVT-Tiny", patch_size=8)


def test_an_index_remembers_how_its_pictures_were_seen(desk: Path) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("pyarrow")
    vitrine.index(
        desk / "model", desk / "photos", max_patches=12, out=desk / "index", precision="fp32", **CPU
    )
    wide = desk / "photos" / "cat" / "wide0.png"
    (group,) = vitrine.search(desk / "index", wide, out=desk / "found", device="cpu", precision="fp32").groups
    assert group.matches[0].path.endswith("cat/wide0.png") and group.matches[0].cosine > 0.999
    parts = vitrine.embed(desk / "model", desk / "photos", max_patches=12, out=desk / "parts", **CPU)
    assert parts.num_pictures == 12
    with pytest.raises(ConfigError, match="needs pictures of one size"):
        vitrine.embed(desk / "model", desk / "photos", max_patches=12, tokens=True, out=desk / "p2", **CPU)
    with refusal(ConfigError, "input shape", option="out", advice=["overwrite"]):
        vitrine.index(desk / "model", desk / "photos", out=desk / "index", **CPU)


def test_a_model_that_keeps_the_aspect_ratio_is_fine_tuned_so_unless_a_size_is_asked_for(desk: Path) -> None:
    loaded = vitrine.load(desk / "model", max_patches=12)
    vitrine.save(loaded, desk / "kept", preprocess=loaded.preprocess)
    options = {"model": desk / "kept", "batch_size": 4, **CPU}
    vitrine.finetune(desk / "photos", steps=1, out=desk / "kept-run", **options)
    assert vitrine.load(desk / "kept-run").preprocess.max_patches == 12
    vitrine.finetune(
        desk / "photos", fast=True, size=32, out=desk / "squares-run", model=desk / "kept", **CPU
    )
    assert vitrine.load(desk / "squares-run").preprocess.max_patches is None
    with refusal(ConfigError, "max_patches", "mixup"):
        vitrine.finetune(desk / "photos", set=["augment.mixup=0.2"], steps=1, out=desk / "z", **options)


def test_the_weights_that_fine_tuning_starts_from_are_opened_once(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, really = [], opening.open_tensors
    monkeypatch.setattr(opening, "open_tensors", lambda path: paths.append(path) or really(path))
    vitrine.finetune(desk / "photos", fast=True, model=desk / "model", out=desk / "once", **CPU)
    assert paths.count(desk / "model" / "model.safetensors") == 1


def test_the_plan_of_a_variant_counts_patches(desk: Path) -> None:
    settings = {"batch_size": 8, "images": 800, "epochs": 1, "rate": 1.0}
    squares, native = (
        vitrine.plan("ViT-S/16", **settings),
        vitrine.plan("ViT-S/16", max_patches=196, **settings),
    )
    assert (native.tokens, native.exaflops, native.memory) == (197, squares.exaflops, squares.memory)
    assert vitrine.plan("ViT-S/16", max_patches=784, **settings).hours > 4 * native.hours
    with refusal(ConfigError, "one size", option="max_patches"):
        vitrine.plan("PVT-Tiny", max_patches=196, **settings)
