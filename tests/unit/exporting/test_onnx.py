"""ONNX files: what they compute, what they say of themselves, how they are refused."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from unit.exporting.made import CLASSES, loaded, plan
from variations import costly

from vitrine.checkpoints import load
from vitrine.checkpoints.reading.onnx_file import read_metadata
from vitrine.errors import CheckpointError, ConfigError, MissingExtraError
from vitrine.exporting import InferenceModel, onnx_graph, open_runner
from vitrine.exporting.exported import Exported, Subject
from vitrine.exporting.onnx_files import export_onnx
from vitrine.exporting.proof import BATCHES, answers_of, compare, reference

# Each has operators that no other has; what they all are in torch is in test_inference_model.py.
GRAPHS = ("class token", "attention pooling", "relative positions", "registers", "distillation token", "qk-norm",
          "norm after pooling", "non-square", "hybrid", "BiT", "AxialResNet", "Axial-DeepLab")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """One export in all three precisions."""
    folder = tmp_path_factory.mktemp("export")
    found = loaded("class token")
    return folder, export_onnx(
        InferenceModel(found.model), found, folder, precisions=["fp32", "fp16", "int8"]
    )


@pytest.fixture(scope="module")
def exported(made: tuple[Path, Exported]) -> tuple[Path, tuple[Subject, ...]]:
    return made[0], made[1].subjects


@pytest.mark.parametrize("kind", costly(GRAPHS, quick=["class token", "attention pooling"]))
def test_the_file_computes_what_the_model_does_for_one_two_and_five_images(
    kind: str, tmp_path: Path, made: tuple[Path, Exported]
) -> None:
    found, folder = loaded(kind), made[0]
    if kind != "class token":  # of which there is an export already
        folder = tmp_path
        onnx_graph.write_onnx(InferenceModel(found.model), folder / "model.onnx", record=found.record)
    runner = open_runner(folder)
    shape = (7, found.model.config.channels, *found.model.config.image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = found.model.features(images)
    for size in BATCHES:
        answers = runner(images[:size].numpy())
        assert answers.logits is not None
        for found, wanted in (
            (answers.logits, expected["logits"]),
            (answers.embedding, expected["representation"]),
        ):
            # fp32 rounding; over BiT's 26 convolutions it comes to 6e-6 of the largest. New attention along lines
            # averages almost evenly, and group norm scales up what is left: 2e-5 in torch, beside float64.
            limit = (1e-4 if kind == "AxialResNet" else 2e-5) * max(1.0, wanted.abs().max().item())
            np.testing.assert_allclose(found, wanted[:size], rtol=0, atol=limit)


def test_the_file_carries_names_and_preprocessing_and_nothing_of_this_machine(
    exported: tuple[Path, object],
) -> None:
    folder, _ = exported
    for name in ("model.onnx", "model.fp16.onnx", "model.int8.onnx"):
        proto = onnx.load(folder / name)
        assert [given.name for given in proto.graph.input] == ["pixels"]
        assert [given.name for given in proto.graph.output] == ["logits", "embedding"]
        assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
        assert {found.domain for found in proto.opset_import} <= {"", "ai.onnx", "com.microsoft"}
        assert not re.search(rb"\.py\b|/src/|site-packages", (folder / name).read_bytes())
        runner = open_runner(folder / name)
        assert runner.classes == CLASSES
        assert runner.preprocess == loaded("class token").preprocess
    assert {node.domain for node in onnx.load(folder / "model.onnx").graph.node} == {""}


@pytest.mark.parametrize("name", ["model.onnx", "model.fp16.onnx", "model.int8.onnx"])
def test_onnx_accepts_every_file(exported: tuple[Path, object], name: str) -> None:
    onnx.checker.check_model(exported[0] / name, full_check=True)


def test_nodes_out_of_order_are_sorted_and_otherwise_keep_their_order(exported: tuple[Path, object]) -> None:
    graph = onnx.load(exported[0] / "model.onnx").graph
    before = [node.name for node in graph.node]
    onnx_graph.sort_nodes(graph)
    assert [node.name for node in graph.node] == before
    nodes = list(graph.node)[::-1]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx_graph.sort_nodes(graph)
    made = {"", *(part.name for part in (*graph.initializer, *graph.input))}
    for node in graph.node:
        assert made.issuperset(node.input)
        made.update(node.output)


def test_a_graph_that_onnx_refuses_is_never_written(tmp_path: Path, exported: tuple[Path, object]) -> None:
    proto = onnx.load(exported[0] / "model.onnx")
    proto.graph.node[3].op_type = "NoSuchOperator"
    with pytest.raises(CheckpointError, match="onnx refuses"):
        onnx_graph.save_graph(proto, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_int8_says_that_answers_depend_on_the_batch(made: tuple[Path, Exported]) -> None:
    assert any("batch" in note for note in made[1].notes)


def test_the_words_of_a_file_are_read_without_the_onnx_package(exported: tuple[Path, object]) -> None:
    path = exported[0] / "model.onnx"
    assert read_metadata(path) == {found.key: found.value for found in onnx.load(path).metadata_props}


def test_a_graph_is_no_model_again_and_says_so(exported: tuple[Path, object]) -> None:
    for place in (exported[0], exported[0] / "model.int8.onnx"):
        with pytest.raises(CheckpointError, match=f"{place.name}.* is an ONNX export") as refused:
            load(place)
        assert [advice.verb for advice in refused.value.advice] == ["serve"]


def test_smaller_copies_are_smaller_and_near(exported: tuple[Path, tuple[Subject, ...]]) -> None:
    folder, subjects = exported
    model = loaded("class token").model
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    expected = answers_of(reference(model), images)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.onnx")}
    assert sizes["model.fp16.onnx"] < 0.7 * sizes["model.onnx"]
    assert sizes["model.int8.onnx"] < 0.7 * sizes["model.onnx"]
    near = {
        "fp32": 1e-6,
        "fp16": 5e-3,
        "int8": 0.1,
    }  # of the largest logit: 2^-11 and 2^-7, over a few layers
    for subject in subjects:
        assert subject.answer is not None
        check = compare(
            subject.name, subject.answer, expected=expected, images=images, precision=subject.precision
        )
        assert check.largest is not None and check.scale is not None
        assert check.largest <= near[subject.precision] * max(1, check.scale)
        assert check.batches == BATCHES
        assert check.agrees is (True if subject.precision == "fp32" else None)
        assert (check.largest > 0) or subject.precision == "fp32"


def test_a_wrong_answer_is_found_out(exported: tuple[Path, tuple[Subject, ...]]) -> None:
    images = torch.randn(3, 3, 32, 32)
    answer = exported[1][0].answer
    assert answer is not None
    expected = answers_of(reference(loaded("class token").model), images)

    def constant(found: torch.Tensor) -> dict[str, torch.Tensor]:
        return answer(images[:1].expand(len(found), -1, -1, -1))

    check = compare("broken", constant, expected=expected, images=images)
    assert check.agrees is False
    assert check.top1 is not None


def test_pixels_of_another_size_are_refused_in_words(exported: tuple[Path, object]) -> None:
    runner = open_runner(exported[0])
    pixels = np.zeros((1, 3, 16, 16), dtype=np.float32)
    with pytest.raises(ConfigError, match=rf"3, 32, 32\), got {re.escape(str(pixels.shape))}"):
        runner(pixels)


def test_what_is_no_export_is_refused_in_words(exported: tuple[Path, object], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path.name} .*no model.onnx"):
        open_runner(tmp_path)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_runner(tmp_path / "none")
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(CheckpointError, match=r"model\.onnx .*ONNX file"):
        open_runner(tmp_path)
    proto = onnx.load(exported[0] / "model.onnx")
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(CheckpointError, match="was not exported by Vitrine"):
        open_runner(tmp_path)
    with pytest.raises(CheckpointError, match="there is fp32, bf16"):
        open_runner(tmp_path, precision="int8")
    with pytest.raises(ConfigError, match=r"engine .*openvino, got 'tensorrt'"):
        open_runner(exported[0], engine="tensorrt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"onnxruntime .*bf16 .*openvino$"):
        open_runner(exported[0], precision="bf16")


def test_what_cannot_be_written_is_refused_before_anything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as refused:
        plan(loaded("BiT"), to="onnx", int8=True)
    assert refused.value.option == "int8"
    with pytest.raises(ConfigError) as caught:
        plan(loaded("class token"), to="timm", fp16=True)
    assert caught.value.option == "fp16"
    with pytest.raises(CheckpointError, match="average pooling"):
        plan(loaded("average pooling"), to="hf")
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="at most 2 GiB") as refused:
        plan(loaded("class token"), to="onnx")
    assert [(advice.option, advice.value) for advice in refused.value.advice] == [("to", "torch-export")]


def test_openvino_computes_the_same_where_it_is_installed(exported: tuple[Path, object]) -> None:
    pytest.importorskip("openvino")
    images = np.random.default_rng(0).normal(size=(5, 3, 32, 32)).astype(np.float32)
    expected = open_runner(exported[0])(images)
    found = open_runner(exported[0], engine="openvino")(images)
    for name, value in dataclasses.asdict(expected).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_an_export_is_refused_before_anything_is_written_where_a_package_is_missing(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as refused:
        plan(loaded("class token"), to="onnx")
    assert (refused.value.package, refused.value.extra) == (package, "export")
