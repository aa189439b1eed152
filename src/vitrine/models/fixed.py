"""Parameters that are part of a model and of its files, but are never trained."""

from torch import nn


class HasFixedParameters:
    """A module some of whose own parameters are constants, as in the authors' models and files."""

    fixed: tuple[str, ...]
    """Names of these parameters."""


def fixed_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of a model's constants; training must not unfreeze them."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, HasFixedParameters)
        for name in module.fixed
    )
