"""The work behind `vitrine fewshot`: features of two splits, then few-shot accuracy over several draws."""

import functools
from dataclasses import dataclass
from pathlib import Path

from vitrine.checkpoints import load
from vitrine.data.sources.opening import task_of
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.features import Features, extract_features
from vitrine.evaluation.fewshot import (
    FewShotResult,
    fewshot_accuracy,
    open_support_and_test,
    parse_shots,
    require_enough,
    usual_shots,
    without_small_classes,
)
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.probes import find_probe
from vitrine.jobs.fewshot_pixels import PixelShotsReport, fewshot_pixels
from vitrine.jobs.model_argument import model_and_data
from vitrine.runs.trained_data import trained_on
from vitrine.runtime.processes import joined_processes
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result
from vitrine.spelling import printable


@dataclass(frozen=True, kw_only=True)
class FewShotPlan:
    """The plan of a few-shot evaluation."""

    model: str
    num_train: int
    num_test: int
    num_classes: int
    size: tuple[int, int]
    """Height and width in pixels."""
    device: str
    precision: Precision
    probe: str
    shots: tuple[int, ...]
    seeds: int


@dataclass(frozen=True, kw_only=True, repr=False)
class FewShotReport(Result):
    """The scores, and what they were measured on."""

    model: str
    data: str
    train_split: str
    test_split: str
    width: int
    """Features per image."""
    unreadable: dict[str, str]
    result: FewShotResult


def evaluate_fewshot(
    model: str | None,
    data: str | None,
    *,
    shots: str | None,
    seeds: int,
    probe: str,
    l2: str | None,
    neighbours: int,
    test_fraction: float,
    image_size: int | None,
    batch_size: int | None,
    workers: int,
    device: str,
    precision: Precision,
    cache: Path | bool,
    out: Path | None = None,
) -> FewShotReport | PixelShotsReport:
    """Measure few-shot accuracy of a model's features on a data set; `shots` and `l2` are lists such as `1,5`."""
    model, data = model_and_data("fewshot", model, data, device=device)
    find_probe(probe)
    values, asked = _parse_l2(l2), None if shots is None else parse_shots(shots)
    if task_of(data) == "masks":
        if probe != "ridge" or len(values or []) > 1:
            raise ConfigError("pixels are labelled in closed form, with one l2", option="probe")
        return fewshot_pixels(
            model, data, shots=asked, seeds=seeds, l2=values[0] if values else None, test_fraction=test_fraction,
            out=out, image_size=image_size, workers=workers, device=device, precision=precision,
        )  # fmt: skip
    if out is not None:
        raise ConfigError("saves a model of masks, and this data has none", option="out")
    names, (train, test) = open_support_and_test(data, test_fraction=test_fraction)
    if asked is None:
        train, test = without_small_classes(train, test)
    wanted = asked or usual_shots(train)
    require_enough(train.counts(), wanted, class_names=train.classes)  # before minutes of features
    if (run := trained_on(model, data)) is not None and "test" not in names:
        notice(f"The score below is optimistic: {run} was trained on {data}, including images tested here")
    loaded = load(model, image_size=image_size)
    with joined_processes(device) as processes:
        place = processes.device
        present(
            FewShotPlan(
                model=model,
                num_train=len(train),
                num_test=len(test),
                num_classes=len(train.classes),
                size=loaded.preprocess.size,
                device=str(place),
                precision=precision,
                probe=probe,
                shots=wanted,
                seeds=seeds,
            )
        )
        extract = functools.partial(
            extract_features, loaded.model.to(place), preprocess=loaded.preprocess, cache=cache,
            batch_size=batch_size, num_workers=workers, device=place, precision=precision,
        )  # fmt: skip
        examples = extract(train, what=f"Extracting features of {names[0]}")
        tests = extract(test, what=f"Extracting features of {names[1]}")
    result = fewshot_accuracy(
        examples.rows, examples.labels, tests.rows, tests.labels, shots=wanted, seeds=seeds, l2=values,
        probe=probe, neighbours=neighbours, class_names=train.classes,
    )  # fmt: skip
    return FewShotReport(
        model=model,
        data=printable(data),
        train_split=names[0],
        test_split=names[1],
        width=examples.rows.shape[1],
        unreadable=_unreadable((train, examples), (test, tests)),
        result=result,
    )


def _unreadable(*parts: tuple[Source, Features]) -> dict[str, str]:
    """Return the names of images that cannot be read, and why."""
    return {
        printable(source.name(index)): why
        for source, features in parts
        for index, why in features.failures.items()
    }


def _parse_l2(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"must be numbers such as 1,1024; got {text!r}", option="l2") from None
