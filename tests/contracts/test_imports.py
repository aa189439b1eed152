"""No import cycle of any kind, and imports inside functions only where a verb or an extra needs them."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"
MOST_DEFERRED = 50
PATHS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


def imported_by(name: str) -> set[str]:
    """Our modules that a module imports anywhere: at its top, inside functions, for types only."""
    modules = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            modules |= {one if one in PATHS else str(node.module) for one in full}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return (modules & PATHS.keys()) - {name}


def deferred_in(name: str) -> list[ast.Import | ast.ImportFrom]:
    """Imports inside the functions of a module."""
    return [
        node
        for function in ast.walk(TREES[name])
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in function.body
        for node in ast.walk(node)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def test_no_modules_import_each_other_not_even_inside_functions() -> None:
    graph = {name: imported_by(name) for name in PATHS if name != "vitrine"}  # whose names are lazy
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {' -> '.join(error.args[1])}") from None


def test_a_verb_defers_one_import_and_few_others_defer_at_all() -> None:
    counts = {name: len(deferred_in(name)) for name in PATHS}
    verbs = {name: count for name, count in counts.items() if name.startswith("vitrine.commands.")}
    assert set(verbs.values()) <= {0, 1}, {name: count for name, count in verbs.items() if count > 1}
    assert sum(counts.values()) < MOST_DEFERRED, sum(counts.values())


def test_only_verbs_the_command_line_and_kernels_defer_modules_of_our_own() -> None:
    allowed = ("vitrine.commands.", "vitrine.cli.app", "vitrine.models.kernels")
    deferring = {
        name
        for name in PATHS
        for node in deferred_in(name)
        if "vitrine" in (getattr(node, "module", None) or node.names[0].name).split(".")[0]
    }
    assert not [name for name in deferring if not name.startswith(allowed)]
