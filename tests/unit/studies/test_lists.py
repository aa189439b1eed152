"""Every study's list of runs at every scale, and what it is said to cost before anything starts."""

import dataclasses
import re

import pytest

from vitrine.errors import ConfigError
from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.bit_config import BiTConfig
from vitrine.models.config import ViTConfig
from vitrine.models.cost import cost_of
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.recipes.recipe_values import to_yaml
from vitrine.studies.arms import FINE_FACTORS
from vitrine.studies.estimate import Estimate, estimate, estimate_run
from vitrine.studies.record import Run, Setup, in_order, keys_of
from vitrine.studies.registry import STUDIES, find_studies
from vitrine.studies.scales import SCALES, find_scale

EVERY = [(study, scale) for study in STUDIES for scale in SCALES]
RATE = 7e14


def setup(scale: str, *, seed: int = 0, **options: object) -> Setup:
    values: dict[str, object] = {"num_classes": 10, "num_images": 49_000, **options}
    return Setup(scale=SCALES[scale], seed=seed, **values)  # type: ignore[arg-type]


def runs(study: str, scale: str, **options: object) -> tuple[Run, ...]:
    return STUDIES[study].runs(setup(scale, **options))


def test_there_are_the_thirteen_studies_of_the_paper_and_one_of_its_descendants() -> None:
    assert set(STUDIES) == {
        "data-size", "few-shot-vs-data", "compute", "self-supervision", "optimizer", "shape", "head", "positions",
        "cost", "resolution", "transfer", "descendants", "position-patterns", "attention-distance",
    }  # fmt: skip


@pytest.mark.parametrize(("study", "scale"), EVERY)
def test_a_list_is_a_pure_function_of_scale_and_seed(study: str, scale: str) -> None:
    first, again = runs(study, scale), runs(study, scale)
    assert first == again
    names = [run.name for run in first]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+", name) for name in names), names
    assert all(run.study == study and run.seed == 0 for run in first)
    assert all(run.recipe.training.seed == 0 for run in first)
    other = runs(study, scale, seed=1)
    assert [run.group for run in other] == [run.group for run in first]
    assert not {run.name for run in other} & set(names)


@pytest.mark.parametrize(("study", "scale"), EVERY)
def test_every_run_has_a_recipe_that_can_be_written_and_weights_that_come_from_an_earlier_run(
    study: str, scale: str
) -> None:
    listed = in_order(runs(study, scale))
    seen: set[str] = set()
    for run in listed:
        assert run.after is None or run.after in seen
        seen.add(run.name)
        assert run.recipe.size == run.model.image_size[0]
        assert "training" in to_yaml(run.recipe)
        assert run.role in ("measured", "check") or any(other.after == run.name for other in listed)


@pytest.mark.parametrize(("study", "scale"), EVERY)
def test_costs_are_positive_and_add_up(study: str, scale: str) -> None:
    listed = runs(study, scale)
    total = estimate(listed, rate=RATE, num_test=10_000)
    parts = [estimate_run(run, rate=RATE, num_test=10_000) for run in listed]
    assert total.runs == len(listed)
    assert total.seconds(1) > 0
    for name in ("exaflops", "device_seconds", "host_seconds"):
        assert getattr(total, name) == pytest.approx(sum(getattr(part, name) for part in parts))
    if study != "cost":
        assert all(part.exaflops > 0 for part in parts)
    assert total.seconds(6) <= total.seconds(1) <= 6 * total.seconds(6) + 1e-9
    assert total + Estimate() == total


def test_more_steps_cost_more_in_proportion() -> None:
    once, twice = (
        estimate(
            STUDIES["head"].runs(
                dataclasses.replace(setup("small"), scale=find_scale("small", steps=factor))
            ),
            rate=RATE,
            num_test=0,
        )
        for factor in (1, 2)
    )
    assert twice.exaflops == pytest.approx(2 * once.exaflops)


@pytest.mark.parametrize(
    "study", ["positions", "few-shot-vs-data", "compute", "self-supervision", "head", "resolution"]
)
def test_a_small_study_is_reckoned_at_a_few_minutes_of_a_gpu(study: str) -> None:
    listed = [run for seed in range(STUDIES[study].seeds) for run in runs(study, "small", seed=seed)]
    # Ten ways to start with three learning rates each take four times as long as others; nine models twice as long.
    most = {"self-supervision": 600, "compute": 300}.get(study, 150)
    assert estimate(listed, rate=RATE, num_test=10_000).seconds(6) < most


def test_a_key_changes_with_anything_that_decides_the_result_and_with_nothing_else() -> None:
    (run, *_) = runs("head", "tiny")
    prints = {"data": "a"}
    key = run.key(prints)
    assert run.key(prints) == key
    reworded = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, claim="other words"))
    assert reworded.key(prints) == key
    assert run.key({"data": "b"}) != key
    assert dataclasses.replace(run, num_images=5).key(prints) != key
    longer = dataclasses.replace(run.recipe.training, total_steps=99)
    assert (
        dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, training=longer)).key(prints) != key
    )


def test_a_run_after_another_has_another_key_when_that_one_changes() -> None:
    before, *others = runs("resolution", "tiny")
    rest = [run for run in others if run.after == before.name]
    changed = dataclasses.replace(before, num_images=7)
    first, second = keys_of([before, *rest], {}), keys_of([changed, *rest], {})
    assert all(first[run.name] != second[run.name] for run in rest)


def test_transfer_has_a_run_for_every_model_and_target() -> None:
    listed = runs("transfer", "tiny", target_classes=(3, 7))
    tuned = [run for run in listed if run.role == "measured"]
    assert {(run.data, run.model.num_classes) for run in tuned} == {("target0", 3), ("target1", 7)}
    assert len(tuned) == 6 * len(FINE_FACTORS)


def test_the_families_of_the_compute_study_overlap_in_compute() -> None:
    cost: dict[str, list[int]] = {}
    nine = [run for run in runs("compute", "small") if run.role == "measured" and "axial" not in run.group]
    for run in nine:
        cost.setdefault(run.settings["family"], []).append(cost_of(run.model).macs)
    assert all(len(values) == 3 and values == sorted(values) for values in cost.values())
    assert max(min(values) for values in cost.values()) < min(max(values) for values in cost.values())


def test_subsets_of_the_few_shot_study_grow_to_the_whole_set() -> None:
    counts = [run.num_images for run in runs("few-shot-vs-data", "small") if run.settings["model"] == "ViT"]
    assert counts[-1] is None
    assert [count for count in counts if count] == [1470, 4900, 14_700]


def test_names_are_found_several_at_a_time_and_a_misspelt_one_is_refused() -> None:
    assert [study.name for study in find_studies("head, positions,head")] == ["head", "positions"]
    assert len(find_studies("all")) == len(STUDIES)
    with pytest.raises(ConfigError, match="'postions'") as refused:
        find_studies("postions")
    assert (refused.value.option, refused.value.suggestions[0]) == ("name", "positions")
    with pytest.raises(ConfigError, match="no scale is called"):
        find_scale("smal")
    with pytest.raises(ConfigError, match="above 0"):
        find_scale("small", steps=0)


def test_hybrids_and_resnets_have_one_root_and_all_families_cells_of_equal_size() -> None:
    for scale in ("tiny", "little", "small", "medium"):
        models = {
            run.settings["model"]: run.model for run in runs("compute", scale) if run.role == "measured"
        }
        hybrid, net, vit = models["hybrid-1"], models["ResNet-0"], models["ViT-1"]
        assert isinstance(hybrid, ViTConfig) and isinstance(net, BiTConfig) and isinstance(vit, ViTConfig)
        assert isinstance(hybrid.stem, ResNetStemConfig)
        assert (hybrid.stem.root, hybrid.stem.width) == (net.root, net.width) == ("3x3", 32)
        assert hybrid.stem.units == net.units[:3]
        assert hybrid.grid_size == vit.grid_size


def test_the_axial_resnet_is_made_from_the_smallest_resnet() -> None:
    for scale in ("tiny", "little", "small", "medium"):
        models = {run.settings["model"]: run.model for run in runs("compute", scale)}
        axial, net = models["axial-ResNet-0"], models["ResNet-0"]
        assert isinstance(axial, AxialResNetConfig) and isinstance(net, BiTConfig)
        assert (axial.units, axial.width, axial.root) == (net.units, net.width, net.root)
        assert axial.representation_width == net.representation_width
    names = {run.settings["model"] for run in runs("cost", "paper")}
    assert {"AxialResNet-50", "Axial-ViT-B-32", "Axial-ViT-B-16"} < names


def test_the_reference_arm_is_also_trained_twice_as_long() -> None:
    listed = {run.name: run for run in runs("compute", "small")}
    once, twice = (listed[f"ViT-1{suffix}-seed0"].recipe.training for suffix in ("", "-longer"))
    assert (twice.total_steps, twice.warmup_steps) == (2 * once.total_steps, 2 * once.warmup_steps)
    assert listed["ViT-1-longer-seed0"].role == "check"
