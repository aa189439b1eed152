"""The work behind `vitrine report`: everything about a run on one page."""

from pathlib import Path

from vitrine.errors import ConfigError, DataError
from vitrine.reports.run_account import read_account
from vitrine.runs.left_out import read_left_out
from vitrine.runs.run_report import LEFT_OUT_NOTE, VALIDATION, RunReport, write_report
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
        raise ConfigError(
            "the page of a run at an address must be written to this machine; name a file", option="out"
        )
    folder = find_run(run)
    read_account(folder.path)  # refuses a folder without the records of a run
    if out is None:
        folder.require_own_files()
    splits, outputs, notes = None, None, []
    try:
        with downloads(allowed=allow_download):
            left_out = read_left_out(folder)
            splits = splits_of_run(folder) if left_out is None else {VALIDATION: left_out[0]}
        if left_out is not None:
            outputs = left_out[1]
            notes.append(LEFT_OUT_NOTE)
    except DataError as error:
        reason = "The run's data cannot be opened, so the page has no evaluation of its model"
        notes.append(f"{reason}: {error}")
        notice(f"{reason}: {error.problem}", advice=error.advice)
    with joined_processes(device) as processes:
        return write_report(
            folder,
            splits=splits,
            outputs=outputs,
            device=processes.device,
            workers=workers,
            out=out,
            notes=notes,
            scores_dense=True,
        )
