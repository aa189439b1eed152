"""Measure the shape of the code: the figures of ARCHITECTURE.md.

python .ci/figures.py [SOURCE ...]    a column per source tree [default: src/vitrine]
"""

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL_FILE, LARGE_FILE, LARGE_FUNCTION = 60, 300, 40
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    sources = [Path(word) for word in sys.argv[1:]] or [ROOT / "src" / "vitrine"]
    columns = [figures(source.resolve()) for source in sources]
    print("| figure |" + "".join(f" {source} |" for source in sources))
    print("|---" * (1 + len(sources)) + "|")
    for name in columns[0]:
        print(f"| {name} |" + "".join(f" {column[name]} |" for column in columns))


def figures(source: Path) -> dict[str, str]:
    """Return every figure of a package by name."""
    files = sorted(source.rglob("*.py"))
    verbs = [lines(path) for path in verb_files(source)]
    deferred = [module for path in files for module in deferred_imports(path)]
    small = [path for path in files if lines(path) < SMALL_FILE and path.name != "__init__.py"]
    return {
        "files; lines": f"{len(files)}; {sum(map(lines, files)):,}",
        "lines in `commands/`": f"{sum(lines(path) for path in files if room(path, source) == 'commands'):,}",
        "median lines per verb file; longest": f"{statistics.median(verbs):g}; {max(verbs)}",
        "imports inside functions; of our own modules": f"{len(deferred)}; "
        f"{sum(module.startswith('vitrine') for module in deferred)}",
        "import cycles, deferred imports included": str(len(cycles(files, source))),
        "modules that name `run.json`": str(sum("run.json" in strings(path) for path in files)),
        "comparisons of an objective with a string": str(sum(map(objective_comparisons, files))),
        "`__str__` in `commands/` and `jobs/`": str(
            sum(dunder_strs(path) for path in files if room(path, source) in ("commands", "jobs"))
        ),
        "lines with `--options` outside `commands/` and `cli/`": str(
            sum(option_lines(path) for path in files if room(path, source) not in ("commands", "cli"))
        ),
        "files in `data/`; directly in it": f"{sum(room(path, source) == 'data' for path in files)}; "
        f"{len(list((source / 'data').glob('*.py')))}",
        f"files under {SMALL_FILE} lines, without `__init__.py`; beside one-verb files": f"{len(small)}; "
        f"{sum(not is_one_verb(path, source) for path in small)}",
        f"files over {LARGE_FILE} lines": str(sum(lines(path) > LARGE_FILE for path in files)),
        f"functions over {LARGE_FUNCTION} lines; with a body over {LARGE_FUNCTION}": "; ".join(
            str(sum(length(node) > LARGE_FUNCTION for path in files for node in functions(path)))
            for length in (function_lines, body_lines)
        ),
        "fields of the largest record of a run; signatures that take it": largest_setting(files, source),
    }


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


def lines(path: Path) -> int:
    return text(path).count("\n")


def room(path: Path, source: Path) -> str:
    """Return the folder of the package that a file belongs to, or its own name."""
    first = path.relative_to(source).parts[0]
    return first.removesuffix(".py")


def verb_files(source: Path) -> list[Path]:
    """Return the files that hold a verb: those of commands/ with a function of their own name."""
    return [
        path
        for path in (source / "commands").glob("*.py")
        if any(node.name in (path.stem, f"list_{path.stem}") for node in functions(path))
    ]


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def function_lines(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def body_lines(function: Function) -> int:
    """Count the lines below the signature and the docstring."""
    has_docstring = ast.get_docstring(function) is not None and len(function.body) > 1
    return (function.end_lineno or 0) - function.body[int(has_docstring)].lineno + 1


def is_one_verb(path: Path, source: Path) -> bool:
    """Whether the structure asks for a file: a verb's signature, its work, its view, or an entry point."""
    verbs = {verb.stem for verb in verb_files(source)}
    place = path.relative_to(source).parent.as_posix()
    return path.name in ("__main__.py", "version.py") or (
        place in ("commands", "jobs", "cli/views") and path.stem in verbs
    )


def deferred_imports(path: Path) -> list[str]:
    """Return the modules imported inside functions."""
    seen: dict[int, str] = {}
    for function in functions(path):
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                seen[node.lineno] = node.module or ""
            elif isinstance(node, ast.Import):
                seen[node.lineno] = node.names[0].name
    return list(seen.values())


def strings(path: Path) -> set[str]:
    """Return the string constants of a file that are code, not documentation."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | Function)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    }


def objective_comparisons(path: Path) -> int:
    """Count comparisons of something called objective with a string."""
    count = 0
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {getattr(side, "attr", getattr(side, "id", "")) for side in sides}
            words = [inner for side in sides for inner in ast.walk(side) if isinstance(inner, ast.Constant)]
            count += "objective" in names and any(isinstance(word.value, str) for word in words)
    return count


def dunder_strs(path: Path) -> int:
    return sum(node.name == "__str__" for node in functions(path))


def option_lines(path: Path) -> int:
    return sum(OPTION.search(line) is not None for line in text(path).splitlines())


def largest_setting(files: list[Path], source: Path) -> str:
    """Find the dataclass with most fields among those passed through the rooms that run training."""
    rooms = ("commands", "jobs", "runs")
    records = {
        node.name: sum(isinstance(part, ast.AnnAssign) for part in node.body)
        for path in files
        if room(path, source) in rooms
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
        and "dataclass" in ast.dump(ast.Module(node.decorator_list, []))  # type: ignore[arg-type]
        and "Result" not in map(ast.unparse, node.bases)  # a result is passed on, not a setting
    }
    taken = dict.fromkeys(records, 0)
    for path in files:
        for function in functions(path):
            arguments = [*function.args.args, *function.args.kwonlyargs]
            words = " ".join(ast.unparse(one.annotation) for one in arguments if one.annotation)
            for name in taken:
                taken[name] += re.search(rf"\b{name}\b", words) is not None
    # A setting is a record that many functions take.
    name = max(records, key=lambda one: (min(taken[one], 8), records[one]))
    return f"`{name}`: {records[name]}; {taken[name]}"


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports anywhere, except for type checking."""
    skipped = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    # A name of a module, and not the module's package, where both are imported.
    submodules = {name for name in names if name in modules}
    return {name for name in submodules if not any(other.startswith(f"{name}.") for other in submodules)}


def cycles(files: list[Path], source: Path) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or not."""
    modules = {}
    for path in files:
        parts = path.relative_to(source.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    edges = {name: imports_of(path, modules) - {name} for name, path in modules.items()}
    edges.pop("vitrine", None)  # imports every public name lazily, by string

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for name in edges.get(left.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    left.append(name)
        return seen

    reach = {name: reachable(name) for name in edges}
    groups = {frozenset(other for other in reach[name] if name in reach.get(other, ())) for name in edges}
    return [set(group) for group in groups if group]


if __name__ == "__main__":
    main()
