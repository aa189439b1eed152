"""What a run says is kept, and still reaches whoever listens."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from vitrine.errors import ConfigError
from vitrine.runtime.log_file import LogFile, logged_to
from vitrine.runtime.progress import announced, lengthen, listening, notice, present
from vitrine.runtime.run_folder import RunFolder


class Heard:
    def __init__(self) -> None:
        self.words: list[object] = []

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        self.words.append((what, total))

    def advance(self, steps: int, note: str = "") -> None:
        self.words.append((steps, note))

    def lengthen(self, steps: int) -> None:
        self.words.append(f"{steps} more")

    def finish(self) -> None:
        self.words.append("end")

    def notice(self, text: str, advice: object = ()) -> None:
        self.words.append(text)


def say_something() -> None:
    notice("Here we go")
    with announced("Training", total=2000) as advance:
        advance(1000, "")
        advance(500, "loss 1.5")


def test_remarks_and_notes_are_written_and_passed_on(tmp_path: Path) -> None:
    heard = Heard()
    with listening(heard), logged_to(RunFolder(tmp_path)):
        say_something()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["Here we go", "Training: 1,500/2,000, loss 1.5"]
    assert heard.words == ["Here we go", ("Training", 2000), (1000, ""), (500, "loss 1.5"), "end"]


def test_a_length_that_grows_is_written_and_passed_on(tmp_path: Path) -> None:
    heard = Heard()
    with listening(heard), logged_to(RunFolder(tmp_path)), announced("Studies", total=2) as advance:
        lengthen(2)
        lengthen(0)  # nothing to report
        advance(3, "b")
    assert (tmp_path / "log.txt").read_text().endswith(" Studies: 3/4, b\n")
    assert heard.words == [("Studies", 2), "2 more", (3, "b"), "end"]


def test_a_failure_is_the_last_line_and_a_later_run_goes_on_below_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), logged_to(RunFolder(tmp_path)):
        raise ConfigError("it went wrong")
    with logged_to(RunFolder(tmp_path)):
        notice("Here we go again")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines[0].endswith(" it went wrong") and lines[1].endswith(" Here we go again")


def test_only_the_first_of_several_processes_writes(tmp_path: Path) -> None:
    with logged_to(RunFolder(tmp_path), is_first=False):
        say_something()
    assert not (tmp_path / "log.txt").exists()


def test_a_full_disk_silences_the_log_and_nobody_else() -> None:
    heard = Heard()
    with listening(LogFile(Path("/dev/full").open("a", buffering=1), then=heard)):
        say_something()
    assert heard.words[0] == "Here we go" and heard.words[-1] == "end"


@dataclass(frozen=True)
class Schedule:
    total_steps: int


@dataclass(frozen=True)
class RunPlan:
    model: str
    num_images: dict[str, int]
    image_size: tuple[int, int]
    schedule: Schedule
    folder: RunFolder
    teacher: str | None = None
    is_evaluated: bool = True


def test_a_plan_is_logged_as_one_line_per_field_that_has_a_value(tmp_path: Path) -> None:
    plan = RunPlan("ViT-Ti/16", {"train": 1200, "val": 30}, (32, 48), Schedule(2000), RunFolder(Path("run")))
    with logged_to(RunFolder(tmp_path)):
        present(plan)
    first, *lines = (tmp_path / "log.txt").read_text().splitlines()
    assert first.endswith("Run plan:")
    assert [line.partition(":")[::2] for line in lines] == [
        ("  model", " ViT-Ti/16"),
        ("  num images", " train 1,200, val 30"),
        ("  image size", " 32, 48"),
        ("  schedule", ""),
        ("    total steps", " 2,000"),
        ("  folder", " run"),
        ("  is evaluated", " yes"),
    ]
