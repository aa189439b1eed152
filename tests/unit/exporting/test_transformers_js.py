"""An export that transformers.js opens as it is."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
import torch
from PIL import Image
from unit.exporting.made import CLASSES, loaded, plan

from vitrine.errors import ConfigError
from vitrine.exporting import open_runner

NODE_MODULES = Path(os.environ.get("VITRINE_NODE_MODULES", Path(__file__).parents[3] / "node_modules"))
"""Where `npm install --ignore-scripts @huggingface/transformers` has put the package."""
SCRIPT = """
import { env, pipeline, AutoModelForImageClassification, Tensor } from "@huggingface/transformers";
env.allowRemoteModels = false;
env.localModelPath = process.argv[2];
const model = await AutoModelForImageClassification.from_pretrained("ours");
const count = 2 * 3 * 32 * 32;
const pixels = Float32Array.from({ length: count }, (_, i) => -1 + (2 * i) / (count - 1));
const { logits } = await model({ pixel_values: new Tensor("float32", pixels, [2, 3, 32, 32]) });
const classify = await pipeline("image-classification", "ours");
const classes = await classify(process.argv[3], { top_k: 5 });
console.log(JSON.stringify({ logits: Array.from(logits.data), classes }));
"""


def test_the_folder_has_what_transformers_js_looks_for(tmp_path: Path) -> None:
    found = loaded("average pooling")
    made = plan(found, to="transformers.js", fp16=True, int8=True)(tmp_path)
    for name in ("model.onnx", "model_fp16.onnx", "model_quantized.onnx"):
        graph = onnx.load(tmp_path / "onnx" / name).graph
        assert [given.name for given in graph.input] == ["pixel_values"]
        assert [given.name for given in graph.output] == ["logits", "image_embeds"]
        onnx.checker.check_model(tmp_path / "onnx" / name, full_check=True)
        assert tmp_path / "onnx" / name in made.files
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "vit"
    assert config["id2label"] == {str(i): name for i, name in enumerate(CLASSES)}
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["size"] == {
        "height": 32,
        "width": 32,
    }
    batch = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        expected = found.model.features(batch)
    answers = open_runner(tmp_path)(batch.numpy())
    torch.testing.assert_close(torch.from_numpy(answers.logits), expected["logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(
        torch.from_numpy(answers.embedding), expected["representation"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["BiT", "non-square"])
def test_what_transformers_js_cannot_open_is_refused_before_anything_is_written(kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(loaded(kind), to="transformers.js")
    assert caught.value.option == "to"


@pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_MODULES / "@huggingface/transformers").is_dir(),
    reason="needs node and the package @huggingface/transformers",
)
@pytest.mark.parametrize("kind", ["class token", "average pooling", "registers"])
def test_transformers_js_computes_the_same_in_node(kind: str, tmp_path: Path) -> None:
    found = loaded(kind)
    plan(found, to="transformers.js")(tmp_path / "ours")
    Image.new("RGB", (40, 40), (200, 30, 90)).save(tmp_path / "photo.png")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "script.mjs").write_text(SCRIPT)
    done = subprocess.run(
        ["node", "script.mjs", f"{tmp_path}/", "photo.png"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1])
    pixels = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    photo = found.preprocess(Image.open(tmp_path / "photo.png"))[None]
    with torch.inference_mode():
        logits, shares = found.model(pixels), found.model(photo).softmax(dim=1)[0]
    torch.testing.assert_close(torch.tensor(answer["logits"]).view(2, 5), logits, rtol=0, atol=1e-5)
    by_name = {line["label"]: line["score"] for line in answer["classes"]}
    torch.testing.assert_close(torch.tensor([by_name[name] for name in CLASSES]), shares, rtol=0, atol=1e-5)
