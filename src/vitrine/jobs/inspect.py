"""The work behind `vitrine inspect`: filters, positions, attention and tokens as figures, arrays and one page."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.checkpoints import Loaded, load
from vitrine.checkpoints.loading import as_squares
from vitrine.data.sources.picture_paths import open_pictures
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import MissingExtraError
from vitrine.inspection.analysis import (
    Analysis,
    Selection,
    analyse_images,
    analyse_model,
    check_selection,
    find_class,
    parse_patch,
)
from vitrine.inspection.dense_attention import Sight, sights_of
from vitrine.inspection.pictures import PictureBatches, smaller_than_a_patch, spread
from vitrine.inspection.streaming import num_at_once
from vitrine.jobs.model_argument import model_and_pictures
from vitrine.models import ViT, ViTConfig
from vitrine.models.dense.model import DenseModel
from vitrine.reports.inspection_page import (
    Captions,
    described,
    draw_all,
    facts_of,
    output_of,
    page_figures,
    render_inspection,
    sight_figures,
)
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.processes import joined_processes
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result
from vitrine.spelling import printable

# Answers per image that are drawn.
MOST_SIGHTS = 5
PAGE, ARRAYS = "inspect.html", "arrays.npz"


@dataclass(frozen=True, kw_only=True)
class InspectPlan:
    """The plan of an inspection."""

    model: str
    size: tuple[int, int]
    """Height and width in pixels."""
    device: str
    num_images: int
    num_shown: int
    folder: Path


@dataclass(frozen=True, kw_only=True, repr=False)
class InspectResult(Result):
    """The headline of each analysis, what was skipped, and the files written."""

    model: str
    num_images: int
    explained_variance: float
    """Fraction of the variance of the filters that the drawn components explain."""
    distance_by_layer: tuple[float, ...]
    """Median over heads, in pixels; empty where it does not apply."""
    num_outliers: int | None
    """Tokens far longer than the rest, in the images that are shown."""
    unreadable: dict[str, str]
    notes: tuple[str, ...]
    figures: tuple[Path, ...]
    wrote: tuple[Path, ...]


def inspect_model(
    model: str,
    images: Sequence[str],
    *,
    out: Path | None,
    count: int,
    num_shown: int,
    num_components: int,
    patch: str | None,
    layer: int | None,
    class_name: str | None,
    image_size: int | None,
    workers: int,
    device: str,
    is_overwriting: bool,
) -> InspectResult:
    """Analyse a model, on images where there are some, and write figures, arrays and the page."""
    model, images = model_and_pictures([model, *images], device=device)
    source, folders = _open(images, count=count)
    loaded = as_squares(load(model, image_size=image_size), purpose="inspect")
    dense = loaded.model if isinstance(loaded.model, DenseModel) else None
    target = None
    if dense is not None:
        if class_name is not None:
            target, class_name = find_class(class_name, dense, classes=loaded.classes or ()), None
        # Filters, positions, attention and tokens are those of its ViT.
        loaded = dataclasses.replace(loaded, model=dense.vit)
    selection = _selected(
        loaded, patch=patch, layer=layer, class_name=class_name, num_components=num_components
    )
    size = loaded.preprocess.size
    folder = new_output_folder(
        out, verb="inspect", files=(PAGE, ARRAYS), never_in=folders, is_overwriting=is_overwriting
    )
    notes = [] if source is not None else [_no_images(images)]
    with removed_if_empty(folder), joined_processes(device) as processes:
        (dense or loaded.model).to(processes.device)
        num_images = 0 if source is None else len(source)
        present(
            InspectPlan(
                model=model, size=size, device=str(processes.device), num_images=num_images,
                num_shown=min(num_shown, num_images), folder=folder,
            )
        )  # fmt: skip
        analysis = analyse_model(loaded.model, selection, image_size=size)
        batches = None
        if source is not None:
            batches = _batches(loaded, source, workers=workers, device=str(processes.device))
            notes += _small(loaded, source)
            analyse_images(analysis, loaded.model, batches, selection, num_shown=num_shown)
        sights = None if dense is None else _sights(dense, analysis, batches, target=target)
    notes += _notes(analysis, loaded, has_images=batches is not None)
    for note in notes:
        notice(note)
    return _written(folder, analysis, loaded, batches, selection, model=model, notes=notes, sights=sights)


def _sights(
    dense: DenseModel, analysis: Analysis, batches: PictureBatches | None, *, target: int | None
) -> list[list[Sight]] | None:
    """Return the answers of a model of masks or boxes on the images that are shown."""
    if batches is None or not analysis.shown:
        return None
    few = batches.part(analysis.shown)
    return [
        sights
        for pixels in few.pixels()
        for sights in sights_of(dense, few.preprocess.normalise(pixels), most=MOST_SIGHTS, target=target)
    ]


def _selected(
    loaded: Loaded, *, patch: str | None, layer: int | None, class_name: str | None, num_components: int
) -> Selection:
    """Read the patch and the class, and refuse what the model does not have before any work."""
    target = None
    if class_name is not None:
        target = find_class(class_name, loaded.model, classes=loaded.classes or ())
    selection = Selection(
        patch=None if patch is None else parse_patch(patch),
        layer=layer,
        target=target,
        num_components=num_components,
    )
    check_selection(loaded.model, selection, image_size=loaded.preprocess.size)
    return selection


def _open(images: Sequence[str], *, count: int) -> tuple[Source | None, list[Path]]:
    if not images:
        return None, []
    source, folders = open_pictures(images)
    return (None if source is None else Subset(source, spread(len(source), count))), folders


def _no_images(images: Sequence[str]) -> str:
    if not images:
        return "No images given: only filters and positions are drawn; name files or a folder for the rest"
    return f"{printable(' '.join(images))} holds no images: only filters and positions are drawn"


def _batches(loaded: Loaded, source: Source, *, workers: int, device: str) -> PictureBatches:
    return PictureBatches(
        source,
        preprocess=loaded.preprocess,
        batch_size=num_at_once(loaded.model, loaded.preprocess.size),
        num_workers=workers,
        device=device,
    )


def _small(loaded: Loaded, source: Source) -> list[str]:
    config = loaded.model.config
    if not isinstance(config, ViTConfig):
        return []
    side = " x ".join(map(str, config.token_stride))
    size = " x ".join(map(str, loaded.preprocess.size))
    return [
        f"{printable(source.name(index))} is {height} x {width} pixels, smaller than a patch of {side}; it is "
        f"enlarged to {size} and shows little"
        for index, (height, width) in smaller_than_a_patch(source, config.token_stride).items()
    ]


def _notes(analysis: Analysis, loaded: Loaded, *, has_images: bool) -> list[str]:
    notes = [f"Not drawn: {', '.join(whats)}: {why}" for why, whats in analysis.missing.items()]
    model = loaded.model
    if isinstance(model, ViT) and model.config.stem is not None:
        notes.append(
            "A hybrid's patches are cells of a feature map: the filters drawn are those of its first convolution"
        )
    if has_images and isinstance(model, ViT) and not model.config.reads_class_token:
        notes.append(f"Attention and rollout are seen from {output_of(model)}")
    return notes


def _written(
    folder: Path,
    analysis: Analysis,
    loaded: Loaded,
    batches: PictureBatches | None,
    selection: Selection,
    *,
    model: str,
    notes: list[str],
    sights: list[list[Sight]] | None,
) -> InspectResult:
    failures = {} if batches is None else dict(sorted(batches.failures.items()))
    unreadable = (
        {} if batches is None else {printable(batches.source.name(i)): why for i, why in failures.items()}
    )
    names = [] if batches is None else [printable(batches.source.name(index)) for index in analysis.shown]
    wrote = [folder / ARRAYS]
    with write_atomically(wrote[0]) as file:
        np.savez_compressed(file, image_names=np.array(names, dtype=str), **analysis.arrays())  # type: ignore[arg-type]
    drawn: tuple[Path, ...] = ()
    try:
        drawn = _draw(
            folder, analysis, loaded, selection, model=model, names=names, notes=notes, unreadable=unreadable,
            sights=sights,
        )  # fmt: skip
        wrote.insert(0, folder / PAGE)
    except MissingExtraError as error:
        notice(f"No figures, only arrays.npz: {error}")
    return InspectResult(
        model=model,
        num_images=analysis.num_images,
        explained_variance=0.0 if analysis.filters is None else float(analysis.filters.explained.sum()),
        distance_by_layer=()
        if analysis.distance is None
        else tuple(np.median(analysis.distance, axis=1).tolist()),
        num_outliers=None if analysis.norms is None else int(analysis.norms.outliers.sum()),
        unreadable=unreadable,
        notes=tuple(notes),
        figures=drawn,
        wrote=tuple(wrote),
    )


def _draw(
    folder: Path,
    analysis: Analysis,
    loaded: Loaded,
    selection: Selection,
    *,
    model: str,
    names: list[str],
    notes: list[str],
    unreadable: dict[str, str],
    sights: list[list[Sight]] | None,
) -> tuple[Path, ...]:
    classes = loaded.classes
    numbers = analysis.predictions if selection.target is None else [selection.target] * len(names)
    size = loaded.preprocess.size
    captions = Captions(
        names=[Path(name).name for name in names],
        of_class=[printable(classes[k]) if classes else f"class {k}" for k in numbers],
        layer=selection.layer,
        image_size=size,
    )
    plates = page_figures(analysis, model=loaded.model, captions=captions)
    if sights is not None:
        known = classes or [
            f"class {number}" for number in range(1 + max(one.label for s in sights for one in s))
        ]
        plates = [*sight_figures(analysis, sights, names=captions.names, classes=list(known)), *plates]
    drawn = draw_all(plates, folder)
    page = render_inspection(
        drawn,
        model=printable(model),
        described=described(loaded.model, variant=loaded.record.variant),
        facts=facts_of(analysis, image_size=size),
        notes=notes,
        unreadable=[{"path": path, "why": why} for path, why in unreadable.items()],
    )
    with write_atomically(folder / PAGE, mode="w") as file:
        file.write(page)
    return tuple(folder / f"{plate.name}.png" for plate, _ in drawn)
