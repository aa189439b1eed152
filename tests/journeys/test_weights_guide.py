"""Every Python snippet of the guide to weights runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/weights.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_the_snippet_runs(number: int, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TMPDIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    code = SNIPPETS[number]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    printed = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    assert done.stdout.splitlines() == printed
