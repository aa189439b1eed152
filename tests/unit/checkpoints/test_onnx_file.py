"""Weights out of an ONNX graph: matrices without names, positions behind a Resize."""

from pathlib import Path

import numpy as np
import pytest
import torch
from unit.checkpoints.made import images, logits, small_vit

from vitrine.checkpoints import load
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.errors import CheckpointError
from vitrine.models import Model

onnx = pytest.importorskip("onnx")


def graph_of(model: Model, path: Path) -> Path:
    """Write a graph as torch's exporter does for DINOv2: biases named, matrices transposed and nameless."""
    from onnx import helper, numpy_helper

    state = model.state_dict()
    tensors, nodes = [], []
    for rule in TimmLayout(family="dinov2").rules(model.config):
        array = rule.view.apply(state[rule.ours[0]]).numpy()
        if rule.theirs == "pos_embed":
            tensors.append(numpy_helper.from_array(np.ascontiguousarray(array[:, 1:]), "onnx::Reshape_9"))
            tensors.append(numpy_helper.from_array(np.ascontiguousarray(array[:, :1]), "onnx::Concat_8"))
            nodes += [
                helper.make_node("Reshape", ["onnx::Reshape_9", "shape"], ["grid"], name="/Reshape"),
                helper.make_node("Transpose", ["grid"], ["chw"], name="/Transpose"),
                helper.make_node("Resize", ["chw", "", "scales"], ["resized"], name="/Resize", mode="linear"),
                helper.make_node("Transpose", ["resized"], ["hwc"], name="/Transpose_1"),
                helper.make_node("Reshape", ["hwc", "flat"], ["patches"], name="/Reshape_1"),
                helper.make_node("Identity", ["onnx::Concat_8"], ["slot"], name="Identity_0"),
                helper.make_node("Concat", ["slot", "patches"], ["table"], name="/Concat", axis=1),
            ]
        elif array.ndim == 2 and rule.theirs.startswith("blocks"):
            name = f"onnx::MatMul_{len(tensors)}"
            tensors.append(numpy_helper.from_array(np.ascontiguousarray(array.T), name))
            scope = "/" + rule.theirs.removesuffix(".weight").replace(".", "/").replace("blocks/", "blocks.")
            nodes.append(helper.make_node("MatMul", ["x", name], [f"y{len(nodes)}"], name=f"{scope}/MatMul"))
        else:
            tensors.append(numpy_helper.from_array(array, f"model.{rule.theirs}"))
    nodes.append(helper.make_node("Erf", ["a"], ["b"], name="/blocks.0/mlp/act/Erf"))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [], tensors)), path)
    return path


@pytest.fixture
def model() -> Model:
    return small_vit(num_classes=None, layer_scale=1.0, gelu="erf", position_resampling="bilinear_offset")


def test_a_graph_gives_back_the_model_that_it_was_exported_from(tmp_path: Path, model: Model) -> None:
    loaded = load(graph_of(model, tmp_path / "model.onnx"), num_heads=4)
    assert loaded.model.config.position_resampling == "bilinear_offset"
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_graph_is_named(tmp_path: Path, model: Model, part: float) -> None:
    path = graph_of(model, tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(CheckpointError, match=r"model\.onnx is truncated"):
        load(path, num_heads=4)
