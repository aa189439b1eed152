"""Every guide and README as it stands: its Python runs and prints what it says, its command lines parse.

The Python of a guide runs top to bottom in an empty folder, as a reader would type it. A `text` block right
after a Python block is what that block prints. In `sh` blocks every call of `vitrine`, under torchrun or srun
too, is parsed by the real command line: verbs, options and the kinds of their values. Those that need neither weights
nor data sets nor machines that a test has not are run as well, in a folder like the reader's, with small pictures and
a small model in the box.
"""

import contextlib
import io
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from boxes import untrained_box
from journeys.commandline import inside
from pictures import photo, save

from vitrine.checkpoints import locating
from vitrine.cli.app import build

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
GUIDES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), *READMES]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
IDS = [guide.name for guide in GUIDES]
# Exports take a while to make, and the Python of both READMEs is the same.
SLOW = {"exporting.md", "README.zh-CN.md"}
# Their Python trains, on real weights or for many steps: 4 to 16 s of a core each. The tests of the verbs that they
# show run in `make test`, and so do their commands.
SLOW_PYTHON = SLOW | {
    "few-labels.md", "from-a-teacher.md", "higher-resolution.md", "look-inside.md", "trust.md", "where-is-it.md",
    "without-labels.md", "your-photos.md",
}  # fmt: skip


def timed(slow: set[str]) -> list[Any]:
    """Mark the guides named as slow."""
    return [
        pytest.param(guide, id=guide.name, marks=[pytest.mark.slow] if guide.name in slow else [])
        for guide in GUIDES
    ]


# Commands of the guides that are not run here, and why.
NOT_RUN = {
    r"torchrun|srun": "several processes; test_many_processes.py has them",
    r"vitrine resume": "says that a run which has ended is finished; test_training.py stops runs and goes on",
    r"vitrine serve": "does not end by itself; test_serve.py talks to it",
    r"vitrine pretrain": "hours of training; test_training.py and test_without_labels.py run it short",
    r"google/|dinov2|\.npz|MODEL|runs/pretrained|real\.json": "weights and files that only a reader has",
    r"cifar|/data/|\./vtab|\./labelled|study page": "data sets, or results on them",
    r"--size 384": "minutes on a large picture",
    r"patch_sizes=|finetune ./photos --max-patches": "half a minute each; test_any_shape.py trains in both ways",
    r"vitrine bench": "minutes of measuring",
    r"s3://": "a store; test_addresses.py and test_runs_at_addresses.py have one",
    r"photos/images": "photos with boxes; test_dense_export.py exports a detector",
    r"prices": "a table of numbers; test_numbers.py has one",
    r"--keep-classes": "photos of other classes; test_finetune.py adds them",
    r"--coverage|--group|vitrine suggest": "more images than the desk has; test_trust, test_grouping, test_suggest",
    r"--to executorch": "an optional package; test_edge.py has it",
    r"--int8|--out exported": "copies and places of exports; test_export.py has them",
}


def commands_in(text: str) -> list[list[str]]:
    """Find the calls of `vitrine` in lines for a shell: the words after the program's name."""
    lines = text.replace("\\\n", " ").splitlines()
    calls = []
    for line in lines:
        words = shlex.split(line, comments=True)
        for mark in ("vitrine", "vitrine.cli"):
            if mark in words:
                rest = words[words.index(mark) + 1 :]
                end = next(
                    (i for i, word in enumerate(rest) if word in (";", "&&", "|", ">", "fi")), len(rest)
                )
                calls.append([word.removesuffix(";") for word in rest[:end]])
                break
    return calls


@pytest.mark.parametrize("guide", timed(SLOW_PYTHON))
def test_the_python_of_the_guide_runs_and_prints_what_it_says(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if guide in READMES:  # which speak of the reader's own photos
        for number in range(2):
            for name in ("apple", "pear"):
                save(tmp_path / "photos" / name / f"{number}.jpg", photo(number))
        save(tmp_path / "photo.jpg", photo(7))
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


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder like a reader's: photos with their splits, an inbox, one photo, a run; the box is small."""
    folder = tmp_path_factory.mktemp("desk")
    seeds = itertools.count()
    for split, count in (("train", 26), ("test", 4)):
        for name, number in itertools.product(("apple", "pear"), range(count)):
            save(folder / "photos" / split / name / f"{number}.jpg", photo(next(seeds)))
    (folder / "train").symlink_to("photos/train")
    (folder / "test").symlink_to("photos/test")
    for place in ("inbox/1.jpg", "inbox/2.jpg", "photo.jpg"):
        save(folder / place, photo(next(seeds)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(locating, "BOX_FOLDER", untrained_box(folder / "box", image_size=32))
        made = inside("finetune", "./photos", "--epochs", "1", "--device", "cpu")
        assert made.returncode == 0, made.stderr
        yield folder


def test_most_commands_of_the_guides_are_run_and_the_reasons_for_the_others_hold() -> None:
    lines = {line for guide in GUIDES[:-1] for line in shell_lines(guide)}
    left_out = {reason: [line for line in lines if re.search(reason, line)] for reason in NOT_RUN}
    assert all(left_out.values()), "a reason that no command needs any more"
    assert len([line for line in lines if not is_left_out(line)]) >= 20


@pytest.mark.parametrize("guide", timed(SLOW)[:-1])
def test_the_commands_of_the_guide_run_in_its_order(
    guide: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reader's folder for each guide: what one has written must not be in the way of another.
    monkeypatch.chdir(shutil.copytree(desk, tmp_path / "desk", symlinks=True))
    of_readme = [] if guide in READMES else [commands_in(line) for line in shell_lines(READMES[0])]
    for line in shell_lines(guide):
        if is_left_out(line) or commands_in(line) in of_readme:  # once is enough
            continue
        [words] = commands_in(line)
        done = inside(*words)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def shell_lines(guide: Path) -> list[str]:
    """Find the lines for a shell that call `vitrine`."""
    blocks = [block for kind, block in BLOCK.findall(guide.read_text(encoding="utf-8")) if kind == "sh"]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if commands_in(line)]


def is_left_out(line: str) -> bool:
    return any(re.search(reason, line) for reason in NOT_RUN)


def test_a_misspelt_option_in_a_guide_would_be_found() -> None:
    [words] = commands_in("torchrun --nproc-per-node 2 -m vitrine pretrain data \\\n  --epoch 3 # short\n")
    assert words == ["pretrain", "data", "--epoch", "3"]
    application = typer.main.get_command(build())
    context = application.make_context("vitrine", list(words), resilient_parsing=True)
    _, command, rest = application.resolve_command(context, list(words))  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="No such option"):
        command.make_context("pretrain", list(rest), parent=context)


def test_both_readmes_show_the_same_commands_code_and_pictures() -> None:
    def shown(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
        text = path.read_text(encoding="utf-8")
        blocks = [
            (kind, re.sub(r"[ \t]*#.*$", "", block, flags=re.MULTILINE))
            for kind, block in BLOCK.findall(text)
        ]
        return blocks, re.findall(r"!\[.*?\]\((.*?)\)", text)

    english, chinese = (shown(path) for path in READMES)
    assert english == chinese
    assert len(english[0]) >= 5


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_everything_that_a_readme_points_to_is_there(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\((.*?)\)", text) if not link.startswith("https://")]
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
    pictures = [ROOT / link for link in links if link.startswith("docs/pictures/")]
    assert sum(picture.stat().st_size for picture in pictures) < 400_000
