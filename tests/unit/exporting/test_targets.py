"""torch's own program and the layouts of other libraries, each with proof."""

import json
import re
from pathlib import Path

import pytest
import torch
from unit.exporting.made import CLASSES, loaded, plan
from variations import costly

from vitrine.exporting.exported import Kind
from vitrine.exporting.proof import BATCHES, Agreement, answers_of, compare, measure_accuracy, reference


def proven(kind: str, to: Kind, folder: Path, **options: bool) -> dict[str, Agreement]:
    """Export a small model and compare everyone who can compute from it."""
    found = loaded(kind)
    config = found.model.config
    images = torch.randn(5, config.channels, *config.image_size, generator=torch.Generator().manual_seed(4))
    expected = answers_of(reference(found.model), images)
    exported = plan(found, to=to, **options)(folder)
    assert all(path.exists() for path in exported.files)
    assert all(subject.answer is not None for subject in exported.subjects), exported.subjects
    return {
        subject.name.split()[0]: compare(
            subject.name, subject.answer, expected=expected, images=images, explained=subject.explained
        )  # type: ignore[arg-type]
        for subject in exported.subjects
    }


@pytest.mark.parametrize(
    "kind", costly(["class token", "average pooling", "hybrid", "BiT"], quick=["class token"])
)
def test_a_program_of_torch_computes_the_same_without_vitrine(kind: str, tmp_path: Path) -> None:
    checks = proven(kind, "torch-export", tmp_path)
    assert checks["torch.export"].agrees and checks["torch.export"].batches == BATCHES
    extra = {"vitrine.json": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert tuple(json.loads(json.loads(extra["vitrine.json"])["classes"])) == CLASSES


@pytest.mark.parametrize(
    ("kind", "to", "library"),
    [
        ("class token", "hf", "transformers"),
        ("distillation token", "hf", "transformers"),
        ("DINOv2 without a head", "hf", "transformers"),
        ("average pooling", "timm", "timm"),
        ("registers", "timm", "timm"),
        ("class token", "npz", "Vitrine,"),
    ],
)
def test_a_layout_computes_the_same_in_its_own_library(
    kind: str, to: Kind, library: str, tmp_path: Path
) -> None:
    checks = proven(kind, to, tmp_path)
    assert {"Vitrine,", library} == set(checks)
    for check in checks.values():
        assert check.agrees, check
    assert checks[library].top1 == (None if kind == "DINOv2 without a head" else 1)


def test_another_gelu_is_written_when_asked_and_the_difference_is_explained(tmp_path: Path) -> None:
    checks = proven("class token", "torchvision", tmp_path, is_approximate=True)
    assert checks["Vitrine,"].agrees
    assert not checks["torchvision"].agrees
    assert re.search("GELU .*tanh", checks["torchvision"].explained)


def test_what_a_precision_costs_is_measured_on_labelled_images(tmp_path: Path) -> None:
    from vitrine.data.sources.generated import GeneratedSource

    found = loaded("class token")
    source = GeneratedSource(count=12, size=32, label="count")  # five classes, as the model has
    exact = reference(found.model)

    def shifted(images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": exact(images)["logits"].roll(1, dims=1)}

    same, other = measure_accuracy(
        found.model,
        [("torch", "fp32", exact), ("torch", "wrong", shifted)],
        source,
        preprocess=found.preprocess,
    )
    assert (same.cost, same.changed, same.num_images) == (0, 0, 12)
    assert other.changed == 1
    with torch.inference_mode():
        logits = torch.cat(
            [found.model(found.preprocess(source.read(i).data)[None]) for i in range(12)]  # type: ignore[arg-type]
        )
    right = (logits.argmax(dim=1).numpy() == source.labels).mean()
    assert same.top1.value == pytest.approx(right)
