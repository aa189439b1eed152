"""Small models with random weights, for the tests of checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.models import Model, create_model

VIT = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 2, "num_heads": 4, "mlp_width": 96}


def randomised(model: Any, *, seed: int = 0) -> Any:
    """Fill every parameter with numbers of the size that trained ones have."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(0.1 * noise)
            elif ("norm" in name and name.endswith("weight")) or "ls" in name or "scale" in name:
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
    return model.eval()


def small_vit(*, num_classes: int | None = 5, seed: int = 0, **options: Any) -> Model:
    """Make a small ViT; heads are 16 wide, so that they cannot be guessed from the width."""
    return randomised(create_model("ViT", num_classes=num_classes, **(VIT | options)), seed=seed)


def images(model: Model, *, count: int = 2) -> torch.Tensor:
    """Make random input of a model's size."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, model.config.channels, *model.config.image_size, generator=generator)


def logits(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Run without gradients."""
    with torch.inference_mode():
        return model(batch)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Read a .npz with numpy itself."""
    with np.load(path, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def write_npz(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write a .npz with numpy itself."""
    np.savez(path, **arrays)
    return path
