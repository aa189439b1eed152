"""How `vitrine models` shows its table."""

from rich.console import Console
from rich.table import Table

from vitrine.cli.typed import as_typed
from vitrine.commands.models import ModelCost


def show(lines: list[ModelCost]) -> None:
    """Print one row a variant."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for name in ("pixels", "parameters", "tokens", "GMACs", "exaFLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        tokens = "-" if line.tokens is None else str(line.tokens)
        table.add_row(
            line.name,
            str(line.image_size),
            f"{line.params:,}",
            tokens,
            f"{line.gmacs:.2f}",
            f"{line.exaflops:,.1f}",
        )
    Console(highlight=False).print(table)
    print("\nGMACs: one image forward. exaFLOPs: training, forward and backward, on --images for --epochs.")
    print("Any patch size can be named too (ViT-S/8).")
    print(as_typed("Next: vitrine plan ViT-B/16 --batch-size 4096 --devices 8 --device-memory 80"))
