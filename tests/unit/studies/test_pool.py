"""Runs side by side: in order, after those they need, with failures that stop only what depends on them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from vitrine.errors import TrainingError
from vitrine.studies import pool
from vitrine.studies.pool import carry_out_all, longest_first, may_start, taken_by
from vitrine.studies.record import Run, Setup, in_order
from vitrine.studies.registry import STUDIES
from vitrine.studies.scales import SCALES


def listed(study: str = "resolution", seeds: int = 2) -> list[Run]:
    setups = [Setup(scale=SCALES["tiny"], seed=seed, num_classes=3, num_images=100) for seed in range(seeds)]
    return in_order([run for setup in setups for run in STUDIES[study].runs(setup)])


def note(run: Run, context: Any) -> dict[str, Any]:
    """Say who did it; fail where the context says so."""
    if run.name in context:
        raise TrainingError("the loss is not finite")
    return {"pid": os.getpid(), "name": run.name}


def die(run: Run, context: Any) -> dict[str, Any]:
    os._exit(9)


def sleep(run: Run, context: Any) -> dict[str, Any]:
    (Path(context) / str(os.getpid())).touch()
    time.sleep(100)
    return {}


def name(run: Run) -> str:
    return f"{run.study}/{run.name}"


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_run_is_done_once_and_after_the_one_it_needs(jobs: int) -> None:
    done = list(carry_out_all(listed(), note, (), jobs=jobs, names=name))
    names = [found.run.name for found in done]
    assert sorted(names) == sorted(run.name for run in listed())
    for found in done:
        assert found.values is not None
        if found.run.after:
            assert names.index(found.run.after) < names.index(found.run.name)
    processes = {found.values["pid"] for found in done if found.values}
    assert (processes == {os.getpid()}) is (jobs == 1)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failure_is_said_and_stops_what_depends_on_it_alone(jobs: int) -> None:
    done = list(carry_out_all(listed(), note, ("pre-training-seed0",), jobs=jobs, names=name))
    failed = {found.run.name: found.reason for found in done if found.values is None}
    assert failed.pop("pre-training-seed0") == "the loss is not finite"
    assert len(failed) == 9
    assert all("whose weights it needs, failed" in reason for reason in failed.values())
    assert sum(found.values is not None for found in done) == len(listed()) - 10


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_is_added_after_the_one_it_needs_failed_is_not_started(jobs: int) -> None:
    needed, *others = listed(seeds=1)
    late = [run for run in others if run.after == needed.name]
    waves = iter([late])
    done = list(
        carry_out_all([needed], note, (needed.name,), jobs=jobs, names=name, more=lambda: next(waves, []))
    )
    reasons = {found.run.name: found.reason for found in done}
    assert reasons.pop(needed.name) == "the loss is not finite"
    assert set(reasons) == {run.name for run in late}
    assert all("whose weights it needs" in reason for reason in reasons.values())


def test_nothing_to_do_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "processes_for", None)
    assert not list(carry_out_all([], note, (), jobs=8, names=name, more=list))


def test_processes_that_die_are_reported_and_nothing_hangs() -> None:
    done = list(carry_out_all(listed("head"), die, (), jobs=2, names=name))
    assert len(done) == len(listed("head"))
    assert all(found.values is None for found in done)
    assert any("its process died" in found.reason for found in done)


class Deadly:
    """Ends the process that it is sent to, before that can take a run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


@pytest.mark.slow
def test_processes_that_die_while_they_start_are_reported_too() -> None:
    done = list(carry_out_all(listed("head"), note, Deadly(), jobs=2, names=name))
    assert len(done) == len(listed("head"))
    assert all(found.values is None for found in done)


def test_a_process_that_died_while_idle_is_passed_over() -> None:
    runs = listed("head", seeds=1)
    ways = [Pipe() for _ in range(3)]
    ways[2][1].close()
    ways[1][1].close()
    idle = [ours for ours, _ in ways]
    assert taken_by(runs[0], idle) is ways[0][0]
    assert ways[0][1].recv() == runs[0]
    assert taken_by(runs[1], idle) is None


@pytest.mark.slow
def test_processes_whose_parent_is_killed_end_by_themselves(tmp_path: Path) -> None:
    code = (
        "from tests.unit.studies.test_pool import *\n"
        f"list(carry_out_all(listed('head'), sleep, {str(tmp_path)!r}, jobs=2, names=name))"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as parent:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        parent.kill()
    processes = [Path("/proc") / file.name for file in tmp_path.iterdir()]
    wait_until(lambda: not any(process.exists() for process in processes))


def wait_until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_speed_is_measured_alone_and_last() -> None:
    speed, training = listed("cost", seeds=1)[0], listed("head", seeds=1)[0]
    assert may_start(speed, [])
    assert not may_start(speed, [training])
    assert not may_start(training, [speed])
    assert may_start(training, [training])
    assert longest_first([speed, training]) == [training, speed]


def test_long_runs_and_those_that_others_wait_for_come_first() -> None:
    ordered = longest_first(listed())
    for seed in (0, 1):
        assert next(run for run in ordered if run.seed == seed).group == "pre-training"
    last = [run.group for run in ordered[-4:]]
    assert sorted(last) == ["pre-training-longer"] * 2 + ["same-size-lr1-longer"] * 2


def test_one_seed_of_every_study_comes_before_the_next_of_any() -> None:
    runs = [*listed("head"), *listed("resolution")]
    found = [(run.seed, run.study) for run in longest_first(runs) if "longer" not in run.group]
    assert list(dict.fromkeys(found)) == [(0, "head"), (0, "resolution"), (1, "head"), (1, "resolution")]
