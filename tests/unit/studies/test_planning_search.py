"""The search of learning rates: several data sets in a call, and runs that wait for a rate."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrine.errors import ConfigError
from vitrine.recipes import Recipe
from vitrine.runtime.progress import listening
from vitrine.studies import execution, planning
from vitrine.studies.arms import is_at_edge_of_search
from vitrine.studies.descendant_models import METHODS, PLAIN
from vitrine.studies.execution import execute_plans
from vitrine.studies.planning import Plan, ended_searches, make_plans, new_runs, with_rates
from vitrine.studies.pool import carry_out_all, longest_first
from vitrine.studies.record import FIRST_GRID, Run, Setup
from vitrine.studies.registry import find_studies
from vitrine.studies.results import append_result
from vitrine.studies.scales import SCALES
from vitrine.studies.training_runs import trained_or_launched
from vitrine.training.graphs import RecordingError


def sets(folder: Path, *names: str) -> str:
    """Write data sets of a few images in CIFAR's binary layout."""
    random = np.random.default_rng(0)
    for number, name in enumerate(names):
        (folder / name).mkdir()
        for split, count in (("train", 200), ("test", 10)):
            rows = random.integers(0, 256, (count, 3074), dtype=np.uint8)
            rows[:, 1] = np.arange(count) % (5 + number)
            rows.tofile(folder / name / f"{split}.bin")
        words = " ".join(f"class-{place}" for place in range(5 + number))
        (folder / name / "fine_label_names.txt").write_text(words)
    return ",".join(str(folder / name) for name in names)


def plans_of(folder: Path, *names: str) -> list[Plan]:
    return make_plans(
        find_studies("descendants"), SCALES["tiny"], data=sets(folder, *names), target=None, seeds=1,
        out=folder / "out", compiles=False,
    )  # fmt: skip


def note(plan: Plan, run: Run, held_out: float) -> None:
    """Write a result of a run."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    append_result(
        plan.folder,
        {
            "study": run.study, "run": run.name, "key": plan.keys[run.name], "series": plan.series, "command": "",
            "group": run.group, "seed": run.seed, "role": run.role, "settings": run.settings, "scale": "tiny",
            "data": "", "measures": {"held_out": held_out, "accuracy": 0.0}, "params": 0, "macs": 0, "exaflops": 0,
            "steps": 1, "seconds": 0, "num_images": 1, "num_test": 1, "device": "cpu", "version": "0",
        },
    )  # fmt: skip


def searched(plan: Plan, method: str) -> list[Run]:
    return [run for run in plan.runs if run.role == "search" and run.settings["method"] == method]


def test_runs_wait_for_the_rate_that_is_best_on_held_out_images_of_the_first_set(tmp_path: Path) -> None:
    first, second = plans_of(tmp_path, "one", "two")
    assert {run.role for run in second.runs} == {"preparation"}
    assert {run.role for run in first.runs} == {"preparation", "search"}
    own = searched(first, PLAIN)
    for run, score in zip(own[:-1], (0.1, 0.3), strict=True):
        note(first, run, score)
    assert ended_searches(first) == ({}, {}), "one rate is still missing"
    assert ended_searches(first, failed={own[-1].name}) == ({PLAIN: own[1].settings["rate"]}, {})
    note(first, own[-1], 0.2)
    assert ended_searches(first) == ({PLAIN: own[1].settings["rate"]}, {})
    released = new_runs([first, second], with_rates([first, second]))
    assert {(run.on, run.group) for run in released} == {
        ("one", "plain-ViT"), ("one", "plain-ViT-longer"), ("two", "plain-ViT"), ("two", "plain-ViT-longer"),
    }  # fmt: skip
    assert {run.recipe.training.lr for run in released} == {own[1].settings["rate"]}
    assert len({run.folder for run in released}) == len(released)


def test_a_run_has_one_key_whether_its_set_is_alone_in_the_call_or_not(tmp_path: Path) -> None:
    first, _ = plans_of(tmp_path, "one", "two")
    (alone,) = make_plans(
        find_studies("descendants"), SCALES["tiny"], data=str(tmp_path / "one"), target=None, seeds=1,
        out=tmp_path / "out", compiles=False,
    )  # fmt: skip
    assert alone.keys == first.keys
    assert alone.series == first.series
    assert alone.num_expected == len(METHODS) * (1 + FIRST_GRID[1] - FIRST_GRID[0] + 1) + 2
    assert (alone.page, first.page) == (planning.PAGE, "one.html")


def test_data_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="differ in the last part"):
        make_plans(
            find_studies("head"), SCALES["tiny"], data="a/set,b/set", target=None, seeds=1, out=tmp_path,
            compiles=False,
        )  # fmt: skip


def test_the_search_comes_first_then_one_set_after_the_other_and_checks_last(tmp_path: Path) -> None:
    plans = [plan.remake(dict.fromkeys(METHODS, 0.001), {}) for plan in plans_of(tmp_path, "one", "two")]
    ordered = longest_first([run for plan in plans for run in plan.runs])
    roles = [(run.on, run.role) for run in ordered]
    assert roles.index(("one", "measured")) > max(i for i, one in enumerate(roles) if one[1] == "search")
    assert roles.index(("two", "measured")) > max(
        i for i, one in enumerate(roles) if one == ("one", "measured")
    )
    assert {role for _, role in roles[-2:]} == {"check"}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_runs_that_become_possible_are_carried_out_in_the_same_pool(tmp_path: Path, jobs: int) -> None:
    (plan,) = plans_of(tmp_path, "one")
    waiting = [searched(plan, PLAIN)[:1], searched(plan, PLAIN)[1:3]]
    done = [
        one.run.name
        for one in carry_out_all(
            waiting.pop(0), nothing, (), jobs=jobs, names=lambda run: run.name,
            more=lambda: waiting.pop(0) if waiting else [],
        )
    ]  # fmt: skip
    assert done[0] == searched(plan, PLAIN)[0].name
    assert sorted(done) == sorted(run.name for run in searched(plan, PLAIN)[:3])


def test_a_step_that_cannot_be_recorded_is_launched_and_the_run_says_so() -> None:
    tried: list[bool] = []

    def train(recipe: Recipe) -> None:
        tried.append(recipe.training.graphs)
        if recipe.training.graphs:
            raise RecordingError("a step cannot be recorded")

    (run, *_) = find_studies("head")[0].runs(
        Setup(scale=SCALES["small"], seed=0, num_classes=2, num_images=10)
    )
    assert trained_or_launched(train, run.recipe) == "a step cannot be recorded"
    assert tried == [True, False]
    quiet = dataclasses.replace(run.recipe, training=dataclasses.replace(run.recipe.training, graphs=False))
    assert trained_or_launched(train, quiet) == ""


def nothing(run: Run, context: object) -> dict[str, object]:
    """Carry out a run without doing anything."""
    return {}


def compute_plan(folder: Path) -> Plan:
    (plan,) = make_plans(
        find_studies("compute"), SCALES["tiny"], data=sets(folder, "one"), target=None, seeds=1,
        out=folder / "out", compiles=False,
    )  # fmt: skip
    return plan


def test_a_grid_is_widened_twice_where_a_study_has_several_data_sets(tmp_path: Path) -> None:
    plans, base = plans_of(tmp_path, "one", "two"), SCALES["tiny"].lr
    while todo := [run for run in plans[0].unfinished() if run.role == "search"]:
        for run in todo:
            note(plans[0], run, -abs(run.settings["rate"] - 4 * base))
        plans = with_rates(plans)
    rates = {run.settings["rate"] for plan in plans for run in plan.runs if run.role == "measured"}
    assert rates == {4 * base}


def measured_rates(plan: Plan, held_out: Callable[[float], float]) -> Plan:
    """Write results of all searches, and of those that their results ask for."""
    while True:
        todo = [run for run in plan.unfinished() if run.role == "search"]
        if not todo:
            return plan
        for run in todo:
            note(plan, run, held_out(run.settings["rate"]))
        (plan,) = with_rates([plan])


def test_a_grid_is_widened_until_its_best_rate_is_no_longer_at_the_edge(tmp_path: Path) -> None:
    base = SCALES["tiny"].lr
    plan = measured_rates(compute_plan(tmp_path), lambda rate: -abs(rate - 4 * base))
    for run in plan.runs:
        if run.role == "measured":
            assert run.recipe.training.lr == run.settings["rate"] == 4 * base
            assert run.settings["tried"] == f"{base / 2:g} to {8 * base:g}"
    searched = [
        run.settings["rate"] for run in plan.runs if run.role == "search" and run.group.startswith("ViT-1")
    ]
    assert [rate / base for rate in searched] == [0.5, 1, 2, 4, 8]


def test_a_search_that_only_gets_better_ends_at_the_widest_grid_and_leaves_the_study_open(
    tmp_path: Path,
) -> None:
    plan = measured_rates(compute_plan(tmp_path), lambda rate: rate)
    (run, *_) = [run for run in plan.runs if run.role == "measured"]
    assert run.settings["rate"] == 2**planning.WIDEST * SCALES["tiny"].lr
    note(plan, run, 0.5)
    (result,) = [one for one in plan.finished() if one.role == "measured"]
    assert is_at_edge_of_search(result)


def test_a_search_that_was_widened_is_read_again_from_its_results(tmp_path: Path) -> None:
    plan = measured_rates(compute_plan(tmp_path), lambda rate: -rate)
    (again,) = make_plans(
        find_studies("compute"), SCALES["tiny"], data=str(tmp_path / "one"), target=None, seeds=1,
        out=tmp_path / "out", compiles=False,
    )  # fmt: skip
    (again,) = with_rates([again])
    assert again.keys == plan.keys and again.num_expected == plan.num_expected == len(plan.runs)


class Counted:
    """A listener that keeps, after every step of the last work, how many are done and how many there are."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.counts: list[tuple[int, int]] = []

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        self.total, self.done, self.counts = total or 0, done, []

    def advance(self, steps: int, note: str = "") -> None:
        self.done += steps
        self.counts.append((self.done, self.total))

    def lengthen(self, steps: int) -> None:
        self.total += steps

    def finish(self) -> None: ...
    def notice(self, text: str, advice: object = ()) -> None: ...
    def present(self, record: object) -> None: ...


def test_the_number_of_runs_grows_with_the_search_and_every_one_of_them_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = SCALES["tiny"].lr

    def measured(run: Run, place: object) -> dict[str, object]:
        score = -abs(run.settings["rate"] - 4 * base) if run.role == "search" else 0.5
        return {
            "measures": {"held_out": score, "accuracy": 0.5}, "params": 0, "macs": 0, "exaflops": 0, "steps": 1,
            "seconds": 0, "num_images": 1, "device": "cpu",
        }  # fmt: skip

    monkeypatch.setattr(execution, "carry_out_run", measured)
    monkeypatch.setattr(execution, "write_study_page", lambda *_, **__: None)
    counted, plan = Counted(), compute_plan(tmp_path)
    with listening(counted):
        outcome = execute_plans([plan], scale="tiny", jobs=1, device="cpu", workers=0, rate=1.0)
    assert outcome.failed == ()
    first, last = counted.counts[0], counted.counts[-1]
    assert first == (1, plan.num_expected)
    assert last[0] == last[1] > plan.num_expected
    assert all(done <= total for done, total in counted.counts)
