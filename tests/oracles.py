"""Foreign implementations that ours are compared with; none of them is needed to use Vitrine."""

from types import ModuleType

from vitrine.checkpoints.libraries import import_installed


def import_torchvision() -> ModuleType:
    return import_installed("torchvision")


def import_timm() -> ModuleType:
    return import_installed("timm")
