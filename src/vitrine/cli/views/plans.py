"""How plans are shown, before the work begins."""

from collections.abc import Iterator

from vitrine.cli.lines import Line
from vitrine.jobs.model_argument import PicturesPlan
from vitrine.spelling import counted


def pictures(plan: PicturesPlan) -> Iterator[Line]:
    """Show which model reads how many pictures."""
    size = "x".join(map(str, plan.size))
    yield f"Plan: {plan.model} at {size} px on {plan.device}, {counted(plan.num_pictures, 'picture')}"
