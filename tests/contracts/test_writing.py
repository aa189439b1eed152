"""Every file is written by `runtime.files`: atomically, through links, and never in the place of a device or pipe."""

import ast
from pathlib import Path

import vitrine

ROOT = Path(vitrine.__file__).parent
HOME = "runtime/files.py"
# They append to, or continue, a file of their own: logs, results of studies, partial downloads.
APPENDING = {
    "own_files.py", "results.py", "download.py", "downloading.py", "downloads.py", "hub.py",
}  # fmt: skip
RENAMING = {"os.replace", "os.rename", "shutil.move", "shutil.copy", "shutil.copyfile", "shutil.copy2"}


def writes(node: ast.Call) -> bool:
    name, values = ast.unparse(node.func), [*node.args, *(keyword.value for keyword in node.keywords)]
    if name in RENAMING or name.endswith((".write_text", ".write_bytes")):
        return True
    is_open = name == "open" or name.endswith(".open")
    is_writing = any(
        isinstance(value, ast.Constant) and isinstance(value.value, str) and set(value.value) & set("wax")
        and set(value.value) <= set("rwax+bt")
        for value in values
    )  # fmt: skip
    return is_open and is_writing and not name.startswith(("Image.", "archive.", "tarfile."))


def test_files_are_written_by_one_function() -> None:
    places = {
        (str(path.relative_to(ROOT)), ast.unparse(node))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and writes(node)
    }
    assert {file for file, _ in places} & {HOME}
    assert not {(file, call) for file, call in places if file != HOME and Path(file).name not in APPENDING}
