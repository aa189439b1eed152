"""The work behind `vitrine demo`: check, fine-tune, inspect and predict once, on rendered pictures."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.checkpoints.bundled import BOX
from vitrine.data.sources.demo_photos import CLASSES, Fault, write_inbox, write_photos
from vitrine.errors import ConfigError
from vitrine.jobs.check import CheckResult, check_data
from vitrine.jobs.finetune import DataOptions, Execution, finetune_model
from vitrine.jobs.inspect import InspectResult, inspect_model
from vitrine.jobs.predict import PredictResult, predict_pictures
from vitrine.recipes.options import RecipeOptions
from vitrine.runs.records import TrainingResult
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result

PHOTOS, INBOX, RUN = "photos", "inbox", "run"
# 96 pixels are a sixth of the work of 224, and enough for objects that fill a third of the picture.
SIZE, EPOCHS, BATCH, PEAK_RATE, HELD_OUT = 96, 10.0, 32, 5e-4, 0.2
# Marks a folder that a later demonstration may replace.
MARK = "demo.txt"
# The defaults of the verbs, but with fewer images to inspect.
COUNT, SHOWN, COMPONENTS, WORKERS = 6, 3, 28, 2


@dataclass(frozen=True, kw_only=True)
class DemoStep:
    """The command that does the next step; presented before it."""

    verb: str
    arguments: tuple[Path, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, repr=False)
class DemoResult(Result):
    """The scores of the demonstration, and the pages that it wrote."""

    folder: Path
    num_pictures: int
    num_faults: int
    num_faults_found: int
    accuracy: float
    interval: tuple[float, float]
    chance: float
    images_per_second: float
    pages: tuple[Path, ...]

    @property
    def exit_code(self) -> int:
        """1 if the check missed a planted fault."""
        return int(self.num_faults_found < self.num_faults)


def run_demo(out: Path, *, images: int, steps: int | None, device: str) -> DemoResult:
    """Render pictures with some planted faults, then run the four verbs on them."""
    create_folder(out)
    photos, inbox, run = out / PHOTOS, out / INBOX, out / RUN
    faults = write_photos(photos, count=images)
    write_inbox(inbox)
    checked = check_photos(photos, out=out / "check")
    num_found = num_faults_found(checked, faults)
    tuned = finetune_on(photos, out=run, steps=steps, device=device)
    inspected = inspect_on(run, inbox, out=out / "inspect", device=device)
    predicted = predict_all(run, inbox, out=out / "predictions.csv", device=device)
    assert tuned.accuracy is not None and tuned.interval is not None
    report = () if tuned.report is None else (tuned.report,)
    return DemoResult(
        folder=out,
        num_pictures=checked.num_images,
        num_faults=len(faults),
        num_faults_found=num_found,
        accuracy=tuned.accuracy,
        interval=tuned.interval,
        chance=1 / len(CLASSES),
        images_per_second=tuned.images_per_second,
        pages=(*checked.wrote[:1], *report, *inspected.wrote[:1], *map(Path, predicted.wrote)),
    )


def check_photos(photos: Path, *, out: Path) -> CheckResult:
    """Check the photos, as `vitrine check` does."""
    present(DemoStep(verb="check", arguments=(photos,), options={"out": out}))
    return check_data(
        str(photos), out=out, is_strict=False, is_near=True, num_workers=0, is_cached=True, is_overwriting=False,
    )  # fmt: skip


def finetune_on(photos: Path, *, out: Path, steps: int | None, device: str) -> TrainingResult:
    """Fine-tune the bundled model on the photos, as `vitrine finetune` does."""
    epochs = None if steps else EPOCHS
    options: RecipeOptions = {
        "size": SIZE, "epochs": epochs, "steps": steps, "batch_size": BATCH, "lr": PEAK_RATE,
    }  # fmt: skip
    present(
        DemoStep(verb="finetune", arguments=(photos,), options={"out": out, **options, "hold_out": HELD_OUT})
    )
    return finetune_model(
        str(photos), model=BOX, recipe="photos", options=options, out=out,
        data_options=DataOptions(hold_out=HELD_OUT), execution=Execution(device=device),
    )  # fmt: skip


def inspect_on(run: Path, inbox: Path, *, out: Path, device: str) -> InspectResult:
    """Look inside the model with the new pictures, as `vitrine inspect` does."""
    options = {"out": out, "count": COUNT, "show": SHOWN}
    present(DemoStep(verb="inspect", arguments=(run, inbox), options=options))
    return inspect_model(
        str(run), (str(inbox),), out=out, count=COUNT, num_shown=SHOWN, num_components=COMPONENTS, patch=None,
        layer=None, class_name=None, image_size=None, workers=WORKERS, device=device, is_overwriting=False,
    )  # fmt: skip


def predict_all(run: Path, inbox: Path, *, out: Path, device: str) -> PredictResult:
    """Classify the new pictures, as `vitrine predict` does."""
    present(DemoStep(verb="predict", arguments=(run, inbox), options={"out": out}))
    predicted = predict_pictures(
        str(run), (str(inbox),), out=out, top=None, image_size=None, batch_size=None, workers=WORKERS,
        device=device, precision="fp32", is_strict=False, is_overwriting=False,
    )  # fmt: skip
    assert isinstance(predicted, PredictResult)
    return predicted


def create_folder(folder: Path) -> None:
    """Create the folder; replace an earlier demonstration, and nothing else."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise ConfigError(
                f"{folder} holds something other than a demonstration; choose another folder", option="out"
            )
        shutil.rmtree(folder)
    with write_atomically(folder / MARK, mode="w") as file:
        file.write("Vitrine's demonstration wrote this folder and replaces it the next time.\n")


def num_faults_found(checked: CheckResult, faults: tuple[Fault, ...]) -> int:
    """Report the problems that the check found, and count the planted faults among them."""
    reported = {(issue.path, issue.problem) for issue in checked.issues}
    for issue in checked.issues:
        notice(f"  {issue.problem}: {issue.path}: {issue.detail}")
    return sum((fault.path, fault.problem) in reported for fault in faults)
