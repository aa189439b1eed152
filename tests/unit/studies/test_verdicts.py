"""Rules on made-up results: every study can be reproduced, left open and contradicted, and says so."""

import dataclasses
import math
from collections.abc import Callable

import pytest

from tests.unit.studies.made import made_results
from vitrine.models.cost import cost_of
from vitrine.studies.experiments.compute import curve
from vitrine.studies.experiments.head import best_rates
from vitrine.studies.experiments.position_patterns import SETTINGS
from vitrine.studies.experiments.self_supervision import COLOUR, FEW
from vitrine.studies.record import Run, Setup
from vitrine.studies.registry import STUDIES
from vitrine.studies.reporting import verdict_on
from vitrine.studies.results import Results
from vitrine.studies.scales import SCALES
from vitrine.studies.verdicts import ahead, error_of, level, verdict_of

Value = Callable[[Run], float]


def by(setting: str, values: dict[object, float], default: float = 0.6) -> Value:
    return lambda run: values.get(run.settings.get(setting), default)


def tuned(value: Value, rates: tuple[float, ...]) -> Value:
    """Lower every run that is not at one of these rates, so that the best lies inside its grid."""

    def lowered(run: Run) -> float:
        is_best = any(abs(run.settings.get("lr", rate) - rate) < 1e-9 for rate in rates)
        return value(run) - (0.0 if is_best else 0.03)

    return lowered


def few_shot(small_gap: float, large_gap: float) -> Value:
    """Return the ResNet's lead on the smallest subset and on all images."""

    def value(run: Run) -> float:
        gap = {0.03: small_gap, 1.0: large_gap}.get(run.settings["share"], 0.0)
        half = {0.03: 0.02, 1.0: -0.02}.get(run.settings["share"], 0.0)
        return 0.5 + {"ResNet": gap, "ViT-b": half}.get(run.settings["model"], 0.0)

    return value


def data_size(net_small: float, net_all: float, large_small: float, large_all: float) -> Value:
    def value(run: Run) -> float:
        is_all = run.settings["share"] == 1.0
        lead = {"ResNet": (net_small, net_all), "large ViT": (large_small, large_all)}
        # Much regularisation and two of three rates are worse here, so that the better ones must be found.
        worse = 0.1 if run.settings["regularisation"] == "much" else 0.0
        worse += 0.03 if abs(run.settings.get("lr", 0.03) - 0.03) > 1e-9 else 0.0
        return 0.5 + lead.get(run.settings["model"], (0.0, 0.0))[is_all] - worse

    return value


def head(gap: float, swapped: float) -> Value:
    """Class token is best at the middle rate, average pooling at the low one, `gap` below it."""

    def value(run: Run) -> float:
        rates = {"class token": 1e-3, "average pooling": 3e-4}
        is_best = abs(run.settings["lr"] - rates[run.settings["pooling"]]) < 1e-9
        return (
            0.6 - (gap if run.settings["pooling"] == "average pooling" else 0) - (0 if is_best else swapped)
        )

    return value


def compute(resnet: float, hybrid: float) -> Value:
    lead = {"ViT": 0.0, "ResNet": resnet, "hybrid": hybrid, "axial ViT": hybrid, "AxialResNet": resnet}
    return lambda run: 0.6 + 0.02 * cost_of(run.model).macs / 1e9 + lead[run.settings["family"]]


def shape(depth: float, width: float, patch: float) -> Value:
    gain = {"depth": depth, "width": width, "patch size": patch}
    return lambda run: 0.6 + gain.get(run.settings["dimension"], 0.0) * (run.settings["factor"] > 1)


def cost(power: float, vit_batch: float) -> Value:
    def value(run: Run) -> float:
        speed = 1e9 / run.settings["size"] ** (2 * power)
        return speed * (vit_batch if run.settings["family"] == "ViT" else 1.0)

    return value


def patterns(*, near: float, straight: float, varies: float) -> Value:
    """Return similarities that fall with distance, are higher in straight lines, and differ between settings."""

    def value(run: Run, measure: str = "") -> float:
        if not measure.startswith("similarity"):
            return 0.6
        row, column = map(int, measure.split("_")[1:])
        factor = 1 + varies * list(SETTINGS).index(run.settings["hyper-parameters"])
        return factor * (
            near / math.hypot(row, column) + straight * (not row or not column)
        ) + 0.01 * math.sin(row + 3 * column + run.seed)

    return value  # type: ignore[return-value]


def distances(growth: float, behind: float) -> Value:
    """Return distances that grow with the layer, and are larger by `behind` in the hybrid."""

    def value(run: Run, measure: str = "") -> float:
        if not measure.startswith("distance"):
            return 0.6
        layer, head = map(int, measure.split("_")[1:])
        return 8 + growth * layer + head + behind * (run.settings["model"] == "hybrid") + 0.01 * run.seed

    return value  # type: ignore[return-value]


CASES: dict[str, tuple[Value, Value, Value]] = {
    "positions": (
        by("positions", {"none": 0.5}),
        by("positions", {}),
        by("positions", {"none": 0.7}),
    ),
    "head": (head(0.004, 0.02), head(0.02, 0.0), head(0.1, 0.001)),
    "few-shot-vs-data": (few_shot(0.1, -0.02), few_shot(0.0, 0.0), few_shot(-0.1, 0.05)),
    "data-size": (
        data_size(0.1, 0.0, -0.05, 0.05),
        data_size(0.1, 0.1, 0.0, 0.0),
        data_size(-0.1, 0.1, 0.05, -0.05),
    ),
    "compute": (compute(-0.1, 0.05), compute(0.0, 0.0), compute(0.1, 0.0)),
    "self-supervision": (
        tuned(
            by("objective", {"from scratch": 0.5, FEW: 0.54, COLOUR: 0.55, "labels": 0.65}), (5e-4,)
        ),
        by("objective", {}),
        tuned(by("objective", {"from scratch": 0.65, "labels": 0.7}), (5e-4,)),
    ),
    "optimizer": (
        tuned(by("optimizer", {"Adam": 0.62}), (1e-3, 0.1)),
        by("optimizer", {}),
        tuned(by("optimizer", {"Adam": 0.55}), (1e-3, 0.1)),
    ),
    "shape": (shape(0.1, 0.02, 0.05), shape(0.0, 0.0, 0.0), shape(0.0, 0.1, 0.05)),
    "resolution": (
        tuned(by("way", {"larger, resampled": 0.7}), (0.03,)),
        tuned(by("way", {}), (0.03,)),
        tuned(by("way", {"larger, resampled": 0.5}), (0.03,)),
    ),
    "transfer": (
        tuned(by("model", {"large ViT": 0.7}), (0.03,)),
        tuned(by("model", {}), (0.03,)),
        tuned(by("model", {"large ViT": 0.5}), (0.03,)),
    ),
    "position-patterns": (
        patterns(near=0.5, straight=0.2, varies=0.3), patterns(near=0.5, straight=0.2, varies=0.0),
        patterns(near=-0.5, straight=0.2, varies=0.3),
    ),
    "attention-distance": (distances(2.0, 3.0), distances(0.0, 0.0), distances(-2.0, 3.0)),
    "cost": (cost(1.0, 4.0), cost(1.5, 4.0), cost(2.0, 0.25)),
    "descendants": (
        by("method", {"plain ViT": 0.5}),
        by("method", {}),
        by("method", {"plain ViT": 0.7}),
    ),
}  # fmt: skip
WORDS = ("reproduced", "open", "contradicted")


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("number", range(3), ids=WORDS)
def test_every_verdict_of_every_study_can_be_reached(study: str, number: int) -> None:
    results = made_results(study, CASES[study][number])
    _, verdict = verdict_on(STUDIES[study], results)
    assert verdict.word == WORDS[number], str(verdict)
    assert len(verdict.findings) >= 2


@pytest.mark.parametrize("study", STUDIES)
def test_nothing_is_judged_before_the_runs_that_the_rule_needs_are_finished(study: str) -> None:
    assert verdict_on(STUDIES[study], [])[1].word == "not measured"
    one = [result for result in made_results(study, lambda run: 0.5, seeds=1) if result.role == "measured"][
        :1
    ]
    if study != "cost":
        assert verdict_on(STUDIES[study], one)[1].word == "not measured"


def test_speed_alone_does_not_reproduce_a_claim_about_batches() -> None:
    made = made_results("cost", cost(1.0, 4.0))
    without = [
        dataclasses.replace(result, measures={"images_per_second": result.measures["images_per_second"]})
        for result in made
    ]
    assert verdict_on(STUDIES["cost"], without)[1].word == "open"


def test_kinds_of_positions_do_not_lie_within_half_of_a_gap_that_is_not_there() -> None:
    equal = verdict_on(STUDIES["positions"], made_results("positions", lambda run: 0.6))[1]
    assert [finding.state for finding in equal.findings] == ["open", "open"]


def test_the_spread_is_pooled_over_groups_and_falls_back_to_the_size_of_the_test_set() -> None:
    three = Results(made_results("head", lambda run: 0.5))
    assert three.spread() == pytest.approx(0.002)
    one = Results(made_results("head", lambda run: 0.502, seeds=1))
    assert one.spread() == pytest.approx((0.5 * 0.5 / 10_000) ** 0.5)


def test_a_difference_counts_when_it_is_more_than_twice_its_standard_error() -> None:
    spread = 0.003
    error = error_of(spread, [1.0], [0.0])
    assert error == pytest.approx(spread * 2**0.5)
    just = [0.5 + 2.01 * error]
    assert ahead("", just, [0.5], spread=spread)[0].state == "holds"
    assert ahead("", [0.5 + 1.99 * error], [0.5], spread=spread)[0].state == "open"
    assert ahead("", [0.5], just, spread=spread)[0].state == "opposite"
    assert ahead("", [], just, spread=spread) == []


def test_noise_never_proves_that_two_things_are_equal() -> None:
    assert level("", [0.5], [0.5], spread=0.001, within=0.01, most=0.03)[0].state == "holds"
    assert level("", [0.5], [0.5], spread=0.1, within=0.01, most=0.03)[0].state == "open"
    assert level("", [0.6], [0.5], spread=0.001, within=0.01, most=0.03)[0].state == "opposite"


def test_one_opposite_finding_contradicts_and_all_must_hold() -> None:
    holds, opens, opposite = (ahead("", [value], [0.5], spread=0.01)[0] for value in (0.9, 0.5, 0.1))
    assert verdict_of([holds, holds]).word == "reproduced"
    assert verdict_of([holds, opens]).word == "open"
    assert verdict_of([holds, opens, opposite]).word == "contradicted"
    assert "+40.00 ± 1.41 points (holds)" in str(holds)


def test_a_difference_inside_its_noise_contradicts_nothing() -> None:
    # -6.25 +- 12.48 points: the measured case that was called contradicted.
    spread = 0.1248 / 2**0.5
    [finding] = level("equal", [0.4375], [0.5], spread=spread, within=0.01, most=0.03)
    assert finding.difference == pytest.approx(-0.0625) and finding.error == pytest.approx(0.1248)
    assert finding.state == "open"
    assert verdict_of([finding]).word == "open"


def test_a_difference_beyond_the_limit_and_the_noise_is_opposite() -> None:
    [finding] = level("equal", [0.44], [0.5], spread=0.01, within=0.01, most=0.03)
    assert finding.state == "opposite"


def test_the_error_of_a_family_is_that_of_its_model_with_the_fewest_seeds() -> None:
    results = made_results("compute", compute(-0.1, 0.05), seeds=3)
    few = [result for result in results if result.settings["model"] != "ViT-0" or result.seed == 0]
    # The model with one seed comes first, so the last one has three.
    assert curve(Results(few), "ViT")[2] == 1
    assert curve(Results(results), "ViT")[2] == 3


def test_a_verdict_needs_three_seeds_whatever_its_findings_say() -> None:
    value = by("positions", {"none": 0.5})
    few = verdict_on(STUDIES["positions"], made_results("positions", value, seeds=2))[1]
    assert {finding.state for finding in few.findings} == {"holds"}
    assert few.word == "open" and few.reservation.startswith("2 of the 3 seeds")
    assert verdict_on(STUDIES["positions"], made_results("positions", value, seeds=3))[1].word == "reproduced"


def test_a_best_rate_at_the_edge_of_its_grid_leaves_the_verdict_open() -> None:
    value = by("objective", {"from scratch": 0.5, FEW: 0.54, COLOUR: 0.55, "labels": 0.65})
    for rates, word in (((1.5e-3,), "open"), ((5e-4,), "reproduced")):
        verdict = verdict_on(
            STUDIES["self-supervision"], made_results("self-supervision", tuned(value, rates))
        )[1]
        assert verdict.word == word


def test_from_scratch_trains_as_long_as_pre_training_and_fine_tuning_together() -> None:
    runs = STUDIES["self-supervision"].runs(
        Setup(scale=SCALES["small"], seed=0, num_classes=10, num_images=49_000)
    )
    steps = {run.name: run.recipe.training.total_steps for run in runs}
    both = steps["labels-pre-training-seed0"] + steps["labels-lr1-seed0"]
    assert {steps[f"from-scratch-lr{factor:g}-seed0"] for factor in (0.3, 1, 3)} == {both}


def test_learning_rates_are_chosen_on_held_out_images() -> None:
    results = [
        dataclasses.replace(result, measures={"accuracy": 0.5 + rate, "held_out": 0.5 - rate})
        for result in made_results("head", lambda run: 0.5)
        for rate in [result.settings["lr"]]
    ]
    assert best_rates(Results(results)) == {"class token": 1e-4, "average pooling": 1e-4}
