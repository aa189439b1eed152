"""`vitrine report`: everything about a run on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path, as_place

if TYPE_CHECKING:
    from vitrine.runs.run_report import RunReport


@documented
def report(
    run: Annotated[Path | str, Doc("Run folder or its address; runs/latest is the newest one")] = Path(
        "runs/latest"
    ),
    *,
    out: Annotated[Path | str | None, Doc("File to write [default: report.html in the run folder]")] = None,
    device: options.Device = "auto",
    workers: options.Readers = 2,
    allow_download: Annotated[
        bool, Doc("Download data that the run names and that is not in the cache")
    ] = False,
) -> "RunReport":
    """Write the report of a run: curves, result, mistakes with attention maps, calibration, data, cost."""
    from vitrine.jobs.report import report_run

    return report_run(
        as_place(run), out=as_path(out), device=device, workers=workers, allow_download=allow_download
    )
