"""The page "Extend Vitrine": its snippets run top to bottom and print what it says.

They run in a process of their own, because they register names for the whole process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extend.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
MARK = "--- end of block ---"


def test_every_snippet_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    text, code, expected, end = PAGE.read_text(encoding="utf-8"), "", [], 0
    for block in BLOCK.finditer(text):
        kind, content = block.groups()
        if kind == "python":
            code += f"{content}\nprint({MARK!r})\n"
            expected.append("")
            end = block.end()
        elif kind == "text" and end and not text[end : block.start()].strip():
            expected[-1] = content
    script = tmp_path / "extension.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{MARK}\n")[:-1] == expected


def test_the_page_shows_every_kind_of_extension() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in ("source", "recipe", "objective", "family", "layout", "evaluator", "probe"):
        assert f"register_{name}" in text
