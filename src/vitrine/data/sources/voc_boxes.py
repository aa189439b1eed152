"""VOC's XML files: its own folders with their lists, LabelImg's files beside pictures, and the head boxes of Pets."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from vitrine.data.decoding.box_files import XmlFile, read_voc_xml
from vitrine.data.decoding.decode import read_file
from vitrine.data.sources.box_list import BoxList, Objects
from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.folder_walk import list_images
from vitrine.data.sources.labels import sorted_classes
from vitrine.data.sources.mask_list import CLASS_LISTS, read_class_list
from vitrine.data.sources.mask_sets import VOC_CLASSES
from vitrine.data.sources.source import ALL, Source
from vitrine.errors import DataError
from vitrine.runtime.progress import notice, track
from vitrine.runtime.threads import in_order
from vitrine.spelling import counted, printable, some_of

# Folders of pictures and of XML files beside each other; LabelImg and others write into the folder of the pictures.
FOLDERS = (("JPEGImages", "Annotations"), ("images", "annotations"), ("images", "Annotations"), (".", "."))
PETS = ("images", "annotations/xmls")
OBJECTS = VOC_CLASSES[1:]  # without the background


def voc_root(root: Path) -> Path:
    """Return the folder of VOC's layout: this one, or `VOCdevkit/VOC2012` in it."""
    inner = [place for kit in ("VOCdevkit", ".") for place in sorted((root / kit).glob("VOC20??"))]
    return next((place for place in inner if (place / "Annotations").is_dir()), root)


def finds(root: Path) -> bool:
    """Whether a folder has pictures and XML files beside them, or VOC's folders."""
    return root.is_dir() and folders_in(voc_root(root)) is not None


def folders_in(root: Path) -> tuple[str, str] | None:
    """Return the folders of pictures and of XML files."""
    for pictures, files in FOLDERS:
        first = next((root / files).glob("*.xml"), None) if (root / pictures).is_dir() else None
        if first is not None and b"<annotation" in first.read_bytes():
            return pictures, files
    return None


def open_all(root: Path, address: str) -> dict[str, Source]:
    """Open the official lists of `ImageSets/Main`, or all pictures where there are none."""
    root = voc_root(root)
    folders = folders_in(root)
    assert folders is not None
    lists = {split: root / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val", "test")}
    named = {split: names_in(file) for split, file in lists.items() if file.is_file()}
    return _opened(root, folders, named, address=address)


def finds_pets(root: Path) -> bool:
    """Whether a folder is that of Oxford-IIIT Pets, with head boxes for half of the pictures."""
    return (root / PETS[1]).is_dir()


def open_pets(root: Path, address: str) -> dict[str, Source]:
    """Open the pictures of Pets that have a head box, as one set: only its training pictures have any."""
    return _opened(root, PETS, {}, address=address)


def names_in(file: Path) -> list[str]:
    """Return the names of a list, one per line; anything after a name is ignored."""
    lines = require_path(file).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def _opened(
    root: Path, folders: tuple[str, str], named: dict[str, list[str]], *, address: str
) -> dict[str, Source]:
    pictures, files = folders
    of_stem = {name.rpartition(".")[0]: name for name in list_images(root / pictures)}
    have_file = {file.stem for file in (root / files).glob("*.xml")}
    wanted = named or {ALL: [stem for stem in of_stem if stem in have_file]}
    kept = {
        split: [stem for stem in stems if stem in of_stem and stem in have_file]
        for split, stems in wanted.items()
    }
    for split, stems in wanted.items():
        if len(kept[split]) < len(stems):
            missing = sorted(set(stems) - set(kept[split]))
            notice(f"Skipped in {split}, without a picture or an XML file: {some_of(missing)}")
    alone = sorted(set(of_stem) - have_file)
    if alone and not named:
        notice(f"Skipped {counted(len(alone), 'picture')} without an XML file: {some_of(alone)}")
    if not any(kept.values()):
        raise DataError(f"no picture of {printable(str(root / pictures))} has an XML file with the same name")
    read = {split: _read(root / files, stems, split=split) for split, stems in kept.items()}
    classes = _classes(root, (one for files in read.values() for one in files))
    return {
        split: BoxList(
            root,
            (_joined(pictures, of_stem[stem]) for stem in kept[split]),
            _objects(read[split], classes),
            classes=classes,
            address=address,
        )
        for split in kept
    }


def _read(folder: Path, stems: Sequence[str], *, split: str) -> list[XmlFile]:
    def read(stem: str) -> XmlFile:
        return read_voc_xml(read_file(str(folder / f"{stem}.xml")), name=f"{stem}.xml")

    return list(track(in_order(read, stems, num_workers=2), f"Reading boxes of {split}", total=len(stems)))


def _classes(root: Path, files: Iterable[XmlFile]) -> tuple[str, ...]:
    """Return the classes of a list beside the folders; without it VOC's own if no other occurs, else all."""
    names = {one.name for file in files for one in file.objects}
    for listing in CLASS_LISTS:
        if (root / listing).is_file():
            classes, _ = read_class_list(root / listing)
            unknown = sorted(names - set(classes))
            if unknown:
                raise DataError(f"{printable(str(root / listing))} lacks the class {printable(unknown[0])}")
            return classes
    if not names:
        raise DataError(f"no XML file of {printable(str(root))} has an object")
    return OBJECTS if names <= set(OBJECTS) else tuple(sorted_classes(names))


def _objects(files: Iterable[XmlFile], classes: Sequence[str]) -> Objects:
    number, objects = {name: place for place, name in enumerate(classes)}, Objects()
    for file in files:
        for one in file.objects:
            objects.add(one.box, number[one.name], is_ignored=one.is_difficult)
        objects.end_picture(file.size)
    return objects


def _joined(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"
