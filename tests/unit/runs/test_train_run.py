"""One run from data, model and recipe to its folder: same seed, same file; validation images are scored once."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from pictures import class_folders
from unit.runs.simple import simple_run

import vitrine
from vitrine.data.sources.opening import open_splits
from vitrine.errors import DataError
from vitrine.evaluation import outputs
from vitrine.evaluation.metrics import wilson_interval
from vitrine.models import create_model
from vitrine.objectives.classification import evaluate_classes
from vitrine.recipes import find_recipe
from vitrine.runs.label_recipe import for_labels_of
from vitrine.runs.records import Execution, RunOutput, TrainingResult
from vitrine.runs.run_data import RunData, with_held_out
from vitrine.runs.run_split import undivided
from vitrine.runs.starting_model import fresh_model, keep_known_classes, pretrained_model
from vitrine.runs.train_run import train_run
from vitrine.runs.validation import classes_without_validation
from vitrine.runtime.run_folder import RunFolder

TINY = {"width": 16, "depth": 1, "num_heads": 2, "mlp_width": 16, "patch_size": 8}


def trained(folder: Path, **training: object) -> TrainingResult:
    run = simple_run(total_steps=4, evaluate_every=2, **training)
    return train_run(
        run.start,
        run.data,
        run.recipe,
        execution=Execution(device="cpu", workers=0),
        output=RunOutput(folder=RunFolder(folder), verb="pretrain", plans=False),
    )


def digest(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def test_every_validation_image_is_scored_once_per_evaluation_and_not_again_for_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = []
    run_model = outputs.run_model

    def counting(model: object, source: object, **options: object) -> outputs.Outputs:
        collected.append(len(source))  # type: ignore[arg-type]
        return run_model(model, source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("vitrine.runs.validation.run_model", counting)
    monkeypatch.setattr("vitrine.runs.run_report.run_model", counting)
    # The statistics of "none of these" need features, which no evaluation keeps: they have a pass of their own.
    monkeypatch.setattr("vitrine.runs.run_end.store_trust", lambda *_, **__: None)
    result = trained(tmp_path / "run")
    assert collected == [12, 12]  # steps 2 and 4
    assert result.report is not None


def test_the_result_and_the_report_agree_to_the_last_image(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", each=10)
    options = {"model": "ViT-Ti/16", "size": 32, "steps": 3, "batch_size": 4, "device": "cpu", "workers": 0}
    result = vitrine.finetune(photos, out=tmp_path / "run", seed=3, **options)
    report = vitrine.report(tmp_path / "run", device="cpu", workers=0)
    assert (report.accuracy, report.interval) == (result.accuracy, result.interval)
    assert (report.worst, report.mistakes) == (result.worst, result.mistakes)


def test_the_same_seed_gives_the_same_file_for_a_variant_by_name_and_another_seed_another(
    tmp_path: Path,
) -> None:
    photos = class_folders(tmp_path / "photos", each=6)
    options = {"model": "ViT-Ti/16", "size": 16, "steps": 1, "batch_size": 4, "device": "cpu", "workers": 0}
    files = []
    for number, seed in enumerate((3, 3, 4)):
        torch.manual_seed(number)  # what was drawn before must not matter
        result = vitrine.finetune(photos, out=tmp_path / f"run{number}", seed=seed, **options)
        files.append(digest(result.model))
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("name", ["demo", "masked-patches", "autoencoder", "dino", "ibot", "moco"])
def test_fresh_weights_and_those_that_an_objective_adds_depend_on_the_seed_alone(name: str) -> None:
    recipe = find_recipe(name)
    recipe = dataclasses.replace(recipe, model="ViT", model_options=TINY, size=32)
    states = []
    for number in range(2):
        torch.manual_seed(number)
        states.append(fresh_model(recipe, classes=("a", "b")).model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    before = torch.get_rng_state()
    fresh_model(recipe, classes=("a", "b"))
    assert torch.equal(torch.get_rng_state(), before)


def test_new_weights_of_a_named_variant_are_drawn_with_the_seed_of_the_recipe() -> None:
    recipe = dataclasses.replace(find_recipe("photos"), size=32)
    first, second = (
        pretrained_model("ViT-Ti/16", recipe, num_classes=2).model.state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [(0.5, 100, (0.4038, 0.5962)), (1.0, 10, (0.7225, 1.0)), (0.0, 10, (0.0, 0.2775))],
)
def test_the_interval_is_wilsons(share: float, count: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(share, count) == pytest.approx(interval, abs=1e-4)  # from published tables


def test_a_class_of_which_nothing_is_held_out_is_named(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", each=20)

    def opened() -> RunData:
        return RunData(address=str(photos), splits=open_splits(photos, val_fraction=0.1))

    assert classes_without_validation(opened()) == ()
    (photos / "lonely").mkdir()
    next((photos / "cat").iterdir()).rename(photos / "lonely" / "0.png")
    assert classes_without_validation(opened()) == ("lonely",)
    whole = with_held_out(opened())
    assert whole.trains_on_all and whole.validation is None and len(whole.train) == 40
    assert undivided(opened().splits) is not None


def test_an_unreadable_validation_image_ends_the_evaluation_with_its_name(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", each=10)
    run = simple_run()
    data = RunData(address=str(photos), splits=open_splits(photos, val_fraction=0.2))
    path = data.splits["val"].path(0)
    assert path is not None
    path.write_bytes(b"no image")
    validation = dataclasses.replace(run, data=data).validation()
    with pytest.raises(DataError, match=path.name):
        validation.logits(run.start.model)


def test_labels_alone_are_adapted_to_several_labels_per_image() -> None:
    run = simple_run()
    assert for_labels_of(run.data, run.recipe) == run.recipe


def test_several_labels_per_image_are_evaluated_against_all_of_them() -> None:
    source = open_splits("generated:shapes?count=16&label=colour,shape&size=32")["val"]
    run = simple_run()
    model = create_model("ViT", num_classes=len(source.classes), image_size=32, **TINY)
    validation = dataclasses.replace(
        run, data=RunData(address="", splits={"train": source, "val": source})
    ).validation()
    logits, targets = validation.logits(model)
    assert targets.shape == logits.shape == (len(source), len(source.classes))
    assert targets.sum(dim=1).tolist() == [2] * len(source)
    found = evaluate_classes(model, validation, loss="sigmoid")
    assert set(found) == {"loss", "accuracy"}


def test_a_run_of_version_0_1_resumes_with_the_settings_of_its_objective(tmp_path: Path) -> None:
    """Then the objective was a name, its settings were sections of their own, and run.json said less."""
    small = [f"model_options.{name}={value}" for name, value in TINY.items()]
    vitrine.pretrain(
        "generated:shapes?size=32&count=16", objective="autoencoder", model="ViT", steps=2, batch_size=4, size=32,
        out=tmp_path, device="cpu", workers=0, set=[*small, "autoencoder.hidden=0.5", "autoencoder.decoder_width=16",
        "autoencoder.decoder_depth=1", "autoencoder.decoder_heads=2"],
    )  # fmt: skip
    run = RunFolder(tmp_path)
    values = yaml.safe_load(run.read_recipe())
    section = values.pop("objective")
    earlier = {"objective": section.pop("kind"), "loss": "softmax", "autoencoder": section, "multi_crop": {}}
    run.recipe_file.write_text(yaml.safe_dump({**values, **earlier}))
    record = json.loads(run.record_file.read_text())
    del record["weights_prefix"]
    run.record_file.write_text(json.dumps(record))
    result = vitrine.resume(tmp_path, set="training.total_steps=3")
    assert (result.steps, result.objective) == (3, "autoencoder")
    assert yaml.safe_load(run.read_recipe())["objective"] == {"kind": "autoencoder", **section}


def test_rows_of_the_head_are_kept_for_classes_of_the_same_name(tmp_path):
    old = create_model("ViT-Ti/16", image_size=16, num_classes=3, **TINY)
    torch.nn.init.normal_(old.head.weight)
    torch.nn.init.normal_(old.head.bias)
    vitrine.save(old, tmp_path / "model", classes=("cat", "dog", "owl"))
    recipe = find_recipe("photos")
    start = pretrained_model(str(tmp_path / "model"), recipe, num_classes=3)
    assert keep_known_classes(start.model, str(tmp_path / "model"), ("bat", "cat", "owl")) == ("cat", "owl")
    assert torch.equal(start.model.head.weight[1:], old.head.weight[[0, 2]])
    assert torch.equal(start.model.head.bias[1:], old.head.bias[[0, 2]])
    assert not start.model.head.weight[0].any()
    assert keep_known_classes(start.model, str(tmp_path / "model"), ("ant", "bee", "yak")) == ()
