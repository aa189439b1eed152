"""VTAB from lists of files to table and figure, with real training of a tiny model."""

import json

import pytest
import torch
from pictures import vtab_lists

import vitrine
from vitrine.cli.lines import rendered
from vitrine.cli.views.vtab import lines
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, DataError
from vitrine.models import create_model
from vitrine.runtime.run_folder import RunFolder

from .commandline import refusal

TASKS = {"svhn": 10, "clevr_count": 8}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two tasks in the community's layout; the label is the brightness."""
    root = tmp_path_factory.mktemp("vtab")
    vtab_lists(root, TASKS)
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    model = create_model(
        "ViT-B/16", image_size=16, num_classes=3, patch_size=8, width=16, depth=1, num_heads=2, mlp_width=32
    )
    folder = tmp_path_factory.mktemp("weights") / "model"
    vitrine.save(model, folder, preprocess=Preprocess(size=(16, 16)), classes=("a", "b", "c"))
    return str(folder)


def test_vtab_trains_scores_writes_and_goes_on(root, weights, tmp_path):
    options = {
        "steps": 3,
        "batch_size": 8,
        "size": 16,
        "device": "cpu",
        "workers": 0,
        "out": tmp_path / "out",
    }
    result = vitrine.vtab(weights, root, **options)
    assert [score.task for score in result.scores.scores] == ["SVHN", "Clevr-Count"]
    assert [score.num_test for score in result.scores.scores] == [20, 20]
    assert result.scores.protocol.startswith("vit ") and "steps 3, batch 8, size" in result.scores.protocol
    assert result.scores.protocol.endswith("size 16")
    text = "\n".join(rendered(lines(result), width=200))
    assert "Natural: incomplete" in text and "2 of 19 tasks" in text and "not a VTAB score" in text
    assert (result.count, result.mean) == ("2 of 19", None)
    assert {path.name for path in result.wrote} == {"vtab.md", "vtab.png"}
    kept = json.loads((tmp_path / "out" / "tasks" / "SVHN.json").read_text())
    assert kept["score"]["num_test"] == 20
    assert not list((tmp_path / "out").rglob("*.safetensors"))  # weights are not kept unless asked
    assert not list(root.rglob("*.json"))  # nothing is written into the data
    stamp = (tmp_path / "out" / "tasks" / "SVHN.json").stat().st_mtime_ns
    again = vitrine.vtab(weights, root, **options)
    assert again.scores == result.scores
    assert (tmp_path / "out" / "tasks" / "SVHN.json").stat().st_mtime_ns == stamp


def test_two_vtab_in_one_folder_do_not_mix(root, weights, tmp_path):
    (tmp_path / "out").mkdir()
    with (
        RunFolder(tmp_path / "out").locked(),
        pytest.raises(ConfigError, match="another process is writing to"),
    ):
        vitrine.vtab(weights, root, steps=1, device="cpu", workers=0, out=tmp_path / "out")


def test_vtab_refuses_a_root_that_is_none_and_unknown_tasks(root, weights, tmp_path):
    with refusal(DataError, f"{tmp_path / 'empty'} ", "the 19 task folders"):
        (tmp_path / "empty").mkdir()
        vitrine.vtab(weights, tmp_path / "empty", out=tmp_path / "out")
    with refusal(ConfigError, "'svnh'", "did you mean SVHN?"):
        vitrine.vtab(weights, root, tasks="svnh", out=tmp_path / "out")
    with pytest.raises(ConfigError) as refused:
        vitrine.vtab(weights, root, steps=0, out=tmp_path / "out")
    assert refused.value.option == "steps"
