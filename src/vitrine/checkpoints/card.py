"""The model card (README.md) that goes with a saved model."""

import json
from collections.abc import Mapping
from typing import Any

from vitrine.checkpoints.layouts.huggingface import HuggingFaceLayout
from vitrine.checkpoints.layouts.layout import Layout
from vitrine.checkpoints.licences import NOT_CHOSEN, licence_to_carry
from vitrine.checkpoints.record import Record
from vitrine.models import ViTConfig
from vitrine.models.cost import cost_of
from vitrine.models.families import family_of
from vitrine.models.sizes import shown
from vitrine.spelling import counted, printable

MAX_NAMES = 20
# Share of pictures that a threshold from enough held-out images marks by mistake.
USUAL_ALARMS = 0.051


def card(record: Record, *, layout: Layout) -> str:
    """Write the card: the model, its preprocessing, how to load it."""
    config, preprocess = record.config, record.preprocess
    name = record.variant or family_of(config).kind
    lines = front_matter(
        record, library="transformers" if isinstance(layout, HuggingFaceLayout) else "vitrine"
    )
    lines += [f"# {name} at {shown(config.image_size)} px", ""]
    lines.append(f"{cost_of(config).params:,} parameters, {config.channels} input channels, ")
    lines[-1] += f"{config.num_classes} classes." if config.num_classes else "no head: it outputs features."
    if record.classes:
        more = ", ..." if len(record.classes) > MAX_NAMES else ""
        lines.append(f"Classes: {', '.join(map(printable, record.classes[:MAX_NAMES]))}{more}.")
    if isinstance(config, ViTConfig):
        lines.append(f"Numerics: GELU in its {config.gelu} form, layer norm epsilon {config.norm_eps:g}.")
    if record.measured:
        lines += ["", "## Accuracy", "", measured_sentence(record.measured)]
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
    lines += ["", *licence_section(record)]
    lines += ["", f"Weights: first from {record.layout}; saved by Vitrine {record.version}."]
    return "\n".join([*lines, *recipe_section(record)]) + "\n"


def front_matter(record: Record, *, library: str) -> list[str]:
    """Write what the hub reads: the library that opens the folder, the task, the licence, the accuracy."""
    task = "image-classification" if record.config.num_classes else "image-feature-extraction"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task}", "license: other"]
    lines += [f"license_name: {NOT_CHOSEN}", f"tags: [{task}, vision-transformer]"]
    if record.measured:
        lines += [
            "model-index:",
            "- name: this model",
            "  results:",
            f"  - task: {{type: {task}}}",
            "    dataset: {name: held-out images, type: imagefolder}",
            f"    metrics: [{{type: accuracy, value: {record.measured['accuracy']:.4f}}}]",
        ]
    return [*lines, "---", ""]


def measured_sentence(measured: Mapping[str, Any]) -> str:
    """Write the accuracy with its interval and the number of images, and what "none of these" marks by mistake."""
    low, high = measured["interval"]
    count = int(measured["num_images"])
    images = (
        f"{counted(count, 'image')}, each scored by a classifier that was fitted without it"
        if measured.get("is_left_out")
        else counted(count, "held-out image")
    )
    sentence = (
        f"{100 * measured['accuracy']:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on {images}."
    )
    alarms = measured.get("false_alarms")
    if alarms is None:
        return sentence
    few = "; 19 images or more would make it 1 in 20" if alarms > USUAL_ALARMS else ""
    return f'{sentence} "None of these" marks about 1 in {1 / alarms:.0f} pictures of the classes by mistake{few}.'


def licence_section(record: Record) -> list[str]:
    """Write which licences matter; only the owner of the photos can choose one."""
    return [
        "## Licence",
        "",
        "Not chosen yet: replace `license: other` at the top before you publish the model. It depends on the photos "
        f"it was trained on and on the weights it started from ({started_from(record)}).",
    ]


def started_from(record: Record) -> str:
    """Name the layout of the first weights and, where it is known, their licence."""
    licence = licence_to_carry(record.licence, layout=record.layout)
    return f"{record.layout}, of unknown licence" if licence is None else f"licence: {licence}"


def recipe_section(record: Record) -> list[str]:
    """Describe the training of a model, if known."""
    if not record.recipe:
        return []
    # The recipe's claim is omitted: this model has not shown it.
    recipe = used_settings({name: value for name, value in record.recipe.items() if name != "claim"})
    return ["", "## Recipe", "", "```json", json.dumps(recipe, indent=2), "```"]


def used_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop settings that are not set: None, empty lists and tables without content."""
    kept = {
        name: used_settings(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }
    return {
        name: value for name, value in kept.items() if value is not None and value not in ([], (), {}, "")
    }
