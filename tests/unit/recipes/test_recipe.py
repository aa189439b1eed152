"""Recipes as records: written and read back, changed by name, refused where they make no sense."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrine.data.augmenting.multi_crop import MultiCrop
from vitrine.errors import ConfigError, MissingConfigError
from vitrine.models import create_model
from vitrine.objectives import DinoObjective, LabelsObjective, MaskedPatchesObjective
from vitrine.recipes import RECIPES, find_recipe, register_recipe, with_settings
from vitrine.recipes.options import CHANGEABLE, changed_under_way, chosen_recipe, read_recipe
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import as_values, from_yaml, to_yaml
from vitrine.training.config import TrainingConfig


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_comes_back_equal_from_yaml(name: str) -> None:
    recipe = RECIPES[name]()
    assert from_yaml(to_yaml(recipe)) == recipe


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_bears_its_name_and_states_its_claim(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert len(recipe.claim) > 5
    json.dumps(as_values(recipe))  # it goes into the record beside the weights


@pytest.mark.parametrize("name", sorted(name for name in RECIPES if RECIPES[name]().model))
def test_every_recipe_with_a_model_builds_it(name: str) -> None:
    import torch

    recipe = RECIPES[name]()
    assert recipe.model is not None
    with torch.device("meta"):
        model = create_model(recipe.model, num_classes=7, image_size=recipe.size, **recipe.model_options)
    assert model.config.num_classes == 7


def test_settings_change_what_they_name_and_nothing_else() -> None:
    before = find_recipe("photos")
    after = with_settings(
        before, ["training.lr=3e-4", "augment.mixup=0.5", "views.flip=false", "training.clip_norm=null"]
    )
    assert (after.training.lr, after.augment.mixup) == (3e-4, 0.5)
    assert after.views.flip is False and after.training.clip_norm is None
    training = dataclasses.replace(after.training, lr=before.training.lr, clip_norm=before.training.clip_norm)
    assert training == before.training


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.betas=[0.9, 0.95]", (0.9, 0.95)),
        ("training.lr=.5e-3", 5e-4),
        ("training.total_steps=1e3", 1000),
        ("training.decays_all=true", True),
        ("sweep=[0.1, 1]", (0.1, 1.0)),
        ("size=96", 96),
        ("model_options.dropout=0.1", {"dropout": 0.1}),
    ],
)
def test_values_are_read_as_the_kind_of_their_field(setting: str, value: object) -> None:
    found: object = with_settings(find_recipe("photos"), [setting])
    for part in setting.partition("=")[0].split("."):
        found = getattr(found, part) if not isinstance(found, dict) else found
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.lrr=1", "'training.lrr'; .*'training.lr'"),
        ("trainin.lr=1", "'trainin.lr'; .*'training.lr'"),
        ("lr=1", "there is no setting 'lr'"),
        ("training.lr", "training.lr=3e-4, got 'training.lr'"),
        ("training.lr=big", "training.lr .*float, got 'big'"),
        ("training.betas=[0.9", r"list .*got '\[0.9'"),
        ("training.lr=true", "training.lr .*float, got True"),
        ("training.total_steps=1.5", "training.total_steps .*int, got 1.5"),
        ("training.optimizer=sdg", "^optimizer .*adamw, .*got 'sdg'; .*sgd$"),
        ("training=5", "training .*table .*got 5"),
        ("training.lr=0", "^lr .*above 0 .*got 0.0"),
        ("augment.erase=2", "^erase, .*1, got 2.0"),
        ("loss=hinge", "softmax"),
        ("views.crop=incepton", "inception"),
        ("views.device_share=1.5", "device_share .*0 to 1, .*1.5"),
        ("model_options.dropout=much", "model_options.dropout .*float, got 'much'"),
        ("model_options.depth=2.5", "model_options.depth .*int, got 2.5"),
        ("model_options.patch_size=small", "model_options.patch_size .*tuple, got 'small'"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_do(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_settings(find_recipe("photos"), [setting])
    assert re.search(message, caught.value.problem)


def test_a_recipe_whose_bytes_are_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read the recipe .*mine\.yaml"):
        read_recipe(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("text", ["[1, 2]", "training: {lr: [}", "name: x\nclaim: y\nspeed: 3"])
def test_what_is_not_a_recipe_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        from_yaml(text)


def test_only_the_inception_crop_is_shared_with_the_device() -> None:
    shared = with_settings(find_recipe("photos"), ["views.crop=inception", "views.device_share=0.5"])
    assert shared.views.device_share == 0.5
    with pytest.raises(ConfigError, match=r"^device_share.*inception, got 0\.5 and none"):
        with_settings(shared, ["views.crop=none"])


def test_epochs_become_steps_once_the_data_is_known() -> None:
    recipe = chosen_recipe("photos", epochs=3, batch_size=32)
    assert recipe.with_steps_for(1000).training.total_steps == round(3 * 1000 / 32)
    assert recipe.with_steps_for(1).training.total_steps == 1
    assert chosen_recipe("photos", steps=7).with_steps_for(1000).training.total_steps == 7


def test_another_number_of_steps_does_not_change_the_batch_size() -> None:
    for num_images in (50, 200, 1000, 20_000):
        usual = chosen_recipe("photos").with_steps_for(num_images).training
        shorter = chosen_recipe("photos", steps=7).with_steps_for(num_images).training
        assert (shorter.batch_size, shorter.total_steps) == (usual.batch_size, 7)


def test_little_data_gets_small_batches_unless_the_batch_was_asked_for() -> None:
    def planned(num_images: int, **options: object) -> tuple[int, int]:
        training = chosen_recipe("photos", **options).with_steps_for(num_images).training  # type: ignore[arg-type]
        return training.batch_size, training.total_steps

    assert planned(3680) == (128, 575)  # all of Pets: as the recipe says
    assert planned(740) == (32, 462)
    assert planned(100) == (16, 250)  # more passes than the recipe's, as so few photos need them
    assert planned(100, epochs=20) == (16, 125)
    assert planned(740, batch_size=128) == (128, 116)
    assert planned(740, settings=["training.batch_size=64"]) == (64, 231)


def test_of_few_steps_a_fifth_at_most_is_warm_up_and_there_are_points_for_a_curve() -> None:
    short = chosen_recipe("photos", batch_size=128).with_steps_for(740).training
    assert (short.total_steps, short.warmup_steps, short.log_every) == (116, 23, 5)
    long = chosen_recipe("photos", batch_size=128).with_steps_for(100_000).training
    assert (long.warmup_steps, long.log_every) == (100, 10)


def test_powers_of_ten_are_numbers_wherever_a_person_writes_them() -> None:
    assert with_settings(find_recipe("photos"), ["sweep=[1e-5, 3E-4, 0.1]"]).sweep == (1e-5, 3e-4, 0.1)
    typed = (
        to_yaml(find_recipe("photos")).replace("lr: 0.0003", "lr: 3e-5").replace("epochs: 20", "epochs: 2e1")
    )
    assert (from_yaml(typed).training.lr, from_yaml(typed).epochs) == (3e-5, 20)
    with pytest.raises(ConfigError, match=r"^sweep .*float, got 'e-5'"):
        with_settings(find_recipe("photos"), ["sweep=[e-5]"])


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 1, "log_every": 50, "settings": ["training.warmup_steps=90"]},
        {"epochs": 1, "settings": ["training.warmup_steps=90", "training.log_every=50"]},
        {"steps": 100, "log_every": 50, "settings": ["training.warmup_steps=90"]},
    ],
)
def test_a_short_run_keeps_what_was_asked_for_and_so_does_its_config(options: dict[str, Any]) -> None:
    recipe = chosen_recipe("photos", batch_size=10, **options).with_steps_for(1000)
    training = recipe.training
    assert (training.total_steps, training.warmup_steps, training.log_every) == (100, 90, 50)
    assert from_yaml(to_yaml(recipe)).with_steps_for(1000) == recipe


def test_a_number_of_steps_is_the_same_by_option_and_by_setting() -> None:
    by_setting = chosen_recipe("photos", settings=["training.total_steps=40"])
    assert by_setting == chosen_recipe("photos", steps=40)
    assert by_setting.with_steps_for(100_000).training.total_steps == 40
    assert by_setting.training.warmup_steps == 8


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 1, "steps": 2},
        {"epochs": 1, "settings": ["training.total_steps=2"]},
        {"steps": 2, "settings": ["epochs=1"]},
    ],
)
def test_epochs_and_steps_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"epochs or steps,.*1 and 2$"):
        chosen_recipe("photos", **options)


def test_a_recipe_file_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(find_recipe("demo")))
    assert chosen_recipe(str(tmp_path / "config.yaml")) == find_recipe("demo")
    with pytest.raises(MissingConfigError, match=r"config\.yml") as refused:
        chosen_recipe(str(tmp_path / "config.yml"))
    assert refused.value.suggestions == (str(tmp_path / "config.yaml"),)
    with pytest.raises(ConfigError, match=r"no such file: nowhere/config\.yaml$"):
        chosen_recipe("nowhere/config.yaml")


def test_what_changes_under_way_touches_neither_data_nor_checkpoints() -> None:
    before = find_recipe("photos")
    changed = changed_under_way(before, ["training.lr=1e-5", "training.total_steps=900"])
    assert (changed.training.lr, changed.training.total_steps, changed.epochs) == (1e-5, 900, None)
    assert changed_under_way(before, ()) == before
    for setting in (
        "training.optimizer=sgd",
        "training.seed=3",
        "training.batch_size=8",
        "augment.mixup=0.2",
    ):
        with pytest.raises(ConfigError, match=f"{setting.partition('=')[0]} cannot change") as refused:
            changed_under_way(before, [setting])
        assert refused.value.option == "set"
    with pytest.raises(ConfigError, match=r"'training.lrr'") as refused:
        changed_under_way(before, ["training.lrr=1"])
    assert (refused.value.option, refused.value.suggestions) == ("set", ("training.lr",))
    fields = {field.name for field in dataclasses.fields(before.training)}
    assert {path.removeprefix("training.") for path in CHANGEABLE if path.startswith("training.")} <= fields


def test_another_model_keeps_what_is_not_its_shape() -> None:
    recipe = chosen_recipe("cifar10", model="ViT-S/16")
    assert recipe.model == "ViT-S/16"
    assert "width" not in recipe.model_options and recipe.model_options["pooling"] == "average"


def test_another_objective_leaves_out_what_goes_with_labels_and_claims_nothing() -> None:
    before = find_recipe("cifar10")
    after = chosen_recipe("cifar10", objective="masked-patches", target="pixels")
    assert after.objective == MaskedPatchesObjective(target="pixels")
    assert not after.augment.mixes and after.augment.label_smoothing == 0
    assert after.augment.num_operations == before.augment.num_operations and after.views == before.views
    assert after.training == before.training and after.model_options == before.model_options
    assert after.claim == "unmeasured: cifar10 with objective masked-patches"


def test_an_objective_has_a_recipe_of_its_own_name() -> None:
    assert chosen_recipe(None).name == "from-scratch"
    assert chosen_recipe(None, objective="labels").name == "from-scratch"
    assert chosen_recipe(None, objective="autoencoder") == find_recipe("autoencoder")
    assert chosen_recipe(None, objective="masked-patches") == find_recipe("masked-patches")


def test_a_teacher_goes_with_distillation_alone_and_is_named_so_that_it_is_found_again(tmp_path) -> None:
    (tmp_path / "teacher").mkdir()
    recipe = chosen_recipe(
        "cifar10", objective="distillation", teacher=str(tmp_path / "x" / ".." / "teacher")
    )
    assert recipe.objective.teacher == str(tmp_path / "x" / ".." / "teacher")  # there is no x
    recipe = chosen_recipe("cifar10", objective="distillation", teacher=str(tmp_path / "." / "teacher"))
    assert recipe.objective.teacher == str(tmp_path / "teacher")
    assert not recipe.needs_labels and recipe.augment.mixup == 0
    with pytest.raises(ConfigError, match=r"objective dino$") as caught:
        chosen_recipe(None, objective="dino", teacher="x")
    assert caught.value.option == "teacher"


def test_what_needs_labels_may_be_mixed_and_what_does_not_may_not() -> None:
    learns = "distillation.learns=soft-logits"
    mixed = chosen_recipe(None, objective="distillation", settings=[learns, "augment.mixup=0.2"])
    assert mixed.needs_labels
    with pytest.raises(ConfigError, match=r"^augment\.mixup=0\.2 .*distillation; .*mixup=0\.0$"):
        chosen_recipe(None, objective="distillation", settings=["augment.mixup=0.2"])


def test_a_teacher_is_asked_once_only_where_views_are_not_random() -> None:
    fixed = ["distillation.caches=true", "views.crop=none", "views.flip=false"]
    assert chosen_recipe(None, objective="distillation", settings=fixed).objective.caches
    for change in ("views.flip=true", "views.crop=padded", "augment.jitter=0.1", "augment.num_operations=1"):
        with pytest.raises(ConfigError, match=r"^objective\.caches .*views\.crop=none"):
            chosen_recipe(None, objective="distillation", settings=[*fixed, change])


@pytest.mark.parametrize(
    ("steps", "batch", "images", "judged", "every"),
    [
        (300, 16, 240, 26, 30),  # ten times
        (30, 16, 160, 20, 10),  # three epochs: three times
        (20_000, 512, 10_000_000, 5_000, 2_000),  # an epoch is too long to wait for
        (100, 16, 160, 160, 50),  # a tenth of 1,600 images learned from pays for 320 judged: twice
        (100, 16, 160, 10_000, None),  # the end alone
        (3, 16, 160, 20, None),  # less than an epoch
        (300, 16, 240, 0, None),  # nothing is held out
    ],
)
def test_evaluations_are_spread_over_a_run_as_far_as_they_are_cheap(
    steps: int, batch: int, images: int, judged: int, every: int | None
) -> None:
    recipe = find_recipe("photos")
    training = dataclasses.replace(recipe.training, total_steps=steps, batch_size=batch)
    recipe = dataclasses.replace(recipe, training=training)
    assert recipe.with_evaluations_for(images, num_evaluated=judged).training.evaluate_every == every


def test_evaluations_that_were_asked_for_stay_as_they_are() -> None:
    recipe = find_recipe("photos")
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, evaluate_every=7))
    assert recipe.with_evaluations_for(1000, num_evaluated=100) == recipe


def as_version_0_1(recipe: Recipe, **sections: Any) -> str:
    """Write a recipe as version 0.1 did: the objective by its name, each objective's settings at the top level."""
    values = as_values(recipe)
    kind = values.pop("objective")["kind"]
    return yaml.safe_dump({**values, "objective": kind, **sections})


def test_a_recipe_of_version_0_1_is_read_with_the_settings_of_its_objective() -> None:
    everything = {
        "loss": "softmax",
        "masked_patches": {"target": "pixels"},
        "autoencoder": {"hidden": 0.5},
        "self_distillation": {"num_prototypes": 64, "momentum": 0.99},
        "multi_crop": {"num_local": 2, "source_size": 96},
        "distillation": {"teacher": None, "learns": "features"},
    }
    dino = find_recipe("dino")
    objective = DinoObjective(
        num_prototypes=64, momentum=0.99, multi_crop=MultiCrop(num_local=2, source_size=96)
    )
    assert from_yaml(as_version_0_1(dino, **everything)) == dataclasses.replace(dino, objective=objective)
    labels = find_recipe("photos")
    text = as_version_0_1(labels, **{**everything, "loss": "sigmoid"})
    assert from_yaml(text) == dataclasses.replace(labels, objective=LabelsObjective(loss="sigmoid"))


def test_settings_keep_their_earlier_names_and_are_refused_with_another_objective() -> None:
    dino = chosen_recipe(
        None, objective="dino", settings=["self_distillation.num_prototypes=64", "multi_crop.num_local=2"]
    )
    assert dino == chosen_recipe(
        None, objective="dino", settings=["objective.num_prototypes=64", "objective.multi_crop.num_local=2"]
    )
    assert with_settings(find_recipe("photos"), ["loss=sigmoid"]).objective == LabelsObjective(loss="sigmoid")
    with pytest.raises(ConfigError, match=r"num_prototypes .*dino, not with labels"):
        with_settings(find_recipe("photos"), ["self_distillation.num_prototypes=64"])
    with pytest.raises(ConfigError, match="now a setting of objective"):
        from_yaml("name: x\nobjective: {kind: labels}\nloss: sigmoid")


def test_another_objective_by_setting_has_its_own_settings() -> None:
    recipe = with_settings(find_recipe("masked-patches"), ["objective=autoencoder", "objective.hidden=0.5"])
    assert (recipe.objective.kind, recipe.objective.hidden) == ("autoencoder", 0.5)
    with pytest.raises(ConfigError, match="'dinno'") as caught:
        with_settings(recipe, ["objective=dinno"])
    assert (caught.value.option, caught.value.suggestions) == ("objective", ("dino",))


def test_a_partial_recipe_file_changes_the_default_recipe_of_the_verb(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("training: {lr: 0.001, warmup_steps: 7}")
    photos, recipe = find_recipe("photos"), chosen_recipe(str(file), base="photos")
    assert recipe.name == "mine" and recipe.claim.startswith("unmeasured")
    assert recipe.training == dataclasses.replace(photos.training, lr=0.001, warmup_steps=7)
    assert (recipe.views, recipe.augment, recipe.epochs) == (photos.views, photos.augment, photos.epochs)
    assert "warmup_steps" in recipe.asked_for
    assert chosen_recipe(str(file)).model == find_recipe("from-scratch").model
    assert chosen_recipe(str(file), objective="dino").objective == find_recipe("dino").objective
    file.write_text("trainig: {lr: 0.001}")
    with pytest.raises(ConfigError, match="did you mean 'training'"):
        chosen_recipe(str(file))


def test_a_file_with_a_name_is_a_whole_recipe_with_defaults_for_the_rest(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\ntraining: {lr: 0.001}")
    assert chosen_recipe(str(tmp_path / "mine.yaml")) == Recipe(
        name="mine", training=TrainingConfig(lr=0.001)
    )


def test_a_recipe_from_outside_the_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrine.recipes.registry.RECIPES", dict(RECIPES))

    @register_recipe
    def mine() -> Recipe:
        return Recipe(name="mine", model="ViT-Ti/16", epochs=3)

    assert chosen_recipe("mine", lr=0.1).training.lr == 0.1
    with pytest.raises(ConfigError, match="already registered"):
        register_recipe(lambda: Recipe(name="photos"))
