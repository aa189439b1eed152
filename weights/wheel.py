"""Build hook of the wheel: include the bundled weights, unless VITRINE_WITHOUT_WEIGHTS is set.

    VITRINE_WITHOUT_WEIGHTS=1 pip install .

The wheel then has 1.4 MB instead of 12. Every command needs a named model, or downloads the bundled one if the
registry in `checkpoints/bundled.py` has a release file. Editable installs and the source archive are not affected.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WEIGHTS = "vitrine/checkpoints/box/model.safetensors"


class WeightsHook(BuildHookInterface[Any]):
    """Adds the file of weights that pyproject.toml excludes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name one more file for the wheel; an editable wheel has none."""
        if version == "standard" and not os.environ.get("VITRINE_WITHOUT_WEIGHTS"):
            build_data["force_include"][f"src/{WEIGHTS}"] = WEIGHTS
