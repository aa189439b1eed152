import json

import pytest
import torch
from safetensors.torch import save_file
from servers import CLASSES, jpeg, serving, small_vit

from vitrine.checkpoints.record import config_to_json
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError
from vitrine.serving.live_run import LiveRun, load_unfinished
from vitrine.serving.open_models import name_of, open_models


def run_of(folder, model, *, states=(), averages=False, objective="labels"):
    """A run folder as training leaves it while it is at work."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    record = {
        "verb": "finetune",
        "data": "photos",
        "device": "cpu",
        "workers": 0,
        "model": config_to_json(model.config),
        "preprocess": Preprocess(size=(32, 32)).to_json(),
        "objective": objective,
    }
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "classes.json").write_text(json.dumps({"classes": CLASSES}))
    inner = "" if objective == "labels" else "vit."
    for name, gain in states:
        tensors = {f"model.{inner}{key}": gain * value for key, value in model.state_dict().items()}
        if averages:
            tensors |= {
                f"averages.{inner}{key}": 2 * gain * value for key, value in model.state_dict().items()
            }
        tensors["optimizer.head.weight:exp_avg"] = torch.zeros(2)
        save_file(tensors, folder / "checkpoints" / name)
    return folder


def test_records_are_read_from_where_the_reader_stopped(tmp_path):
    metrics, run = tmp_path / "metrics.jsonl", LiveRun(tmp_path)
    assert run.read(0) == ([], 0)
    metrics.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    records, place = run.read(0)
    assert records == [{"step": 1, "loss": 2.0}]
    assert run.read(place) == ([], place)
    with metrics.open("a") as out:
        out.write('ss": 1.0}\n')
    assert run.read(place)[0] == [{"step": 2, "loss": 1.0}]


def test_a_file_that_was_cut_short_is_read_from_its_start(tmp_path):
    metrics, run = tmp_path / "metrics.jsonl", LiveRun(tmp_path)
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    _, place = run.read(0)
    metrics.write_text('{"step": 1}\n')
    assert run.read(place) == ([{"step": 1}], 12)


def test_what_is_no_number_and_no_record_does_not_break_the_answer(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": NaN, "lr": Infinity, "list": [1]}\nnot json\n[1]\n'
    )
    assert LiveRun(tmp_path).read(0)[0] == [{"step": 1, "loss": None, "lr": None}]


def test_a_long_file_comes_in_pieces(tmp_path):
    metrics, run = tmp_path / "metrics.jsonl", LiveRun(tmp_path)
    count = 20_000
    metrics.write_text("".join(f'{{"step": {step}, "loss": 1.25}}\n' for step in range(count)))
    found, place = run.read(0)
    assert 0 < len(found) < count
    while True:
        records, place = run.read(place)
        if not records:
            break
        found += records
    assert [record["step"] for record in found] == list(range(count))


@pytest.mark.parametrize("objective", ["labels", "masked-patches"])
@pytest.mark.parametrize("averages", [False, True])
def test_the_newest_weights_are_those_that_the_run_would_save(tmp_path, averages, objective):
    model = small_vit()
    folder = run_of(
        tmp_path / "run", model, states=[("best.safetensors", 0.5), ("last.safetensors", 3.0)],
        averages=averages, objective=objective,
    )  # fmt: skip
    loaded = load_unfinished(folder)
    assert loaded is not None and loaded.classes == CLASSES
    factor = 1.0 if averages else 0.5
    for name, value in loaded.model.state_dict().items():
        torch.testing.assert_close(value, factor * model.state_dict()[name])
    assert "has not finished" in loaded.notes[0]


def test_a_run_without_weights_is_served_as_curves_only(tmp_path):
    from journeys.web import ask

    folder = run_of(tmp_path / "run", small_vit())
    assert load_unfinished(folder) is None
    with serving([folder]) as running:
        assert ask(running.port, "/run").json["records"] == [{"step": 1, "loss": 2.0}]
        reply = ask(running.port, "/predict", jpeg())
        assert reply.status == 503 and "no weights yet" in reply.error
        served = ask(running.port, "/models").json
        assert served["models"] == [] and served["awaited"] == ["run"]
        assert ask(running.port, "/ready").status == 200


def test_a_run_with_weights_answers_and_shows_its_curves(tmp_path):
    from journeys.web import ask

    folder = run_of(tmp_path / "run", small_vit(), states=[("last.safetensors", 1.0)])
    with serving([folder]) as running:
        assert len(ask(running.port, "/predict", jpeg()).json["answers"]) == 5
        assert ask(running.port, "/models").json["run"] == "run"
        assert not ask(running.port, "/run").json["is_finished"]


def test_weights_of_another_model_are_refused(tmp_path):
    folder = run_of(tmp_path / "run", small_vit(), states=[("last.safetensors", 1.0)])
    other = json.loads((folder / "run.json").read_text())
    other["model"]["depth"] = 1
    (folder / "run.json").write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match="does not fit"):
        open_models([str(folder)], device="cpu", max_batch=1, threads=1)


def test_a_dated_run_is_named_after_its_data_and_date(tmp_path):
    folder = run_of(tmp_path / "2026-11-18-031559-finetune", small_vit())
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"data": "/home/me/flowers"}))
    assert LiveRun(folder).name == "flowers, 2026-11-18 03:15"
    assert name_of(str(folder)) == "flowers, 2026-11-18 03:15"
    assert LiveRun(run_of(tmp_path / "mine", small_vit())).name == "mine"
    (folder / "run.json").write_text("{")
    assert LiveRun(folder).name == "2026-11-18-031559-finetune"


@pytest.mark.parametrize("name", ["run.json", "classes.json"])
def test_a_damaged_record_of_a_run_is_named_once(tmp_path, name):
    folder = run_of(tmp_path / "run", small_vit(), states=[("last.safetensors", 1.0)])
    (folder / name).write_text("{")
    with pytest.raises(ConfigError) as caught:
        load_unfinished(folder)
    assert str(caught.value).count(str(folder)) == 1


def test_a_model_that_cannot_be_built_is_an_error_of_the_run(tmp_path):
    folder = run_of(tmp_path / "run", small_vit(), states=[("last.safetensors", 1.0)])
    record = json.loads((folder / "run.json").read_text())
    record["model"]["depth"] = 0
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=folder.name):
        load_unfinished(folder)
