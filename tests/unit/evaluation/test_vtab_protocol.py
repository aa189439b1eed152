import dataclasses
import sys

import pytest

from vitrine.data.sources.source import Source
from vitrine.data.sources.vtab.tasks import TASKS, find_task
from vitrine.errors import ConfigError, DataError, MissingExtraError
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.vtab.protocol import PROTOCOLS, run_vtab
from vitrine.evaluation.vtab.scores import PAPER_MEANS, PAPER_ROWS, TaskScore, VtabScores
from vitrine.evaluation.vtab.tables import draw_figure, table

from . import vtab_files as files


class Trainer:
    """Stands in for training: its accuracy is the attempt's learning rate, so the sweep's choice can be seen."""

    def __init__(self, fail_after=None):
        self.trained, self.measured, self.fail_after = [], [], fail_after

    def fine_tune(self, source: Source, attempt, folder):
        if self.fail_after is not None and len(self.trained) >= self.fail_after:
            raise KeyboardInterrupt
        self.trained.append((len(source), attempt, folder))
        return attempt

    def measure(self, attempt, source: Source):
        self.measured.append(len(source))
        return Interval(value=attempt.lr, low=0.0, high=1.0)


def make_root(root, names=("dtd", "svhn", "clevr_count")):
    for name in names:
        files.make_lists(root / name, {"dtd": 47, "svhn": 10, "clevr_count": 8}[name])


def run(root, folder, trainer, protocol="lightweight", identity="model-a", **options):
    return run_vtab(
        root,
        fine_tune=trainer.fine_tune,
        measure=trainer.measure,
        protocol=PROTOCOLS[protocol],
        folder=folder,
        identity=identity,
        model="tiny",
        **options,
    )


def test_the_papers_protocol_is_one_run_a_task_with_its_numbers():
    (attempt,) = PROTOCOLS["vit"].attempts(find_task("Pets"))
    assert (attempt.steps, attempt.lr, attempt.batch_size, attempt.image_size) == (2500, 0.01, 512, 384)
    assert (attempt.may_crop, attempt.may_flip) == (True, True)
    (sprites,) = PROTOCOLS["vit"].attempts(find_task("dSprites-Location"))
    assert (sprites.may_crop, sprites.may_flip) == (False, False)


def test_the_lightweight_protocol_sweeps_two_rates_and_two_schedules():
    attempts = PROTOCOLS["lightweight"].attempts(find_task("Pets"))
    assert {(attempt.lr, attempt.steps) for attempt in attempts} == {
        (0.1, 2500), (0.01, 2500), (0.1, 10_000), (0.01, 10_000)
    }  # fmt: skip


def test_a_sweep_is_on_800_and_200_the_final_run_on_1000_and_the_test_on_all(tmp_path):
    make_root(tmp_path / "root", ["dtd"])
    trainer = Trainer()
    scores = run(tmp_path / "root", tmp_path / "out", trainer)
    assert [count for count, _, _ in trainer.trained] == [
        8,
        8,
        8,
        8,
        12,
    ]  # the small stand-ins for 800 and 1,000
    assert trainer.measured == [4, 4, 4, 4, 6]
    assert trainer.trained[-1][1].lr == 0.1  # the best on the 200
    assert scores.scores[0].num_test == 6
    assert scores.scores[0].sweep["lr-0.1-steps-2500"] == 0.1


def test_missing_tasks_are_named_and_the_mean_says_how_many_there_are(tmp_path):
    make_root(tmp_path / "root")
    scores = run(tmp_path / "root", tmp_path / "out", Trainer(), protocol="vit")
    assert scores.mean is None
    assert len(scores.missing) == 16
    assert scores.count == "3 of 19" and scores.mean_of_present == pytest.approx(0.01)
    assert scores.missing[:2] == ("Caltech101", "CIFAR-100")
    assert scores.group_mean("Natural") is None
    assert "(3 of 19)" in table([scores])
    assert table([scores]).count("missing") == 16


def test_a_run_that_was_interrupted_goes_on_after_the_tasks_that_are_done(tmp_path):
    make_root(tmp_path / "root")
    first = Trainer(fail_after=1)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "root", tmp_path / "out", first, protocol="vit")
    second = Trainer()
    scores = run(tmp_path / "root", tmp_path / "out", second, protocol="vit")
    assert len(second.trained) == 2
    assert [score.task for score in scores.scores] == ["DTD", "SVHN", "Clevr-Count"]
    third = Trainer()
    assert run(tmp_path / "root", tmp_path / "out", third, protocol="vit") == scores
    assert not third.trained


def test_kept_results_of_another_model_or_protocol_are_refused(tmp_path):
    make_root(tmp_path / "root", ["dtd"])
    run(tmp_path / "root", tmp_path / "out", Trainer(), protocol="vit")
    with pytest.raises(ConfigError, match=r"DTD\.json .*of another model") as refused:
        run(tmp_path / "root", tmp_path / "out", Trainer(), protocol="vit", identity="model-b")
    assert [advice.option for advice in refused.value.advice] == ["out"]
    with pytest.raises(ConfigError, match="the result of another protocol"):
        run(tmp_path / "root", tmp_path / "out", Trainer())
    (tmp_path / "out" / "tasks" / "DTD.json").write_text("{}")
    with pytest.raises(DataError, match="not a stored VTAB result"):
        run(tmp_path / "root", tmp_path / "out", Trainer(), protocol="vit")


def test_an_unfinished_root_is_refused_before_anything_is_trained(tmp_path):
    make_root(tmp_path / "root")
    (tmp_path / "root" / "clevr_count" / "val200.txt").unlink()
    trainer = Trainer()
    with pytest.raises(DataError, match=r"clevr_count is incomplete: val200\.txt"):
        run(tmp_path / "root", tmp_path / "out", trainer)
    assert not trainer.trained
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty.*19 task folders,.*caltech101"):
        run(tmp_path / "empty", tmp_path / "out", trainer)


def all_tasks(value=0.5):
    return VtabScores(
        model="tiny",
        protocol="vit",
        missing=(),
        scores=tuple(
            TaskScore(
                task=task.name, group=task.group, accuracy=Interval(value=value, low=0.4, high=0.6), num_test=10,
                lr=0.01, steps=2500, layout="lists",
            )
            for task in TASKS
        ),
    )  # fmt: skip


def test_with_all_19_tasks_the_mean_stands_beside_the_papers():
    scores = all_tasks()
    assert scores.mean == 0.5
    [mean] = [line for line in table([scores]).splitlines() if "Mean of 19" in line]
    assert mean.strip("|").split(" | ")[1:] == ["50.00", "77.63", "76.28", "72.72 "]
    without = dataclasses.replace(scores, scores=scores.scores[1:], missing=("Caltech101",))
    assert without.mean is None
    assert without.group_mean("Natural") is None
    assert without.group_mean("Structured") == pytest.approx(0.5)


def test_the_papers_rows_have_the_means_of_its_table_2():
    for name, row in PAPER_ROWS.items():
        assert len(row) == 19
        # Rows are printed to .1, so their mean is known to .05.
        assert sum(row) / 19 == pytest.approx(PAPER_MEANS[name], abs=0.05)


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_figure_is_drawn_with_and_without_all_tasks(tmp_path, is_complete):
    scores = all_tasks()
    if not is_complete:
        scores = dataclasses.replace(scores, scores=scores.scores[1:], missing=("Caltech101",))
    draw_figure(tmp_path / "vtab.png", scores)
    assert (tmp_path / "vtab.png").read_bytes()[:4] == b"\x89PNG"


def test_a_figure_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrine\[report\]'"):
        draw_figure(tmp_path / "vtab.png", all_tasks())
