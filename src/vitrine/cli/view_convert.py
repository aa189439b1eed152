"""How `vitrine convert` shows its parity report."""

import re
import shlex

from vitrine.checkpoints.converting import Conversion
from vitrine.checkpoints.report import TensorLine
from vitrine.cli.typed import as_typed


def show(result: Conversion) -> None:
    """Print what happened to each tensor (alike layers on one line), then what agrees."""
    print(f"{result.source} ({result.source_layout}) -> {result.destination} ({result.target_layout})\n")
    for line in rows(result.tensors):
        print(line)
    for name, reason in result.left_out.items():
        print(f"Left out: {name} ({reason})")
    for note in result.notes:
        print(f"Note: {note}")
    print(f"\nRead back: {result.num_identical} of {len(result.tensors)} tensors equal bit for bit")
    for check in result.parity:
        if check.largest is None:
            print(f"{check.against}: not compared, {check.reason}")
            continue
        verdict = (
            "agrees" if check.agrees else f"differs: {check.explained}" if check.explained else "DIFFERS"
        )
        print(
            f"{check.against}, {check.images}: largest logit difference {check.largest:.2e} "
            f"(largest logit {check.scale:.3g}): {verdict}"
        )
    print(f"\nWrote {result.destination}")
    verb, data = ("evaluate", "./test") if result.has_head else ("fewshot", "./photos")
    print(as_typed(f"Next: vitrine {verb} {shlex.quote(str(result.destination))} {data}"))


def rows(tensors: tuple[TensorLine, ...]) -> list[str]:
    """Write a line a tensor; those that differ only in their layer's number share one."""
    groups: dict[tuple[str, ...], list[TensorLine]] = {}
    for line in tensors:
        sources = tuple(pattern(name) for name in line.sources)
        groups.setdefault((pattern(line.name), line.shape, line.how, *sources), []).append(line)
    shown = []
    for key, lines in groups.items():
        first, count = lines[0], f" (x{len(lines)})" if len(lines) > 1 else ""
        name, sources = (first.name, first.sources) if len(lines) == 1 else (key[0], key[3:])
        origin = f" <- {', '.join(dict.fromkeys(sources))}" if sources else ""
        shown.append(f"{name} {first.shape}{count} {first.how}{origin}")
    return shown


def pattern(name: str) -> str:
    """Hide the number of the layer, or of the stage and its unit."""
    return re.sub(r"(encoderblock_|encoder_layer_|layers?\.|blocks\.|stages\.|block|unit)\d+", r"\1#", name)
