import time
from contextlib import contextmanager

import pytest
import torch
from journeys.web import ask
from safetensors.torch import save_file
from servers import jpeg, saved_vit, serving, small_vit

from vitrine.runtime.progress import listening
from vitrine.serving import open_models
from vitrine.serving.open_models import ModelSlot

from .test_live_run import run_of

LOOK = 0.02


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(open_models, "LOOK_EVERY_SECONDS", LOOK)


class Ears:
    """Keeps what is remarked."""

    def __init__(self):
        self.heard = []

    def notice(self, text, advice=()):
        self.heard.append(text)

    def start(self, what, total, done=0): ...
    def advance(self, steps, note=""): ...
    def finish(self): ...


@contextmanager
def hearing():
    ears = Ears()
    with listening(ears):
        yield ears.heard


def until(holds, *, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(LOOK)


def write_weights(folder, model, *, name="last.safetensors"):
    """As training does: under another name first, then all at once."""
    path = folder / "checkpoints" / name
    save_file({f"model.{key}": value for key, value in model.state_dict().items()}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def test_a_run_that_is_served_before_its_first_weights_answers_once_they_are_written(tmp_path):
    model = small_vit(seed=3)
    folder = run_of(tmp_path / "run", model)
    with hearing() as heard, serving([folder]) as running:
        reply = ask(running.port, "/predict", jpeg())
        assert reply.status == 503 and "as soon as it has" in reply.error
        write_weights(folder, model)
        until(lambda: not running.service.awaited)
        served = ask(running.port, "/models").json
        assert [each["name"] for each in served["models"]] == ["run"] and served["awaited"] == []
        logits = torch.tensor(ask(running.port, "/predict?logits=1", jpeg()).json["logits"])
        [hosted] = running.service.models.values()
        pixels = hosted.pixels(jpeg(), max_pixels=10**6)
        wanted = model(hosted.predictor.preprocess.normalise(pixels[None]))[0]
        torch.testing.assert_close(logits, wanted.detach(), rtol=0, atol=1e-4)  # fp32 in another batch
        assert running.service.num_pictures == 1
        [notice] = heard
        assert notice.startswith("run has its first weights")
        running.service.watcher._thread.join(5)
        assert not running.service.watcher._thread.is_alive()  # nothing is left to look for


def test_a_run_that_arrives_later_takes_the_place_in_which_it_was_named(tmp_path):
    folder = run_of(tmp_path / "run", small_vit())
    other = saved_vit(tmp_path / "other", seed=1)
    with serving([folder, other]) as running:
        assert ask(running.port, "/predict", jpeg()).json["model"] == "other"
        reply = ask(running.port, "/predict?model=run", jpeg())
        assert reply.status == 503 and "no weights yet" in reply.error
        write_weights(folder, small_vit())
        until(lambda: not running.service.awaited)
        assert list(running.service.models) == ["run", "other"]
        assert ask(running.port, "/predict", jpeg()).json["model"] == "run"
    with serving([other, folder]) as running:
        assert list(running.service.models) == ["other", "run"]


def test_a_run_that_finishes_between_two_looks_is_served_as_it_was_saved(tmp_path):
    folder = run_of(tmp_path / "run", small_vit())
    with serving([folder]) as running:
        saved_vit(folder / "model", seed=5)
        until(lambda: not running.service.awaited)
        [described] = ask(running.port, "/models").json["models"]
        assert not any("has not finished" in note for note in described["notes"])


def test_weights_that_cannot_be_read_are_said_once_and_tried_again_when_others_come(tmp_path, monkeypatch):
    model = small_vit()
    folder = run_of(tmp_path / "run", model)
    opened = []
    original = ModelSlot.open

    def counted(self):
        opened.append(self.name)
        return original(self)

    monkeypatch.setattr(ModelSlot, "open", counted)
    with hearing() as heard, serving([folder]) as running:
        write_weights(folder, small_vit(depth=1))
        until(lambda: heard)
        time.sleep(10 * LOOK)
        assert len(heard) == 1 and "does not fit the model" in heard[0]
        assert opened == ["run", "run"]  # at the start, and once for the file
        assert ask(running.port, "/predict", jpeg()).status == 503
        write_weights(folder, model)
        until(lambda: not running.service.awaited)
        assert ask(running.port, "/predict", jpeg()).status == 200


def test_an_error_that_nobody_thought_of_is_said_and_the_next_weights_are_still_looked_for(
    tmp_path, monkeypatch
):
    model = small_vit()
    folder = run_of(tmp_path / "run", model)
    original = ModelSlot.open

    def fails(self):
        raise ZeroDivisionError("nobody thought of this")

    with hearing() as heard, serving([folder]) as running:
        monkeypatch.setattr(ModelSlot, "open", fails)
        write_weights(folder, model)
        until(lambda: heard)
        assert "served: nobody thought of this" in heard[0]
        monkeypatch.setattr(ModelSlot, "open", original)
        write_weights(folder, model, name="best.safetensors")
        until(lambda: not running.service.awaited)
        assert ask(running.port, "/predict", jpeg()).status == 200


def test_a_server_that_still_waits_for_weights_stops_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(open_models, "LOOK_EVERY_SECONDS", 60.0)
    with serving([run_of(tmp_path / "run", small_vit())]) as running:
        began = time.monotonic()
        running.service.watcher.stop()
        assert time.monotonic() - began < 10
