"""Several adapters over one backbone in memory: models that share all weights but adapters and heads.

`load` merges an adapter into a copy of its base. Here the base stays as it is: an adapted model has the base's own
parameters, and its layers add scale B A x. Both compute the same within rounding.
"""

import copy
import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrine.checkpoints.adapters import Adapter, is_adapter_folder, place_of, read_adapter, rules_by_name
from vitrine.checkpoints.loading import Loaded, load
from vitrine.checkpoints.locating import find
from vitrine.checkpoints.opening import open_weights
from vitrine.errors import CheckpointError, MissingCheckpointError
from vitrine.models import Model, ModelConfig
from vitrine.models.dense.model import DenseModel
from vitrine.models.lora import adaptable_layers, set_adapter
from vitrine.spelling import counted


class Backbones:
    """The models that were opened, by the files of their weights; adapters share them."""

    def __init__(self) -> None:
        self._opened: dict[Path | str, Loaded] = {}
        self._resized: dict[tuple[Path | str, tuple[int, int]], Loaded] = {}

    def open(self, source: str, *, is_fresh: bool = False) -> Loaded:
        """Open a model, or an adapter over the model that it was trained on.

        With `is_fresh` a model's files are read again. Adapters that are opened later then share the new weights.
        """
        if is_adapter_folder(source):
            return self._adapted(source)
        place = where(source)
        if is_fresh or place not in self._opened:
            self._opened[place] = load(source)
            self._resized = {key: one for key, one in self._resized.items() if key[0] != place}
        return self._opened[place]

    def _adapted(self, source: str) -> Loaded:
        adapter = read_adapter(source)
        try:
            place = where(adapter.base)
        except MissingCheckpointError:
            return load(source)  # reports how to correct it
        config = None if adapter.record is None else adapter.record.config
        base = self._opened.get(place) or load(adapter.base)
        if isinstance(base.model, DenseModel) or has_other_patches(config, base.model.config):
            return load(source)
        self._opened[place] = base
        if config is not None and config.image_size != base.model.config.image_size:
            key = place, config.image_size
            if key not in self._resized:
                self._resized[key] = resized(base, adapter.base, config.image_size)
            base = self._resized[key]
        return over(base, adapter)


def has_other_patches(config: ModelConfig | None, base: ModelConfig) -> bool:
    """Return whether an adapter was trained on another patch embedding than the base's."""
    return config is not None and getattr(config, "patch_size", None) != getattr(base, "patch_size", None)


def resized(base: Loaded, source: str, image_size: tuple[int, int]) -> Loaded:
    """Return the same model for another image size: it has positions of its own, and shares everything else."""
    other = load(source, image_size=image_size)
    shared = dict(base.model.named_parameters())
    for name, _ in list(other.model.named_parameters()):
        if not name.startswith("positions."):
            place, _, kind = name.rpartition(".")
            setattr(other.model.get_submodule(place), kind, shared[name])
    return other


def where(source: str) -> Path | str:
    """Return the file of the weights that a source names, or the name of a variant without weights."""
    place = find(source)
    return place if isinstance(place, str) else place.weights.resolve()


def over(base: Loaded, adapter: Adapter) -> Loaded:
    """Return the adapted model; all parameters but adapters and heads are the base's own."""
    places = rules_by_name(open_weights(adapter.base).weights)
    model = clone(base.model)
    layers = adaptable_layers(model)
    factors: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, one in adapter.factors.items():
        rule = place_of(places, f"{name}.weight", adapter)
        layer = rule.ours[0].removesuffix(".weight")
        if layer not in layers:
            raise CheckpointError(f"{adapter.folder} adapts {name}, which is not a dense layer of a block")
        b = torch.zeros(layers[layer].out_features, one.b.shape[1])
        rows = rule.view.apply(b)  # the part of a fused layer that the adapter belongs to
        if rows.shape != one.b.shape or one.a.shape[1] != layers[layer].in_features:
            raise CheckpointError(f"the adapter of {name} in {adapter.folder} does not fit {adapter.base}")
        rows.copy_(one.scale * one.b)
        factors.setdefault(layer, []).append((one.a, b))
    for layer, parts in factors.items():
        a, b = torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts], dim=1)
        set_adapter(layers[layer], a, b)
    # Weights first: a head of another size is replaced when its weight is.
    for name, tensor in sorted(adapter.whole.items(), key=lambda item: item[0].endswith("bias")):
        replace(model, place_of(places, name, adapter).ours[0], tensor.float())
    return described(base, adapter, model.eval())


def described(base: Loaded, adapter: Adapter, model: Model) -> Loaded:
    """Return the adapted model with its preprocessing and classes: the adapter's where it has a record."""
    config = model.config
    if model.head is not None and config.num_classes != model.head.out_features:
        config = model.config = dataclasses.replace(config, num_classes=model.head.out_features)
    record = dataclasses.replace(adapter.record or base.record, config=config, checksums={})
    if adapter.record is None and config.num_classes != base.record.config.num_classes:
        record = dataclasses.replace(record, classes=None)
    note = f"adapter of {counted(len(adapter.factors), 'layer')} over {adapter.base}, which stays as it is"
    return Loaded(
        model=model, preprocess=record.preprocess, classes=record.classes, record=record,
        notes=(*base.notes, note), folder=adapter.folder,
    )  # fmt: skip


def clone(model: Model) -> Model:
    """Copy the modules of a model, not its tensors."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def replace(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor of its own in the place of a shared one; a head may have another number of classes."""
    place, _, kind = name.rpartition(".")
    module = model.get_submodule(place) if getattr(model, place.partition(".")[0], None) is not None else None
    if module is None or (kind == "weight" and module.weight.shape != tensor.shape):
        module = nn.Linear(tensor.shape[-1], tensor.shape[0], device="meta")
        parent, _, child = place.rpartition(".")
        setattr(
            model.get_submodule(parent), child, module
        )  # of a model without a head, the attribute is None
    setattr(module, kind, nn.Parameter(tensor, requires_grad=False))
