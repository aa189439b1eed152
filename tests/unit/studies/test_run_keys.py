"""Keys of runs stay what they were in version 0.1, so that studies begun with it continue."""

import dataclasses
from dataclasses import dataclass

import pytest

from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.studies.record import Run, Setup, keys_of
from vitrine.studies.registry import STUDIES
from vitrine.studies.scales import SCALES, from_scratch, resnet, vit
from vitrine.training.config import TrainingConfig

FINGERPRINTS = {"data": "abc", "target0": "def", "target1": "ghi"}
# As version 0.1 (commit f39cc87) computes them for the setup below: ViTs, a ResNet and a hybrid, every objective that
# a study trains, fine-tuning after pre-training, and a measurement on another data set.
OF_VERSION_0_1 = {
    ("self-supervision", "self-distillation-pre-training-seed0"): "5b0ed16c41f1a751",
    ("few-shot-vs-data", "ResNet-0.3-seed0"): "12e7d57aa4d39b61",
    ("compute", "hybrid-1-seed0"): "673b1dc7ef06183a",
}


def runs_of(study: str) -> tuple[Run, ...]:
    return STUDIES[study].runs(Setup(scale=SCALES["tiny"], seed=0, num_classes=10, num_images=5000))


def earlier_runs() -> list[Run]:
    """Return two runs as version 0.1 listed them; their studies have since changed."""
    scale = SCALES["tiny"]
    hybrid = vit(scale, num_classes=10, patch_size=1, stem=ResNetStemConfig(units=(1,)))
    stopping = {"evaluate_every": 2, "patience": 3}
    return [
        Run(
            study="compute", group="hybrid-1", seed=0, settings={"family": "hybrid", "model": "hybrid-1"},
            model=hybrid, recipe=from_scratch(scale, seed=0, name="hybrid-1", total_steps=12), probes=True,
        ),
        Run(
            study="few-shot-vs-data", group="ResNet-0.3", seed=0, settings={"model": "ResNet", "share": 0.3},
            model=resnet(scale, num_classes=10), probes=True, num_images=1500,
            recipe=from_scratch(scale, seed=0, name="ResNet on 0.3 of the data", **stopping),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(("study", "run"), OF_VERSION_0_1)
def test_a_run_has_the_key_that_it_had_in_version_0_1(study: str, run: str) -> None:
    listed = [one for one in earlier_runs() if one.study == study] or runs_of(study)
    assert keys_of(listed, FINGERPRINTS)[run] == OF_VERSION_0_1[study, run]


@dataclass(frozen=True, kw_only=True)
class LaterTraining(TrainingConfig):
    """The settings of a version to come."""

    is_patient: bool = False


def test_a_setting_that_came_later_counts_only_where_it_is_used() -> None:
    run = runs_of("head")[0]

    def key(*, is_patient: bool) -> str:
        training = LaterTraining(**dataclasses.asdict(run.recipe.training), is_patient=is_patient)
        return dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, training=training)).key({})

    assert key(is_patient=False) == run.key({})
    assert key(is_patient=True) != run.key({})
