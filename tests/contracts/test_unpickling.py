"""No file from elsewhere runs code: every call that could unpickle is listed here, with the reason why it is safe."""

import ast
import functools
from pathlib import Path

import vitrine

ROOT = Path(vitrine.__file__).parent
UNPICKLERS = {
    # Classes are replaced by inert records or stand-ins; see the tests of each.
    "sharded_contents.py": "the table of contents of a sharded state",
    "cifar.py": "CIFAR's Python version",
}
OPENED_BY_ITS_WRITER = {"exporting/targets.py"}  # torch.export.load, on the file that was just written

# A worker process takes the source from memory that the process that started it has just filled, as Python's own
# `spawn` would pass it; nothing of it comes from a file.
OWN_MEMORY = {("data/loading/worker_processes.py", "pickle.loads")}


@functools.cache
def calls() -> list[tuple[str, str, dict[str, ast.expr]]]:
    """List the file, the called name with its dots, and the keywords of every call in the package."""
    places = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
                places.append((str(path.relative_to(ROOT)), ast.unparse(node.func), keywords))
    return places


def is_constant(value: ast.expr | None, expected: bool) -> bool:
    return isinstance(value, ast.Constant) and value.value is expected


def test_torch_load_reads_weights_only() -> None:
    loads = [(file, keywords) for file, name, keywords in calls() if name == "torch.load"]
    assert loads
    assert all(is_constant(keywords.get("weights_only"), True) for _, keywords in loads)


def test_numpy_never_allows_pickles() -> None:
    allowed = [
        file for file, _, keywords in calls()
        if "allow_pickle" in keywords and not is_constant(keywords["allow_pickle"], False)
    ]  # fmt: skip
    assert not allowed


def test_yaml_is_read_safely() -> None:
    names = {name for _, name, _ in calls() if name.startswith("yaml.") and "load" in name}
    assert names <= {"yaml.safe_load"}


def test_nothing_else_unpickles() -> None:
    forbidden = (
        "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.", "shelve.", "dill.", "joblib.", "cloudpickle.",
        "torch.jit.load", "torch.hub.", "eval", "exec",
    )  # fmt: skip
    places = [
        (file, name) for file, name, _ in calls()
        if name in forbidden or any(name.startswith(start) for start in forbidden if start.endswith("."))
    ]  # fmt: skip
    assert set(places) <= OWN_MEMORY
    assert {file for file, name, _ in calls() if name == "torch.export.load"} <= OPENED_BY_ITS_WRITER


def test_unpicklers_are_the_known_ones() -> None:
    holders = {
        path.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases)
    }
    assert holders == set(UNPICKLERS)


def test_distributed_checkpoints_are_read_with_our_reader_and_planner() -> None:
    loads = [(file, keywords) for file, name, keywords in calls() if name == "load" and "no_dist" in keywords]
    assert loads
    for _, keywords in loads:
        assert ast.unparse(keywords["planner"]) == "TensorPlanner()"
        assert ast.unparse(keywords["storage_reader"]).startswith("TensorReader(")
