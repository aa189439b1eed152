"""How `vitrine fewshot` shows its plan and its scores."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, Next, Table, Wrote
from vitrine.commands.arguments import BOX
from vitrine.evaluation.fewshot import FewShotScore
from vitrine.evaluation.ridge import DEFAULT_L2
from vitrine.jobs.fewshot import FewShotPlan, FewShotReport
from vitrine.jobs.fewshot_pixels import PixelShotsReport
from vitrine.spelling import counted, with_first


def lines(report: FewShotReport | PixelShotsReport) -> Iterator[Line]:
    """Show one row per number of shots, and per strength of regularisation if there are several."""
    if isinstance(report, PixelShotsReport):
        yield from pixel_lines(report)
        return
    result = report.result
    yield (
        f"{report.model} on {report.data}: examples from {report.train_split}, tested on {report.test_split}; "
        f"{report.width:,} features"
    )
    yield (
        f"{result.probe} on {result.num_classes:,} classes, {counted(result.num_test, 'test image')}, "
        f"{counted(result.seeds, 'seed')}"
    )
    strengths = {score.l2 for score in result.scores}
    has_several = len(strengths) > 1
    if result.probe == "ridge" and strengths == {DEFAULT_L2}:
        yield f"Ridge regression as in the paper, l2 = {DEFAULT_L2:g}; finetune chooses its own strength"
    yield Table(
        [
            (
                f"{score.shots}-shot",
                *([f"l2 {score.l2:g}"] if has_several and score.l2 is not None else []),
                f"{100 * score.mean:.2f} %",
                spread_of(score, result.seeds),
            )
            for score in result.scores
        ],
        right=(0, 2 if has_several else 1),
        indent=2,
    )
    if report.unreadable:
        yield f"Skipped, cannot be read: {with_first(report.unreadable, 'file')}"
    yield Next("finetune", (report.data,), {} if report.model == BOX else {"model": report.model})


def pixel_lines(report: PixelShotsReport) -> Iterator[Line]:
    """Show mean IoU per number of masks."""
    yield (
        f"{report.model} on {report.data}: {len(report.classes):,} classes of pixels in closed form; masks drawn "
        f"from {report.num_train:,}, tested on {counted(report.num_test, 'picture')}, {counted(report.seeds, 'draw')}"
    )
    yield Table(
        [
            (
                counted(one.shots, "mask"),
                f"{100 * one.mean:.2f} %",
                "" if one.spread is None else f"± {100 * one.spread:.2f}",
                f"pixel accuracy {100 * sum(one.pixel_accuracies) / len(one.pixel_accuracies):.2f} %",
            )
            for one in report.scores
        ],
        right=(0, 1),
        indent=2,
    )
    yield from map(Wrote, report.wrote)


def spread_of(score: FewShotScore, seeds: int) -> str:
    """Write the spread over seeds, or why there is none."""
    if score.spread is not None:
        return f"± {100 * score.spread:.2f}"
    return "every draw is the same set" if seeds > 1 else ""


def plan_lines(plan: FewShotPlan) -> Iterator[Line]:
    """Show which images are used, and how."""
    size = "x".join(map(str, plan.size))
    word = "shot" if plan.shots == (1,) else "shots"
    yield (
        f"Plan: {plan.model} on {plan.num_train:,} images to draw from and {plan.num_test:,} to test on, "
        f"{plan.num_classes:,} classes, {size} px, on {plan.device} in {plan.precision}; {plan.probe} at "
        f"{', '.join(map(str, plan.shots))} {word}, {counted(plan.seeds, 'seed')}"
    )
