"""The page of a run, written at its end, when it is stopped, and by `report`."""

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.checkpoints import Loaded, load
from vitrine.checkpoints.record import config_from_json, variant_of
from vitrine.data.sources.source import Source
from vitrine.evaluation.metrics import Interval, wilson_interval
from vitrine.evaluation.outputs import Outputs, run_model, this_rank
from vitrine.evaluation.scoring import ClassMeasure, Mistake, SplitScore, score_split
from vitrine.inspection.pictures import as_shown
from vitrine.inspection.rollout import rollout
from vitrine.models import ViT
from vitrine.models.cost import cost_of, training_exaflops
from vitrine.models.dense.config import DenseConfig
from vitrine.models.sizes import shown
from vitrine.reports.figure_style import overlay
from vitrine.reports.pages import data_url, write_page
from vitrine.reports.run_account import RunAccount, read_account
from vitrine.reports.run_page import Attention, render_run
from vitrine.runs.dense_report import DenseSection, dense_section
from vitrine.runtime.progress import quiet
from vitrine.runtime.result import Result
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import duration

MOST_WORST, MOST_MISTAKES = 5, 3
VALIDATION = "val"
LEFT_OUT_NOTE = "Every image was scored by a classifier that was fitted without it."
CARD_SIDE = 192


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport(Result):
    """The page of a run, and its headline."""

    folder: Path
    file: Path | None
    """None on processes that do not write it."""
    steps: int
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    num_images: int = 0
    mean_average_precision: Interval | None = None
    """With several labels per image, instead of the accuracy."""
    worst: tuple[tuple[str, float], ...] = ()
    """Classes with the lowest measure, lowest first."""
    worst_by: ClassMeasure = "f1"
    mistakes: tuple[Mistake, ...] = ()
    """Images that are classified wrongly, most confident first."""
    notes: tuple[str, ...] = ()
    dense: str | None = None
    """The headline of masks or boxes, in place of the accuracy."""


def write_report(
    folder: RunFolder,
    *,
    splits: Mapping[str, Source] | None = None,
    outputs: Outputs | None = None,
    device: torch.device | str = "cpu",
    workers: int = 2,
    out: Path | None = None,
    notes: Sequence[str] = (),
    scores_dense: bool = False,
) -> RunReport:
    """Score a run's model on its validation split, if both exist, and write the page of the run.

    Masks and boxes are scored again, for the worst pictures, only with `scores_dense`.

    `outputs` are the model's logits on that split, if they were computed already. Every process must call it; the
    first one writes.
    """
    account = read_account(folder.path)
    score, loaded = None, None
    if splits is not None and VALIDATION in splits and account.is_finished and has_classes(account):
        with quiet():
            loaded = load(folder.model)
        split = "left-out" if LEFT_OUT_NOTE in notes else "validation"
        score = scored(loaded, splits[VALIDATION], outputs, split=split, device=device, workers=workers)
    interval = interval_of(score)
    section = None
    if scores_dense and splits is not None and VALIDATION in splits and account.is_finished:
        section = section_of(folder, splits[VALIDATION], device=device, workers=workers)
    file = None
    if this_rank()[0] == 0:
        page = render_run(
            account,
            score=score,
            interval=interval,
            attention=None if loaded is None or score is None else attention_of(loaded, score.source, device),
            facts=headline_facts(account),
            notes=notes,
            dense=None if section is None else (section.headline, section.template, section.values),
        )
        file = write_page(out or folder.report_file, page)
    report = RunReport(folder=folder.path, file=file, steps=account.steps, notes=tuple(notes))
    if section is not None:
        return dataclasses.replace(report, dense=section.headline, num_images=section.num_images)
    return report if score is None else with_score(report, score)


def section_of(
    folder: RunFolder, source: Source, *, device: torch.device | str, workers: int
) -> DenseSection | None:
    """Score a model of masks or boxes on the validation split; None for other models."""
    with quiet():
        loaded = load(folder.model)
    if not isinstance(loaded.model.config, DenseConfig):
        return None
    return dense_section(loaded, source, device=device, workers=workers)


def interval_of(score: SplitScore | None) -> tuple[float, float] | None:
    """Return the 95 % interval of the accuracy, where it was measured."""
    if score is None or score.accuracy is None:
        return None
    return wilson_interval(score.accuracy, score.figures.num_images)


def with_score(report: RunReport, score: SplitScore) -> RunReport:
    """Add what was measured on the validation split."""
    return dataclasses.replace(
        report,
        accuracy=score.accuracy,
        interval=interval_of(score),
        num_images=score.figures.num_images,
        mean_average_precision=score.mean_average_precision,
        worst=tuple(score.worst_classes[:MOST_WORST]),
        worst_by=score.class_measure,
        mistakes=score.mistakes(MOST_MISTAKES),
    )


def has_classes(account: RunAccount) -> bool:
    """Whether the run's model classifies whole images."""
    config = config_from_json(account.run["model"])
    return config.num_classes is not None and not isinstance(config, DenseConfig)


def scored(
    loaded: Loaded,
    source: Source,
    outputs: Outputs | None,
    *,
    split: str,
    device: torch.device | str,
    workers: int,
) -> SplitScore:
    """Score the model on the validation images; compute its outputs unless they are there."""
    if outputs is None:
        outputs = run_model(
            loaded.model.to(device), source, preprocess=loaded.preprocess, num_workers=workers, device=device,
            what="Evaluating the model",
        )  # fmt: skip
    return score_split(outputs, source, split=split)


def attention_of(loaded: Loaded, source: Source, device: torch.device | str) -> Attention | None:
    """Return the function that draws the attention on images; None without attention or without matplotlib."""
    is_native = loaded.preprocess.max_patches is not None  # without an image to draw on
    if is_native or not isinstance(loaded.model, ViT) or importlib.util.find_spec("matplotlib") is None:
        return None

    def draw(indices: NDArray[np.int64]) -> list[str | None]:
        preprocess, model = loaded.preprocess, loaded.model.to(device)
        examples = [source.read(int(index)) for index in indices]
        pixels = torch.stack([preprocess.pixels(preprocess.decode(e.data, name=e.name)) for e in examples])
        maps = rollout(model, preprocess.normalise(pixels.to(device)))  # (B, GH, GW)
        return [
            data_url((255 * overlay(picture, weights)).round().astype(np.uint8), CARD_SIDE)
            for picture, weights in zip(as_shown(pixels), maps, strict=True)
        ]

    return draw


def headline_facts(account: RunAccount) -> list[tuple[str, str]]:
    """Collect the figures at the top of the page: model, time, speed, operations."""
    config = config_from_json(account.run["model"])
    max_patches = account.run["preprocess"].get("max_patches")
    cost = cost_of(config, patches=max_patches)
    seen = account.steps * account.batch_size
    seconds = account.training_seconds
    shape = f"{shown(config.image_size)} px" if max_patches is None else f"at most {max_patches} patches"
    model = f"{variant_of(config) or 'a model'} at {shape}"
    if account.run["verb"] == "finetune":
        model += f", from {account.recipe['model']}"
    facts = [(f"{cost.params / 1e6:.1f} M", f"parameters; {model}")]
    if not account.steps:
        return [*facts, ("0", "training steps: the head was solved in closed form")]
    facts.append((f"{account.steps:,}", f"steps of {account.batch_size}, {seen:,} images seen"))
    if seconds:
        machine = account.environment.get("gpu") or "a CPU"
        facts.append((duration(seconds), f"training on {machine}, {seen / seconds:,.0f} images/s"))
    most = "" if max_patches is None else "at most "
    teraflops = 1e6 * training_exaflops(cost.macs, images=seen, epochs=1)
    if teraflops < 1e3:
        facts.append((f"{most}{teraflops:,.3g}", "teraFLOPs of training"))
    else:
        facts.append((f"{most}{teraflops / 1e3:,.3g}", "petaFLOPs of training"))
    return facts
