"""COCO's JSON as people have it: cut off, of another tool, with boxes that are none; each refusal names its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitrine.data.decoding.coco_file import read_annotations, read_results
from vitrine.errors import DataError

GOOD: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "categories": [{"id": 7, "name": "cat"}],
    "annotations": [{"image_id": 1, "category_id": 7, "bbox": [0, 0, 4, 5.5]}],
}
RESULT: dict[str, Any] = {"image_id": 1, "category_id": 7, "bbox": [0, 0, 4, 5.5], "score": 0.5}


def written(file: Path, values: Any) -> Path:
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return file


def test_good_files_are_read_as_they_are(tmp_path: Path) -> None:
    assert read_annotations(written(tmp_path / "a.json", GOOD)) == GOOD
    assert read_results(written(tmp_path / "b.json", [RESULT])) == [RESULT]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("{", "is not JSON"),
        ([GOOD], "lists images, categories, annotations"),
        ({**GOOD, "images": None}, "must have the lists"),
        ({**GOOD, "categories": [{"id": 7}]}, "entry 0 of categories lacks"),
        ({**GOOD, "annotations": [*GOOD["annotations"], 5]}, "entry 1 of annotations lacks"),
        *(
            ({**GOOD, "annotations": [{**GOOD["annotations"][0], "bbox": box}]}, "annotation 0 has the box")
            for box in ([0, 0, 4], [0, 0, -4, 5], "0 0 4 5", [0, 0, True, 5], [0, 0, float("nan"), 5])
        ),
    ],
    ids=str,
)
def test_annotations_that_make_no_sense_are_refused_with_file_and_place(
    tmp_path: Path, values: Any, reason: str
) -> None:
    with pytest.raises(DataError) as refused:
        read_annotations(written(tmp_path / "boxes.json", values))
    assert "boxes.json" in str(refused.value) and reason in str(refused.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"results": []}, "holds no COCO results"),
        ([RESULT, {"image_id": 1}], "result 1 lacks image_id, category_id"),
        ([{**RESULT, "score": "high"}], "0 has the score 'high'"),
        ([{**RESULT, "bbox": [1, 2]}], "has the box [1, 2]"),
    ],
    ids=str,
)
def test_results_that_make_no_sense_are_refused_with_file_and_place(
    tmp_path: Path, values: Any, reason: str
) -> None:
    with pytest.raises(DataError) as refused:
        read_results(written(tmp_path / "found.json", values))
    assert "found.json" in str(refused.value) and reason in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json: No such file"):
        read_annotations(tmp_path / "none.json")
