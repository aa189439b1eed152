"""Libraries that are there only in some environments, to compare with: timm, transformers, torchvision."""

import functools
import importlib
from types import ModuleType

import torch


def import_peer(name: str) -> ModuleType:
    """Import a library; ImportError where it is not installed, RuntimeError where it cannot be used here."""
    make_torchvision_importable()
    return importlib.import_module(name)


@functools.cache
def make_torchvision_importable() -> torch.library.Library | None:
    """Let torchvision's Python half be imported beside a torch build that its compiled half was not made for.

    That is common (a wheel for CUDA beside a torch for CPUs) and takes timm and transformers down with it, although
    their ViTs need none of the compiled operators. It is enough that the two names it looks up exist.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            return None
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        return library  # kept by the cache: operators go when their library does
    return None
