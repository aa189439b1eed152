"""Pre-training and resuming from the command line: what is promised when all goes well and when it does not."""

import errno
import json
import os
import random
import signal
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from journeys.commandline import assert_refused, inside, losses, started, wait_for_records
from pictures import class_folders, photo, save
from safetensors.torch import load_file
from variations import costly

from vitrine.errors import CheckpointError, ConfigError, DataError, MissingCheckpointError
from vitrine.recipes.recipe_values import from_yaml
from vitrine.training import saving
from vitrine.training.loop import Run
from vitrine.training.stopping import SIGNALS, NotFiniteError

SHAPES = "generated:shapes?count=64&size=32&label=colour"
SMALL = (
    "--recipe", "demo", "--batch-size", "8", "--log-every", "1", "--checkpoint-every", "3", "--device", "cpu",
    "--workers", "0", "--set", "model_options.depth=1", "--set", "model_options.width=32", "--set",
    "model_options.mlp_width=32",
)  # fmt: skip
ALL = (
    "--set",
    "training.average_decay=0.9",
    "--set",
    "model_options.dropout=0.1",
    "--set",
    "augment.mixup=0.2",
)


def same_run(left: Path, right: Path) -> None:
    assert losses(left) == losses(right)
    one, other = (load_file(run / "model" / "model.safetensors") for run in (left, right))
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


def interrupted(*arguments: str | Path, after: int = 4) -> Path:
    """Run `vitrine pretrain` and stop it after a step, as Ctrl-C does; return its folder."""
    log = Run.log

    def stop(self: Run, *given: object, **options: object) -> str:
        self.wants_to_stop = self.state.step == after
        return log(self, *given, **options)

    with mock.patch.object(Run, "log", stop):
        done = inside("pretrain", *arguments)
    assert done.returncode == 130, done.stderr
    return Path(arguments[arguments.index("--out") + 1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of forty steps that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    done = inside("pretrain", SHAPES, *SMALL, *ALL, "--steps", "40", "--out", run)
    assert done.returncode == 0, done.stderr
    assert "Wrote" in done.stdout and "Next: " in done.stdout
    return run


def test_a_run_killed_at_a_random_step_goes_on_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    step = random.randrange(1, 30)
    process = started("pretrain", SHAPES, *SMALL, *ALL, "--steps", "40", "--out", tmp_path / "run")
    wait_for_records(tmp_path / "run", step)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (tmp_path / "run" / "model").exists()
    done = inside("resume", tmp_path / "run")
    assert done.returncode == 0, f"killed after step {step}: {done.stderr}"
    same_run(tmp_path / "run", whole)


# The loop's own test sends every signal to this process (tests/unit/training/test_loop.py).
@pytest.mark.parametrize("number", costly(SIGNALS, quick=[signal.SIGTERM]))
def test_a_signal_saves_and_exits_with_130_and_resume_completes(
    tmp_path: Path, whole: Path, number: signal.Signals
) -> None:
    process = started("pretrain", SHAPES, *SMALL, *ALL, "--steps", "40", "--out", tmp_path / "run")
    wait_for_records(tmp_path / "run", 5)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"run vitrine resume {tmp_path / 'run'} to continue" in said and "Traceback" not in said
    assert inside("resume", tmp_path / "run").returncode == 0
    same_run(tmp_path / "run", whole)


def test_a_run_that_is_being_trained_belongs_to_that_process_alone(tmp_path: Path, whole: Path) -> None:
    """Two that write to one folder would spoil it for both."""
    run = tmp_path / "run"
    process = started("pretrain", SHAPES, *SMALL, *ALL, "--steps", "40", "--out", run)
    wait_for_records(run, 5)
    process.send_signal(signal.SIGSTOP)
    before = (run / "config.yaml").read_bytes(), (run / "log.txt").read_bytes()
    for command in (
        ("resume", run, "--set", "training.lr=1e-5"),
        ("pretrain", SHAPES, *SMALL, "--out", run, "--overwrite"),
    ):
        assert_refused(inside(*command), "another process is writing to", "stop it first")
    assert before == ((run / "config.yaml").read_bytes(), (run / "log.txt").read_bytes())
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=100)
    assert process.returncode == 0
    same_run(run, whole)
    assert not list(tmp_path.rglob(".*.lock"))


def test_an_interruption_before_the_first_step_is_said_and_leaves_no_run(tmp_path: Path) -> None:
    def interrupted(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    with mock.patch("vitrine.runs.run_data.open_splits", interrupted):
        done = inside("pretrain", SHAPES, *SMALL, "--steps", "8", "--out", tmp_path / "run")
    assert_refused(done, "vitrine: interrupted", code=130)
    assert not (tmp_path / "run").exists()


def test_config_yaml_repeats_a_run(tmp_path: Path, whole: Path) -> None:
    options = ("--device", "cpu", "--workers", "0", "--out", tmp_path / "again")
    done = inside("pretrain", SHAPES, "--recipe", whole / "config.yaml", *options)
    assert done.returncode == 0, done.stderr
    same_run(tmp_path / "again", whole)


def test_the_run_folder_holds_what_is_needed_to_repeat_and_to_judge_the_run(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names >= {
        "config.yaml", "command.txt", "environment.json", "classes.json", "data.json", "metrics.jsonl",
        "checkpoints", "model", "run.json", "log.txt",
    }  # fmt: skip
    said = (whole / "log.txt").read_text().splitlines()
    assert said[0].endswith("Run plan:") and {"total steps: 40", "batch size: 8"} <= {
        line.strip() for line in said[1:60]
    }
    assert sum("Training: " in line and "loss" in line for line in said) == 40
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    logged = [record for record in records if "loss" in record]
    assert [record["step"] for record in logged] == list(range(1, 41))
    assert all({"loss", "lr", "images_per_second"} <= record.keys() for record in logged)
    assert records[-1]["step"] == 40 and "val_accuracy" in records[-1]
    assert len(json.loads((whole / "classes.json").read_text())["classes"]) == 8


def test_a_finished_run_says_that_it_is_finished(whole: Path) -> None:
    assert_refused(
        inside("resume", whole),
        "has finished (40 steps)",
        f" {whole}/model",
        error=ConfigError,
        advice=["set"],
    )


def test_a_run_that_goes_on_can_change_its_rate_and_a_finished_one_its_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = inside("pretrain", SHAPES, *SMALL, "--steps", "4", "--out", run)
    assert done.returncode == 0, done.stderr
    assert_refused(inside("resume", run), "has finished (4 steps)", "--set training.total_steps=8")
    more = ("--set", "training.total_steps=8", "--set", "training.lr=0.5", "--set", "training.decay=constant")
    wrong = inside("resume", run, *more, "--set", "training.seed=7")
    assert_refused(wrong, "training.seed cannot change", error=ConfigError, option="set")
    done = inside("resume", run, *more)
    assert done.returncode == 0, done.stderr
    log = (run / "log.txt").read_text()
    assert "From step 5 on: training.total_steps=8," in log and " training.lr=0.5" in log
    rates = {r["step"]: r["lr"] for r in map(json.loads, (run / "metrics.jsonl").open()) if "lr" in r}
    assert len(rates) == 8 and {rates[step] for step in (5, 6, 7, 8)} == {0.5} and rates[4] < 0.1
    assert from_yaml((run / "config.yaml").read_text()).training.lr == 0.5
    assert_refused(inside("resume", run), "has finished (8 steps)")


def test_what_is_not_installed_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with mock.patch("importlib.util.find_spec", lambda name: None):
        done = inside(
            "pretrain", SHAPES, *SMALL, "--steps", "4", "--out", tmp_path / "run", "--wandb", "shapes"
        )
    assert_refused(done, "wandb needs the package wandb", "pip install 'vitrine[wandb]'")
    assert not (tmp_path / "run").exists()


def test_a_named_folder_with_a_run_in_it_is_refused(whole: Path) -> None:
    before = (whole / "metrics.jsonl").read_text()
    done = inside("pretrain", SHAPES, *SMALL, "--steps", "2", "--out", whole)
    assert_refused(done, f"{whole} already holds config.yaml", "use --overwrite to replace it")
    assert (whole / "metrics.jsonl").read_text() == before


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    assert inside("pretrain", SHAPES, *SMALL, "--steps", "5", *out).returncode == 0
    assert (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()
    folders = class_folders(tmp_path / "photos", each=4)
    again = (folders, *SMALL, "--steps", "2", *out, "--overwrite", "--hold-out", "0")
    done = inside("pretrain", *again)
    assert done.returncode == 0, done.stderr
    assert "nothing was held out" in done.stdout
    assert len(losses(tmp_path / "run")) == 2
    # The weights are the last ones of this run, not the best ones of the run before.
    assert not (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()
    assert json.loads((tmp_path / "run" / "classes.json").read_text())["classes"] == ["cat", "dog"]


def test_dated_folders_are_made_and_the_newest_is_called_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(inside("resume", "runs/latest"), "runs holds no", error=ConfigError, advice=["finetune"])
    for _ in range(2):
        assert inside("pretrain", SHAPES, *SMALL, "--steps", "1").returncode == 0
    folders = [path for path in Path("runs").iterdir() if not path.is_symlink()]
    newest = max(folders, key=lambda path: (path / "run.json").stat().st_mtime)
    assert len(folders) == 2 and Path("runs/latest").resolve() == newest.resolve()
    assert_refused(inside("resume", "runs/latest"), f"{newest} has finished")
    assert_refused(inside("resume", f"{newest}x"), f"did you mean {newest}?", error=ConfigError)


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    run = interrupted(SHAPES, *SMALL, "--steps", "9", "--out", tmp_path / "run")
    for file in (run / "checkpoints").glob("last*"):  # the one before it included
        file.unlink()
    assert_refused(inside("resume", run), str(run), error=MissingCheckpointError, advice=["overwrite"])
    (run / "run.json").write_text("{")
    assert_refused(inside("resume", run), "run.json is damaged")


def test_a_run_goes_on_from_another_folder_than_the_one_it_began_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path / "photos", each=8)
    monkeypatch.chdir(tmp_path)
    run = interrupted("photos", *SMALL, "--steps", "8", "--out", tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = inside("resume", run)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "training.lrr=1"), "there is no setting 'training.lrr'; did you mean 'training.lr'?"),
        (("--set", "lr=1"), "there is no setting 'lr'; did you mean 'training.lr'?"),
        (("--set", "data.seed=1"), "there is no setting 'data.seed'; did you mean 'training.seed'?"),
        (("--set", "training.lr"), "a setting looks like training.lr=3e-4, got 'training.lr'"),
        (("--set", "training.lr=high"), "training.lr must be float, got 'high'"),
        (("--set", "training.optimizer=adam"), "nearest: adamw"),
        (("--epochs", "2", "--steps", "5"), "use epochs or steps, not both, got 2.0 and 5"),
        (("--recipe", "demos"), "no recipe is called 'demos'; nearest: demo"),
        (("--model", "VitS-16"), "ViT-S/16"),
        (("--lr", "-1"), "lr must be above 0 and finite, got -1.0"),
        (("--lr", "inf"), "lr must be above 0 and finite, got inf"),
        (("--set", "training.betas=[0.9]"), "training.betas must be 2 values, got [0.9]"),
        (("--set", "training.betas=[2, 3]"), "betas must be two numbers from 0 to 1, without 1, got (2.0, 3.0)"),
        (("--set", "sweep=[0, 1]"), "sweep must be learning rates above 0 and finite, got [0.0, 1.0]"),
        (("--set", "augment.mixup=0.2", "--batch-size", "15"), "must be even, got 15; nearest that fit: 14 and 16"),
        (("--batch-size", "0"), "batch_size must be at least 1, got 0"),
        (("--device", "cuda"), "torch finds no CUDA GPU on this machine"),
        (("--device", "quantum"), "quantum"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_in_one_sentence_and_nothing_is_left_behind(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = inside("pretrain", SHAPES, *SMALL, "--out", tmp_path / "run", *options)
    assert_refused(done, message)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_misspelt_option_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    done = inside("pretrain", SHAPES, "--epoch", "2", "--out", tmp_path / "run")
    assert_refused(done, "--epochs")


def test_a_wrong_path_names_the_nearest_and_leaves_no_folder(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", each=2)
    done = inside("pretrain", tmp_path / "photo", *SMALL, "--out", tmp_path / "run")
    assert_refused(done, f"no such folder {tmp_path}/photo; did you mean {tmp_path}/photos?")
    assert not (tmp_path / "run").exists()


def test_a_run_never_writes_into_the_data(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", each=2)
    done = inside("pretrain", tmp_path / "photos", *SMALL, "--out", tmp_path / "photos" / "run")
    assert_refused(done, "is inside the data set")


def test_a_loss_that_is_not_finite_exits_with_3_names_the_files_and_suggests(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", each=8)
    options = (
        *SMALL,
        "--steps",
        "20",
        "--lr",
        "1e30",
        "--set",
        "training.warmup_steps=0",
        "--batch-size",
        "4",
    )
    done = inside("pretrain", tmp_path / "photos", *options, "--out", tmp_path / "run")
    assert_refused(done, "is NaN or infinity", "learning rate (now 1e+30)", code=3)
    assert isinstance(done.error, NotFiniteError)
    assert "cat/" in done.stderr or "dog/" in done.stderr
    assert "is NaN or infinity" in (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]
    kept = saving.weights_of(tmp_path / "run" / "checkpoints" / "stopped.safetensors")
    assert all(value.isfinite().all() for value in kept.values())
    # What is suggested helps.
    assert f"vitrine resume {tmp_path / 'run'} --set training.lr=1e+29" in done.stderr
    calmer = inside("resume", tmp_path / "run", "--set", "training.lr=1e-3")
    assert calmer.returncode == 0, calmer.stderr


@pytest.mark.parametrize("how", ["added", "removed", "changed", "changed in size too"])
def test_changed_data_is_refused_unless_asked_for(tmp_path: Path, how: str) -> None:
    folders = class_folders(tmp_path / "photos", each=10)
    save(folders / "cat" / "other.bmp", photo(98))
    run = interrupted(folders, *SMALL, "--steps", "8", "--out", tmp_path / "run")
    held_out = [line for line in (run / "split.csv").read_text().splitlines() if line.endswith(",val")]
    if how == "added":
        save(folders / "cat" / "new.png", photo(99))
    elif how == "removed":
        (folders / "cat" / "3.png").unlink()
    elif how == "changed":
        before = (folders / "cat" / "other.bmp").stat().st_size
        save(folders / "cat" / "other.bmp", photo(99))
        assert (folders / "cat" / "other.bmp").stat().st_size == before
    else:
        save(folders / "cat" / "3.png", photo(99, 100, 100))
    refused = inside("resume", run)
    assert_refused(refused, "has changed", error=DataError, advice=["allow_changed_data"])
    before = json.loads((run / "data.json").read_text())
    done = inside("resume", run, "--allow-changed-data")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "data.json").read_text())["contents"] != before["contents"]
    assert len(losses(run)) == 8
    still = [line for line in (run / "split.csv").read_text().splitlines() if line.endswith(",val")]
    assert set(still) <= set(held_out)  # nothing that was trained on is now tested on


def test_a_new_class_cannot_join_a_run_under_way(tmp_path: Path) -> None:
    folders = class_folders(tmp_path / "photos", each=4)
    run = interrupted(folders, *SMALL, "--steps", "8", "--out", tmp_path / "run")
    save(folders / "owl" / "0.png", photo(99))
    assert_refused(
        inside("resume", run, "--allow-changed-data"), "classes", "owl", error=DataError, advice=["finetune"]
    )


def test_what_was_excluded_stays_excluded_when_a_run_goes_on(tmp_path: Path) -> None:
    folders = class_folders(tmp_path / "photos", each=8)
    (tmp_path / "exclude.csv").write_text("path\ncat/0.png\ncat/1.png\n")
    options = (*SMALL, "--steps", "8", "--exclude", tmp_path / "exclude.csv")
    run = interrupted(folders, *options, "--out", tmp_path / "run")
    assert inside("pretrain", folders, *options, "--out", tmp_path / "whole").returncode == 0
    done = inside("resume", run)
    assert done.returncode == 0, done.stderr
    same_run(run, tmp_path / "whole")


def test_a_disk_without_room_for_a_checkpoint_is_found_before_the_first_step(tmp_path: Path) -> None:
    full = type("Usage", (), {"free": 2_000})()
    with mock.patch("shutil.disk_usage", lambda path: full):
        done = inside("pretrain", SHAPES, *SMALL, "--steps", "8", "--out", tmp_path / "run")
    assert_refused(done, "0.0 MB free", "3 checkpoints of", error=CheckpointError, advice=["out"])
    assert "Plan: " not in done.stderr


def test_a_full_disk_keeps_the_last_good_checkpoint_and_the_run_can_go_on(tmp_path: Path) -> None:
    """The disk fills up after the checkpoint of step 3: `fsync` fails from then on."""
    calls, fsync = [], os.fsync
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"

    def full(handle: int) -> None:
        if last.exists() and saving.numbers_of(last)["step"] == 3:
            calls.append(handle)
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with mock.patch("vitrine.runtime.files.os.fsync", full):
        done = inside("pretrain", SHAPES, *SMALL, "--steps", "8", "--out", tmp_path / "run")
    assert_refused(done, "No space left on device", "last good checkpoint is kept", "vitrine resume")
    assert calls and saving.numbers_of(last)["step"] == 3
    assert inside("resume", tmp_path / "run").returncode == 0
    assert inside("pretrain", SHAPES, *SMALL, "--steps", "8", "--out", tmp_path / "whole").returncode == 0
    same_run(tmp_path / "run", tmp_path / "whole")


def test_broken_images_are_set_aside_and_counted_and_strict_refuses_them(tmp_path: Path) -> None:
    folders = class_folders(tmp_path / "photos", each=6)
    (folders / "cat" / "5.png").write_text("this is no picture")
    (folders / "dog" / "2.png").write_bytes(b"")
    done = inside("pretrain", folders, *SMALL, "--steps", "3", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "Skipped 2 of 12 files" in done.stderr
    assert "2 unreadable files; data.json" in done.stdout
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert sorted(record["set_aside"]) == ["cat/5.png", "dog/2.png"]
    strict = inside("pretrain", folders, *SMALL, "--steps", "3", "--out", tmp_path / "strict", "--strict")
    assert_refused(strict, "cannot read 2 files of", "vitrine check")
    assert not (tmp_path / "strict").exists()


def test_pictures_of_unusual_kinds_are_trained_on_and_counted(tmp_path: Path) -> None:
    folders = class_folders(tmp_path / "photos", each=6)
    deep = photo(5)[:, :, 0].astype(np.uint16) * 257
    save(folders / "cat" / "deep.png", deep)
    done = inside("pretrain", folders, *SMALL, "--steps", "2", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "16-bit or deeper" in done.stderr and "to 8 bits: 1" in done.stderr


def test_help_explains_every_option() -> None:
    done = inside("pretrain", "--help")
    assert done.returncode == 0
    for word in (
        "--steps",
        "--batch-size",
        "--shard",
        "--hold-out",
        "Passes over the training images",
        "torchrun",
    ):
        assert word in done.stdout


def test_fp8_without_a_gpu_is_refused_before_a_plan_is_made(tmp_path: Path) -> None:
    refused = inside(
        "pretrain", "generated:shapes?count=32&size=32&label=colour", "--recipe", "demo", "--device", "cpu",
        "--precision", "fp8", "--out", tmp_path / "run",
    )  # fmt: skip
    assert_refused(refused, "fp8 needs a CUDA device", "use --precision bf16")
    assert "Plan:" not in refused.stderr + refused.stdout


def test_photos_that_vanish_in_mid_run_lose_no_step(tmp_path: Path) -> None:
    photos, away = class_folders(tmp_path / "photos", each=8), tmp_path / "away"
    process = started(
        "pretrain",
        photos,
        *SMALL,
        "--checkpoint-every",
        "100000",
        "--steps",
        "100000",
        "--out",
        tmp_path / "run",
    )
    wait_for_records(tmp_path / "run", 3)
    (photos / "cat").rename(away)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 2 and "Traceback" not in said
    assert f"vitrine resume {tmp_path / 'run'}" in said
    away.rename(photos / "cat")
    saved = saving.numbers_of(tmp_path / "run" / "checkpoints" / "last.safetensors")["step"]
    assert saved >= 3
    done = inside("resume", tmp_path / "run", "--set", f"training.total_steps={saved + 2}")
    assert done.returncode == 0, done.stderr


def test_a_damaged_checkpoint_is_skipped_with_a_notice_and_the_run_ends_as_ever(
    tmp_path: Path, whole: Path
) -> None:
    run = interrupted(SHAPES, *SMALL, *ALL, "--steps", "40", "--out", tmp_path / "run", after=10)
    last = run / "checkpoints" / "last.safetensors"
    data = bytearray(last.read_bytes())
    data[-100] ^= 4
    last.write_bytes(data)
    done = inside("resume", run)
    assert done.returncode == 0 and "damaged" in done.stderr, done.stderr
    same_run(run, whole)
