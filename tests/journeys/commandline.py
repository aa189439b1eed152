"""Run the command line as a user does, in a process of its own, and look at what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def vitrine(
    *arguments: str | Path, cwd: Path | None = None, stdin: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "vitrine.cli", *map(str, arguments)],
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
