"""The work behind `vitrine convert`: weights in another layout, and values that their file does not contain."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitrine.checkpoints.converting import Conversion
from vitrine.checkpoints.converting import convert as convert_weights
from vitrine.errors import ConfigError
from vitrine.recipes.plain_values import read_value


def convert(source: str | Path, destination: Path, *, settings: Iterable[str], **choices: Any) -> Conversion:
    """Convert weights; `choices` are those of `checkpoints.converting.convert`."""
    return convert_weights(source, destination, options=read_options(settings), **choices)


def read_options(settings: Iterable[str]) -> dict[str, Any]:
    """Read settings such as `num_heads=1,2,5,8` as fields of a model's config."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"must look like num_heads=1,2,5,8, got {setting!r}", option="set")
        # Numbers with commas between are a list, with or without brackets.
        value = read_value(f"[{text}]" if "," in text and "[" not in text else text)
        options[name.strip()] = tuple(value) if isinstance(value, list) else value
    return options
