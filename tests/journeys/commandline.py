"""Run the command line as a user does, in a process of its own, and look at what it says."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from vitrine.errors import TryOption, VitrineError

SOURCE = Path(__file__).parents[2] / "src"


class Done(subprocess.CompletedProcess[str]):
    """A call of the command line in this process, and the error that it reported, if any."""

    error: BaseException | None = None


def vitrine(
    *arguments: str | Path, cwd: Path | None = None, stdin: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "vitrine", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        input=stdin,
        timeout=timeout,
    )


def assert_refused(
    result: subprocess.CompletedProcess[str],
    *parts: str,
    code: int = 2,
    error: type[VitrineError] | None = None,
    option: str | None = None,
    advice: Sequence[str] = (),
) -> None:
    """Exit code, one sentence, no traceback; of a call in this process also the fields of its error."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr
    if error is not None:
        assert isinstance(result, Done)
        assert_fields(result.error, error, option=option, advice=advice)


def assert_fields(
    error: BaseException | None,
    kind: type[VitrineError],
    *,
    option: str | None = None,
    advice: Sequence[str] = (),
) -> None:
    """An error's class, the parameter it is about, and the parameters and verbs that it advises."""
    assert isinstance(error, kind) and type(error) is kind, repr(error)
    advised = [one.option if isinstance(one, TryOption) else one.verb for one in error.advice]
    assert (error.option, advised) == (option, list(advice)), (error.option, advised)


@contextmanager
def refusal(
    kind: type[VitrineError], *parts: str, option: str | None = None, advice: Sequence[str] = ()
) -> Iterator[None]:
    """The call inside must raise this error with these fields, whose message names these data."""
    with pytest.raises(kind) as caught:
        yield
    assert_fields(caught.value, kind, option=option, advice=advice)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def losses(run: Path) -> list[float]:
    """Read the losses that a run logged, in the order of its steps."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def inside(*arguments: str | Path, cwd: Path | None = None) -> Done:
    """Run the command line in this process: the same code without the seconds that importing torch takes."""
    from vitrine.cli import app

    out, err, code = io.StringIO(), io.StringIO(), 0
    complain, errors = app.complain, [None]

    def noted(text: str) -> None:
        errors.append(sys.exc_info()[1])
        complain(text)

    words = ["vitrine", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.object(app, "complain", noted),
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
    ):
        try:
            app.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    done = Done(words, code, out.getvalue(), err.getvalue())
    done.error = errors[-1]
    return done


def started(*arguments: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start the command line in a process of its own and do not wait for it."""
    # Packages that are installed elsewhere for a test stay within reach.
    path = os.pathsep.join([str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-m", "vitrine", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment,
    )  # fmt: skip


def wait_for_records(run: Path, count: int, *, seconds: float = 100) -> None:
    """Wait until a run has logged so many records."""
    end, metrics = time.monotonic() + seconds, run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        assert time.monotonic() < end, f"{metrics} has not {count} records after {seconds} s"
        time.sleep(0.005)
