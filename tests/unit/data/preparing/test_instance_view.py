"""Pictures and the masks of their objects are cut alike, whoever reads them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from instance_scenes import coco_outlines, mask_of, scene, voc_objects

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.mask_planes import add_mask, empty_planes
from vitrine.data.loading.loader import Loader
from vitrine.data.loading.workers import WorkerKind
from vitrine.data.preparing.instance_view import InstanceView, instances_in, masks_of
from vitrine.data.sources.opening import open_splits
from vitrine.errors import ImageError

VIEW = InstanceView(size=(40, 48), scale=(0.8, 1.6), most_objects=10)


def read(address: object, *, num_workers: int, kind: WorkerKind = "threads") -> list[torch.Tensor]:
    source = open_splits(str(address))["train"]
    with Loader(source, VIEW, batch_size=3, num_workers=num_workers, worker_kind=kind, seed=4) as loader:
        return [batch.images for batch in loader.training_batches(stop_step=4)]


def test_masks_are_where_the_objects_are_after_every_crop_and_flip(tmp_path: Path) -> None:
    num_seen = 0
    for images in read(f"instances:{coco_outlines(tmp_path)}", num_workers=0):
        objects = instances_in(images, image_channels=3, most_objects=10)
        assert objects.is_known.all()
        image, place = (objects.labels >= 0).nonzero(as_tuple=True)
        masks = masks_of(objects.planes, image, place).bool()
        for row, label, mask in zip(
            image.tolist(), objects.labels[image, place].tolist(), masks, strict=True
        ):
            channel = images[row, 1 + label]  # "green" is the first class by category id
            other = images[row, 2 - label]
            # Pixels at an edge are mixed; everywhere else a mask is bright in the colour of its class alone.
            inner = -torch.nn.functional.max_pool2d(-mask[None].float(), 5, stride=1, padding=2)[0] > 0
            assert (channel[inner] > 150).all()
            assert (other[inner] < 90).all()
            num_seen += bool(inner.any())
        outside = ~torch.zeros(len(images), 40, 48, dtype=torch.bool).index_put(
            (image,), masks, accumulate=True
        )
        far = -torch.nn.functional.max_pool2d(-outside[:, None].float(), 5, stride=1, padding=2)[:, 0] > 0
        is_padding = (images[:, :3] == 128).all(dim=1)
        assert (images[:, 1:3].amax(dim=1)[far & ~is_padding] < 90).all()
    assert num_seen > 8


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_workers_of_any_kind_fill_the_same_batches(kind: WorkerKind, tmp_path: Path) -> None:
    address = f"instances:{voc_objects(tmp_path, border=2)}"
    alone, others = read(address, num_workers=0), read(address, num_workers=2, kind=kind)
    assert all(torch.equal(one, other) for one, other in zip(alone, others, strict=True))
    assert not instances_in(alone[0], image_channels=3, most_objects=10).is_known.all()


def rendered(view: InstanceView, is_ignored: list[bool]) -> torch.Tensor:
    pixels, rectangles = scene(1)
    planes = empty_planes(len(is_ignored), (48, 64))
    for place in range(len(is_ignored)):
        add_mask(planes, place, mask_of(rectangles[place % 2]))
    annotation = Annotation(
        size=(48, 64),
        labels=np.arange(300, 300 + len(is_ignored)),
        is_ignored=np.array(is_ignored),
        planes=planes,
    )
    out = torch.full((view.channels, *view.size), 77, dtype=torch.uint8)
    view.render_annotated(pixels, annotation, name="a.png", numbers=np.array([0, 0, 0, 0.9]), out=out)
    return out


def test_crowds_and_objects_outside_the_crop_are_not_learned_and_masks_may_overlap() -> None:
    # The left 34 of 64 columns at their own size: the objects at odd places are outside.
    view = InstanceView(size=(48, 34), scale=(48 / 34, 48 / 34), flip=False, most_objects=20)
    images = rendered(view, [False, False, True, *[False] * 15])[None]
    objects = instances_in(images, image_channels=3, most_objects=20)
    kept = [300, *range(304, 318, 2)]
    assert objects.labels[0].tolist() == [*kept, *[-1] * (20 - len(kept))]
    masks = masks_of(objects.planes, torch.zeros(len(kept), dtype=torch.long), torch.arange(len(kept)))
    wanted = torch.from_numpy(mask_of(scene(1)[1][0])[:, :34])
    assert (masks.bool() == wanted).all()


def test_a_picture_with_more_objects_than_places_is_refused_with_what_to_set() -> None:
    with pytest.raises(ImageError, match=r"17 objects, more than objective\.most_objects=3"):
        rendered(InstanceView(size=(48, 48), most_objects=3, scale=(1.0, 1.0), flip=False), [False] * 17)
