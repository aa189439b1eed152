"""A user's script that does what the README says passes the strictest type checks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("user_script.py")


def test_a_users_script_passes_mypy_strict() -> None:
    # With the project's settings (strict) and its cache, so that the package itself is not checked a second time.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(SCRIPT)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "vitrine" / "py.typed").exists()
