"""How `vitrine finetune`, `pretrain` and `resume` show their plan and their result."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vitrine.cli.lines import Line, Next, Table, Wrote
from vitrine.cli.views.evaluate import number_lines as number_figures
from vitrine.data.decoding.annotation import DataTask
from vitrine.evaluation.familiarity import LEAST_HELD_OUT, false_alarms
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.number_line import NumberFigures
from vitrine.evaluation.scoring import ClassMeasure, Mistake
from vitrine.runs.records import ClosedFormScore, TrainingResult
from vitrine.spelling import counted, duration, some_of

# Fine-tuning a closed form of 30 to 86 % added 1 to 14 points, one of 93 % none (docs/experiments.md).
HARD_TO_BEAT = 0.9
# With fewer images, the expected calibration error depends mainly on their number.
LEAST_FOR_ERROR = 100
DENSE_ANSWERS: dict[DataTask, str] = {
    "masks": "a mask", "boxes": "boxes", "instances": "masks of objects",
}  # fmt: skip
MEASURES: dict[ClassMeasure, str] = {"f1": "F1", "average_precision": "average precision"}


def lines(result: TrainingResult) -> Iterator[Line]:
    """Show the score of a run, its worst classes and mistakes, and what it wrote."""
    if result.skipped:
        yield f"Skipped {counted(len(result.skipped), 'unreadable file')}; data.json lists them"
    if result.number is not None:
        yield from number_lines(result, result.number)
        return
    if not result.has_head:
        yield from lines_without_labels(result)
        return
    if result.task != "classes":
        yield from dense_lines(result)
        return
    if result.classes_without_validation:
        yield f"Not evaluated, as no image is held out: {some_of(result.classes_without_validation)}"
    yield score_sentence(result)
    yield from comparison(result)
    yield from calibration_lines(result)
    yield from few_held_out_lines(result)
    yield from worst_lines(result.worst, result.worst_by, result.mistakes)
    yield Wrote(result.model, "weights, preprocessing, classes")
    if result.adapter is not None:
        size = sum(file.stat().st_size for file in result.adapter.iterdir())
        yield Wrote(result.adapter, f"the adapters alone, in PEFT's format, {size / 1e6:.1f} MB")
    if result.report is not None:
        yield Wrote(result.report, "curves, mistakes, attention")
    if result.data and Path(result.data).exists():
        yield Next("inspect", (result.folder, result.data), note="attention and other figures")
        yield Next("predict", (result.folder, "PICTURES"), note="files, folders, patterns")
    else:
        yield Next("predict", (result.folder, "PICTURES"))
        yield Next("inspect", (result.folder, "PICTURES"))


def number_lines(result: TrainingResult, number: NumberFigures) -> Iterator[Line]:
    """Show the errors of a model of numbers, and what it wrote."""
    images = counted(number.num_images, "image" if result.is_left_out else "validation image")
    left_out = ", each predicted by a fit without it" if result.is_left_out else ""
    yield f"Ridge regression on features of the model, scored on {images}{left_out}"
    yield from number_figures(number)
    yield Wrote(result.model, "weights, preprocessing, the name of the number")
    if result.report is not None:
        yield Wrote(result.report, "predicted and true numbers, largest errors")
    yield Next("predict", (result.folder, "PICTURES"), note="files, folders, patterns")


def dense_lines(result: TrainingResult) -> Iterator[Line]:
    """Show the scores of a run on masks or boxes, and what it wrote."""
    numbers, steps = result.evaluation, counted(result.steps, "step")
    names = {"mean_iou": "mean IoU", "pixel_accuracy": "pixel accuracy"}
    if result.task in ("boxes", "instances"):
        names = {"AP": "AP", "AP50": "AP50"}
    if all(name in numbers for name in names):
        when = f"after {steps}"
        if result.best_step is not None and result.best_step != result.steps:
            when = f"after step {result.best_step:,} of {result.steps:,}, the best evaluation"
        scores = ", ".join(f"{words} {100 * numbers[name]:.1f} %" for name, words in names.items())
        pictures = counted(result.num_validation, "validation picture")
        yield f"{scores[0].upper()}{scores[1:]} on {pictures}, {when}"
    else:
        yield f"Trained for {steps} on all pictures; nothing was held out, so there is no validation score"
    yield Wrote(result.model, "weights, preprocessing, classes")
    if result.report is not None:
        yield Wrote(result.report, "curves")
    note = f"{DENSE_ANSWERS[result.task]} and an overlay per picture"
    yield Next("predict", (result.folder, "PICTURES"), {"out": result.task}, note=note)


def score_sentence(result: TrainingResult) -> str:
    """Write the accuracy, or why there is none."""
    steps = counted(result.steps, "step")
    if result.accuracy is None or result.interval is None:
        if result.trains_on_all:
            return f"Trained for {steps} on all images, those held out for the sweep included"
        return f"Trained for {steps} on all images; nothing was held out, so there is no validation score"
    low, high = result.interval
    if result.num_kept_classes:
        return (
            f"Kept {result.num_kept_classes:,} classes and added the new ones; accuracy "
            f"{share_text(result.accuracy, result.interval)} on {counted(result.num_validation, 'new image')}, each "
            "scored among all classes by a classifier that was fitted without it"
        )
    if result.is_left_out:
        return left_out_sentence(result, result.accuracy, result.interval)
    when = f"after {steps}"
    if result.best_step is not None and result.best_step != result.steps:
        last = result.evaluation.get("accuracy")
        end = "" if last is None else f"; {100 * last:.1f} % at the end"
        when = f"after step {result.best_step:,} of {result.steps:,}, the best evaluation{end}"
    if result.mean_average_precision is not None:
        return (
            f"Mean average precision {interval_text(result.mean_average_precision)} on "
            f"{counted(result.num_validation, 'validation image')}; the most likely class is one of the labels for "
            f"{100 * result.accuracy:.1f} % of them, {when}"
        )
    return (
        f"Accuracy {100 * result.accuracy:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on "
        f"{counted(result.num_validation, 'validation image')}, {when}"
    )


def left_out_sentence(result: TrainingResult, accuracy: float, interval: tuple[float, float]) -> str:
    """Write the score of images that were each left out of one fit."""
    fitted = "each scored by a classifier that was fitted without it; the saved one is fitted to all of them"
    images = counted(result.num_validation, "image")
    if result.mean_average_precision is not None:
        return (
            f"Mean average precision {interval_text(result.mean_average_precision)} on {images}, {fitted}; the most "
            f"likely class is one of the labels for {100 * accuracy:.1f} % of them"
        )
    return f"Accuracy {share_text(accuracy, interval)} on {images}, {fitted}"


def comparison(result: TrainingResult) -> Iterator[Line]:
    """Show what the run chose from, all on the same images, and what it saved."""
    if not result.contenders:
        return
    rows = [
        (
            f"  {one.name}",
            share_text(one.accuracy, one.interval),
            duration(one.seconds),
            "saved" if one.is_saved else "",
        )
        for one in result.contenders
    ]
    yield Table(rows)


def calibration_lines(result: TrainingResult) -> Iterator[Line]:
    """Show what calibration changed, if there are enough images to measure it."""
    fit = result.calibration
    if fit is None:
        return
    images = counted(int(fit["num_images"]), "image" if result.is_left_out else "validation image")
    if fit["ece_after"] is None or fit["num_images"] < LEAST_FOR_ERROR:
        yield f"Probabilities calibrated on {images}"
        return
    yield (
        f"Probabilities calibrated on {images}: expected calibration error {100 * fit['ece_before']:.1f} % before, "
        f"{100 * fit['ece_after']:.1f} % after"
    )


def few_held_out_lines(result: TrainingResult) -> Iterator[Line]:
    """State how reliable "none of these" is with few held-out images."""
    count = result.num_validation
    if 0 < count < LEAST_HELD_OUT and not result.num_kept_classes:
        yield (
            f'"None of these" marks about 1 in {1 / false_alarms(count):.0f} pictures of the classes by mistake: '
            f"1 in 20 needs {LEAST_HELD_OUT} held-out images"
        )


def share_text(value: float, interval: tuple[float, float]) -> str:
    """Write an accuracy with its interval, short: `81.6 % (78.0 to 84.9)`."""
    return f"{100 * value:.1f} % ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def closed_form_lines(score: ClosedFormScore) -> Iterator[Line]:
    """Show what the solved head reaches before training begins, by its name in the table of the result."""
    name = score.contenders[0].name if score.contenders else "closed form"
    yield (
        f"{name.capitalize()}: {share_text(score.accuracy, score.interval)} of {score.num_images:,} training images, "
        f"each scored by a {score.method} classifier without it, after {duration(score.seconds)}"
    )
    gain = (
        "it rarely improves on a score this high"
        if score.accuracy >= HARD_TO_BEAT
        else "it added 1 to 14 points in our measurements"
    )
    yield f"  Training starts from it ({gain}) and stops early without a gain; the better on left-out images is saved"


def interval_text(interval: Interval) -> str:
    """Write a share with its interval: `81.6 % (95 % interval 78.0 to 84.9)`."""
    return (
        f"{100 * interval.value:.1f} % (95 % interval {100 * interval.low:.1f} to {100 * interval.high:.1f})"
    )


def worst_lines(
    worst: Sequence[tuple[str, float]], measure: ClassMeasure, mistakes: Sequence[Mistake]
) -> Iterator[Line]:
    """Show the classes with the lowest scores, and the most confident mistakes."""
    if named := [f"{name} {100 * value:.0f} %" for name, value in worst if value < 1]:
        yield f"Worst classes by {MEASURES[measure]}: {', '.join(named)}"
    if mistakes:
        yield "Most confident mistakes:"
    for mistake in mistakes:
        yield f"  {mistake.path}: {mistake.predicted} ({100 * mistake.confidence:.0f} %)"


def lines_without_labels(result: TrainingResult) -> Iterator[Line]:
    """Show what was measured of a representation."""
    if result.evaluation.get("collapsed"):
        yield "The representation has collapsed; see log.txt"
    numbers = {name: value for name, value in result.evaluation.items() if name != "collapsed"}
    measured = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
    images = counted(result.num_validation, "validation image")
    evaluation = f"on {images}: {measured}" if measured else "nothing was held out, so there is no evaluation"
    yield f"Trained with objective {result.objective} for {counted(result.steps, 'step')}; {evaluation}"
    yield Wrote(result.model, "weights, preprocessing, no head yet")
    yield Next("finetune", ("DATA",), {"model": result.folder})
    yield Next("fewshot", (result.folder, "DATA"))
