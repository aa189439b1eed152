"""The Python of the guides to evaluation runs, top to bottom, as a reader would type it."""

import re
import subprocess
import sys
from pathlib import Path

from .commandline import SOURCE

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def run_snippets(guide, tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL))
    environment = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_snippet_of_the_guide_to_a_few_labels_runs(tmp_path):
    said = run_snippets("few-labels.md", tmp_path)
    assert "5-shot" in said
    assert "fewer than 50 shots" in said


def test_every_snippet_of_the_guide_to_measuring_runs(tmp_path):
    said = run_snippets("measure.md", tmp_path)
    assert "Top-1" in said
    assert "images/s" in said
