"""How `vitrine models` shows its table."""

from collections.abc import Iterator, Sequence

from vitrine.cli.command_line import option
from vitrine.cli.lines import Line, Next, Table
from vitrine.jobs.models import ModelCost


def lines(models: Sequence[ModelCost]) -> Iterator[Line]:
    """Show one row per variant."""
    rows = [
        (
            model.name,
            str(model.image_size),
            f"{model.params:,}",
            "-" if model.tokens is None else str(model.tokens),
            f"{model.gmacs:.2f}",
            f"{model.exaflops:,.1f}",
        )
        for model in models
    ]
    header = ("model", "pixels", "parameters", "tokens", "GMACs", "exaFLOPs")
    yield Table(rows, header=header, right=range(1, len(header)))
    yield ""
    yield (
        "GMACs: one image, forward. exaFLOPs: training, forward and backward, "
        f"with {option('images')} images for {option('epochs')} epochs."
    )
    yield "Other patch sizes work too (ViT-S/8)."
    yield Next("plan", ("ViT-B/16",), {"batch_size": 4096, "devices": 8, "device_memory": 80})
