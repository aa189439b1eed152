import gc
import os
import resource
import threading

import numpy as np
import pytest
import torch
from unit.data.pictures import class_folders

from vitrine.data.loading.loader import Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.generated import GeneratedSource
from vitrine.data.sources.opening import open_source
from vitrine.errors import ConfigError, DataError

VIEW = TrainView(size=(16, 16))


@pytest.fixture(scope="module")
def source():
    return GeneratedSource(count=50, size=24)


def collect(source, *, start_step=0, stop_step=9, **options):
    with Loader(source, VIEW, batch_size=8, seed=4, **options) as loader:
        return [
            (batch.images, batch.labels, batch.rows.indices)
            for batch in loader.training_batches(start_step=start_step, stop_step=stop_step)
        ]


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and np.array_equal(a[2], b[2])


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_batches_are_the_same_for_any_number_of_threads(source, num_workers):
    assert_equal(collect(source, num_workers=num_workers), collect(source, num_workers=0))


def test_batches_are_the_same_from_processes(source):
    assert_equal(collect(source, num_workers=2, worker_kind="processes"), collect(source, num_workers=0))


def test_resuming_in_the_middle_of_an_epoch_gives_the_same_batches(source):
    whole = collect(source, num_workers=2, stop_step=12)  # nearly two epochs
    assert_equal(collect(source, num_workers=2, start_step=5, stop_step=12), whole[5:])


def test_resuming_costs_no_skipping():
    class Counting(GeneratedSource):
        reads = 0

        def read(self, index):
            Counting.reads += 1
            return super().read(index)

    collect(Counting(count=50, size=24), num_workers=0, start_step=10**9, stop_step=10**9 + 1)
    assert Counting.reads == 8


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_together_read_the_batch_of_one(source, world_size):
    alone = collect(source, num_workers=0)
    shares = [collect(source, num_workers=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, (images, labels, _) in enumerate(alone):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), images)
        assert torch.equal(torch.cat([share[step][1] for share in shares]), labels)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_reads_every_image_once_and_in_order(source, world_size, num_workers):
    seen = []
    for rank in range(world_size):
        with Loader(
            source,
            Preprocess(size=(16, 16)),
            batch_size=12,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
        ) as loader:
            for batch in loader.evaluation_batches():
                seen += batch.rows.indices.tolist()
                assert len(batch.images) == len(batch) == len(batch.labels)
    assert seen == list(range(50))


def test_an_augmented_image_changes_between_epochs_and_not_between_runs(source):
    batches = collect(source, num_workers=0, stop_step=13)
    seen: dict[int, list[torch.Tensor]] = {}
    for images, _, indices in batches:
        for image, index in zip(images, indices, strict=True):
            seen.setdefault(int(index), []).append(image)
    pairs = [(views[0], views[1]) for views in seen.values() if len(views) > 1]
    assert len(pairs) > 40
    assert sum(torch.equal(a, b) for a, b in pairs) <= 1


def test_a_bad_file_stops_training_with_its_name(tmp_path):
    class_folders(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "01.png").write_bytes(b"nonsense")
    with (
        Loader(open_source(tmp_path), VIEW, batch_size=6, num_workers=2) as loader,
        pytest.raises(DataError, match=r"^a/01\.png is not an image"),
    ):
        next(loader.training_batches())


def test_a_bad_file_becomes_a_black_row_with_a_reason_where_asked(tmp_path):
    class_folders(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "01.png").write_bytes(b"")
    for options in ({"num_workers": 0}, {"num_workers": 1}):
        with Loader(
            open_source(tmp_path), Preprocess(size=(8, 8)), batch_size=6, keep_going=True, **options
        ) as loader:
            (batch,) = loader.evaluation_batches()
        assert batch.failures == {1: "a/01.png is empty (0 bytes)"}
        assert batch.images[1].sum() == 0 and batch.images[0].sum() > 0


def test_multi_label_batches_are_rows_of_zeros_and_ones():
    source = GeneratedSource(count=20, size=16, label="shape,colour")
    with Loader(source, VIEW, batch_size=4, num_workers=0) as loader:
        batch = next(loader.training_batches())
    assert batch.labels.shape == (4, len(source.classes)) and batch.labels.dtype == torch.float32
    assert (batch.labels.sum(1) == 2).all()


class Deadly(GeneratedSource):
    """Ends the process that reads from it, as the system does for lack of memory."""

    def read(self, index):
        os._exit(9)


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_worker_processes_that_all_die_stop_the_loader_even_where_a_batch_is_more_than_a_pipe_takes(
    num_workers, monkeypatch
):
    monkeypatch.setattr("vitrine.data.loading.worker_processes._PATIENCE_SECONDS", 0.5)
    rows = 8192  # about 600 kB of tasks; a pipe holds 64 kB
    options = {"num_workers": num_workers, "worker_kind": "processes"}
    with (
        Loader(Deadly(count=rows, size=8), TrainView(size=(1, 1)), batch_size=rows, **options) as loader,
        pytest.raises(DataError, match=r"code 9.*use fewer workers"),
    ):
        next(loader.training_batches())


def test_threads_that_the_system_does_not_give_leave_none_of_the_others_waiting(source, monkeypatch):
    before, threads = threading.active_count(), torch.get_num_threads()
    start, started = threading.Thread.start, []

    def start_two(self):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start"):
        Loader(source, VIEW, batch_size=8, num_workers=4)
    for thread in started:
        thread.join(timeout=5)
    assert threading.active_count() == before
    assert torch.get_num_threads() == threads


def test_leaving_the_loop_early_leaves_the_loader_usable(source):
    with Loader(source, VIEW, batch_size=8, num_workers=1, worker_kind="processes") as loader:
        for _ in range(3):
            batches = loader.training_batches()
            next(batches)
            batches.close()
        assert len(next(loader.training_batches()).images) == 8


def test_memory_does_not_grow_with_epochs(source):
    with Loader(source, VIEW, batch_size=10, num_workers=2) as loader:
        for _ in loader.training_batches(stop_step=50):
            pass
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in loader.training_batches(stop_step=300):  # sixty epochs
            pass
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * 1024  # kilobytes; the batches alone are 2 MB


def test_nonsense_is_refused(source):
    with pytest.raises(ConfigError, match=r"num_workers .*got -1"):
        Loader(source, VIEW, batch_size=8, num_workers=-1)
    with pytest.raises(ConfigError, match=r"worker_kind.*threads or processes,.*'fibers'$"):
        Loader(source, VIEW, batch_size=8, worker_kind="fibers")
    with pytest.raises(ConfigError, match=r"batch_size.* 8 and 3;.*6.*9$"):
        Loader(source, VIEW, batch_size=8, world_size=3)


@pytest.mark.gpu
def test_batches_arrive_on_cuda_equal_to_those_on_the_cpu(source):
    for kind in ("threads", "processes"):
        on_cuda = collect(source, num_workers=2, worker_kind=kind, device="cuda")
        assert_equal([(a.cpu(), b.cpu(), c) for a, b, c in on_cuda], collect(source, num_workers=0))
