"""The base of every report: one set of templates, one look, and how a page is written.

Each page is a single HTML file with its pictures and charts inside. It follows the reader's light or dark theme, fits
a phone, and loads nothing from elsewhere.
"""

from pathlib import Path
from typing import Any

import jinja2

from vitrine.runtime.files import write_atomically
from vitrine.version import __version__


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vitrine.reports"),
        autoescape=True,  # file and class names come from outside
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value: "-" if value is None else f"{100 * value:.1f}"
    return environment


_TEMPLATES = _environment()


def render(template: str, **values: Any) -> str:
    """Fill in a template of this room; a value that the template needs and does not get is an error."""
    return _TEMPLATES.get_template(template).render(version=__version__, **values)


def write_page(path: Path, text: str) -> Path:
    """Write a page in one step, so that a reader never opens half of it."""
    with write_atomically(path, mode="w") as file:
        file.write(text)
    return path
