"""The twelve numbers equal pycocotools': on crowds, gaps in category ids, ties of scores and many detections."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

import vitrine
from vitrine.evaluation.detection import NAMES


def invented(seed: int) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Make annotations and results: moved truths, some twice, some of another class, and some out of nowhere."""
    rng = np.random.default_rng(seed)
    ids = [1, 3, 4, 17, 90]  # gaps, and one class without a truth
    images = [{"id": int(number), "width": 640, "height": 480} for number in rng.permutation(40)[:12] + 5]
    truths: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for image in images:
        for _ in range(int(rng.integers(0, 9))):
            side = rng.choice([12.0, 32.0, 60.0, 96.0, 200.0])
            box = [*rng.integers(0, 400, 2).astype(float), side, side * float(rng.choice([0.5, 1, 1.0]))]
            truths.append(
                {
                    "id": len(truths) + 1, "image_id": image["id"], "category_id": int(rng.choice(ids[:4])),
                    "bbox": box, "area": box[2] * box[3] * float(rng.choice([1.0, 0.6])),
                    "iscrowd": int(rng.random() < 0.15),
                }
            )  # fmt: skip
            for _ in range(int(rng.integers(0, 4))):
                moved = [value + float(rng.choice([0, 0, 2, -3])) for value in box]
                category = truths[-1]["category_id"] if rng.random() < 0.85 else int(rng.choice(ids))
                score = float(rng.choice([0.1, 0.5, 0.5, 0.9, round(rng.random(), 2)]))
                results.append(
                    {"image_id": image["id"], "category_id": category, "bbox": moved, "score": score}
                )
    for number in range(130):  # more than a hundred in one picture
        box = [float(number), 5.0, 20.0 + number, 40.0]
        results.append({"image_id": images[0]["id"], "category_id": 3, "bbox": box, "score": 0.3})
    categories = [{"id": number, "name": f"class {number}"} for number in ids]
    return {"images": images, "categories": categories, "annotations": truths}, results


@pytest.mark.parametrize("seed", range(6))
def test_the_twelve_numbers_equal_pycocotools(seed: int, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    annotations, results = invented(seed)
    truth, found = tmp_path / "annotations.json", tmp_path / "detections.json"
    truth.write_text(json.dumps(annotations))
    found.write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        reference = coco.COCO(str(truth))
        evaluation = cocoeval.COCOeval(reference, reference.loadRes(str(found)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ours = vitrine.evaluate(found, truth, out=tmp_path / "out")
    np.testing.assert_allclose([ours.numbers[name] for name in NAMES], evaluation.stats, rtol=0, atol=1e-12)
    assert 0 < ours.numbers["AP"] < 1
