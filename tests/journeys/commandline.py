"""Run the command line as a user does, in a process of its own, and look at what it says."""

import io
import json
import os
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).parents[2] / "src"


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


def assert_refused(result: subprocess.CompletedProcess[str], *parts: str, code: int = 2) -> None:
    """Exit code, one sentence, no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


def losses(run: Path) -> list[float]:
    """Read the losses that a run logged, in the order of its steps."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def inside(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: the same code without the seconds that importing torch takes."""
    from vitrine.cli import app

    out, err, code = io.StringIO(), io.StringIO(), 0
    words = ["vitrine", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", words),
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
    ):
        try:
            app.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


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
