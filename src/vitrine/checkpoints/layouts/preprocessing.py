"""Preprocessing that files of weights do not hold, as several layouts share it."""

from vitrine.data.preparing.preprocess import Interpolation, Preprocess
from vitrine.models import ModelConfig


def centre_cropped(
    config: ModelConfig,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    crop_fraction: float = 1.0,
    interpolation: Interpolation = "bicubic",
) -> Preprocess:
    """Return the preprocessing that resizes the shorter side and crops the centre.

    The statistics are of red, green and blue; an image of other channels goes from -1 to 1.
    """
    if config.channels != len(mean):
        mean = std = (0.5,) * config.channels
    return Preprocess(
        size=config.image_size, rule="shorter", crop_fraction=crop_fraction, interpolation=interpolation,
        mean=mean, std=std,
    )  # fmt: skip
