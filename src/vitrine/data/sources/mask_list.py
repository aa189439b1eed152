"""Pictures with a mask file each: shared by every layout of data sets for segmentation."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vitrine.data.decoding.annotation import IGNORED, MOST_CLASSES, Annotation
from vitrine.data.decoding.decode import read_file
from vitrine.data.decoding.mask_file import MaskValues, decode_mask, is_coloured, stored_values
from vitrine.data.sources.file_list import FileList, Strings
from vitrine.data.sources.source import NO_LABEL
from vitrine.errors import DataError
from vitrine.runtime.progress import track
from vitrine.spelling import printable, some_of

# Names of class lists beside the folders of pictures; CVAT writes the second.
CLASS_LISTS = ("classes.txt", "labelmap.txt")
# Names in a class list for pixels that belong to no class.
IGNORED_NAMES = ("ignore", "ignored", "void", "unlabeled", "unlabelled")


class MaskList(FileList):
    """Pictures and their masks by path relative to `base`, in the same order."""

    task = "masks"
    has_fixed_classes = True

    def __init__(
        self,
        base: Path,
        paths: Iterable[str],
        masks: Iterable[str],
        *,
        classes: Sequence[str],
        values: MaskValues,
        address: str = "",
    ) -> None:
        listed = Strings(paths)
        labels = np.full((len(listed), 1), NO_LABEL, dtype=np.int32)
        super().__init__(base, listed, labels=labels, classes=classes, address=address)
        self.masks, self.meanings = Strings(masks), values
        assert len(self.masks) == len(self.paths)

    def mask_path(self, index: int) -> Path:
        """Return the file with the mask of example `index`."""
        return self.base / self.masks[index]

    def annotation(self, index: int) -> Annotation:
        """Read the class of every pixel of example `index`."""
        name: str = self.masks[index]
        classes = decode_mask(read_file(str(self.mask_path(index))), self.meanings, name=name)
        return Annotation(size=(classes.shape[0], classes.shape[1]), classes=classes)

    def fingerprint(self) -> str:
        """Hash names and sizes of pictures and masks, and what the values of masks mean."""
        digest = hashlib.blake2b(super().fingerprint().encode(), digest_size=16)
        digest.update(
            repr((sorted(self.meanings.numbers.items()), sorted(self.meanings.colours.items()))).encode()
        )
        for index in range(len(self)):
            path = self.mask_path(index)
            size = os.stat(path).st_size if path.exists() else 0  # noqa: PTH116 (called for every mask)
            digest.update(f"{self.masks[index]}\0{size}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def read_class_list(file: Path) -> tuple[tuple[str, ...], MaskValues]:
    """Read a class per line: `name`, `name:value` or `name:red,green,blue`; a name alone has the line's number.

    Lines that begin with # are comments. A class called ignored, void or unlabeled is counted nowhere.
    """
    names: list[str] = []
    numbers, colours = {IGNORED: IGNORED}, {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {printable(str(file))}: {error}") from None
    stated = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for place, line in enumerate(stated):
        name, _, rest = line.partition(":")
        value = rest.split(":")[0].strip()
        number = IGNORED if name.strip().lower() in IGNORED_NAMES else len(names)
        if number != IGNORED:
            names.append(name.strip())
        parts = [part.strip() for part in value.split(",")] if value else [str(place)]
        if not all(part.isdecimal() and int(part) <= 65_535 for part in parts) or len(parts) not in (1, 3):
            raise DataError(
                f"{printable(str(file))} has the line {printable(line)!r}; write name, name:value or "
                "name:red,green,blue"
            )
        if len(parts) == 1:
            numbers[int(parts[0])] = number
        else:
            colours[int(parts[0]), int(parts[1]), int(parts[2])] = number
    if not names or len(names) > MOST_CLASSES:
        raise DataError(
            f"{printable(str(file))} lists {len(names)} classes; it must list 1 to {MOST_CLASSES}"
        )
    return tuple(names), MaskValues(numbers=numbers, colours=colours)


def classes_of(base: Path, masks: Sequence[str]) -> tuple[tuple[str, ...], MaskValues]:
    """Return the classes of some masks: from a list beside them, or else from all their values."""
    for name in CLASS_LISTS:
        if (base / name).is_file():
            return read_class_list(base / name)
    with ThreadPoolExecutor(2) as pool:
        values_by_mask = pool.map(lambda mask: values_in(base / mask, name=mask), masks)
        values = sorted(set().union(*track(values_by_mask, "Reading masks", total=len(masks))))
    if values == [0, IGNORED]:  # black and white: what drawing programs write for one object
        return ("background", "foreground"), MaskValues(numbers={0: 0, IGNORED: 1})
    numbers = [value for value in values if value != IGNORED]
    if not numbers or numbers[-1] >= MOST_CLASSES:
        raise DataError(
            f"masks in {printable(str(base))} have the values {some_of(list(map(str, values)))}; classes are numbers "
            f"from 0 to {MOST_CLASSES - 1}: list what the values mean in classes.txt, as name:value"
        )
    count = numbers[-1] + 1
    return tuple(f"class {number}" for number in range(count)), MaskValues.in_order(count)


def values_in(file: Path, *, name: str) -> set[int]:
    """Return the numbers that a mask stores; refuse one in colours, which mean nothing without a list."""
    data = read_file(str(file))
    if is_coloured(data, name=name):
        raise DataError(
            f"{printable(name)} is a mask in colours; list its classes in classes.txt, as name:red,green,blue"
        )
    return {int(value) for value in np.unique(stored_values(data, name=name))}
