"""Models of masks and boxes as ONNX and torch programs: the same answers, a card that runs, clear refusals."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from dense import CLASSES, CONFIGS, saved_dense
from PIL import Image

import vitrine
from vitrine.checkpoints import load
from vitrine.errors import ConfigError
from vitrine.exporting.card import proof_lines
from vitrine.exporting.dense_model import DenseInferenceModel
from vitrine.exporting.proof import answers_of, compare, reference

from .commandline import refusal


def photo(folder: Path) -> Path:
    """Save a smooth picture that needs two windows."""
    rows, columns = np.mgrid[0:48, 0:72] / 9
    planes = [128 + 100 * np.sin(rows + k) * np.cos(columns * (1 + k)) for k in range(3)]
    Image.fromarray(np.stack(planes, axis=2).astype(np.uint8)).save(folder / "photo.jpg", quality=95)
    return folder / "photo.jpg"


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_script_of_the_card_answers_as_predict_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_dense(kind, tmp_path / "model")
    out = tmp_path / "out"
    result = vitrine.export(model, out=out, speed=False)
    assert result.exit_code == 0
    assert result.proof[0].agrees
    picture = photo(out)
    predicted = vitrine.predict(model, picture, out=tmp_path / "predicted", device="cpu", workers=0)
    assert predicted.num_errors == 0
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(out)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, "README.md", "exec"), {})
    lines = said.getvalue().splitlines()
    assert lines
    if CONFIGS[kind].answers == "masks":
        ours = np.asarray(Image.open(tmp_path / "predicted" / "masks" / "photo.png"))
        script = np.asarray(Image.open(out / "mask.png"))
        assert (ours == script).mean() > 0.98  # Pillow's bilinear sums round otherwise
        return
    wanted = json.loads((tmp_path / "predicted" / "detections.json").read_text())
    wanted = [one for one in wanted if one["score"] >= 0.305]
    scores = [float(line.split(" [")[0].split()[-1]) for line in lines]
    assert abs(len(lines) - len(wanted)) <= 1
    assert scores[: len(wanted)] == pytest.approx([one["score"] for one in wanted][: len(scores)], abs=0.03)


@pytest.mark.parametrize("kind", CONFIGS)
def test_answers_are_compared_by_name_and_a_change_is_seen(kind: str, tmp_path: Path) -> None:
    model = load(saved_dense(kind, tmp_path / "model")).model
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = answers_of(reference(model), images)
    form = DenseInferenceModel(model)
    same = compare(
        "itself", lambda pixels: dict(zip(form.output_names, form(pixels), strict=True)),
        expected=expected, images=images,
    )  # fmt: skip
    assert same.agrees and same.top1 == 1
    moved = {name: values + 1e-2 * values.abs().max() for name, values in expected.items()}
    other = compare("another", lambda pixels: {n: v[: len(pixels)] for n, v in moved.items()},
                    expected=expected, images=images)  # fmt: skip
    assert other.agrees is False
    words = {"masks": "pixel", "boxes": "boxes", "instances": "masks"}
    assert words[CONFIGS[kind].answers] in proof_lines([other])[0]


@pytest.mark.slow
def test_programs_of_torch_and_lower_precision_are_proven_too(tmp_path: Path) -> None:
    model = saved_dense("detector", tmp_path / "model")
    program = vitrine.export(model, to="torch-export", out=tmp_path / "program", speed=False)
    assert program.proof[0].agrees
    small = vitrine.export(model, fp16=True, int8=True, out=tmp_path / "small", speed=False)
    assert [one.precision for one in small.proof] == ["fp32", "fp16", "int8"]
    assert all(one.largest < 0.2 for one in small.proof if one.largest is not None)
    session = onnxruntime.InferenceSession(tmp_path / "small" / "model.onnx")
    assert [one.name for one in session.get_outputs()] == ["boxes", "scores"]
    assert session.get_outputs()[1].shape[2] == len(CLASSES)


@pytest.mark.parametrize("to", ["web", "triton", "transformers.js", "hf", "timm", "torchvision", "npz"])
def test_other_targets_are_refused_with_the_one_that_works(to: str, tmp_path: Path) -> None:
    model = saved_dense("linear", tmp_path / "model")
    with pytest.raises(ConfigError, match=f"{to} holds classifiers") as caught:
        vitrine.export(model, to=to, out=tmp_path / "out")
    assert "onnx" in str(caught.value)
    with refusal(ConfigError, "top-1 accuracy", "masks", option="data"):
        vitrine.export(model, data=tmp_path, out=tmp_path / "out")
