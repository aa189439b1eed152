"""Pictures of any shape in one sequence: each gets the logits that the model gives it alone."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.preparing.native import native_size
from vitrine.data.preparing.preprocess import Preprocess, planes, resize
from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.models.dropout import image_keys, number_random_layers, randomness_of
from vitrine.models.segments import Segments

SHAPES = ((60, 100), (300, 80), (64, 64), (20, 200), (60, 100))
NATIVE = Preprocess(size=(32, 32), patch=(8, 8), max_patches=16)
FAMILIES: list[dict[str, object]] = [
    {},
    {"pooling": "average", "norm_after_pooling": True, "position_resampling": "bicubic_offset"},
    {"pooling": "attention", "positions": "learned_2d", "norm": "rms_norm"},
    {"positions": "none", "rotary": "dinov3", "num_registers": 2, "mlp": "swiglu", "qk_norm": True},
    {"positions": "none", "rotary": "eva", "rotary_grid": (4, 4), "embedding_norm": True},
    {"positions": "sincos_2d", "has_distillation_token": True, "num_branches": 2, "layer_scale": 0.1},
]


def small_vit(**options: object) -> ViT:
    torch.manual_seed(0)
    model = create_model(
        "ViT-Ti/16", image_size=32, patch_size=8, width=64, depth=2, num_heads=2, mlp_width=128, num_classes=7,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    assert isinstance(model, ViT) and model.head is not None
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return model.eval()


def photos() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in SHAPES]


def as_patches(pictures: list[NDArray[np.uint8]]) -> Tensor:
    return torch.stack([NATIVE.normalise(NATIVE.pixels(picture)) for picture in pictures])


def alone(picture: NDArray[np.uint8]) -> Tensor:
    size = native_size(*picture.shape[:2], patch=(8, 8), max_patches=16)
    return Preprocess(size=size).normalise(resize(planes(picture, 3), size, "bilinear"))[None]


@pytest.mark.parametrize(
    "options", FAMILIES, ids=lambda options: "-".join(map(str, options.values())) or "plain"
)
@torch.no_grad()
def test_packed_logits_and_features_equal_those_of_each_picture_alone(options: dict[str, object]) -> None:
    vit, pictures = small_vit(**options), photos()
    packed = as_patches(pictures)
    for function in (vit, vit.embed):
        single = torch.cat([function(alone(picture)) for picture in pictures])
        # The same products in batches of another size: within fp32's rounding.
        torch.testing.assert_close(function(packed), single, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_pack_are_the_sum_of_those_of_its_pictures() -> None:
    vit, pictures = small_vit().double(), photos()  # sums of many terms: in fp64 their order does not matter
    vit(as_patches(pictures).double()).square().sum().backward()
    packed = [parameter.grad.clone() for parameter in vit.parameters() if parameter.grad is not None]
    vit.zero_grad()
    for picture in pictures:
        vit(alone(picture).double()).square().sum().backward()
    single = [parameter.grad for parameter in vit.parameters() if parameter.grad is not None]
    assert len(packed) == len(single) > 20
    for ours, theirs in zip(packed, single, strict=True):
        # Positions are resampled in fp32.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))


def test_attention_picture_by_picture_equals_the_masked_matrix() -> None:
    torch.manual_seed(0)
    lengths = [3, 1, 7, 3]
    q, k, v = torch.randn(3, 1, 2, 14, 8).unbind()
    segments = Segments(lengths, device=torch.device("cpu"))
    outside = segments.picture[:, None] != segments.picture[None, :]
    logits = (q @ k.transpose(-2, -1) * 8**-0.5).masked_fill(outside, -torch.inf)
    torch.testing.assert_close(segments.attend(q, k, v), logits.softmax(dim=-1) @ v, rtol=1e-5, atol=1e-6)
    assert segments.first(v.transpose(1, 2).flatten(2), 1).shape == (4, 1, 16)
    assert segments.starts.tolist() == [0, 3, 4, 11]


@torch.no_grad()
def test_a_picture_that_could_not_be_read_does_not_disturb_the_others() -> None:
    vit, pictures = small_vit(pooling="average"), as_patches(photos())
    expected = vit(pictures)
    pictures[1] = 0
    torch.testing.assert_close(vit(pictures)[[0, 2, 3, 4]], expected[[0, 2, 3, 4]], rtol=1e-5, atol=1e-5)
    assert vit(pictures).isfinite().all()


@pytest.mark.gpu
@torch.no_grad()
def test_flex_attention_on_a_gpu_equals_the_way_without_it() -> None:
    vit, pictures = small_vit(), as_patches(photos())
    expected = vit(pictures)
    torch.testing.assert_close(vit.cuda()(pictures.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_dropout_and_stochastic_depth_of_a_picture_do_not_depend_on_the_others_in_its_pack() -> None:
    vit, pictures = small_vit(dropout=0.2, stochastic_depth=0.5).train(), as_patches(photos())
    number_random_layers(vit)
    keys = image_keys(0, first=0, count=len(pictures), device=torch.device("cpu"))
    with randomness_of(keys):
        whole = vit(pictures)
    with randomness_of(keys[1:3]):
        part = vit(pictures[1:3])
    torch.testing.assert_close(whole[1:3], part, rtol=1e-5, atol=1e-5)
    with randomness_of(keys + 1):
        assert not torch.allclose(whole, vit(pictures), atol=1e-3)


@pytest.mark.parametrize(
    "options", [{"positions": "relative"}, {"attention_dropout": 0.1}, {"activation_checkpointing": True}]
)
def test_a_model_that_cannot_be_packed_is_refused_by_the_reason(options: dict[str, object]) -> None:
    vit = small_vit(**options)
    with pytest.raises(ConfigError, match=f"{next(iter(options))}|{next(iter(options.values()))}"):
        vit(as_patches(photos()))


def test_patches_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"patches, 192\) .*\(2, 17, 768\)"):
        small_vit()(torch.zeros(2, 17, 768))
