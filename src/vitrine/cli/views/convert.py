"""How `vitrine convert` shows the change of each tensor, and its proof."""

import re
from collections.abc import Iterator

from vitrine.checkpoints.converting import Conversion
from vitrine.checkpoints.report import Parity, TensorLine
from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, Next, Wrote


def lines(result: Conversion) -> Iterator[Line]:
    """Show what happened to each tensor (equal layers on one line), then what agrees."""
    yield f"{result.source} ({result.source_layout}) -> {result.destination} ({result.target_layout})"
    yield ""
    yield from tensor_lines(result.tensors)
    for name, reason in result.left_out.items():
        yield f"Skipped: {name} ({reason})"
    for note in result.notes:
        yield f"Note: {note}"
    yield ""
    yield f"Read back: {result.num_identical} of {len(result.tensors)} tensors are bit-identical"
    yield from map(parity_line, result.parity)
    yield ""
    yield Wrote(result.destination)
    verb, data = ("evaluate", "./test") if result.has_head else ("fewshot", "./photos")
    yield Next(verb, (result.destination, data))


def parity_line(check: Parity) -> str:
    """Show how far the logits of two implementations are apart."""
    if check.largest is None:
        return f"{check.against}: not compared, {check.reason}"
    verdict = "agrees" if check.agrees else f"differs: {check.explained}" if check.explained else "DIFFERS"
    return (
        f"{check.against}, {check.images}: largest logit difference {check.largest:.2e} "
        f"(largest logit {check.scale:.3g}): {verdict}"
    )


def tensor_lines(tensors: tuple[TensorLine, ...]) -> Iterator[str]:
    """Write one line per tensor; tensors that differ only in the number of their layer share one."""
    groups: dict[tuple[str, ...], list[TensorLine]] = {}
    for line in tensors:
        sources = tuple(without_layer(name) for name in line.sources)
        groups.setdefault((without_layer(line.name), line.shape, line.operation, *sources), []).append(line)
    for key, members in groups.items():
        first, count = members[0], f" (x{len(members)})" if len(members) > 1 else ""
        name, sources = (first.name, first.sources) if len(members) == 1 else (key[0], key[3:])
        origin = f" <- {', '.join(dict.fromkeys(sources))}" if sources else ""
        yield glued(f"{name} {first.shape}{count}") + f" {first.operation}{origin}"


def without_layer(name: str) -> str:
    """Replace the number of the layer, or of the stage and its unit, in a tensor's name."""
    return re.sub(r"(encoderblock_|encoder_layer_|layers?\.|blocks\.|stages\.|block|unit)\d+", r"\1#", name)
