"""The snippets of an export's card, run as they stand."""

import contextlib
import io
import re

import numpy as np
import pytest
import torch
from oracles import import_timm
from pictures import photo, save
from unit.exporting.made import CLASSES, loaded

import vitrine
from vitrine.checkpoints import save as save_model
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.exporting.usage import pixels_of

RULES = [
    {"rule": "squash"},
    {"rule": "squash", "crop_fraction": 0.8},
    {"rule": "shorter", "interpolation": "bicubic"},
    {"rule": "shorter", "crop_fraction": 0.875, "mean": (0.4,), "std": (0.2,)},
]


def snippets(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)


def said(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    return out.getvalue()


@pytest.mark.parametrize("options", RULES, ids=str)
def test_pillow_and_numpy_alone_make_the_same_input(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    # Smooth, as real photos are: of pure noise the resamplers differ by a few levels.
    rows, columns = np.mgrid[0:90, 0:121] / 20
    image = np.stack([128 + 100 * np.sin(rows + k) * np.cos(columns) for k in range(3)], axis=2).astype(
        np.uint8
    )
    save(tmp_path / "photo.jpg", image)
    preprocess = Preprocess(size=(32, 48), **options)
    made: dict[str, np.ndarray] = {}
    exec("import numpy as np\nfrom PIL import Image, ImageOps\n" + pixels_of(preprocess), made)
    ours = preprocess((tmp_path / "photo.jpg").read_bytes())[None].numpy()
    assert made["pixels"].shape == ours.shape and made["pixels"].dtype == np.float32
    levels = np.abs(made["pixels"] - ours) * preprocess.std[0] * 255
    assert levels.max() <= 3  # of 255: torch's resampling beside Pillow's


@pytest.mark.parametrize("to", ["onnx", "torch-export", "hf", "timm"])
def test_the_card_of_an_export_can_be_pasted_and_answers_as_the_model_does(tmp_path, monkeypatch, to):
    if to in ("hf", "timm"):
        import_timm()  # which makes torchvision, that both load, importable here
    made = loaded("class token")
    model = save_model(made, tmp_path / "mine")
    out = tmp_path / "out"
    vitrine.export(str(model), to=to, out=out, speed=False)
    save(out / "photo.jpg", photo(1), quality=95)
    with torch.no_grad():
        pixels = made.preprocess((out / "photo.jpg").read_bytes())[None]
        best = CLASSES[int(made.model(pixels).argmax())]
    monkeypatch.chdir(out)
    codes = snippets((out / "README.md").read_text().split("## Input")[0])
    assert len(codes) == (2 if to == "onnx" else 1)
    for code in codes:
        assert said(code).startswith(best)
