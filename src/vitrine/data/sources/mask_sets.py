"""Data sets for segmentation: `images/` beside `masks/`, VOC, ADE20K and the trimaps of Oxford-IIIT Pets.

`masks:FOLDER` opens a folder as such where it could be read in another way too. A picture and its mask have the same
name up to the extension; a mask may also be called NAME_mask.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.data.decoding.annotation import IGNORED, DataTask
from vitrine.data.decoding.mask_file import MaskValues
from vitrine.data.sources.class_folders import find_splits
from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.folder_walk import holds_images, list_images, subfolders
from vitrine.data.sources.mask_list import MaskList, classes_of
from vitrine.data.sources.source import ALL, Source
from vitrine.errors import DataError
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable, some_of

TASK: DataTask = "masks"
PREFIX = "masks:"
PICTURE_FOLDERS = ("images", "imgs", "JPEGImages")
MASK_FOLDERS = ("masks", "annotations", "mask", "SegmentationClass")
VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
# Values of the trimaps: animal, background, and the border between them, which is not classified.
PETS_CLASSES, PETS_VALUES = ("animal", "background"), {1: 0, 2: 1, 3: IGNORED}
ADE_CLASSES = "objectInfo150.txt"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which masks are stored: `finds` returns the folder that `open` reads, or None."""

    finds: Callable[[Path], Path | None]
    open: Callable[[Path, str], dict[str, Source]]
    is_sure: bool = True
    """Whether a folder of this layout can only be meant as masks."""


def recognises(address: str) -> bool:
    """Accept `masks:FOLDER`, and a folder whose layout can only be meant as masks."""
    if address.startswith(PREFIX):
        return True
    path = Path(address)
    return path.is_dir() and any(layout.is_sure and layout.finds(path) for layout in LAYOUTS)


def open_all(address: str) -> dict[str, Source]:
    """Open the splits of the first layout that the folder has."""
    root = require_path(Path(address.removeprefix(PREFIX)))
    for layout in LAYOUTS:
        listing = layout.finds(root) if root.is_dir() else None
        if listing is not None:
            return layout.open(listing, address)
    raise DataError(
        f"{printable(str(root))} holds no masks; put pictures into images/ and a PNG of the same name for each into "
        "masks/"
    )


def voc_folder(root: Path) -> Path | None:
    """Return the folder of VOC's layout: this one, or `VOCdevkit/VOC2012` in it."""
    inner = [root, *(place for kit in ("VOCdevkit", ".") for place in sorted((root / kit).glob("VOC20??")))]
    return next((place for place in inner if (place / "SegmentationClass").is_dir()), None)


def open_voc(root: Path, address: str) -> dict[str, Source]:
    """Open the official lists of VOC's segmentation; 255 is the border of objects."""
    lists = root / "ImageSets" / "Segmentation"
    named = {split: lists / f"{split}.txt" for split in ("train", "val", "test")}
    return {
        split: _named_list(
            root, file, pictures="JPEGImages", masks="SegmentationClass", classes=VOC_CLASSES,
            values=MaskValues.in_order(len(VOC_CLASSES)), address=address,
        )
        for split, file in named.items()
        if file.is_file()
    }  # fmt: skip


def pets_folder(root: Path) -> Path | None:
    """Return the folder of Oxford-IIIT Pets, whose masks are trimaps."""
    return root if (root / "annotations" / "trimaps").is_dir() else None


def open_pets(root: Path, address: str) -> dict[str, Source]:
    """Open the official lists of Pets: animal and background, without the border between them."""
    named = {"train": root / "annotations" / "trainval.txt", "test": root / "annotations" / "test.txt"}
    return {
        split: _named_list(
            root, file, pictures="images", masks="annotations/trimaps", classes=PETS_CLASSES,
            values=MaskValues(numbers=PETS_VALUES), address=address,
        )
        for split, file in named.items()
    }  # fmt: skip


def ade_folder(root: Path) -> Path | None:
    """Return the folder of ADE20K's scene parsing challenge."""
    return root if (root / ADE_CLASSES).is_file() and (root / "annotations").is_dir() else None


def open_ade(root: Path, address: str) -> dict[str, Source]:
    """Open ADE20K: values from 1 are classes, 0 is no class."""
    rows = [line.split("\t") for line in (root / ADE_CLASSES).read_text(encoding="utf-8").splitlines()[1:]]
    classes = tuple(row[-1].split(",")[0].strip() for row in rows if len(row) > 1)
    values = MaskValues(numbers={0: IGNORED, **{number + 1: number for number in range(len(classes))}})
    return _beside(root, address, pictures="images", masks="annotations", known=(classes, values))


def beside_folder(root: Path) -> Path | None:
    """Return the folder itself if it has a folder of pictures and, beside it, one of masks; its splits may too."""
    names = subfolders(root)
    inner = [root / name for name in find_splits(names).values()]
    if _pair(names, root) is not None or (inner and all(_pair(subfolders(one), one) for one in inner)):
        return root
    return None


def open_beside(root: Path, address: str) -> dict[str, Source]:
    """Open `images/` and `masks/`, each with a folder per split or none; or both in a folder per split."""
    names = subfolders(root)
    pair = _pair(names, root)
    if pair is not None:
        return _beside(root, address, pictures=pair[0], masks=pair[1])
    splits: dict[str, tuple[list[str], list[str]]] = {}
    for split, folder in find_splits(names).items():
        inner = _pair(subfolders(root / folder), root / folder)
        assert inner is not None
        splits[split] = paired(root, f"{folder}/{inner[0]}", f"{folder}/{inner[1]}")
    return _lists(root, splits, address=address)


def _beside(
    root: Path,
    address: str,
    *,
    pictures: str,
    masks: str,
    known: tuple[tuple[str, ...], MaskValues] | None = None,
) -> dict[str, Source]:
    splits = find_splits(subfolders(root / pictures))
    if not splits:
        return _lists(root, {ALL: paired(root, pictures, masks)}, address=address, known=known)
    return _lists(
        root,
        {split: paired(root, f"{pictures}/{name}", f"{masks}/{name}") for split, name in splits.items()},
        address=address,
        known=known,
    )


def _lists(
    root: Path,
    splits: Mapping[str, tuple[list[str], list[str]]],
    *,
    address: str,
    known: tuple[tuple[str, ...], MaskValues] | None = None,
) -> dict[str, Source]:
    classes, values = known or classes_of(root, [mask for _, masks in splits.values() for mask in masks])
    return {
        split: MaskList(root, paths, masks, classes=classes, values=values, address=address)
        for split, (paths, masks) in splits.items()
    }


def paired(root: Path, pictures: str, masks: str) -> tuple[list[str], list[str]]:
    """Return the pictures that have a mask, and their masks; report the others."""
    of_mask = {_stem(name): name for name in list_images(root / masks)} if (root / masks).is_dir() else {}
    both: tuple[list[str], list[str]] = ([], [])
    without: list[str] = []
    for name in list_images(root / pictures):
        stem = _stem(name)
        mask = of_mask.pop(stem, None) or of_mask.pop(f"{stem}_mask", None)
        if mask is None:
            without.append(name)
            continue
        both[0].append(f"{pictures}/{name}")
        both[1].append(f"{masks}/{mask}")
    for names, what in ((without, "without a mask"), (sorted(of_mask.values()), "masks without a picture")):
        if names:
            listed = f"{counted(len(names), 'file')} ({some_of(names)})"
            notice(f"Skipped in {printable(str(root / pictures))}, {what}: {listed}")
    if not both[0]:
        raise DataError(
            f"no picture of {printable(str(root / pictures))} has a mask in {printable(str(root / masks))}; a mask "
            "has the name of its picture, up to the extension"
        )
    return both


def _named_list(
    root: Path,
    file: Path,
    *,
    pictures: str,
    masks: str,
    classes: Sequence[str],
    values: MaskValues,
    address: str,
) -> MaskList:
    lines = require_path(file).read_text(encoding="utf-8").splitlines()
    names = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    kept = [name for name in names if (root / masks / f"{name}.png").is_file()]
    if len(kept) < len(names):
        notice(
            f"Skipped {counted(len(names) - len(kept), 'picture')} of {printable(str(file))} without a mask"
        )
    return MaskList(
        root, (f"{pictures}/{name}.jpg" for name in kept), (f"{masks}/{name}.png" for name in kept),
        classes=classes, values=values, address=address,
    )  # fmt: skip


def _pair(names: Sequence[str], root: Path) -> tuple[str, str] | None:
    """Return the folders of pictures and of masks among some names; a folder of masks holds images or splits."""
    pictures = next((name for name in PICTURE_FOLDERS if name in names), None)
    masks = next((name for name in MASK_FOLDERS if name in names), None)
    if pictures is None or masks is None:
        return None
    is_filled = holds_images(root / masks) or find_splits(subfolders(root / masks))
    return (pictures, masks) if is_filled else None


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


LAYOUTS = (
    Layout(finds=voc_folder, open=open_voc),
    Layout(finds=ade_folder, open=open_ade),
    Layout(finds=pets_folder, open=open_pets, is_sure=False),
    Layout(finds=beside_folder, open=open_beside),
)
