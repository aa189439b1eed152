"""Training with a small model of every family, through the words that users have: plan, train, resume, evaluate."""

import json
from pathlib import Path

import pytest
from journeys.commandline import inside, losses
from safetensors.torch import load_file

import vitrine

DATA = "generated:shapes?count=48&size=32&label=colour"
PYRAMID = (
    "widths=[16,16,16,16]",
    "depths=[1,1,1,1]",
    "num_heads=[1,2,2,4]",
    "mlp_ratios=[2,2,2,2]",
    "stochastic_depth=0.1",
)
# One line per family: a variant, and the options that make it small.
FAMILIES = {
    "PVT": ("pvt_tiny", PYRAMID),
    "PVT v2": ("pvt_v2_b0", PYRAMID),
    "PVT v2 linear": ("PVT-v2-B2-Li", PYRAMID),
    "PCPVT": ("twins_pcpvt_small", PYRAMID),
}
QUICK = ("--device", "cpu", "--workers", "0")
TRAINING = (
    "--recipe", "demo", "--size", "32", "--steps", "6", "--batch-size", "8", "--log-every", "1",
    "--checkpoint-every", "2", *QUICK,
)  # fmt: skip


def succeed(*words: str | Path) -> str:
    done = inside(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small(options: tuple[str, ...]) -> list[str]:
    return [word for option in options for word in ("--set", f"model_options.{option}")]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_verb_of_training_works(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    name, options = FAMILIES[family]
    assert "GiB" in succeed("plan", name, "--batch-size", "64")

    words = ("pretrain", DATA, "--model", name, *small(options), *TRAINING)
    whole = tmp_path / "whole"
    succeed(*words, "--out", whole)
    config = json.loads((whole / "model" / "config.json").read_text())["vitrine"]["model"]
    assert config["image_size"] == [32, 32]

    tuned = tmp_path / "tuned"
    succeed(
        "finetune", DATA, "--model", whole, "--size", "64", "--steps", "2", "--batch-size", "8", *QUICK,
        "--out", tuned,
    )  # fmt: skip
    assert vitrine.load(tuned).model.config.image_size == (64, 64)
    assert "%" in succeed("evaluate", whole, DATA, *QUICK)
    assert "%" in succeed("fewshot", whole, DATA, "--shots", "2", "--seeds", "1", *QUICK)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_run_resumes_to_the_same_bits(family: str, tmp_path: Path) -> None:
    from journeys.test_training import interrupted

    name, options = FAMILIES[family]
    words = (DATA, "--model", name, *small(options), *TRAINING)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    succeed("pretrain", *words, "--out", whole)
    interrupted(*words, "--out", cut, after=3)
    succeed("resume", cut)
    assert losses(whole) == losses(cut)
    one, other = (load_file(run / "model" / "model.safetensors") for run in (whole, cut))
    assert all((one[key] == other[key]).all() for key in one)
