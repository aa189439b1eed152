"""The engine of a served model: measured, checked against torch, and kept over a reload."""

from unittest import mock

import pytest
import torch
from servers import jpeg, saved_vit

from vitrine.errors import CheckpointError, ConfigError
from vitrine.serving import engine_trial
from vitrine.serving.engine_trial import TORCH, EngineTrial, refusal_of
from vitrine.serving.open_models import open_models
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel

ONNX = ("onnxruntime", "fp32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_vit(tmp_path_factory.mktemp("engines") / "model")


@pytest.fixture
def served(folder):
    return ServedModel("m", Predictor.open(folder, device="cpu"), max_batch=8)


@pytest.fixture
def builds(monkeypatch):
    """Give every candidate a copy of the model that is off by what a test says; no graph is written."""
    errors = {}

    def build(self, served, candidate):
        if candidate[0] == "openvino":
            raise CheckpointError("openvino is not installed")
        copy = served.computed_by(graph=None, precision=candidate[1])
        plain = served.compute

        def compute(items, **options):
            return [
                row + errors.get(candidate, 0) * torch.arange(len(row)).flip(0)
                for row in plain(items, **options)
            ]

        copy.compute = compute
        return copy

    monkeypatch.setattr(EngineTrial, "_built", build)
    return errors


def costs(monkeypatch, **milliseconds):
    found = {TORCH: 10.0, ONNX: 5.0, ("torch", "bf16"): 3.0, ("onnxruntime", "int8"): 2.0}
    named = {key: milliseconds.get(f"{key[0]}_{key[1]}", value) for key, value in found.items()}
    monkeypatch.setattr(engine_trial, "costs_of", lambda candidates: {one: named[one] for one in candidates})


def applied(trial, served):
    lines = []
    with mock.patch.object(engine_trial, "notice", lines.append):
        return trial.applied(served), " ".join(lines)


def photos(folder, count):
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03}.jpg").write_bytes(jpeg(number))
    return str(folder)


def test_without_photos_the_fastest_in_fp32_is_taken_and_all_are_reported(served, builds, monkeypatch):
    costs(monkeypatch)
    trial = EngineTrial(wanted="fastest", threads=1)
    chosen, said = applied(trial, served)
    assert trial.chosen == {"m": ONNX} and chosen.precision == "fp32"
    assert "onnxruntime fp32 5.0 ms" in said and "torch fp32 10.0 ms" in said
    assert "openvino is not installed" in said and "bf16" not in said


def test_an_engine_that_is_no_faster_or_answers_otherwise_is_not_taken(served, builds, monkeypatch):
    costs(monkeypatch, onnxruntime_fp32=9.8)
    chosen, said = applied(EngineTrial(wanted="fastest", threads=1), served)
    assert chosen is served and "no faster than torch" in said
    costs(monkeypatch)
    builds[ONNX] = 0.5
    chosen, said = applied(EngineTrial(wanted="fastest", threads=1), served)
    assert chosen is served and "answers differ by" in said


def test_lower_precision_is_taken_only_if_photos_keep_their_class(served, builds, monkeypatch, tmp_path):
    costs(monkeypatch)
    place = photos(tmp_path / "photos", 100)
    builds["onnxruntime", "int8"] = 100.0  # each photo gets the first class
    trial = EngineTrial(wanted="fastest", threads=1, photos=place)
    _, said = applied(trial, served)
    assert trial.chosen == {"m": ("torch", "bf16")} and "another class for" in said
    # Over new weights the choice holds, and falls back to torch where it is not accurate.
    assert applied(trial, served)[0].precision == "bf16"
    builds["torch", "bf16"] = 100.0
    assert applied(trial, served)[0] is served
    few = EngineTrial(wanted="fastest", threads=1, photos=photos(tmp_path / "few", 3))
    with pytest.raises(ConfigError, match="at least 100 pictures"):
        few.applied(served)


def test_changed_answers_are_counted(served):
    pixels = [served.pixels(jpeg(number), max_pixels=10**6) for number in range(20)]
    assert refusal_of(served, served, ("torch", "bf16"), pixels) == ""


def test_adapters_stay_in_torch(served):
    from vitrine.models.lora import add_adapters

    add_adapters(served.predictor.model, rank=1)
    chosen, said = applied(EngineTrial(wanted="onnxruntime", threads=1), served)
    assert chosen is served and "adapters share one backbone" in said


def test_onnxruntime_without_a_file_writes_one_to_the_cache_once(folder, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path))
    options = {"device": "cpu", "max_batch": 4, "threads": 1}
    [plain] = open_models([folder], **options).models
    for _ in range(2):
        [exported] = open_models([folder], engine="onnxruntime", **options).models
        pixels = [plain.pixels(jpeg(number), max_pixels=10**6) for number in range(3)]
        for wanted in ("logits", "features", "scores"):
            ours, theirs = (torch.stack(one.compute(pixels, wanted=wanted)) for one in (plain, exported))
            torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
    [graph] = (tmp_path / "engines").iterdir()
    assert exported.graph.path == graph and "onnxruntime" in exported.described()["backend"]
    with pytest.raises(ConfigError, match="unless engine is fastest"):
        open_models([folder], photos="here", **options)
    with pytest.raises(ConfigError, match="chooses file and precision itself"):
        open_models([folder], engine="fastest", precision="bf16", **options)
