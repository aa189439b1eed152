"""The engine of embed, predict and evaluate: batches in order, workers by default, its rate and its waiting."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrine.data.loading.order import Rows
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import ArraySource
from vitrine.evaluation import streaming
from vitrine.evaluation.outputs import at_a_time_alone, chosen_precision
from vitrine.evaluation.streaming import Pace, chosen_workers, open_loader, rows_between, stream

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("workers", "device", "count", "expected"),
    [
        (None, GPU, 100_000, (15, "processes")),
        (None, CPU, 100_000, (16, "threads")),
        (None, GPU, 999, (15, "threads")),
        (3, GPU, 100_000, (3, "processes")),
        (1, GPU, 100_000, (1, "threads")),
        (0, GPU, 100_000, (0, "threads")),
    ],
)
def test_beside_a_gpu_processes_decode_on_all_cores_but_one(monkeypatch, workers, device, count, expected):
    monkeypatch.setattr(streaming, "available_cores", lambda: 16)
    assert chosen_workers(workers, device=device, num_pictures=count) == expected


def test_processes_of_torchrun_share_the_cores_of_their_machine(monkeypatch):
    monkeypatch.setattr(streaming, "available_cores", lambda: 16)
    for name, value in {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert chosen_workers(None, device=GPU, num_pictures=10_000) == (1, "threads")
    assert chosen_workers(None, device=CPU, num_pictures=10_000) == (2, "threads")


def test_a_gpu_computes_in_bf16_and_large_batches_unless_told_otherwise():
    assert [chosen_precision("auto", device) for device in (CPU, GPU)] == ["fp32", "bf16"]
    assert [chosen_precision("fp32", device) for device in (CPU, GPU)] == ["fp32", "fp32"]
    assert [at_a_time_alone(GPU, (side, side)) for side in (224, 384, 10_000)] == [256, 87, 1]
    assert at_a_time_alone(CPU, (224, 224)) == 8


def test_batches_arrive_in_the_order_that_was_asked_for_with_digests_and_zeros_for_failures():
    images = np.arange(10 * 4 * 4 * 3, dtype=np.int64).reshape(10, 4, 4, 3).astype(np.uint8)
    source = ArraySource(
        images, labels=np.zeros(10, dtype=np.int32), classes=("a",), address="arrays", root=None
    )
    rows = [one for start, stop in ((6, 10), (0, 3)) for one in rows_between(start, stop, batch_size=2)]
    assert all(isinstance(one, Rows) for one in rows)
    with open_loader(
        source, Preprocess(size=(4, 4)), batch_size=2, num_workers=2, wants_digests=True
    ) as loader:
        computed = list(stream(loader, lambda pixels: {"sum": pixels.float().sum(dim=(1, 2, 3))}, rows))
    assert [one.start for one in computed] == [6, 8, 0, 2] and [len(one) for one in computed] == [2, 2, 2, 1]
    for one in computed:
        for row, value in enumerate(one.values["sum"].tolist()):
            assert value == images[one.start + row].sum()
            assert len(one.digests[row]) == 64


def test_the_pace_counts_from_the_first_batch_and_says_how_long_was_waited():
    pace = Pace()

    def slow():
        for _ in range(3):
            time.sleep(0.05)
            yield [1, 2]

    for _ in pace.timed(slow()):
        time.sleep(0.05)
    # Two batches of two in 2 x (0.05 + 0.05) s, half of it waiting; a busy machine only makes it slower.
    assert 0 < pace.rate <= 20 and 0.2 < pace.waiting < 0.8
    assert "waiting for data" in str(pace)
    assert Pace().rate == 0


@pytest.mark.slow
def test_worker_processes_end_when_the_process_that_started_them_is_killed(tmp_path):
    code = (
        "import sys, time\n"
        "from vitrine.data.sources.opening import open_source\n"
        "from vitrine.data.preparing.preprocess import Preprocess\n"
        "from vitrine.evaluation.streaming import open_loader\n"
        "if __name__ == '__main__':\n"
        "    source = open_source('generated:shapes?count=64&size=16')\n"
        "    loader = open_loader(source, Preprocess(size=(16, 16)), batch_size=8, num_workers=2,"
        " worker_kind='processes')\n"
        "    next(loader.evaluation_batches())\n"
        "    print(*(process.pid for process in loader._workers._processes), flush=True)\n"
        "    time.sleep(100)\n"
    )
    (tmp_path / "job.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(is_running(worker) for worker in workers):
        time.sleep(0.2)
    assert not any(is_running(worker) for worker in workers)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
