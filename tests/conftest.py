"""What every test starts with: a cache folder of its own test run, one thread, default signals, GPU tests skipped.

GPU tests are skipped only where there is no GPU.
"""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from object_stores import STORES

from vitrine.evaluation import speed
from vitrine.exporting import comparison
from vitrine.runtime import hardware
from vitrine.runtime.processor import avoid_unusable_tiles

if not torch.cuda.is_available():
    # Read when Triton is first imported, by whichever test that is.
    os.environ["TRITON_INTERPRET"] = "1"

# As in the processes that tests start (journeys/commandline.py): the number of threads decides the last bits.
torch.set_num_threads(1)

# Tests of layers compute in bf16 without choosing a device first.
avoid_unusable_tiles()

# Where libraries look for their caches, and the folder that each gets in the cache of a test run. XDG_CACHE_HOME
# moves those of matplotlib and onnxruntime.
CACHES = {
    "VITRINE_CACHE": "vitrine", "HF_HOME": "huggingface", "XDG_CACHE_HOME": "others",
    "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Give this run one empty cache; its workers and the processes that tests start inherit it.

    Set before any test module is imported, and never the user's: a test must neither read what earlier runs left
    nor fill the user's folder.
    """
    _heed_signals()
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        return
    folder = tempfile.TemporaryDirectory(prefix="vitrine-test-cache-")
    config.add_cleanup(folder.cleanup)
    os.environ.update({name: str(Path(folder.name) / own) for name, own in CACHES.items()})


def _heed_signals() -> None:
    """Restore signals that the starting shell ignores (`make test &`, nohup).

    Training rightly leaves ignored signals alone, and tests send signals to the processes that they start.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Leave what is there once all tests are collected to the end: modules and items, a million objects.

    Otherwise each full garbage collection walks through them, for half a second, and `convert` asks for two.
    """
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu` or `-m "gpu and ..."`, import only files with such tests: GPU machines may lack extras."""
    if config.getoption("markexpr").split(" and ")[0] == "gpu" and collection_path.suffix == ".py":
        return "mark.gpu" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.fixture(autouse=True, scope="session")
def short_measurements() -> Iterator[None]:
    """Measure speeds for hundredths of a second: tests are not about their values, and pay for every second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "TURN_SECONDS", 0.01)
        patch.setattr(hardware, "LEAST_SECONDS", 0.0)
        patch.setattr(hardware, "COPIED_BYTES", {**hardware.COPIED_BYTES, "cpu": 2**20})
        for measure in (speed.measure_speeds, speed.time_in_turns):
            patch.setitem(measure.__kwdefaults__, "turn_seconds", 0.01)
        yield


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of an empty bucket of each object store on loopback."""
    with STORES[request.param](monkeypatch) as address:
        yield address
