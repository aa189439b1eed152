"""Sentences of views that no journey reaches quickly."""

from vitrine.cli.views.serve import plan_lines
from vitrine.jobs.serve import ServePlan


def plan(*, run: str | None) -> str:
    shown = ServePlan(
        address="http://127.0.0.1:8000",
        models=("pets",),
        run=run,
        workers=1,
        threads=1,
        target_seconds=0.1,
        waiting=8,
    )
    return str(next(plan_lines(shown)))


def test_the_plan_of_serve_names_a_run_once_and_another_run_beside_the_model():
    assert plan(run="pets").count("pets") == 1
    assert plan(run="other").startswith("Plan: pets, run other; ")
