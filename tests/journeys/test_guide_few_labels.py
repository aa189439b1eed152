"""The Python of the guide runs, top to bottom, as a reader would type it."""

import re
import subprocess
import sys
from pathlib import Path

from .commandline import SOURCE

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "few-labels.md"


def test_every_snippet_of_the_guide_to_a_few_labels_runs(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL))
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
    assert "5-shot" in done.stdout
    assert "fewer than 50 shots" in done.stdout
