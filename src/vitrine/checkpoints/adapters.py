"""LoRA adapters as files in PEFT's format: `adapter_model.safetensors` and `adapter_config.json`, a few MB.

PEFT loads what `write_adapter` writes onto Vitrine's model (`PeftModel.from_pretrained(model, folder)`), and `load`
reads what PEFT has saved, for Vitrine's model or for that of the library whose layout the base model has. Adapters
are merged as they are read: W + scale B A.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrine.checkpoints.layouts.huggingface import HuggingFaceLayout
from vitrine.checkpoints.layouts.rules import Rule, rule
from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile
from vitrine.checkpoints.record import KEY, Record
from vitrine.checkpoints.sidecars import parsed_record, read_json
from vitrine.checkpoints.tensors import Spec, shown_shape
from vitrine.checkpoints.weights import ChangedWeights, MappedWeights, Weights
from vitrine.checkpoints.writing import write_json, write_safetensors
from vitrine.errors import CheckpointError
from vitrine.models import Model
from vitrine.models.lora import adapters_of
from vitrine.spelling import nearest

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
# Heads that are trained and saved whole beside the adapters.
HEADS = ("head", "distillation_head")
UNREAD = {"use_dora": "DoRA", "lora_bias": "a bias of adapters", "fan_in_fan_out": "transposed layers"}


def is_adapter_folder(source: str | Path) -> bool:
    """Whether a source of weights is a folder that PEFT or Vitrine saved an adapter to."""
    return (Path(source).expanduser() / CONFIG).is_file()


def write_adapter(model: Model, folder: Path, *, base: str, record: Record) -> None:
    """Write the adapters of a model and its head; `base` names the weights that they were trained on."""
    layers = adapters_of(model)
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        tensors[f"{PREFIX}{name}{LORA_A}"] = layer.lora_a
        tensors[f"{PREFIX}{name}{LORA_B}"] = layer.lora_b
    heads = [name for name in HEADS if getattr(model, name, None) is not None]
    for name in heads:
        for kind, tensor in getattr(model, name).named_parameters():
            tensors[f"{PREFIX}{name}.{kind}"] = tensor
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    first = next(iter(layers.values()))
    rank = max(layer.lora_a.shape[0] for layer in layers.values())
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(
        folder / WEIGHTS,
        iter(tensors.items()),
        specs={name: Spec(tuple(one.shape), one.dtype) for name, one in tensors.items()},
        metadata={KEY: json.dumps(record.to_json()), "format": "pt"},
    )
    lower_ranks = {name: layer for name, layer in layers.items() if layer.lora_a.shape[0] != rank}
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": first.lora_scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        # The layers of attention pooling have the same names as those of blocks.
        "exclude_modules": r"attention_pooling\..*" if hasattr(model, "attention_pooling") else None,
        "rank_pattern": {name: layer.lora_a.shape[0] for name, layer in lower_ranks.items()},
        "alpha_pattern": {
            name: layer.lora_scale * layer.lora_a.shape[0] for name, layer in lower_ranks.items()
        },
        "modules_to_save": heads or None,
        "task_type": None,
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
    }
    write_json(folder / CONFIG, settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Factors:
    """The two thin matrices of a layer."""

    a: Tensor
    """(R, in)"""
    b: Tensor
    """(out, R)"""
    scale: float

    @property
    def update(self) -> Tensor:
        """The matrix that is added to the layer's weight: (out, in)."""
        return self.scale * (self.b @ self.a)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter that was read."""

    folder: Path
    base: str
    """The weights that it was trained on: a name, a path or a hub id."""
    factors: Mapping[str, Factors]
    """By the layer's name."""
    whole: Mapping[str, Tensor]
    """Tensors that replace those of the base, by name."""
    record: Record | None
    """The record of the adapted model, if Vitrine wrote the adapter."""


def read_adapter(folder: str | Path) -> Adapter:
    """Read an adapter; refuse kinds that cannot be merged as LoRA."""
    folder = Path(folder).expanduser()
    settings = read_json(folder / CONFIG)
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{folder} holds an adapter of the kind {kind!r}; only LORA can be read")
    for name, what in UNREAD.items():
        if settings.get(name):
            raise CheckpointError(f"{folder} holds an adapter with {what} ({name}), which cannot be read")
    file = SafetensorsFile(folder / WEIGHTS)
    factors, whole = {}, {}
    for name in file.index:
        inner = name.removeprefix(PREFIX)
        if inner.endswith(LORA_A):
            layer = inner.removesuffix(LORA_A)
            a, b = file.read(name).float(), file.read(f"{PREFIX}{layer}{LORA_B}").float()
            if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
                raise CheckpointError(
                    f"{folder} holds adapters of {layer} that do not fit each other: {shown_shape(tuple(a.shape))} "
                    f"and {shown_shape(tuple(b.shape))}"
                )
            factors[layer] = Factors(a=a, b=b, scale=scale_of(settings, layer, rank=a.shape[0]))
        elif not inner.endswith(LORA_B):
            whole[inner] = file.read(name)
    said = file.metadata.get(KEY)
    record = None if said is None else Record.from_json(parsed_record(said), path=folder / WEIGHTS)
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{folder / CONFIG} does not name the base model; set base_model_name_or_path")
    return Adapter(folder=folder, base=base, factors=factors, whole=whole, record=record)


def scale_of(settings: Mapping[str, Any], layer: str, *, rank: int) -> float:
    """Return the scale of a layer's update B A."""
    patterns = settings.get("alpha_pattern") or {}
    own = next((value for pattern, value in patterns.items() if layer.endswith(pattern)), None)
    alpha = float(settings.get("lora_alpha", rank) if own is None else own)
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def adapted(weights: Weights, adapter: Adapter) -> Weights:
    """Return weights with an adapter merged into them, and its heads in place of theirs."""
    places = rules_by_name(weights)
    config = weights.config
    heads = {
        name: tensor
        for name, tensor in adapter.whole.items()
        if ours_of(places, name, adapter) == "head.weight"
    }
    if heads:
        config = dataclasses.replace(config, num_classes=next(iter(heads.values())).shape[0])
    updates: dict[str, list[tuple[Rule, Tensor]]] = {}
    for layer, factors in adapter.factors.items():
        rule = place_of(places, f"{layer}.weight", adapter)
        updates.setdefault(rule.ours[0], []).append((rule, factors.update))
    makers: dict[str, tuple[Spec, Callable[[], Tensor]]] = {
        name: (weights.index[name], functools.partial(updated, weights, name, parts))
        for name, parts in updates.items()
    }
    for name, tensor in adapter.whole.items():
        ours = ours_of(places, name, adapter)
        makers[ours] = (Spec(tuple(tensor.shape), tensor.dtype), tensor.clone)
    return ChangedWeights(weights, config, makers, "adapted")


def updated(weights: Weights, name: str, parts: list[tuple[Rule, Tensor]]) -> Tensor:
    """Read one of our tensors and add the updates of its parts, in fp32."""
    tensor = weights.read(name).float()
    for part, update in parts:
        view = part.view.apply(tensor)
        if view.shape != update.shape:
            raise CheckpointError(
                f"the adapter of {part.theirs} has the shape {shown_shape(tuple(update.shape))}, its layer "
                f"{shown_shape(tuple(view.shape))}"
            )
        view.add_(update)
    return tensor


def rules_by_name(weights: Weights) -> dict[str, Rule]:
    """Return where tensors belong by every name that an adapter may have for them: ours, and the library's."""
    config = dataclasses.replace(weights.config, num_classes=weights.config.num_classes or 1)
    places = {name: rule(name, name) for name in weights.index}
    for head in HEADS:
        places |= {f"{head}.{kind}": rule(f"{head}.{kind}", f"{head}.{kind}") for kind in ("weight", "bias")}
    source = weights
    while isinstance(source, ChangedWeights):
        source = source.source
    if isinstance(source, MappedWeights):
        layouts = [source.layout]
        if isinstance(
            source.layout, HuggingFaceLayout
        ):  # adapters have the names of modules, not those of files
            layouts.append(dataclasses.replace(source.layout, is_new=not source.layout.is_new))
        for layout in layouts:
            places |= {one.theirs: one for one in layout.rules(config) if not one.is_stacked}
    return places


def place_of(places: Mapping[str, Rule], name: str, adapter: Adapter) -> Rule:
    """Return where a tensor of an adapter belongs; refuse an unknown name with the nearest one."""
    if name not in places:
        raise CheckpointError(
            f"{adapter.folder} adapts {name}, which the base model {adapter.base} does not have; nearest: "
            f"{nearest(name, places)[0]}",
            suggestions=nearest(name, places),
        )
    return places[name]


def ours_of(places: Mapping[str, Rule], name: str, adapter: Adapter) -> str:
    """Return our name of a tensor that an adapter replaces."""
    return place_of(places, name, adapter).ours[0]
