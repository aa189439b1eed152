import io

import numpy as np
import pytest
import torch
from oracles import import_torchvision
from PIL import Image
from unit.data.pictures import encoded, smooth

from vitrine.data.decoding.decode import decode
from vitrine.data.preparing.hf_preprocess import from_hf, to_hf
from vitrine.data.preparing.preprocess import PILLOW_TOLERANCE, Preprocess, target_size
from vitrine.errors import ConfigError

RULES = [
    Preprocess(),
    Preprocess(size=(224, 224), rule="shorter", crop_fraction=0.875, interpolation="bicubic"),
    Preprocess(size=(384, 384), crop_fraction=384 / 448),
    Preprocess(size=(96, 160), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    Preprocess(size=(28, 28), mean=(0.5,), std=(0.5,)),
]


@pytest.mark.parametrize("preprocess", RULES)
def test_the_record_survives_json(preprocess):
    import json

    assert Preprocess.from_json(json.loads(json.dumps(preprocess.to_json()))) == preprocess


@pytest.mark.parametrize("preprocess", RULES)
def test_the_record_survives_hugging_faces_config(preprocess):
    again = from_hf(to_hf(preprocess))
    assert again.resize_size == preprocess.resize_size
    assert (again.size, again.rule, again.mean, again.std, again.interpolation) == (
        preprocess.size,
        preprocess.rule,
        preprocess.mean,
        preprocess.std,
        preprocess.interpolation,
    )


def test_published_hugging_face_configs_are_understood():
    vit = {
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "ViTImageProcessor", "image_std": [0.5, 0.5, 0.5], "resample": 2,
        "rescale_factor": 0.00392156862745098, "size": {"height": 224, "width": 224},
    }  # fmt: skip
    assert from_hf(vit) == Preprocess()
    older = {
        "do_normalize": True,
        "do_resize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": 384,
    }
    assert from_hf(older) == Preprocess(size=(384, 384))
    dino = {
        "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_resize": True, "resample": 3,
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "size": {"shortest_edge": 256},
    }  # fmt: skip
    read = from_hf(dino)
    assert (read.rule, read.resize_size, read.size, read.interpolation) == (
        "shorter",
        (256, 256),
        (224, 224),
        "bicubic",
    )


def test_squash_equals_pillows_resize_within_a_level_and_the_papers_normalisation():
    image = smooth(50, 90)
    expected = np.array(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR))
    preprocess = Preprocess(size=(32, 32))
    pixels = preprocess.pixels(image)
    assert (pixels.int() - torch.from_numpy(expected).permute(2, 0, 1).int()).abs().max() <= PILLOW_TOLERANCE
    found = preprocess(image)
    assert found.shape == (3, 32, 32) and found.dtype == torch.float32
    torch.testing.assert_close(found, pixels / 127.5 - 1)


@pytest.mark.parametrize(("height", "width"), [(50, 90), (90, 50), (33, 47), (64, 64), (20, 300)])
def test_shorter_side_and_centre_crop_equal_torchvisions_on_pillows_within_a_level(height, width):
    transforms = _transforms()
    image = smooth(height, width)
    expected = transforms.Compose(
        [
            transforms.Resize(40, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(35),
            transforms.PILToTensor(),
        ]
    )(Image.fromarray(image))
    ours = Preprocess(size=(35, 35), rule="shorter", crop_fraction=0.875, interpolation="bicubic")
    assert (ours.pixels(image).int() - expected.int()).abs().max() <= PILLOW_TOLERANCE


def _transforms():
    import_torchvision()
    from torchvision import transforms

    return transforms


def test_height_comes_before_width():
    wide = Preprocess(size=(20, 40), rule="shorter")
    assert wide.pixels(smooth(100, 100)).shape == (3, 20, 40)
    assert target_size(100, 100, size=(20, 40), rule="shorter") == (40, 40)
    assert target_size(100, 400, size=(20, 40), rule="shorter") == (20, 80)


def test_a_large_jpeg_may_be_decoded_small_within_one_level():
    data = encoded(smooth(1200, 1600), "JPEG", quality=92)
    preprocess = Preprocess(size=(96, 96))
    small = preprocess.decode(data)
    assert small.shape[0] < 1200
    whole = preprocess.pixels(decode(data)).float()
    assert (preprocess.pixels(small).float() - whole).abs().mean() < 1


def test_an_encoded_a_decoded_and_a_pillow_image_give_the_same():
    image = smooth(40, 30)
    preprocess = Preprocess(size=(16, 16))
    first = preprocess(image)
    assert torch.equal(first, preprocess(encoded(image)))
    assert torch.equal(first, preprocess(Image.open(io.BytesIO(encoded(image)))))


def test_normalising_is_undone_exactly():
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    preprocess = RULES[3]
    assert torch.equal(preprocess.denormalise(preprocess.normalise(pixels)), pixels)


def test_one_channel_is_resized_as_grey():
    found = RULES[4](smooth(56, 56))
    assert found.shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": (0, 5)}, "size .*two positive numbers"),
        ({"rule": "crop"}, "rule .*shorter, got 'crop'"),
        ({"crop_fraction": 1.2}, "crop_fraction .*at most 1"),
        ({"interpolation": "cubic"}, "interpolation .*nearest, bilinear"),
        ({"std": (0.0, 1.0, 1.0)}, "mean and std .*per channel"),
    ],
)
def test_nonsense_is_refused_at_birth(values, message):
    with pytest.raises(ConfigError, match=message):
        Preprocess(**values)


def test_unknown_names_are_refused_when_read():
    with pytest.raises(ConfigError, match="no 'sizes', only crop_fraction"):
        Preprocess.from_json({"sizes": [3, 3]})
    with pytest.raises(ConfigError, match="rescale_factor must be 1/255"):
        from_hf({"size": 224, "rescale_factor": 1.0})
