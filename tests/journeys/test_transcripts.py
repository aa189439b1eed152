"""One golden transcript per verb: every word of a typical call, so that words are reviewed in one place.

Numbers, paths and times are normalised. After changing words, write the transcripts anew and read the difference:

    VITRINE_WRITE_TRANSCRIPTS=1 python -m pytest tests/journeys/test_transcripts.py
    git diff tests/journeys/transcripts
"""

from pathlib import Path

import pytest
import torch
from boxes import untrained_box
from pictures import class_folders, photo, save, vtab_lists

import vitrine
from vitrine.checkpoints import locating
from vitrine.commands import VERBS
from vitrine.data.preparing.preprocess import Preprocess

from .commandline import inside
from .golden import FOLDER, assert_transcript

CPU = ("--device", "cpu")
CALLS: dict[str, tuple[str, ...]] = {
    "check": ("photos", "--out", "checked"),
    "finetune": ("photos", "--model", "model", "--steps", "2", "--batch-size", "4", "--out", "run", *CPU),
    "pretrain": ("photos", "--model", "ViT-Ti/16", "--set", "model_options.depth=1", "--steps", "2",
                 "--batch-size", "4", "--size", "16", "--out", "fresh", *CPU),
    "resume": ("trained", "--set", "training.total_steps=4", *CPU),
    "report": ("trained", *CPU),
    "evaluate": ("model", "photos", "--out", "scores", *CPU),
    "predict": ("model", "photos/cat/0.png", *CPU),
    "suggest": ("model", "photos", "--count", "1", "--out", "suggested", *CPU),
    "merge": ("parts",),
    "index": ("model", "photos", "--out", "photos.index", *CPU),
    "search": ("found.index", "photos/cat/0.png", "--count", "2", "--out", "found", *CPU),
    "embed": ("model", "photos", "--out", "features.npy", *CPU),
    "fewshot": ("model", "photos", "--shots", "1,2", "--no-cache", *CPU),
    "inspect": ("model", "photos", "--show", "1", "--out", "inspected", *CPU),
    "export": ("model", "--to", "timm", "--images", "photos", "--out", "exported", "--no-speed"),
    "bench": ("model", "--sizes", "16", "--batches", "1", "--no-peer", "--turns", "1", *CPU),
    "study": ("list", "photos", "--rate", "1"),
    "models": (),
    "recipes": (),
    "plan": ("ViT-B/16", "--rate", "100"),
    "convert": ("model", "converted.npz", "--to", "npz"),
    "dedup": ("photos", "--against", "others", "--out", "compared"),
    "shard": ("photos", "shards"),
    "vtab": ("model", "vtab", "--steps", "1", "--batch-size", "4", "--size", "16", "--out", "tasks", *CPU),
}  # fmt: skip
# A server ends by a signal, and a demonstration takes a while: test_serve and test_demo compare their words.
ELSEWHERE = {"demo", "serve"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("work")
    class_folders(work / "photos")
    save(work / "others" / "cat" / "copy.png", photo(0))
    vtab_lists(work / "vtab", {"svhn": 10})
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=8, depth=2, num_heads=1, mlp_width=8, image_size=16, patch_size=8, num_classes=2
    )
    vitrine.save(model, work / "model", preprocess=Preprocess(size=(16, 16)), classes=("cat", "dog"))
    vitrine.finetune(
        work / "photos", model=work / "model", steps=2, batch_size=4, out=work / "trained", device="cpu"
    )
    untrained_box(work / "box", image_size=32, num_classes=7)
    vitrine.embed(work / "model", work / "photos", out=work / "parts", part_size=4, device="cpu")
    vitrine.index(work / "model", work / "photos", out=work / "found.index", device="cpu")
    return work


def test_every_verb_has_a_transcript() -> None:
    assert {verb.name for verb in VERBS} == {*CALLS, *ELSEWHERE}
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*CALLS, *ELSEWHERE}


@pytest.mark.parametrize("verb", CALLS)
def test_a_typical_call_says_what_its_transcript_says(
    verb: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    monkeypatch.setattr(locating, "BOX_FOLDER", work / "box")
    done = inside(verb, *CALLS[verb])
    assert done.returncode == 0, done.stderr
    assert_transcript((verb, *CALLS[verb]), done.stderr + done.stdout, work)
