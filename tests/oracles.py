"""Foreign implementations that ours are compared with; none of them is needed to use Vitrine."""

from types import ModuleType

from vitrine.runtime.peers import import_peer


def import_torchvision() -> ModuleType:
    return import_peer("torchvision")


def import_timm() -> ModuleType:
    return import_peer("timm")
