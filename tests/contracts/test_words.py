"""Words of the command line live in the command line: below it nothing spells an option or a command."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrine.cli.views import PRESENTED, SHARED
from vitrine.commands import VERBS

SOURCE = Path(__file__).parents[2] / "src" / "vitrine"
COMMAND = re.compile(rf"(?<![\w`-])--[a-z]|vitrine ({'|'.join(verb.name for verb in VERBS)})\b")
# Files that record or print a command as data, not in a message.
RECORDED = {
    "reports/run_account.py": "the command that repeats a run, on its page",
    "studies/planning.py": "the command that repeats a study, in its results",
    "jobs/study.py": "the command that repeats a study, in its document",
    "reports/figure_style.py": "a variable of CSS",
}

TESTS = Path(__file__).parents[1]
# A string of so many words in an assertion is taken for a sentence; the golden transcripts hold the sentences.
SENTENCE = 6

# Names that say nothing about what they hold; a test may look at what it has found.
EMPTY_NAMES = {
    "found",
    "how",
    "readings",
    "looks",
    "album",
    "arrivals",
    "deployed",
    "uncut",
    "lit",
    "told_bar",
}


def messages(tree: ast.Module) -> list[tuple[int, str]]:
    """All text in a module that is no docstring, with its line."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_no_message_below_the_command_line_spells_an_option_or_a_command() -> None:
    spelled = []
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(("cli/", "commands/")) and name not in RECORDED:
            spelled += [
                f"{name}:{line}: {text}"
                for line, text in messages(ast.parse(path.read_text()))
                if COMMAND.search(text)
            ]
    assert not spelled, "\n".join(spelled)


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_a_view(verb: str) -> None:
    view = importlib.import_module(f"vitrine.cli.views.{SHARED.get(verb, verb)}")
    assert callable(view.lines)


@pytest.mark.parametrize("record", PRESENTED)
def test_every_plan_has_a_view(record: str) -> None:
    module, _, name = record.rpartition(".")
    assert getattr(importlib.import_module(module), name)
    view, function = PRESENTED[record].split(":")
    assert callable(getattr(importlib.import_module(f"vitrine.cli.views.{view}"), function))


def test_no_record_of_the_jobs_carries_words() -> None:
    spoken = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for room in ("jobs", "commands", "runs")
        for path in (SOURCE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__str__"
    ]
    assert not spoken


def test_no_variable_function_or_argument_has_a_name_that_says_nothing() -> None:
    code = [*SOURCE.rglob("*.py"), *(SOURCE.parents[1] / "benchmarks").rglob("*.py")]
    assert len(code) > 500
    empty = [
        f"{path.name}:{node.lineno}: {name}"
        for path in code
        for node in ast.walk(ast.parse(path.read_text()))
        for name in names_made_by(node)
        if name in EMPTY_NAMES
    ]
    assert not empty


def names_made_by(node: ast.AST) -> list[str]:
    """Return the names that a node of the syntax introduces."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


def test_tests_pin_the_fields_of_an_error_and_no_sentence() -> None:
    files = list(TESTS.rglob("test_*.py"))
    assert len(files) > 250
    pinned = [f"{name}:{line}" for path in files for name, line in pinned_sentences(path)]
    assert not pinned, "\n".join(pinned)


@pytest.mark.parametrize(
    "line",
    [
        'assert "a sentence of at least six words" in text',
        'pytest.raises(ValueError, match="a sentence of at least six words")',
        'assert_refused(done, "a sentence of at least six words")',
        'refusal(ConfigError, f"{name} is a sentence of at least six words")',
    ],
)
def test_a_pinned_sentence_is_noticed(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(f"def test_it():\n    {line}\n")
    assert list(pinned_sentences(tmp_path / "test_one.py")) == [("test_one.py::test_it", 2)]


def pinned_sentences(path: Path) -> Iterator[tuple[str, int]]:
    """The sentences that the assertions of a file compare with: `file::function` and the line."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if any(is_sentence(part) for compared in compared_by(node) for part in ast.walk(compared)):
                    yield f"{path.name}::{function.name}", node.lineno  # type: ignore[attr-defined]


def compared_by(node: ast.AST) -> list[ast.expr]:
    """What an assertion compares with: its condition, the pattern of an error, the parts of a message."""
    if isinstance(node, ast.Assert):
        return [node.test]
    if not isinstance(node, ast.Call):
        return []
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in {"assert_refused", "refusal"}:
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return [keyword.value for keyword in node.keywords if name == "raises" and keyword.arg == "match"]


def is_sentence(node: ast.AST) -> bool:
    """Whether a node is a string of several words."""
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= SENTENCE
    )
