import platform
import sys
import threading
import time

import pytest

from vitrine.serving import batching
from vitrine.serving.admission import RefusedError
from vitrine.serving.batching import Batcher, Task, keep_freed_memory


@pytest.fixture
def batcher():
    made = Batcher(workers=1, target_seconds=1.0)
    yield made
    made.stop()


def held_task(max_batch=8, seconds=0.0):
    """A task that notes its batches, and waits until it may go on."""
    go, batches = threading.Event(), []

    def run(items):
        batches.append(list(items))
        go.wait(5)
        time.sleep(seconds * len(items))
        return [10 * item for item in items]

    return Task(name="held", run=run, max_batch=max_batch), go, batches


def test_what_waits_while_a_batch_is_computed_goes_together_in_order(batcher):
    task, go, batches = held_task()
    batcher.seconds_each[task] = 1e-4
    first = batcher.submit(task, 0)
    while not batches:
        time.sleep(0.001)
    rest = [batcher.submit(task, item) for item in range(1, 6)]
    go.set()
    assert [future.result(5) for future in [first, *rest]] == [0, 10, 20, 30, 40, 50]
    assert batches == [[0], [1, 2, 3, 4, 5]]


def test_a_batch_is_no_larger_than_half_the_target_computes_nor_than_its_most(batcher):
    task, _, _ = held_task(max_batch=8)
    assert batcher.batch_size(task) == 1  # its speed is not known yet
    batcher.seconds_each[task] = 0.1
    assert batcher.batch_size(task) == 5
    batcher.seconds_each[task] = 1e-6
    assert batcher.batch_size(task) == 8
    batcher.seconds_each[task] = 10.0
    assert batcher.batch_size(task) == 1


def test_only_items_of_one_task_go_together_and_none_is_overtaken_by_its_own_kind(batcher):
    first, go, batches = held_task()
    other, other_go, other_batches = held_task()
    batcher.seconds_each.update({first: 1e-4, other: 1e-4})
    other_go.set()
    begun = batcher.submit(first, 0)
    while not batches:
        time.sleep(0.001)
    futures = [batcher.submit(task, item) for task, item in [(first, 1), (other, 2), (first, 3), (other, 4)]]
    go.set()
    assert [future.result(5) for future in [begun, *futures]] == [0, 10, 20, 30, 40]
    assert batches == [[0], [1, 3]]
    assert other_batches == [[2, 4]]


def test_an_item_that_nobody_waits_for_any_more_is_not_computed(batcher):
    task, go, batches = held_task()
    batcher.seconds_each[task] = 1e-4
    first = batcher.submit(task, 0)
    while not batches:
        time.sleep(0.001)
    gone, kept = batcher.submit(task, 1), batcher.submit(task, 2)
    assert gone.cancel()
    go.set()
    assert (first.result(5), kept.result(5)) == (0, 20)
    assert batches == [[0], [2]]


def test_a_batch_that_fails_tells_its_clients_and_the_worker_goes_on(batcher):
    def run(items):
        if items[0] == "bad":
            raise ValueError("no")
        return items

    task = Task(name="moody", run=run, max_batch=1)
    with pytest.raises(ValueError, match="no"):
        batcher.submit(task, "bad").result(5)
    assert batcher.submit(task, "good").result(5) == "good"
    assert all(worker.is_alive() for worker in batcher.workers)


def test_a_stop_finishes_what_is_in_the_queue_and_takes_no_more():
    batcher = Batcher(workers=2, target_seconds=1.0)
    task, go, _ = held_task(max_batch=1, seconds=0.01)
    futures = [batcher.submit(task, item) for item in range(6)]
    go.set()
    batcher.stop()
    assert [future.result(0) for future in futures] == [0, 10, 20, 30, 40, 50]
    with pytest.raises(RefusedError, match="stopping") as refused:
        batcher.submit(task, 7)
    assert refused.value.status == 503


def test_the_expected_wait_is_what_the_queue_takes_at_the_speed_seen(batcher):
    task, go, batches = held_task()
    batcher.seconds_each[task] = 0.25
    begun = batcher.submit(task, 0)
    while not batches:
        time.sleep(0.001)
    waiting = [batcher.submit(task, item) for item in range(4)]
    assert batcher.expected_wait() == pytest.approx(1.0)
    go.set()
    for future in [begun, *waiting]:
        future.result(5)
    assert batcher.expected_wait() == 0


def test_freed_memory_is_kept_where_the_c_library_is_glibc():
    is_glibc = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    assert keep_freed_memory() == is_glibc


def test_on_other_systems_freed_memory_is_not_kept(monkeypatch):
    monkeypatch.setattr(batching.sys, "platform", "darwin")
    assert keep_freed_memory() is False
