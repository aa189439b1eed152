"""Every path and model argument of every verb takes a `str` and a `Path`; one value stands for a list of one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from boxes import untrained_box
from pictures import class_folders

import vitrine
from vitrine.checkpoints import locating
from vitrine.commands import VERBS
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError, DataError

ON_CPU: dict[str, Any] = {"device": "cpu", "workers": 0}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, a model that learns in no time, and another in the place of the bundled one."""
    work = tmp_path_factory.mktemp("work")
    class_folders(work / "photos")
    class_folders(work / "others", first=100)
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, patch_size=8, num_classes=2
    )
    vitrine.save(model, work / "model", preprocess=Preprocess(size=(16, 16)), classes=("cat", "dog"))
    untrained_box(work / "box", image_size=32, num_classes=7)
    return work


CALLS: dict[str, Callable[[Any, Path, Path], object]] = {
    "check": lambda kind, work, out: vitrine.check(kind(work / "photos"), out=kind(out)),
    "finetune": lambda kind, work, out: vitrine.finetune(
        kind(work / "photos"), model=kind(work / "model"), steps=1, batch_size=4, out=kind(out), **ON_CPU
    ),
    "pretrain": lambda kind, work, out: vitrine.pretrain(
        kind(work / "photos"), objective="distillation", teacher=kind(work / "model"), model="ViT-Ti/16",
        set="model_options.depth=1", steps=1, batch_size=4, size=16, out=kind(out), **ON_CPU,
    ),
    "resume": lambda kind, work, out: vitrine.resume(
        kind(trained(work, out)), set="training.total_steps=3", **ON_CPU
    ),
    "report": lambda kind, work, out: vitrine.report(
        kind(trained(work, out)), out=kind(out / "page.html"), **ON_CPU
    ),
    "evaluate": lambda kind, work, out: vitrine.evaluate(
        kind(work / "model"), kind(work / "photos"), out=kind(out), **ON_CPU
    ),
    "predict": lambda kind, work, out: vitrine.predict(
        kind(work / "model"), kind(work / "photos"), out=kind(out.with_suffix(".csv")), **ON_CPU
    ),
    "suggest": lambda kind, work, out: vitrine.suggest(
        kind(work / "model"), [kind(work / "photos")], count=2, out=kind(out), **ON_CPU
    ),
    "index": lambda kind, work, out: vitrine.index(
        kind(work / "model"), kind(work / "photos"), out=kind(out), **ON_CPU
    ),
    "search": lambda kind, work, out: vitrine.search(
        kind(indexed(work, out)), kind(work / "photos"), out=kind(out / "found"), device="cpu"
    ),
    "merge": lambda kind, work, out: vitrine.merge(kind(in_parts(work, out))),
    "embed": lambda kind, work, out: vitrine.embed(
        kind(work / "model"), [kind(work / "photos")], out=kind(out.with_suffix(".npy")), **ON_CPU
    ),
    "fewshot": lambda kind, work, out: vitrine.fewshot(
        kind(work / "model"), kind(work / "photos"), shots=[1, 2], l2=[1, 8.0], cache_dir=kind(out), **ON_CPU
    ),
    "inspect": lambda kind, work, out: vitrine.inspect(
        kind(work / "model"), kind(work / "photos"), out=kind(out), show=1, **ON_CPU
    ),
    "export": lambda kind, work, out: vitrine.export(
        kind(work / "model"), to="timm", images=kind(work / "photos"), data=kind(work / "photos"), out=kind(out),
        speed=False, workers=0,
    ),
    "bench": lambda kind, work, out: vitrine.bench(
        kind(work / "model"), sizes=16, batches=[1, 2], device="cpu", peer=False, turns=1
    ),
    "study": lambda kind, work, out: vitrine.study("list", kind(work / "photos"), out=kind(out), rate=1.0),
    "convert": lambda kind, work, out: vitrine.convert(
        kind(work / "model"), kind(out.with_suffix(".npz")), to="npz", images=kind(work / "photos/cat/0.png")
    ),
    "dedup": lambda kind, work, out: vitrine.dedup(
        kind(work / "photos"), against=kind(work / "others"), model=kind(work / "model"), out=kind(out),
        device="cpu",
    ),
    "shard": lambda kind, work, out: vitrine.shard(kind(work / "photos"), kind(out)),
}  # fmt: skip
# These would take long; what they make of a path shows where it is refused.
REFUSED: dict[str, Callable[[Any, Path, Path], object]] = {
    "vtab": lambda kind, work, out: vitrine.vtab(kind(work / "model"), kind(work / "photos"), out=kind(out)),
    "demo": lambda kind, work, out: vitrine.demo(out=kind(work / "photos")),
    "serve": lambda kind, work, out: vitrine.serve(kind(out / "gone"), port=0, device="cpu"),
}
WITHOUT_PATHS = {"models", "recipes", "plan"}


def in_parts(work: Path, out: Path) -> Path:
    vitrine.embed(work / "model", work / "photos", out=out, device="cpu", workers=0)
    return out


def indexed(work: Path, out: Path) -> Path:
    vitrine.index(work / "model", work / "photos", out=out / "index", **ON_CPU)
    return out / "index"


def trained(work: Path, out: Path) -> Path:
    vitrine.finetune(work / "photos", model=work / "model", steps=2, batch_size=4, out=out, **ON_CPU)
    return out


@pytest.fixture(autouse=True)
def here(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locating, "BOX_FOLDER", work / "box")


def test_every_verb_is_called_here() -> None:
    assert {verb.name for verb in VERBS} == {*CALLS, *REFUSED, *WITHOUT_PATHS}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("verb", CALLS)
def test_a_verb_takes_text_and_paths(verb: str, kind: type, work: Path, tmp_path: Path) -> None:
    result = CALLS[verb](kind, work, tmp_path / "out")
    assert result is not None


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("verb", REFUSED)
def test_a_place_that_cannot_be_used_is_refused_and_not_a_type_error(
    verb: str, kind: type, work: Path, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError, CheckpointError)):
        REFUSED[verb](kind, work, tmp_path / "out")
