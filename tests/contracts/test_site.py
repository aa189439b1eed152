"""The documentation site: every page has its place, and the reference says what the code says.

`make docs` builds the site strictly; these checks need none of its tools.
"""

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import vitrine
from vitrine.commands import VERBS

ROOT = Path(__file__).parents[2]
# The contract with users: names are added on purpose, and removed only as docs/releasing.md allows.
STABLE_NAMES = set(
    """BatchPredictor Loaded Predictor VitClassifier VitRegressor VitrineError __version__ bench check convert
    create_model dedup demo embed evaluate export fewshot fewshot_accuracy finetune index inspect list_models
    list_recipes load merge plan predict pretrain report resume save search serve shard study suggest
    vtab zero_shot""".split()  # noqa: SIM905 - a list of words
)


def test_the_stable_names_are_these() -> None:
    assert set(vitrine.__all__) == STABLE_NAMES


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "hooks")
        yield importlib.import_module("reference")
        sys.modules.pop("reference")


def test_the_api_reference_has_every_stable_name(reference: ModuleType) -> None:
    page = reference.api_page()
    for name in STABLE_NAMES - {"__version__"}:
        assert f"### vitrine.{name}\n" in page or f"::: {reference.full_name(name)}\n" in page, name


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_references_have_every_parameter_of_a_verb_with_its_meaning(
    verb: Any, reference: ModuleType
) -> None:
    function = getattr(vitrine, verb.function)
    section = reference.function_section(function)
    commands = reference.cli_page().split(f"## vitrine {verb.name}\n")[1].split("\n## vitrine ")[0]
    for parameter in inspect.signature(function).parameters.values():
        _, meaning = reference.described(function.__annotations__[parameter.name])
        assert meaning
        assert f"| `{parameter.name}` |" in section
        assert reference.cell(meaning)[:40] in section
        option = f"--{parameter.name.strip('_').replace('_', '-')}"
        assert option in commands or parameter.name.upper().replace("_", "-") in commands.upper()


def test_every_document_has_a_place_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [
            page for value in (entry.values() if isinstance(entry, dict) else entry) for page in pages(value)
        ]

    listed = pages(site["nav"])
    documents = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    outside = {path.name for path in ROOT.glob("*.md")}
    assert documents <= set(listed)
    assert outside - {"README.md", "README.zh-CN.md"} <= set(listed)
    assert len(listed) == len(set(listed))
