"""An objective from outside the package: one file, one line of registration, nothing edited.

It predicts by how many quarter turns an image was rotated (arXiv:1803.07728).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import vitrine
from vitrine.data.loading.order import Rows
from vitrine.errors import ConfigError
from vitrine.models import Model, ViT
from vitrine.objectives import OBJECTIVES, Objective, RunContext, find_objective, register_objective
from vitrine.objectives.objective import Parts, PartsOf
from vitrine.objectives.teacher import Teacher
from vitrine.runtime.run_folder import RunFolder

TURNS = 4


class RotationHead(nn.Module):
    """A ViT and a head for the four rotations."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit, self.turn = vit, nn.Linear(vit.config.width, TURNS)

    def forward(
        self, images: Tensor, turns: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        features = self.vit.embed(images)
        if turns is None:
            return features
        logits = self.turn(features).float()
        correct = (logits.argmax(dim=1) == turns).sum()
        return nn.functional.cross_entropy(logits, turns, reduction="none"), {"turns_correct": correct}


@dataclass(frozen=True, kw_only=True)
class RotationObjective(Objective):
    """Predict the rotation of an image."""

    kind: ClassVar[str] = "rotation"
    most_turns: int = TURNS

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        assert isinstance(model, ViT)
        return RotationHead(model)

    def parts(self, context: RunContext) -> PartsOf:
        def parts_of(pixels: Tensor, rows: Rows, seed: int) -> Parts:
            turns = torch.from_numpy(rows.indices % self.most_turns).to(pixels.device)
            turned = torch.stack(
                [torch.rot90(p, int(t), dims=(1, 2)) for p, t in zip(pixels, turns, strict=True)]
            )
            return context.preprocess.normalise(turned), turns

        return parts_of


@pytest.fixture
def rotation() -> Iterator[None]:
    register_objective(RotationObjective)
    yield
    del OBJECTIVES["rotation"]


@pytest.mark.usefixtures("rotation")
def test_an_objective_from_outside_trains_evaluates_resumes_and_gives_a_model(tmp_path: Path) -> None:
    options = {"device": "cpu", "workers": 0, "batch_size": 4, "hold_out": 0.2, "size": 32}
    settings = ["model_options.patch_size=8", "model_options.depth=1", "objective.most_turns=2", "augment.mixup=0",
                "augment.cutmix=0", "augment.label_smoothing=0"]  # fmt: skip
    result = vitrine.pretrain(
        "generated:shapes?size=32&count=20", objective="rotation", model="ViT-Ti/16", steps=2, set=settings,
        out=tmp_path / "run", **options,
    )  # fmt: skip
    assert result.objective == "rotation" and not result.has_head
    assert {"loss", "feature_rank", "knn_accuracy"} <= result.evaluation.keys()
    logged = RunFolder(tmp_path / "run").read_metrics()
    assert "turns_correct" in logged[0]
    longer = vitrine.resume(tmp_path / "run", set="training.total_steps=4", device="cpu")
    assert longer.steps == 4
    assert vitrine.load(tmp_path / "run").model.config.num_classes is None


@pytest.mark.usefixtures("rotation")
def test_settings_that_do_not_go_with_it_and_names_that_are_taken_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^training\.patience=3 .*rotation; .*=null$"):
        vitrine.pretrain("generated:shapes", objective="rotation", set="training.patience=3")
    with pytest.raises(ConfigError, match="nearest: rotation"):
        find_objective("rotations")

    @dataclass(frozen=True, kw_only=True)
    class Impostor(Objective):
        kind: ClassVar[str] = "labels"

    with pytest.raises(ConfigError, match="already registered"):
        register_objective(Impostor)
    with pytest.raises(ConfigError, match="must be a frozen dataclass"):
        register_objective(type("Nameless", (Objective,), {}))
