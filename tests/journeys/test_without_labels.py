"""Pre-training without labels from the command line: run, stop, go on, fine-tune."""

import json
from pathlib import Path

import pytest
import torch
from journeys.commandline import assert_refused, inside, losses
from journeys.test_many_processes import on_processes, pretrain, resume
from journeys.test_training import SHAPES, SMALL, interrupted, same_run
from pictures import photo, save
from PIL import Image
from safetensors.torch import load_file
from variations import costly

import vitrine
from vitrine.errors import ConfigError

DECODER = (
    "--set", "autoencoder.decoder_width=16", "--set", "autoencoder.decoder_depth=1", "--set",
    "autoencoder.decoder_heads=2",
)  # fmt: skip
OBJECTIVES = {
    "mean-color": ("--objective", "masked-patches"),
    "downsized-colors": ("--objective", "masked-patches", "--target", "downsized-colors"),
    "pixels": ("--objective", "masked-patches", "--target", "pixels"),
    "autoencoder": ("--objective", "autoencoder", *DECODER),
}


def records(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", costly(OBJECTIVES, quick=("mean-color", "autoencoder")))
def test_a_run_that_was_stopped_goes_on_to_the_same_bits_and_its_model_fine_tunes(
    tmp_path: Path, kind: str
) -> None:
    options = (*SMALL, *OBJECTIVES[kind], "--steps", "8", "--evaluate-every", "3")
    done = inside("pretrain", SHAPES, *options, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    assert "Next: vitrine finetune DATA --model" in done.stdout
    assert done.stderr.count(": validation loss ") == 3 and "knn accuracy" in done.stderr
    broken = interrupted(SHAPES, *options, "--out", tmp_path / "broken")
    began = json.loads((broken / "run.json").read_text())
    assert began["objective"] == OBJECTIVES[kind][1]
    assert inside("resume", broken).returncode == 0
    same_run(tmp_path / "whole", broken)

    evaluated = [record for record in records(tmp_path / "whole") if "val_loss" in record]
    assert [record["step"] for record in evaluated] == [3, 6, 8]
    assert all({"val_knn_accuracy", "val_feature_rank", "val_feature_spread"} <= set(r) for r in evaluated)
    assert {path.name for path in (broken / "pictures").iterdir()} == {
        "step-3.png",
        "step-6.png",
        "step-8.png",
    }
    # Masked input, prediction, original, attention: pictures of 32 px and white lines of 2.
    assert Image.open(broken / "pictures" / "step-8.png").size == (8 * 34, 4 * 34)
    assert evaluated == [record for record in records(broken) if "val_loss" in record]

    tuned = inside(
        "finetune", SHAPES, "--model", broken, "--steps", "2", "--batch-size", "8", "--device", "cpu",
        "--workers", "0", "--out", tmp_path / "tuned",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    assert "Accuracy" in tuned.stdout


def test_the_saved_model_is_the_bare_vit_of_the_last_step_without_a_head(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = inside("pretrain", SHAPES, *SMALL, "--objective", "masked-patches", "--steps", "4", "--out", run)
    assert done.returncode == 0, done.stderr
    state = load_file(run / "checkpoints" / "last.safetensors")
    assert {"model.mask_embedding", "model.predict.weight"} <= state.keys()
    loaded = vitrine.load(run).model
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, state[f"model.vit.{name}"]), name
    assert loaded.config.num_classes is None and not (run / "checkpoints" / "best.safetensors").exists()
    ready = vitrine.load(run, num_classes=3).model
    assert ready.head is not None and not ready.head.weight.any()


@pytest.mark.parametrize("kind", ["mean-color", "autoencoder"])
def test_a_folder_of_loose_images_will_do_and_is_resumed_too(tmp_path: Path, kind: str) -> None:
    for number in range(24):
        save(tmp_path / "loose" / f"{number}.png", photo(number, 32, 32))
    options = (*SMALL, *OBJECTIVES[kind], "--steps", "6")
    done = inside("pretrain", tmp_path / "loose", *options, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    last = records(tmp_path / "whole")[-1]
    assert "val_loss" in last and "val_feature_rank" in last and "val_knn_accuracy" not in last
    broken = interrupted(tmp_path / "loose", *options, "--out", tmp_path / "broken")
    assert inside("resume", broken).returncode == 0
    same_run(tmp_path / "whole", broken)


def test_labels_are_not_learned_from(tmp_path: Path) -> None:
    """The same pictures under other labels: the same run, to the bit."""
    for number in range(20):
        save(tmp_path / "images" / f"{number:02d}.png", photo(number))
    for name, period in (("one", 2), ("other", 5)):
        rows = [f"images/{number:02d}.png,class{number % period}" for number in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,label", *rows]) + "\n")
        done = inside(
            "pretrain", tmp_path / f"{name}.csv", *SMALL, "--objective", "masked-patches", "--steps", "4",
            "--hold-out", "0", "--out", tmp_path / name,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "nothing was held out" in done.stdout
    same_run(tmp_path / "one", tmp_path / "other")


def test_config_yaml_repeats_a_run(tmp_path: Path) -> None:
    options = (*OBJECTIVES["downsized-colors"], "--steps", "3")
    assert inside("pretrain", SHAPES, *SMALL, *options, "--out", tmp_path / "run").returncode == 0
    again = ("--device", "cpu", "--workers", "0", "--out", tmp_path / "again")
    done = inside("pretrain", SHAPES, "--recipe", tmp_path / "run" / "config.yaml", *again)
    assert done.returncode == 0, done.stderr
    same_run(tmp_path / "run", tmp_path / "again")


def test_what_does_not_go_together_is_refused_in_one_sentence(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    loose = tmp_path / "loose"
    save(loose / "0.png", photo(0))
    assert_refused(inside("pretrain", loose, *SMALL, *out), "but no class folders")
    assert_refused(
        inside("pretrain", SHAPES, *SMALL, "--target", "pixels", *out),
        "objective labels",
        error=ConfigError,
        option="target",
    )
    assert_refused(
        inside(
            "pretrain", SHAPES, *SMALL, "--objective", "masked-patches", "--set", "augment.mixup=0.2", *out
        ),
        "augment.mixup=0.2",
        "objective masked-patches",
        error=ConfigError,
    )
    assert_refused(
        inside("pretrain", SHAPES, "--recipe", "autoencoder", "--objective", "labels", *out),
        "recipe autoencoder learns without labels",
    )
    assert_refused(
        inside("finetune", SHAPES, "--model", "x", "--recipe", "masked-patches", *out),
        "recipe masked-patches learns masked-patches",
        error=ConfigError,
        option="recipe",
        advice=["pretrain"],
    )
    resnet = (
        "--model",
        "BiT-R26x1",
        "--objective",
        "autoencoder",
        "--size",
        "32",
        "--steps",
        "1",
        "--device",
        "cpu",
    )
    assert_refused(inside("pretrain", SHAPES, *resnet, *out), "objective autoencoder needs a ViT")


@pytest.mark.slow
def test_two_processes_whole_or_sharded_stopped_or_not_learn_what_one_does(tmp_path: Path) -> None:
    settings = [
        "model_options.width=32", "model_options.depth=2", "model_options.mlp_width=64",
        "training.average_decay=0.9",
    ]  # fmt: skip
    jobs, alone = [], []
    for objective in ("masked-patches", "autoencoder"):
        own = DECODER[1::2] if objective == "autoencoder" else ()
        place, given = tmp_path / objective, {"objective": objective, "set": [*settings, *own]}
        jobs += [
            pretrain(place / "whole", **given),
            pretrain(place / "stopped", stop_after=3, **given),
            resume(place / "stopped"),
            pretrain(place / "sharded", shard=True, stop_after=3, **given),
            resume(place / "sharded"),
        ]
        alone.append(pretrain(place / "one", **given))
    assert on_processes(1, alone) == ["0", "0"]
    assert [end.split()[0] for end in on_processes(2, jobs)] == ["0", "130", "0", "130", "0"] * 2
    for objective in ("masked-patches", "autoencoder"):
        one, whole, stopped, sharded = (
            tmp_path / objective / name for name in ("one", "whole", "stopped", "sharded")
        )
        same_run(whole, stopped)
        expected = load_file(one / "model" / "model.safetensors")
        for other in (whole, sharded):
            # The same masks, but sums over the batch in another order: see test_many_processes.py.
            assert losses(other) == pytest.approx(losses(one), rel=1e-5)
            judged, wanted = (
                [r["val_loss"] for r in records(run) if "val_loss" in r] for run in (other, one)
            )
            assert judged == pytest.approx(wanted, rel=1e-5)
            for name, value in load_file(other / "model" / "model.safetensors").items():
                assert torch.allclose(value, expected[name], atol=1e-4), name
