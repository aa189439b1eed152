"""How `vitrine predict` shows its answers."""

from collections.abc import Iterator

from vitrine.cli.command_line import option
from vitrine.cli.lines import Line, Next, NextStep, Table, Wrote, input_text
from vitrine.cli.views.embed import parts_lines
from vitrine.jobs.model_argument import PicturesPlan
from vitrine.jobs.predict import PredictResult
from vitrine.jobs.predict_boxes import BoxPredictions
from vitrine.jobs.predict_masks import MaskPredictions
from vitrine.serving.answers import DEFAULT_COVERAGE, Prediction
from vitrine.serving.output_files import STANDARD_OUTPUT
from vitrine.spelling import counted, with_name

BAR_WIDTH = 24
# Classes that are counted on the terminal after the pictures.
MOST_TALLIED = 10


def lines(result: PredictResult | MaskPredictions | BoxPredictions) -> Iterator[Line]:
    """Show what was predicted, and where it was written."""
    if isinstance(result, MaskPredictions):
        yield from mask_lines(result)
    elif isinstance(result, BoxPredictions):
        yield from box_lines(result)
    else:
        yield from class_lines(result)


def class_lines(result: PredictResult) -> Iterator[Line]:
    """Show all answers about one picture, or one line per picture; nothing where the answers went here already."""
    if STANDARD_OUTPUT in result.wrote:
        return
    if result.parts is not None:
        failed = f"; {result.num_errors:,} cannot be read" if result.num_errors else ""
        yield f"{counted(result.num_pictures, 'picture')}{failed}"
        yield from parts_lines(result.parts)
        return
    if len(result.predictions) == 1:
        yield from single_picture(result.predictions[0], result)
    else:
        yield from (picture_line(one, count=result.num_listed) for one in result.predictions)
    if result.num_pictures > 1:
        failed = f"; {result.num_errors:,} cannot be read" if result.num_errors else ""
        yield f"{result.num_pictures:,} pictures{failed}"
        if result.numbers is not None:
            low, mean, high = result.numbers
            yield f"  {result.number}: mean {mean:.4g}, from {low:.4g} to {high:.4g}"
        else:
            yield from tally_lines(result)
        if result.num_unfamiliar and result.false_alarms:
            look = "looks" if result.num_unfamiliar == 1 else "look"
            yield (
                f"{result.num_unfamiliar:,} of them {look} like none of the {result.num_classes:,} classes; about "
                f"1 in {1 / result.false_alarms:.0f} pictures of the classes does, too"
            )
    yield from map(Wrote, result.wrote)
    if result.num_errors == result.num_pictures:
        return
    if len(result.predictions) > 1:
        yield NextStep(f"the same command with {option('out', 'predictions.csv')}")
    else:
        yield Next("inspect", (result.model, result.first), note="attention and other figures")


def mask_lines(result: MaskPredictions) -> Iterator[Line]:
    """Show which classes cover the pictures, and where the masks are."""
    failed = f"; {result.num_errors:,} cannot be read" if result.num_errors else ""
    yield f"{counted(result.num_pictures, 'picture')}{failed}"
    rows = list(result.shares.items())
    yield Table([(percent(share), name) for name, share in rows[:MOST_TALLIED]], right=(0,), indent=2)
    if len(rows) > MOST_TALLIED:
        yield f"  and {len(rows) - MOST_TALLIED:,} more classes"
    yield from map(Wrote, result.wrote)


def box_lines(result: BoxPredictions) -> Iterator[Line]:
    """Show how many objects of each class were found, and where the boxes are."""
    failed = f"; {result.num_errors:,} cannot be read" if result.num_errors else ""
    yield f"{counted(result.num_pictures, 'picture')}{failed}; {counted(sum(result.counts.values()), 'object')}"
    rows = list(result.counts.items())
    yield Table([(f"{count:,}", name) for name, count in rows[:MOST_TALLIED]], right=(0,), indent=2)
    if len(rows) > MOST_TALLIED:
        yield f"  and {len(rows) - MOST_TALLIED:,} more classes"
    yield from map(Wrote, result.wrote)


def tally_lines(result: PredictResult) -> Iterator[Line]:
    """Count the pictures per class, the most frequent classes first."""
    tally = list(result.tally.items())
    yield Table([(f"{count:,}", name) for name, count in tally[:MOST_TALLIED]], right=(0,), indent=2)
    if len(tally) > MOST_TALLIED:
        yield f"  and {len(tally) - MOST_TALLIED:,} more classes"
    if result.num_without_label:
        yield f"  no label applies to {result.num_without_label:,}"


def single_picture(prediction: Prediction, result: PredictResult) -> Iterator[Line]:
    """Show the answers about a single picture, with a bar for each probability."""
    if prediction.error is not None:
        yield with_name(prediction.error, prediction.name)
        return
    yield prediction.name
    if prediction.number is not None:
        yield f"  {result.number}: {number_text(prediction)}"
        if prediction.interval is not None:
            share = DEFAULT_COVERAGE if result.coverage is None else result.coverage
            yield f"The range contains the true number in {100 * share:g} % of pictures like the training images"
        return
    yield Table(
        [
            (percent(one.probability), one.label, "█" * round(BAR_WIDTH * one.probability))
            for one in prediction.answers
        ],
        right=(0,),
        indent=1,
    )
    if prediction.labels is not None:
        yield f"Labels that apply (at least 50 %): {', '.join(prediction.labels) or 'none'}"
    yield f"The most likely of the {result.num_classes:,} classes of {result.model}"
    if prediction.none_of_these and result.false_alarms:
        yield (
            f"Looks like none of these; about 1 in {1 / result.false_alarms:.0f} pictures of the classes does, too"
        )
    if prediction.prediction_set is not None:
        yield f"With {percent(result.coverage or 0)} coverage: {', '.join(prediction.prediction_set)}"


def picture_line(prediction: Prediction, *, count: int) -> str:
    """Name the most likely classes of one picture of several."""
    if prediction.error is not None:
        return f"  error  {with_name(prediction.error, prediction.name)}"
    if prediction.number is not None:
        return f"  {prediction.name}: {number_text(prediction)}"
    if prediction.labels is not None and count == 1:
        return f"{prediction.name}: {', '.join(prediction.labels) or 'no label applies'}"
    best, *others = prediction.answers[:count]
    rest = "".join(f", {percent(one.probability)} {one.label}" for one in others)
    mark = " (none of these?)" if prediction.none_of_these else ""
    names = prediction.prediction_set
    several = "" if names is None else f"; set: {', '.join(names)}"
    return f"{percent(best.probability):>7}  {prediction.name}: {best.label}{rest}{mark}{several}"


def number_text(prediction: Prediction) -> str:
    """Write a number with the range that holds the true one: `3.2 (2.7 to 3.7)`."""
    if prediction.interval is None:
        return f"{prediction.number:.4g}"
    low, high = prediction.interval
    return f"{prediction.number:.4g} ({low:.4g} to {high:.4g})"


def percent(share: float) -> str:
    """Write a probability: `96.1 %`."""
    return f"{100 * share:.1f} %"


def plan_lines(plan: PicturesPlan) -> Iterator[Line]:
    """Show which model reads how many pictures."""
    shape = input_text(plan.size, plan.max_patches, packed_attention=plan.packed_attention)
    yield f"Plan: {plan.model} at {shape} on {plan.device}, {counted(plan.num_pictures, 'picture')}"
