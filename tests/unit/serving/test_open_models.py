import pytest
import torch
from journeys.web import ask
from servers import CLASSES, jpeg, saved_vit, serving

import vitrine
from vitrine.checkpoints import load
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import write_onnx
from vitrine.serving import open_models as open_models_module
from vitrine.serving.open_models import name_of, open_models
from vitrine.serving.predictor import Predictor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hosting")


@pytest.fixture(scope="module")
def model(folder):
    return saved_vit(folder / "model")


@pytest.fixture(scope="module")
def graph(folder, model):
    loaded = load(model)
    write_onnx(InferenceModel(loaded.model), folder / "model.onnx", record=loaded.record)
    return folder / "model.onnx"


def opened(*sources, **options):
    return open_models([str(source) for source in sources], device="cpu", max_batch=4, threads=1, **options)


def test_predict_by_onnxruntime_equals_predict_by_torch_on_the_same_bytes(model, graph):
    predictor = Predictor.open(model, device="cpu")
    with serving(opened(model, onnx=graph).models, workers=2) as running:
        assert ask(running.port, "/models").json["models"][0]["backend"].startswith("onnxruntime")
        for seed in range(4):
            data = jpeg(seed)
            found = torch.tensor(ask(running.port, "/predict?logits=1", data).json["logits"])
            torch.testing.assert_close(found, predictor.logits([data]).rows[0], rtol=0, atol=1e-4)
            features = torch.tensor(ask(running.port, "/embed", data).json["features"])
            torch.testing.assert_close(features, predictor.embed([data]).rows[0], rtol=0, atol=1e-4)
        assert ask(running.port, "/explain", jpeg()).status == 200


def test_a_graph_of_other_weights_of_another_input_or_no_graph_is_refused(folder, model, graph):
    other = saved_vit(folder / "other", seed=3)
    with pytest.raises(CheckpointError, match="does not compute the same"):
        opened(other, onnx=graph)
    loaded = load(model)
    vitrine.save(
        loaded.model, folder / "larger", preprocess=Preprocess(size=(32, 32), mean=(0, 0, 0)), classes=CLASSES
    )
    with pytest.raises(CheckpointError, match="another input"):
        opened(folder / "larger", onnx=graph)
    with pytest.raises(CheckpointError, match="no such file"):
        opened(model, onnx=folder / "none.onnx")


def test_models_are_served_each_under_a_name_of_its_own_and_not_too_many(folder, model):
    hosting = opened(model, model)
    assert [each.name for each in hosting.models] == [folder.name, f"{folder.name} (2)"]
    assert hosting.run is None
    assert hosting.awaited == ()
    for sources in ((), (model,) * 17):
        with pytest.raises(ConfigError, match=f"1 to 16 .*got {len(sources)}") as refused:
            opened(*sources)
        assert refused.value.option == "models"


def test_a_model_is_called_after_its_run_or_file(folder, model):
    assert name_of("ViT-Ti/16") == "ViT-Ti/16"
    assert name_of(str(model / "model.safetensors")) == name_of(str(model)) == folder.name
    (folder / "weights.npz").touch()
    assert name_of(str(folder / "weights.npz")) == "weights.npz"


def test_the_engine_that_is_asked_for_on_the_command_line_runs_the_graph(model, graph, monkeypatch):

    asked = []

    def refuse(path, *, engine, threads):
        asked.append(engine)
        raise ConfigError("enough")

    monkeypatch.setattr(open_models_module, "open_runner", refuse)
    for engine in ("openvino", "onnxruntime"):
        with pytest.raises(ConfigError, match="enough"):
            vitrine.serve([str(model)], onnx=graph, engine=engine, port=0, device="cpu")
    assert asked == ["openvino", "onnxruntime"]


def test_bf16_is_that_of_the_predictor_and_an_onnx_file_keeps_its_own_precision(model, graph):
    [hosted] = opened(model, precision="bf16").models
    pixels = torch.stack([hosted.pixels(jpeg(seed), max_pixels=10**6) for seed in range(3)])
    found = torch.stack(hosted.compute(list(pixels), wanted="logits"))
    wanted = Predictor.open(model, device="cpu", precision="bf16").batch(pixels)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, Predictor.open(model, device="cpu").batch(pixels))
    assert hosted.described()["backend"] == "torch, bf16"
    with pytest.raises(ConfigError, match="precision"):
        opened(model, onnx=graph, precision="bf16")
