"""TensorBoard and W&B, by stand-ins that take what the real ones are given; neither is installed for tests."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from vitrine.errors import MissingExtraError
from vitrine.training.metrics_log import TensorBoard, WeightsAndBiases, require_sinks


class Writer:
    made: list["Writer"] = []  # noqa: RUF012

    def __init__(self, folder: str, purge_step: int | None = None) -> None:
        self.folder, self.purge_step, self.scalars, self.is_closed = folder, purge_step, [], False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.is_closed = True


class Project:
    """Stands for the module `wandb` and for the run that its `init` returns."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, Any], int]] = []

    def init(self, **options: Any) -> "Project":
        self.begun.append(options)
        return self

    def log(self, record: dict[str, Any], step: int) -> None:
        self.logged.append((record, step))

    def finish(self) -> None:
        self.logged.append(({}, -1))


def test_tensorboard_gets_every_number_and_takes_back_what_a_resumed_run_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    for done, purged in ((0, 1), (7, 8)):  # a run may go on from its beginning too
        sink = TensorBoard(tmp_path, done_steps=done)
        sink.write({"step": 8, "loss": 0.5, "lr": 1e-3})
        sink.close()
        writer = Writer.made[-1]
        assert (writer.folder, writer.purge_step, writer.is_closed) == (str(tmp_path), purged, True)
        assert writer.scalars == [("loss", 0.5, 8), ("lr", 1e-3, 8)]


def test_a_run_that_goes_on_is_the_same_run_for_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project()
    monkeypatch.setitem(sys.modules, "wandb", project)  # type: ignore[arg-type]
    for _ in range(2):
        sink = WeightsAndBiases("pets", config={"lr": 1}, folder=tmp_path)
        sink.write({"step": 3, "loss": 0.5})
        sink.close()
    first, second = project.begun
    assert first == second and len(first["id"]) == 8
    assert (first["project"], first["resume"], first["dir"]) == ("pets", "allow", str(tmp_path))
    assert project.logged == [({"loss": 0.5}, 3), ({}, -1)] * 2
    WeightsAndBiases("pets", config={}, folder=tmp_path / "other")
    assert project.begun[-1]["id"] != first["id"]


def test_what_is_not_installed_is_refused_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_sinks(tensorboard=False, wandb=None)
    for asked in ({"tensorboard": True, "wandb": None}, {"tensorboard": False, "wandb": "pets"}):
        with pytest.raises(MissingExtraError, match="pip install 'vitrine"):
            require_sinks(**asked)  # type: ignore[arg-type]
