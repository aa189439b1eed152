"""How to run an export of masks or boxes: a script with NumPy and Pillow, from a photo to masks or to boxes."""

from vitrine.checkpoints.record import Record
from vitrine.data.preparing.annotated_crop import PADDING
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.evaluation.box_predictions import MOST_OVERLAP
from vitrine.models.dense.config import DenseConfig

START = {
    "onnx": ("onnxruntime", 'session = onnxruntime.InferenceSession("model.onnx")',
             'session.run(None, {"pixels": %s})'),
    "torch-export": ("torch", 'model = torch.export.load("model.pt2").module()',
                     "[one.detach().numpy() for one in model(torch.from_numpy(%s))]"),
}  # fmt: skip
MASKS = """scale = max({height} / image.height, {width} / image.width)
columns, rows = max(round(image.width * scale), {width}), max(round(image.height * scale), {height})
picture = prepared(image.resize((columns, rows), {resampling}))


def starts(length, window):  # as few windows as cover a side, evenly spaced
    count = -(-length // window)
    return [round(i * (length - window) / max(count - 1, 1)) for i in range(count)]


def enlarged(scores, size):  # (classes, rows, columns) to another size, bilinearly
    return np.stack([np.asarray(Image.fromarray(one).resize(size, Image.Resampling.BILINEAR)) for one in scores])


total, count = 0, np.zeros((rows, columns), dtype=np.float32)
for top in starts(rows, {height}):
    for left in starts(columns, {width}):
        window = picture[:, top : top + {height}, left : left + {width}]
        (scores,) = {run}
        if isinstance(total, int):
            total = np.zeros((scores.shape[1], rows, columns), dtype=np.float32)
        total[:, top : top + {height}, left : left + {width}] += enlarged(scores[0], ({width}, {height}))
        count[top : top + {height}, left : left + {width}] += 1
mask = enlarged(total / count, image.size).argmax(axis=0).astype(np.uint8)  # a class per pixel
Image.fromarray(mask).save("mask.png")
for number in np.unique(mask):
    print({name}, f"{{(mask == number).mean():.1%}}")"""
BOXES = """scale = min({height} / image.height, {width} / image.width)
columns, rows = (min(max(round(side * scale), 1), most) for side, most in zip(image.size, ({width}, {height})))
padded = Image.new("RGB", ({width}, {height}), ({padding}, {padding}, {padding}))
padded.paste(image.resize((columns, rows), {resampling}))
window = prepared(padded)
boxes, scores = (one[0] for one in {run})
boxes = boxes / scale  # left, top, right, bottom
kept = []
for score, place, number in sorted({candidates}, reverse=True):
    left, top, right, bottom = boxes[place]{suppression}
    kept.append((place, number))
    inside = boxes[place].clip(0, [image.width, image.height] * 2)
    print({name}, f"{{score:.2f}}", [round(float(side), 1) for side in inside])"""
INSTANCES = """scale = min({height} / image.height, {width} / image.width)
columns, rows = (min(max(round(side * scale), 1), most) for side, most in zip(image.size, ({width}, {height})))
padded = Image.new("RGB", ({width}, {height}), ({padding}, {padding}, {padding}))
padded.paste(image.resize((columns, rows), {resampling}))
window = prepared(padded)
masks, scores = (one[0] for one in {run})


def enlarged(logits):  # a mask at the size of the picture
    whole = Image.fromarray(logits).resize(({width}, {height}), Image.Resampling.BILINEAR)
    return np.asarray(whole.crop((0, 0, columns, rows)).resize(image.size, Image.Resampling.BILINEAR))


objects = []
for query, number in np.argwhere(scores >= 0.3):
    logits = enlarged(masks[query])
    inside = logits > 0
    if inside.any():
        certainty = (1 / (1 + np.exp(-logits[inside]))).mean()
        objects.append((float(scores[query, number] * certainty), int(number), inside))
objects = sorted((one for one in objects if one[0] >= 0.3), key=lambda one: -one[0])
instances = np.zeros((image.height, image.width), dtype=np.uint8)
for place, (score, number, inside) in reversed(list(enumerate(objects, start=1))):
    instances[inside] = place  # the best on top
for score, number, inside in objects:
    print({name}, f"{{score:.2f}}", [int(inside.sum())])
Image.fromarray(instances).save("instances.png")"""
ALL_PAIRS = "((scores[i, k], i, k) for i, k in np.argwhere(scores >= 0.3))"
BEST_PAIRS = "((scores[i, k], i, k) for i, k in enumerate(scores.argmax(axis=1)) if scores[i, k] >= 0.3)"
SUPPRESSION = """
    others = boxes[[other for other, of_class in kept if of_class == number]]
    across = np.minimum(others[:, 2], right) - np.maximum(others[:, 0], left)
    down = np.minimum(others[:, 3], bottom) - np.maximum(others[:, 1], top)
    both = across.clip(0) * down.clip(0)
    union = (right - left) * (bottom - top) + (others[:, 2:] - others[:, :2]).prod(axis=1) - both
    if (both / union > {overlap}).any():  # a better box of the same class is there
        continue"""


BODIES = {"masks": MASKS, "boxes": BOXES, "instances": INSTANCES}


def dense_usage(record: Record, *, to: str) -> str:
    """Write the script for a model of masks or boxes, as Markdown."""
    config, preprocess = record.config, record.preprocess
    assert isinstance(config, DenseConfig)
    module, start, run = START[to]
    height, width = preprocess.size
    resampling = f"Image.Resampling.{preprocess.interpolation.upper()}"
    body = BODIES[config.answers].format(
        height=height, width=width, resampling=resampling, run=run % "window[None]", padding=PADDING,
        candidates=ALL_PAIRS if config.has_duplicates else BEST_PAIRS,
        suppression=SUPPRESSION.format(overlap=MOST_OVERLAP) if config.has_duplicates else "",
        name="classes[number]" if record.classes else "number",
    )  # fmt: skip
    names = (
        ["import json", "", 'classes = json.load(open("classes.json", encoding="utf-8"))']
        if record.classes
        else []
    )
    imports = [*names[:2], "import numpy as np", f"import {module}", "from PIL import Image, ImageOps", ""]
    code = "\n".join([*imports, start, *names[2:], *opening(preprocess), body])
    return f"```python\n{code}\n```"


def opening(preprocess: Preprocess) -> list[str]:
    """Write how a photo is opened, and how pixels are normalised."""
    return [
        'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")',
        f"mean = np.array({list(preprocess.mean)}, dtype=np.float32)",
        f"std = np.array({list(preprocess.std)}, dtype=np.float32)",
        "",
        "",
        "def prepared(image):",
        "    return ((np.asarray(image, dtype=np.float32) / 255 - mean) / std).transpose(2, 0, 1)",
        "",
        "",
    ]
