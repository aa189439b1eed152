"""Every guide as it stands: its Python runs and prints what it says, its command lines parse.

The Python of a guide runs top to bottom in an empty folder, as a reader would type it. A `text` block right
after a Python block is what that block prints. In `sh` blocks every call of `vitrine`, under torchrun or srun
too, is parsed by the real command line: verbs, options and the kinds of their values.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from vitrine.cli.app import build

GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
IDS = [guide.name for guide in GUIDES]


def commands_in(text: str) -> list[list[str]]:
    """Find the calls of `vitrine` in lines for a shell: the words after the program's name."""
    lines = text.replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        for mark in ("vitrine", "vitrine.cli"):
            if mark in words:
                rest = words[words.index(mark) + 1 :]
                end = next(
                    (i for i, word in enumerate(rest) if word in (";", "&&", "|", ">", "fi")), len(rest)
                )
                found.append([word.removesuffix(";") for word in rest[:end]])
                break
    return found


@pytest.mark.parametrize("guide", GUIDES, ids=IDS)
def test_the_python_of_the_guide_runs_and_prints_what_it_says(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    text, said, end = guide.read_text(encoding="utf-8"), "", 0
    for block in BLOCK.finditer(text):
        kind, code = block.groups()
        if kind == "python":
            line = text[: block.start(2)].count("\n")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * line + code, str(guide), "exec"), names)
            said, end = out.getvalue(), block.end()
        elif kind == "text" and end and not text[end : block.start()].strip():
            assert said.splitlines() == code.splitlines(), f"{guide.name} should say:\n{said}"


@pytest.mark.parametrize("guide", GUIDES, ids=IDS)
def test_every_command_of_the_guide_parses(guide: Path) -> None:
    application = typer.main.get_command(build())
    text = guide.read_text(encoding="utf-8")
    for kind, block in BLOCK.findall(text):
        if kind != "sh":
            continue
        for words in commands_in(block):
            context = application.make_context("vitrine", list(words), resilient_parsing=True)
            _, command, rest = application.resolve_command(context, list(words))  # type: ignore[attr-defined]
            assert command is not None, words
            command.make_context(words[0], list(rest), parent=context)


def test_a_misspelt_option_in_a_guide_would_be_found() -> None:
    [words] = commands_in(
        "torchrun --nproc-per-node 2 -m vitrine.cli pretrain data \\\n  --epoch 3 # short\n"
    )
    assert words == ["pretrain", "data", "--epoch", "3"]
    application = typer.main.get_command(build())
    context = application.make_context("vitrine", list(words), resilient_parsing=True)
    _, command, rest = application.resolve_command(context, list(words))  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="No such option"):
        command.make_context("pretrain", list(rest), parent=context)
