"""Batches made on the device are those of the workers, pixel for pixel."""

import numpy as np
import pytest
import torch

from vitrine.data.loading.loader import Loader
from vitrine.data.loading.resident import ResidentLoader, can_reside
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.source import Subset


def small_set(count: int = 37) -> ArraySource:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 16, 24, 3), dtype=np.uint8)
    labels = (np.arange(count) % 3).astype(np.int32)
    return ArraySource(images, labels=labels, classes=("a", "b", "c"), address="memory", root=None)


@pytest.mark.parametrize("crop", ["padded", "none"])
@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("alternates_flip", [False, True])
def test_resident_batches_equal_those_of_the_loader(crop: str, is_part: bool, alternates_flip: bool) -> None:
    source = Subset(small_set(), [5, 3, 8, 30, 11, 2, 9]) if is_part else small_set()
    view = TrainView(size=(16, 24), crop=crop)  # type: ignore[arg-type]
    assert can_reside(source, view)
    options = {"batch_size": 6, "seed": 4, "rank": 1, "world_size": 2, "alternates_flip": alternates_flip}
    theirs = Loader(source, view, num_workers=0, **options).training_batches(start_step=3, stop_step=9)  # type: ignore[arg-type]
    ours = ResidentLoader(source, view, **options).training_batches(start_step=3, stop_step=9)
    for left, right in zip(theirs, ours, strict=True):
        assert torch.equal(left.images, right.images)
        assert torch.equal(left.labels, right.labels)
        assert np.array_equal(left.rows.indices, right.rows.indices)


def test_views_that_resize_are_left_to_the_workers() -> None:
    assert not can_reside(small_set(), TrainView(size=(16, 24), crop="inception"))
    assert not can_reside(small_set(), TrainView(size=(16, 16), crop="padded"))


def test_a_reader_that_stops_early_leaves_no_thread_waiting() -> None:
    import threading

    before = set(threading.enumerate())  # other tests may have left some
    batches = ResidentLoader(
        small_set(), TrainView(size=(16, 24), crop="padded"), batch_size=4
    ).training_batches(stop_step=1000)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    own = set(threading.enumerate()) - before
    for thread in own:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in own)


def test_an_error_while_drawing_ahead_arrives_instead_of_a_wait_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = ResidentLoader(small_set(), TrainView(size=(16, 24), crop="padded"), batch_size=4)

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("no pinned memory is left")

    monkeypatch.setattr("vitrine.data.loading.resident.view_numbers", no_memory)
    with pytest.raises(MemoryError, match="no pinned memory"):
        list(loader.training_batches(stop_step=3))
