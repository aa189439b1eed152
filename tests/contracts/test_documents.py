"""Documents whose links lead somewhere, whose commands exist and whose figures agree with each other."""

import inspect
import re
import shlex
from pathlib import Path

import pytest

import vitrine
from vitrine.commands import VERBS
from vitrine.models import create_model
from vitrine.recipes.small_data import cifar10

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Return what GitHub calls the headings of a document."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_project_leads_to_a_file_and_a_heading_that_are_there(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_every_experiment_has_a_date_and_a_commit() -> None:
    entries = re.split(r"^## ", (ROOT / "docs" / "experiments.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    for entry in entries:
        title, _, note = entry.split("\n")[:3]
        assert re.match(r"\*Recorded \d{4}-\d\d-\d\d in [0-9a-f]{7}[.;]", note), title


def test_every_option_that_the_changelog_of_the_next_version_names_exists() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    names = {verb.function for verb in VERBS}
    known = {name for verb in names for name in inspect.signature(getattr(vitrine, verb)).parameters}
    options = {word.replace("-", "_") for word in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)", newest)}
    assert len(options) > 20
    assert options - {name.rstrip("_") for name in known} <= {"json"}


def test_the_size_of_the_cifar10_model_is_the_same_everywhere() -> None:
    recipe = cifar10()
    model = create_model(recipe.model, num_classes=10, image_size=recipe.size, **recipe.model_options)
    count = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    places = ["README.md", "README.zh-CN.md", "docs/performance.md", "docs/experiments.md"]
    for text in [*((ROOT / place).read_text(encoding="utf-8") for place in places), cifar10.__doc__ or ""]:
        assert count in text
        assert not re.search(r"\b6\.[34]\d? M\b|640 万", text)


def test_every_row_of_the_speeds_has_a_command_whose_script_knows_its_options() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    tables = re.findall(r"^\| what \|.*\| command \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(tables) == 2 and len(rows) > 20
    for row in rows:
        told = row.rstrip("| ").rsplit("|", 1)[1].strip()
        if told == "the same":
            continue
        program, what, *words = shlex.split(told.strip("`"))
        options = {word for word in words if word.startswith("--")}
        if program == "python":
            code = (ROOT / what).read_text()
            assert all(f'"{option}"' in code for option in options), row
        else:
            known = inspect.signature(getattr(vitrine, what)).parameters
            assert {option.removeprefix("--").replace("-", "_") for option in options} <= set(known), row


def test_every_defence_names_tests_that_exist() -> None:
    rows = [row for row in (ROOT / "SECURITY.md").read_text().splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 7
    for row in rows:
        named = re.findall(r"`((?:unit|journeys|contracts)/\S+?\.py)`", row)
        assert named, row
        assert all((ROOT / "tests" / name).is_file() for name in named), row


def test_readers_with_a_gpu_are_told_the_version_of_torch_that_the_lock_pins() -> None:
    [pinned] = re.findall(r"^torch==[\w.]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for name in ("README.md", "README.zh-CN.md"):
        assert f"pip install {pinned}\n" in (ROOT / name).read_text(encoding="utf-8")
