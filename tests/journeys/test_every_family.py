"""Every verb with a small model of every family, through the same functions and words that users have."""

import json
from pathlib import Path

import numpy as np
import pytest
from journeys.commandline import inside, losses
from journeys.web import ask
from pictures import photo, save
from safetensors.torch import load_file
from servers import jpeg, serving
from variations import costly

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
NARROW = ("width=16", "depth=2", "num_heads=2", "mlp_width=32", "stochastic_depth=0.1")
FAMILIES |= {
    "T2T-ViT": ("t2t_vit_7", NARROW),
    "T2T-ViT with transformers": ("t2t_vit_t_14", NARROW),
    "CPVT": ("CPVT-Ti", NARROW),
    "TNT": ("tnt_s_patch16_224", (*NARROW, "inner_width=8", "inner_num_heads=2", "inner_mlp_width=16")),
    "DeiT III": ("deit_small_patch16_LS", (*NARROW, "pooling=class_token")),  # the recipe averages
}
FAMILIES |= {
    "AxialResNet": ("AxialResNet50", ("units=[1]", "width=32")),
    "Axial-DeepLab": ("axial50s", ("units=[1,1]", "width=4", "num_heads=2")),
}
# Where the authors' names are not called official, or there are none.
OFFICIAL = {"CPVT": "vitrine", "DeiT III": "deit3", "AxialResNet": "vitrine", "Axial-DeepLab": "vitrine"}
# Others have representations of width 16.
WIDTHS = {"AxialResNet": 128, "Axial-DeepLab": 32}
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


# One pyramid and one plain encoder with another stem: a family costs many seconds, most of them for its exports.
@pytest.mark.parametrize("family", costly(FAMILIES, quick=("PVT v2",)))
def test_every_verb_works(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    pictures = tmp_path / "pictures"
    for number in range(3):
        save(pictures / f"{number}.png", photo(number))
    succeed("embed", whole, pictures, "--out", tmp_path / "features.npy", *QUICK)
    rows = np.load(tmp_path / "features.npy")
    assert rows.shape == (3, WIDTHS.get(family, 16)) and np.ptp(rows) > 0
    succeed("predict", whole, pictures, *QUICK)
    succeed("inspect", whole, pictures, "--out", tmp_path / "looked", *QUICK)
    for to in ("onnx", "torch-export"):
        succeed("export", whole, "--to", to, "--out", tmp_path / to, "--workers", "0")
    to = OFFICIAL.get(family, "official")
    succeed("convert", whole, tmp_path / "converted.safetensors", "--to", to)
    succeed("bench", whole, "--batches", "1", "--turns", "1", "--device", "cpu")

    with serving([whole]) as running:
        reply = ask(running.port, "/predict", jpeg())
        assert reply.status == 200


# The code that resumes is the same for all; a pyramid and a nested transformer stand for them in `make test`.
@pytest.mark.parametrize(
    "family", costly([family for family in FAMILIES if family != "DeiT III"], quick=("PVT v2", "TNT"))
)
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
