"""Files for phones: they compute what the model does, in the runtimes that are installed."""

import sys
from pathlib import Path

import pytest
import torch
from unit.exporting.made import loaded, plan

from vitrine.checkpoints import Loaded
from vitrine.errors import ConfigError, MissingExtraError
from vitrine.exporting.edge import EDGE_KINDS, EdgeKind, traced
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.proof import BATCHES, compare, reference

PACKAGES = {
    "executorch": ("executorch.exir", "executorch.runtime"),
    "litert": ("ai_edge_litert", "litert_torch"),
    "coreml": ("coremltools",),
}


def images_of(found: Loaded) -> torch.Tensor:
    """Return three random images of the model's size."""
    config = found.model.config
    return torch.randn(3, config.channels, *config.image_size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("to", EDGE_KINDS)
def test_the_file_computes_what_the_model_does(to: EdgeKind, tmp_path: Path) -> None:
    for package in PACKAGES[to]:
        pytest.importorskip(package)
    found = loaded("class token")
    images = images_of(found)
    made = plan(found, to=to)(tmp_path)
    [subject], [path] = made.subjects, made.files
    assert path.exists() and subject.answer is not None
    check = compare(subject.name, subject.answer, expected=reference(found.model)(images), images=images)
    assert check.agrees and check.batches == BATCHES and check.top1 == 1.0
    assert any("not run by Core ML" in note for note in made.notes) == (to == "coreml")


def test_the_tanh_form_of_gelu_is_written_out_because_converters_replace_it() -> None:
    found = loaded("class token")
    images = images_of(found)[:1]
    program = traced(InferenceModel(found.model), found)
    calls = [node for node in program.graph.nodes if "gelu" in str(node.target)]
    assert all(node.kwargs.get("approximate", "none") == "none" for node in calls)
    expected = reference(found.model)(images)["logits"]
    # fp32 rounding; the erf form would differ a hundred times as much.
    torch.testing.assert_close(program.module()(images)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("to", EDGE_KINDS)
def test_a_missing_package_is_named_with_its_extra(to: EdgeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[to][0].split(".")[0], None)
    monkeypatch.setitem(sys.modules, PACKAGES[to][0], None)
    with pytest.raises(MissingExtraError, match=rf"vitrine\[{to}\]"):
        plan(loaded("class token"), to=to)


def test_copies_of_lower_precision_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower precision"):
        plan(loaded("class token"), to="executorch", int8=True)
