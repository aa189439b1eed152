"""Eight-bit copies: fixed ranges, and the rule that says when a copy is worth it."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from unit.exporting.made import loaded, plan

from vitrine.errors import ConfigError
from vitrine.evaluation.metrics import Interval
from vitrine.exporting import open_runner
from vitrine.exporting.comparison import Timing
from vitrine.exporting.exported import Exported, Subject
from vitrine.exporting.proof import Accuracy
from vitrine.exporting.worth import refusal_lines, refuse_copies, without_refused


def test_static_int8_has_fixed_ranges_and_answers_that_no_neighbour_in_the_batch_changes(
    tmp_path: Path,
) -> None:
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    made = plan(loaded("class token"), to="onnx", calibration=images)(tmp_path)
    path = tmp_path / "model.int8-static.onnx"
    assert path in made.files
    onnx.checker.check_model(path, full_check=True)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert "QuantizeLinear" in operators and "DynamicQuantizeLinear" not in operators
    runner, exact = open_runner(tmp_path, precision="int8-static"), open_runner(tmp_path)
    together, alone = runner(images.numpy()).logits, runner(images[:1].numpy()).logits
    assert together is not None and alone is not None
    np.testing.assert_allclose(together[:1], alone, rtol=0, atol=1e-5)
    expected = exact(images.numpy()).logits
    assert expected is not None
    # Seven bits of weights and eight of activations: some percent of the spread of the logits.
    assert 0 < np.sqrt(((together - expected) ** 2).mean()) < 0.1 * expected.std()


def test_calibration_pictures_are_refused_where_there_is_no_such_copy() -> None:
    for to in ("transformers.js", "web", "timm"):
        with pytest.raises(ConfigError) as caught:
            plan(loaded("class token"), to=to, calibration=torch.zeros(1, 3, 32, 32))
        assert caught.value.option == "calibrate"


def exported(folder: Path) -> Exported:
    """Pretend to have written a graph and an eight-bit copy, for two runtimes."""
    exact, copy = folder / "model.onnx", folder / "model.int8.onnx"
    for path in (exact, copy):
        path.write_bytes(b"graph")
    subjects = [
        Subject(name=engine, precision=precision, file=path)
        for engine in ("onnxruntime", "openvino")
        for precision, path in (("fp32", exact), ("int8", copy))
    ]
    return Exported(files=(exact, copy), subjects=tuple(subjects))


def figures(*, ratios: dict[str, float], cost: float) -> tuple[list[Timing], list[Accuracy]]:
    """Say how fast the copy is in each runtime, and how much accuracy it loses."""
    timings = [
        Timing(engine=engine, precision="int8", batch_size=1, milliseconds=1.0, ratio=ratio)
        for engine, ratio in ratios.items()
    ]
    interval = Interval(value=0.9, low=0.8, high=1.0)
    accuracy = [
        Accuracy(against=engine, precision="int8", num_images=100, top1=interval, changed=0.1, cost=cost)
        for engine in ratios
    ]
    return timings, accuracy


@pytest.mark.parametrize(
    ("ratios", "cost", "is_kept"),
    [
        ({"onnxruntime": 0.6, "openvino": 1.9}, 0.0, True),
        ({"onnxruntime": 1.1, "openvino": 1.9}, 0.0, False),
        ({"onnxruntime": 0.6, "openvino": 0.7}, 0.02, False),
        ({"onnxruntime": 0.6, "openvino": 0.7}, 0.01, True),
    ],
)
def test_a_copy_is_kept_if_one_runtime_gains_time_and_loses_at_most_a_point(
    ratios: dict[str, float], cost: float, is_kept: bool, tmp_path: Path
) -> None:
    made = exported(tmp_path)
    timings, accuracy = figures(ratios=ratios, cost=cost)
    refused = refuse_copies(made, timings, accuracy)
    kept = without_refused(made, refused)
    assert (tmp_path / "model.int8.onnx").exists() == is_kept == (len(kept.files) == 2)
    assert (tmp_path / "model.onnx").exists()
    if not is_kept:
        [line] = refusal_lines(refused)
        assert "model.int8.onnx" in line and "x the time of fp32" in line and "points of top-1 lost" in line


def test_a_copy_without_figures_is_kept_and_one_that_is_all_there_is_raises(tmp_path: Path) -> None:
    made = exported(tmp_path)
    assert refuse_copies(made, [], []) == ()
    alone = dataclasses.replace(made, files=made.files[1:])
    timings, accuracy = figures(ratios={"onnxruntime": 2.0, "openvino": 3.0}, cost=0.0)
    with pytest.raises(ConfigError, match=r"2\.00 x the time"):
        without_refused(alone, refuse_copies(alone, timings, accuracy))
