"""A processor that announces AMX without a tile palette: oneDNN must not use its tiles."""

import os
import subprocess
import sys

import pytest

from vitrine.runtime import processor
from vitrine.runtime.devices import choose_device

BF16_PRODUCT = """
import torch
from vitrine.runtime.devices import choose_device
choose_device("cpu")
values = torch.ones(64, 64, dtype=torch.bfloat16)
print((values @ values).float().mean().item())
"""


@pytest.fixture(autouse=True)
def without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor.LIMIT, "")  # recorded, so that it is restored after the test
    monkeypatch.delenv(processor.LIMIT)


def stage(monkeypatch: pytest.MonkeyPatch, *, announced: bool, palette: int | None) -> None:
    monkeypatch.setattr(processor, "announces_tiles", lambda: announced)
    monkeypatch.setattr(processor, "largest_tile_palette", lambda: palette)


def test_announced_tiles_without_a_palette_are_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    stage(monkeypatch, announced=True, palette=0)
    choose_device("cpu")
    assert os.environ[processor.LIMIT] == processor.BELOW_AMX


@pytest.mark.parametrize(("announced", "palette"), [(True, 1), (True, None), (False, 0)])
def test_processors_that_can_or_cannot_be_asked_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, announced: bool, palette: int | None
) -> None:
    stage(monkeypatch, announced=announced, palette=palette)
    choose_device("cpu")
    assert processor.LIMIT not in os.environ


def test_a_limit_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stage(monkeypatch, announced=True, palette=0)
    monkeypatch.setenv(processor.LIMIT, "AVX2")
    choose_device("cpu")
    assert os.environ[processor.LIMIT] == "AVX2"


@pytest.mark.skipif(not processor.announces_tiles(), reason="this processor announces no AMX")
def test_a_product_in_bf16_runs_where_amx_is_announced() -> None:
    done = subprocess.run([sys.executable, "-c", BF16_PRODUCT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "64.0"), done.stderr


@pytest.mark.skipif(processor.largest_tile_palette() is None, reason="CPUID cannot be read here")
def test_the_processor_answers_with_a_palette_number() -> None:
    palette = processor.largest_tile_palette()
    assert palette is not None
    assert 0 <= palette < 256
