"""How to run an export: a snippet for each target, from a photo to the names of its classes.

Each runs unchanged in the folder of the export, beside a photo.jpg; only some of them need Vitrine.
"""

from vitrine.checkpoints.record import Record
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.exporting.dense_usage import dense_usage
from vitrine.exporting.exported import Kind
from vitrine.models.config import ViTConfig
from vitrine.models.dense.config import DenseConfig

NUM_SHOWN = 5
MODES = {1: "L", 3: "RGB"}

IMPORTS: dict[Kind, str] = {
    "onnx": "import onnxruntime",
    "torch-export": "import torch",
    "timm": "import timm\nimport torch",
    "executorch": "import torch\nfrom executorch.runtime import Runtime",
    "litert": "from ai_edge_litert.interpreter import Interpreter",
    "coreml": "import coremltools",
    "torchvision": "import torch\nfrom safetensors.torch import load_file\n"
    "from torchvision.models.vision_transformer import VisionTransformer",
}
# Each computes `outputs` from `pixels`: a list whose first item is (1, classes) or (1, features).
RUN: dict[Kind, str] = {
    "onnx": 'session = onnxruntime.InferenceSession("model.onnx")\n'
    'outputs = session.run(None, {"pixels": pixels})  # %s',
    "torch-export": 'model = torch.export.load("model.pt2").module()\n'
    "outputs = [output.detach().numpy() for output in model(torch.from_numpy(pixels))]  # %s",
    "executorch": 'program = Runtime.get().load_program("model.pte")\n'
    'method = program.load_method("forward")\n'
    "outputs = [row.numpy() for row in method.execute([torch.from_numpy(pixels)])]  # %s",
    "litert": 'run = Interpreter("model.tflite").get_signature_runner()\n'
    "[name] = run.get_input_details()\n"
    "answers = run(**{name: pixels})\n"
    "outputs = [answers[name] for name in sorted(answers)]  # %s",
    "coreml": 'answers = coremltools.models.MLModel("model.mlpackage").predict({"pixels": pixels})  # macOS only\n'
    'outputs = [answers[name] for name in "%s".split(", ")]',
    "timm": 'model = timm.create_model("local-dir:.", pretrained=True).eval()\n'
    "outputs = [model(torch.from_numpy(pixels)).detach().numpy()]",
}
IN_JAVASCRIPT = """With [transformers.js](https://huggingface.co/docs/transformers.js), in Node or in a browser:

```js
import { env, pipeline } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = "..";  // the folder that holds this one
const model = await pipeline("%s", "%s");
console.log(await model("photo.jpg"));
```"""
ON_A_STATIC_HOST = """Double-click `start.py`, or put this folder on any static web host: GitHub Pages, an object
store, nginx. The page runs the model in the visitor's browser; pictures never leave it. After the first visit it
works offline.

Browsers run no programs from a plain folder (`file://`); the camera and offline use need https or localhost."""
IN_TRITON = """This folder is a model repository: start NVIDIA's `tritonserver` with it. Its Python backend
needs three packages in the server's container: numpy, pillow and onnxruntime.

A client sends the file of an image as BYTES of shape (batch, 1) and gets `logits` and `embedding`; with the
classification extension also class names:

```python
import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient("127.0.0.1:8000")
images = triton.InferInput("image", [1, 1], "BYTES")
images.set_data_from_numpy(np.array([[open("photo.jpg", "rb").read()]], dtype=object))
wanted = triton.InferRequestedOutput("logits", class_count=5)
print(client.infer("vitrine", [images], outputs=[wanted]).as_numpy("logits"))
```"""
WITH_VITRINE = """With Vitrine, preprocessing and class names included:

```python
from PIL import Image
from vitrine.exporting import open_runner

runner = open_runner(".")
answers = runner(runner.preprocess(Image.open("photo.jpg"))[None].numpy())
print(%s)
```"""
WRITTEN_OUT: dict[Kind, str] = {"web": ON_A_STATIC_HOST, "triton": IN_TRITON}


def usage_of(record: Record, *, to: Kind, folder: str = "export") -> str:
    """Write how to run an export of `record`, as Markdown."""
    if isinstance(record.config, DenseConfig):
        return dense_usage(record, to=to)
    if to == "npz":
        return _fenced('import vitrine\n\nloaded = vitrine.load("model.npz")')
    if to == "hf":
        return _fenced(_of_transformers(record))
    if to in WRITTEN_OUT or to == "transformers.js":
        return WRITTEN_OUT.get(to) or _with_transformers_js(record, folder=folder)
    run = _of_torchvision(record) if to == "torchvision" else RUN[to]
    outputs = "logits, embedding" if record.config.num_classes else "embedding"
    parts = [
        "\n".join([*(["import json", ""] if record.classes else []), "import numpy as np", IMPORTS[to]]),
        pixels_of(record.preprocess),
        run % outputs if "%s" in run else run,
        _shown(record),
    ]
    parts[0] += "\nfrom PIL import Image, ImageOps"
    text = _fenced("\n\n".join(parts))
    if to != "onnx":
        return text
    answers = "runner.classes[answers.logits[0].argmax()]" if record.classes else "answers.embedding.shape"
    return f"{text}\n\n{WITH_VITRINE % answers}"


def pixels_of(preprocess: Preprocess) -> str:
    """Write, with Pillow and NumPy alone, how a photo becomes the model's input."""
    (height, width), (rows, columns) = preprocess.size, preprocess.resize_size
    if preprocess.channels not in MODES:
        return f"pixels = ...  # float32 (1, {preprocess.channels}, {height}, {width}), normalised as below"
    resampling = f"Image.Resampling.{preprocess.interpolation.upper()}"
    mode = MODES[preprocess.channels]
    lines = [f'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("{mode}")']
    if preprocess.rule == "squash" and (rows, columns) == (height, width):
        lines.append(f"image = image.resize(({width}, {height}), {resampling})")
    else:
        # Only the box is resized: resizing a whole picture of 1 x 60,000 pixels would need gigabytes.
        size = f"{columns}, {rows}"
        if preprocess.rule != "squash":
            lines.append(f"scale = max({columns} / image.width, {rows} / image.height)")
            size = f"max({columns}, int(image.width * scale)), max({rows}, int(image.height * scale))"
        lines += [
            f"columns, rows = {size}  # the size that the whole image would have",
            f"left, top = round((columns - {width}) / 2), round((rows - {height}) / 2)",
            f"right, bottom = left + {width}, top + {height}",
            "across, down = image.width / columns, image.height / rows",
            "box = left * across, top * down, min(right * across, image.width), min(bottom * down, image.height)",
            f"image = image.resize(({width}, {height}), {resampling}, box=box)",
        ]
    plane = "" if mode == "RGB" else "[:, :, None]"
    lines += [
        f"mean = np.array({list(preprocess.mean)}, dtype=np.float32)",
        f"std = np.array({list(preprocess.std)}, dtype=np.float32)",
        f"pixels = (np.asarray(image, dtype=np.float32){plane} / 255 - mean) / std",
        f"pixels = pixels.transpose(2, 0, 1)[None]  # (1, {preprocess.channels}, {height}, {width})",
    ]
    return "\n".join(lines)


def _shown(record: Record) -> str:
    if not record.classes:
        return "print(outputs[0].shape)"
    return "\n".join(
        [
            'classes = json.load(open("classes.json", encoding="utf-8"))',
            f"for number in outputs[0][0].argsort()[::-1][:{NUM_SHOWN}]:",
            "    print(classes[number], outputs[0][0][number])",
        ]
    )


def _of_transformers(record: Record) -> str:
    auto = "AutoModelForImageClassification" if record.config.num_classes else "AutoModel"
    answer = (
        "print(model.config.id2label[outputs.logits[0].argmax().item()])"
        if record.config.num_classes
        else "print(outputs.last_hidden_state.shape)"
    )
    return "\n".join(
        [
            "from PIL import Image",
            f"from transformers import AutoImageProcessor, {auto}",
            "",
            f'model = {auto}.from_pretrained(".")',
            'processor = AutoImageProcessor.from_pretrained(".")',
            'outputs = model(**processor(Image.open("photo.jpg"), return_tensors="pt"))',
            answer,
        ]
    )


def _of_torchvision(record: Record) -> str:
    config = record.config
    assert isinstance(config, ViTConfig)  # others are refused as a target
    shape = (
        f"image_size={config.image_size[0]}, patch_size={config.patch_size[0]}, num_layers={config.depth}, "
        f"num_heads={config.num_heads},\n    hidden_dim={config.width}, mlp_dim={config.mlp_width}, "
        f"num_classes={config.num_classes},"
    )
    return (
        f"model = VisionTransformer(\n    {shape}\n)\n"
        'model.load_state_dict(load_file("model.safetensors"))\n'
        "outputs = [model.eval()(torch.from_numpy(pixels)).detach().numpy()]"
    )


def _with_transformers_js(record: Record, *, folder: str) -> str:
    task = "image-classification" if record.config.num_classes else "image-feature-extraction"
    answers = "runner.classes[answers.logits[0].argmax()]" if record.classes else "answers.embedding.shape"
    return f"{IN_JAVASCRIPT % (task, folder)}\n\n{WITH_VITRINE % answers}"


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"
