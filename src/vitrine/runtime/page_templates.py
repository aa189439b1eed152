"""How pages are filled in: the same rules for every room's templates, so that all reports look alike."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.errors import MissingExtraError
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice

if TYPE_CHECKING:
    import jinja2


def page_templates(*rooms: str, purpose: str) -> "jinja2.Environment":
    """Return the templates of `rooms` (`vitrine.data`...), the first that has one of a name first; all is escaped."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("jinja2", extra="report", purpose=purpose) from error
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(room) for room in rooms]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment


def write_page(path: Path, render: Callable[[], str], *, remains: str = "") -> Path | None:
    """Write what `render` returns; where it needs an extra that is missing, say so and what `remains`."""
    try:
        page = render()
    except MissingExtraError as error:
        notice(f"No {path.name}{remains and f', only {remains}'}: {error}")
        return None
    with write_atomically(path, mode="w") as file:
        file.write(page)
    return path
