import pytest
from pictures import photo, save

from vitrine.errors import ConfigError, TryVerb
from vitrine.jobs.model_argument import model_and_data, model_and_pictures


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "inbox" / "a.png", photo(1))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "vit.npz").touch()
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "model.safetensors").touch()
    save(tmp_path / "toys" / "model" / "a.png", photo(2))  # a class called model makes no run folder
    return tmp_path


@pytest.mark.parametrize(
    ("words", "model", "pictures"),
    [
        ([], "box:ti", []),
        (["box"], "box:ti", []),
        (["ViT-B/16"], "ViT-B/16", []),
        (["inbox"], "box:ti", ["inbox"]),
        (["toys"], "box:ti", ["toys"]),
        (["weights"], "weights", []),
        (["run", "inbox"], "run", ["inbox"]),
        (["runs/latest", "inbox"], "runs/latest", ["inbox"]),
        (["google/vit-base-patch16-224", "inbox"], "google/vit-base-patch16-224", ["inbox"]),
        (["inbox/a.png", "inbox"], "box:ti", ["inbox/a.png", "inbox"]),
        (["inbox/*.png"], "box:ti", ["inbox/*.png"]),
        (["-"], "box:ti", ["-"]),
        (["list.csv"], "box:ti", ["list.csv"]),
        (["gone.jpg"], "box:ti", ["gone.jpg"]),
        (["vit.npz", "inbox/a.png"], "vit.npz", ["inbox/a.png"]),
    ],
)
def test_words_are_told_apart_by_what_they_can_only_mean(words, model, pictures):
    assert model_and_pictures(words, device="cpu") == (model, pictures)


@pytest.mark.parametrize("model", ["run", "weights", "runs/latest", "ViT-B/16"])
def test_a_model_after_the_pictures_is_refused_and_not_passed_over(model):
    with pytest.raises(ConfigError, match=f"models come before pictures: {model} inbox/a.png"):
        model_and_pictures(["inbox/a.png", model], device="cpu")


def test_a_folder_of_pictures_with_arrays_beside_them_is_still_pictures(here):
    (here / "inbox" / "features.npz").touch()
    assert model_and_pictures(["gone.jpg", "inbox"], device="cpu") == ("box:ti", ["gone.jpg", "inbox"])


def test_data_before_the_model_is_refused_with_the_command_the_right_way_round():
    with pytest.raises(ConfigError, match="the model comes first") as refused:
        model_and_data("evaluate", "inbox", "run", device="cpu")
    assert refused.value.advice == (TryVerb("evaluate", ("run", "inbox")),)
    assert model_and_data("evaluate", "run", "weights", device="cpu") == ("run", "weights")


def test_a_single_word_is_the_data():
    assert model_and_data("evaluate", "inbox", None, device="cpu") == ("box:ti", "inbox")
    assert model_and_data("evaluate", "run", "inbox", device="cpu") == ("run", "inbox")
    assert model_and_data("evaluate", None, "inbox", device="cpu") == ("box:ti", "inbox")
