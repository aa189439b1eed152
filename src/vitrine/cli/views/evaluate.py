"""How `vitrine evaluate` shows its plan and its figures."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Wrote, input_text
from vitrine.evaluation.metrics import compared
from vitrine.evaluation.number_line import NumberFigures
from vitrine.evaluation.test_views import NUM_VIEWS
from vitrine.jobs.evaluate import EvaluateResult
from vitrine.jobs.evaluate_detections import DetectionEvaluation
from vitrine.jobs.evaluate_masks import MaskEvaluation
from vitrine.jobs.evaluate_objectnet import ObjectNetEvaluation
from vitrine.jobs.evaluate_parts import PartsEvaluation
from vitrine.jobs.evaluation_outputs import EvaluatePlan
from vitrine.spelling import counted, with_first

CLASS_MEASURES = {"f1": "F1", "average_precision": "average precision"}


def lines(
    result: EvaluateResult | ObjectNetEvaluation | MaskEvaluation | DetectionEvaluation | PartsEvaluation,
) -> Iterator[Line]:
    """Show the headline figures, the worst classes and the files."""
    if isinstance(result, MaskEvaluation):
        yield from mask_lines(result)
    elif isinstance(result, DetectionEvaluation):
        yield from detection_lines(result)
    elif isinstance(result, PartsEvaluation):
        yield from parts_lines(result)
    elif isinstance(result, ObjectNetEvaluation):
        yield from objectnet_lines(result)
    else:
        yield from classification_lines(result)


def mask_lines(result: MaskEvaluation) -> Iterator[Line]:
    """Show mean IoU, the worst classes and the confused classes."""
    yield f"{result.model} on {result.data} ({result.split}): {counted(result.num_images, 'picture')}"
    yield (
        f"Mean IoU {100 * result.mean_iou:.2f} %, pixel accuracy {100 * result.pixel_accuracy:.2f} %, mean accuracy "
        f"{100 * result.mean_accuracy:.2f} %"
    )
    yield f"Worst classes by IoU: {', '.join(f'{name} {100 * value:.1f} %' for name, value in result.worst)}"
    if result.confused:
        label, predicted, pixels = result.confused[0]
        yield f"Most confused: {label} taken for {predicted}, {counted(pixels, 'pixel')}"
    yield from map(Wrote, result.wrote)
    yield NextStep(f"open {glued(result.wrote[-1])} in a browser")


def detection_lines(result: DetectionEvaluation) -> Iterator[Line]:
    """Show COCO's twelve numbers and the worst classes."""
    yield (
        f"{result.detections} against {result.annotations}: {counted(result.num_images, 'picture')}, "
        f"{counted(result.num_truths, 'object')}, {counted(result.num_detections, 'detection')}"
    )
    names = list(result.numbers)
    for row in (names[:6], names[6:]):
        yield "  ".join(f"{name} {shown(result.numbers[name])}" for name in row)
    if result.worst:
        yield f"Worst classes by AP: {', '.join(f'{name} {shown(value)}' for name, value in result.worst)}"
    yield from map(Wrote, result.wrote)
    if result.wrote[-1].suffix == ".html":
        yield NextStep(f"open {glued(result.wrote[-1])} in a browser")


def parts_lines(result: PartsEvaluation) -> Iterator[Line]:
    """Show accuracy, calibration and the worst classes of predictions in parts."""
    yield (
        f"{result.folder}, predicted by {result.model}: {counted(result.num_images, 'image')}, "
        f"{result.num_classes:,} classes"
    )
    for words, interval in (("Top-1", result.top1), ("Top-5", result.top5)):
        if interval is not None:
            yield f"{words} {interval}"
    claimed = f"{compared(result.mean_confidence, result.top1)} ({100 * result.mean_confidence:.0f} %)"
    yield f"Mean F1 {100 * result.macro_f1:.2f} %, calibration error {100 * result.ece:.2f} %: {claimed}"
    if named := [f"{name} {100 * value:.1f} %" for name, value in result.worst if value < 1]:
        yield f"Worst classes by F1: {', '.join(named)}"
    if result.num_unreadable:
        yield f"Skipped, cannot be read: {counted(result.num_unreadable, 'file')}"
    yield from map(Wrote, result.wrote)


def objectnet_lines(result: ObjectNetEvaluation) -> Iterator[Line]:
    """Show both accuracies beside the paper's, the skipped pictures and the worst objects."""
    yield (
        f"{result.model} on {result.data} ({result.split}): {counted(result.num_images, 'image')}, "
        f"{result.num_objects} of {counted(result.num_all_objects, 'object')}"
    )
    yield f"Top-1 {result.top1}"
    yield f"Top-5 {result.top5}"
    for name, values in result.published.items():
        yield f"The paper's {name}: top-1 {values['top-1']} %, top-5 {values['top-5']} % (appendix D.9)"
    yield (
        f"Top-1 {result.top1_among_mapped} among the {result.num_mapped_classes} classes of these objects alone; "
        "do not compare it with the paper"
    )
    if named := [f"{name} {100 * value:.1f} %" for name, value in result.worst if value < 1]:
        yield f"Worst objects by top-1: {', '.join(named)}"
    if result.num_skipped:
        yield f"Skipped: {counted(result.num_skipped, 'image')} of objects that the model has no class for"
    if result.unreadable:
        yield f"Skipped, cannot be read: {with_first(result.unreadable, 'file')}"
    yield from map(Wrote, result.wrote)
    yield NextStep(f"open {glued(result.wrote[-1])} in a browser")


def shown(value: float) -> str:
    """Write a share in percent; a dash for None."""
    return f"{100 * value:.2f} %" if value >= 0 else "-"


def classification_lines(result: EvaluateResult) -> Iterator[Line]:
    """Show accuracy, calibration, the worst classes and the files."""
    known = f", {result.num_classes:,} classes" if result.number is None else ""
    yield f"{result.model} on {result.data} ({result.split}): {counted(result.num_images, 'image')}{known}"
    if result.number is not None:
        yield from number_lines(result.number)
    for words, interval in (("Top-1", result.top1), ("Top-5", result.top5)):
        if interval is not None:
            yield f"{words} {interval}"
    if result.top1_views is not None and result.views is not None:
        yield f"Top-1 {result.top1_views} as the mean of {NUM_VIEWS[result.views]} views ({result.views})"
    if result.real is not None:
        yield f"ReaL {result.real} on {result.num_real_images:,} images"
    if result.mean_average_precision is not None:
        yield f"Mean average precision {result.mean_average_precision}"
    if result.ece is not None and result.macro_f1 is not None:
        before = result.ece_uncalibrated
        was = "" if before is None else f" ({100 * before:.2f} % before calibration)"
        error = f"calibration error {100 * result.ece:.2f} %{was}{claim(result)}"
        yield f"Mean F1 {100 * result.macro_f1:.2f} %, {error}"
    for name, value in result.extra.items():
        if name != f"top1_{result.views}":
            yield extra_line(name, value)
    if named := [f"{name} {100 * value:.1f} %" for name, value in result.worst if value < 1]:
        yield f"Worst classes by {CLASS_MEASURES[result.class_measure]}: {', '.join(named)}"
    if result.unreadable:
        yield f"Skipped, cannot be read: {with_first(result.unreadable, 'file')}"
    yield from map(Wrote, result.wrote)
    if result.wrote:
        yield NextStep(f"open {glued(result.wrote[-1])} in a browser")


def number_lines(number: NumberFigures) -> Iterator[Line]:
    """Show the errors of a model of numbers."""
    yield (
        f"{number.name}: mean absolute error {number.mean_absolute_error:.4g} ({number.median_error:.4g} for always "
        f"answering the median), R² {number.r2:.3f}"
    )
    if number.half_width is not None and number.covered is not None:
        yield f"95 % range: ± {number.half_width:.4g}; it contains {100 * number.covered:.1f} % of the true numbers"


def claim(result: EvaluateResult) -> str:
    """Compare the accuracy of the model with its confidence."""
    if result.top1 is None or result.mean_confidence is None:
        return ""
    return f": {compared(result.mean_confidence, result.top1)} ({100 * result.mean_confidence:.0f} %)"


def extra_line(name: str, value: float) -> str:
    """Show one number of an evaluator."""
    if name == "majority_accuracy":
        return f"Always answering the most common class: {100 * value:.2f} %"
    return f"{name.replace('_', ' ')}: {value:.4g}"


def plan_lines(plan: EvaluatePlan) -> Iterator[Line]:
    """Show which model is evaluated on which images, and where the results go."""
    shape = input_text(plan.size, plan.max_patches, packed_attention=plan.packed_attention)
    yield (
        f"Plan: {plan.model} on {counted(plan.num_images, 'image')} of {plan.data} ({plan.split}), "
        f"{plan.num_classes:,} classes, {shape}, on {plan.device} in {plan.precision}; to {glued(plan.folder)}"
    )
