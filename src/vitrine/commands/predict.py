"""`vitrine predict`: what is in these pictures, says a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.arguments import as_path
from vitrine.commands.model_or_box import ModelOrBox, Pictures

if TYPE_CHECKING:
    from vitrine.data.sources.source import Source
    from vitrine.serving.predictor import Prediction, Predictor

TOP = 5


@dataclass(frozen=True, kw_only=True)
class PredictResult:
    """The answers, or where they were written."""

    model: str
    num_classes: int
    num_pictures: int
    num_errors: int
    predictions: tuple["Prediction", ...]
    """In the order of the pictures; empty where they were written to a file."""
    first: str
    """The first picture that can be read, or else the first."""
    num_listed: int = 1
    """Classes that are shown of each of several pictures."""
    wrote: tuple[Path, ...] = ()
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 where no picture could be read, or a single one could not and that was asked to be enough."""
        return int(self.num_errors == self.num_pictures or (self.is_strict and self.num_errors > 0))


def predict(
    model: ModelOrBox = None,
    pictures: Pictures = None,
    *,
    out: Annotated[Path | str | None, Doc("File for the predictions: .csv, .json or .jsonl")] = None,
    top: Annotated[
        int | None,
        Doc("Classes to name per picture [default: 5; 1 when several pictures are listed]"),
    ] = None,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    strict: Annotated[bool, Doc("Exit with 1 if any picture cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the output file if it exists")] = False,
) -> PredictResult:
    """Name the most likely classes of pictures; a picture that cannot be read gets a row with the reason."""
    out = as_path(out)
    from vitrine.commands.model_or_box import opened_pictures, plan_line
    from vitrine.errors import ConfigError
    from vitrine.runtime.progress import notice
    from vitrine.serving.output_files import PREDICTION_KINDS, require_kind, write_predictions
    from vitrine.serving.predictor import Predictor
    from vitrine.spelling import printable

    if top is not None and top < 1:
        raise ConfigError(f"--top must be at least 1, got {top}")
    name, source = opened_pictures("predict", model, pictures, out=out)
    if out is not None:
        require_kind(out, PREDICTION_KINDS, is_overwriting=overwrite)
    predictor = Predictor.open(
        name, device=device, precision=precision, image_size=size, batch_size=batch_size, workers=workers
    )
    predictor.require_head()
    assert predictor.num_classes is not None
    count = min(TOP if top is None else top, predictor.num_classes)
    notice(plan_line(predictor, source, name))
    readable: list[str] = []
    answers = _answers(predictor, source, top=count, readable=readable)
    kept: tuple[Prediction, ...] = ()
    if out is None:
        kept = tuple(answers)
        counts = len(kept), sum(found.error is not None for found in kept)
    else:
        counts = write_predictions(out, answers, top=count)
    return PredictResult(
        model=name,
        num_classes=predictor.num_classes,
        num_pictures=counts[0],
        num_errors=counts[1],
        predictions=kept,
        first=printable(readable[0] if readable else source.name(0)),
        num_listed=1 if top is None else count,
        wrote=() if out is None else (out,),
        is_strict=strict,
    )


def _answers(
    predictor: "Predictor", source: "Source", *, top: int, readable: list[str]
) -> "Iterator[Prediction]":
    """Answer picture by picture, and put the name of the first that can be read into `readable`."""
    from vitrine.runtime.progress import announced

    with announced("Predicting", total=len(source)) as advance:
        for rows in predictor.stream(source, wanted="logits"):
            for found in predictor.answers(rows, source, top=top):
                if found.error is None and not readable:
                    readable.append(found.name)
                yield found
            advance(len(rows.values), "")
