"""ObjectNet (Barbu et al., NeurIPS 2019): photographs of 313 household objects, 113 of which are ImageNet classes.

The archive has a folder of PNG files per object in `images`, and four files in `mappings`:

| file | content |
|---|---|
| `folder_to_objectnet_label.json` | folder to object, for all 313 |
| `objectnet_to_imagenet_1k.json` | object to its ImageNet classes, separated by "; ", for 113 |
| `imagenet_to_label_2012_v2` | one ImageNet class per line |
| `pytorch_to_imagenet_2012_id.json` | place in ImageNet's standard order to line, both from 0 |

Every picture has a red border, so that a copy on the web can be recognised. It must not reach a model: the loader of
ObjectNet's authors (abarbu/objectnet-template-pytorch) crops 2 pixels off each side. The licence forbids training on
the pictures, so the set has one split, `test`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.decoding.decode import decode, read_file
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.sources.file_list import FileList, require_path
from vitrine.data.sources.folder_walk import list_images, no_images, subfolders
from vitrine.data.sources.source import Example, Source
from vitrine.errors import DataError, ImageError, MissingDataError
from vitrine.runtime.files import parse_json
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable, some_of

NUM_OBJECTS = 313
NUM_IMAGENET_CLASSES = 1000
BORDER = 2
FOLDERS, OVERLAP = "folder_to_objectnet_label.json", "objectnet_to_imagenet_1k.json"
LABELS, ORDER = "imagenet_to_label_2012_v2", "pytorch_to_imagenet_2012_id.json"
FILES = (FOLDERS, OVERLAP, LABELS, ORDER)
# The folder that the archive unpacks to.
_UNPACKED = "objectnet-1.0"
_SEPARATOR = "; "


@dataclass(frozen=True, kw_only=True)
class Mappings:
    """Contents of the four files."""

    objects: Mapping[str, str]
    """Folder to object."""
    imagenet_classes: tuple[str, ...]
    """All 1,000 names in ImageNet's standard order: by WordNet id, as models number their outputs."""
    accepted: Mapping[str, tuple[int, ...]]
    """Object to the places of its ImageNet classes in that order."""


class ObjectNet(FileList):
    """Pictures by object, without their borders, and the ImageNet classes that each object may be called."""

    has_fixed_classes = True

    def __init__(self, root: Path, paths: list[str], *, objects: list[str], mappings: Mappings) -> None:
        classes = sorted(set(mappings.objects.values()))
        number = {name: index for index, name in enumerate(classes)}
        labels = np.array([number[name] for name in objects], dtype=np.int32)
        super().__init__(root, paths, labels=labels, classes=classes, base=root / "images")
        self.mappings = mappings

    def read(self, index: int) -> Example:
        """Decode picture `index` and crop its border."""
        name = self.name(index)
        pixels = without_border(decode(read_file(str(self.path(index))), name=name), name=name)
        return Example(data=pixels, label=self.label(index), name=name)


def without_border(pixels: Pixels, *, name: str) -> Pixels:
    """Crop the red border off pixels (H, W, C): (H - 4, W - 4, C)."""
    if min(pixels.shape[:2]) <= 2 * BORDER:
        raise ImageError(
            f"{printable(name)} has {pixels.shape[0]} x {pixels.shape[1]} pixels, and the border of an ObjectNet "
            f"picture takes {BORDER} of each side",
            kind="damaged",
        )
    return np.ascontiguousarray(pixels[BORDER:-BORDER, BORDER:-BORDER])


def is_objectnet(path: Path) -> bool:
    """Whether a folder has a file of ObjectNet's mappings: one that lacks the others is then refused by name."""
    return any((_unpacked(path) / "mappings" / name).is_file() for name in FILES)


def open_objectnet(root: Path) -> dict[str, Source]:
    """List the pictures in `images`; folders that the mapping does not name are skipped with a notice."""
    root = _unpacked(root)
    mappings = read_mappings(root / "mappings")
    images = require_path(root / "images")
    unknown = [folder for folder in subfolders(images) if folder not in mappings.objects]
    if unknown:
        notice(f"Skipped {counted(len(unknown), 'folder')} that {FOLDERS} does not name: {some_of(unknown)}")
    paths: list[str] = []
    objects: list[str] = []
    for folder, name in sorted(mappings.objects.items()):
        if (images / folder).is_dir():
            found_here = [f"{folder}/{path}" for path in list_images(images / folder)]
            paths += found_here
            objects += [name] * len(found_here)
    if not paths:
        raise DataError(no_images(images))
    return {"test": ObjectNet(root, paths, objects=objects, mappings=mappings)}


def read_mappings(folder: Path) -> Mappings:
    """Read the four files; one that is missing, damaged or of another version is refused."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise MissingDataError(
            f"{printable(str(folder))} lacks {' and '.join(missing)}; copy {'it' if len(missing) == 1 else 'them'} "
            "from ObjectNet's archive"
        )
    lines = [
        line.strip() for line in (folder / LABELS).read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    objects, overlap = (_names(folder / name) for name in (FOLDERS, OVERLAP))
    classes = tuple(lines[line] for line in _order(folder / ORDER, num_lines=len(lines)))
    place = {name: index for index, name in enumerate(classes)}
    accepted = {}
    for name, words in overlap.items():
        names = words.split(_SEPARATOR)
        unknown = [one for one in names if one not in place]
        if unknown:
            raise DataError(
                f"{printable(str(folder / OVERLAP))} maps {printable(name)} to {printable(unknown[0])}, which "
                f"{LABELS} does not list; copy both files from one archive"
            )
        accepted[name] = tuple(place[one] for one in names)
    return Mappings(objects=objects, imagenet_classes=classes, accepted=accepted)


def _unpacked(path: Path) -> Path:
    return path / _UNPACKED if (path / _UNPACKED).is_dir() else path


def _names(file: Path) -> dict[str, str]:
    names = _parsed(file)
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise DataError(f"{printable(str(file))} must map names to names")
    return names


def _order(file: Path, *, num_lines: int) -> list[int]:
    """Return the line of each class in standard order."""
    lines = _parsed(file)
    places = [str(place) for place in range(NUM_IMAGENET_CLASSES)]
    if not isinstance(lines, dict) or set(lines) != set(places) or num_lines != NUM_IMAGENET_CLASSES:
        raise DataError(f"{printable(str(file))} and {LABELS} must each have ImageNet's 1,000 classes")
    order = [lines[place] for place in places]
    if sorted(order) != list(range(NUM_IMAGENET_CLASSES)):
        raise DataError(
            f"{printable(str(file))} must give each place another line of {LABELS}, from 0 to 999"
        )
    return order


def _parsed(file: Path) -> Any:
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{printable(str(file))} is not a JSON file: {error}") from error
