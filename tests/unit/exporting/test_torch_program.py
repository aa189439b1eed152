"""A program of torch: any number of images, and in a form that ExecuTorch can lower."""

from pathlib import Path

import pytest
import torch
from unit.exporting.made import loaded
from variations import costly

from vitrine.exporting import InferenceModel
from vitrine.exporting.targets import open_program, write_program

KINDS = (
    "class token",
    "average pooling",
    "relative positions",
    "distillation token",
    "BiT for small pictures",
    "AxialResNet for small pictures",
)


def written(kind: str, folder: Path) -> Path:
    found = loaded(kind)
    write_program(InferenceModel(found.model), folder / "model.pt2", record=found.record)
    return folder / "model.pt2"


@pytest.mark.parametrize("kind", costly(KINDS, quick=["class token"]))
def test_decomposed_to_core_operators_the_batch_stays_free(kind: str, tmp_path: Path) -> None:
    program = torch.export.load(written(kind, tmp_path)).run_decompositions()
    # ExecuTorch, which retraces what is split, would fix the batch size at that of the example.
    assert not [node for node in program.graph.nodes if "split" in str(node.target)]
    model, config = loaded(kind).model, loaded(kind).model.config
    for size in (1, 3):
        images = torch.randn(size, config.channels, *config.image_size)
        with torch.inference_mode():
            expected = model(images)
            torch.testing.assert_close(program.module()(images)[0], expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                open_program(tmp_path / "model.pt2")(images)[0], expected, rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("kind", costly(KINDS, quick=["class token"]))
def test_executorch_lowers_it_and_computes_the_same(kind: str, tmp_path: Path) -> None:
    exir = pytest.importorskip("executorch.exir")
    runtime = pytest.importorskip("executorch.runtime")
    lowered = exir.to_edge(torch.export.load(written(kind, tmp_path))).to_executorch()
    method = runtime.Runtime.get().load_program(lowered.buffer).load_method("forward")
    model = loaded(kind).model
    for size in (2, 1):
        images = torch.randn(size, model.config.channels, *model.config.image_size)
        with torch.inference_mode():
            expected = model(images)
        torch.testing.assert_close(method.execute([images])[0], expected, rtol=1e-4, atol=1e-4)
