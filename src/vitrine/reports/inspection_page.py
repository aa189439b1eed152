"""The page of `vitrine inspect`: all figures of one inspection."""

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from vitrine.inspection.album import Plate
from vitrine.reports.pages import render

LEAST_WIDE = 3


def render_inspection(drawn: Sequence[tuple[Plate, str]], **values: Any) -> str:
    """Render the page of all figures, each with its SVG text."""
    # The drawings are ours and matplotlib escapes the names in them; everything else is escaped by the template.
    plates = [
        {
            "name": plate.name,
            "heading": plate.heading,
            "words": plate.words,
            "drawing": Markup(svg),
            "is_wide": is_wide(svg),
        }
        for plate, svg in drawn
    ]
    return render("inspect.html.j2", plates=plates, **values)


def is_wide(svg: str) -> bool:
    """Whether a drawing is a strip, unreadable if it were shrunk to the width of a phone."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return box is not None and float(box[1]) >= LEAST_WIDE * float(box[2])
