"""Which device a run computes on."""

import torch

from vitrine.errors import ConfigError


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device called `name`; `auto` is this process's GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(f"cuda:{local_rank}" if name == "cuda" else name)
    except RuntimeError:
        raise ConfigError(f"no device is called {name!r}; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name!r} was asked for, but this torch sees no GPU; use --device cpu")
        torch.cuda.set_device(device)
    return device
