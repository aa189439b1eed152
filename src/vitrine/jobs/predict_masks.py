"""The work behind `vitrine predict` for a model that answers for every pixel: a mask and an overlay per picture."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrine.checkpoints import load
from vitrine.checkpoints.loading import class_names
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.mask_file import as_palette, overlaid
from vitrine.data.sources.source import Source
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.evaluation.pixel_predictions import predict_pixels
from vitrine.jobs.prediction_files import exit_code_of, save_picture, unique_stems
from vitrine.models.sizes import ImageSize
from vitrine.runtime.devices import choose_device
from vitrine.runtime.files import write_atomically, write_table
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import announced
from vitrine.runtime.result import Result
from vitrine.spelling import printable

MASKS, OVERLAYS, TABLE, CLASS_LIST = "masks", "overlays", "predictions.csv", "classes.txt"


@dataclass(frozen=True, kw_only=True, repr=False)
class MaskPredictions(Result):
    """The files of masks, and the share of pixels of each class."""

    model: str
    num_classes: int
    num_pictures: int
    num_errors: int
    shares: dict[str, float]
    """Share of all pixels per class, largest first; classes that were not predicted are missing."""
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if no picture could be read, or if the command is strict and any could not."""
        return exit_code_of(self.num_errors, num_pictures=self.num_pictures, is_strict=self.is_strict)


def predict_masks(
    model: str,
    source: Source,
    *,
    out: Path | None,
    image_size: ImageSize,
    workers: int | None,
    device: str,
    precision: Wish,
    is_strict: bool,
    is_overwriting: bool,
) -> MaskPredictions:
    """Write for each picture a palette PNG of classes and an overlay, and a table of the area of each class."""
    loaded = load(model, image_size=image_size)
    classes = class_names(loaded)
    folder = new_output_folder(
        out, verb="predict", files=(MASKS, OVERLAYS, TABLE, CLASS_LIST), is_overwriting=is_overwriting
    )
    place = choose_device(device)
    stems = unique_stems([source.name(index) for index in range(len(source))])
    total, num_errors = np.zeros(len(classes), dtype=np.int64), 0
    with removed_if_empty(folder):
        for name in (MASKS, OVERLAYS):
            (folder / name).mkdir(exist_ok=True)
        with (
            write_table(folder / TABLE) as table,
            announced("Predicting", total=len(source)) as advance,
        ):
            table.writerow(["path", "mask", *map(printable, classes), "error"])
            for one in predict_pixels(
                loaded.model.to(place), source, preprocess=loaded.preprocess, device=place,
                num_workers=2 if workers is None else workers, precision=chosen_precision(precision, place),
            ):  # fmt: skip
                name, stem = printable(source.name(one.index)), stems[one.index]
                if one.classes is None:
                    num_errors += 1
                    table.writerow([name, "", *[""] * len(classes), one.error])
                else:
                    counts = np.bincount(one.classes.ravel(), minlength=len(classes))
                    total += counts
                    pixels = decode(source.read(one.index).data, name=name)
                    save_picture(folder / MASKS / f"{stem}.png", as_palette(one.classes))
                    overlay = Image.fromarray(overlaid(pixels, one.classes, classes))
                    save_picture(folder / OVERLAYS / f"{stem}.jpg", overlay)
                    shares = [f"{share:.4f}" for share in counts / one.classes.size]
                    table.writerow([name, f"{MASKS}/{stem}.png", *shares, ""])
                advance(1, "")
        with write_atomically(folder / CLASS_LIST, mode="w") as file:
            file.write("".join(f"{name}\n" for name in classes))
    order = np.argsort(-total, kind="stable")
    return MaskPredictions(
        model=model,
        num_classes=len(classes),
        num_pictures=len(source),
        num_errors=num_errors,
        shares={printable(classes[k]): float(total[k] / total.sum()) for k in order.tolist() if total[k]},
        wrote=(folder / MASKS, folder / OVERLAYS, folder / TABLE, folder / CLASS_LIST),
        is_strict=is_strict,
    )
