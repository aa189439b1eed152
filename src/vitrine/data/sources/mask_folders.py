"""Two folders of masks that are compared: what the values of each mean, and which files belong together."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vitrine.data.decoding.annotation import IGNORED, Map
from vitrine.data.decoding.decode import read_file
from vitrine.data.decoding.mask_file import MaskValues, decode_mask
from vitrine.data.sources.folder_walk import list_images
from vitrine.data.sources.mask_list import CLASS_LISTS, read_class_list, values_in
from vitrine.errors import DataError
from vitrine.runtime.progress import track
from vitrine.spelling import counted, printable, some_of

# Folder of the masks in an output of `vitrine predict`.
INNER = "masks"
BLACK_AND_WHITE = MaskValues(numbers={0: 0, IGNORED: 1})


@dataclass(frozen=True, kw_only=True)
class MaskFolders:
    """Pairs of mask files by name, and the meaning of the values on each side."""

    classes: tuple[str, ...]
    files: tuple[tuple[Path, Path], ...]
    """The true mask and the predicted one of each picture."""
    true_values: MaskValues
    predicted_values: MaskValues

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.files)

    def pair(self, index: int) -> tuple[Map, Map]:
        """Read the true and the predicted class of every pixel of a picture."""
        true, predicted = self.files[index]
        return (
            decode_mask(read_file(str(true)), self.true_values, name=str(true)),
            decode_mask(read_file(str(predicted)), self.predicted_values, name=str(predicted)),
        )


def open_folders(predicted: Path, truth: Path) -> MaskFolders:
    """Pair the masks of two folders by name; a class list may lie in either, or up to two above.

    With a list on each side classes are matched by name; a predicted class that the truth does not know is wrong.
    """
    predicted, truth = mask_folder(predicted), mask_folder(truth)
    names, predictions = ({stem(name): name for name in list_images(one)} for one in (truth, predicted))
    missing = sorted(set(names) - set(predictions))
    if missing:
        raise DataError(
            f"{printable(str(predicted))} lacks the masks of {counted(len(missing), 'picture')}: {some_of(missing)}"
        )
    files = tuple((truth / name, predicted / predictions[one]) for one, name in names.items())
    true_list, predicted_list = class_list_of(truth), class_list_of(predicted)
    if true_list is not None:
        classes, values = true_list
        other = values if predicted_list is None else renumbered(*predicted_list, classes=classes)
        return MaskFolders(classes=classes, files=files, true_values=values, predicted_values=other)
    seen = seen_values([true for true, _ in files])
    is_drawn = seen == {0, IGNORED}  # what drawing programs write for one object
    if predicted_list is not None:
        classes, values = predicted_list
        true_values = BLACK_AND_WHITE if is_drawn else values
        return MaskFolders(classes=classes, files=files, true_values=true_values, predicted_values=values)
    other_seen = seen_values([one for _, one in files])
    if is_drawn:
        values = BLACK_AND_WHITE if other_seen <= {0, IGNORED} else MaskValues.in_order(2)
        return MaskFolders(
            classes=("background", "foreground"), files=files, true_values=BLACK_AND_WHITE,
            predicted_values=values,
        )  # fmt: skip
    count = 1 + max((seen | other_seen) - {IGNORED}, default=0)
    if count > IGNORED:
        raise DataError(
            f"masks in {printable(str(truth))} or {printable(str(predicted))} have the value {count - 1}; list what "
            "the values mean in classes.txt, as name:value"
        )
    return MaskFolders(
        classes=tuple(f"class {number}" for number in range(count)), files=files,
        true_values=MaskValues.in_order(count), predicted_values=MaskValues.in_order(count),
    )  # fmt: skip


def mask_folder(folder: Path) -> Path:
    """Return the folder of the PNGs: this one, or `masks/` in it."""
    inner = folder / INNER
    return inner if inner.is_dir() and not any(folder.glob("*.png")) else folder


def class_list_of(folder: Path) -> tuple[tuple[str, ...], MaskValues] | None:
    """Read the class list in a folder, or up to two above it (`masks/val`); None without one."""
    above = (folder, folder.parent, folder.parent.parent)
    places = [place / name for place in above for name in CLASS_LISTS]
    return next((read_class_list(place) for place in places if place.is_file()), None)


def renumbered(names: Sequence[str], values: MaskValues, *, classes: Sequence[str]) -> MaskValues:
    """Renumber the values of a class list by other classes, matched by name; names without a match become 255."""
    number = [classes.index(name) if name in classes else IGNORED for name in names]
    if all(one == IGNORED for one in number):
        raise DataError(
            f"the class lists of both folders have no name in common: {some_of(list(names))} and "
            f"{some_of(list(classes))}"
        )

    def moved(one: int) -> int:
        return IGNORED if one == IGNORED else number[one]

    return MaskValues(
        numbers={value: moved(one) for value, one in values.numbers.items()},
        colours={value: moved(one) for value, one in values.colours.items()},
    )


def seen_values(files: Sequence[Path]) -> set[int]:
    """Return all numbers that masks store."""
    with ThreadPoolExecutor(2) as pool:
        each = pool.map(lambda file: values_in(file, name=str(file)), files)
        return set[int]().union(*track(each, "Reading masks", total=len(files)))


def stem(name: str) -> str:
    """Return what a mask's name has in common with its picture's."""
    return name.rpartition(".")[0].removesuffix("_mask")
