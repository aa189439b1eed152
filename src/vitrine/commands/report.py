"""`vitrine report`: everything about a run on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from vitrine.commands.runs.run_report import RunReport
    from vitrine.data.source import Source


def report(
    run: Annotated[Path, Doc("A run folder, or runs/latest for the newest one.")] = Path("runs/latest"),
    *,
    out: Annotated[Path | None, Doc("The file to write; by default report.html in the run folder.")] = None,
    device: options.Device = "auto",
    workers: options.Readers = 2,
) -> "RunReport":
    """Write one page about a run: curves, verdict, mistakes with their attention, calibration, data, cost."""
    from vitrine.commands.runs.run_report import write_report
    from vitrine.errors import DataError
    from vitrine.evaluation.ranks import joined_processes
    from vitrine.evaluation.run_account import read_account
    from vitrine.runtime.progress import remark
    from vitrine.runtime.run_folders import find_run

    folder = find_run(Path(run))
    account = read_account(folder)
    splits, notes = None, []
    try:
        splits = _splits(folder, account.run, seed=int(account.recipe["training"]["seed"]))
    except DataError as error:
        notes.append(f"The run's data cannot be opened any more, so its model is not judged here: {error}")
        remark(notes[0])
    with joined_processes(device) as place:
        return write_report(folder, splits=splits, device=place, workers=workers, out=out, notes=notes)


def _splits(folder: Path, run: "Mapping[str, Any]", *, seed: int) -> "dict[str, Source] | None":
    """Open the run's data with the split that it was trained with; None where nothing was held out."""
    from vitrine.commands.runs.run_data import SPLIT
    from vitrine.data.sources import open_splits

    if run["trains_on_all"] or run["model"]["num_classes"] is None:
        return None
    return open_splits(
        run["data"],
        seed=seed,
        val_fraction=run["hold_out"],
        split_file=None if run["hold_out"] == 0 else folder / SPLIT,
        allow_empty_class=True,
    )
