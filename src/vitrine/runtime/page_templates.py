"""How pages are filled in: the same rules for every room's templates, so that all reports look alike."""

from typing import TYPE_CHECKING

from vitrine.errors import MissingExtraError

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
