"""`vitrine inspect`: filters, positions, attention and tokens of a model, as figures, arrays and one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_texts
from vitrine.commands.model_or_box import BOX
from vitrine.spelling import counted, with_name

if TYPE_CHECKING:
    from vitrine.checkpoints import Loaded
    from vitrine.data.sources.source import Source
    from vitrine.inspection.analysis import Analysis
    from vitrine.inspection.pictures import PictureBatches
    from vitrine.inspection.selection import Selection

FILES = ("inspect.html", "arrays.npz")
MOST_UNREADABLE_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class InspectResult:
    """The headline of each look, what was left out, and the files written."""

    model: str
    num_images: int
    explained_variance: float
    """Of the filters, by the components that are drawn."""
    distance_by_layer: tuple[float, ...]
    """Median over heads, in pixels; empty where it does not apply."""
    num_outliers: int | None
    """Tokens far longer than the rest, in the images that are shown."""
    unreadable: dict[str, str]
    notes: tuple[str, ...]
    figures: tuple[Path, ...]
    wrote: tuple[Path, ...]

    def __str__(self) -> str:
        lines = [
            f"Filters: the components drawn hold {100 * self.explained_variance:.0f} % of their variance"
        ]
        if self.distance_by_layer:
            first, last = self.distance_by_layer[0], self.distance_by_layer[-1]
            lines.append(
                f"Attention distance over {self.num_images:,} image{'s' * (self.num_images != 1)}: median of the "
                f"heads {first:.0f} pixels in the first layer, {last:.0f} in the last"
            )
        if self.num_outliers is not None:
            lines.append(f"Outlier tokens in the images shown: {self.num_outliers}")
        shown = list(self.unreadable.items())[:MOST_UNREADABLE_SHOWN]
        lines += [f"Left out: {with_name(why, path)}" for path, why in shown]
        if len(self.unreadable) > len(shown):
            lines.append(f"  and {len(self.unreadable) - len(shown):,} more in inspect.html")
        if self.figures:
            lines.append(f"Wrote {len(self.figures)} figures as PNG and SVG in {self.figures[0].parent}")
        lines += [f"Wrote {path}" for path in self.wrote]
        page = next((path for path in self.wrote if path.suffix == ".html"), None)
        lines.append(f"Next: open {page} in a browser" if page else f"Next: numpy.load('{self.wrote[0]}')")
        return "\n".join(lines)


@documented
def inspect(
    model: Annotated[
        str | Path, Doc("Run folder, weights file, hub id or variant name [default: the bundled model]")
    ] = BOX,
    images: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("Files, folders, patterns, or one data set; without images, only figures that need none"),
    ] = None,
    *,
    out: Annotated[
        Path | str | None,
        Doc("Folder for figures, arrays and the page [default: a new dated folder under ./runs]"),
    ] = None,
    count: Annotated[int, Doc("Number of images to average over, spread evenly over the given ones")] = 128,
    show: Annotated[int, Doc("Number of images with figures of their own")] = 6,
    components: Annotated[int, Doc("Number of principal components of the filters to draw")] = 28,
    patch: Annotated[
        str | None, Doc("Row,column of the patch whose attention is drawn [default: the centre]")
    ] = None,
    layer: Annotated[
        int | None, Doc("Layer of tokens and patch attention, from 0 [default: the last]")
    ] = None,
    class_: Annotated[
        str | None,
        Doc("Class for the gradients, by name or number [default: the prediction of each image]"),
    ] = None,
    size: options.ModelSize = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    overwrite: Annotated[bool, Doc("Replace the figures in the output folder")] = False,
) -> InspectResult:
    """Look inside a model: filters, positions, attention distance, rollout, heads, tokens, layers."""
    model, images, out = as_model(model), as_texts(images), as_path(out)
    from vitrine.checkpoints import load
    from vitrine.commands.model_or_box import model_and_pictures
    from vitrine.inspection.analysis import analyse_images, analyse_model
    from vitrine.inspection.selection import Selection, check_selection, find_class, parse_patch
    from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
    from vitrine.runtime.processes import joined_processes
    from vitrine.runtime.progress import notice

    _require_counts(count=count, show=show, components=components)
    model, images = model_and_pictures([model, *(images or ())])
    source, folders = _open(images, count=count)
    loaded = load(model, image_size=size)
    selection = Selection(
        patch=None if patch is None else parse_patch(patch),
        layer=layer,
        target=None if class_ is None else find_class(class_, loaded.model, classes=loaded.classes or ()),
        num_components=components,
    )
    check_selection(loaded.model, selection, image_size=loaded.preprocess.size)
    folder = new_output_folder(out, verb="inspect", files=FILES, never_in=folders, is_overwriting=overwrite)
    notes = [] if source is not None else [_no_images(images)]
    with removed_if_empty(folder), joined_processes(device) as processes:
        place = processes.device
        loaded.model.to(place)
        shown = "no images"
        if source is not None:
            shown = f"{counted(len(source), 'image')}, {min(show, len(source))} shown"
        notice(
            f"Plan: {model} at {'x'.join(map(str, loaded.preprocess.size))} px on {place}, "
            f"{shown}; "
            f"to {folder}"
        )
        analysis = analyse_model(loaded.model, selection, image_size=loaded.preprocess.size)
        batches = None
        if source is not None:
            batches = _batches(loaded, source, workers=workers, device=str(place))
            notes += _small(loaded, source)
            analyse_images(analysis, loaded.model, batches, selection, num_shown=show)
    notes += _notes(analysis, loaded, has_images=batches is not None)
    for note in notes:
        notice(note)
    return _written(folder, analysis, loaded, batches, selection, model=model, notes=notes)


def _require_counts(**counts: int) -> None:
    from vitrine.errors import ConfigError

    for name, value in counts.items():
        if value < (0 if name == "show" else 1):
            raise ConfigError(f"--{name} must be at least {0 if name == 'show' else 1}, got {value}")


def _open(images: list[str] | None, *, count: int) -> "tuple[Source | None, list[Path]]":
    from vitrine.data.sources.picture_paths import open_pictures
    from vitrine.data.sources.source import Subset
    from vitrine.inspection.pictures import spread

    if not images:
        return None, []
    source, folders = open_pictures(images)
    return (None if source is None else Subset(source, spread(len(source), count))), folders


def _no_images(images: list[str] | None) -> str:
    from vitrine.spelling import printable

    if not images:
        return (
            "No images were given: only filters and positions are drawn; give files or a folder for the rest"
        )
    return f"{printable(' '.join(images))} holds no images: only filters and positions are drawn"


def _batches(loaded: "Loaded", source: "Source", *, workers: int, device: str) -> "PictureBatches":
    from vitrine.inspection.pictures import PictureBatches
    from vitrine.inspection.streaming import num_at_once

    return PictureBatches(
        source,
        preprocess=loaded.preprocess,
        batch_size=num_at_once(loaded.model, loaded.preprocess.size),
        num_workers=workers,
        device=device,
    )


def _small(loaded: "Loaded", source: "Source") -> list[str]:
    from vitrine.inspection.pictures import smaller_than_a_patch
    from vitrine.models import ViTConfig
    from vitrine.spelling import printable

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


def _notes(analysis: "Analysis", loaded: "Loaded", *, has_images: bool) -> list[str]:
    from vitrine.models import ViT
    from vitrine.reports.inspection_page import output_of

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
    analysis: "Analysis",
    loaded: "Loaded",
    batches: "PictureBatches | None",
    selection: "Selection",
    *,
    model: str,
    notes: list[str],
) -> InspectResult:
    import numpy as np

    from vitrine.errors import MissingExtraError
    from vitrine.runtime.files import write_atomically
    from vitrine.runtime.progress import notice
    from vitrine.spelling import printable

    failures = {} if batches is None else dict(sorted(batches.failures.items()))
    unreadable = (
        {} if batches is None else {printable(batches.source.name(i)): why for i, why in failures.items()}
    )
    names = [] if batches is None else [printable(batches.source.name(index)) for index in analysis.shown]
    wrote = [folder / "arrays.npz"]
    with write_atomically(wrote[0]) as file:
        np.savez_compressed(file, image_names=np.array(names, dtype=str), **analysis.arrays())  # type: ignore[arg-type]
    drawn: tuple[Path, ...] = ()
    try:
        drawn = _draw(
            folder, analysis, loaded, selection, model=model, names=names, notes=notes, unreadable=unreadable
        )
        wrote.insert(0, folder / "inspect.html")
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
    analysis: "Analysis",
    loaded: "Loaded",
    selection: "Selection",
    *,
    model: str,
    names: list[str],
    notes: list[str],
    unreadable: dict[str, str],
) -> tuple[Path, ...]:
    from vitrine.reports.inspection_page import (
        Captions,
        described,
        draw_all,
        facts_of,
        page_figures,
        render_inspection,
    )
    from vitrine.runtime.files import write_atomically
    from vitrine.spelling import printable

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
    drawn = draw_all(plates, folder)
    page = render_inspection(
        drawn,
        model=printable(model),
        described=described(loaded.model, variant=loaded.record.variant),
        facts=facts_of(analysis, image_size=size),
        notes=notes,
        unreadable=[{"path": path, "why": why} for path, why in unreadable.items()],
    )
    with write_atomically(folder / "inspect.html", mode="w") as file:
        file.write(page)
    return tuple(folder / f"{plate.name}.png" for plate, _ in drawn)
