"""Vitrine: the Vision Transformer as complete, practical software.

The public names below are imported when first used, so that `import vitrine` costs next to nothing and
imports no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitrine.checkpoints import Loaded as Loaded
    from vitrine.checkpoints import load as load
    from vitrine.checkpoints import save as save
    from vitrine.commands.convert import convert as convert
    from vitrine.commands.demo import demo as demo
    from vitrine.commands.models import list_models as list_models
    from vitrine.commands.plan import plan as plan
    from vitrine.errors import VitrineError as VitrineError
    from vitrine.models import create_model as create_model

_HOME = {
    "Loaded": "vitrine.checkpoints",
    "VitrineError": "vitrine.errors",
    "convert": "vitrine.commands.convert",
    "create_model": "vitrine.models",
    "demo": "vitrine.commands.demo",
    "list_models": "vitrine.commands.models",
    "load": "vitrine.checkpoints",
    "plan": "vitrine.commands.plan",
    "save": "vitrine.checkpoints",
}

__all__ = [
    "Loaded",
    "VitrineError",
    "__version__",
    "convert",
    "create_model",
    "demo",
    "list_models",
    "load",
    "plan",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitrine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
