"""The study of ViT's descendants: equal parameters, equal compute, long enough, and its rule."""

import dataclasses

import pytest
from unit.studies.made import made_results

from vitrine.models.cost import cost_of
from vitrine.studies.convergence import convergence_of, word_on
from vitrine.studies.descendant_models import METHODS, PLAIN, TAUGHT
from vitrine.studies.experiments.descendants import STUDY, findings, search
from vitrine.studies.record import FIRST_GRID, Run, Setup
from vitrine.studies.results import Results
from vitrine.studies.scales import SCALES, find_scale
from vitrine.studies.verdicts import EDGE


def runs(scale: str, *, num_classes: int = 10, num_images: int = 49_000) -> tuple[Run, ...]:
    return STUDY.runs(Setup(scale=SCALES[scale], seed=0, num_classes=num_classes, num_images=num_images))


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_has_the_parameters_of_the_plain_vit_within_five_percent(scale: str) -> None:
    params = {run.settings["method"]: cost_of(run.model).params for run in runs(scale)}
    for method in METHODS:
        assert params[method] == pytest.approx(params[PLAIN], rel=0.05), method


@pytest.mark.parametrize("scale", ["little", "small", "medium", "paper"])
def test_every_method_trains_with_the_compute_of_the_plain_vit_and_sees_the_data_often(scale: str) -> None:
    listed = {run.settings["method"]: run for run in runs(scale, num_classes=200, num_images=100_000)}
    teacher = cost_of(listed["teacher"].model).macs

    def compute(run: Run) -> float:
        asked = teacher / 3 if run.settings["method"] == TAUGHT else 0
        return (cost_of(run.model).macs + asked) * run.recipe.training.total_steps

    for method in METHODS:
        training = listed[method].recipe.training
        # Whole steps: never less compute than the plain ViT's, at most one step more.
        assert 0 <= compute(listed[method]) / compute(listed[PLAIN]) - 1 < 1.1 / training.total_steps, method
        assert training.total_steps * training.batch_size >= 60 * 100_000
    plain = listed[PLAIN].recipe.training
    # Equal compute by many more or fewer passes over the data would be another comparison.
    passes = [listed[method].recipe.training.total_steps / plain.total_steps for method in METHODS]
    assert scale == "paper" or 0.65 < min(passes) <= max(passes) < 1.5


def test_deits_token_learns_from_the_trained_resnet_and_all_share_the_rest() -> None:
    teacher, *others = runs("small")
    assert teacher.role == "preparation"
    taught = next(run for run in others if run.settings["method"] == TAUGHT)
    assert (taught.after, taught.uses) == (teacher.name, "teacher")
    assert taught.recipe.objective.kind == "distillation"
    assert all(run.after is None for run in others if run is not taught)
    assert all(run.needs_rate for run in others)
    assert len({run.recipe.augment for run in others}) == 1
    assert len({(run.recipe.training.lr, run.recipe.training.batch_size) for run in others}) == 1


def test_a_method_helps_only_beyond_twice_the_standard_error() -> None:
    means = {"+ PEG": 0.51, "TNT": 0.501, "PVT v2": 0.49}
    results = Results(made_results("descendants", lambda run: means.get(run.settings["method"], 0.5)))
    states = {finding.says.split(" is ")[0]: finding.state for finding in findings(results)}
    assert states == {
        "+ T2T tokens": "open", "+ PEG": "holds", "PVT v2": "opposite", "TNT": "open", "+ DeiT's token": "open",
    }  # fmt: skip


def test_a_method_whose_rate_is_at_the_edge_of_the_grid_stays_open() -> None:
    results = made_results("descendants", lambda run: 0.7 if run.settings["method"] == "+ PEG" else 0.5)
    moved = [
        dataclasses.replace(result, settings={**result.settings, "rate": 0.002})
        if result.settings["method"] == "+ PEG"
        else result
        for result in results
    ]
    assert results[0].settings["method"] == "teacher"
    peg, other = (
        next(one for one in findings(Results(kept)) if one.says.startswith("+ PEG"))
        for kept in (moved, results)
    )
    assert (peg.state, other.state) == ("open", "holds")
    assert EDGE in peg.says


def test_the_search_tries_every_method_at_every_rate_in_short_runs_of_the_first_seed() -> None:
    setup = Setup(scale=SCALES["little"], seed=0, num_classes=10, num_images=10_000)
    searched = search(setup)
    assert len(searched) == len(METHODS) * (FIRST_GRID[1] - FIRST_GRID[0] + 1)
    wider = search(dataclasses.replace(setup, grids={PLAIN: (-3, 1)}))
    assert len(wider) == len(searched) + 2
    full = {run.settings["method"]: run for run in STUDY.runs(setup)}
    for run in searched:
        share = run.recipe.training.total_steps / full[run.settings["method"]].recipe.training.total_steps
        assert share == pytest.approx(1 / 3, rel=0.01)
        assert run.recipe.training.lr == run.settings["rate"]
    assert not search(dataclasses.replace(setup, seed=1))


def test_runs_twice_as_long_are_asked_for_with_one_factor() -> None:
    images = {"num_classes": 10, "num_images": 10_000}
    once, twice = (
        [run.recipe.training.total_steps for run in STUDY.runs(Setup(scale=scale, seed=0, **images))]
        for scale in (find_scale("little"), find_scale("little", steps=2))
    )
    assert [pytest.approx(2 * steps, abs=2) for steps in once] == twice


@pytest.mark.parametrize(
    ("gain", "word"),
    [(0.02, "not converged"), (0.001, "converged"), (-0.001, "converged"), (-0.02, "overfits")],
)
def test_a_plain_vit_that_gains_with_twice_the_steps_has_not_converged(gain: float, word: str) -> None:
    results = Results(made_results("descendants", lambda run: 0.5 + gain * (run.role == "check")))
    convergence = convergence_of(results)
    assert convergence is not None and (convergence.arm, convergence.seeds) == ("plain-ViT", 3)
    assert convergence.word == word and convergence.change == pytest.approx(gain)
    assert word_on(Results([one for one in results.all if one.role != "check"])) == "not checked"
