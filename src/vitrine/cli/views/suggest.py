"""How `vitrine suggest` shows what to label next."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, NextStep, Table, Wrote
from vitrine.jobs.suggest import SuggestResult
from vitrine.spelling import counted

MOST_SHOWN = 12


def lines(result: SuggestResult) -> Iterator[Line]:
    """Show the first pictures to label, with the model's guess."""
    skipped = f"; {result.num_errors:,} cannot be read" if result.num_errors else ""
    yield f"{counted(len(result.suggestions), 'picture')} to label of {result.num_pictures:,}{skipped}"
    yield Table(
        [
            (f"{100 * one.confidence:.1f} %", one.predicted, one.path)
            for one in result.suggestions[:MOST_SHOWN]
        ],
        right=(0,),
        indent=2,
    )
    if len(result.suggestions) > MOST_SHOWN:
        yield f"  and {len(result.suggestions) - MOST_SHOWN:,} more in suggestions.csv"
    yield from map(Wrote, result.wrote)
    yield NextStep("fill in the column label, add the pictures to the training images, and fine-tune again")
