"""`vitrine fewshot`: how good a model's representation is when a class has a few labels only."""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_numbers, as_path
from vitrine.commands.model_or_box import BOX, Data, ModelOrBox, model_and_data
from vitrine.spelling import counted, with_first

if TYPE_CHECKING:
    from vitrine.data.sources.source import Source
    from vitrine.evaluation.fewshot import FewShotResult


SHOTS = (1, 5, 10, 25)


@dataclass(frozen=True, kw_only=True)
class FewShotReport:
    """The scores, and what they were measured on."""

    model: str
    data: str
    train_split: str
    test_split: str
    width: int
    unreadable: dict[str, str]
    result: "FewShotResult"

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.data}: examples drawn from {self.train_split}, tested on {self.test_split}; "
            f"{self.width} features",
            str(self.result),
        ]
        if self.unreadable:
            lines.append(f"Left out, as they cannot be read: {with_first(self.unreadable, 'file')}")
        model = "" if self.model == BOX else f" --model {shlex.quote(self.model)}"
        lines.append(f"Next: vitrine finetune {shlex.quote(self.data)}{model}")
        return "\n".join(lines)


@documented
def fewshot(
    model: ModelOrBox = None,
    data: Data = None,
    *,
    shots: Annotated[
        str | int | Sequence[int] | None,
        Doc("Examples per class, separated by commas [default: those of 1,5,10,25 that the data has]"),
    ] = None,
    seeds: Annotated[int, Doc("Number of random draws of the examples")] = 3,
    probe: Annotated[
        Literal["ridge", "knn", "logistic"],
        Doc("Classifier on the frozen features; ridge is the paper's closed form"),
    ] = "ridge",
    l2: Annotated[
        str | float | Sequence[float] | None,
        Doc("Regularisation, several separated by commas [default: 1024 for ridge, 1 for logistic]"),
    ] = None,
    neighbours: Annotated[int, Doc("Number of neighbours for knn")] = 20,
    test_fraction: Annotated[float, Doc("Fraction of the images to test on if the data has no splits")] = 0.5,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    cache: Annotated[bool, Doc("Cache features, and reuse cached ones")] = True,
    cache_dir: Annotated[
        Path | str | None, Doc("Folder for cached features [default: the user's cache folder]")
    ] = None,
) -> FewShotReport:
    """Measure accuracy with 1, 5, 10, 25 examples per class on frozen features, over several draws."""
    shots, l2 = as_numbers(shots), as_numbers(l2)
    cache_dir = as_path(cache_dir)
    from vitrine.checkpoints import load
    from vitrine.evaluation.features import extract_features
    from vitrine.evaluation.fewshot import fewshot_accuracy, parse_shots, require_enough
    from vitrine.runs.run_data import trained_on
    from vitrine.runtime.processes import joined_processes
    from vitrine.runtime.progress import notice
    from vitrine.spelling import printable

    model, data = model_and_data("fewshot", model, data)
    values, asked = _numbers(l2), None if shots is None else parse_shots(shots)
    names, (train, test) = _open(data, test_fraction)
    wanted = asked or _affordable(train)
    require_enough(train.counts(), wanted, class_names=train.classes)  # before minutes of features
    if (run := trained_on(model, data)) is not None and "test" not in names:
        notice(
            f"{run} was trained on {data}, images that are tested on among them: this is better than on others"
        )
    loaded = load(model, image_size=size)
    with joined_processes(device) as processes:
        place = processes.device
        loaded.model.to(place)
        notice(
            f"Plan: {model} on {len(train):,} images to draw from and {len(test):,} to test on, "
            f"{len(train.classes)} classes, {'x'.join(map(str, loaded.preprocess.size))} px, on {place} in "
            f"{precision}; {probe} at {','.join(map(str, wanted))} shots, {counted(seeds, 'seed')}"
        )
        extract = functools.partial(
            extract_features,
            loaded.model,
            preprocess=loaded.preprocess,
            cache=(cache_dir or True) if cache else False,
            batch_size=batch_size,
            num_workers=workers,
            device=place,
            precision=precision,
        )
        examples = extract(train, what=f"Extracting features of {names[0]}")
        tests = extract(test, what=f"Extracting features of {names[1]}")
    result = fewshot_accuracy(
        examples.rows,
        examples.labels,
        tests.rows,
        tests.labels,
        shots=wanted,
        seeds=seeds,
        l2=values,
        probe=probe,
        neighbours=neighbours,
        class_names=train.classes,
    )
    return FewShotReport(
        model=model,
        data=printable(data),
        train_split=names[0],
        test_split=names[1],
        width=examples.rows.shape[1],
        unreadable={
            printable(source.name(index)): why
            for source, features in ((train, examples), (test, tests))
            for index, why in features.failures.items()
        },
        result=result,
    )


def _open(data: str, test_fraction: float) -> "tuple[tuple[str, str], tuple[Source, Source]]":
    """Open what examples are drawn from and what is tested on: the set's own splits, or two halves."""
    from vitrine.data.sources.labels import match_classes
    from vitrine.data.sources.opening import list_splits, open_splits
    from vitrine.errors import DataError

    own = list_splits(data)
    # With a test set of its own, all of `train` may be drawn from; its own `val` is left alone.
    held_out = 0.0 if "test" in own else test_fraction
    splits = open_splits(data, val_fraction=held_out, allow_empty_class=True)
    test = "test" if "test" in splits else "val"
    if "train" not in splits or test not in splits:
        raise DataError(
            f"{data} has only {', '.join(splits)}; few-shot draws from train and tests on test or val"
        )
    if splits["train"].is_multi_label:
        raise DataError(f"{data} has several labels an image; few-shot goes with one")
    names = ("train", test if test in own else f"the {100 * test_fraction:g} % held out")
    return names, (splits["train"], match_classes(splits[test], splits["train"].classes))


def _affordable(train: "Source") -> tuple[int, ...]:
    """Choose the usual numbers of shots that every class has examples for, or the smallest of them."""
    from vitrine.runtime.progress import notice

    least = int(train.counts().min())
    wanted = tuple(number for number in SHOTS if number <= least) or SHOTS[:1]
    if len(wanted) < len(SHOTS):
        left = ", ".join(str(number) for number in SHOTS[len(wanted) :])
        notice(f"A class has {counted(least, 'example')} to draw from, so {left} shots are left out")
    return wanted


def _numbers(text: str | None) -> list[float] | None:
    from vitrine.errors import ConfigError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"l2 must be numbers with commas between, got {text!r}; try 1,1024") from None
