"""`vitrine demo`: the whole path once, small, on this machine: check, fine-tune, report, inspect, predict."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path
from vitrine.commands.model_or_box import BOX

if TYPE_CHECKING:
    from vitrine.data.sources.demo_photos import Fault
    from vitrine.jobs.check import CheckResult

DATA, INBOX = "photos", "inbox"
# 96 pixels are a sixth of the work of 224, and enough for things that fill a third of the picture.
SIZE, EPOCHS, BATCH, PEAK_RATE, HELD_OUT = 96, 10.0, 32, 5e-4, 0.2
MARK = "demo.txt"


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demonstration reached, and the pages to look at."""

    folder: Path
    num_pictures: int
    num_faults: int
    num_faults_found: int
    accuracy: float
    interval: tuple[float, float]
    chance: float
    images_per_second: float
    pages: tuple[Path, ...]

    @property
    def exit_code(self) -> int:
        """1 where the check missed a fault that was planted."""
        return int(self.num_faults_found < self.num_faults)

    def __str__(self) -> str:
        low, high = (100 * end for end in self.interval)
        return "\n".join(
            [
                f"{self.num_pictures} pictures checked: {self.num_faults_found} of {self.num_faults} planted faults "
                "found",
                f"The model in the box, fine-tuned on them, names {100 * self.accuracy:.1f} % of others right "
                f"(95 % interval {low:.1f} to {high:.1f}; guessing: {100 * self.chance:.0f} %), at "
                f"{self.images_per_second:,.0f} images/s",
                *(f"Wrote {path}" for path in self.pages),
                "Next: open these pages, then do the same with your own photos, one folder a class:",
                "  vitrine check ./photos",
                "  vitrine finetune ./photos",
                "  vitrine predict runs/latest new.jpg",
                "  vitrine --help        everything else",
            ]
        )


@documented
def demo(
    *,
    out: Annotated[Path | str, Doc("Folder to write to; an earlier demonstration there is replaced")] = Path(
        "vitrine-demo"
    ),
    images: Annotated[int, Doc("Number of pictures to render")] = 480,
    steps: Annotated[
        int | None, Doc("Training steps of 32 images [default: ten passes over the pictures]")
    ] = None,
    device: options.Device = "auto",
) -> DemoResult:
    """Run the whole workflow once on rendered pictures: about two minutes on two cores, no network needed."""
    out = as_path(out)
    from vitrine.commands.check import check
    from vitrine.commands.finetune import finetune
    from vitrine.commands.inspect import inspect
    from vitrine.commands.predict import predict
    from vitrine.data.sources.demo_photos import CLASSES, write_inbox, write_photos

    out = Path(out)
    _make_room(out)
    photos, inbox, run = out / DATA, out / INBOX, out / "run"
    faults = write_photos(photos, count=images)
    write_inbox(inbox)

    _announce("check", photos, out=out / "check")
    checked = check(str(photos), out=out / "check")
    found = _found(checked, faults)
    options: dict[str, Any] = {
        "size": SIZE, "epochs": None if steps else EPOCHS, "steps": steps, "batch_size": BATCH, "lr": PEAK_RATE,
        "hold_out": HELD_OUT,
    }  # fmt: skip
    _announce("finetune", photos, out=run, **options)
    tuned = finetune(str(photos), model=BOX, out=run, device=device, **options)
    _announce("inspect", run, inbox, out=out / "inspect", count=6, show=3)
    seen = inspect(str(run), [str(inbox)], out=out / "inspect", count=6, show=3, device=device)
    _announce("predict", run, inbox, out=out / "predictions.csv")
    answers = predict(str(run), [str(inbox)], out=out / "predictions.csv", device=device)
    assert tuned.accuracy is not None
    assert tuned.interval is not None
    pages = (*checked.wrote[:1], *([tuned.report] if tuned.report else []), *seen.wrote[:1], *answers.wrote)
    return DemoResult(
        folder=out,
        num_pictures=checked.num_images,
        num_faults=len(faults),
        num_faults_found=found,
        accuracy=tuned.accuracy,
        interval=tuned.interval,
        chance=1 / len(CLASSES),
        images_per_second=tuned.images_per_second,
        pages=pages,
    )


def _make_room(folder: Path) -> None:
    """Make the folder; take an earlier demonstration away, and nothing else."""
    from vitrine.errors import ConfigError
    from vitrine.runtime.files import write_atomically

    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise ConfigError(
                f"{folder} holds something else than a demonstration; name another folder with --out"
            )
        shutil.rmtree(folder)
    with write_atomically(folder / MARK, mode="w") as file:
        file.write("vitrine demo made this folder and replaces it the next time.\n")


def _announce(verb: str, *words: Path, **options: object) -> None:
    """Show the command that does what comes next."""
    from vitrine.runtime.progress import notice

    given = [str(word) for word in words]
    for name, value in options.items():
        given += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)] * (
            value is not None
        )
    notice(f"\n$ vitrine {verb} {shlex.join(given)}")


def _found(checked: "CheckResult", faults: "tuple[Fault, ...]") -> int:
    """Count the planted faults that the check named, and say what it found."""
    from vitrine.runtime.progress import notice

    named = {(issue.path, issue.problem) for issue in checked.issues}
    for issue in checked.issues:
        notice(f"  {issue.problem}: {issue.path}: {issue.detail}")
    return sum((fault.path, fault.problem) in named for fault in faults)
