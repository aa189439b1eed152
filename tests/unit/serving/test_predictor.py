import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from pictures import class_folders, photo, save
from PIL import Image

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.opening import open_source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import run_model
from vitrine.models import create_model
from vitrine.serving.predictor import Predictor

CLASSES = ("cat", "dog", "owl")
PREPROCESS = Preprocess(size=(16, 16), rule="shorter", crop_fraction=0.875, interpolation="bicubic")


def small(num_classes=3):
    torch.manual_seed(0)
    model = create_model(
        "ViT-B/16", image_size=16, num_classes=num_classes, patch_size=8, width=16, depth=2, num_heads=2,
        mlp_width=32,
    )  # fmt: skip
    if num_classes:
        model.head.weight.data.normal_()
    return model


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "model"
    vitrine.save(small(), folder, preprocess=PREPROCESS, classes=CLASSES)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("photos"), classes=CLASSES, each=3)


def jpeg(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_logits_are_those_of_evaluate_for_the_same_files(weights, photos):
    loaded, source = vitrine.load(weights), open_source(str(photos))
    save(photos / "cat" / "large.jpg", photo(7, 600, 800))  # decoded by a scaled transform in both
    source = open_source(str(photos))
    expected = run_model(loaded.model, source, preprocess=loaded.preprocess).rows
    found = Predictor.open(weights, device="cpu").logits([source.path(i) for i in range(len(source))])
    assert not found.failures
    torch.testing.assert_close(found.rows, expected, rtol=0, atol=1e-6)


def test_path_bytes_pillow_image_and_array_are_the_same_picture(weights, tmp_path):
    pixels = photo(3, 40, 56)
    path = save(tmp_path / "a.png", pixels)
    predictor = Predictor.open(str(weights), device="cpu")
    rows = predictor.logits([path, str(path), path.read_bytes(), Image.open(path), pixels]).rows
    torch.testing.assert_close(rows, rows[:1].expand_as(rows), rtol=0, atol=1e-6)


def test_pillow_images_are_made_upright_and_laid_over_white_as_files_are(weights, tmp_path):
    turned = Image.fromarray(photo(4, 40, 56))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    clear = Image.fromarray(np.dstack([photo(5, 40, 40), np.full((40, 40), 90, np.uint8)]), "RGBA")
    clear.save(tmp_path / "clear.png")
    predictor = Predictor.open(weights, device="cpu")
    for file in ("turned.jpg", "clear.png"):
        rows = predictor.logits([tmp_path / file, Image.open(tmp_path / file)]).rows
        # The two JPEG decoders may differ by 2 levels of 255 in a sample.
        torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=0.05)


def test_what_cannot_be_read_has_an_error_and_the_rest_an_answer(weights, tmp_path):
    (tmp_path / "notes.jpg").write_text("not a picture")
    pictures = [
        tmp_path / "notes.jpg",
        photo(1),
        b"",
        tmp_path / "gone.png",
        np.full((4, 4), 300.0, np.float32),
        7,
    ]
    found = Predictor.open(weights, device="cpu").predict(pictures, top=2)
    assert [prediction.error is None for prediction in found] == [False, True, False, False, False, False]
    assert "it looks like text" in found[0].error
    assert "empty" in found[2].error
    assert "No such file" in found[3].error
    assert "300" in found[4].error
    assert "picture 5 is a int" in found[5].error
    assert len(found[1].answers) == 2
    assert found[1].answers[0].probability >= found[1].answers[1].probability


def test_all_unreadable_is_no_exception(weights):
    found = Predictor.open(weights, device="cpu").logits([b"x", b""])
    assert sorted(found.failures) == [0, 1]
    assert not found.rows.any()


def test_no_pictures_no_answers(weights):
    predictor = Predictor.open(weights, device="cpu")
    assert predictor.predict([]) == []
    assert len(predictor.embed([]).rows) == 0


@pytest.mark.parametrize(
    "one", ["photo.jpg", b"\xff\xd8", np.zeros((8, 8, 3), np.uint8), Image.new("RGB", (8, 8))]
)
def test_a_single_picture_in_the_place_of_a_list_is_refused(one):
    with pytest.raises(ConfigError, match=f"list .*got .*{type(one).__name__};"):
        PictureList(one)


def test_a_server_gets_the_same_from_decoded_pixels(weights):
    predictor = Predictor.open(weights, device="cpu")
    pictures = [photo(seed, 30 + seed, 50) for seed in range(3)]
    pixels = torch.stack([predictor.pixels(jpeg(picture)) for picture in pictures])
    assert pixels.dtype == torch.uint8
    expected = predictor.logits([jpeg(picture) for picture in pictures]).rows
    torch.testing.assert_close(predictor.batch(pixels), expected, rtol=0, atol=1e-6)
    answers = predictor.best(predictor.batch(pixels), top=1)
    assert [answer[0].label for answer in answers] == [CLASSES[k] for k in expected.argmax(dim=1)]
    with pytest.raises(DataError, match="upload"):
        predictor.pixels(b"nothing", name="upload")


def test_features_are_the_input_of_the_head(weights):
    predictor = Predictor.open(weights, device="cpu", batch_size=2)
    pictures = [photo(seed) for seed in range(5)]
    features = predictor.embed(pictures).rows
    head = predictor.model.head
    with torch.no_grad():
        torch.testing.assert_close(head(features), predictor.logits(pictures).rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "recipe", [{"loss": "sigmoid"}, {"objective": {"kind": "labels", "loss": "sigmoid"}}]
)
def test_probabilities_follow_the_loss_that_the_model_was_trained_with(tmp_path, weights, recipe):
    vitrine.save(small(), tmp_path / "many", preprocess=PREPROCESS, classes=CLASSES, recipe=recipe)
    many, one = Predictor.open(tmp_path / "many", device="cpu"), Predictor.open(weights, device="cpu")
    logits = torch.tensor([[2.0, -1.0, 0.0]])
    assert many.is_multi_label
    assert not one.is_multi_label
    torch.testing.assert_close(many.probabilities(logits), logits.sigmoid())
    torch.testing.assert_close(one.probabilities(logits).sum(), torch.tensor(1.0))


def test_a_model_without_a_head_embeds_but_does_not_predict(tmp_path):
    vitrine.save(small(num_classes=None), tmp_path / "model", preprocess=PREPROCESS)
    predictor = Predictor.open(tmp_path / "model", device="cpu")
    assert predictor.embed([photo(1)]).rows.shape == (1, 16)
    with pytest.raises(ConfigError, match="no classification head"):
        predictor.predict([photo(1)])


def test_classes_without_names_are_numbered(tmp_path):
    vitrine.save(small(), tmp_path / "model", preprocess=PREPROCESS)
    [found] = Predictor.open(tmp_path / "model", device="cpu").predict([photo(1)], top=10)
    assert sorted(answer.label for answer in found.answers) == ["class 0", "class 1", "class 2"]


def test_importing_the_predictor_imports_no_training_code():
    code = (
        "import sys, vitrine.serving.predictor; "
        "print([m for m in sys.modules if m.startswith(('vitrine.training', 'vitrine.recipes'))])"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.stdout.strip() == "[]", found.stderr


@pytest.mark.parametrize(
    "recipe", [{"objective": {"kind": "labels", "loss": "sigmoid"}}, {"loss": "sigmoid"}]
)
def test_a_model_for_several_labels_says_which_apply(tmp_path, photos, recipe):
    vitrine.save(small(), tmp_path / "model", preprocess=PREPROCESS, classes=CLASSES, recipe=recipe)
    predictor = Predictor.open(tmp_path / "model", device="cpu")
    assert predictor.is_multi_label
    files = sorted(photos.rglob("*.png"))
    logits = predictor.logits(files).rows
    for prediction, row in zip(predictor.predict(files), logits, strict=True):
        assert prediction.labels == tuple(
            name for name, value in zip(CLASSES, row, strict=True) if value >= 0
        )
        assert prediction.answers[0].probability == pytest.approx(float(row.max().sigmoid()))


def test_a_model_for_one_label_names_no_labels(weights, photos):
    predictor = Predictor.open(weights, device="cpu")
    assert not predictor.is_multi_label
    assert predictor.predict(sorted(photos.rglob("*.png"))[:1])[0].labels is None
