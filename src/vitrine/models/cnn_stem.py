"""Hybrids on any convolutional network that returns a feature map, registered by name with one line.

    register_cnn("mine", lambda channels: MyNetwork(channels))
    model = create_model("ViT-S/16", stem="mine")

A saved model stores the name only: register the same network before loading it. The network initialises its own
weights, so pre-trained ones are kept.

Shapes: B images, C channels, rows x columns.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.stem_configs import CnnStemConfig

CNNS: dict[str, tuple[Callable[[int], nn.Module], CnnStemConfig]] = {}
# Side of the image on which stride and channels are measured: a multiple of the stride of every usual network.
PROBED_SIZE = 256


class CnnStem(nn.Module):
    """A registered network; if it returns several maps, the last is used."""

    def __init__(self, config: CnnStemConfig, *, channels: int) -> None:
        super().__init__()
        self.stride, self.out_channels = config.stride, config.out_channels
        self.network = cnn_builder(config.name)(channels)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, height, width) to a feature map (B, out_channels, height / stride, width / stride)."""
        maps = last_map(self.network(images))
        rows, columns = images.shape[2] // self.stride, images.shape[3] // self.stride
        if maps.shape[1:] != (self.out_channels, rows, columns):
            raise ConfigError(
                f"the stem must map images of {images.shape[2]}x{images.shape[3]} to "
                f"{self.out_channels} channels of {rows}x{columns}, got {tuple(maps.shape[1:])}"
            )
        return maps


def register_cnn(name: str, build: Callable[[int], nn.Module], *, channels: int = 3) -> CnnStemConfig:
    """Add a network under a name; `build` receives the image's channels. Return its config, for `stem=`.

    Stride and channels of its map are measured on one image with `channels` channels.
    """
    if name in CNNS:
        raise ConfigError(f"a convolutional network named {name!r} is registered already")
    maps = last_map(probed(build, channels))
    if maps.ndim != 4:
        raise ConfigError(
            f"the network {name!r} must return a feature map (B, C, rows, columns), got {tuple(maps.shape)}"
        )
    stride = PROBED_SIZE // maps.shape[2]
    if maps.shape[2] * stride != PROBED_SIZE or maps.shape[3] != maps.shape[2]:
        raise ConfigError(
            f"the network {name!r} must divide the image's sides by a whole number; "
            f"it maps {PROBED_SIZE}x{PROBED_SIZE} to {maps.shape[2]}x{maps.shape[3]}"
        )
    config = CnnStemConfig(name=name, stride=stride, out_channels=maps.shape[1])
    CNNS[name] = (build, config)
    return config


def cnn_builder(name: str) -> Callable[[int], nn.Module]:
    """Return the function that builds a registered network."""
    if name not in CNNS:
        known = ", ".join(CNNS) or "none"
        raise ConfigError(
            f"no convolutional network is registered as {name!r}; registered: {known}; call register_cnn first"
        )
    return CNNS[name][0]


def probed(build: Callable[[int], nn.Module], channels: int) -> Tensor | list[Tensor]:
    """Run a network in evaluation mode on one image of zeros."""
    with torch.no_grad():
        maps: Tensor | list[Tensor] = build(channels).eval()(
            torch.zeros(1, channels, PROBED_SIZE, PROBED_SIZE)
        )
    return maps


def last_map(maps: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Return the last of several maps, or the only one."""
    return maps[-1] if isinstance(maps, (list, tuple)) else maps


def counted_cnn(config: CnnStemConfig, *, channels: int, image_size: tuple[int, int]) -> tuple[int, int, int]:
    """Count parameters, multiply-adds and numbers kept for one image's backward pass, by running the network once."""
    # Imports triton, which takes a third of a second and is only needed for such hybrids.
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 (slow to import)

    network = cnn_builder(config.name)(channels).eval()
    kept: list[int] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:
        kept.append(output.numel() if isinstance(output, Tensor) else 0)

    leaves = [module for module in network.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(note) for module in leaves]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, channels, *image_size))
    for hook in hooks:
        hook.remove()
    return sum(p.numel() for p in network.parameters()), counter.get_total_flops() // 2, sum(kept)
