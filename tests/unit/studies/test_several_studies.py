"""Several studies in a call: each keeps its own runs, however often rates are chosen, and its own failures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitrine
from tests.unit.studies.test_planning_search import note, searched, sets
from vitrine.errors import TrainingError
from vitrine.studies import execution
from vitrine.studies.execution import execute_plans
from vitrine.studies.planning import Plan, make_plans, new_runs, with_rates
from vitrine.studies.record import Run
from vitrine.studies.registry import find_studies
from vitrine.studies.results import read_results
from vitrine.studies.scales import SCALES

# The first two search rates; the last is of speeds alone.
NAMES = "few-shot-vs-data,resolution,cost"


def plans_of(folder: Path, *names: str, studies: str = NAMES) -> list[Plan]:
    return make_plans(
        find_studies(studies), SCALES["tiny"], data=sets(folder, *names), target=None, seeds=1,
        out=folder / "out", compiles=False,
    )  # fmt: skip


def measured(run: Run, place: object) -> dict[str, Any]:
    """Measure nothing; in searches, the scale's rate is the best."""
    assert run.folder is not None
    run.folder.mkdir(parents=True)
    score = -abs(run.settings["rate"] - SCALES["tiny"].lr) if run.role == "search" else 0.5
    return {
        "measures": {"held_out": score, "accuracy": 0.5}, "params": 0, "macs": 0, "exaflops": 0, "steps": 1,
        "seconds": 0, "num_images": 1, "device": "cpu",
    }  # fmt: skip


def failing_at_high_rates(run: Run, place: object) -> dict[str, Any]:
    if run.role == "search" and run.settings["rate"] > SCALES["tiny"].lr:
        raise TrainingError("the loss is not finite")
    return measured(run, place)


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., dict[str, Any]]], None]:
    """Return a function that sets what carries out a run."""
    monkeypatch.setattr(execution, "write_study_page", lambda *_, **__: None)
    monkeypatch.setattr(execution, "make_arrays", lambda *_, **__: [])
    return lambda work: monkeypatch.setattr(execution, "carry_out_run", work)


def test_plans_that_are_made_again_and_again_are_of_the_same_studies(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "one", "two")
    again = with_rates(with_rates(with_rates(plans)))
    assert [(plan.on, plan.study.name) for plan in again] == [(plan.on, plan.study.name) for plan in plans]
    assert [plan.keys for plan in again] == [plan.keys for plan in plans]


def test_each_of_several_studies_on_several_sets_gets_all_its_results_and_no_other(
    tmp_path: Path, carried_out: Callable[..., None]
) -> None:
    carried_out(measured)
    plans = plans_of(tmp_path, "one", "two")
    outcome = execute_plans(plans, scale="tiny", jobs=1, device="cpu", workers=0, rate=1.0)
    assert outcome.failed == ()
    assert [(plan.on, plan.study.name) for plan in outcome.plans] == [
        (plan.on, plan.study.name) for plan in plans
    ]
    for plan in outcome.plans:
        assert len(plan.finished()) == plan.num_expected
        assert {result.study for result in plan.finished()} == {plan.study.name}
    for folder in {plan.folder for plan in plans}:
        expected = sum(plan.num_expected for plan in plans if plan.folder == folder)
        assert len(read_results(folder)) == expected


def test_a_search_that_failed_in_one_study_is_still_awaited_in_another(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "one", studies="few-shot-vs-data,resolution")
    first, second = (searched(plan, "ViT") for plan in plans)
    assert first[-1].name == second[-1].name
    for run in second[:-1]:
        note(plans[1], run, 0.1)
    assert new_runs(plans, with_rates(plans, failed=[first[-1]])) == []
    released = new_runs(plans, with_rates(plans, failed=[second[-1]]))
    assert {run.study for run in released} == {"resolution"}


def test_runs_at_a_rate_that_was_chosen_despite_a_failure_count_as_finished(
    tmp_path: Path, carried_out: Callable[..., None]
) -> None:
    carried_out(failing_at_high_rates)
    result = vitrine.study(
        "few-shot-vs-data,resolution", sets(tmp_path, "one"), scale="tiny", seeds=1, jobs=1,
        out=str(tmp_path / "out"), device="cpu", rate=1.0,
    )  # fmt: skip
    assert result.failed and all("the loss is not finite" in reason for reason in result.failed)
    for line in result.lines:
        own = [reason for reason in result.failed if reason.startswith(f"{line.name}/")]
        assert own
        assert line.finished == line.runs - len(own)
