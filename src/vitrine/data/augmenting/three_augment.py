"""3-Augment of DeiT III (arXiv:2204.07118, section 3): one of three simple changes to each image.

Grey, solarised (what is lighter than the middle is inverted) or blurred by a Gaussian with a deviation from 0.1 to 2
pixels, each with a probability of a third. The authors follow it with colour jitter of 0.3.

Shapes: B images (B, C, H, W), floats from 0 to 255.
"""

import torch
from torch import Tensor

from vitrine.data.augmenting.randaugment import ENHANCEMENTS

# Pillow's default threshold, and the range of the blur's deviation in pixels.
SOLARISED_FROM = 128
DEVIATIONS = (0.1, 2.0)
NUM_CHANGES = 3


def three_augment(images: Tensor, numbers: Tensor) -> Tensor:
    """Change each image by one of the three; `numbers` (B, 2) from 0 to 1 say which, and how much it is blurred."""
    choice = (numbers[:, 0] * NUM_CHANGES).long().view(-1, 1, 1, 1)
    low, high = DEVIATIONS
    grey = ENHANCEMENTS["colour"](images)
    solarised = torch.where(images >= SOLARISED_FROM, 255 - images, images)
    changed = torch.where(choice == 0, grey, solarised)
    return torch.where(
        choice == NUM_CHANGES - 1, blurred(images, low + (high - low) * numbers[:, 1]), changed
    )


def blurred(images: Tensor, deviations: Tensor) -> Tensor:
    """Blur each image by a Gaussian with its deviation (B,) in pixels, along columns and rows, without padding."""
    down, across = (kernel(side, deviations) for side in images.shape[2:])  # (B, H, H), (B, W, W)
    return down[:, None] @ images @ across[:, None].transpose(2, 3)


def kernel(side: int, deviations: Tensor) -> Tensor:
    """Return the weights (B, side, side) of all pixels of a line in each of them; each row sums to one."""
    place = torch.arange(side, device=deviations.device)
    distance = (place[:, None] - place) / deviations.view(-1, 1, 1)
    weights = torch.exp(-distance.square() / 2)
    return weights / weights.sum(dim=-1, keepdim=True)
