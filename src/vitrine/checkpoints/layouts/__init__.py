"""The layouts of weights that exist, told apart by names and shapes. One file a layout."""

from typing import Literal

from vitrine.checkpoints.layouts import (
    bit_npz,
    huggingface,
    native,
    official,
    timm,
    timm_bit,
    torchvision,
)
from vitrine.checkpoints.layouts.bit_npz import BiTNpzLayout
from vitrine.checkpoints.layouts.layout import Configured, Hints, Layout
from vitrine.checkpoints.layouts.native import NativeLayout
from vitrine.checkpoints.layouts.official import Generation
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.checkpoints.layouts.timm_bit import TimmBiTLayout
from vitrine.checkpoints.layouts.torchvision import TorchvisionLayout
from vitrine.checkpoints.tensors import TensorFile
from vitrine.errors import CheckpointError
from vitrine.models import BiTConfig, ModelConfig

Target = Literal["npz", "hf", "timm", "torchvision", "dinov2", "vitrine"]
KNOWN = (native, official, bit_npz, huggingface, torchvision, timm, timm_bit)

__all__ = ["Configured", "Generation", "Hints", "Layout", "Target", "detect", "layout_for"]


def detect(file: TensorFile) -> Layout:
    """Tell the layout of a file from its names."""
    for module in KNOWN:
        found: Layout | None = module.recognise(file.index)
        if found is not None:
            return found
    names = ", ".join(sorted(file.index)[:3])
    raise CheckpointError(
        f"{file.path} is in no known layout (official npz, BiT npz, timm, Hugging Face, torchvision, DINOv2, "
        f"Vitrine): its first tensors are {names}"
    )


def layout_for(target: Target, config: ModelConfig, *, generation: Generation = "A") -> Layout:
    """Return the layout in which a target keeps such a model."""
    is_bit = isinstance(config, BiTConfig)
    if target == "npz":
        return BiTNpzLayout() if is_bit else official.of_generation(generation)
    if target == "timm":
        return TimmBiTLayout() if is_bit else TimmLayout()
    if target == "dinov2":
        return TimmLayout(family="dinov2")
    if target == "torchvision":
        return TorchvisionLayout()
    hugging_face = huggingface.for_model(config)
    if target == "hf" or hugging_face.refusal(config) is None:
        return hugging_face
    return NativeLayout()
