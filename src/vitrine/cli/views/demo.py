"""How `vitrine demo` shows its steps and its result."""

from collections.abc import Iterator

from vitrine.cli.command_line import command
from vitrine.cli.lines import Line, Next, NextStep, Wrote
from vitrine.jobs.demo import DemoResult, DemoStep


def lines(result: DemoResult) -> Iterator[Line]:
    """Show the faults that were found, the accuracy, the pages, and how to do the same with other photos."""
    low, high = (100 * end for end in result.interval)
    yield (
        f"{result.num_pictures} pictures checked: {result.num_faults_found} of {result.num_faults} planted faults "
        "found"
    )
    yield (
        f"The bundled model, fine-tuned on these pictures, classifies {100 * result.accuracy:.1f} % of the held-out "
        f"ones correctly (95 % interval {low:.1f} to {high:.1f}; chance: {100 * result.chance:.0f} %), at "
        f"{result.images_per_second:,.0f} images/s"
    )
    yield from (Wrote(path) for path in result.pages)
    yield NextStep("open these pages, then do the same with your own photos, one folder per class")
    yield Next("check", ("./photos",))
    yield Next("finetune", ("./photos",))
    yield Next("predict", ("runs/latest", "new.jpg"))


def step_lines(step: DemoStep) -> Iterator[Line]:
    """Show the command that does the next step."""
    options = {name: value for name, value in step.options.items() if value is not None}
    yield ""
    yield f"$ {command(step.verb, *step.arguments, **options)}"
