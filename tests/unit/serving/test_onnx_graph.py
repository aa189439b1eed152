import numpy as np
import onnx
import pytest
import torch
from journeys.web import ask
from onnx import TensorProto, helper, numpy_helper
from servers import jpeg, saved_vit, serving

from vitrine.errors import CheckpointError
from vitrine.serving.hosting import open_hosted
from vitrine.serving.onnx_graph import OnnxGraph
from vitrine.serving.predictor import Predictor


def linear_graph(path, weight, *, input_name="pixels", outputs=("logits", "embedding")):
    """Write a graph whose embedding is the mean of each channel and whose logits are linear in that."""
    nodes = [helper.make_node("ReduceMean", [input_name, "axes"], ["embedding"], keepdims=0)]
    nodes.append(helper.make_node("MatMul", ["embedding", "weight"], ["logits"]))
    shapes = {"logits": ["B", weight.shape[1]], "embedding": ["B", 3]}
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info(input_name, TensorProto.FLOAT, ["B", 3, 32, 32])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in outputs],
        [
            numpy_helper.from_array(weight.astype(np.float32), "weight"),
            numpy_helper.from_array(np.array([2, 3], dtype=np.int64), "axes"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_the_graph_gives_logits_and_features_for_any_batch(tmp_path):
    weight = np.arange(6.0).reshape(3, 2)
    graph = OnnxGraph(linear_graph(tmp_path / "a.onnx", weight), threads=1)
    images = torch.randn(5, 3, 32, 32)
    features = images.mean(dim=(2, 3))
    torch.testing.assert_close(graph(images, wanted="features"), features)
    torch.testing.assert_close(graph(images, wanted="logits"), features @ torch.from_numpy(weight).float())
    assert graph.has("features")
    assert not OnnxGraph(linear_graph(tmp_path / "b.onnx", weight, outputs=("logits",)), threads=1).has(
        "features"
    )


def test_a_graph_of_other_names_or_no_graph_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="pixels and logits are needed"):
        OnnxGraph(linear_graph(tmp_path / "a.onnx", np.ones((3, 2)), input_name="input"), threads=1)
    (tmp_path / "b.onnx").write_bytes(b"hello")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        OnnxGraph(tmp_path / "b.onnx", threads=1)


def test_a_graph_of_another_model_is_refused(tmp_path):
    model = saved_vit(tmp_path / "model")
    for weight in (np.ones((3, 6)), np.ones((3, 2))):
        path = linear_graph(tmp_path / "other.onnx", weight)
        with pytest.raises(CheckpointError, match="does not compute what"):
            open_hosted([str(model)], device="cpu", most=4, threads=1, onnx=path)


@pytest.mark.filterwarnings("ignore")  # the older exporter speaks of its age
def test_predict_by_onnxruntime_equals_predict_by_torch(tmp_path):
    model = saved_vit(tmp_path / "model")
    predictor = Predictor.open(model, device="cpu")
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        predictor.model, (torch.zeros(2, 3, 32, 32),), str(path), input_names=["pixels"],
        output_names=["logits"], dynamic_axes={"pixels": {0: "B"}}, dynamo=False,
    )  # fmt: skip
    hosted, _ = open_hosted([str(model)], device="cpu", most=4, threads=1, onnx=path)
    with serving(hosted) as running:
        assert ask(running.port, "/models").json["models"][0]["backend"] == "onnxruntime"
        for seed in range(3):
            data = jpeg(seed)
            found = torch.tensor(ask(running.port, "/predict?logits=1", data).json["logits"])
            torch.testing.assert_close(found, predictor.logits([data]).rows[0], rtol=0, atol=1e-4)
        assert len(ask(running.port, "/embed", jpeg()).json["features"]) == 32  # by torch: the graph has none
