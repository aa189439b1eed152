"""A user's script that does what the README says passes the strictest type checks.

`make types` checks it together with the package; on its own, the package would be checked a second time.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = "tests/contracts/user_script.py"


def test_make_types_checks_a_users_script_as_strictly_as_mypy_can() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True and SCRIPT in settings["files"]
    [own] = [
        each
        for each in settings["overrides"]
        if each["module"] == SCRIPT.removesuffix(".py").replace("/", ".")
    ]
    # The package is spared this one check, as it says there; a user's script is not.
    assert own == {"module": own["module"], "warn_return_any": True}
    assert (ROOT / SCRIPT).exists()


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "vitrine" / "py.typed").exists()
