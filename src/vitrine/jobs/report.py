"""The work behind `vitrine report`: everything about a run on one page."""

from pathlib import Path

from vitrine.errors import ConfigError, DataError
from vitrine.reports.run_account import read_account
from vitrine.runs.run_report import RunReport, write_report
from vitrine.runs.trained_data import splits_of_run
from vitrine.runtime.cache import downloads
from vitrine.runtime.find_run import find_run
from vitrine.runtime.places import is_remote
from vitrine.runtime.processes import joined_processes
from vitrine.runtime.progress import notice


def report_run(
    run: str | Path, *, out: Path | None, device: str, workers: int, allow_download: bool
) -> RunReport:
    """Write the page of a run, with scores if its data can still be opened."""
    if is_remote(run) and out is None:
        raise ConfigError("a run at an address needs a file of this machine for its page", option="out")
    folder = find_run(run)
    read_account(folder.path)  # refuses a folder without the records of a run
    if out is None:
        folder.require_own_files()
    splits, notes = None, []
    try:
        with downloads(allowed=allow_download):
            splits = splits_of_run(folder)
    except DataError as error:
        reason = "The run's data cannot be opened, so the page has no evaluation of its model"
        notes.append(f"{reason}: {error}")
        notice(f"{reason}: {error.problem}", advice=error.advice)
    with joined_processes(device) as processes:
        return write_report(
            folder, splits=splits, device=processes.device, workers=workers, out=out, notes=notes
        )
