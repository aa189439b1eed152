"""Foreign implementations that ours are compared with; none of them is needed to use Vitrine."""

import functools
from types import ModuleType

import torch


@functools.cache
def _define_torchvision_operators() -> torch.library.Library:
    # torchvision's wheel brings compiled operators for another torch build; its Python half, which is all that
    # timm's and torchvision's ViTs need, imports once the two names that it looks up exist.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def import_torchvision() -> ModuleType:
    try:
        import torchvision
    except RuntimeError:
        _define_torchvision_operators()
        import torchvision
    return torchvision


def import_timm() -> ModuleType:
    import_torchvision()
    import timm

    return timm
