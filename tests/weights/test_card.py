"""The card of a bundled model: its figures, its photographs, and the file that is released."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from boxes import untrained_box
from describing import figures_table, sources_table
from sources import SOURCES

import vitrine

FIGURES = {
    "pets": {"test": 300, "1-shot": 0.5, "5-shot": 0.842},
    "imagenet": {
        "photographs": 900,
        "classes": 1000,
        "top_1": 0.55,
        "top_5": 0.8,
        "calibration_error": 0.031,
    },
    "shrunk": {"64": {"photographs": 900, "top_1": 0.4}},
    "speed": {"device": "cpu", "threads": 2, "ms_per_photograph": 30.0, "photographs_per_second": 40.5},
}
LOG = [
    {"event": "sets", "voc": 100, "clothing": 50, "imagenet-val": 10},
    {"event": "copies", "set": "voc", "left_out": 7, "kept": 93},
    {"event": "copies", "set": "clothing", "left_out": 0, "kept": 50},
]


def test_every_few_shot_figure_stands_beside_the_teachers() -> None:
    rows = cells(figures_table(FIGURES, {"pets": {"5-shot": 0.86}}, name="box:s"))
    assert [row[1:] for row in rows if "5-shot" in row[0]] == [["84.2 %", "86.0 %"]]
    assert [row[1:] for row in rows if "1-shot" in row[0]] == [["50.0 %", ""]]
    assert [row[1] for row in rows[2:]] == ["55.0 %", "80.0 %", "3.1 %", "40.0 %", "40.5"]


def cells(table: str) -> list[list[str]]:
    """Return the cells of all rows below the heading."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_card_counts_the_photographs_that_were_trained_on() -> None:
    table, copies = sources_table(LOG)
    assert copies == 7
    assert ["93", "192", SOURCES["voc"].repository] in [row[:3] for row in cells(table)]
    assert SOURCES["imagenet-val"].repository not in [row[2] for row in cells(table)]


def test_a_release_is_one_file_that_loads_and_its_entry_has_its_checksum(tmp_path: Path) -> None:
    weights = untrained_box(tmp_path / "model", image_size=32, num_classes=7, published=True)
    for name, content in (("own", FIGURES), ("teacher", {})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, LOG)))
    script = Path(__file__).parents[2] / "weights/ship.py"
    done = subprocess.run(
        [sys.executable, script, weights, "--name", "box:ti", "--figures", tmp_path / "own.json", "--teacher",
         tmp_path / "teacher.json", "--log", tmp_path / "log.jsonl", "--out", tmp_path / "out", "--release",
         tmp_path / "box-ti.safetensors"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    content = (tmp_path / "box-ti.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() in done.stdout
    assert f"num_bytes={len(content)}" in done.stdout
    loaded = vitrine.load(tmp_path / "box-ti.safetensors")
    assert loaded.classes == vitrine.load(tmp_path / "out").classes
    card = (tmp_path / "out" / "README.md").read_text()
    assert "7 classes of its own" in card
    assert "{" not in card
