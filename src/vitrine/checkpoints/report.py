"""The report of a conversion: the operation on each tensor, the largest difference between two models' outputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.checkpoints.layouts.rules import Rule
from vitrine.checkpoints.saving import Prepared
from vitrine.checkpoints.tensors import shown_shape
from vitrine.checkpoints.weights import ChangedWeights, MappedWeights, Weights, spec_of

# fp32 rounding over the depth of a ViT-B leaves 3e-6 on logits of order one between two implementations.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class TensorLine:
    """One tensor of the written file."""

    name: str
    shape: str
    sources: tuple[str, ...]
    operation: str
    """kept, renamed, transposed, split, merged, reshaped, (un)stacked, resampled, adapted, slot merged, new."""


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The largest difference between the source's output and that of another model."""

    against: str
    images: str
    largest: float | None
    scale: float | None
    """The largest absolute logit, beside which a difference is large or small."""
    reason: str = ""
    explained: str = ""
    """Why a difference is expected: the library computes with other numerics, which no file can change."""

    @property
    def agrees(self) -> bool | None:
        """Whether the difference is within rounding; None if nothing could be compared."""
        if self.largest is None or self.scale is None:
            return None
        return self.largest <= TOLERANCE * max(1.0, self.scale)


def largest_difference(
    against: str, images: str, expected: Tensor, actual: Tensor, *, explained: str = ""
) -> Parity:
    """Compare two sets of logits (B, K)."""
    if expected.shape != actual.shape:
        reason = f"outputs {tuple(actual.shape)} instead of {tuple(expected.shape)}"
        return Parity(against=against, images=images, largest=None, scale=None, reason=reason)
    largest = (expected.double() - actual.double()).abs().max().item()
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return Parity(against=against, images=images, largest=largest, scale=scale, explained=explained)


def describe_tensors(prepared: Prepared, source: Weights) -> tuple[TensorLine, ...]:
    """Describe the origin of every written tensor and the operation on it."""
    made = made_anew(prepared.weights)
    parts: dict[str, int] = {}
    for rule in prepared.rules:
        for name in rule.ours:
            parts[name] = parts.get(name, 0) + 1
    lines = []
    for rule in prepared.rules:
        sources = sources_of(rule, source, is_split=parts[rule.ours[0]] > 1)
        operation = made.get(rule.ours[0]) or how_mapped(rule, sources)
        if rule.is_joined and len(sources) > 1:
            operation = "merged"
        shape = shown_shape(spec_of(rule, prepared.weights.index).shape)
        names = tuple(one.theirs for one in sources)
        lines.append(TensorLine(name=rule.theirs, shape=shape, sources=names, operation=operation))
    return tuple(lines)


def sources_of(rule: Rule, source: Weights, *, is_split: bool) -> list[Rule]:
    """Return the source's rules that fill the tensor from which one written tensor is taken."""
    if not isinstance(source, MappedWeights):
        return []
    rules: dict[str, Rule] = {}
    for name in rule.ours:
        candidates = source.sources.get(name, ())
        for candidate, _ in candidates:
            # If both sides split the fused tensor, only the overlapping part is a source.
            both_split = is_split and len(candidates) > 1
            if not both_split or overlaps(rule, candidate, shape=source.index[name].shape):
                rules[candidate.theirs] = candidate
    return list(rules.values())


def overlaps(one: Rule, other: Rule, *, shape: tuple[int, ...]) -> bool:
    """Return whether two views share an element, without reading any."""
    marked = torch.zeros(shape, dtype=torch.bool)
    one.view.apply(marked).fill_(True)
    return bool(other.view.apply(marked).any())


def how_mapped(rule: Rule, sources: list[Rule]) -> str:
    """Name the operation on one tensor: the one that only one of the two layouts applies to ours."""
    if not sources:
        return "written"
    done = words(rule) ^ words(sources[0])
    if len(sources) > 1:
        done = (done - {"split"}) | {"stacked" if rule.is_stacked else "merged"}
    elif sources[0].is_stacked != rule.is_stacked:
        done.add("stacked" if rule.is_stacked else "unstacked")
    if not done:
        return "kept" if rule.theirs == sources[0].theirs else "renamed"
    return " and ".join(sorted(done))


def words(rule: Rule) -> set[str]:
    """Return a layout's operation on our tensor, apart from renaming."""
    return set(rule.view.operation.split(" and ")) - {"renamed"}


def made_anew(weights: Weights) -> dict[str, str]:
    """Return our names of all tensors that were computed, not read, with the operation."""
    reasons: dict[str, str] = {}
    while isinstance(weights, ChangedWeights):
        for name in weights.makers:
            reasons[name] = (
                f"{weights.operation} and {reasons[name]}" if name in reasons else weights.operation
            )
        weights = weights.source
    return reasons
