"""The model card: what a bundled model saw, what it can do, and every figure beside its teacher's."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sources import SOURCES

from vitrine.data.preparing.preprocess import Preprocess

CARD = """---
library_name: vitrine
license: apache-2.0
tags: [image-classification, image-feature-extraction, vision-transformer]
---

# The bundled model {name}

A {variant} of the paper (arXiv:2010.11929; width {width}, {depth} layers, {heads} heads, class token,
{params:,} parameters) at {size} pixels, stored in half precision and loaded in single precision: a good start
for fine-tuning, features for few labels and for search, and {classes:,} classes of its own, so that `vitrine
predict photo.jpg` works at once.

## Data

Training started from: {start}. Its features were distilled from DINOv2 ViT-S/14 (arXiv:2304.07193) on augmented
views of the photographs below; its head learned the labels of those that have one, and the answers of
EfficientNet-Lite2 (ImageNet's 1,000 classes) and of a linear head on the teacher. Tiny-ImageNet and
mini-ImageNet are seen at 64 and 84 pixels. The test photographs of Pets, CUB-200-2011, Stanford Cars and
ImageNet's validation part below were used for measuring only; {copies:,} training photographs that the teacher
considers copies of one of them were removed.

{sources}

## Licence

The weights are Apache-2.0, as are Vitrine and the teacher. The photographs belong to their owners and were
published for research; none of them is in this package. If you need weights trained on images with commercial
terms, train your own: `vitrine pretrain`.

## Limits

- It is small. Larger models (`vitrine finetune --model ...`) are better at fine distinctions.
- About 300 of its classes had many photographs, the others few: dogs, cats, birds, cars, food in shops and clothes
  are over-represented. For what it does not know it predicts the nearest class, sometimes with high confidence.
- Its data does not cover people as such, documents, text, medical and satellite images, or drawings.
- Images on the web are not representative. The model inherits the balance of places, people and objects of its
  sources, and their biases. Evaluate it on your own photos before you rely on it.

## Figures

{figures}

## Input

{preprocess}
"""
SET_NAMES = {
    "pets": "Oxford-IIIT Pets", "cub": "CUB-200-2011", "cars": "Stanford Cars", "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}  # fmt: skip


def figures_table(own: Mapping[str, Any], teacher: Mapping[str, Any], *, name: str) -> str:
    """Return every figure of `card.py` as rows; few-shot accuracy stands beside the teacher's."""
    rows = ["| measurement | result | teacher |", "|---|---|---|"]
    for key, title in SET_NAMES.items():
        for number, value in own.get(key, {}).items():
            if number.endswith("-shot"):
                beside = teacher.get(key, {}).get(number)
                rows.append(f"| {title}, {number}, no training | {percent(value)} | {percent(beside)} |")
    imagenet = own.get("imagenet", {})
    if imagenet.get("photographs"):
        what = (
            f"ImageNet, {imagenet['photographs']:,} validation photographs of {imagenet['classes']:,} classes"
        )
        rows.append(f"| {what}, top-1 | {percent(imagenet['top_1'])} | |")
        rows.append(f"| the same, top-5 | {percent(imagenet['top_5'])} | |")
        rows.append(f"| the same, calibration error | {percent(imagenet['calibration_error'])} | |")
    for side, value in own.get("shrunk", {}).items():
        if value.get("photographs"):
            rows.append(f"| the same, shrunk to {side} pixels first, top-1 | {percent(value['top_1'])} | |")
    speed, its = own.get("speed"), teacher.get("speed", {})
    if speed:
        what = f"photographs per second on {speed['device']}, {speed['threads']} threads, decoding included"
        rows.append(
            f"| {what} | {speed['photographs_per_second']} | {its.get('photographs_per_second', '')} |"
        )
    return "\n".join([*rows, "", f"Command: `python weights/card.py {name} MIRRORS --out figures.json`."])


def percent(value: float | None) -> str:
    """Return a share in percent; nothing for a figure that was not measured."""
    return "" if value is None else f"{100 * value:.1f} %"


def sources_table(events: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Return the photographs that a run trained on, and how many copies were removed, from its log."""
    counts = next(event for event in events if event["event"] == "sets")
    copies = {event["set"]: event for event in events if event["event"] == "copies"}
    rows = ["| photographs | pixels | from github.com | licence |", "|---|---|---|---|"]
    for name, source in SOURCES.items():
        if source.share and name in counts:
            kept = copies[name]["kept"] if name in copies else counts[name]
            rows.append(f"| {kept:,} | {source.side} | {source.repository} | {source.licence} |")
    return "\n".join(rows), sum(event["left_out"] for event in copies.values())


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the events of a run."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def described(preprocess: Preprocess) -> str:
    """Return the input in words."""
    return (
        f"Rule {preprocess.rule}, crop {preprocess.crop_fraction:g}, {preprocess.interpolation}, mean "
        f"{list(preprocess.mean)}, std {list(preprocess.std)} of pixels from 0 to 1. config.json holds the same."
    )
