"""Pictures and boxes are cut alike, and the boxes arrive with their pictures, whoever reads them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from box_scenes import scene, voc_boxes

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.loading.loader import Loader
from vitrine.data.loading.workers import WorkerKind
from vitrine.data.preparing.box_view import BoxView, boxes_in
from vitrine.data.sources.opening import open_splits
from vitrine.errors import ImageError

VIEW = BoxView(size=(40, 48), scale=(0.8, 1.6), most_objects=5)


def read(root: Path, *, num_workers: int, kind: WorkerKind = "threads") -> list[torch.Tensor]:
    source = open_splits(root)["train"]
    with Loader(source, VIEW, batch_size=3, num_workers=num_workers, worker_kind=kind, seed=4) as loader:
        return [batch.images for batch in loader.training_batches(stop_step=4)]


def test_boxes_are_where_the_rectangles_are_after_every_crop_and_flip(tmp_path: Path) -> None:
    num_seen = num_ignored = 0
    for images in read(voc_boxes(tmp_path), num_workers=0):
        objects = boxes_in(images, image_channels=3, most_objects=5)
        for row, picture in enumerate(images[:, :3].numpy()):
            for place in range(5):
                if not (objects.is_object | objects.is_ignored)[row, place]:
                    continue
                left, top, right, bottom = objects.boxes[row, place].tolist()
                channel = picture[
                    1 if objects.labels[row, place] == 1 else 2
                ]  # "blue" is the first class by name
                lit = np.zeros_like(channel, dtype=bool)
                lit[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))] = True
                bright = channel > 150
                # Rectangles do not touch: around one there is a dark pixel at least.
                rows, columns = np.nonzero(bright & lit)
                if len(rows) == 0:
                    assert (right - left) * (bottom - top) < 12  # a sliver at the border, blurred away
                    continue
                found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                np.testing.assert_allclose(found, (left, top, right, bottom), atol=1.6)
                num_seen += 1
        num_ignored += int(objects.is_ignored.sum())
    assert num_seen > 8
    assert num_ignored < num_seen


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_workers_of_any_kind_fill_the_same_batches(kind: WorkerKind, tmp_path: Path) -> None:
    root = voc_boxes(tmp_path)
    alone, others = read(root, num_workers=0), read(root, num_workers=2, kind=kind)
    assert all(torch.equal(one, other) for one, other in zip(alone, others, strict=True))


def rendered(view: BoxView, boxes: list[list[float]], numbers: list[float]) -> torch.Tensor:
    out = torch.zeros(view.channels, *view.size, dtype=torch.uint8)
    annotation = Annotation(
        size=(48, 64),
        boxes=np.array(boxes, dtype=np.float32),
        labels=np.arange(len(boxes), dtype=np.int64),
        is_ignored=np.zeros(len(boxes), dtype=bool),
    )
    view.render_annotated(scene(0)[0], annotation, name="a.png", numbers=np.array(numbers), out=out)
    return out


def test_objects_of_which_little_is_left_are_ignored_and_those_outside_are_gone() -> None:
    view = BoxView(size=(48, 48), scale=(1.0, 1.0), flip=False, most_objects=4)
    # The left 48 of 64 columns at their own size.
    images = rendered(view, [[0, 0, 20, 20], [40, 0, 60, 20], [46, 0, 62, 20], [50, 0, 64, 9]], [0, 0, 0, 0])
    objects = boxes_in(images[None], image_channels=3, most_objects=4)
    assert objects.is_object[0].tolist() == [True, True, False, False]
    assert objects.is_ignored[0].tolist() == [False, False, True, False]
    torch.testing.assert_close(objects.boxes[0, 1], torch.tensor([40.0, 0, 48, 20]))
    assert objects.labels[0, :3].tolist() == [0, 1, 2]


def test_a_picture_with_more_objects_than_places_is_refused_with_what_to_set() -> None:
    view = BoxView(size=(16, 16), most_objects=3, scale=(1.0, 1.0))
    assert view.num_planes == 1
    assert BoxView(size=(8, 8), most_objects=3).num_planes == 2
    with pytest.raises(ImageError, match=r"4 objects, more than objective\.most_objects=3"):
        rendered(view, [[20, 2, 40, 40]] * 4, [0.5, 0.5, 0.5, 0.9])
