"""From a fine-tuned run to "none of these" and prediction sets: command line, Python, HTTP."""

import csv
import json
import shutil

import numpy as np
import pytest
from journeys.web import ask
from pictures import save
from servers import encoded, serving

import vitrine
from vitrine.checkpoints.tensors import TRUST_FILE as FILE
from vitrine.errors import ConfigError
from vitrine.evaluation.trust import read_trust
from vitrine.serving.predictor import Predictor

pytestmark = pytest.mark.usefixtures("elsewhere")


def stripes(seed: int, *, is_vertical: bool) -> np.ndarray:
    """Draw stripes in one of two directions, with noise."""
    generator = np.random.default_rng(seed)
    wave = 100 + 80 * np.sin(np.arange(32) * generator.uniform(0.5, 1.2) + generator.uniform(0, 6))
    grey = np.tile(wave, (32, 1)) if is_vertical else np.tile(wave[:, None], (1, 32))
    return (grey[..., None] + generator.normal(0, 8, (32, 32, 3))).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stripes")
    for number in range(48):
        save(folder / "data" / "across" / f"{number}.png", stripes(number, is_vertical=True))
        save(folder / "data" / "down" / f"{number}.png", stripes(500 + number, is_vertical=False))
    vitrine.finetune(
        folder / "data",
        size=32,
        steps=6,
        batch_size=8,
        hold_out=0.4,
        out=folder / "run",
        device="cpu",
        workers=0,
    )
    return folder / "run"


def test_a_fine_tuned_run_stores_its_limits_beside_the_weights(run):
    trust = read_trust(run / "model")
    assert trust.familiarity is not None and trust.held_out is not None
    assert len(trust.held_out.labels) == len(trust.familiarity.held_out) >= 36
    assert (run / "model" / FILE).stat().st_size < 1_000_000


def test_a_strange_picture_is_marked_and_familiar_ones_pass(run, tmp_path):
    strange = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    familiar = [stripes(900 + number, is_vertical=number % 2 == 0) for number in range(20)]
    predictions = Predictor.open(run).predict([strange, *familiar], coverage=0.9)
    assert predictions[0].none_of_these
    assert predictions[0].familiarity < 0.1
    assert sum(bool(one.none_of_these) for one in predictions[1:]) <= 6
    assert all(one.answers[0].label in one.prediction_set for one in predictions)


def test_predictions_have_columns_for_it_and_the_command_says_so(run, tmp_path, command_line):
    vitrine_command = command_line("predict")
    picture = save(
        tmp_path / "strange.png", np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    )
    plain = save(tmp_path / "plain.png", stripes(901, is_vertical=True))
    code, _, _ = vitrine_command(
        "predict", run, picture, plain, "--coverage", "0.9", "--out", tmp_path / "answers.csv"
    )
    assert code == 0
    with (tmp_path / "answers.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first["none_of_these"] == "yes"
    assert float(first["familiarity"]) < float(second["familiarity"])
    assert second["predicted"] in second["prediction_set"].split("; ")
    _, out, _ = vitrine_command("predict", run, picture)
    assert "none of these;" in out and "about 1 in 20 pictures" in out
    _, out, _ = vitrine_command("predict", run, plain, "--coverage", "0.9", "--json")
    assert json.loads(out)["predictions"][0]["prediction_set"]


def test_a_coverage_that_cannot_be_promised_is_refused(run, tmp_path):
    picture = save(tmp_path / "plain.png", stripes(901, is_vertical=True))
    for model, coverage in ((run, 0.999), (run, 1.5), ("box", 0.9)):
        with pytest.raises(ConfigError) as caught:
            vitrine.predict(model, [picture], coverage=coverage)
        assert caught.value.option == "coverage"


def test_another_image_size_has_other_features_so_nothing_is_claimed(run):
    prediction = Predictor.open(run, image_size=48).predict([stripes(1, is_vertical=True)])[0]
    assert prediction.none_of_these is None
    assert prediction.familiarity is None


def test_the_estimator_marks_strange_pictures_and_returns_sets():
    X = [stripes(number, is_vertical=number % 2 == 0) for number in range(60)]
    y = ["across" if number % 2 == 0 else "down" for number in range(60)]
    fitted = vitrine.VitClassifier(device="cpu", workers=0, image_size=32).fit(X, y)
    noise = [np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8) for seed in range(3)]
    assert fitted.none_of_these(noise).all()
    fresh = [stripes(900 + number, is_vertical=number % 2 == 0) for number in range(20)]
    assert fitted.none_of_these(fresh).mean() <= 0.3
    sets = fitted.predict_set(fresh, coverage=0.9)
    assert sets.shape == (20, 2)
    truth = [0 if number % 2 == 0 else 1 for number in range(20)]
    assert sets[np.arange(20), truth].mean() >= 0.7


def test_exports_carry_the_limits_of_the_model(run, tmp_path):
    vitrine.export(run, to="npz", out=tmp_path / "exported", speed=False)  # the same for every target
    assert (tmp_path / "exported" / FILE).read_bytes() == (run / "model" / FILE).read_bytes()
    embedding = vitrine.Predictor.open(run).embed([stripes(1, is_vertical=True)]).rows
    known = read_trust(tmp_path / "exported").familiarity
    assert known is not None
    assert known.distance(embedding).shape == (1,)


def test_the_api_returns_the_mark_and_the_set(run):
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    with serving([run]) as server:
        reply = ask(server.port, "/predict?coverage=0.9", encoded(noise, "PNG")).json
        refused = ask(server.port, "/predict?coverage=0.9999", encoded(noise, "PNG"))
    assert reply["none_of_these"] is True
    assert reply["familiarity"] < 0.1
    assert reply["answers"][0]["label"] in reply["prediction_set"]
    assert refused.status == 422


def test_other_weights_in_the_same_folder_do_not_inherit_the_statistics(run, tmp_path):
    shutil.copytree(run / "model", tmp_path / "model")
    vitrine.save(vitrine.load(tmp_path / "model"), tmp_path / "model", overwrite=True)
    assert Predictor.open(tmp_path / "model").trust.familiarity is None
