"""The model card (README.md) that goes with a saved model."""

import json

from vitrine.checkpoints.layouts.huggingface import HuggingFaceLayout
from vitrine.checkpoints.layouts.layout import Layout
from vitrine.checkpoints.record import Record
from vitrine.models import ViTConfig
from vitrine.models.config import shown
from vitrine.models.cost import cost_of
from vitrine.models.families import family_of
from vitrine.spelling import printable

MAX_NAMES = 20


def card(record: Record, *, layout: Layout) -> str:
    """Write the card: the model, its preprocessing, how to load it."""
    config, preprocess = record.config, record.preprocess
    name = record.variant or family_of(config).kind
    lines = ["---", "library_name: vitrine", "tags: [image-classification, vision-transformer]", "---", ""]
    lines += [f"# {name} at {shown(config.image_size)} px", ""]
    lines.append(f"{cost_of(config).params:,} parameters, {config.channels} input channels, ")
    lines[-1] += (
        f"{config.num_classes} classes." if config.num_classes else "no head: it answers with features."
    )
    if record.classes:
        more = ", ..." if len(record.classes) > MAX_NAMES else ""
        lines.append(f"Classes: {', '.join(map(printable, record.classes[:MAX_NAMES]))}{more}.")
    if isinstance(config, ViTConfig):
        lines.append(f"Numerics: GELU in its {config.gelu} form, layer norm epsilon {config.norm_eps:g}.")
    lines += [
        "",
        "## Input",
        "",
        f"Size {shown(preprocess.size)}, rule {preprocess.rule}, crop {preprocess.crop_fraction:g}, "
        f"{preprocess.interpolation}, mean {list(preprocess.mean)}, std {list(preprocess.std)} of pixels in [0, 1].",
        "",
        "## Use",
        "",
        "```python",
        "import vitrine",
        "",
        'loaded = vitrine.load("path/of/this/folder")',
        "logits = loaded.model(loaded.preprocess(image)[None])",
        "```",
    ]
    if isinstance(layout, HuggingFaceLayout):
        lines += ["", "Hugging Face transformers reads this folder as it is (`from_pretrained`)."]
    lines += ["", f"Weights: first from {record.layout}; saved by Vitrine {record.version}."]
    return "\n".join([*lines, *recipe_section(record)]) + "\n"


def recipe_section(record: Record) -> list[str]:
    """Describe the training of a model, if known."""
    if not record.recipe:
        return []
    # The recipe's claim is omitted: this model has not shown it.
    recipe = {name: value for name, value in record.recipe.items() if name != "claim"}
    return ["", "## Recipe", "", "```json", json.dumps(recipe, indent=2), "```"]
