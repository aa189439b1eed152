"""The page of an evaluation on ObjectNet: the headline beside the paper's figures, and every object, worst first."""

from collections.abc import Mapping
from typing import Any

from vitrine.evaluation.objectnet import ObjectNetFigures
from vitrine.reports.pages import render
from vitrine.spelling import printable

MOST_UNREADABLE = 100


def render_objectnet(
    figures: ObjectNetFigures,
    *,
    model: str,
    data: str,
    num_skipped: int,
    num_all_objects: int,
    published: Mapping[str, Mapping[str, float]],
    unreadable: Mapping[str, str],
) -> str:
    """Render the page; `published` are the paper's figures by model, in percent."""
    return render(
        "objectnet.html.j2",
        model=printable(model),
        data=data,
        figures=figures,
        num_skipped=num_skipped,
        num_all_objects=num_all_objects,
        published=published,
        objects=rows_by_accuracy(figures),
        num_unreadable=len(unreadable),
        unreadable=[
            {"path": path, "why": why.removeprefix(path).strip()}
            for path, why in list(unreadable.items())[:MOST_UNREADABLE]
        ],
    )


def rows_by_accuracy(figures: ObjectNetFigures) -> list[dict[str, Any]]:
    """Return a row per object, lowest top-1 accuracy first."""
    ranked = sorted(figures.per_object, key=lambda one: (one.top1.value, one.top5.value, one.name))
    return [
        {
            "name": printable(one.name),
            "classes": "; ".join(printable(name.partition(",")[0]) for name in one.imagenet_classes),
            "num_images": one.num_images,
            "top1": one.top1,
            "top5": one.top5,
        }
        for one in ranked
    ]
