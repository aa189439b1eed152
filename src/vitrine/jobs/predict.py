"""The work behind `vitrine predict`: pictures through a model to named classes, in memory or in a file."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrine.batch.columns import Columns
from vitrine.checkpoints import Loaded
from vitrine.checkpoints.text import PROMPTS, zero_shot
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.outputs import Wish
from vitrine.evaluation.streaming import Pace
from vitrine.jobs.model_argument import opened_pictures, plan_of, predicted_task
from vitrine.jobs.parts_job import (
    EngineName,
    PartsResult,
    compute_parts,
    is_parts_folder,
    open_predictor,
    require_one_process,
)
from vitrine.jobs.predict_boxes import BoxPredictions, predict_objects
from vitrine.jobs.predict_masks import MaskPredictions, predict_masks
from vitrine.jobs.prediction_files import exit_code_of
from vitrine.models.sizes import ImageSize
from vitrine.runtime.launch import share_of_work
from vitrine.runtime.places import Place, delivered
from vitrine.runtime.progress import announced, present
from vitrine.runtime.result import Result
from vitrine.serving.answers import Prediction
from vitrine.serving.output_files import PREDICTION_KINDS, STANDARD_OUTPUT, require_kind, write_predictions
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable

TOP = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class PredictResult(Result):
    """The predictions, or where they were written."""

    model: str
    num_classes: int
    num_pictures: int
    num_errors: int
    predictions: tuple[Prediction, ...]
    """In the order of the pictures; empty where they were written to a file."""
    first: str
    """The first picture that can be read, or else the first."""
    tally: dict[str, int] = field(default_factory=dict)
    """Number of pictures by their most likely class, or by each label that applies; most frequent first."""
    num_without_label: int = 0
    """Pictures to which no label applies, of a model of several labels per picture."""
    num_listed: int = 1
    """Classes that are shown per picture where there are several."""
    num_unfamiliar: int | None = None
    """Pictures that look like none of the classes; None if the model has no statistics for it."""
    false_alarms: float | None = None
    """The expected share of pictures of the classes that are wrongly counted as none of them."""
    number: str | None = None
    """Name of the number that the model predicts; None for a model of classes."""
    numbers: tuple[float, float, float] | None = None
    """Lowest, mean and highest of the predicted numbers."""
    coverage: float | None = None
    """Probability that a prediction set contains the true class, where sets were asked for."""
    wrote: tuple[Place, ...] = ()
    """The file or folder of the predictions; `-` is standard output."""
    parts: PartsResult | None = None
    """The parts that this process wrote, if the output is a folder of parts."""
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if no picture could be read, or if the command is strict and any could not."""
        return exit_code_of(self.num_errors, num_pictures=self.num_pictures, is_strict=self.is_strict)


def classifier_in_words(
    model: str, classes: Sequence[str], prompts: Sequence[str], *, engine: EngineName, image_size: ImageSize
) -> Loaded:
    """Build a classifier for the classes with the model's text tower."""
    if engine != "local":
        raise ConfigError(
            "does not support classes in words; save the classifier of vitrine.zero_shot and use it as the model",
            option="engine",
        )
    if image_size is not None:
        raise ConfigError("does not go with classes, which keep the model's size", option="size")
    return zero_shot(model, classes, prompts=prompts or PROMPTS)


def predict_pictures(
    model: str | None,
    pictures: Iterable[Any],
    *,
    out: Place | None,
    top: int | None,
    classes: Sequence[str] = (),
    prompts: Sequence[str] = (),
    coverage: float | None = None,
    part: str | None = None,
    part_size: int | None = None,
    engine: EngineName = "local",
    image_size: ImageSize,
    batch_size: int | None,
    workers: int | None,
    device: str,
    precision: Wish,
    is_strict: bool,
    is_overwriting: bool,
) -> PredictResult | MaskPredictions | BoxPredictions:
    """Predict the classes of all pictures, and write them to `out` where that is given.

    A model that answers with masks or boxes writes them, and overlays, into the folder `out`.
    """
    name, source = opened_pictures("predict", model, pictures, out=out, device=device)
    task = predicted_task(name)
    if task != "classes":
        if coverage is not None or top is not None or part is not None:
            option = "coverage" if coverage is not None else "top" if top is not None else "part"
            raise ConfigError(f"does not go with a model that predicts {task}", option=option)
        predict = predict_masks if task == "masks" else predict_objects
        return predict(
            name, source, out=output_folder(out, task), image_size=image_size, workers=workers, device=device,
            precision=precision, is_strict=is_strict, is_overwriting=is_overwriting,
        )  # fmt: skip
    share, is_folder = share_of_work(part), out != STANDARD_OUTPUT and is_parts_folder(out)
    if not is_folder:
        require_one_process(share, out, kinds=PREDICTION_KINDS)
    if out is not None and out != STANDARD_OUTPUT and not is_folder:
        require_kind(out, PREDICTION_KINDS, is_overwriting=is_overwriting)
    predictor = open_predictor(
        classifier_in_words(name, classes, prompts, engine=engine, image_size=image_size)
        if classes
        else name,
        num_pictures=len(source),
        device=device,
        precision=precision,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
    )
    predictor.require_head()
    assert predictor.num_classes is not None
    count = min(TOP if top is None else top, predictor.num_classes)
    present(plan_of(predictor, source, name))
    require_coverage(predictor, coverage)
    if is_folder and out is not None:
        columns = Columns(top=count, has_labels=source.is_labelled, coverage=coverage)
        parts = compute_parts(
            predictor, source, model=name, out=out, columns=columns, part_size=part_size, share=share, engine=engine,
            is_overwriting=is_overwriting, what="Predicting",
        )  # fmt: skip
        return _result_of_parts(parts, name, predictor, source, is_strict=is_strict)
    return _predict_at_once(
        name, predictor, source, out=out, count=count, coverage=coverage,
        num_listed=1 if top is None else count, is_strict=is_strict,
    )  # fmt: skip


def require_coverage(predictor: Predictor, coverage: float | None) -> None:
    """Refuse a coverage that the model cannot guarantee, before any picture is read."""
    if coverage is None:
        return
    if predictor.number_name is not None:
        predictor.half_width(coverage)
    else:
        assert predictor.num_classes is not None
        predictor.prediction_sets(torch.zeros(0, predictor.num_classes), coverage=coverage)


def _result_of_parts(
    parts: PartsResult, name: str, predictor: Predictor, source: Source, *, is_strict: bool
) -> PredictResult:
    assert predictor.num_classes is not None
    return PredictResult(
        model=name,
        num_classes=predictor.num_classes,
        num_pictures=parts.num_computed + parts.num_skipped,
        num_errors=parts.num_unreadable,
        predictions=(),
        first=printable(source.name(0)),
        wrote=(parts.folder,),
        parts=parts,
        is_strict=is_strict,
    )


def _predict_at_once(
    name: str,
    predictor: Predictor,
    source: Source,
    *,
    out: Place | None,
    count: int,
    coverage: float | None,
    num_listed: int,
    is_strict: bool,
) -> PredictResult:
    """Predict all pictures, into memory or one file."""
    assert predictor.num_classes is not None
    tally = Tally()
    answers = _predictions(predictor, source, top=count, coverage=coverage, tally=tally)
    kept: tuple[Prediction, ...] = ()
    if out is None:
        kept = tuple(answers)
        counts = len(kept), sum(one.error is not None for one in kept)
    else:
        with delivered(out) as file:
            counts = write_predictions(
                file, answers, top=count, has_labels=predictor.is_multi_label,
                has_numbers=predictor.number_name is not None,
                is_ascii=all(map(str.isascii, predictor.classes)) and _has_ascii_names(source),
            )  # fmt: skip
    return PredictResult(
        model=name,
        num_classes=predictor.num_classes,
        num_pictures=counts[0],
        num_errors=counts[1],
        predictions=kept,
        first=printable(source.name(0) if tally.first is None else tally.first),
        tally={printable(label): number for label, number in tally.labels.most_common()},
        num_without_label=tally.num_without_label,
        num_listed=num_listed,
        num_unfamiliar=tally.num_unfamiliar if predictor.trust.familiarity is not None else None,
        false_alarms=predictor.false_alarms,
        number=predictor.number_name,
        numbers=tally.range_of_numbers(),
        coverage=coverage,
        wrote=() if out is None else (out,),
        is_strict=is_strict,
    )


@dataclass
class Tally:
    """Counts that are kept while predictions are written."""

    first: str | None = None
    """The first picture that could be read."""
    num_unfamiliar: int = 0
    num_without_label: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    numbers: list[float] = field(default_factory=list)

    def count(self, prediction: Prediction) -> None:
        """Count one prediction."""
        if prediction.error is None and self.first is None:
            self.first = prediction.name
        self.num_unfamiliar += bool(prediction.none_of_these)
        if prediction.number is not None:
            self.numbers.append(prediction.number)
        elif prediction.labels is not None:
            self.labels.update(prediction.labels)
            self.num_without_label += not prediction.labels
        elif prediction.answers:
            self.labels[prediction.answers[0].label] += 1

    def range_of_numbers(self) -> tuple[float, float, float] | None:
        """Return the lowest, mean and highest number; None if there are none."""
        if not self.numbers:
            return None
        return min(self.numbers), sum(self.numbers) / len(self.numbers), max(self.numbers)


def _predictions(
    predictor: Predictor, source: Source, *, top: int, coverage: float | None, tally: Tally
) -> Iterator[Prediction]:
    """Predict picture by picture, and count the answers."""
    pace = Pace()
    with announced("Predicting", total=len(source)) as advance:
        for rows in predictor.stream(source, wanted="scores", pace=pace):
            for prediction in predictor.answers(rows, source, top=top, coverage=coverage):
                tally.count(prediction)
                yield prediction
            advance(len(rows.values), str(pace))


def output_folder(out: Place | None, what: str) -> Path | None:
    """Return the folder for masks or boxes; refuse a file and an address elsewhere."""
    if out is None or (isinstance(out, Path) and not out.suffix and out != STANDARD_OUTPUT):
        return out
    raise ConfigError(f"must be a folder for {what} and overlays, got {out}", option="out")


def _has_ascii_names(source: Source) -> bool:
    return all(source.name(index).isascii() for index in range(len(source)))
