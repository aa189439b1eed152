"""The study of ViT's descendants: equal parameters, equal compute, long enough, and its rule."""

import pytest
from unit.studies.made import made_results

from vitrine.models.cost import cost_of
from vitrine.studies.experiments.descendants import METHODS, PLAIN, STUDY, TAUGHT, findings
from vitrine.studies.record import Run, Setup
from vitrine.studies.results import Results
from vitrine.studies.scales import SCALES


def runs(scale: str, *, num_classes: int = 10, num_images: int = 49_000) -> tuple[Run, ...]:
    return STUDY.runs(Setup(scale=SCALES[scale], seed=0, num_classes=num_classes, num_images=num_images))


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_has_the_parameters_of_the_plain_vit_within_five_percent(scale: str) -> None:
    params = {run.settings["method"]: cost_of(run.model).params for run in runs(scale)}
    for method in METHODS:
        assert params[method] == pytest.approx(params[PLAIN], rel=0.05), method


@pytest.mark.parametrize("scale", ["small", "medium", "paper"])
def test_every_method_trains_with_the_compute_of_the_plain_vit_and_sees_the_data_often(scale: str) -> None:
    listed = {run.settings["method"]: run for run in runs(scale, num_classes=200, num_images=100_000)}
    teacher = cost_of(listed["teacher"].model).macs

    def compute(run: Run) -> float:
        asked = teacher / 3 if run.settings["method"] == TAUGHT else 0
        return (cost_of(run.model).macs + asked) * run.recipe.training.total_steps

    for method in METHODS:
        assert compute(listed[method]) == pytest.approx(compute(listed[PLAIN]), rel=1e-3), method
    plain = listed[PLAIN].recipe.training
    assert plain.total_steps * plain.batch_size >= 60 * 100_000
    # Equal compute by many more or fewer passes over the data would be another comparison.
    passes = [listed[method].recipe.training.total_steps / plain.total_steps for method in METHODS]
    assert scale == "paper" or 0.7 < min(passes) <= max(passes) < 1.5


def test_deits_token_learns_from_the_trained_resnet_and_all_share_the_rest() -> None:
    teacher, *others = runs("small")
    assert teacher.role == "preparation"
    taught = next(run for run in others if run.settings["method"] == TAUGHT)
    assert (taught.after, taught.uses) == (teacher.name, "teacher")
    assert taught.recipe.objective.kind == "distillation"
    assert all(run.after is None for run in others if run is not taught)
    assert len({run.recipe.augment for run in others}) == 1
    assert len({(run.recipe.training.lr, run.recipe.training.batch_size) for run in others}) == 1


def test_a_method_helps_only_beyond_twice_the_standard_error() -> None:
    means = {"+ PEG": 0.51, "TNT": 0.501, "PVT v2": 0.49}
    results = Results(made_results("descendants", lambda run: means.get(run.settings["method"], 0.5)))
    states = {finding.says.split(" is ")[0]: finding.state for finding in findings(results)}
    assert states == {
        "+ T2T tokens": "open", "+ PEG": "holds", "PVT v2": "opposite", "TNT": "open", "+ DeiT's token": "open",
    }  # fmt: skip
