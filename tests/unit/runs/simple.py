"""A small run, for tests of what surrounds training."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.generated import GeneratedSource
from vitrine.models import create_model
from vitrine.objectives.objective import RunContext
from vitrine.recipes import find_recipe
from vitrine.recipes.recipe import Recipe
from vitrine.runs.records import StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.task import build_task, context_of, make_loader
from vitrine.runs.validation import SplitValidation
from vitrine.runtime.processes import Processes
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.task import Task

ALONE = Processes()


@dataclass(frozen=True, kw_only=True)
class SimpleRun:
    """Model, data and recipe of a run."""

    start: StartingModel
    data: RunData
    recipe: Recipe

    def context(self) -> RunContext:
        return context_of(self.start, self.data, self.recipe, workers=0, processes=ALONE)

    def validation(self) -> SplitValidation:
        return SplitValidation(
            self.data, self.start.preprocess, batch_size=8, workers=0, processes=ALONE, is_sharded=False
        )

    def task(self, folder: Path = Path("run")) -> Task:
        loader = make_loader(self.data.train, self.start.preprocess, self.recipe, workers=0, processes=ALONE)
        return build_task(
            self.context(),
            loader,
            self.data.train,
            self.recipe,
            folder=RunFolder(folder),
            validation=self.validation(),
        )

    def module(self) -> torch.nn.Module:
        return self.recipe.objective.wrap(self.start.model, self.start.teacher)


def simple_run(recipe: Recipe | None = None, **training: object) -> SimpleRun:
    """Return a run of 40 steps of 8 images of 32 px."""
    recipe = recipe or find_recipe("demo")
    changed = dataclasses.replace(
        recipe.training, **{"total_steps": 40, "batch_size": 8, "precision": "fp32", **training}
    )
    recipe = dataclasses.replace(recipe, training=changed)
    torch.manual_seed(0)
    model = create_model(
        "ViT-Ti/16", num_classes=10 if recipe.needs_labels else None, image_size=32, patch_size=8, width=32,
        mlp_width=64, depth=2, num_heads=2, dropout=0.1,
    )  # fmt: skip
    train, val = (GeneratedSource(count=count, size=32, label="shape", seed=1) for count in (32, 12))
    return SimpleRun(
        start=StartingModel(model=model, preprocess=Preprocess(size=(32, 32))),
        data=RunData(address="", splits={"train": train, "val": val}),
        recipe=recipe,
    )
