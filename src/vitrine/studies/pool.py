"""A process pool for runs: each process imports torch once and executes one run after another.

A run starts when the run whose weights it needs has finished. A process whose parent dies saves its run and ends, so
that the next call continues there.
"""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from vitrine.errors import VitrineError
from vitrine.studies.estimate import exaflops_of
from vitrine.studies.record import Run

# Executes one run; a module-level function, so that another process can import it.
Work = Callable[[Run, Any], dict[str, Any]]
WATCH_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that ended, with its measurements or the reason for its failure."""

    run: Run
    values: dict[str, Any] | None
    reason: str = ""


def nothing_more() -> Sequence[Run]:
    """Add no runs."""
    return ()


def carry_out_all(
    runs: Sequence[Run],
    work: Work,
    context: Any,
    *,
    jobs: int,
    names: Callable[[Run], str],
    more: Callable[[], Sequence[Run]] = nothing_more,
) -> Iterator[Done]:
    """Yield every run as it ends; `runs` must be in order; `names` distinguishes runs of several studies.

    After every run, `more` returns the runs that can now start.
    """
    waiting, failed = longest_first(runs), list[Run]()
    if jobs <= 1 or not waiting:
        yield from one_by_one(waiting, work, context, names=names, more=more)
        return
    pending = {names(run) for run in waiting}
    count = min(jobs, len(waiting)) if more is nothing_more else jobs
    with processes_for(work, context, count=count) as connections:
        busy: dict[Connection, Run] = {}
        idle = list(connections)
        while waiting or busy:
            for run in list(waiting):
                if needed_by(run, names) in pending or not may_start(run, list(busy.values())):
                    continue
                if connection := taken_by(run, idle):
                    busy[connection] = run
                    waiting.remove(run)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                connection = ready
                run = busy.pop(connection)
                try:
                    values, reason = connection.recv()
                    idle.append(connection)
                except (EOFError, OSError):  # the process died during the run
                    values, reason = None, "its process died (out of memory, or killed)"
                pending.discard(names(run))
                yield Done(run=run, values=values, reason=reason)
                if values is None:
                    failed.append(run)
                    yield from given_up(run, waiting, pending, names)
                if added := more():
                    pending |= {names(one) for one in added}
                    waiting = longest_first([*waiting, *added])
                    for one in failed:  # an added run may need one that failed before
                        yield from given_up(one, waiting, pending, names)
            if waiting and not busy and not idle:
                for run in waiting:
                    yield Done(run=run, values=None, reason="no process is left to run it")
                return


def taken_by(run: Run, idle: list[Connection]) -> Connection | None:
    """Send a run to an idle process and return its connection; processes that died while idle are dropped."""
    while idle:
        connection = idle.pop()
        try:
            connection.send(run)
        except OSError:
            continue
        return connection
    return None


def may_start(run: Run, others: Sequence[Run]) -> bool:
    """Whether a run may start while others run: measurements of speed run alone."""
    return not others if run.work == "speed" else not any(other.work == "speed" for other in others)


def longest_first(runs: Sequence[Run]) -> list[Run]:
    """Sort the runs of each study by the cost of each and of the runs that wait for it, highest first.

    One data set comes before the next, and one seed of every study before the next seed of any, so that results can
    be read if time runs out; within a seed, studies keep their order. Searches come first; checks, what only they
    need, and runs that must run alone come last.
    """

    cost = {id(run): exaflops_of(run, run.recipe.training.total_steps) for run in runs}
    weight = dict(cost)
    for run in runs:
        for other in runs:
            if (other.on, other.study) == (run.on, run.study) and other.after == run.name:
                weight[id(run)] += cost[id(other)]
    waiting: dict[tuple[str, str, str | None], set[str]] = {}
    for run in runs:
        waiting.setdefault((run.on, run.study, run.after), set()).add(run.role)
    studies = list(dict.fromkeys(run.study for run in runs))
    searching = {(run.on, run.study) for run in runs if run.role == "search"}

    def place(run: Run) -> tuple[Any, ...]:
        is_check = run.role == "check" or waiting.get((run.on, run.study, run.name)) == {"check"}
        is_later = run.role != "search" and (run.on, run.study) in searching and run.role != "preparation"
        return (
            run.work == "speed", is_check, run.turn, is_later, run.seed,
            studies.index(run.study), -weight[id(run)],
        )  # fmt: skip

    return sorted(runs, key=place)


def given_up(
    failed: Run, waiting: list[Run], pending: set[str], names: Callable[[Run], str]
) -> Iterator[Done]:
    """Remove the runs that wait for a failed one."""
    for run in list(waiting):
        if run in waiting and needed_by(run, names) == names(failed):
            waiting.remove(run)
            pending.discard(names(run))
            yield Done(run=run, values=None, reason=f"{failed.name}, whose weights it needs, failed")
            yield from given_up(run, waiting, pending, names)


def needed_by(run: Run, names: Callable[[Run], str]) -> str | None:
    """Return the name of the run that must be finished first."""
    return None if run.after is None else names(run).removesuffix(run.name) + run.after


def one_by_one(
    runs: Sequence[Run],
    work: Work,
    context: Any,
    *,
    names: Callable[[Run], str],
    more: Callable[[], Sequence[Run]] = nothing_more,
) -> Iterator[Done]:
    """Execute every run in this process."""
    failed: set[str] = set()
    waiting = list(runs)
    while waiting:
        run = next(one for one in waiting if needed_by(one, names) not in {names(other) for other in waiting})
        waiting.remove(run)
        if needed_by(run, names) in failed:
            failed.add(names(run))
            yield Done(run=run, values=None, reason=f"{run.after}, whose weights it needs, failed")
            continue
        values, reason = attempted(run, work, context)
        if values is None:
            failed.add(names(run))
        yield Done(run=run, values=values, reason=reason)
        if added := more():
            waiting = longest_first([*waiting, *added])


def attempted(run: Run, work: Work, context: Any) -> tuple[dict[str, Any] | None, str]:
    """Execute one run; return the reason of a failure, and re-raise an interruption."""
    try:
        return work(run, context), ""
    except VitrineError as error:
        if error.exit_code == 130:  # stopped by a signal, everything is saved
            raise
        return None, str(error)


@contextmanager
def processes_for(work: Work, context: Any, *, count: int) -> Iterator[list[Connection]]:
    """Start processes for the length of the block and yield the connections to them."""
    # A forked process would share CUDA contexts and locks.
    spawning = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes: list[Any] = []
    try:
        for _ in range(count):
            ours, theirs = spawning.Pipe()
            connections.append(ours)
            process = spawning.Process(target=serve, args=(theirs, work, context, os.getpid()), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
        yield connections
    except BaseException:
        for process in processes:
            process.terminate()  # the loop saves and stops
        raise
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.join()


def serve(connection: Connection, work: Work, context: Any, parent: int) -> None:
    """Execute runs from the connection until it is closed."""
    threading.Thread(target=watch, args=(parent,), daemon=True).start()
    while True:
        try:
            run = connection.recv()
        except EOFError:
            return
        try:
            answer = attempted(run, work, context)
        except VitrineError:
            return
        except Exception:
            answer = None, traceback.format_exc()
        try:
            connection.send(answer)
        except OSError:
            return


def watch(parent: int) -> None:
    """Save and end this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
