"""Fine-tuning from the command line: a new head, another size, a probe, a sweep, several labels."""

import csv
import json
import math
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from journeys.commandline import assert_refused, inside, losses
from pictures import class_folders, photo, save

import vitrine
from vitrine.errors import ConfigError, DataError
from vitrine.recipes.recipe_values import from_yaml
from vitrine.training.loop import Run
from vitrine.training.saving import numbers_of, weights_of
from vitrine.training.stopping import NotFiniteError

PRETRAIN = (
    "--recipe", "demo", "--steps", "3", "--batch-size", "8", "--device", "cpu", "--workers", "0",
    "--set", "model_options.depth=2", "--set", "model_options.width=32", "--set", "model_options.mlp_width=32",
    "--set", "model_options.positions=learned_1d",
)  # fmt: skip
# The closed form may stay the best of a few steps: tests of what training changes start without it.
FROM_ZEROS = ("--set", "solves_head=false")
FINETUNE = (
    "--batch-size", "4", "--log-every", "1", "--device", "cpu", "--workers", "0", "--set", "training.warmup_steps=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on generated pictures of 32 px in patches of 8: positions of 4 x 4."""
    run = tmp_path_factory.mktemp("pretrained") / "run"
    done = inside("pretrain", "generated:shapes?count=32&size=32&label=colour", *PRETRAIN, "--out", run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("data") / "photos", classes=("cat", "dog", "owl"), each=8)


def finetune(photos: Path, pretrained: Path, out: Path, *options: str):  # type: ignore[no-untyped-def]
    return inside("finetune", photos, "--model", pretrained, *FINETUNE, "--out", out, *options)


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_old_head_goes_and_one_of_zeros_comes(photos: Path, pretrained: Path, tmp_path: Path) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "4", *FROM_ZEROS)
    assert done.returncode == 0, done.stderr
    assert "Accuracy" in done.stdout and "95 % interval" in done.stdout
    # Zero logits give every class the same chance, whatever the label smoothing.
    assert losses(tmp_path / "run")[0] == pytest.approx(math.log(3), rel=1e-6)
    tuned = vitrine.load(tmp_path / "run")
    assert tuned.classes == ("cat", "dog", "owl")
    assert tuned.model.config.num_classes == 3
    # Classes of the same name keep what the first run learned.
    again = finetune(photos, tmp_path / "run", tmp_path / "again", "--steps", "1", *FROM_ZEROS)
    assert "same name: cat, dog, owl" in again.stderr.replace("\n", " ")
    assert losses(tmp_path / "again")[0] != pytest.approx(math.log(3), rel=1e-6)


def test_another_size_resamples_the_positions_and_says_so(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "2", "--size", "64")
    assert done.returncode == 0, done.stderr
    assert "positions 4x4 -> 8x8" in done.stderr
    tuned = vitrine.load(tmp_path / "run")
    assert tuned.preprocess.size == tuned.model.config.image_size == (64, 64)


def test_a_probe_trains_the_head_alone(photos: Path, pretrained: Path, tmp_path: Path) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "4", "--probe", "--lr", "0.01")
    assert done.returncode == 0, done.stderr
    before = vitrine.load(pretrained).model.state_dict()
    after = vitrine.load(tmp_path / "run").model.state_dict()
    for name, value in after.items():
        if name.startswith("head."):
            assert value.abs().max() > 0
        else:
            assert torch.equal(value, before[name]), name


def test_frozen_blocks_keep_their_weights_and_the_plan_says_so(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "4", "--freeze", "1", *FROM_ZEROS)
    assert done.returncode == 0, done.stderr
    assert "and 1 block frozen)" in done.stderr
    before = vitrine.load(pretrained).model.state_dict()
    after = vitrine.load(tmp_path / "run").model.state_dict()
    same = {name for name, value in after.items() if name in before and torch.equal(value, before[name])}
    assert {name for name in after if name.startswith(("patch_projection", "blocks.0."))} <= same
    assert not {name for name in after if name.startswith(("blocks.1.", "norm.", "head."))} & same
    many = finetune(photos, pretrained, tmp_path / "many", "--steps", "4", "--freeze", "99")
    assert_refused(many, "--freeze: must be at most", "got 99")
    both = finetune(photos, pretrained, tmp_path / "many", "--freeze", "1", "--probe")
    assert_refused(both, "probe", error=ConfigError, option="freeze")


def test_adapters_train_alone_and_are_saved_alone_in_pefts_format_and_merged(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = finetune(photos, pretrained, run, "--steps", "4", "--lora", "4", *FROM_ZEROS)
    assert done.returncode == 0, done.stderr
    assert "adapters of rank 4" in done.stderr.replace("\n", " ") and "PEFT" in done.stdout
    before, after = vitrine.load(pretrained).model, vitrine.load(run).model
    theirs = before.state_dict()
    # Only blocks' matrices and the head have changed.
    changed = {
        name for name, value in after.state_dict().items() if not torch.equal(value, theirs.get(name, value))
    }
    dense = ("to_qkv.weight", "to_out.weight", "expand.weight", "contract.weight")
    assert changed and all(name.endswith(dense) or name.startswith("head.") for name in changed)
    alone = vitrine.load(run / "adapter")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(alone.model(images), after(images), rtol=1e-4, atol=1e-5)
    assert alone.classes == ("cat", "dog", "owl")
    again = inside("resume", run, "--set", "training.total_steps=6")
    assert again.returncode == 0, again.stderr
    assert numbers_of(run / "checkpoints" / "last.safetensors")["step"] == 6
    refused = finetune(photos, pretrained, tmp_path / "no", "--lora", "4", "--probe")
    assert_refused(refused, "probe", error=ConfigError, option="lora")
    assert not (tmp_path / "many").exists()


def test_bit_hyper_rule_squashes_the_images_that_it_is_judged_by_too(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    rule = ("--recipe", "bit-hyperrule-vit-small", "--size", "32", "--set", "views.resize_size=40")
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "2", *rule)
    assert done.returncode == 0, done.stderr
    tuned = vitrine.load(tmp_path / "run").preprocess
    assert (tuned.rule, tuned.crop_fraction, tuned.size) == ("squash", 1.0, (32, 32))


def test_regularisation_is_the_recipes_and_the_shape_that_of_the_weights(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    set_options = (
        "--set",
        "model_options.dropout=0.2",
        "--set",
        "model_options.activation_checkpointing=true",
    )
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "2", *set_options)
    assert done.returncode == 0, done.stderr
    config, before = vitrine.load(tmp_path / "run").model.config, vitrine.load(pretrained).model.config
    assert (config.dropout, config.activation_checkpointing, config.width) == (0.2, True, before.width)
    wider = finetune(photos, pretrained, tmp_path / "wider", "--set", "model_options.width=96")
    assert_refused(
        wider,
        "model_options.width is fixed",
        "model_options.stochastic_depth",
        error=ConfigError,
        option="set",
    )
    assert not (tmp_path / "wider").exists()


def test_a_sweep_tries_every_rate_and_then_trains_on_all_images(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    sweep = ("--sweep", "--set", "sweep=[0.0001, 0.003]", "--steps", "3")
    done = finetune(photos, pretrained, tmp_path / "run", *sweep)
    assert done.returncode == 0, done.stderr
    for rate in ("0.0001", "0.003"):
        assert f"Learning rate {rate}: " in done.stderr
        assert json.loads((tmp_path / "run" / "sweep" / f"lr-{rate}" / "data.json").read_text())["images"][
            "val"
        ]
        attempt = records(tmp_path / "run" / "sweep" / f"lr-{rate}")
        assert [r["step"] for r in attempt if "val_accuracy" in r] == [
            0,
            3,
        ]  # rates are judged by where they end
    assert re.search(r"images with learning rate \S+\n", done.stderr)
    assert json.loads((tmp_path / "run" / "data.json").read_text())["images"] == {"train": 24}
    assert "held out for the sweep" in done.stdout
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    assert last.exists() and not last.with_name("best.safetensors").exists()


def test_the_run_after_a_sweep_is_repeated_by_its_config_and_leaves_out_what_is_excluded(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    with (tmp_path / "exclude.txt").open("w") as file:
        file.writelines(f"cat/{number}.png\n" for number in range(4))
    options = (
        "--sweep",
        "--set",
        "sweep=[0.001]",
        "--epochs",
        "1",
        "--exclude",
        str(tmp_path / "exclude.txt"),
    )
    # Half of the photos are held out, and some of those that are listed with them.
    done = finetune(photos, pretrained, tmp_path / "run", *options, "--hold-out", "0.5")
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert data["images"] == {"train": 20}
    assert len(losses(tmp_path / "run")) == 5  # an epoch of all images by four
    again = inside(
        "finetune", photos, "--recipe", tmp_path / "run" / "config.yaml", "--hold-out", "0", "--device", "cpu",
        "--exclude", tmp_path / "exclude.txt", "--workers", "0", "--out", tmp_path / "again",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    one, other = (vitrine.load(tmp_path / name).model.state_dict() for name in ("run", "again"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_rate_that_diverges_is_passed_over_and_of_equals_the_surer_one_is_taken(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    """One step at these small rates changes no answer, but the larger one the loss more; 1e38 leaves no numbers."""
    sgd = (
        "--set",
        "training.optimizer=sgd",
        "--set",
        "training.clip_norm=null",
        "--set",
        "training.warmup_steps=0",
    )
    sweep = ("--sweep", "--set", "sweep=[1e-7, 1e-6, 1e38]", "--steps", "2", "--probe", *sgd)
    done = finetune(photos, pretrained, tmp_path / "run", *sweep)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Learning rate 1e\+38: .*step 2", done.stderr)
    last = {
        rate: [one for one in records(tmp_path / "run" / "sweep" / f"lr-{rate}") if "val_loss" in one][-1]
        for rate in ("1e-07", "1e-06")
    }
    assert last["1e-07"]["val_accuracy"] == last["1e-06"]["val_accuracy"]
    surer = min(last, key=lambda rate: last[rate]["val_loss"])
    assert f"images with learning rate {surer}\n" in done.stderr
    hopeless = finetune(photos, pretrained, tmp_path / "none", *sweep, "--set", "sweep=[1e38]")
    assert_refused(hopeless, "learning rates 1e+38", error=NotFiniteError, advice=["set"], code=3)


def test_an_interrupted_sweep_and_the_run_after_it_go_on_to_the_same_bits(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    sweep = ("--sweep", "--set", "sweep=[0.0001, 0.003]", "--steps", "3", "--checkpoint-every", "1")
    assert finetune(photos, pretrained, tmp_path / "whole", *sweep).returncode == 0
    log, seen = Run.log, []

    def stop(self: Run, *given: object, **options: object) -> str:
        seen.append(self.state.step)
        self.wants_to_stop = len(seen) in (5, 8)  # in the second attempt, and in the run on all images
        return log(self, *given, **options)

    with mock.patch.object(Run, "log", stop):
        first = finetune(photos, pretrained, tmp_path / "run", *sweep)
        assert_refused(first, f"run vitrine resume {tmp_path / 'run'} to continue\n", code=130)
        second = inside("resume", tmp_path / "run")
        assert_refused(second, "Resuming the sweep", code=130)
        last = inside("resume", tmp_path / "run")
    assert last.returncode == 0, last.stderr
    assert seen == [1, 2, 3, 1, 2, 3, 1, 2, 3]  # nothing was done twice
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    one, other = (vitrine.load(tmp_path / name).model.state_dict() for name in ("run", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_run_has_a_learning_curve_without_being_asked_and_keeps_its_best(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "60", "--set", "training.patience=100")
    assert done.returncode == 0, done.stderr
    curve = {r["step"]: r["val_accuracy"] for r in records(tmp_path / "run") if "val_accuracy" in r}
    assert len(curve) >= 5 and max(curve) == 60
    assert len(re.findall(r"^Step \d+: validation loss ", done.stderr, flags=re.MULTILINE)) == len(curve)
    losses_by_step = {
        r["step"]: r["val_calibrated_loss"] for r in records(tmp_path / "run") if "val_loss" in r
    }
    best = max(step for step, value in losses_by_step.items() if value == min(losses_by_step.values()))
    assert f"Accuracy {100 * curve[best]:.1f} %" in done.stdout
    assert (f"after step {best} of 60, the best" if best < 60 else "after 60 steps") in done.stdout
    loaded = vitrine.load(tmp_path / "run")
    saved, temperature = loaded.model.state_dict(), loaded.record.calibration["temperature"]
    kept = weights_of(tmp_path / "run" / "checkpoints" / "best.safetensors")
    # The saved head is calibrated: its logits are those of the checkpoint, divided by the temperature.
    for name, value in kept.items():
        torch.testing.assert_close(saved[name], value / temperature if name.startswith("head.") else value)
    assert numbers_of(tmp_path / "run" / "checkpoints" / "best.safetensors")["step"] == best


def test_training_starts_from_the_closed_form_and_the_verdict_compares_both(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--steps", "4")
    assert done.returncode == 0, done.stderr
    first = records(tmp_path / "run")[0]
    assert first["step"] == 0 and "val_calibrated_loss" in first
    assert "closed form" in done.stdout and "fine-tuned" in done.stdout
    # Three held-out images cannot keep the usual promise of 1 in 20.
    assert "about 1 in 4 pictures" in done.stdout and "1 in 20 needs 19" in done.stdout
    assert "about 1 in 4 pictures" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["closed_form"]["num_images"] == 21
    begun = weights_of(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert begun["head.weight"].abs().sum() > 0


def test_a_fast_run_solves_the_head_on_all_images_without_training(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    done = inside(
        "finetune",
        photos,
        "--model",
        pretrained,
        "--fast",
        "--device",
        "cpu",
        "--workers",
        "0",
        "--out",
        tmp_path / "r",
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "r" / "checkpoints").exists()
    assert json.loads((tmp_path / "r" / "data.json").read_text())["images"] == {"train": 24}
    loaded, before = vitrine.load(tmp_path / "r"), vitrine.load(pretrained).model.state_dict()
    assert loaded.record.calibration["num_images"] == 24
    card = (tmp_path / "r" / "model" / "README.md").read_text()
    assert "on 24 images, each" in card
    assert "about 1 in 20 pictures" in card
    for name, value in loaded.model.state_dict().items():
        assert name.startswith("head.") or torch.equal(value, before[name])
    predicted = inside(
        "predict", tmp_path / "r", photos, "--device", "cpu", "--workers", "0", "--out", tmp_path / "p.csv"
    )
    assert predicted.returncode == 0, predicted.stderr
    # The page is written again with the same evidence, and says how to repeat the run.
    before = (tmp_path / "r" / "report.html").read_text()
    assert "of the left-out images" in before
    assert f"vitrine finetune {photos.absolute()} --recipe {tmp_path / 'r' / 'config.yaml'} --fast<" in before
    assert "<h2>Curves</h2>" not in before
    assert "solved in closed form" in before and "FLOPs" not in before
    again = inside("report", tmp_path / "r", "--device", "cpu")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "r" / "report.html").read_text() == before
    scored = inside(
        "evaluate", tmp_path / "r", photos, "--device", "cpu", "--workers", "0", "--out", tmp_path / "scores"
    )
    assert scored.stderr.count("optimistic") == 1
    assert "none was held out." in scored.stderr
    assert "(all, trained on)" in scored.stdout
    assert "(all, trained on)" in (tmp_path / "scores" / "report.html").read_text()


def test_new_classes_are_added_from_their_photos_alone(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    machine = ("--device", "cpu", "--workers", "0")
    first = inside("finetune", photos, "--model", pretrained, "--fast", *machine, "--out", tmp_path / "old")
    assert first.returncode == 0, first.stderr
    more = class_folders(tmp_path / "more", classes=("bee", "elk"), each=6)
    grow = ("--keep-classes", *machine)
    done = inside("finetune", more, "--model", tmp_path / "old", *grow, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    grown = vitrine.load(tmp_path / "new")
    assert grown.classes == ("cat", "dog", "owl", "bee", "elk")
    assert grown.model.config.num_classes == 5
    one = class_folders(tmp_path / "one", classes=("ant",), each=6)
    third = inside("finetune", one, "--model", tmp_path / "new", *grow, "--out", tmp_path / "six")
    assert third.returncode == 0, third.stderr
    assert vitrine.load(tmp_path / "six").classes == ("cat", "dog", "owl", "bee", "elk", "ant")
    again = inside("finetune", photos, "--model", tmp_path / "new", *grow, "--out", tmp_path / "twice")
    assert_refused(again, "has these classes already: cat")
    without = inside("finetune", more, "--model", pretrained, *grow, "--out", tmp_path / "none")
    assert_refused(without, "no statistics of its classes")


def test_uneven_classes_count_alike_unless_asked(pretrained: Path, tmp_path: Path) -> None:
    for name, count in (("cat", 24), ("dog", 4)):
        for number in range(count):
            save(tmp_path / "data" / name / f"{number}.png", photo(number + 100 * count))
    done = finetune(tmp_path / "data", pretrained, tmp_path / "run", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "Classes are uneven" in done.stderr
    recipe = from_yaml((tmp_path / "run" / "config.yaml").read_text())
    assert recipe.is_balanced
    plain = finetune(
        tmp_path / "data",
        pretrained,
        tmp_path / "plain",
        "--steps",
        "2",
        "--set",
        "objective.logit_adjustment=0",
    )
    assert plain.returncode == 0, plain.stderr
    assert not from_yaml((tmp_path / "plain" / "config.yaml").read_text()).is_balanced


def test_a_sweep_without_a_held_out_part_is_refused(photos: Path, pretrained: Path, tmp_path: Path) -> None:
    done = finetune(photos, pretrained, tmp_path / "run", "--sweep", "--hold-out", "0")
    assert_refused(done, "a sweep needs held-out images")
    none = finetune(
        photos, pretrained, tmp_path / "run", "--sweep", "--recipe", "bit-hyperrule-vit-small", "--size", "32"
    )
    assert_refused(
        none, "bit-hyperrule-vit-small", "sweep=[1e-4,3e-4,1e-3]",
        error=ConfigError, option="sweep", advice=["set"],
    )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_images_with_several_labels_are_trained_with_the_sigmoid_loss(
    pretrained: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "labels"])
        for number in range(24):
            save(tmp_path / "data" / "images" / f"{number}.png", photo(number))
            labels = [name for bit, name in enumerate(("day", "sea", "sky")) if (number + 1) >> bit & 1]
            writer.writerow([f"images/{number}.png", ";".join(labels or ["day"])])
    # Beside the list, as `runs` is for one in the working folder: a list of files is no folder of images.
    run = tmp_path / "data" / "run"
    done = finetune(
        tmp_path / "data" / "labels.csv", pretrained, run, "--steps", "3", "--set", "solves_head=false"
    )
    assert done.returncode == 0, done.stderr
    assert "sigmoid loss" in done.stderr and "no label smoothing" in done.stderr
    assert from_yaml((run / "config.yaml").read_text()).augment.label_smoothing == 0
    # Zero logits: log 2 for each of three classes.
    assert losses(run)[0] == pytest.approx(3 * math.log(2), rel=1e-6)
    solved = inside(
        "finetune", tmp_path / "data" / "labels.csv", "--model", pretrained, "--fast", "--device", "cpu", "--workers",
        "0", "--out", tmp_path / "data" / "solved",
    )  # fmt: skip
    assert solved.stdout.startswith("Mean average precision ")
    assert " on 24 images, each" in solved.stdout
    answered = inside(
        "predict",
        tmp_path / "data" / "solved",
        tmp_path / "data" / "images",
        "--device",
        "cpu",
        "--workers",
        "0",
    )
    without = sum(line.endswith(": no label applies") for line in answered.stdout.splitlines())
    assert (f"  no label applies to {without}\n" in answered.stdout) == (without > 0)
    assert (
        without
        == vitrine.predict(
            tmp_path / "data" / "solved", [tmp_path / "data" / "images"], device="cpu", workers=0
        ).num_without_label
    )


def test_patience_stops_early_and_a_run_stopped_so_is_finished(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    # With a rate this small no evaluation is better than the first.
    options = ("--steps", "40", "--evaluate-every", "2", "--set", "training.patience=2", "--lr", "1e-12")
    done = finetune(photos, pretrained, tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    assert [r["step"] for r in records(tmp_path / "run") if "val_loss" in r] == [0, 2, 4]
    assert "after step 4 of 40:" in done.stderr and "in 2 evaluations" in done.stderr
    # More steps alone would not go on; what is said does.
    refused = inside("resume", tmp_path / "run", "--set", "training.total_steps=60")
    assert_refused(
        refused,
        "has finished (4 steps,",
        "in 2 evaluations)",
        "training.patience=null",
        error=ConfigError,
        advice=["set"],
    )
    assert "total_steps" not in refused.stderr
    went_on = ("--set", "training.patience=null", "--set", "training.total_steps=8")
    assert inside("resume", tmp_path / "run", *went_on).returncode == 0
    # What is suggested is more than what is done, however little was asked for.
    fewer = inside("resume", tmp_path / "run", "--set", "training.total_steps=3")
    assert_refused(fewer, "has finished (8 steps)", "--set training.total_steps=16")


def test_the_saved_weights_are_the_averages_where_there_are_any(
    photos: Path, pretrained: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    done = finetune(
        photos,
        pretrained,
        tmp_path / "run",
        "--steps",
        "4",
        "--set",
        "training.average_decay=0.9",
        *FROM_ZEROS,
    )
    assert done.returncode == 0, done.stderr
    state = load_file(tmp_path / "run" / "checkpoints" / "best.safetensors")
    assert all(name.startswith("averages.") for name in state)  # nothing else is read from it
    trained = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    loaded = vitrine.load(tmp_path / "run")
    saved, temperature = loaded.model.state_dict(), loaded.record.calibration["temperature"]
    for name, value in saved.items():
        average = state[f"averages.{name}"]
        expected = average / temperature if name.startswith("head.") else average
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    assert any(not torch.equal(saved[name], trained[f"model.{name}"]) for name in saved)


def test_images_of_a_single_class_are_refused_since_there_is_nothing_to_tell_apart(
    pretrained: Path, tmp_path: Path
) -> None:
    alone = class_folders(tmp_path / "photos", classes=("cat",))
    done = finetune(alone, pretrained, tmp_path / "run")
    assert_refused(
        done, "one class, cat,", "--objective masked-patches", error=DataError, advice=["pretrain"]
    )
    assert not (tmp_path / "run").exists()


def test_a_class_of_unreadable_files_alone_is_an_empty_class(pretrained: Path, tmp_path: Path) -> None:
    folders = class_folders(tmp_path / "photos")
    (folders / "owl").mkdir()
    (folders / "owl" / "0.jpg").write_text("no picture")
    done = finetune(folders, pretrained, tmp_path / "run")
    assert_refused(done, "images of owl", error=DataError, advice=["allow_empty_class", "check"])
    assert not (tmp_path / "run").exists()
    allowed = finetune(folders, pretrained, tmp_path / "run", "--steps", "2", "--allow-empty-class")
    assert allowed.returncode == 0, allowed.stderr


def test_a_run_made_short_has_a_short_warm_up(photos: Path, pretrained: Path, tmp_path: Path) -> None:
    options = ("--batch-size", "4", "--device", "cpu", "--workers", "0", "--steps", "10")
    done = inside("finetune", photos, "--model", pretrained, *options, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert max(r["lr"] for r in records(tmp_path / "run") if "lr" in r) == pytest.approx(
        3e-4
    )  # the recipe's peak


def test_weights_that_are_not_there_are_refused_with_the_nearest(photos: Path, tmp_path: Path) -> None:
    done = finetune(photos, tmp_path / "nowhere", tmp_path / "run")
    assert_refused(done, "no such file or folder")
    assert not (tmp_path / "run").exists()
