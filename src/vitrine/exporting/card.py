"""The model card of an export: the model, its input, code to run it, and the proof."""

from collections.abc import Sequence

from vitrine.checkpoints.card import front_matter, licence_section, measured_sentence, recipe_section
from vitrine.checkpoints.record import Record
from vitrine.exporting.exported import Kind
from vitrine.exporting.proof import Accuracy, Agreement
from vitrine.exporting.usage import usage_of
from vitrine.models.cost import cost_of
from vitrine.models.sizes import shown
from vitrine.spelling import printable

MAX_NAMES = 20
# The hub's name of the library that opens the folder; other targets get "vitrine".
LIBRARIES: dict[str, str] = {
    "onnx": "onnx",
    "transformers.js": "transformers.js",
    "hf": "transformers",
    "timm": "timm",
}
# Words per output: a single value, the second comparison, and the share of equal results.
WORDS = {
    "logits": ("logit", "embedding within %.1e of its largest", "top-1"),
    "embedding": ("embedding", "", ""),
    "scores": ("score", "", "the class of a pixel"),
    "scores of boxes": ("score", "boxes within %.1e of their largest side", "the class of a box"),
    "scores of masks": ("score", "masks within %.1e of their largest logit", "the class of a mask"),
}


def write_card(
    record: Record,
    *,
    to: Kind,
    proof: Sequence[Agreement],
    accuracy: Sequence[Accuracy],
    notes: Sequence[str],
    folder: str = "export",
) -> str:
    """Write README.md."""
    config, preprocess = record.config, record.preprocess
    name = record.variant or type(config).__name__.removesuffix("Config")
    lines = front_matter(record, library=LIBRARIES.get(to, "vitrine"))
    lines += [f"# {name} at {shown(config.image_size)} px, for {to}", ""]
    classes = f"{config.num_classes} classes" if config.num_classes else "no head: it outputs features"
    lines.append(f"{cost_of(config).params:,} parameters, {config.channels} input channels, {classes}.")
    if record.classes:
        more = ", ... (all in classes.json)" if len(record.classes) > MAX_NAMES else ""
        lines.append(f"Classes: {', '.join(map(printable, record.classes[:MAX_NAMES]))}{more}.")
    lines += ["", "## Use", "", usage_of(record, to=to, folder=folder), "", "## Input", ""]
    lines.append(
        f"Size {shown(preprocess.size)} (height by width), rule {preprocess.rule}, crop "
        f"{preprocess.crop_fraction:g}, {preprocess.interpolation}, mean {list(preprocess.mean)}, std "
        f"{list(preprocess.std)} of pixels in [0, 1]; the whole record is in preprocess.json."
    )
    lines += ["", "## Proof", "", "Compared with the original model, on the same images.", ""]
    lines += [f"- {line}" for line in proof_lines(proof)]
    if record.measured and not accuracy:
        lines += ["", "## Accuracy", "", f"Before the export: {measured_sentence(record.measured)}"]
    if accuracy:
        lines += ["", "## Accuracy", ""] + [f"- {line}" for line in accuracy_lines(accuracy)]
    if notes:
        lines += ["", "## Notes", ""] + [f"- {note}" for note in notes]
    lines += ["", *licence_section(record)]
    lines += ["", f"Weights: first from {record.layout}; exported by Vitrine {record.version}."]
    return "\n".join([*lines, *recipe_section(record)]) + "\n"


def proof_lines(proof: Sequence[Agreement]) -> list[str]:
    """Write each comparison on one line."""
    lines = []
    for check in proof:
        if check.largest is None:
            lines.append(f"{check.against}: not compared, {check.reason}")
            continue
        what, second, same = WORDS[check.output]
        line = f"{check.against}, {check.precision}, {check.num_images} images: largest {what} difference "
        line += f"{check.largest:.2e} (largest {what} {check.scale:.3g})"
        if check.top1 is not None and check.embedding is not None:
            line += ", " + second % check.embedding
        if check.top1 is not None:
            line += f", {same} the same for {100 * check.top1:.1f} %"
        line += f", batches of {', '.join(map(str, check.batches)) or 'no size'}"
        if check.agrees is not None:
            line += ": agrees" if check.agrees else f": {differs(check)}"
        lines.append(line)
    return lines


def differs(check: Agreement) -> str:
    """Describe a difference, with its reason if it is known."""
    return f"differs, {check.explained}" if check.explained else "DIFFERS"


def accuracy_lines(accuracy: Sequence[Accuracy]) -> list[str]:
    """Write each accuracy on one line."""
    return [
        f"{score.against}, {score.precision}: top-1 {score.top1} on {score.num_images:,} images, "
        f"{100 * score.cost:+.2f} points lost, {100 * score.changed:.2f} % of the predictions changed"
        for score in accuracy
    ]
