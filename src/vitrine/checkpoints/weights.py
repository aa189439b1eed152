"""A model's tensors under our own names, read one at a time from any source."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vitrine.checkpoints.layouts.layout import Layout
from vitrine.checkpoints.layouts.native import empty_model, empty_state
from vitrine.checkpoints.layouts.rules import Rule
from vitrine.checkpoints.tensors import Spec, TensorFile, shown_shape
from vitrine.errors import CheckpointError
from vitrine.models import Model, ModelConfig
from vitrine.models.dense.model import DenseModel
from vitrine.models.positions import SinCos2D
from vitrine.models.rotary import RotaryPositions
from vitrine.spelling import nearest


class Weights(Protocol):
    """A config and every tensor that it requires."""

    @property
    def config(self) -> ModelConfig:
        """Shape and numerics of the model."""

    @property
    def index(self) -> Mapping[str, Spec]:
        """Every tensor by our name."""

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor into newly allocated memory."""


@dataclass(frozen=True)
class MappedWeights:
    """The tensors of a file in some layout, checked for shape, NaN and infinity."""

    file: TensorFile
    layout: Layout
    config: ModelConfig
    index: Mapping[str, Spec]
    sources: Mapping[str, tuple[tuple[Rule, int | None], ...]]
    """For each of ours, the rules that fill it and the row of theirs, where theirs stacks layers."""
    left_out: Mapping[str, str]
    """Tensors of the file that the model does not use, and why."""

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor; refuse NaN and infinity."""
        spec = self.index[name]
        views = [rule.view.apply(torch.empty(spec.shape, device="meta")) for rule, _ in self.sources[name]]
        is_whole = sum(view.numel() for view in views) == math.prod(spec.shape)
        # A part that no tensor fills, such as the bias of keys where a file has none, is zero.
        out = (torch.empty if is_whole else torch.zeros)(spec.shape, dtype=dtype or spec.dtype)
        for rule, row in self.sources[name]:
            if rule.is_joined:
                before = rule.ours[: rule.ours.index(name)]
                start = sum(self.index[other].shape[rule.axis] for other in before)
                out.copy_(self.file.read(rule.theirs).narrow(rule.axis, start, spec.shape[rule.axis]))
            else:
                into = rule.view.apply(out)
                if rule.view.is_flat:
                    into.copy_(self.file.read(rule.theirs, row=row).view(into.shape))
                else:
                    self.file.read_into(rule.theirs, into, row=row)
        if not is_finite(out):
            bad = next(
                rule for rule, _ in self.sources[name] if not torch.isfinite(rule.view.apply(out)).all()
            )
            not_finite = out[~torch.isfinite(out)]
            raise CheckpointError(
                f"{self.file.path}: tensor {bad.theirs} contains NaN or infinity in {len(not_finite):,} of "
                f"{out.numel():,} values; use an earlier checkpoint"
            )
        return out


@dataclass(frozen=True)
class ModelWeights:
    """The tensors of a model in memory."""

    model: Model

    @property
    def config(self) -> ModelConfig:
        """Shape and numerics of the model."""
        return self.model.config

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by our name; collected once, because walking through all modules takes longer than a copy."""
        return self.model.state_dict()

    @cached_property
    def index(self) -> Mapping[str, Spec]:
        """Shape and type of every tensor."""
        return {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """Copy one tensor to the CPU."""
        tensor = self.tensors[name].detach()
        return tensor.to(device="cpu", dtype=dtype or tensor.dtype, copy=True)


@dataclass(frozen=True)
class ChangedWeights:
    """Other weights with some tensors replaced, for a config that differs."""

    source: Weights
    config: ModelConfig
    makers: Mapping[str, tuple[Spec, Callable[[], Tensor]]]
    """The tensors that are computed, with their shapes; the others are read as they are."""
    operation: str = "replaced"
    """The change in one word, for reports."""

    @cached_property
    def index(self) -> Mapping[str, Spec]:
        """Every tensor that the changed config requires."""
        return {
            name: self.makers[name][0] if name in self.makers else self.source.index[name]
            for name in empty_state(self.config)
        }

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """Read or compute one tensor."""
        if name not in self.makers:
            return self.source.read(name, dtype=dtype)
        made = self.makers[name][1]()
        return made if dtype is None else made.to(dtype)


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor contains no NaN or infinity.

    A sum of squares is not finite if one of its terms is not, and is much cheaper than a check of each value. numpy's
    runs on this thread: torch's would start one thread per core and wait for them longer than the sum takes.
    """
    if tensor.dtype in (torch.float32, torch.float64):
        flat = tensor.reshape(-1).numpy()
        if math.isfinite(np.dot(flat, flat)):
            return True
    return bool(torch.isfinite(tensor).all())


def map_weights(file: TensorFile, layout: Layout, config: ModelConfig) -> MappedWeights:
    """Match the file's tensors with the model's; refuse a missing or unexpected one, or another shape."""
    rules = layout.rules(config)
    ours = empty_state(config)
    sources: dict[str, list[tuple[Rule, int | None]]] = {name: [] for name in ours}
    for rule in rules:
        require_shape(file, rule, ours)
        for row, name in enumerate(rule.ours):
            sources[name].append((rule, row if rule.is_stacked else None))
    known, left_out = {rule.theirs for rule in rules}, {}
    for name in file.index:
        if name not in known:
            left_out[name] = layout.left_out(name) or refuse_extra(file, name, known)
    if missing := next((name for name, rules_of in sources.items() if not rules_of), None):
        raise CheckpointError(f"{file.path} has no tensor for {missing}, which its config asks for")
    index = {
        name: Spec(tuple(ours[name].shape), file.index[parts[0][0].theirs].dtype)
        for name, parts in sources.items()
    }
    return MappedWeights(
        file, layout, config, index, {name: tuple(parts) for name, parts in sources.items()}, left_out
    )


def require_shape(file: TensorFile, rule: Rule, ours: Mapping[str, Tensor]) -> None:
    """Refuse a tensor that is missing or does not have the model's shape."""
    expected = rule.view.shape_in_file(tuple(ours[rule.ours[0]].shape))
    if rule.is_stacked:
        expected = (len(rule.ours), *expected)
    if rule.is_joined:
        expected = joined_shape(rule, {name: tuple(ours[name].shape) for name in rule.ours})
    spec = file.index.get(rule.theirs)
    if spec is None:
        raise CheckpointError(
            f"{file.path} does not contain the tensor {rule.theirs}, expected with shape {shown_shape(expected)}"
        )
    if spec.shape != expected:
        raise CheckpointError(
            f"{file.path} does not fit: its tensor {rule.theirs} has shape {shown_shape(spec.shape)}, "
            f"expected {shown_shape(expected)}"
        )


def joined_shape(rule: Rule, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of a tensor that joins several of ours."""
    shape = list(shapes[rule.ours[0]])
    shape[rule.axis] = sum(one[rule.axis] for one in shapes.values())
    return tuple(shape)


def refuse_extra(file: TensorFile, name: str, known: set[str]) -> str:
    """Refuse a tensor that is not part of the model."""
    raise CheckpointError(
        f"{file.path} contains an unexpected tensor: {name} with shape {shown_shape(file.index[name].shape)} "
        f"belongs to no part of this model; nearest known: {nearest(name, known)[0]}"
    )


def fill_model(weights: Weights, *, dtype: torch.dtype | None = torch.float32) -> Model:
    """Build a model on the meta device and assign its tensors one by one: the peak memory is that of the weights."""
    model = empty_model(weights.config)
    # Assigning keeps each tensor in the memory it was read into; nothing is copied twice.
    tensors = {name: weights.read(name, dtype=dtype) for name in weights.index}
    model.load_state_dict(tensors, strict=True, assign=True)
    restore_buffers(model)
    return model.eval()


def restore_buffers(model: Model) -> None:
    """Recompute fixed position tables and rotations: no file has them, and a model on the meta device has none."""
    vit = model.vit if isinstance(model, DenseModel) else model
    rotary = getattr(vit, "rotary", None)
    if isinstance(rotary, RotaryPositions):
        rotary.fill()
    positions = getattr(vit, "positions", None)
    if isinstance(positions, nn.ModuleList):
        for i, table in enumerate(positions):
            if isinstance(table, SinCos2D):
                width = 4 * table.get_buffer("frequency").numel()  # sine and cosine of row and column
                positions[i] = SinCos2D(width=width, num_slots=table.num_slots)


def in_order(rules: list[Rule]) -> list[Rule]:
    """Sort the parts of one fused tensor next to each other, so that it is read once."""
    first = {name: i for i, name in reversed(list(enumerate(rule.ours[0] for rule in rules)))}
    return sorted(rules, key=lambda rule: first[rule.ours[0]])


def spec_of(rule: Rule, index: Mapping[str, Spec]) -> Spec:
    """Return shape and type of a tensor in the target's file."""
    ours = index[rule.ours[0]]
    shape = rule.view.shape_in_file(ours.shape)
    if rule.is_joined:
        shape = joined_shape(rule, {name: index[name].shape for name in rule.ours})
    return Spec((len(rule.ours), *shape) if rule.is_stacked else shape, ours.dtype)


def as_written(rules: list[Rule], weights: Weights) -> Iterator[tuple[Rule, Tensor]]:
    """Yield every tensor of a target's file in the order of its rules, one in memory at a time."""
    last: tuple[str, Tensor] = ("", torch.empty(0))
    for rule in rules:
        if rule.is_stacked:
            spec = spec_of(rule, weights.index)
            stack = torch.empty(spec.shape, dtype=spec.dtype)
            for row, name in enumerate(rule.ours):
                stack[row] = rule.view.written(weights.read(name))
            yield rule, stack
            continue
        if rule.is_joined:
            yield rule, torch.cat([weights.read(name) for name in rule.ours], dim=rule.axis)
            continue
        if last[0] != rule.ours[0]:
            last = ("", last[1].new_empty(0))  # free the old tensor before the new one is read
            last = (rule.ours[0], weights.read(rule.ours[0]))
        yield rule, rule.view.written(last[1])
