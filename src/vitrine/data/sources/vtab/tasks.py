"""The 19 tasks: groups, classes, sizes, folder names, and which augmentations keep their labels."""

from dataclasses import dataclass
from typing import Literal

from vitrine.errors import ConfigError
from vitrine.spelling import nearest

Group = Literal["Natural", "Specialized", "Structured"]
GROUPS: tuple[Group, ...] = ("Natural", "Specialized", "Structured")
TRAIN_IMAGES, VAL_IMAGES = 800, 200


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task; `sizes` are the images of train, val and test that the 800 and 200 are drawn from."""

    name: str
    group: Group
    num_classes: int
    sizes: tuple[int, int, int]
    folders: tuple[str, ...]
    """Names of its folder below the root, the community's name first."""
    may_crop: bool = True
    """False if a part of the image, or another scale, would have another label."""
    may_flip: bool = True
    """False if the mirror image would have another label."""
    train_per_class: int | None = None
    """Images per class of train and val together, if the set is not split and VTAB defines it."""


def _structured(
    name: str, classes: int, sizes: tuple[int, int, int], folders: tuple[str, ...], *, may_flip: bool
) -> Task:
    # Counts, distances, places and views: a crop at another scale changes every one of them.
    return Task(name=name, group="Structured", num_classes=classes, sizes=sizes, folders=folders, may_crop=False,
                may_flip=may_flip)  # fmt: skip


_CLEVR, _DSPRITES, _NORB = (63_000, 7_000, 15_000), (589_824, 73_728, 73_728), (24_300, 12_150, 12_150)
TASKS: tuple[Task, ...] = (
    Task(name="Caltech101", group="Natural", num_classes=102, sizes=(2_754, 306, 6_084),
         folders=("caltech101",), train_per_class=30),
    Task(name="CIFAR-100", group="Natural", num_classes=100, sizes=(45_000, 5_000, 10_000),
         folders=("cifar", "cifar100", "cifar-100")),
    Task(name="DTD", group="Natural", num_classes=47, sizes=(1_880, 1_880, 1_880), folders=("dtd",)),
    Task(name="Flowers102", group="Natural", num_classes=102, sizes=(1_020, 1_020, 6_149),
         folders=("oxford_flowers102", "flowers102", "flowers")),
    Task(name="Pets", group="Natural", num_classes=37, sizes=(2_944, 736, 3_669),
         folders=("oxford_iiit_pet", "pets")),
    Task(name="Sun397", group="Natural", num_classes=397, sizes=(76_128, 10_875, 21_750), folders=("sun397",)),
    # Digits: a mirrored 2 is not a 2, and a crop may show a neighbouring digit.
    Task(name="SVHN", group="Natural", num_classes=10, sizes=(65_931, 7_326, 26_032), folders=("svhn",),
         may_crop=False, may_flip=False),
    Task(name="Camelyon", group="Specialized", num_classes=2, sizes=(262_144, 32_768, 32_768),
         folders=("patch_camelyon", "camelyon", "pcam")),
    Task(name="EuroSAT", group="Specialized", num_classes=10, sizes=(16_200, 5_400, 5_400), folders=("eurosat",)),
    Task(name="Resisc45", group="Specialized", num_classes=45, sizes=(18_900, 6_300, 6_300),
         folders=("resisc45",)),
    Task(name="Retinopathy", group="Specialized", num_classes=5, sizes=(35_126, 10_906, 42_670),
         folders=("diabetic_retinopathy", "retinopathy")),
    _structured("Clevr-Count", 8, _CLEVR, ("clevr_count", "clevr"), may_flip=True),
    _structured("Clevr-Dist", 6, _CLEVR, ("clevr_dist", "clevr"), may_flip=True),
    _structured("DMLab", 6, (65_550, 22_628, 22_735), ("dmlab",), may_flip=True),
    _structured("dSprites-Location", 16, _DSPRITES, ("dsprites_loc", "dsprites"), may_flip=False),
    _structured("dSprites-Orientation", 16, _DSPRITES, ("dsprites_ori", "dsprites"), may_flip=False),
    _structured("KITTI-Distance", 4, (6_347, 423, 711), ("kitti",), may_flip=True),
    _structured("sNORB-Azimuth", 18, _NORB, ("smallnorb_azi", "smallnorb", "snorb"), may_flip=False),
    _structured("sNORB-Elevation", 9, _NORB, ("smallnorb_ele", "smallnorb", "snorb"), may_flip=True),
)  # fmt: skip


def find_task(name: str) -> Task:
    """Find a task by name, whatever its case and punctuation."""
    plain = {_plain(task.name): task for task in TASKS}
    if _plain(name) in plain:
        return plain[_plain(name)]
    close = nearest(name, [task.name for task in TASKS])[0]
    raise ConfigError(f"VTAB has no task {name!r}; did you mean {close}?", suggestions=[close])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
