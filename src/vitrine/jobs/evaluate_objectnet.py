"""The work behind `vitrine evaluate` on ObjectNet: the objects that ImageNet knows, scored as in the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.checkpoints import Loaded
from vitrine.data.sources.labels import match_classes
from vitrine.data.sources.objectnet import ObjectNet
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.imagenet_order import LACKING, NUM_CLASSES, places_of_imagenet
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.objectnet import ObjectNetFigures, score_objectnet
from vitrine.evaluation.outputs import Outputs, Wish
from vitrine.evaluation.writing import write_metrics, write_object_predictions
from vitrine.jobs.evaluation_files import METRICS, PAGE, PREDICTIONS, unreadable_names
from vitrine.jobs.evaluation_outputs import outputs_on
from vitrine.jobs.test_images import require_memory
from vitrine.reports.objectnet_page import render_objectnet
from vitrine.reports.pages import write_page
from vitrine.runtime.progress import notice
from vitrine.runtime.result import Result
from vitrine.spelling import printable, some_of
from vitrine.studies.published import APPENDIX_D9

MOST_WORST = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class ObjectNetEvaluation(Result):
    """The headline figures on ObjectNet and the files that hold the rest."""

    model: str
    data: str
    split: str
    num_images: int
    num_skipped: int
    """Pictures of objects that are not among the model's classes."""
    unreadable: dict[str, str]
    num_objects: int
    """Objects with pictures and a class of the model: 113 of the whole set."""
    num_all_objects: int
    lacking: tuple[str, ...]
    """ImageNet classes of the objects that the model lacks."""
    top1: Interval
    top5: Interval
    top1_among_mapped: Interval
    """Among the classes of the objects alone: not comparable with the paper."""
    num_mapped_classes: int
    published: Mapping[str, Mapping[str, float]]
    """Figures of the paper by model, in percent."""
    worst: tuple[tuple[str, float], ...]
    """Objects with the lowest top-1 accuracy, lowest first."""
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if the evaluation is strict and a file could not be read."""
        return int(self.is_strict and bool(self.unreadable))


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The part of ObjectNet that a model has classes for."""

    source: Source
    """Its pictures, labelled by object."""
    accepted: tuple[tuple[int, ...], ...]
    """The model's classes of each object."""
    class_names: tuple[str, ...]
    """The model's classes, by ImageNet's name where it is known."""
    lacking: tuple[str, ...]


def evaluate_objectnet(
    loaded: Loaded,
    source: ObjectNet,
    *,
    model: str,
    data: str,
    split: str,
    real: Path | None,
    views: str | None,
    out: Path | None,
    by_order: bool,
    batch_size: int | None,
    workers: int | None,
    device: str,
    precision: Wish,
    seed: int,
    is_strict: bool,
    is_overwriting: bool,
) -> ObjectNetEvaluation:
    """Run the model on the overlapping pictures, score it, and write predictions, metrics and the page."""
    for option, value in (("real", real), ("views", views)):
        if value is not None:
            raise ConfigError("does not go with ObjectNet, whose protocol has none", option=option)
    overlap = overlap_with(loaded, source, by_order=by_order)
    require_memory(overlap.source, num_outputs=NUM_CLASSES, model=model, data=data)
    outputs, _, folder, is_first = outputs_on(
        overlap.source, loaded, model=model, data=data, split=split, out=out, views=None, batch_size=batch_size,
        workers=workers, device=device, precision=precision, is_overwriting=is_overwriting,
    )  # fmt: skip
    keep = outputs.readable
    figures = score_objectnet(
        outputs.rows.numpy()[keep], overlap.source.labels[keep], overlap.accepted,
        objects=overlap.source.classes, class_names=overlap.class_names, seed=seed,
    )  # fmt: skip
    result = ObjectNetEvaluation(
        model=model,
        data=printable(data),
        split=split,
        num_images=figures.num_images,
        num_skipped=len(source) - len(overlap.source),
        unreadable=unreadable_names(overlap.source, outputs.failures),
        num_objects=len(figures.per_object),
        num_all_objects=len(source.classes),
        lacking=overlap.lacking,
        top1=figures.top1,
        top5=figures.top5,
        top1_among_mapped=figures.top1_among_mapped,
        num_mapped_classes=figures.num_mapped_classes,
        published=APPENDIX_D9,
        worst=worst_objects(figures),
        wrote=(folder / PREDICTIONS, folder / METRICS, folder / PAGE),
        is_strict=is_strict,
    )
    if is_first:
        _write(result, figures, overlap, outputs)
    return result


def overlap_with(loaded: Loaded, source: ObjectNet, *, by_order: bool) -> Overlap:
    """Choose the pictures of objects that the model has classes for; a model without ImageNet's is refused."""
    names, accepted = source.mappings.imagenet_classes, source.mappings.accepted
    own = None if by_order else loaded.classes
    places = places_of_imagenet(own, names, num_outputs=loaded.model.config.num_classes)
    if loaded.classes is None and not by_order:
        notice("The model has no class names: its outputs are taken to be in ImageNet's standard order")
    wanted = [place for standard in accepted.values() for place in standard]
    lacking = tuple(names[place] for place in wanted if places[place] == LACKING)
    if lacking:
        notice(f"The model lacks {len(lacking)} of the {len(wanted)} ImageNet classes: {some_of(lacking)}")
    known = {
        name: tuple(int(places[place]) for place in standard if places[place] != LACKING)
        for name, standard in accepted.items()
    }
    objects = [name for name in source.classes if known.get(name)]
    rows = np.flatnonzero(np.isin(source.labels, [source.classes.index(name) for name in objects]))
    if not len(rows):
        raise DataError(
            f"{printable(source.address)} has no pictures of the objects that ImageNet has classes for"
        )
    class_names = list(loaded.classes or names)
    for place, name in zip(places.tolist(), names, strict=True):
        if place != LACKING:
            class_names[place] = name
    return Overlap(
        source=match_classes(Subset(source, rows), objects),
        accepted=tuple(known[name] for name in objects),
        class_names=tuple(class_names),
        lacking=lacking,
    )


def worst_objects(figures: ObjectNetFigures) -> tuple[tuple[str, float], ...]:
    """Return the objects with the lowest top-1 accuracy, lowest first."""
    ranked = sorted((one.top1.value, printable(one.name)) for one in figures.per_object)
    return tuple((name, value) for value, name in ranked[:MOST_WORST])


def _write(
    result: ObjectNetEvaluation, figures: ObjectNetFigures, overlap: Overlap, outputs: Outputs
) -> None:
    predictions, metrics, page = result.wrote
    write_object_predictions(
        predictions, overlap.source, logits=outputs.rows.numpy(), accepted=overlap.accepted,
        class_names=overlap.class_names, failures=outputs.failures,
    )  # fmt: skip
    write_metrics(
        metrics, figures, model=result.model, data=result.data, split=result.split,
        num_skipped=result.num_skipped, num_objects=result.num_objects, num_all_objects=result.num_all_objects,
        lacking=result.lacking, published=result.published, unreadable=result.unreadable,
    )  # fmt: skip
    write_page(
        page,
        render_objectnet(
            figures, model=result.model, data=result.data, num_skipped=result.num_skipped,
            num_all_objects=result.num_all_objects, published=result.published, unreadable=result.unreadable,
        ),
    )  # fmt: skip
