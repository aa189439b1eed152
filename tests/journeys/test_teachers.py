"""Learning from a teacher, one's own average or another model: run, stop, go on, on one process and on two."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from journeys.commandline import assert_refused, inside, losses
from journeys.test_many_processes import on_processes, pretrain, resume
from journeys.test_training import SHAPES, SMALL, interrupted, same_run
from journeys.test_without_labels import records
from PIL import Image
from safetensors.torch import load_file
from variations import costly

import vitrine
from vitrine.checkpoints import save
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.opening import open_splits
from vitrine.errors import CheckpointError, ConfigError
from vitrine.models import create_model

HEAD = (
    "self_distillation.num_prototypes=24", "self_distillation.hidden_width=16",
    "self_distillation.bottleneck_width=8", "self_distillation.momentum=0.9", "multi_crop.num_local=2",
)  # fmt: skip
# The same by the names of today.
HIDING = tuple(
    setting.replace("self_distillation.", "objective.").replace("multi_crop.", "objective.multi_crop.")
    for setting in HEAD
)
CONTRAST = ("objective.hidden_width=16", "objective.output_width=8")
DINO = ("--objective", "dino", *(word for setting in HEAD for word in ("--set", setting)))
TOKEN = ("--set", "model_options.pooling=class_token", "--set", "model_options.has_distillation_token=true")
FIXED = ("--set", "views.crop=none", "--set", "views.flip=false", "--set", "distillation.caches=true")
STATISTICS = {"val_loss", "val_knn_accuracy", "val_feature_rank", "val_feature_spread", "val_collapsed"}


def distillation(teacher: Path, *settings: str) -> tuple[str, ...]:
    given = (word for setting in settings for word in ("--set", f"distillation.{setting}"))
    return ("--objective", "distillation", "--teacher", str(teacher), *given)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two teachers with patches of 7: one of features at 56 px, one that knows the classes of the data."""
    root = tmp_path_factory.mktemp("teachers")
    classes = open_splits(SHAPES)["train"].classes
    shape = {"width": 24, "depth": 1, "num_heads": 2, "mlp_width": 24, "patch_size": 7, "image_size": 56}
    for name, names in (("features", None), ("answers", list(classes))):
        torch.manual_seed(1)
        model = create_model("ViT", num_classes=None if names is None else len(names), **shape)
        if model.head is not None:
            torch.nn.init.normal_(model.head.weight)
        rule = Preprocess(size=(56, 56), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
        save(model.eval(), root / name, preprocess=rule, classes=names)
    return root


def all_kinds(teachers: Path) -> dict[str, tuple[str, ...]]:
    features, answers = teachers / "features", teachers / "answers"
    return {
        "dino": DINO,
        "ibot": ("--objective", "ibot", *(word for setting in HIDING for word in ("--set", setting))),
        "moco": ("--objective", "moco", *(word for setting in CONTRAST for word in ("--set", setting))),
        "features": distillation(features),
        "kept features": (*distillation(features), *FIXED),
        "soft": distillation(answers, "learns=soft-logits", "label_share=0.9"),
        "hard, by a token": (*distillation(answers, "learns=hard-logits"), *TOKEN),
    }


KINDS = ("dino", "ibot", "moco", "features", "kept features", "soft", "hard, by a token")


@pytest.mark.parametrize("kind", costly(KINDS, quick=("ibot", "kept features", "hard, by a token")))
def test_a_run_that_was_stopped_goes_on_to_the_same_bits_and_its_model_fine_tunes(
    tmp_path: Path, teachers: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    options = (*SMALL, *all_kinds(teachers)[kind], "--steps", "8", "--evaluate-every", "3")
    done = inside("pretrain", SHAPES, *options, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    broken = interrupted(SHAPES, *options, "--out", tmp_path / "broken")
    assert inside("resume", broken).returncode == 0
    same_run(tmp_path / "whole", broken)
    whole, again = (
        load_file(run / "checkpoints" / "last.safetensors") for run in (tmp_path / "whole", broken)
    )
    assert whole.keys() == again.keys() and all((whole[name] == again[name]).all() for name in whole)

    evaluated = [record for record in records(tmp_path / "whole") if "val_loss" in record]
    assert evaluated == [record for record in records(broken) if "val_loss" in record]
    has_head = kind in ("soft", "hard, by a token")
    assert (
        {"val_loss", "val_accuracy"} <= evaluated[-1].keys()
        if has_head
        else evaluated[-1].keys() >= STATISTICS
    )
    if not has_head:
        sheets = list((broken / "pictures").iterdir())
        # The picture, large and small views, attention; or the picture and two models' attention.
        rows = {"dino": 6, "ibot": 6, "moco": 4}.get(kind, 3)
        assert len(sheets) == 3 and all(Image.open(sheet).size == (8 * 34, rows * 34) for sheet in sheets)
    tuned = inside(
        "finetune", SHAPES, "--model", broken, "--steps", "2", "--batch-size", "8", "--device", "cpu",
        "--workers", "0", "--out", tmp_path / "tuned",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr


def test_the_saved_model_of_self_distillation_is_the_teacher(tmp_path: Path) -> None:
    done = inside("pretrain", SHAPES, *SMALL, *DINO, "--steps", "4", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    state = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    for name, value in vitrine.load(tmp_path / "run").model.state_dict().items():
        assert torch.equal(value, state[f"model.teacher.vit.{name}"]), name
    assert not torch.equal(state["model.vit.norm.weight"], state["model.teacher.vit.norm.weight"])
    assert not any(name.startswith("optimizer.teacher") for name in state)
    assert state["model.center"].any()


def test_a_teacher_is_asked_at_the_size_that_gives_the_students_grid(tmp_path: Path, teachers: Path) -> None:
    """The student has 4 x 4 patches of 8 px, the teacher patches of 7: 28 px, positions resampled from 8 x 8."""
    done = inside(
        "pretrain",
        SHAPES,
        *SMALL,
        *distillation(teachers / "features"),
        "--steps",
        "2",
        "--out",
        tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    assert "features at 28x28 px" in done.stderr
    sheet = Image.open(tmp_path / "run" / "pictures" / "step-2.png")
    assert sheet.size == (8 * 34, 3 * 34)  # picture, where the student looks, where the teacher looks


def test_the_distillation_token_is_part_of_the_saved_model_and_its_heads_are_averaged(
    tmp_path: Path, teachers: Path
) -> None:
    options = (*distillation(teachers / "answers", "learns=hard-logits"), *TOKEN, "--steps", "3")
    assert inside("pretrain", SHAPES, *SMALL, *options, "--out", tmp_path / "run").returncode == 0
    model = vitrine.load(tmp_path / "run").model
    assert model.config.has_distillation_token
    images = torch.randn(2, 3, 32, 32)
    features = model.features(images)
    by_labels = model.head(features["representation"])
    assert torch.allclose(model(images), (by_labels + features["distillation_logits"]) / 2, atol=1e-6)
    assert not torch.equal(by_labels, features["distillation_logits"])


def test_kept_features_are_found_again_and_agree_with_those_worked_out_on_the_way(
    tmp_path: Path, teachers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher that sees the student's very pixels says the same either way."""
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    options = (*SMALL, *distillation(teachers / "features", "teacher_size=35"), "--steps", "3")
    kept = ("--set", "views.crop=none", "--set", "views.flip=false")
    assert (
        inside("pretrain", SHAPES, *options, *kept, *FIXED[-2:], "--out", tmp_path / "kept").returncode == 0
    )
    files = list((tmp_path / "cache" / "features").iterdir())
    assert len(files) == 1
    before = files[0].stat().st_mtime_ns
    assert (
        inside("pretrain", SHAPES, *options, *kept, *FIXED[-2:], "--out", tmp_path / "again").returncode == 0
    )
    assert files[0].stat().st_mtime_ns == before
    same_run(tmp_path / "kept", tmp_path / "again")
    assert inside("pretrain", SHAPES, *options, *kept, "--out", tmp_path / "asked").returncode == 0
    # 32 px enlarged to 35 by Pillow on uint8 or by torch on floats: half a level of 255 in rounding.
    assert losses(tmp_path / "kept") == pytest.approx(losses(tmp_path / "asked"), rel=0.02)


ALARM = (
    "--steps", "40", "--evaluate-every", "40", "--set", "training.warmup_steps=5", "--lr", "1e-3", "--batch-size",
    "16", "--set", "self_distillation.teacher_temperature=0.04", "--set", "self_distillation.num_prototypes=64",
)  # fmt: skip


@pytest.mark.parametrize(
    ("collapses", "settings"),
    [
        (False, ()),
        (True, ("centers=false", "scales=false")),  # one answer for all images
        (
            True,
            ("scales=false", "teacher_temperature=1", "first_teacher_temperature=1", "student_temperature=1"),
        ),
    ],
)
def test_the_alarm_rings_where_outputs_collapse_and_only_there(
    tmp_path: Path, collapses: bool, settings: tuple[str, ...]
) -> None:
    given = [word for setting in settings for word in ("--set", f"self_distillation.{setting}")]
    done = inside("pretrain", SHAPES, *SMALL, *DINO, *ALARM, *given, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    last = records(tmp_path / "run")[-1]
    assert last["val_collapsed"] == float(collapses)
    sentence = "The representation has collapsed: the teacher's outputs carry"
    assert (sentence in done.stderr) == collapses
    assert ("The representation has collapsed" in done.stdout) == collapses
    assert (last["val_output_information"] < 0.01) == collapses


@pytest.mark.slow
def test_two_processes_whole_or_sharded_stopped_or_not_learn_what_one_learns(
    tmp_path: Path, teachers: Path
) -> None:
    """Views depend on the image alone, centres are shared: the same numbers on any number of processes."""
    small = [
        "model_options.width=32",
        "model_options.depth=2",
        "model_options.mlp_width=64",
        "training.average_decay=0.9",
    ]
    kinds = {
        "dino": {"objective": "dino", "set": [*small, *HEAD, "training.micro_batch=5"]},
        "ibot": {"objective": "ibot", "set": [*small, *HIDING, "training.micro_batch=5"]},
        "moco": {"objective": "moco", "set": [*small, *CONTRAST]},
        "simclr": {"objective": "simclr", "set": [*small, *CONTRAST]},
        "features": {"objective": "distillation", "teacher": str(teachers / "features"), "set": small},
        "token": {
            "objective": "distillation", "teacher": str(teachers / "answers"),
            "set": [*small, *TOKEN[1::2], "distillation.learns=hard-logits"],
        },
    }  # fmt: skip
    alone = [pretrain(tmp_path / kind / "one", **given) for kind, given in kinds.items()]
    compiled = {**kinds["dino"], "set": [*kinds["dino"]["set"], "training.compile=true"]}
    assert on_processes(1, [*alone, pretrain(tmp_path / "compiled", **compiled)]) == ["0"] * (len(kinds) + 1)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "dino" / "one"), rel=1e-5)
    jobs = []
    for kind, given in kinds.items():
        place = tmp_path / kind
        jobs += [
            pretrain(place / "two", **given),
            pretrain(place / "stopped", stop_after=3, **given),
            resume(place / "stopped"),
            pretrain(place / "sharded", shard=True, stop_after=3, **given),
            resume(place / "sharded"),
        ]
    assert [end.split()[0] for end in on_processes(2, jobs)] == ["0", "130", "0", "130", "0"] * len(kinds)
    for kind in kinds:
        one, two, stopped, sharded = (tmp_path / kind / name for name in ("one", "two", "stopped", "sharded"))
        same_run(two, stopped)
        expected = load_file(one / "model" / "model.safetensors")
        for run in (two, sharded):
            # Sums over the batch in another order: see test_many_processes.py.
            assert losses(run) == pytest.approx(losses(one), rel=1e-4), kind
            for name, value in load_file(run / "model" / "model.safetensors").items():
                if not (
                    name == "norm.bias" and kind in ("moco", "simclr")
                ):  # batch normalisation takes it out
                    assert torch.allclose(*without_keys(name, value, expected[name]), atol=1e-4), (kind, name)


def without_keys(name: str, *values: torch.Tensor) -> list[torch.Tensor]:
    """Leave out the bias of keys, which softmax takes out: its gradient is rounding, and Adam steps by it."""
    if not name.endswith("to_qkv.bias"):
        return list(values)
    return [torch.cat([value.chunk(3)[0], value.chunk(3)[2]]) for value in values]


def test_what_does_not_go_together_is_refused_in_one_sentence(tmp_path: Path, teachers: Path) -> None:
    out = ("--steps", "2", "--out", tmp_path / "run")

    def refused(*options: str | Path) -> tuple[object, ...]:
        return (inside("pretrain", SHAPES, *SMALL, *options, *out),)

    assert_refused(
        *refused("--objective", "distillation"), "distillation", error=ConfigError, advice=["teacher"]
    )
    assert_refused(*refused("--teacher", "x"), "objective labels", error=ConfigError, option="teacher")
    assert_refused(
        *refused("--objective", "distillation", "--teacher", "ViT-B/16"), "ViT-B/16 has fresh weights"
    )
    features, answers = teachers / "features", teachers / "answers"
    assert_refused(
        *refused(*distillation(features, "learns=hard-logits")), "cannot teach logits", "it has no head"
    )
    other = "generated:shapes?count=32&size=32&label=shape"
    unlike = inside("pretrain", other, *SMALL, *distillation(answers, "learns=hard-logits"), *out)
    assert_refused(unlike, "8 classes", "10;", error=ConfigError, option="teacher", advice=["finetune"])
    assert_refused(*refused(*distillation(features, "caches=true")), "objective.caches", error=ConfigError)
    assert_refused(
        *refused(*DINO, "--set", "multi_crop.local_size=12"),
        "multi_crop.local_size",
        "8 px, got 12;",
        "8 and 16",
        error=ConfigError,
    )
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_gone_on_with_under_another_teacher(tmp_path: Path, teachers: Path) -> None:
    shutil.copytree(teachers / "features", tmp_path / "teacher")
    run = interrupted(
        SHAPES, *SMALL, *distillation(tmp_path / "teacher"), "--steps", "8", "--out", tmp_path / "run"
    )
    assert json.loads((run / "run.json").read_text())["teacher"]
    shutil.rmtree(tmp_path / "teacher")
    shutil.copytree(teachers / "answers", tmp_path / "teacher")
    model = vitrine.load(tmp_path / "teacher")
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    save(model.model, tmp_path / "teacher", preprocess=model.preprocess, overwrite=True)
    assert_refused(inside("resume", run), "teacher", "have changed", error=CheckpointError)
