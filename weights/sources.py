"""The public photographs that the bundled models see, and those that they are measured on.

A source is a public Git repository with one file per photograph. `gather.py` reads it from a bare clone and counts
files that the clone lacks. Labels are ImageNet's, read from the WordNet id in a path.
"""

import re
from dataclasses import dataclass
from pathlib import Path

CLASSES = Path(__file__).with_name("imagenet.txt")
NO_LABEL = -1
PHOTOGRAPH = re.compile(r"\.(jpe?g|png)$", re.IGNORECASE)
WORDNET = re.compile(r"n\d{8}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Photographs of one repository, and the size and quality in which they travel."""

    repository: str
    licence: str
    side: int
    """Pixels of the square that is stored."""
    quality: int = 72
    share: float = 0.0
    """Fraction of a training batch; 0 for photographs that are only measured on."""
    within: str = ""
    """Regular expression of the paths that belong to it."""
    is_imagenet: bool = False
    """Whether paths contain the WordNet id of an ImageNet class."""


RESEARCH = "photographs of the web, published for research"
SOURCES = {
    "tiny": Source(
        repository="seshuad/IMagenet", within=r"/train/", side=64, quality=80, share=0.20, is_imagenet=True,
        licence=f"Tiny-ImageNet: {RESEARCH}",
    ),
    "mini": Source(
        repository="Deo0330/split_minidataset", side=84, quality=80, share=0.16, is_imagenet=True,
        licence=f"mini-ImageNet, 100 classes of ImageNet's training part: {RESEARCH}",
    ),
    "nette": Source(
        repository="thunderInfy/imagenette", within=r"^train/", side=176, share=0.07, is_imagenet=True,
        licence=f"Imagenette, 10 classes of ImageNet's training part: {RESEARCH}",
    ),
    "sample": Source(
        repository="EliSchwartz/imagenet-sample-images", side=192, share=0.03, is_imagenet=True,
        licence=f"one photograph per class of ImageNet's training part: {RESEARCH}",
    ),
    "dogs": Source(
        repository="jigsawpieces/dog-api-images", side=176, share=0.10, is_imagenet=True,
        licence=f"the Dog API's photographs, mostly Stanford Dogs (ImageNet's training part): {RESEARCH}",
    ),
    "voc": Source(
        repository="nader-bitstrapped-com/pascal-voc-2012", within=r"/JPEGImages/", side=192, share=0.13,
        licence="PASCAL VOC 2012: Flickr's terms, for research",
    ),
    "dogcat": Source(
        repository="laxmimerit/dog-cat-full-dataset", side=160, share=0.08,
        licence=f"Asirra's dogs and cats: {RESEARCH}",
    ),
    "birds": Source(
        repository="cyizhuo/CUB-200-2011-dataset", within=r"^train/", side=176, share=0.06,
        licence="CUB-200-2011, training part: for research that is not commercial",
    ),
    "cars": Source(
        repository="cyizhuo/Stanford-Cars-dataset", within=r"^train/", side=160, share=0.05,
        licence="Stanford Cars, training part: for research that is not commercial",
    ),
    "scenes": Source(
        repository="keshav1245/Image-Classification-using-AlexNet-CNN-Model", within=r"^seg_(train|pred)/",
        side=128, share=0.05, licence=f"Intel's landscapes and streets: {RESEARCH}",
    ),
    "grocery": Source(
        repository="marcusklasson/GroceryStoreDataset", within=r"^dataset/(train|test|val)/", side=176,
        share=0.03, licence="MIT",
    ),
    "clothing": Source(
        repository="alexeygrigorev/clothing-dataset", within=r"^images/", side=176, share=0.03,
        licence="CC0-1.0",
    ),
    "pacs": Source(
        repository="MachineLearning2020/Homework3-PACS", within=r"/photo/", side=176, share=0.01,
        licence=f"PACS, the photographs: {RESEARCH}",
    ),
    "imagenet-val": Source(
        repository="ndb796/Small-ImageNet-Validation-Dataset-1000-Classes", within=r"img_val_subset/", side=192,
        quality=80, licence=f"5,000 of ImageNet's validation photographs, for measuring only: {RESEARCH}",
    ),
    "pets-all": Source(
        repository="ml4py/dataset-iiit-pet", within=r"^images/", side=176, quality=76,
        licence="Oxford-IIIT Pets, CC BY-SA 4.0, for measuring only",
    ),
}  # fmt: skip
"""Shares add up to 1: much of everything, more often what is sharp."""

REPORTED = {
    "imagenet-val": ("ndb796/Small-ImageNet-Validation-Dataset-1000-Classes", r"img_val_subset/"),
    "pets": ("ml4py/dataset-iiit-pet", r"^images/"),
    "cub": ("cyizhuo/CUB-200-2011-dataset", r"^test/"),
    "cars": ("cyizhuo/Stanford-Cars-dataset", r"^test/"),
}
"""Test photographs of the card: repository and paths. No training photograph may be a copy of one of them."""


def class_numbers() -> dict[str, int]:
    """Map the WordNet ids of ImageNet's 1,000 classes to their numbers."""
    return {line.split()[0]: number for number, line in enumerate(CLASSES.read_text().splitlines())}


def class_names() -> list[str]:
    """Return the names of ImageNet's 1,000 classes in the order of their numbers."""
    return [line.partition(" ")[2] for line in CLASSES.read_text().splitlines()]


def label_of(path: str, name: str, numbers: dict[str, int]) -> int:
    """Return the number that a path gives its photograph, or -1.

    For ImageNet's photographs that of the class, from its WordNet id or its folder; for Pets that of the breed.
    """
    if name == "imagenet-val":
        return int(Path(path).parent.name)
    if SOURCES[name].is_imagenet:
        match = WORDNET.search(path)
        return NO_LABEL if match is None else numbers.get(match[0], NO_LABEL)
    return NO_LABEL
