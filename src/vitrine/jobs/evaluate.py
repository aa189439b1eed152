"""The work behind `vitrine evaluate`: a model's outputs on a test set to figures, files and a page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitrine.checkpoints import load
from vitrine.data.sources.objectnet import ObjectNet
from vitrine.data.sources.opening import read_as
from vitrine.evaluation.classification import MultiLabel, SingleLabel
from vitrine.evaluation.evaluators import run_evaluators
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.number_line import NumberFigures
from vitrine.evaluation.outputs import Wish
from vitrine.evaluation.real import read_real
from vitrine.evaluation.scoring import ClassMeasure, SplitScore, score_split, uncalibrated_error
from vitrine.evaluation.test_sets import in_model_numbers, with_numbers
from vitrine.evaluation.test_views import TestViews, accuracy_of
from vitrine.jobs.evaluate_boxes import evaluate_box_model
from vitrine.jobs.evaluate_detections import DetectionEvaluation, evaluate_detections
from vitrine.jobs.evaluate_masks import MaskEvaluation, evaluate_mask_folders, evaluate_mask_model
from vitrine.jobs.evaluate_objectnet import ObjectNetEvaluation, evaluate_objectnet
from vitrine.jobs.evaluate_parts import PartsEvaluation, evaluate_parts, is_folder_of_parts
from vitrine.jobs.evaluation_files import numbers_of, unreadable_names, write_score
from vitrine.jobs.evaluation_inputs import (
    chosen_views,
    is_file_of_boxes,
    is_folder_of_masks,
    matched_with,
    require_no_views,
)
from vitrine.jobs.evaluation_outputs import outputs_on
from vitrine.jobs.model_argument import model_and_data, predicted_task
from vitrine.jobs.test_images import open_test_images, require_memory
from vitrine.models.sizes import ImageSize
from vitrine.runtime.result import Result
from vitrine.spelling import printable

MOST_WORST = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class EvaluateResult(Result):
    """The headline figures and the files that hold the rest."""

    model: str
    data: str
    split: str
    num_images: int
    unreadable: dict[str, str]
    num_classes: int
    top1: Interval | None
    top5: Interval | None
    top1_views: Interval | None = None
    """Top-1 accuracy of the mean over several views of each image, which is not comparable with `top1`."""
    views: TestViews | None = None
    """The views of `top1_views`."""
    real: Interval | None
    num_real_images: int | None
    ece: float | None
    mean_confidence: float | None
    """Mean probability of the answers: above `top1` the model is overconfident, below it underconfident."""
    ece_uncalibrated: float | None = None
    """Without the temperature that the model was calibrated with; None for a model that was not."""
    macro_f1: float | None
    mean_average_precision: Interval | None
    class_measure: ClassMeasure
    """The measure that ranks `worst`: F1, or average precision with several labels per image."""
    worst: tuple[tuple[str, float], ...]
    """Classes with the lowest `class_measure`, lowest first."""
    wrote: tuple[Path, ...]
    number: NumberFigures | None = None
    """Figures of a model of numbers, instead of those of classes."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the registered evaluators (`vitrine.evaluation.evaluators`)."""
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if the evaluation is strict and a file could not be read."""
        return int(self.is_strict and bool(self.unreadable))


def evaluate_model(
    model: str | None,
    data: str | None,
    *,
    split: str | None,
    real: Path | None,
    out: Path | None,
    by_order: bool,
    views: str | None,
    image_size: ImageSize,
    batch_size: int | None,
    workers: int | None,
    device: str,
    precision: Wish,
    seed: int,
    is_strict: bool,
    is_overwriting: bool,
) -> EvaluateResult | ObjectNetEvaluation | MaskEvaluation | DetectionEvaluation | PartsEvaluation:
    """Run the model on the test set, score it, and write predictions, metrics and the page.

    For predictions of another tool, only the score is computed.
    """
    scored = evaluate_predictions(model, data, out=out, is_overwriting=is_overwriting)
    if scored is not None:
        return scored
    model, data = model_and_data("evaluate", model, data, device=device)
    task = predicted_task(model)
    if task != "classes":
        require_no_views(views, task)
        evaluate = evaluate_mask_model if task == "masks" else evaluate_box_model
        return evaluate(
            model, read_as(data, task), split=split, out=out, image_size=image_size, workers=workers,
            device=device, precision=precision, is_overwriting=is_overwriting,
        )  # fmt: skip
    name, source = open_test_images(model, data, split)
    loaded = load(model, image_size=image_size)
    if isinstance(source, ObjectNet):
        return evaluate_objectnet(
            loaded, source, model=model, data=data, split=name, real=real, views=views, out=out, by_order=by_order,
            batch_size=batch_size, workers=workers, device=device, precision=precision, seed=seed,
            is_strict=is_strict, is_overwriting=is_overwriting,
        )  # fmt: skip
    is_numeric = loaded.record.number is not None
    matched = with_numbers(source) if is_numeric else matched_with(loaded, source, by_order=by_order)
    require_memory(matched, num_outputs=loaded.model.config.num_classes or 1, model=model, data=data)
    lists = None if real is None else in_model_numbers(read_real(real, source), source, matched)
    chosen = chosen_views(views, matched, loaded)
    outputs, of_views, folder, is_first = outputs_on(
        matched, loaded, model=model, data=data, split=name, out=out, views=chosen, batch_size=batch_size,
        workers=workers, device=device, precision=precision, is_overwriting=is_overwriting,
    )  # fmt: skip
    if is_numeric:
        figures, wrote = numbers_of(outputs, matched, loaded, folder, model=model, is_first=is_first)
        return EvaluateResult(
            model=model, data=printable(data), split=name, num_images=figures.num_images,
            unreadable=unreadable_names(matched, outputs.failures), num_classes=1, top1=None, top5=None, real=None,
            num_real_images=None, ece=None, mean_confidence=None, macro_f1=None, mean_average_precision=None,
            class_measure="f1", worst=(), wrote=wrote, number=figures, is_strict=is_strict,
        )  # fmt: skip
    score = score_split(outputs, matched, split=name, real=lists, seed=seed)
    top1_views = None if of_views is None else accuracy_of(of_views, matched, seed=seed)
    extra = dict(run_evaluators(score))
    if top1_views is not None:
        extra[f"top1_{chosen}"] = top1_views.value
    wrote = write_score(folder, score, extra, model=model) if is_first else ()
    return _result(
        score, extra, model=model, wrote=wrote, is_strict=is_strict, top1_views=top1_views, views=chosen,
        ece_uncalibrated=uncalibrated_error(score, loaded.record.calibration),
    )  # fmt: skip


def evaluate_predictions(
    model: str | None, data: str | None, *, out: Path | None, is_overwriting: bool
) -> MaskEvaluation | DetectionEvaluation | PartsEvaluation | None:
    """Score predictions that were made before, by this or another tool; None if the words name a model."""
    if is_file_of_boxes(model) and is_file_of_boxes(data):
        return evaluate_detections(Path(str(model)), Path(str(data)), out=out, is_overwriting=is_overwriting)
    if is_folder_of_masks(model) and is_folder_of_masks(data):
        return evaluate_mask_folders(
            Path(str(model)), Path(str(data)), out=out, is_overwriting=is_overwriting
        )
    if data is None and model is not None and is_folder_of_parts(model):
        return evaluate_parts(model, out=out, is_overwriting=is_overwriting)
    return None


def _result(
    score: SplitScore,
    extra: Mapping[str, float],
    *,
    model: str,
    wrote: tuple[Path, ...],
    is_strict: bool,
    ece_uncalibrated: float | None,
    top1_views: Interval | None,
    views: TestViews | None,
) -> EvaluateResult:
    figures = score.figures
    single = figures if isinstance(figures, SingleLabel) else None
    return EvaluateResult(
        model=model,
        data=printable(score.source.address),
        split=score.split,
        num_images=figures.num_images,
        unreadable=unreadable_names(score.source, score.outputs.failures),
        num_classes=len(score.source.classes),
        top1=single.top1 if single else None,
        top5=single.top5 if single else None,
        top1_views=top1_views,
        views=views,
        real=single.real if single else None,
        num_real_images=single.num_real_images if single else None,
        ece=single.calibration.ece if single else None,
        mean_confidence=single.calibration.mean_confidence if single else None,
        ece_uncalibrated=ece_uncalibrated,
        macro_f1=single.macro_f1 if single else None,
        mean_average_precision=figures.mean_average_precision if isinstance(figures, MultiLabel) else None,
        class_measure=score.class_measure,
        worst=tuple(score.worst_classes[:MOST_WORST]),
        wrote=wrote,
        extra=extra,
        is_strict=is_strict,
    )
