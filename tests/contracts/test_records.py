"""The page of CIFAR-10 speed records says what its kept measurements say."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import vitrine
from vitrine.recipes import find_recipe

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "records"


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from parts import ledger

    return ledger


def measurement(*accuracies: float, track: int = 94, **run: Any) -> dict[str, Any]:
    runs = [
        {"seed": seed, "top1": top1, "top1_views": top1 + 0.01, "seconds": 80.0 + seed, "was_alone": seed == 0,
         "was_warm": True, "curve": [], **run}
        for seed, top1 in enumerate(accuracies)
    ]  # fmt: skip
    return {"track": track, "recipe": "r", "change": "c", "date": "2026-01-01", "commit": "a", "runs": runs}


def test_the_table_is_that_of_the_kept_measurements(ledger: Any) -> None:
    text = (ROOT / "docs" / "records.md").read_text()
    [written] = re.findall(r"<!-- table: .* -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    assert written.strip() == ledger.table(ledger.read_measurements(KEPT)).strip()


def test_every_kept_measurement_has_a_command_that_exists_and_a_curve(ledger: Any) -> None:
    files = sorted(KEPT.glob("*.json"))
    assert files
    for path in files:
        kept = json.loads(path.read_text())
        program, verb, *words = shlex.split(kept["command"])
        assert program == "vitrine" and hasattr(vitrine, verb)
        assert words[words.index("--recipe") + 1] == kept["recipe"]
        find_recipe(kept["recipe"])
        assert re.fullmatch(r"[0-9a-f]{7}", kept["commit"]) and re.fullmatch(r"\d{4}-\d\d-\d\d", kept["date"])
        assert any(len(run["curve"]) > 5 for run in kept["runs"])
        assert path.name.startswith(f"{kept['track']}-")


@pytest.mark.parametrize(
    ("accuracies", "run", "is_record", "shortfall"),
    [
        ((0.939, 0.941, 0.94, 0.94, 0.94), {}, True, None),
        ((0.941, 0.941, 0.942, 0.95), {}, False, "4 of 5 seeds"),
        ((0.939, 0.94, 0.94, 0.94, 0.94), {}, False, "below the mark"),
        ((0.95,) * 5, {"was_alone": False}, False, "not timed alone"),
        ((0.95,) * 5, {"was_warm": False}, False, "not timed alone"),
    ],
)
def test_a_record_needs_five_seeds_the_mark_and_a_time_alone(
    ledger: Any, accuracies: tuple[float, ...], run: dict[str, Any], is_record: bool, shortfall: str | None
) -> None:
    summary = ledger.summarise(measurement(*accuracies, **run))
    assert summary.is_record == is_record
    assert is_record or summary.shortfall == shortfall


def test_only_runs_that_had_the_gpu_to_themselves_are_timed(ledger: Any) -> None:
    summary = ledger.summarise(measurement(0.94, 0.95, 0.96))
    assert summary.seconds == (80.0,)
    assert summary.mean == pytest.approx(95) and summary.deviation == pytest.approx(1)
    assert summary.mean_of_views == pytest.approx(96)


def test_a_track_without_measurement_is_empty(ledger: Any) -> None:
    lines = ledger.table([measurement(0.94, 0.95)]).splitlines()[2:]
    assert [line.split("|")[2].strip() == "empty" for line in lines] == [False, True, True, True]
    assert all(number in lines[0] for number in ("94.50", "0.71", "95.50", "80"))


def test_a_curve_keeps_its_end_and_at_most_forty_points(ledger: Any, tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "loss": 1.0, "accuracy": 0.5}) for step in range(1, 104)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, json.dumps({"step": 103, "val_loss": 1})]))
    steps = [point[0] for point in ledger.thinned_curve(tmp_path)]
    assert len(steps) <= 40 and steps[-1] == 103 and steps == sorted(steps)


def test_every_track_has_a_recipe_with_a_plain_vit(ledger: Any) -> None:
    for track in ledger.TRACKS:
        recipe = find_recipe(f"cifar10-{track}")
        assert recipe.model == "ViT" and "stem" not in recipe.model_options
        assert recipe.phases and recipe.views.alternates_flip
