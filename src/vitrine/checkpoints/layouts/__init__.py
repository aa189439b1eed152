"""The known layouts of weights, distinguished by names and shapes: one file per layout, one line to register it.

A layout from outside the package needs no more than

    register_layout("mine", recognise=recognise, for_model=for_model)

`recognise` returns the layout of the tensors it knows, `for_model` the layout in which to write a model.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitrine.checkpoints.layouts import (
    axial_deeplab,
    beit,
    bit_npz,
    clip,
    deit3,
    dinov3,
    eva,
    eva_official,
    huggingface,
    masks,
    native,
    official,
    pyramids,
    siglip,
    t2t,
    timm,
    timm_bit,
    timm_naflex,
    tnt,
    torchvision,
    yolos,
)
from vitrine.checkpoints.layouts.bit_npz import BiTNpzLayout
from vitrine.checkpoints.layouts.deit3 import DeiT3Layout
from vitrine.checkpoints.layouts.layout import Configured, Hints, Layout
from vitrine.checkpoints.layouts.native import NativeLayout, empty_state
from vitrine.checkpoints.layouts.official import Generation
from vitrine.checkpoints.layouts.prefixed import PrefixedFile, prefixes_in
from vitrine.checkpoints.layouts.t2t import T2TLayout
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.checkpoints.layouts.timm_bit import TimmBiTLayout
from vitrine.checkpoints.layouts.timm_naflex import TimmNaFlexLayout
from vitrine.checkpoints.layouts.tnt import TNTLayout
from vitrine.checkpoints.layouts.torchvision import TorchvisionLayout
from vitrine.checkpoints.tensors import Index, TensorFile
from vitrine.errors import CheckpointError, ConfigError
from vitrine.models import BiTConfig, ModelConfig, TNTConfig, ViTConfig
from vitrine.models.pyramid_config import PyramidConfig
from vitrine.models.stem_configs import TokensToTokenConfig
from vitrine.spelling import nearest

Target = str
"""Name of a layout to write: npz, official, hf, timm, naflex, torchvision, dinov2, dinov3, openclip, deit3, vitrine,
or any registered one."""
Recogniser = Callable[[Index], Layout | None]
Writer = Callable[[ModelConfig, Generation], Layout]

__all__ = [
    "Configured",
    "Generation",
    "Hints",
    "Layout",
    "Target",
    "detect",
    "layout_for",
    "register_layout",
]


@dataclass(frozen=True, kw_only=True)
class Registered:
    """One name under which weights can be recognised, written, or both."""

    recognise: Recogniser | None = None
    for_model: Writer | None = None


REGISTRY: dict[str, Registered] = {}


def register_layout(
    name: str, *, recognise: Recogniser | None = None, for_model: Writer | None = None
) -> None:
    """Register a layout; earlier layouts are tried first."""
    if name in REGISTRY:
        raise ConfigError(f"a layout named {name!r} is registered already")
    REGISTRY[name] = Registered(recognise=recognise, for_model=for_model)


def detect(file: TensorFile, *, config: ModelConfig | None = None) -> tuple[TensorFile, Layout]:
    """Recognise the layout of a file by its names; return the file too, without a prefix before all names.

    `config` is that of the record beside the file, if there is one; models of registered families need it.
    """
    layout = recognised(file.index)
    if layout is not None:
        return file, layout
    if config is not None and set(empty_state(config)) == set(file.index):
        return file, NativeLayout()
    inner = [
        (prefix, layout)
        for prefix in prefixes_in(file.index)
        if (layout := recognised(PrefixedFile(file, prefix).index)) is not None
    ]
    # Two recognised prefixes, one inside the other, are the same model with more or fewer of its tensors.
    shortest = [
        nested
        for nested in inner
        if not any(nested[0] != other[0] and nested[0].startswith(other[0]) for other in inner)
    ]
    if len(shortest) == 1:
        prefix, layout = shortest[0]
        return PrefixedFile(file, prefix), layout
    if shortest:
        names = ", ".join(prefix.rstrip(".") for prefix, _ in shortest)
        raise CheckpointError(
            f"{file.path} holds several models ({names}); save the state dict of one of them"
        )
    names = ", ".join(sorted(file.index)[:3])
    raise CheckpointError(
        f"{file.path} is in no known layout ({', '.join(REGISTRY)}): its first tensors are {names}"
    )


def recognised(index: Index) -> Layout | None:
    """Return the first layout that recognises these names."""
    for known in REGISTRY.values():
        layout = known.recognise(index) if known.recognise is not None else None
        if layout is not None:
            return layout
    return None


def layout_for(target: Target, config: ModelConfig, *, generation: Generation = "A") -> Layout:
    """Return the layout in which a target stores such a model."""
    writers = {name: known.for_model for name, known in REGISTRY.items() if known.for_model is not None}
    if target not in writers:
        raise ConfigError(
            f"must be one of {', '.join(writers)}, got {target!r}; nearest: {nearest(target, writers)[0]}",
            option="to",
            suggestions=nearest(target, writers),
        )
    return writers[target](config, generation)


def _official(config: ModelConfig, generation: Generation) -> Layout:
    """Use the names of the authors' own files; as .npz or as safetensors."""
    if isinstance(config, PyramidConfig):
        return pyramids.official_layout(config)
    if isinstance(config, TNTConfig):
        return TNTLayout(origin="official")
    if isinstance(config, ViTConfig) and isinstance(config.stem, TokensToTokenConfig):
        return T2TLayout()
    if isinstance(config, ViTConfig) and config.positions == "relative_bias":
        return beit.for_model(config, kind="official")
    if isinstance(config, ViTConfig) and eva.is_eva(config) and config.rotary != "dinov3":
        return eva_official.for_model(config)
    return BiTNpzLayout() if isinstance(config, BiTConfig) else official.of_generation(generation)


def _timm(config: ModelConfig, generation: Generation) -> Layout:
    if isinstance(config, ViTConfig) and eva.is_eva(config):
        return eva.for_model(config)
    if isinstance(config, ViTConfig) and config.positions == "relative_bias":
        return beit.for_model(config, kind="timm")
    if isinstance(config, ViTConfig) and timm_naflex.is_naflex(config):
        return TimmNaFlexLayout()
    if isinstance(config, PyramidConfig):
        return pyramids.timm_layout(config)
    if isinstance(config, TNTConfig):
        return TNTLayout(origin="timm")
    return TimmBiTLayout() if isinstance(config, BiTConfig) else TimmLayout()


def _hugging_face(config: ModelConfig, generation: Generation) -> Layout:
    """Use the names of the class of transformers that can hold the model."""
    if isinstance(config, ViTConfig):
        if config.rotary == "dinov3":
            return dinov3.hugging_face()
        if config.positions == "relative_bias":
            return beit.for_model(config, kind="hf")
        if config.embedding_norm:
            return clip.hugging_face()
        if config.pooling == "attention":
            return siglip.hugging_face(is_naflex=siglip.is_naflex(config))
    return huggingface.for_model(config)


def _vitrine(config: ModelConfig, generation: Generation) -> Layout:
    """Use Hugging Face's names if its classes can hold the model, so that transformers opens the folder."""
    hugging_face = huggingface.for_model(config)
    return hugging_face if hugging_face.refusal(config) is None else NativeLayout()


register_layout("vitrine", recognise=native.recognise, for_model=_vitrine)
register_layout("YOLOS", recognise=yolos.recognise)
register_layout("masks", recognise=masks.recognise)
register_layout("npz", recognise=official.recognise, for_model=_official)
register_layout("official", for_model=_official)
register_layout("BiT npz", recognise=bit_npz.recognise)
register_layout("BEiT", recognise=beit.recognise)
register_layout("hf", recognise=huggingface.recognise, for_model=_hugging_face)
register_layout("dinov3", recognise=dinov3.recognise, for_model=lambda config, generation: dinov3.official())
register_layout("openclip", recognise=clip.recognise, for_model=lambda config, generation: clip.openclip())
register_layout("SigLIP", recognise=siglip.recognise)
register_layout(
    "torchvision", recognise=torchvision.recognise, for_model=lambda config, generation: TorchvisionLayout()
)
register_layout("EVA", recognise=eva_official.recognise)
register_layout("timm Eva", recognise=eva.recognise)
register_layout(
    "naflex", recognise=timm_naflex.recognise, for_model=lambda config, generation: TimmNaFlexLayout()
)
register_layout("deit3", recognise=deit3.recognise, for_model=lambda config, generation: DeiT3Layout())
register_layout("timm", recognise=timm.recognise, for_model=_timm)
register_layout("timm BiT", recognise=timm_bit.recognise)
register_layout("pyramids", recognise=pyramids.recognise)
register_layout("TNT", recognise=tnt.recognise)
register_layout("T2T-ViT", recognise=t2t.recognise)
register_layout("Axial-DeepLab", recognise=axial_deeplab.recognise)
register_layout("dinov2", for_model=lambda config, generation: TimmLayout(family="dinov2"))
