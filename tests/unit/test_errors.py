"""Errors are also the built-in exceptions that Python code expects, and survive the way between processes."""

import pickle

import pytest

import vitrine
from vitrine.errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    RepeatedError,
    TrainingError,
    TryOption,
    TryVerb,
    VitrineError,
)
from vitrine.recipes.options import read_recipe
from vitrine.training.stopping import NotFiniteError, StoppedError


def test_a_missing_data_set_is_a_file_that_is_not_found(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        vitrine.check(tmp_path / "photoz")


def test_missing_weights_are_a_file_that_is_not_found(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        vitrine.load(tmp_path / "weights.safetensors")


def test_a_missing_recipe_is_a_file_that_is_not_found(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_recipe(str(tmp_path / "mine.yaml"))


def test_a_bad_value_is_a_value_error_that_names_its_parameter() -> None:
    with pytest.raises(ValueError, match="top") as refusal:
        vitrine.predict("box", "photo.jpg", top=0)
    assert isinstance(refusal.value, VitrineError)
    assert refusal.value.option == "top"


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("must be at least 1, got 0", option="top", advice=[TryOption("top", "to name one", 1)]),
        DataError("no images"),
        DataError("has no split tset", suggestions=["test"]),
        StoppedError("stopped after step 8", step=8, advice=[TryVerb("resume", ("run",))]),
        NotFiniteError("the loss is NaN", step=6),
        MissingExtraError("onnx", extra="export", purpose="Export"),
        RepeatedError("the first process failed", 3),
        TrainingError("the loss is NaN"),
    ],
)
def test_an_error_from_another_process_keeps_its_fields(error: VitrineError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert (str(back), back.exit_code) == (str(error), error.exit_code)


def test_the_names_nearest_to_a_misspelt_one_are_a_field(tmp_path) -> None:
    (tmp_path / "photos").mkdir()
    meant = {
        "photos": lambda: vitrine.check(tmp_path / "fotos"),
        "ViT-B/16": lambda: vitrine.create_model("ViT-B16"),
        "depth": lambda: vitrine.create_model("ViT-B/16", dept=3),
        "training.lr": lambda: vitrine.pretrain("generated:shapes", set="training.lrr=1"),
        "demo": lambda: vitrine.pretrain("generated:shapes", recipe="demos"),
        "dino": lambda: vitrine.pretrain("generated:shapes", objective="dinno"),
    }
    for name, misspelt in meant.items():
        with pytest.raises(VitrineError) as refused:
            misspelt()
        assert refused.value.suggestions[0] in (name, str(tmp_path / name))
