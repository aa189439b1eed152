"""Masks of COCO's JSON equal pycocotools': polygons and runs to the pixel, the twelve numbers to rounding."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrine
from vitrine.data.decoding.coco_masks import decode_segmentation, runs_of
from vitrine.errors import DataError
from vitrine.evaluation.detection import NAMES

SIZE = (48, 64)


def polygon(rng: np.random.Generator, *, corners: int, middle: np.ndarray, reach: float) -> list[float]:
    """Draw a star of corners round a place, some of them outside the picture."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, corners))
    radii = rng.uniform(0.2, 1, corners) * reach
    points = middle + np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None]
    return np.round(points, 2).ravel().tolist()


@pytest.mark.parametrize("seed", range(5))
def test_polygons_and_runs_are_drawn_as_pycocotools_draws_them(seed: int) -> None:
    tools = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(seed)
    for _ in range(60):
        place = rng.uniform(-5, 60, 2)
        shapes = [
            polygon(rng, corners=int(rng.integers(3, 9)), middle=place, reach=rng.uniform(1, 40))
            for _ in range(int(rng.integers(1, 3)))
        ]
        theirs = tools.frPyObjects(shapes, *SIZE)
        wanted = tools.decode(tools.merge(theirs)).astype(bool)
        ours = decode_segmentation(shapes, SIZE, where="a mask")
        assert (ours == wanted).all()
        packed = tools.merge(theirs)
        text = {"size": list(SIZE), "counts": packed["counts"].decode()}
        assert (decode_segmentation(text, SIZE, where="a mask") == wanted).all()
        assert (decode_segmentation(runs_of(ours), SIZE, where="a mask") == wanted).all()
        again = tools.frPyObjects(runs_of(ours), *SIZE)
        assert (tools.decode(again) == wanted).all()


def invented(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Make annotations with polygons and crowds as runs, and results that are moved, missing or confused."""
    tools = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(seed)
    ids = [2, 3, 7, 40]
    images = [{"id": number, "height": 160, "width": 200} for number in (9, 4, 31, 6, 12)]
    truths: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image in images:
        for _ in range(int(rng.integers(1, 7))):
            middle, reach = rng.uniform(20, 150, 2), float(rng.choice([9.0, 25.0, 70.0]))
            shape = polygon(rng, corners=7, middle=middle, reach=reach)
            mask = tools.decode(tools.frPyObjects([shape], 160, 200))[..., 0].astype(bool)
            if mask.sum() < 4:
                continue
            is_crowd = rng.random() < 0.2
            truths.append(
                {
                    "id": len(truths) + 1, "image_id": image["id"], "category_id": int(rng.choice(ids[:3])),
                    "segmentation": runs_of(mask) if is_crowd else [shape], "area": float(mask.sum()),
                    "bbox": [0.0, 0.0, 10.0, 10.0], "iscrowd": int(is_crowd),
                }
            )  # fmt: skip
            for _ in range(int(rng.integers(0, 4))):
                moved = np.roll(mask, rng.integers(-3, 4, 2), axis=(0, 1))
                packed = tools.encode(np.asfortranarray(moved.astype(np.uint8)))
                category = truths[-1]["category_id"] if rng.random() < 0.85 else int(rng.choice(ids))
                results.append(
                    {
                        "image_id": image["id"], "category_id": category,
                        "segmentation": {"size": [160, 200], "counts": packed["counts"].decode()},
                        "score": float(rng.choice([0.2, 0.5, 0.5, 0.9])),
                    }
                )  # fmt: skip
    categories = [{"id": number, "name": f"class {number}"} for number in ids]
    return {"images": images, "categories": categories, "annotations": truths}, results


@pytest.mark.parametrize("seed", range(4))
def test_the_twelve_numbers_of_masks_equal_pycocotools(seed: int, tmp_path: Path) -> None:
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    annotations, results = invented(seed)
    truth, detections = tmp_path / "annotations.json", tmp_path / "detections.json"
    truth.write_text(json.dumps(annotations))
    detections.write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        reference = coco.COCO(str(truth))
        evaluation = cocoeval.COCOeval(reference, reference.loadRes(str(detections)), "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ours = vitrine.evaluate(detections, truth, out=tmp_path / "out")
    np.testing.assert_allclose([ours.numbers[name] for name in NAMES], evaluation.stats, rtol=0, atol=1e-12)
    assert 0 < ours.numbers["AP"] < 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"size": [4, 4], "counts": [3, 4]}, "7 pixels; .*has 16"),
        ({"size": [4, 5], "counts": [20]}, "its picture has"),
        ({"size": [4, 4], "counts": "!"}, "letter '!'"),
        ({"size": [4, 4], "counts": [17, -1]}, "neither a list of lengths"),
        ([[1, 2, 3]], "neither polygons nor runs"),
        ("nothing", "neither polygons nor runs"),
    ],
)
def test_damaged_masks_are_refused(value: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        decode_segmentation(value, (4, 4), where="result 3")
