"""The callable for batch engines: the answers of `Predictor`, decoded here or elsewhere."""

import pickle

import numpy as np
import pytest
import torch
from pictures import photo, save

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import DataError
from vitrine.serving.batch_predictor import BatchPredictor, DecodePictures


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    desk = tmp_path_factory.mktemp("desk")
    for number in range(3):
        save(desk / f"{number}.png", photo(number, 20, 18))
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, patch_size=8, num_classes=3
    )
    torch.nn.init.normal_(model.head.weight)
    vitrine.save(model, desk / "model", preprocess=Preprocess(size=(16, 16)), classes=("ant", "bee", "cow"))
    return desk


def test_a_batch_gets_the_answers_of_the_predictor_and_keeps_its_other_columns(desk):
    paths = [str(desk / f"{number}.png") for number in range(3)] + [str(desk / "gone.png")]
    callable_ = pickle.loads(pickle.dumps(BatchPredictor(desk / "model", device="cpu")))  # as engines send it
    batch = {"path": np.array(paths, dtype=object), "id": np.arange(4)}
    rows = callable_(batch)
    assert set(rows) == {"path", "id", "predicted", "confidence", "embedding", "error"}
    expected = vitrine.Predictor.open(desk / "model", device="cpu")
    np.testing.assert_allclose(
        rows["embedding"][:3], expected.embed(paths[:3]).rows.numpy(), rtol=0, atol=1e-6
    )
    assert list(rows["predicted"][:3]) == [one.answers[0].label for one in expected.predict(paths[:3])]
    assert rows["error"][:3].tolist() == [None] * 3 and "gone.png" in rows["error"][3]
    assert np.isnan(rows["embedding"][3]).all() and rows["predicted"][3] is None
    data = np.array([(desk / f"{number}.png").read_bytes() for number in range(3)], dtype=object)
    decoded = DecodePictures(expected.preprocess)({"bytes": data})
    assert set(decoded) == {"pixels", "error"} and decoded["pixels"].shape == (3, 3, 16, 16)
    np.testing.assert_array_equal(callable_(decoded)["embedding"], callable_({"bytes": data})["embedding"])


def test_only_what_is_asked_for_is_computed_and_a_batch_without_pictures_is_refused(desk):
    only = BatchPredictor(desk / "model", device="cpu", has_embedding=False)
    rows = only({"path": [str(desk / "0.png")]})
    assert "embedding" not in rows and rows["predicted"].shape == (1,)
    with pytest.raises(DataError, match=r"bytes, image, path or pixels,.*id$"):
        only({"id": [1]})
