"""The wheel: with the bundled weights it stays small, and without them it is smaller still."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEIGHTS = "vitrine/checkpoints/box/model.safetensors"
MOST_BYTES = 60_000_000


def built(out: Path, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, env={**os.environ, **environment}, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.mark.parametrize(("without", "number"), [("", 1), ("1", 0)], ids=["with weights", "without weights"])
def test_the_wheel_has_the_weights_unless_asked_not_to(without: str, number: int, tmp_path: Path) -> None:
    wheel = built(tmp_path, VITRINE_WITHOUT_WEIGHTS=without)
    names = zipfile.ZipFile(wheel).namelist()
    assert names.count(WEIGHTS) == number
    assert "vitrine/checkpoints/box/README.md" in names
    assert wheel.stat().st_size < (MOST_BYTES if number else 3_000_000)  # code and pages alone: 1.4 MB
