"""How a folder of parts is shown, for every verb that writes one."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, Next, Wrote
from vitrine.jobs.parts_job import PartsResult
from vitrine.spelling import counted


def parts_lines(parts: PartsResult) -> Iterator[Line]:
    """Show what this process computed and skipped, how fast, and whether other parts are missing."""
    if parts.num_computed:
        yield f"{parts.rate:,.0f} pictures/s; the model waited for data for {parts.waiting:.0%} of the time"
    if parts.num_skipped:
        yield f"{counted(parts.num_skipped, 'picture')} skipped: finished by an earlier run"
    first, stop = parts.own_parts
    which = "no parts" if first == stop else f"parts {first} to {stop - 1}"
    note = counted(parts.num_parts, "part")
    yield Wrote(parts.folder, note if parts.manifest else f"{which} of {parts.num_parts}")
    if parts.manifest:
        yield Wrote(parts.manifest)
    else:
        yield Next("merge", (parts.folder,), note="when all processes are done")
